"""PGM and PPM images whose brightest value is not 255 or 65535: Pillow goes through them pixel by pixel in Python.

Microscopes write such files (10 or 12 bits). Here they are read at once, to the same values.
"""

import numpy as np
from PIL import Image, ImageFile


def needs_help(image: Image.Image) -> bool:
    """Whether this is such an image, not decoded yet."""
    return isinstance(image, ImageFile.ImageFile) and image.format == "PPM" and [t[0] for t in image.tile] == ["ppm"]


def load_ppm(image: Image.Image) -> Image.Image:
    """Its values brought to the whole of 8 bits, or of 16 where it has more: modes L, RGB and I."""
    assert isinstance(image, ImageFile.ImageFile)
    assert image.fp is not None
    _, _, offset, arguments = image.tile[0]
    brightest = int(arguments[1] if isinstance(arguments, tuple) else arguments)  # type: ignore[arg-type]
    kind = np.dtype(np.uint8 if brightest < 256 else ">u2")
    bands, full = len(image.getbands()), 65535 if image.mode == "I" else 255
    wanted = image.width * image.height * bands
    image.fp.seek(offset)
    data = image.fp.read(wanted * kind.itemsize)
    if len(data) < wanted * kind.itemsize:
        raise EOFError("truncated")
    table = np.minimum(full, np.rint(np.arange(256**kind.itemsize) / brightest * full))
    shape = (image.height, image.width) if bands == 1 else (image.height, image.width, bands)
    values = table.astype(np.int32 if full > 255 else np.uint8)[np.frombuffer(data, kind).reshape(shape)]
    return Image.fromarray(values)
