"""Draw the README's picture: `vitreous explain` on scikit-image's photograph of Chelsea the cat (CC0).

python docs/pictures/make.py vit_tiny_patch16_224.augreg_in21k_ft_in1k
"""

import sys
from pathlib import Path

from PIL import Image
from skimage import data

from vitreous import load, read_picture
from vitreous.figures.style import encode
from vitreous.scene import Scene
from vitreous.views import VIEWS


def main(model: str) -> None:
    scene = Scene(load(model), read_picture(Image.fromarray(data.chelsea())))
    path = Path(__file__).with_name("relevance.png")
    path.write_bytes(encode(VIEWS["relevance"].draw(scene)[""], dpi=120))
    print(f"wrote {path.name} ({path.stat().st_size / 1024:.0f} KB)")


if __name__ == "__main__":
    main(sys.argv[1])
