"""Token merging: top-1, agreement with the whole model, and speed, on labelled images.

    python benchmarks/merging.py FOLDER MODEL [--tokens 0 4 8 12 16]

FOLDER has a sub-folder a class, named by its index. Each batch is computed by all, one after the other, so that a busy
machine slows all alike; times are the processor's, with one thread.
"""

import argparse
import time
from pathlib import Path

import torch

from vitreous.data.finding import find_images
from vitreous.data.images import read_image
from vitreous.models.last_block import logits_only
from vitreous.speed.token_merging import merging
from vitreous.weights.load import load

BATCH = 8


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("--tokens", nargs="*", type=int, default=[0, 4, 8, 12, 16])
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load(given.model)
    view, (paths, _) = model.card.preprocess, find_images([given.folder])
    truth = torch.tensor([int(Path(path).parent.name) for path in paths])
    functions = {r: merging(r) if r else logits_only for r in given.tokens}  # 0 is `classify` without --merge
    spent, logits = dict.fromkeys(functions, 0.0), {r: [] for r in functions}
    for i in range(0, len(paths), BATCH):
        x = view.normalise(torch.stack([view.pixels(read_image(path)) for path in paths[i : i + BATCH]]))
        for r, compute in functions.items():
            if i == 0:
                compute(model, x)
            begun = time.process_time()
            logits[r].append(compute(model, x))
            spent[r] += time.process_time() - begun
    first = {r: torch.cat(parts).argmax(dim=-1) for r, parts in logits.items()}
    base = given.tokens[0]
    print(f"| tokens merged in each block | top-1 | agrees with {base} | processor ms an image | × {base} |")
    print("|---|---|---|---|---|")
    for r, guess in first.items():
        right, same = ((guess == other).float().mean().item() for other in (truth, first[base]))
        each = spent[r] / len(paths) * 1000
        print(f"| {r} | {right:.1%} | {same:.1%} | {each:.1f} | {spent[base] / spent[r]:.2f} |")


if __name__ == "__main__":
    main()
