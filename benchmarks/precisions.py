"""What number formats cost: top-1, agreement with fp32 and how far logits move, on labelled pictures.

    python benchmarks/precisions.py FOLDER MODEL [--only fp32 bf16 …] [--times]

FOLDER has a sub-folder a class, named by its index. Variants of int8 leave layers out, scale channels between a layer
norm and what reads it, or quantise activations with an offset; `int8` is what `--precision int8` does. With `--times`
the milliseconds a picture of the compiled network, frozen weights, batches of 8, in turn.
"""

import argparse
import copy
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from vitreous.data.pictures import find_pictures, read_picture
from vitreous.speed.fold import folded
from vitreous.speed.optimize import WAYS, quantise
from vitreous.speed.shortcut import logits_only
from vitreous.weights.load import load

BATCH = 8


def int8(network, left_out=(), smooth=None, offset=False):
    """Linear layers of the blocks to int8, except those whose name has one of `left_out` in it."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    from torchao.quantization.quant_primitives import MappingType

    if smooth is not None:
        for block in network.blocks:
            block.norm1, block.attn.qkv = smoothed(block.attn.qkv, smooth)
            block.norm2, block.mlp.fc1 = smoothed(block.mlp.fc1, smooth)
    mapping = MappingType.ASYMMETRIC if offset else MappingType.SYMMETRIC
    quantize_(
        network,
        Int8DynamicActivationInt8WeightConfig(act_mapping_type=mapping),
        filter_fn=lambda module, name: (
            isinstance(module, nn.Linear)
            and name.startswith("blocks.")
            and not any(part in f"{name}." for part in left_out)
        ),
    )
    return network


def smoothed(linear, share):
    """Part of the weights' range handed to the layer norm before them: `W s` reads what is divided by `s`."""
    most = linear.weight.abs().amax(dim=0).clamp(min=1e-8).double()
    scale = (most**-share) / (most**-share).mean()
    norm = nn.LayerNorm(len(scale), eps=1e-6)
    norm.weight.data.copy_(1 / scale)
    linear.weight.data.copy_(linear.weight.double() * scale)
    return norm, linear


def own(network):
    quantise(network)
    return network


VARIANTS = {
    "fp32": lambda network: network,
    "bf16": lambda network: network.bfloat16(),
    "int8": own,
    "int8, all layers": int8,
    "int8, no fc2": lambda network: int8(network, ("fc2.",)),
    "int8, no fc1": lambda network: int8(network, ("fc1.",)),
    "int8, no qkv": lambda network: int8(network, ("qkv.",)),
    "int8, no proj": lambda network: int8(network, ("proj.",)),
    "int8, not the first block": lambda network: int8(network, ("blocks.0.",)),
    "int8, not the last two blocks": lambda network: int8(network, ("blocks.10.", "blocks.11.")),
    "int8, smoothed": lambda network: int8(network, smooth=0.5),
    "int8, offset": lambda network: int8(network, offset=True),
    "int8, no qkv, no fc1": lambda network: int8(network, ("qkv.", "fc1.")),
    "int8, smoothed, no fc2": lambda network: int8(network, ("fc2.",), smooth=0.5),
    "int8, offset, no fc2": lambda network: int8(network, ("fc2.",), offset=True),
}


@torch.no_grad()
def answers(network, pixels):
    dtype = network.pos_embed.dtype
    return torch.cat([logits_only(network, part.to(dtype)).float() for part in pixels.split(BATCH)])


@torch.no_grad()
def times(networks, rounds=7):
    runs = {name: WAYS["frozen"](network, logits_only) for name, network in networks.items()}
    examples = {name: torch.zeros(BATCH, 3, 224, 224, dtype=n.pos_embed.dtype) for name, n in networks.items()}
    for name, run in runs.items():
        run(examples[name])
    taken = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = time.process_time()
            run(examples[name])
            taken[name].append((time.process_time() - begun) / BATCH * 1000)
    return {name: statistics.median(each) for name, each in taken.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--times", action="store_true")
    given = parser.parse_args()
    model = load(given.model)
    view, (paths, _) = model.card.preprocess, find_pictures([given.folder])
    pixels = torch.stack([view.pixels(read_picture(path)) for path in paths])
    truth = torch.tensor([int(Path(path).parent.name) for path in paths])
    plain = folded(model, view.mean, view.std)
    expected = answers(plain, pixels)
    print(f"| {len(paths)} pictures | top-1 | agrees with fp32 | mean change of a logit, of the largest one |")
    print("|---|---|---|---|", flush=True)
    networks = {}
    for name in given.only:
        network = networks[name] = VARIANTS[name](copy.deepcopy(plain))
        logits = expected if name == "fp32" else answers(network, pixels)
        right = (logits.argmax(-1) == truth).float().mean().item()
        same = (logits.argmax(-1) == expected.argmax(-1)).float().mean().item()
        moved = ((logits - expected).abs().mean(-1) / expected.abs().amax(-1)).mean().item()
        print(f"| {name} | {right:.1%} | {same:.1%} | {moved:.2%} |", flush=True)
    if given.times:
        print("\n| | processor ms a picture |\n|---|---|")
        for name, taken in times(networks).items():
            print(f"| {name} | {taken:.1f} |")


if __name__ == "__main__":
    main()
