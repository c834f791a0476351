"""Concepts: directions of one block's patch tokens, learned by a sparse autoencoder, and their effect on the classes.

A sparse autoencoder rebuilds each token from the few directions that it matches best, out of many (Makhzani & Frey,
2014, "k-Sparse Autoencoders"; Gao et al., 2024, "Scaling and evaluating sparse autoencoders"). What a direction stands
for shows where it is strongest; what it does shows when its part of the tokens is taken away. Tokens are brought to
mean 0 and variance 1 first, or a few artifacts (`inside/artifacts.py`) would decide what is learned.

Shapes:  b images · n patches · d width · c concepts
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.capture import capture, within
from vitreous.inside.glossary import full_name
from vitreous.inside.intervene import intervene
from vitreous.models.vit import ViT

BATCH = 2048  # tokens of a training step
RATE = 3e-3
WARMUP = 50  # steps
UNUSED = 20_000  # tokens after which a concept that was not active is also taught what the others leave
UNUSED_SHARE = 1 / 32  # of that in the loss
NAMED = 3  # classes that stand for a concept's effect, and at most half of all: the mean change over all of them is 0
WITNESSES = 8  # images on which they are chosen, and others on which they are measured
RANDOM = 3  # directions that a concept is compared with


class SparseAutoencoder(nn.Module):
    """Rebuild a token from the `active` concepts that it matches best: a reader and a direction `[c d]` for each."""

    def __init__(self, width: int, concepts: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.directions = nn.Parameter(F.normalize(torch.randn(concepts, width), dim=-1))
        self.readers = nn.Parameter(self.directions.detach().clone())
        self.thresholds = nn.Parameter(torch.zeros(concepts))
        self.centre = nn.Parameter(torch.zeros(width))

    def match(self, tokens: Tensor) -> Tensor:
        """Compute how well normalised tokens `[… d]` match each concept: `[… c]`."""
        return (tokens - self.centre) @ self.readers.T - self.thresholds

    def activations(self, tokens: Tensor) -> Tensor:
        """Compute the activation of each concept on tokens `[… d]`, as a block returns them: `[… c]`, most of it 0."""
        return strongest(self.match(normalise(tokens.to(self.directions))[0]), self.active)

    def rebuild(self, activations: Tensor) -> Tensor:
        """Rebuild normalised tokens `[… d]` from the activations of concepts `[… c]`."""
        return activations @ self.directions + self.centre

    def without(self, tokens: Tensor, concepts: Sequence[int], direction: Tensor | None = None) -> Tensor:
        """Take the part of concepts away from tokens `[… d]`; or as much of another, unit, `direction` `[d]`."""
        exact = tokens.to(self.directions)  # which is single precision, whatever the model is in
        parts = self.directions[list(concepts)] if direction is None else direction.expand(len(concepts), -1).to(exact)
        taken = normalise(exact)[1] * (self.activations(exact)[..., list(concepts)] @ parts)
        return tokens - taken.to(tokens)

    @torch.no_grad()
    def explained(self, tokens: Tensor) -> float:
        """Compute the share of the variance of tokens `[m d]` that is rebuilt from concepts: 1 if all."""
        error, total, seen = 0.0, 0.0, normalise(tokens.to(self.directions))[0]
        mean = seen.mean(dim=0)
        for part in seen.split(BATCH):
            error += float((part - self.rebuild(strongest(self.match(part), self.active))).square().sum())
            total += float((part - mean).square().sum())
        return 1 - error / total


def normalise(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise tokens for concepts `[… d]`: mean 0, variance 1; also return the standard deviation `[… 1]`.

    >>> normalise(torch.tensor([[1.0, 3.0]]))
    (tensor([[-1.,  1.]]), tensor([[1.]]))
    """
    deviation = tokens.std(dim=-1, correction=0, keepdim=True).clamp_min(1e-6)
    return (tokens - tokens.mean(dim=-1, keepdim=True)) / deviation, deviation


def strongest(values: Tensor, count: int) -> Tensor:
    """Keep the `count` strongest concepts of the last dimension where they are above 0; all others become 0.

    >>> strongest(torch.tensor([3.0, -1.0, 2.0, 1.0]), 2), strongest(torch.tensor([3.0, -1.0]), 2)
    (tensor([3., 0., 2., 0.]), tensor([3., 0.]))
    """
    found, where = values.topk(count, dim=-1)
    return torch.zeros_like(values).scatter(-1, where, found.relu())


def learn_concepts(
    tokens: Tensor,
    concepts: int,
    active: int = 8,
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SparseAutoencoder:
    """Learn concepts from tokens `[m d]` of one block; `progress` gets the steps that are done and all of them."""
    if not 0 < active <= concepts:
        raise ValueError(f"{active} of {concepts} concepts cannot be active: pass at least 1 and at most all")
    if not tokens.isfinite().all():
        raise ValueError("the model's tokens are not all finite, so that no concept can be learned: vitreous doctor")
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[tokens.device] if tokens.is_cuda else []),  # the caller's randomness stays
    ):
        torch.manual_seed(seed)
        return _learn(normalise(tokens.float())[0], concepts, active, steps, progress)


def _learn(
    seen: Tensor, concepts: int, active: int, steps: int, progress: Callable[[int, int], None] | None
) -> SparseAutoencoder:
    """Train the sparse autoencoder of `learn_concepts` on normalised tokens `[m d]`."""
    autoencoder = SparseAutoencoder(seen.shape[-1], concepts, active).to(seen)
    with torch.no_grad():
        autoencoder.centre.copy_(seen.mean(dim=0))
    variance = (seen - autoencoder.centre.detach()).square().sum(dim=-1).mean().clamp_min(1e-12)
    optimizer = torch.optim.Adam(autoencoder.parameters(), betas=(0.9, 0.99))
    idle = torch.zeros(concepts, dtype=torch.long, device=seen.device)  # tokens since each was active
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = (
            RATE * min(1.0, (step + 1) / WARMUP) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        )
        batch = seen[torch.randint(len(seen), (BATCH,), device=seen.device)]
        matched = autoencoder.match(batch)
        activations = strongest(matched, active)
        left = batch - autoencoder.rebuild(activations)  # what the concepts leave
        loss = left.square().sum(dim=-1).mean() / variance
        idle = torch.where((activations > 0).any(dim=0), 0, idle + BATCH)
        if unused := int((idle > UNUSED).sum()):
            others = strongest(matched.masked_fill(idle <= UNUSED, -math.inf), min(4 * active, unused))
            rest = left.detach() - others @ autoencoder.directions
            loss = loss + UNUSED_SHARE * rest.square().sum(dim=-1).mean() / variance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            autoencoder.directions.copy_(F.normalize(autoencoder.directions, dim=-1))
        if progress is not None:
            progress(step + 1, steps)
    return autoencoder.requires_grad_(False).eval()


@dataclass(frozen=True)
class Effect:
    """What a model's classes lose without a concept, or without as much of another direction."""

    classes: tuple[int, ...]
    """The classes that fall most, chosen on some images that have the concept …"""
    changes: tuple[float, ...]
    """… and the mean change of their logits on other images that have it; logits less their mean over the classes."""

    @property
    def mean(self) -> float:
        return sum(self.changes) / len(self.changes)


@dataclass(frozen=True)
class Concept:
    """One concept: where it is strongest, how often it is active, and what the classes lose without it."""

    index: int
    frequency: float
    """The share of patches on which it is active."""
    places: tuple[tuple[int, int], ...]
    """Image and patch where it is strongest, one for each image, the strongest first."""
    effect: Effect
    random: float
    """The mean effect of as much of a random direction at the same patches, on the classes that it lowers most."""


@torch.inference_mode()
def collect_tokens(model: ViT, images: Sequence[Tensor], block: int, batch: int = 16) -> tuple[Tensor, Tensor]:
    """Run a model on images `[c H W]`: the patch tokens after a block, `[b n d]`, and the logits `[b classes]`."""
    tokens, logits = [], []
    for start in range(0, len(images), batch):
        with capture(model, "output", layers=[block]) as seen:
            logits.append(model(torch.stack(list(images[start : start + batch]))))
        tokens.append(seen[full_name("output", seen.layers[0])][:, model.layout.prefix :])
    return torch.cat(tokens), torch.cat(logits)


@torch.inference_mode()
def measure_concepts(
    model: ViT,
    images: Sequence[Tensor],
    block: int,
    autoencoder: SparseAutoencoder,
    tokens: Tensor,
    logits: Tensor,
    learned: Sequence[bool],
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Concept]:
    """Measure the `count` most active concepts on images `[c H W]`, those first that do most beyond a random direction.

    `tokens` and `logits` are those of `collect_tokens`; `learned` says which images the concepts were learned from. The
    classes that fall most without a concept are chosen on those, and measured on the others: on the same images, the
    lowest of many classes would be low by chance. A concept that is in fewer than two of either is left out.
    """
    total = sum(autoencoder.activations(image).sum(dim=0) for image in tokens)
    assert isinstance(total, Tensor)
    ranked = total.argsort(descending=True)[:count]
    activations = torch.stack([autoencoder.activations(image)[:, ranked] for image in tokens])  # [b n count]
    found = []
    for i, concept in enumerate(ranked.tolist()):
        if total[concept] > 0:
            found.append(_measure(model, images, block, autoencoder, concept, activations[..., i], logits, learned))
        if progress is not None:
            progress(i + 1, len(ranked))
    return sorted((each for each in found if each is not None), key=lambda each: each.effect.mean - each.random)


def _measure(
    model: ViT,
    images: Sequence[Tensor],
    block: int,
    autoencoder: SparseAutoencoder,
    concept: int,
    activations: Tensor,
    logits: Tensor,
    learned: Sequence[bool],
) -> Concept | None:
    """Measure one concept, of activations `[b n]`, for `measure_concepts`; None if it is in too few images."""
    strengths, patches = activations.max(dim=1)
    ranked = [int(i) for i in strengths.argsort(descending=True) if strengths[i] > 0]
    chosen, measured = ([i for i in ranked if learned[i] is kind][:WITNESSES] for kind in (True, False))
    if len(chosen) < 2 or len(measured) < 2:
        return None
    together = chosen + measured
    x = torch.stack([images[i] for i in together])
    generator = torch.Generator().manual_seed(concept)
    random = F.normalize(torch.randn(RANDOM, autoencoder.directions.shape[1], generator=generator), dim=1).to(x)
    effects = []
    for direction in (None, *random):
        with switched_off(model, block, autoencoder, [concept], direction):
            changes = centred(model(x)) - centred(logits[together])
        lowest = changes[: len(chosen)].mean(dim=0).argsort()[: min(NAMED, changes.shape[1] // 2)]
        fallen = changes[len(chosen) :].mean(dim=0)[lowest]
        effects.append(Effect(tuple(lowest.tolist()), tuple(fallen.tolist())))
    places = tuple((i, int(patches[i])) for i in ranked)
    usual = sum(each.mean for each in effects[1:]) / RANDOM
    return Concept(concept, float((activations > 0).float().mean()), places, effects[0], usual)


@torch.inference_mode()
def unused_share(autoencoder: SparseAutoencoder, tokens: Tensor) -> float:
    """Compute the share of concepts that are active on none of the tokens `[b n d]`: dead, where there are many."""
    used = torch.stack([(autoencoder.activations(image) > 0).any(dim=0) for image in tokens]).any(dim=0)
    return 1 - float(used.float().mean())


def switched_off(
    model: ViT,
    block: int,
    autoencoder: SparseAutoencoder,
    concepts: SupportsIndex | Iterable[SupportsIndex],
    direction: Tensor | None = None,
) -> AbstractContextManager[None]:
    """Switch a concept off, or several together: inside the `with`, their part of the block's patch tokens is missing.

    Nested, a second concept is read from what the first has left of the tokens.
    """
    count, width = autoencoder.directions.shape
    if width != model.config.width:
        raise ValueError(f"the concepts are directions of {width} dimensions, this model has {model.config.width}")
    listed = concepts if isinstance(concepts, Iterable) else [concepts]
    chosen = sorted({within(concept, count, "concept") for concept in listed})
    prefix = model.layout.prefix

    def change(tokens: Tensor) -> Tensor:
        patches = autoencoder.without(tokens[:, prefix:], chosen, direction)
        return torch.cat([tokens[:, :prefix], patches], dim=1)

    return intervene(model, replace={full_name("output", within(block, model.config.depth, "block")): change})


@torch.inference_mode()
def reaches_the_answer(model: ViT, x: Tensor, block: int) -> bool:
    """Return whether concepts of a block can have an effect: the logits of `x` change if its patch tokens are zeros."""
    prefix = model.layout.prefix

    def change(tokens: Tensor) -> Tensor:
        tokens[:, prefix:] = 0
        return tokens

    with intervene(model, replace={full_name("output", block): change}):
        changed = model(x)
    return not torch.equal(changed, model(x))


def centred(logits: Tensor) -> Tensor:
    """Take the mean over the classes off logits `[… classes]`, before concepts are measured: it changes no answer."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits - logits.mean(dim=-1, keepdim=True)
