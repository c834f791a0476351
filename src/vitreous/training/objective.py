"""What is minimised: cross-entropy with the labels and, with a teacher, with what the teacher says (DeiT)."""

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.models.last_block import logits_only
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT, ViTConfig
from vitreous.speed.training_forward import logits_to_learn
from vitreous.training.config import TrainConfig
from vitreous.weights.load import Model

NARROW = 16  # heads below this width: torch's fused CPU kernel is slower for them than plain products


class Teacher(nn.Module):
    """A frozen model that sees the student's very images, normalised and sized as it was trained on them."""

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
        """The student's input `[b c h w]` → logits `[b classes]`."""
        x = x * self.scale + self.offset
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", antialias=True)
        return self.model(x)


def attention_kernel(model: Model, device: torch.device) -> AbstractContextManager[None]:
    """The quicker way through attention where torch's choice is known to be the slower one."""
    shape = model.config
    narrow = isinstance(shape, ViTConfig) and shape.width // shape.heads < NARROW
    return sdpa_kernel(SDPBackend.MATH) if narrow and device.type == "cpu" else nullcontext()


def forward(model: Model, x: Tensor, config: TrainConfig | None = None) -> Tensor:
    """Images to logits; on a CPU by the shortcuts that were measured to help there, on a GPU by those asked for."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return model(x)  # FSDP2 puts a block together when it is called whole
    if isinstance(model, ResNet):  # its weights lie with their channels last on a GPU
        return model(x if x.device.type == "cpu" else x.contiguous(memory_format=torch.channels_last))
    with attention_kernel(model, x.device):
        if config is None or not config.means():
            return logits_only(model, x) if x.device.type == "cpu" else model(x)
        residual = torch.bfloat16 if config.residual == "bf16" else None
        return logits_to_learn(model, x, residual, fused=config.fused, recompute=config.recompute)


class Objective(nn.Module):
    """A model and what it learns by, as one module: what DDP and FSDP2 wrap. `state_dict`s are the model's own."""

    def __init__(self, model: Model, config: TrainConfig, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.teacher = (teacher,)  # in a tuple: it is no part of what learns

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return objective(self.model, x, targets, self.config, *self.teacher)


def objective(
    model: Model, x: Tensor, targets: Tensor, config: TrainConfig, teacher: Teacher | None
) -> tuple[Tensor, Tensor]:
    """Images `[b c h w]` and targets `[b classes]` → the mean loss, and logits `[b classes]` to count hits by.

    Where the model has a distillation head, that one learns from the teacher and the class head from the labels.
    """
    if teacher is None:
        logits = forward(model, x, config)
        return F.cross_entropy(logits.float(), targets), logits
    if isinstance(model, ViT) and model.head_dist is not None:
        tokens = model.forward_features(x)
        logits, student = model.head(model.pool(tokens)), model.head_dist(model.fc_norm(tokens[:, 1]))
    else:
        logits = student = forward(model, x, config)
    said = teacher(x).float()
    if config.distillation == "hard":
        taught = F.cross_entropy(student.float(), said.argmax(dim=-1))
    else:
        t = config.temperature  # t² keeps the gradients' size when t changes (Hinton et al., 2015)
        goal, answer = (said / t).log_softmax(dim=-1), (student.float() / t).log_softmax(dim=-1)
        taught = F.kl_div(answer, goal, reduction="batchmean", log_target=True) * t * t
    share = config.distillation_share
    return (1 - share) * F.cross_entropy(logits.float(), targets) + share * taught, logits
