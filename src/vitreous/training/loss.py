"""`Objective`: the loss of each task, with a teacher's answers (DeiT's distillation) and class weights; `image_losses`.

`Objective` is the module that a step calls, and that DDP and FSDP2 wrap.
"""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.masks import IGNORE
from vitreous.models.vit import ViT
from vitreous.training.config import TrainConfig
from vitreous.training.model import Forward, call_model
from vitreous.weights.load import Model


class Teacher(nn.Module):
    """A frozen model that sees the student's images, normalised and resized as it was trained on them."""

    scale: Tensor
    offset: Tensor

    def __init__(self, model: Model, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        own = model.card.preprocess
        if len(own.mean) != len(mean):
            raise ValueError(
                "teacher and student must both take grey or both take colour images: choose another teacher"
            )
        self.size = own.size
        ours, theirs = torch.tensor([mean, std]), torch.tensor([own.mean, own.std])
        self.register_buffer("scale", (ours[1] / theirs[1]).view(-1, 1, 1))
        self.register_buffer("offset", ((ours[0] - theirs[0]) / theirs[1]).view(-1, 1, 1))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Compute the teacher's answer: the student's input `[b c h w]` → logits `[b classes]`."""
        x = x * self.scale + self.offset
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", antialias=True)
        logits: Tensor = self.model(x)
        return logits


class Objective(nn.Module):
    """A model and its loss as one module, which DDP and FSDP2 can wrap."""

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        forward: Forward = call_model,
        teacher: Teacher | None = None,
        class_weights: Tensor | None = None,
        task: str = "classify",
    ) -> None:
        """Take the weight of each class in the loss, `[classes]`; None: all weigh the same."""
        super().__init__()
        self.model, self.config, self.compute_logits = model, config, forward
        self.teacher = (teacher,)  # in a tuple: not a submodule, it does not learn
        self.class_weights, self.task = class_weights, task

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the training loss: images `[b c h w]`, targets → mean loss, and outputs.

        Targets are `[b classes]` for classes, `[b k]` for labels and numbers, `[b h w]` for masks. If the model has a
        distillation head, that head learns from the teacher and the class head from the labels.
        """
        (teacher,), config, model = self.teacher, self.config, self.model
        if self.task != "classify":
            outputs = self.compute_logits(model, x)
            return image_losses(self.task, outputs, targets, config.loss).mean(), outputs
        if teacher is None:
            logits = self.compute_logits(model, x)
            return F.cross_entropy(logits.float(), targets, self.class_weights), logits
        if isinstance(model, ViT) and model.head_dist is not None:
            tokens = model.forward_features(x)
            logits, student = model.head(model.pool(tokens)), model.head_dist(model.fc_norm(tokens[:, 1]))
        else:
            logits = student = self.compute_logits(model, x)
        teacher_logits = teacher(x).float()
        if config.distillation == "hard":
            distilled = F.cross_entropy(student.float(), teacher_logits.argmax(dim=-1))
        else:
            t = config.temperature  # t² keeps the gradients' size when t changes (Hinton et al., 2015)
            goal, answer = (teacher_logits / t).log_softmax(dim=-1), (student.float() / t).log_softmax(dim=-1)
            distilled = F.kl_div(answer, goal, reduction="batchmean", log_target=True) * t * t
        share = config.distillation_share
        return (1 - share) * F.cross_entropy(logits.float(), targets, self.class_weights) + share * distilled, logits


def image_losses(task: str, outputs: Tensor, targets: Tensor, loss: str = "auto") -> Tensor:
    """Compute the loss of each image of a batch: `[b]`. Their mean is the batch's, however it is divided.

    Numbers are in units of their standard deviation. Of a mask, each image counts the same, whatever it ignores.

    >>> image_losses("regress", torch.tensor([[0.5], [3.0]]), torch.zeros(2, 1))
    tensor([0.1250, 2.5000])
    """
    outputs = outputs.float()
    if task == "classify":
        return F.cross_entropy(outputs, targets, reduction="none")
    if task == "multilabel":
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=-1)
    if task == "regress":
        measure = F.mse_loss if loss == "mse" else F.huber_loss
        return measure(outputs, targets, reduction="none").mean(dim=-1)
    pixels = F.cross_entropy(outputs, targets, ignore_index=IGNORE, reduction="none")  # [b h w]; 0 where ignored
    return pixels.sum(dim=(1, 2)) / (targets != IGNORE).sum(dim=(1, 2)).clamp(min=1)


@torch.no_grad()
def training_scores(task: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute beside the loss how well each image of a batch is answered, to be shown while training: `[b]`.

    The share of correct answers: of the class, of labels, of pixels; for numbers 1 − the mean absolute error.
    """
    if task == "classify":
        return (outputs.argmax(dim=-1) == targets.argmax(dim=-1)).float()
    if task == "multilabel":
        return ((outputs > 0) == (targets > 0.5)).float().mean(dim=-1)
    if task == "regress":
        return 1 - (outputs.float() - targets).abs().mean(dim=-1)
    valid = targets != IGNORE
    correct = (outputs.argmax(dim=1) == targets) & valid
    return correct.sum(dim=(1, 2)) / valid.sum(dim=(1, 2)).clamp(min=1)


def standardised(numbers: Tensor, standard: Sequence[tuple[float, float]]) -> Tensor:
    """Turn numbers to learn into the units of the loss, their standard deviation: `[b k]`.

    >>> standardised(torch.tensor([[7.0]]), [(5.0, 2.0)])
    tensor([[1.]])
    """
    mean, std = torch.tensor(standard, dtype=numbers.dtype, device=numbers.device).unbind(dim=1)
    return (numbers - mean) / std


def in_units(outputs: Tensor, standard: Sequence[tuple[float, float]]) -> Tensor:
    """Turn outputs in the units of the loss, standard deviations, back into the numbers' own: `[b k]`."""
    mean, std = torch.tensor(standard, dtype=outputs.dtype, device=outputs.device).unbind(dim=1)
    return outputs * std + mean


def balancing_weights(labels: Sequence[int], classes: int) -> Tensor:
    """Return the class weights of the loss, inverse to each class's number of images, with a mean of 1 over images.

    >>> balancing_weights([0, 0, 0, 1], 2)
    tensor([0.6667, 2.0000])
    """
    counts = torch.bincount(torch.tensor(labels), minlength=classes)
    return len(labels) / (counts.clamp(min=1) * (counts > 0).sum()).float()
