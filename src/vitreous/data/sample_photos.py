"""The sample photographs inside scikit-image: what `classify` and `explain` show when no image is named."""

from importlib import resources

from PIL.Image import Image

from vitreous.data.images import read_image

FILES = ("coffee.png", "chelsea.png", "camera.png")
"""Photographs inside scikit-image's wheel, free to use: a cup of coffee, a cat, a man with a camera."""


def samples() -> dict[str, Image]:
    """Read three sample photographs, by name; nothing is downloaded.

    >>> list(samples())
    ['coffee', 'chelsea', 'camera']
    """
    folder = resources.files("skimage") / "data"  # `skimage.data` itself would copy them to a cache
    images = {file.partition(".")[0]: read_image((folder / file).read_bytes()) for file in FILES}
    for name, image in images.items():
        image.filename = name  # type: ignore[attr-defined]  # the name that answers carry
    return images
