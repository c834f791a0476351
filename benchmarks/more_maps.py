"""Maps of three papers that the package leaves out, beside relevance and pruned gradients: `results/faithfulness.md`.

    python benchmarks/more_maps.py --data imagenet-val-500 --images 50

TokenTM (Wu et al., 2024, "Token Transformation Matters"), bidirectional attribution by tokens and by heads (Chen et
al., 2023, "Beyond Intuition: Rethinking Token Attributions inside Transformers") and ViT-CX (Xie et al., 2023, "ViT-CX:
Causal Explanation of Vision Transformers"), in our own code. Insertion less deletion area of the packaged ViT-Ti, for
the predicted class. `--check` only compares the methods with cases whose result is known. One thread.

Shapes:  b images · h heads · t tokens · k width of one head · d width · c colours · H W pixels · s steps · m masks
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn

from vitreous.comparison.map_scores import Scorer
from vitreous.comparison.map_table import WORDS, passes, signed
from vitreous.comparison.statistics import seed_interval
from vitreous.data.datasets import open_dataset
from vitreous.data.images import read_image
from vitreous.inside.attention import attention_of, readout
from vitreous.inside.capture import Internals, capture, underneath
from vitreous.inside.faithfulness import BATCH, area, curves
from vitreous.inside.glossary import full_name
from vitreous.inside.gradients import Target, chosen_classes, class_score, differentiable
from vitreous.inside.methods import METHODS, Method
from vitreous.inside.pixel_gradients import to_patches
from vitreous.inside.relevance import relevance
from vitreous.inside.rollout import projected, rollout_map
from vitreous.models.variants import variant
from vitreous.models.vit import TransformerBlock, ViT
from vitreous.weights.load import load

STEPS = 20
"""Images between grey and the image over which bidirectional attribution averages gradients, as its authors do."""
FIRST = {"tokens": 5, "heads": 3}
"""First block that bidirectional attribution counts, of 12: its authors' settings for ViT-B."""
NEAR, NOISE = 0.1, 0.1
"""Cosine distance up to which ViT-CX joins masks, and the standard deviation of its noise: its authors' settings."""


def block_of(model: ViT, layer: int) -> TransformerBlock:
    """Return a block, with its type."""
    block = model.blocks[layer]
    assert isinstance(block, TransformerBlock)
    return block


def times(row: Tensor, matrix: Tensor) -> Tensor:
    """Multiply a row by a layer's matrix: `[b t]` and `[b t t]` → `[b t]`."""
    return (row[:, None] @ matrix)[:, 0]


# --- TokenTM ----------------------------------------------------------------------------------------------------------


def transformation_weights(before: Tensor, after: Tensor) -> Tensor:
    """Compute how much tokens keep of themselves in a transformation: `[… t d]` twice → `[… t]`.

    The ratio of their lengths, times the softmax over tokens of the cosine between them.
    """
    return after.norm(dim=-1) / before.norm(dim=-1) * F.cosine_similarity(before, after, dim=-1).softmax(dim=-1)


def token_tm(
    model: nn.Module,
    x: Tensor,
    target: Target = None,
    weights: Callable[[Tensor, Tensor], Tensor] = transformation_weights,
) -> Tensor:
    """Compute the map of TokenTM: images `[b c H W]` → `[b rows columns]`.

    From the lengths of the embedded tokens, each block multiplies the contributions first by I + the mean over heads of
    (∇A)⁺ ⊙ A diag(w), then by I + diag(w) of its MLP. Only the row that the head reads is carried, from the last block
    to the first. The authors' code was not at hand, and the equations are as another public implementation states
    them. Decided here: what a head makes of a token is its value times its part of the output projection, as the
    network computes it (after the layer norm, with the value's bias), and is compared with the block's input; what the
    MLP makes of it is compared with the MLP's input before the norm.
    """
    plain, _ = underneath(model)
    names = ["input", "norm1", "v", "mixed", "middle", "mlp_output"]
    with differentiable(x) as x, capture(model, names, gradients=True) as seen:
        score = class_score(model(x), target)
        gradients = torch.autograd.grad(score, [seen[full_name("mixed", layer)] for layer in seen.layers])
    row = readout(plain).expand(len(x), -1)
    for layer in reversed(seen.layers):
        tokens, normed, values, _, middle, output = (seen[full_name(name, layer)].detach() for name in names)
        row = row * (1 + weights(middle, output))
        by_gradient = (gradients[layer] @ values.transpose(-2, -1)).clamp_min(0)  # dA = dO vᵀ, [b h t t]
        made = weights(tokens[:, None], projected(block_of(plain, layer), values).detach())  # [b h t]
        row = row + times(row, (by_gradient * attention_of(plain, layer, normed) * made[:, :, None]).mean(dim=1))
    return plain.layout.to_grid(row * seen[full_name("input", 0)].detach().norm(dim=-1))


# --- bidirectional attribution ----------------------------------------------------------------------------------------


def value_lengths(model: ViT, seen: Internals, layer: int) -> Tensor:
    """Compute the length of what attention takes of each token over the token's own, for one image: `[1 t]`."""
    values = projected(block_of(model, layer), seen[full_name("v", layer)][-1:].detach()).sum(dim=1)  # [1 t d]
    return values.norm(dim=-1) / seen[full_name("input", layer)][-1:].detach().norm(dim=-1)


def perceived(model: ViT, matrices: Iterable[Tensor]) -> Tensor:
    """Carry the row that the head reads through I + each layer's matrix `[1 t t]`, the last first: `[1 t]`."""
    row = readout(model)[None]
    for matrix in matrices:
        row = row + times(row.to(matrix), matrix)
    return row


def bidirectional(model: nn.Module, x: Tensor, target: Target = None, *, by: str, first: int | None = None) -> Tensor:
    """Compute the map of bidirectional attribution `by` tokens or heads: one image `[1 c H W]` → `[1 rows columns]`.

    What the head reads through the layers from the `first` on, times the positive gradient of the last layer's
    attention, averaged over images between grey and the image. By tokens, a layer is the mean over heads of A,
    times the lengths of the projected values over those of the tokens. By heads, heads are weighted by the mean size of
    Aᵀ ∇A. As in the authors' code, but that the steps run as one batch, whose last image is the image itself, that only
    one row is carried, and that the projected values of layers with a LayerScale have that too.
    """
    plain, _ = underneath(model)
    first = FIRST[by] * plain.config.depth // 12 if first is None else first
    names = ["input", "norm1", "v", "mixed"]
    path = torch.linspace(0, 1, STEPS, device=x.device)[:, None, None, None] * x
    layers = range(first, plain.config.depth)
    with (
        differentiable(path) as path,
        capture(model, names, layers=layers, gradients=True) as seen,
    ):
        logits = model(path)
        chosen = int(chosen_classes(logits[-1:], target))
        mixed = [seen[full_name("mixed", layer)] for layer in (seen.layers if by == "heads" else seen.layers[-1:])]
        gradients = torch.autograd.grad(class_score(logits, chosen), mixed)

    def matrix(layer: int) -> Tensor:
        attention = attention_of(plain, layer, seen[full_name("norm1", layer)][-1:].detach())  # [1 h t t]
        if by == "tokens":
            return attention.mean(dim=1) * value_lengths(plain, seen, layer)[:, None]
        values = seen[full_name("v", layer)][-1:].detach()
        by_gradient = gradients[seen.layers.index(layer)][-1:] @ values.transpose(-2, -1)  # dA = dO vᵀ
        shares = (attention.transpose(-2, -1) @ by_gradient).abs().mean(dim=(-2, -1))  # [1 h]
        return ((shares / shares.sum())[..., None, None] * attention).sum(dim=1)

    row = perceived(plain, map(matrix, reversed(seen.layers)))
    values = seen[full_name("v", seen.layers[-1])].detach()
    feedback = (gradients[-1] @ values.transpose(-2, -1)).mean(dim=0).clamp_min(0).mean(dim=0)  # [t t]
    return plain.layout.to_grid(row * (readout(plain).to(feedback) @ feedback))


# --- ViT-CX -----------------------------------------------------------------------------------------------------------


def from_0_to_1(masks: Tensor) -> Tensor:
    """Stretch each mask to values from 0 to 1: `[m H W]` → `[m H W]`."""
    low, high = masks.amin(dim=(1, 2), keepdim=True), masks.amax(dim=(1, 2), keepdim=True)
    return (masks - low) / (high - low).clamp_min(1e-12)


@torch.no_grad()
def feature_masks(model: nn.Module, x: Tensor) -> Tensor:
    """Compute the masks of ViT-CX, groups of alike features of the last block's first norm: `[1 c H W]` → `[m H W]`."""
    plain, _ = underneath(model)
    with capture(model, "norm1", layers=[-1]) as seen:
        model(x)
    features = plain.layout.to_grid(seen.stack("norm1")[0, 0].T)  # [d rows columns]
    masks = from_0_to_1(F.interpolate(features[None], size=x.shape[-2:], mode="bilinear")[0])  # [d H W]
    directions = F.normalize(masks.flatten(1), dim=1)
    grouping = AgglomerativeClustering(None, metric="precomputed", linkage="complete", distance_threshold=NEAR)
    groups = torch.from_numpy(grouping.fit_predict((1 - directions @ directions.T).clamp_min(0).cpu().numpy()))
    sums = masks.new_zeros(int(groups.max()) + 1, *x.shape[-2:]).index_add_(0, groups.to(x.device), masks)
    return from_0_to_1(sums)


@torch.no_grad()
def vit_cx(model: nn.Module, x: Tensor, target: Target = None, seed: int = 0) -> Tensor:
    """Compute the map of ViT-CX: one image `[1 c H W]` → `[1 rows columns]`.

    A mask's effect is the probability with the image times the mask and noise elsewhere, less that with the same noise
    on the whole image, plus that of the image; a pixel has the mean effect of its masks. As in the authors' code, whose
    factor of 1 over the number of masks changes no order; pixels are summed over each patch, and the noise is seeded.
    """
    plain, _ = underneath(model)
    logits, masks = model(x), feature_masks(model, x)[:, None]  # [m 1 H W]
    chosen = int(chosen_classes(logits, target))
    noise = NOISE * torch.randn(len(masks), *x.shape[1:], generator=torch.Generator().manual_seed(seed)).to(x)
    noise = noise * (1 - masks)
    shown = torch.cat([x * masks + noise, x + noise])
    scores = torch.cat([model(part).softmax(dim=-1)[:, chosen] for part in shown.split(BATCH)]).view(2, -1)
    effects = scores[0] - scores[1] + logits.softmax(dim=-1)[0, chosen]  # [m]
    pixels = (effects[:, None, None, None] * masks).sum(dim=0) / masks.sum(dim=0).clamp_min(1e-12)  # [1 H W]
    return to_patches(pixels[None], plain.layout.grid)


# --- measurement ------------------------------------------------------------------------------------------------------

ADDED = {
    "TokenTM": Method(token_tm, "Wu et al., 2024", backward=1, vit=True),
    "bidirectional, by tokens": Method(
        lambda model, x, target: bidirectional(model, x, target, by="tokens"),
        "Chen et al., 2023",
        forward=STEPS,
        backward=STEPS,
        vit=True,
    ),
    "bidirectional, by heads": Method(
        lambda model, x, target: bidirectional(model, x, target, by="heads"),
        "Chen et al., 2023",
        forward=STEPS,
        backward=STEPS,
        vit=True,
    ),
    "ViT-CX": Method(vit_cx, "Xie et al., 2023", vit=True, fitted=("mean",)),  # multiplies by masks, as RISE
}
"""Forward passes of ViT-CX depend on the image: 2, and 2 for each of its masks."""
KNOWN = ("relevance", "pruned gradients")


def check() -> None:
    """Compare the methods with cases whose result is known, on a small ViT with random weights."""
    torch.manual_seed(0)
    model = ViT(variant("vit_femto_patch4_32")).double().eval()
    x, depth = torch.randn(1, 3, 32, 32, dtype=torch.float64), model.config.depth
    plain_map = vit_cx(model, x)  # a fresh head is zero: every mask has the effect 1 / classes, and so has every pixel
    torch.testing.assert_close(plain_map, torch.full_like(plain_map, 16 / model.config.classes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    with capture(model, ["embedding", "attention"]) as seen:
        model(x)
    lengths = model.layout.to_grid(seen["embedding"].norm(dim=-1))
    # all weights 1: each MLP doubles the row, and what is left is relevance times the lengths of the embedded tokens
    without = token_tm(model, x, 3, weights=lambda before, after: torch.ones_like(after[..., 0]))
    torch.testing.assert_close(without, 2**depth * relevance(model, x, 3) * lengths)
    torch.testing.assert_close(token_tm(model, x, 3), token_tm_by_matrices(model, x, 3))
    # all lengths 1: I + A is twice the matrix of rollout
    attention = [seen[full_name("attention", layer)].mean(dim=1) for layer in reversed(seen.layers)]
    row = model.layout.to_grid(perceived(model, attention))
    torch.testing.assert_close(row, 2**depth * rollout_map(model, x))
    for by in FIRST:
        expected = bidirectional_by_matrices(model, x, 3, by, first=1)
        torch.testing.assert_close(bidirectional(model, x, 3, by=by, first=1), expected)


def token_tm_by_matrices(model: ViT, x: Tensor, target: int) -> Tensor:
    """Compute TokenTM as its paper writes it: whole matrices, head by head, from the first block to the last."""
    with capture(model, ["attention", "input", "v", "middle", "mlp_output"], gradients=True) as seen:
        model(x)[0, target].backward()
    identity, wide = torch.eye(model.layout.tokens, dtype=x.dtype), model.config.width // model.config.heads

    def weights(before: Tensor, after: Tensor) -> Tensor:
        cosines = (before * after).sum(dim=-1) / (before.norm(dim=-1) * after.norm(dim=-1))
        return torch.diag(after.norm(dim=-1) / before.norm(dim=-1) * cosines.exp() / cosines.exp().sum())

    total = torch.diag(seen[full_name("input", 0)][0].norm(dim=-1))
    for layer in seen.layers:
        tokens, values, middle, output = (
            seen[full_name(name, layer)][0] for name in ("input", "v", "middle", "mlp_output")
        )
        attention, gradient = seen[full_name("attention", layer)][0], seen.gradient(full_name("attention", layer))[0]
        proj = block_of(model, layer).attn.proj.weight.split(wide, dim=1)
        step = torch.zeros_like(identity)
        for one, slope, value, part in zip(attention, gradient, values, proj, strict=True):
            step = step + slope.clamp_min(0) * (one @ weights(tokens, value @ part.T)) / model.config.heads
        total = (identity + weights(middle, output)) @ (identity + step) @ total
    return model.layout.to_grid(total[:1]).detach()


def bidirectional_by_matrices(model: ViT, x: Tensor, target: int, by: str, first: int) -> Tensor:
    """Compute bidirectional attribution as its authors write it: whole matrices, one step at a time."""
    total = torch.eye(model.layout.tokens, dtype=x.dtype)
    slopes: list[Tensor] = []
    for share in torch.linspace(0, 1, STEPS).tolist():
        with capture(model, ["attention", "input", "v"], gradients=True) as seen:
            model(share * x)[0, target].backward()
        slopes.append(seen.gradient(full_name("attention", seen.layers[-1]))[0].clone())  # [h t t]
    for layer in seen.layers[first:]:
        name = full_name("attention", layer)
        attention, gradient, proj = seen[name][0], seen.gradient(name)[0], block_of(model, layer).attn.proj
        values = seen[full_name("v", layer)].detach().transpose(1, 2).flatten(2) @ proj.weight.T  # heads side by side
        longer = values[0].norm(dim=-1) / seen[full_name("input", layer)].detach()[0].norm(dim=-1)
        size = torch.stack([(a.T @ g).abs().mean() for a, g in zip(attention, gradient, strict=True)])
        mixed = sum(a * s for a, s in zip(attention, size / size.sum(), strict=True))
        total = total + (attention.mean(dim=0) @ torch.diag(longer) if by == "tokens" else mixed) @ total
    feedback = torch.stack(slopes).mean(dim=0).clamp_min(0).mean(dim=0)
    return model.layout.to_grid((feedback * total)[:1]).detach()


def measure(model: ViT, data: Path, count: int, steps: int) -> tuple[dict[str, np.ndarray], np.ndarray, list[int]]:
    """Insertion less deletion of each map by operator, `[images maps]`, seconds `[images maps]`, numbers of masks."""
    scorer = Scorer(model, {name: METHODS[name] for name in KNOWN} | ADDED, steps)
    found, begun = open_dataset(data).spread(count), time.perf_counter()
    gains: dict[str, list[list[float]]] = {operator: [] for operator in scorer.operators}
    seconds, masks = [], []
    for number in range(len(found)):
        x = model.card.preprocess(read_image(found.image(number)))[None]
        with torch.no_grad():
            target = int(model(x).argmax())
        maps, taken = scorer.maps(x, target)
        seconds.append(taken)
        masks.append(len(feature_masks(model, x)))
        for operator in scorer.operators:
            deletion, insertion = curves(model, x, maps, target, steps=steps, baseline=operator)
            gains[operator].append((area(insertion) - area(deletion)).tolist())
        print(f"{number + 1} of {len(found)} images, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    return {operator: np.array(rows) for operator, rows in gains.items()}, np.array(seconds), masks


def over(gains: dict[str, np.ndarray], one: int, other: int, operators: list[str]) -> str:
    """Mean difference of two maps over operators, paired by image, with its 95 % interval."""
    mean, half = seed_interval(np.mean([gains[way][:, one] - gains[way][:, other] for way in operators], axis=0))
    return signed(mean) + ("" if half is None else f" ± {half:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=50, help="so many, spread over all")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--check", action="store_true", help="only compare with cases whose result is known")
    given = parser.parse_args()
    torch.set_num_threads(1)
    check()
    if given.check or given.data is None:
        return
    gains, seconds, masks = measure(load(), given.data, given.images, given.steps)
    print(f"{len(masks)} images, torch {torch.__version__}; ViT-CX has {np.mean(masks):.0f} masks in the mean\n")
    print(f"| map | passes | seconds | {' | '.join(WORDS[way] for way in gains)} | over {' | over '.join(KNOWN)} |")
    print("|---" * (5 + len(gains)) + "|")
    for i, (name, method) in enumerate(({name: METHODS[name] for name in KNOWN} | ADDED).items()):
        forward = round(2 + 2 * np.mean(masks)) if name == "ViT-CX" else method.forward
        cost = passes({"forward": forward, "backward": method.backward})
        scores = {way: signed(values[:, i].mean()) for way, values in gains.items()}
        cells = [f"({score})" if way in method.fitted else score for way, score in scores.items()]
        free = [way for way in gains if way not in method.fitted]
        cells += ["" if name == known else over(gains, i, j, free) for j, known in enumerate(KNOWN)]
        print(f"| {name} | {cost} | {np.median(seconds[:, i]):.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
