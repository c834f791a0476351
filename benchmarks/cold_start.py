"""One image, one process: `vitreous classify` beside the same with timm, fresh processes in turn.

    python benchmarks/cold_start.py IMAGE MODEL_FOLDER [--rounds 7]

`import torch` alone is there as the floor under both.
"""

import argparse
import sys

from processes import OURS, TIMM, in_turn, table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("image")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    commands = {
        "timm": [*TIMM, given.image, given.model],
        "vitreous classify": [*OURS, given.image, "--model", given.model],
        "import torch": [sys.executable, "-c", "import torch"],
    }
    in_turn(commands, 1)  # files into memory
    print(table(in_turn(commands, given.rounds), "timm"))


if __name__ == "__main__":
    main()
