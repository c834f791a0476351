"""Measure the time and memory to list a folder of many images: `python benchmarks/listing.py`.

The files are empty: only their names count. Half lie in one folder, half in folders of a thousand.
"""

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

from vitreous.data.finding import find_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for i in range(given.images):
            folder = Path(name, "flat" if i % 2 else f"deep/{i // 2000:04d}")
            if i < 2 or i % 2000 == 0:
                folder.mkdir(parents=True, exist_ok=True)
            (folder / f"image-{i:08d}.jpg").touch()
        took = []
        for _ in range(3):
            begun = time.process_time()  # unaffected by other processes
            found, problems = find_names([name])
            took.append(time.process_time() - begun)
        assert len(set(found)) == given.images
        assert not problems
        del found
        tracemalloc.start()
        found, _ = find_names([name])
        held, peak = (bytes_ / given.images for bytes_ in tracemalloc.get_traced_memory())
        print(
            f"{given.images} images listed in {min(took):.2f} s of processor time (the best of 3); "
            f"{held:.0f} bytes each for names of {len(found[0])} letters, {peak:.0f} while it is sorted"
        )


if __name__ == "__main__":
    main()
