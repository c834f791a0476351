"""Damage sound checkpoints of every format in thousands of ways: each is refused, or gives what its own library gives.

python benchmarks/checkpoint_mutants.py --processes 14 [--count 6000] [--seed 0] [--only REGEX] [--json mutants.json]

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
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

for part in (".", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / part))
import torch  # noqa: E402
from mutated_checkpoints import judge, mutants  # noqa: E402
from originals import BASES  # noqa: E402

RESULTS = ("refused", "same", "silent", "crash")
PARTS = 4  # jobs for each format


def outcomes_of(name: str, count: int, seed: int, part: int) -> list[dict[str, str]]:
    """Judge every fourth of about `count` mutants of one format, beginning with number `part`; first the sound one."""
    torch.set_num_threads(1)
    base = BASES[name]
    fields = count // 2 if base.config else 0
    found = []
    with tempfile.TemporaryDirectory() as root:
        sound, folder = Path(root, "sound"), Path(root, "mutant")
        sound.mkdir()
        base.write(sound)
        result, why = judge(base, sound, None, folder)
        if result != "same":
            return [{"base": name, "kind": "sound", "text": "", "result": "crash", "why": f"{result}: {why}"}]
        every = mutants(
            base, sound, random.Random(f"{seed} {name}"), tensors=max(count - fields - 20, 10), fields=fields
        )
        for mutant in islice(every, part, None, PARTS):
            result, why = judge(base, sound, mutant, folder)
            found.append({"base": name, "kind": mutant.kind, "text": mutant.text, "result": result, "why": why})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6000, help="mutants over all formats, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="regular expression of the formats to try")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)  # before the workers are forked
    share = given.count / sum(0.3 if base.large else 1 for base in BASES.values())
    names = [name for name in BASES if re.search(given.only, name)]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    outcomes = []
    with ProcessPoolExecutor(given.processes) as pool:
        jobs = []
        for name in sorted(names, key=lambda name: bool(BASES[name].config)):  # bare files are larger: first
            count = round(share * (0.3 if BASES[name].large else 1))
            jobs += [pool.submit(outcomes_of, name, count, given.seed, part) for part in range(PARTS)]
        for job in as_completed(jobs):
            for each in job.result():
                outcomes.append(each)
                counts[each["base"]][each["result"]] += 1
                if each["result"] in ("silent", "crash"):
                    print("{result}  {base}: {kind}, {text}: {why}".format_map(each), flush=True)
            if given.json:
                given.json.write_text(json.dumps(outcomes, indent=1))
    print(f"\n{'':32}" + "".join(f"{result:>9}" for result in RESULTS))
    for name, found in counts.items():
        print(f"{name:32}" + "".join(f"{found[result]:9}" for result in RESULTS))
    total = sum(counts.values(), Counter())
    print(f"{f'{total.total():,} mutants':32}" + "".join(f"{total[result]:9}" for result in RESULTS))
    sys.exit(bool(total["silent"] + total["crash"]))


if __name__ == "__main__":
    main()
