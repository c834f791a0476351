"""Accuracy of number formats: top-1, agreement with fp32 and changes of logits, on labelled images.

    python benchmarks/precisions.py FOLDER MODEL [--only int8 …]
    python benchmarks/precisions.py FOLDER MODEL --device cuda

FOLDER has a sub-folder a class, named by its index. Each format runs as `--fast --precision` runs it, or, where that
needs a GPU and there is none, with the same rounding on a CPU: fp8's numbers multiplied in fp32, and the tanh form of
GELU that bf16 has on a GPU. The truth is the plain model in fp32 on a CPU.
"""

import argparse
import copy
from functools import partial
from pathlib import Path

import torch

from vitreous.data.finding import find_images
from vitreous.data.images import read_image
from vitreous.models.last_block import logits_only
from vitreous.speed.fp8 import Fp8ViT
from vitreous.speed.fused_forward import fused_forward, packed_forward
from vitreous.speed.int8 import to_int8
from vitreous.speed.optimize import optimize
from vitreous.speed.weight_folding import fold
from vitreous.weights.load import load

BATCH = 10


def int8(network):
    to_int8(network)
    return lambda x: logits_only(network, x)


FORMATS = {
    "fp32, folded and packed": lambda network: packed_forward(network, BATCH),
    "bf16, packed (CPU)": lambda network: packed_forward(network.bfloat16(), BATCH),
    "bf16, fused, GELU's tanh form (GPU)": lambda network: partial(fused_forward, network.bfloat16()),
    "int8": int8,
    "fp8, simulated": lambda network: Fp8ViT(network.bfloat16()),
}

ON_A_GPU = {"fp32": 10, "bf16": 10, "bf16, one at a time": 1, "int8": 10, "fp8": 10}
"""Format → batch size: `optimize` chooses other kernels for one image."""


@torch.no_grad()
def answers(run, x, dtype):
    return torch.cat([run(part.to(dtype)).float() for part in x.split(BATCH)])


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    names = ON_A_GPU if given.device == "cuda" else FORMATS
    if unknown := set(given.only or ()) - set(names):
        parser.error(
            f"--only on a {given.device} takes {', '.join(map(repr, names))}, not {', '.join(map(repr, unknown))}"
        )
    model = load(given.model)
    view, (paths, _) = model.card.preprocess, find_images([given.folder])
    labels = torch.tensor([int(Path(path).parent.name) for path in paths])
    x = torch.cat([view.normalise(view.pixels(read_image(path))[None]) for path in paths])
    truth = answers(model, x, torch.float32)
    print(f"| {len(paths)} images | top-1 | agrees with fp32 | mean change of a logit | largest change |")
    print("|---|---|---|---|---|")

    def row(name, logits):
        guess, most = logits.argmax(dim=1), truth.abs().max()
        right = (guess == labels).double().mean()
        same = (guess == truth.argmax(dim=1)).double().mean()
        moved = (logits - truth).abs()
        print(
            f"| {name} | {right:.1%} | {same:.1%} | {moved.mean() / most:.1e} | {moved.max() / most:.1e} |", flush=True
        )

    row("fp32, the plain model", truth)
    if given.device == "cuda":
        for name in given.only or names:
            fast = optimize(model, name.split(",")[0], batch_size=ON_A_GPU[name], device="cuda", pixels=False)
            row(f"{name} ({fast.backend})", fast(x))
        return
    network = fold(model)
    for name in given.only or names:
        dtype = torch.float32 if name.startswith(("fp32", "int8")) else torch.bfloat16
        row(name, answers(FORMATS[name](copy.deepcopy(network)), x, dtype))


if __name__ == "__main__":
    main()
