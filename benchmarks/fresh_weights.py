"""How alike maps of trained and of fresh weights are, and how alike unrelated maps are: `results/faithfulness.md`.

    python benchmarks/fresh_weights.py --data imagenet-val-500 --images 18 --of 40

Removal with 64 passes is fitted to the same scores in several ways: as it is, without its prior map, without the
similarity of neighbouring patches, and with other masks for the fresh weights. One thread.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from vitreous.data.datasets import open_dataset
from vitreous.data.images import read_image
from vitreous.inside import contributions
from vitreous.inside.faithfulness import rank_correlation, reinitialised
from vitreous.inside.hiding import HiddenPatches, log_odds
from vitreous.inside.pruned_gradients import pruned_gradients
from vitreous.inside.relevance import relevance
from vitreous.inside.removal import RANDOM_BLOBS, RANDOM_SHARES, draw_masks
from vitreous.models.vit import ViT
from vitreous.speed.fused_forward import pack
from vitreous.weights.load import load

PASSES, MOVES = 64, 40


def measured(model: ViT, blocks: Callable[..., Tensor] | None, x: Tensor, target: int, masks: list[Tensor]) -> dict:
    """Prior maps, and the log-odds of each draw of masks."""
    hidden = HiddenPatches(model, x, model.layout.grid, batch_size=8, blocks=blocks)
    scores = [log_odds(hidden(each.view(-1, *model.layout.grid), "blur"), target).double() for each in masks]
    found = {"pruned gradients": pruned_gradients(model, x, target)[0], "relevance": relevance(model, x, target)[0]}
    return {name: value.detach() for name, value in found.items()} | {"scores": scores}


def fitted(of: dict, masks: list[Tensor], draw: int = 0, prior: bool = True) -> Tensor:
    """The map of removal from scores that were measured before."""
    known = of["pruned gradients"].double()
    known = known if prior else torch.ones_like(known)
    mean, _ = contributions.fit_contributions(masks[draw].double(), of["scores"][draw], ["blur"] * PASSES, known)
    return mean.view(known.shape)


def moved(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Maps shifted around the edges, mirrored or transposed at random, which keeps their smoothness."""
    down, across, mirror, turn = torch.randint(0, 2**16, (4,), generator=generator).tolist()
    maps = maps.roll((down, across), (-2, -1))
    maps = maps.flip(-1) if mirror % 2 else maps
    return maps.transpose(-1, -2) if turn % 2 and maps.shape[-1] == maps.shape[-2] else maps


def without_mean(maps: Tensor) -> Tensor:
    """Ranks of maps, less their mean over the images: what is left after a method's own bias."""
    ranks = maps.flatten(1).argsort(dim=1).argsort(dim=1).float().view_as(maps)
    return ranks - ranks.mean(dim=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=18, help="the first so many")
    parser.add_argument("--of", type=int, default=40, help="of so many images, spread over all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    own = load()
    models = [(model, pack(model, 8)) for model in (own, reinitialised(own).eval())]
    grid, found = own.layout.grid, open_dataset(given.data).spread(given.of)
    draws = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    masks = [draw_masks(grid, PASSES, RANDOM_SHARES, RANDOM_BLOBS, each) for each in draws]
    pairs = []
    for number in range(given.images):
        x = own.card.preprocess(read_image(found.image(number)))[None]
        with torch.no_grad():
            target = int(own(x).argmax())
        needed = (masks[:1], masks)  # the second draw is for fresh weights alone
        pairs.append([measured(*model, x, target, draw) for model, draw in zip(models, needed, strict=True)])
    ways: dict[str, Callable[[dict, bool], Tensor]] = {
        "removal, 64 passes": lambda of, fresh: fitted(of, masks),
        "… other masks for fresh weights": lambda of, fresh: fitted(of, masks, int(fresh)),
        "… without prior map": lambda of, fresh: fitted(of, masks, prior=False),
        "… without smoothness": lambda of, fresh: fitted(of, masks),
        "pruned gradients": lambda of, fresh: of["pruned gradients"],
        "relevance": lambda of, fresh: of["relevance"],
    }
    print("| map | same image | with sign | another image | moved | less mean map | the same, another image |")
    for name, way in ways.items():
        reaches = (0.02,) if "smoothness" in name else contributions.REACHES
        with patch.object(contributions, "REACHES", reaches):
            first, second = (torch.stack([way(pair[i], bool(i)).float() for pair in pairs]) for i in (0, 1))
        generator = torch.Generator().manual_seed(0)
        same = rank_correlation(first, second)
        turns = range(1, len(pairs))
        others = torch.stack([rank_correlation(first, second.roll(turn, 0)) for turn in turns])
        chance = torch.stack(
            [rank_correlation(first, torch.stack([moved(each, generator) for each in second])) for _ in range(MOVES)]
        )
        plain, fresh = without_mean(first), without_mean(second)
        left = torch.stack([rank_correlation(plain, fresh.roll(turn, 0)) for turn in turns])
        half = 1.96 * same.std() / len(same) ** 0.5
        cells = [f"{same.abs().mean():.2f}", f"{same.mean():+.2f} ± {half:.2f}", f"{others.abs().mean():.2f}"]
        cells += [f"{chance.abs().mean():.2f}", f"{rank_correlation(plain, fresh).abs().mean():.2f}"]
        print(f"| {name} | {' | '.join(cells)} | {left.abs().mean():.2f} |")


if __name__ == "__main__":
    main()
