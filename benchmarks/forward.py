"""The plain forward pass beside timm's: same weights, one process, interleaved, medians.

python benchmarks/forward.py --model vit_base_patch16_224 --batch 1 8 --rounds 15
"""

import argparse
import platform
import statistics
import time

import timm
import torch

from vitreous import ViT, variant
from vitreous.models.last_block import logits_only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    theirs = timm.create_model(options.model).eval()
    ours = ViT(variant(options.model)).eval()
    ours.load_state_dict(theirs.state_dict())
    contenders = {
        "timm": theirs,
        "vitreous, whole network": ours,
        "vitreous, logits only": lambda x: logits_only(ours, x),
    }
    print(
        f"{options.model}, fp32, torch {torch.__version__}, timm {timm.__version__}, {platform.processor() or 'CPU'}, ",
        end="",
    )
    print(f"{torch.get_num_threads()} threads, {options.rounds} rounds, interleaved, medians")
    with torch.inference_mode():
        for batch in options.batch:
            x = torch.randn(batch, 3, 224, 224)
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for turn in range(options.rounds + 2):
                order = list(contenders) if turn % 2 else list(contenders)[::-1]  # none always goes first
                for name in order:
                    start = time.perf_counter()
                    contenders[name](x)
                    if turn >= 2:  # the first two warm up
                        times[name].append(time.perf_counter() - start)
            base = statistics.median(times["timm"])
            for name, each in times.items():
                middle = statistics.median(each)
                print(
                    f"batch {batch:>2}  {name:<24} {middle * 1e3 / batch:8.1f} ms an image  {base / middle:5.2f}× timm"
                )


if __name__ == "__main__":
    main()
