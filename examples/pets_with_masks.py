"""A class for each pixel: pets and their masks. python examples/pets_with_masks.py [FOLDER] [--border]

FOLDER holds `images/` and `masks/` of the Oxford-IIIT pets, whose masks say 1 for the animal, 2 for the background and
3 for the border between them; without it, discs take the place of pets. They are copied to pets/ with a classes.json
that names the values; the border is ignored, or with --border counts as animal. Every fifth image is held out.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous

source = next((Path(word) for word in sys.argv[1:] if not word.startswith("--")), None)
random = np.random.default_rng(0)
folder = Path("pets")


def draw_disc() -> tuple[Image.Image, Image.Image]:
    """Draw a disc with a border of three pixels: its image and its mask."""
    y, x = np.mgrid[:96, :128]
    distance = np.hypot(y - random.uniform(30, 66), x - random.uniform(30, 98)) - random.uniform(12, 28)
    mask = np.select([distance < -1.5, distance > 1.5], [1, 2], 3).astype(np.uint8)
    pixels = np.where(distance[..., None] < 0, *random.uniform(0, 255, (2, 3))) + random.normal(0, 12, (96, 128, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), Image.fromarray(mask)


names = [f"disc-{i:03d}" for i in range(40)] if source is None else sorted(p.stem for p in (source / "masks").iterdir())
for number, name in enumerate(names):
    if source is None:
        image, mask = draw_disc()
    else:
        image, mask = vitreous.read_image(source / f"images/{name}.jpg"), Image.open(source / f"masks/{name}.png")
    for kind, each in (("images", image), ("masks", mask)):
        (part := folder / ("test" if number % 5 == 4 else "train") / kind).mkdir(parents=True, exist_ok=True)
        each.save(part / f"{name}.png", compress_level=1)
border = "--border" in sys.argv
names_of_values = {"1": "animal", "2": "background"} | ({"3": "animal"} if border else {"ignore": 3})
(folder / "classes.json").write_text(json.dumps(names_of_values), encoding="utf-8")
print(f"{len(names):,} images with masks in {folder}; next: vitreous finetune --data {folder}/ --policy head")
