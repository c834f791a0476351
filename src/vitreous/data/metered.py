"""An image's file, read with an eye on how many pieces it comes in.

Parsers of images follow the file from block to block, and some take time that grows with the square of their number:
a small file of many empty blocks would keep them busy for minutes. `Metered` counts what they read and stops them.
`strips` and `scans` look at the two places where a decoder does its work without reading.
"""

import struct
from typing import Any, BinaryIO

MOST_PIECES = 300_000
"""Reads of one image. A PNG of 64 million pixels in the usual blocks of 8 kB has some 70,000."""
CHUNK = 1 << 20


class ImageError(ValueError):
    """An image that cannot be read: who and why, in one line.

    >>> print(ImageError("cat.jpg", "empty file"))
    cat.jpg: empty file
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both in args, so that the error survives a trip between processes
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        name = self.name if self.name.isprintable() else repr(self.name)  # a file name may hold a line break
        return f"{name}: {self.reason}"


class Metered:
    """A file that can be read so many times and no more; everything else is the file's own."""

    def __init__(self, stream: BinaryIO, name: str, most: int = MOST_PIECES) -> None:
        self._stream, self._name, self._most, self._seen = stream, name, most, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int = -1, /) -> bytes:
        self._seen += 1
        if self._seen > self._most:
            self.check(self._seen)
        return self._stream.read(size)

    def seek(self, place: int, whence: int = 0, /) -> int:
        return self._stream.seek(place, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def check(self, pieces: int) -> None:
        if pieces > self._most:
            raise ImageError(self._name, f"cut into more than {self._most:,} pieces: save it again as PNG or JPEG")


def strips(stream: Metered) -> int:
    """How many strips or tiles a TIFF says it has, 0 where it does not say; Pillow makes a list of them at once."""
    stream.seek(0)
    head = stream.read(16)
    order = "<" if head[:2] == b"II" else ">"
    try:
        if 43 in struct.unpack(f"{order}H", head[2:4]):  # BigTIFF: eight bytes where there were four
            (place,), count, entry = struct.unpack(f"{order}Q", head[8:16]), f"{order}Q", f"{order}HHQ8x"
        else:
            (place,), count, entry = struct.unpack(f"{order}I", head[4:8]), f"{order}H", f"{order}HHI4x"
        stream.seek(place)
        (entries,) = struct.unpack(count, stream.read(struct.calcsize(count)))
        for _ in range(min(entries, 4096)):
            tag, _, number = struct.unpack(entry, stream.read(struct.calcsize(entry)))
            if tag in (273, 324):  # StripOffsets, TileOffsets
                return int(number)
    except (struct.error, OverflowError, OSError, ValueError):  # damaged: the decoder will say how
        return 0
    return 0


def scans(stream: Metered) -> int:
    """How often a JPEG goes over its pixels; one inside another, such as a thumbnail, is counted along."""
    place = stream.tell()
    stream.seek(0)
    count, last = 0, b""
    while chunk := stream.read(CHUNK):
        count += (last + chunk).count(b"\xff\xda")  # in coded pixels ff is always followed by 00 or d0 … d7
        last = chunk[-1:] if chunk[-1:] == b"\xff" else b""
    stream.seek(place)
    return count
