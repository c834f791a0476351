"""`Objective`: the loss, cross-entropy with labels and a teacher's answers (DeiT's distillation); class weights.

`Objective` is the module that a step calls, and that DDP and FSDP2 wrap. The path from images to logits is chosen once,
by `choose_forward`.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.models.last_block import logits_only
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT, ViTConfig
from vitreous.speed.training_forward import training_logits
from vitreous.training.config import TrainConfig
from vitreous.weights.load import Model

NARROW = 16  # torch's fused CPU attention is slower than plain products for heads narrower than this

Forward = Callable[[Model, Tensor], Tensor]
"""Model and images `[b c h w]` → logits `[b classes]`."""


def choose_forward(
    model: Model, device: torch.device, config: TrainConfig | None = None, *, sharded: bool = False
) -> Forward:
    """Choose how images become logits in training: on a CPU without needless work, on a GPU as `config` asks.

    Without a config (for evaluation) its memory and speed options are off.
    """
    if sharded:  # FSDP2 gathers a block when it is called as a whole
        return _call
    if isinstance(model, ResNet):
        return _call if device.type == "cpu" else _call_channels_last
    forward: Forward = logits_only if device.type == "cpu" else _call
    if config is not None and config.forward_options():
        residual = torch.bfloat16 if config.residual == "bf16" else None
        forward = partial(training_logits, residual=residual, fused=config.fused, recompute=config.recompute)
    shape = model.config
    narrow = isinstance(shape, ViTConfig) and shape.width // shape.heads < NARROW
    if not narrow or device.type != "cpu":
        return forward

    def with_plain_attention(model: Model, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return forward(model, x)

    return with_plain_attention


def _call(model: Model, x: Tensor) -> Tensor:
    """Run a model as it is."""
    logits: Tensor = model(x)
    return logits


def _call_channels_last(model: Model, x: Tensor) -> Tensor:
    """Run a model with images in the memory format of a ResNet on a GPU."""
    return _call(model, x.contiguous(memory_format=torch.channels_last))  # as the weights of a ResNet on a GPU


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
        forward: Forward = _call,
        teacher: Teacher | None = None,
        class_weights: Tensor | None = None,
    ) -> None:
        """Take the weight of each class in the loss, `[classes]`; None: all weigh the same."""
        super().__init__()
        self.model, self.config, self.compute_logits = model, config, forward
        self.teacher = (teacher,)  # in a tuple: not a submodule, it does not learn
        self.class_weights = class_weights

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the training loss: images `[b c h w]`, targets `[b classes]` → mean loss, and logits `[b classes]`.

        If the model has a distillation head, that head learns from the teacher and the class head from the labels.
        """
        (teacher,), config, model = self.teacher, self.config, self.model
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


def balancing_weights(labels: Sequence[int], classes: int) -> Tensor:
    """Return a weight for each class, inverse to its number of images, with a mean of 1 over the images.

    >>> balancing_weights([0, 0, 0, 1], 2)
    tensor([0.6667, 2.0000])
    """
    counts = torch.bincount(torch.tensor(labels), minlength=classes)
    return len(labels) / (counts.clamp(min=1) * (counts > 0).sum()).float()
