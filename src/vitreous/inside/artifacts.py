"""Artifacts: patch tokens whose norm stands far out, which neurons make them, and test-time registers instead of them.

A model uses such tokens as registers (Darcet et al., 2024). A few neurons of its MLPs make them, and their activations
can be moved to an extra token, without training (Jiang et al., 2025, "Vision Transformers Don't Need Trained
Registers"): maps of attention then show the image, and the answers stay.

Shapes:  b images · t tokens · d width · u neurons (hidden units of an MLP)
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.inside.capture import capture
from vitreous.inside.representations import token_norms
from vitreous.models.token_layout import TokenLayout
from vitreous.models.vit import ViT

FACTOR = 4.0
"""How many times the median norm of a block's patches an outlier has. Ordinary patches stay below 2.5 times."""
LEAST_ADDED = 0.5
"""How long a vector a register neuron adds to an artifact, in median norms of the patches after its block."""

Neuron = tuple[int, int]
"""A block, and a hidden unit of its MLP."""


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of an image: patches whose tokens are outliers after some block."""

    patches: tuple[int, ...] = ()
    """Their indices among the patches, in rising order."""
    block: int = 0
    """The first block after which any of them stands out."""
    norm: float = 0.0
    """Their mean norm where it is largest, over the blocks."""
    usual: float = 0.0
    """The median norm of that block's patches."""

    def __bool__(self) -> bool:
        return bool(self.patches)


def find_artifacts(outputs: Tensor, layout: TokenLayout) -> Artifacts:
    """Find artifacts: patches whose token is over `FACTOR` times the median length after some block, `[blocks t d]`.

    >>> import torch
    >>> outputs = torch.ones(3, 5, 4)
    >>> outputs[1:, 2] *= 30
    >>> find_artifacts(outputs, TokenLayout(grid=(2, 2)))
    Artifacts(patches=(1,), block=1, norm=60.0, usual=2.0)
    """
    norms = token_norms(outputs.float(), layout).flatten(1)  # [blocks n]
    usual = norms.median(dim=1, keepdim=True).values
    outlying = norms > FACTOR * usual  # [blocks n]
    patches = outlying.any(dim=0).nonzero().flatten()
    if not len(patches):
        return Artifacts()
    lengths = norms[:, patches].mean(dim=1)
    largest = int(lengths.argmax())
    return Artifacts(
        tuple(patches.tolist()),
        int(outlying.any(dim=1).nonzero()[0]),
        float(lengths[largest]),
        float(usual[largest]),
    )


def describe_artifacts(count: str, block: str, norm: str, usual: str) -> str:
    """Describe artifacts in a sentence: how many, from which block on, their norm and the usual one.

    >>> describe_artifacts("1", "5", "60", "2")[:62]
    'This patch carries no image content: from block 5 on the model'
    """
    who = "This patch carries" if count == "1" else f"These {count} patches carry"
    what = "its token as a register" if count == "1" else "their tokens as registers"
    return (
        f"{who} no image content: from block {block} on the model uses {what} "
        f"(norm {norm}, where {usual} is usual). Dashed lines on the image show where."
    )


@torch.no_grad()
def register_neurons(model: ViT, x: Tensor) -> list[Neuron]:
    """Find the neurons that make artifacts in images `[b c H W]`, the strongest first; empty if there are none.

    These are hidden units of MLPs, up to the block from which on artifacts stand out, which add at least `LEAST_ADDED`
    of an ordinary token's length to them, over what they add to other patches, in the mean over images with artifacts.
    The last block is left out: no token reads what its MLP adds to another one.
    """
    check_registers(model)
    prefix, widths = model.layout.prefix, _added_lengths(model)
    added, seen = torch.zeros_like(widths), 0
    for image in x:
        with capture(model, ["output", "mlp_hidden"]) as internals:
            model(image[None])
        outputs, hidden = (internals.stack(name)[:, 0].float() for name in ("output", "mlp_hidden"))
        if not (found := find_artifacts(outputs, model.layout)):
            continue
        outlying = torch.zeros(model.layout.patches, dtype=torch.bool, device=x.device)
        outlying[list(found.patches)] = True
        hidden, usual = hidden[:, prefix:], outputs[:, prefix:].norm(dim=-1).median(dim=1).values  # [l n u], [l]
        more = hidden[:, outlying].mean(dim=1) - hidden[:, ~outlying].mean(dim=1)  # [l u]
        early = torch.arange(len(usual), device=x.device) <= min(found.block, len(usual) - 2)
        added, seen = added + more.abs() * widths * early[:, None] / usual[:, None], seen + 1
    order = added.flatten().argsort(descending=True)[: int((added >= LEAST_ADDED * max(seen, 1)).sum())]
    return [divmod(int(index), added.shape[1]) for index in order]


def _added_lengths(model: ViT) -> Tensor:
    """Compute the length of what each neuron adds to a token if it is 1, for the search for artifacts: `[blocks u]`."""
    return torch.stack([block.ls2(block.mlp.fc2.weight.T.float()).norm(dim=-1) for block in model.blocks])  # type: ignore[operator, union-attr]


class RegisterNeurons(nn.Module):
    """Move the activations of some neurons to test-time registers, between the layers of an MLP: `[b t u]`.

    Each register gets a neuron's largest activation among the patches, by size, and the patches get 0. `prefix` counts
    the tokens in front of the patches, of which the last `count` are the registers.

    >>> move = RegisterNeurons([1], prefix=2, count=1)
    >>> move(torch.tensor([[[1.0, 1.0], [0.0, 0.0], [2.0, 3.0], [4.0, 9.0]]]))
    tensor([[[1., 1.],
             [0., 9.],
             [2., 0.],
             [4., 0.]]])
    """

    units: Tensor

    def __init__(self, units: Sequence[int], prefix: int, count: int) -> None:
        super().__init__()
        self.prefix, self.count = prefix, count
        self.register_buffer("units", torch.tensor(units, dtype=torch.long))

    def forward(self, hidden: Tensor) -> Tensor:
        first, registers, patches = hidden.split(
            [self.prefix - self.count, self.count, hidden.shape[1] - self.prefix], 1
        )
        moved = patches[..., self.units]  # [b n u]
        if moved.shape[1]:  # every patch may be left out
            largest = moved.gather(1, moved.abs().argmax(dim=1, keepdim=True))
            registers = registers.index_copy(2, self.units, largest.expand(-1, self.count, -1))
        return torch.cat([first, registers, patches.index_fill(2, self.units, 0.0)], dim=1)


def with_registers(model: ViT, neurons: Sequence[Neuron], count: int = 1) -> ViT:
    """Copy a ViT with `count` test-time registers, to which the activations of `neurons` go; it shares its weights.

    The registers are zero and have no position. As many as an image has artifacts change the answers least.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> with_registers(model, [(1, 7)], count=2).layout.tokens - model.layout.tokens
    2
    """
    check_registers(model)
    if count < 1 or not neurons:
        raise ValueError(f"expected at least one register and one neuron, got {count} and {len(neurons)}")
    for block, unit in neurons:
        if not (0 <= block < model.config.depth - 1 and 0 <= unit < model.config.mlp_width):
            last = f"blocks 0 to {model.config.depth - 2} and hidden units 0 to {model.config.mlp_width - 1}"
            raise ValueError(f"a neuron must be one of {last}, got block {block}, unit {unit}")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    new = copy.deepcopy(model, {**shared, id(model.card): model.card})
    old, zeros = model.layout.prefix, next(model.parameters()).new_zeros(1, count, model.config.width)
    new.config = replace(model.config, registers=model.config.registers + count)
    new.layout = new.config.layout
    new.reg_token = nn.Parameter(zeros if model.reg_token is None else torch.cat([model.reg_token.detach(), zeros], 1))
    if model.pos_embed is not None and model.config.prefix_positions:
        positions = torch.cat([model.pos_embed[:, :old], zeros, model.pos_embed[:, old:]], dim=1).detach()
        new.pos_embed = nn.Parameter(positions) if isinstance(model.pos_embed, nn.Parameter) else positions
    if new.rope is not None:
        new.rope.prefix += count
    for number in sorted({number for number, _ in neurons}):
        units = sorted(unit for block, unit in neurons if block == number)
        mlp: Any = new.blocks[number].mlp
        mlp.norm = RegisterNeurons(units, old + count, count).to(zeros.device)
    return new


def check_registers(model: ViT) -> None:
    """Raise an error that says why a model can have no test-time registers, if it can have none."""
    config = model.config
    if config.mlp_norm or config.post_norm or config.residual_norm:
        raise ValueError("test-time registers need neurons whose activations are added up: here a norm follows them")
    if config.relative_position != "none":
        raise ValueError("a model with relative positions has no place for test-time registers")
    if has_registers(model):
        raise ValueError("this model has test-time registers: add them to the model that was loaded without")


def has_registers(model: nn.Module) -> bool:
    """Return whether a model has test-time registers."""
    return any(isinstance(module, RegisterNeurons) for module in model.modules())


def filled(maps: Tensor, patches: tuple[int, ...]) -> Tensor:
    """Replace artifacts in heat maps, `[m rows columns]`, by the mean of their neighbours that stay.

    >>> filled(torch.tensor([[[9.0, 1.0], [2.0, 3.0]]]), (0,))
    tensor([[[2., 1.],
             [2., 3.]]])
    """
    if not patches:
        return maps
    kept = torch.ones_like(maps[:1])
    kept.view(-1)[list(patches)] = 0
    around = maps.new_ones(1, 1, 3, 3)
    near = torch.conv2d((maps * kept)[:, None], around, padding=1)[:, 0]
    count = torch.conv2d(kept[:, None], around, padding=1)[:, 0]
    return torch.where(kept > 0, maps, near / count.clamp_min(1))
