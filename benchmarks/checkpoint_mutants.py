"""Damage sound checkpoints of every format in thousands of ways: each is refused, or gives what its own library gives.

python benchmarks/checkpoint_mutants.py [--count 2000] [--seed 0] [--only REGEX] [--json mutants.json]

A tensor or a block is dropped, renamed, transposed, swapped, or has its type or shape changed; a field of a config file
is changed, removed, added or contradicted. Where the original library fails or would draw weights at random, only a
refusal passes. A mutant that gives other numbers without an error is `silent`: each is listed, and the exit code is 1.
"""

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

for part in (".", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / part))
import torch  # noqa: E402
from mutated_checkpoints import judge, mutants  # noqa: E402
from originals import BASES  # noqa: E402

RESULTS = ("refused", "same", "silent", "crash")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2400, help="mutants over all formats, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="regular expression of the formats to try")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    outcomes = []
    share = given.count / sum(0.3 if base.large else 1 for base in BASES.values())
    for name, base in BASES.items():
        if not re.search(given.only, name):
            continue
        each = round(share * (0.3 if base.large else 1))
        fields = each // 2 if base.config else 0
        with tempfile.TemporaryDirectory() as root:
            sound, folder = Path(root, "sound"), Path(root, "mutant")
            sound.mkdir()
            base.write(sound)
            result, why = judge(base, sound, None, folder)
            if result != "same":
                sys.exit(f"{name}: the sound checkpoint is {result}: {why}")
            rng = random.Random(f"{given.seed} {name}")
            for mutant in mutants(base, sound, rng, tensors=max(each - fields - 20, 10), fields=fields):
                result, why = judge(base, sound, mutant, folder)
                outcomes.append({"base": name, "kind": mutant.kind, "text": mutant.text, "result": result, "why": why})
                counts[name][result] += 1
                if result in ("silent", "crash"):
                    print(f"{result}  {name}: {mutant.kind}, {mutant.text}: {why}", flush=True)
    print(f"\n{'':32}" + "".join(f"{result:>9}" for result in RESULTS))
    for name, found in counts.items():
        print(f"{name:32}" + "".join(f"{found[result]:9}" for result in RESULTS))
    total = sum(counts.values(), Counter())
    print(f"{f'{total.total():,} mutants':32}" + "".join(f"{total[result]:9}" for result in RESULTS))
    if given.json:
        given.json.write_text(json.dumps(outcomes, indent=1))
    sys.exit(bool(total["silent"] + total["crash"]))


if __name__ == "__main__":
    main()
