"""Figures of `vitreous explain --figures` to the small images that the pages show.

python docs/images/shrink.py docs/images/ti- figures/rollout.png figures/filters.png
"""

import sys
from pathlib import Path

from PIL import Image

MOST = 900  # pixels across


def shrink(source: Path, target: Path) -> None:
    with Image.open(source) as image:
        small = image.convert("RGB")
    if small.width > MOST:
        small = small.resize((MOST, round(small.height * MOST / small.width)), Image.Resampling.LANCZOS)
    small.save(target, "WEBP", quality=78, method=6)
    print(f"wrote {target} ({target.stat().st_size / 1024:.0f} KB)")


if __name__ == "__main__":
    prefix, *files = sys.argv[1:]
    for file in map(Path, files):
        shrink(file, Path(f"{prefix}{file.stem}.webp"))
