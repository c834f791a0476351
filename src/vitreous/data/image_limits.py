"""Limits on hostile image files: reads of a file, strips of a TIFF, scans of a JPEG; any PGM or PPM is decoded at once.

Small files made to keep a decoder busy for minutes are found before they are decoded. `images.py` also limits pixels.
"""

import struct
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import Image, ImageFile

# Reads of one file. A PNG of 64 million pixels in the usual blocks of 8 kB has some 70,000.
LIMIT_READS = 300_000
CHUNK = 1 << 20  # bytes of a JPEG that are searched for scans at a time


class TooManyPieces(ValueError):
    """A file of an image that is cut into too many pieces to be read."""


class ReadLimitedFile:
    """A file that may be read a limited number of times; everything else is the file's own.

    Parsers follow a file from block to block, and some take time that grows with the square of their number: a small
    file of many empty blocks would keep them busy for minutes.
    """

    def __init__(self, stream: BinaryIO, limit: int = LIMIT_READS) -> None:
        self._stream, self._limit, self._reads = stream, limit, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int = -1, /) -> bytes:
        self._reads += 1
        self.check(self._reads)
        return self._stream.read(size)

    def check(self, pieces: int) -> None:
        """Raise if a file of an image is cut into too many pieces."""
        if pieces > self._limit:
            raise TooManyPieces(f"cut into more than {self._limit:,} pieces: save it again as PNG or JPEG")


def count_strips(stream: ReadLimitedFile) -> int:
    """Count the strips or tiles that a TIFF declares, 0 if it declares none; Pillow makes a list of them at once."""
    stream.seek(0)
    head = stream.read(16)
    order = "<" if head[:2] == b"II" else ">"
    try:
        if 43 in struct.unpack(f"{order}H", head[2:4]):  # BigTIFF: eight bytes where there were four
            (offset,), count, entry = struct.unpack(f"{order}Q", head[8:16]), f"{order}Q", f"{order}HHQ8x"
        else:
            (offset,), count, entry = struct.unpack(f"{order}I", head[4:8]), f"{order}H", f"{order}HHI4x"
        stream.seek(offset)
        (entries,) = struct.unpack(count, stream.read(struct.calcsize(count)))
        for _ in range(min(entries, 4096)):
            tag, _, number = struct.unpack(entry, stream.read(struct.calcsize(entry)))
            if tag in (273, 324):  # StripOffsets, TileOffsets
                return int(number)
    except (struct.error, OverflowError, OSError, ValueError):  # damaged: the decoder will say how
        return 0
    return 0


def count_scans(stream: ReadLimitedFile) -> int:
    """Count how often a JPEG goes over its pixels, those of a thumbnail inside it included."""
    offset = stream.tell()
    stream.seek(0)
    count, last = 0, b""
    while chunk := stream.read(CHUNK):
        count += (last + chunk).count(b"\xff\xda")  # in coded pixels ff is always followed by 00 or d0 … d7
        last = chunk[-1:] if chunk[-1:] == b"\xff" else b""
    stream.seek(offset)
    return count


def is_slow_ppm(image: Image.Image) -> bool:
    """Return whether an image is a PGM or PPM with a maximum other than 255 or 65535: Pillow loops over it in Python.

    Microscopes write such files (10 or 12 bits).
    """
    return isinstance(image, ImageFile.ImageFile) and image.format == "PPM" and [t[0] for t in image.tile] == ["ppm"]


def load_ppm(image: Image.Image) -> Image.Image:
    """Limit the time that a hostile PGM or PPM takes: decode all its pixels at once, whatever its maximum.

    Its values become Pillow's: 8 bits, or 16 if it has more (L, RGB and I).
    """
    assert isinstance(image, ImageFile.ImageFile)
    assert image.fp is not None
    _, _, offset, arguments = image.tile[0]
    maximum = int(cast(Any, arguments[1] if isinstance(arguments, tuple) else arguments))
    kind = np.dtype(np.uint8 if maximum < 256 else ">u2")
    bands, full = len(image.getbands()), 65535 if image.mode == "I" else 255
    values = image.width * image.height * bands
    image.fp.seek(offset)
    data = image.fp.read(values * kind.itemsize)
    if len(data) < values * kind.itemsize:
        raise EOFError("truncated")
    table = np.minimum(full, np.rint(np.arange(256**kind.itemsize) / maximum * full))
    shape = (image.height, image.width) if bands == 1 else (image.height, image.width, bands)
    return Image.fromarray(table.astype(np.int32 if full > 255 else np.uint8)[np.frombuffer(data, kind).reshape(shape)])
