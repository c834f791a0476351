"""Opening images as people have them.

In go paths, bytes, open files or Pillow images of any mode; out come upright 8-bit RGB images. Whatever
goes wrong with an image is a `ImageError`: one line that names it and says what is the matter with it.
Colour profiles are not applied: the models were trained on images read without them.
"""

import io
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitreous.data.metered import ImageError, Metered, scans, strips
from vitreous.data.portable import load_ppm, needs_help

# What is opened, the commonest first. Not here, on purpose: EPS, WMF and the like, which run other programs;
# ICO and ICNS, whose headers may understate the image inside. MPO is read as the JPEG it begins with.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "AVIF", "TIFF", "JPEG2000")

# More pixels than any camera people carry; 64 million of them are 192 MB once decoded.
LIMIT_PIXELS = 64_000_000
# Decoders that are slower than the others: so many take them as long as the limit takes those (about 3 s).
LIMITS = {"JPEG2000": 32_000_000}
# A JPEG may go over its pixels any number of times, each a few bytes and 2 ns a pixel. Usual are up to 10 times.
LIMIT_PASSES = 2_000_000_000

BAND = 1 << 22  # pixels of 16 or 32 bits that are brought to 8 bits at a time

# EXIF orientation → what turns the stored image upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# First bytes → why a file that no format recognised cannot be read.
_STRANGERS = (
    (rb"\xff\xd8\xff|\x89PNG|GIF8|II\*\0|MM\0\*|....ftypavi", "damaged or truncated: download it again"),
    (rb"....ftyp(hei|hev|mif|msf)", "HEIC is not supported: save it as JPEG or PNG"),
    (rb"%PDF|%!PS", "a PDF or PostScript document, not an image: export the page as PNG"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the image itself: run `git lfs pull`"),
    (rb"\s*<", "a text such as HTML or SVG, not an image: download the image itself, or export it as PNG"),
)  # fmt: skip


def read_image(source: str | Path | bytes | BinaryIO | Image.Image, *, limit_pixels: int = LIMIT_PIXELS) -> Image.Image:
    """The image as upright RGB on white, whatever it was; a `ImageError` says why when it cannot be read.

    Animations give their first frame. The size is checked from the header, before anything is decoded. A
    Pillow image is read as it stands and is not changed; the answer is always a new image.

    >>> half_clear = Image.new("LA", (3, 2), (0, 128))
    >>> image = read_image(half_clear)
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (3, 2), (127, 127, 127))
    """
    name = _name(source)
    with _explained(name, limit_pixels):
        if isinstance(source, Image.Image):
            return _decode(source, name, limit_pixels)
        with _open_stream(source, name) as stream:
            return _decode(_open_image(Metered(stream, name), name), name, limit_pixels)


def _name(source: object) -> str:
    """What to call the image in a message; this is also where a source of the wrong type is turned away."""
    if isinstance(source, (str, Path)):
        return str(source)
    is_image, is_bytes = isinstance(source, Image.Image), isinstance(source, (bytes, bytearray, memoryview))
    if not (is_image or is_bytes or hasattr(source, "read")) or isinstance(source, io.TextIOBase):
        kind = type(source).__name__
        raise TypeError(f"expected a path, bytes, a file opened with 'rb' or a Pillow image, got {kind}")
    name = getattr(source, "filename" if is_image else "name", None)
    return name if isinstance(name, str) and name else "image"  # an unnamed file has a number, or nothing


@contextmanager
def _explained(name: str, limit_pixels: int) -> Iterator[None]:
    """Turn whatever Pillow raises into a ImageError: its decoders raise far more than OSError.

    Its warnings are let through: silencing them is unsafe where several threads read images, and each time
    makes Python forget which warnings of other libraries it has shown already.
    """
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(name, reason_of(error, limit_pixels)) from error


def reason_of(error: Exception, limit_pixels: int = LIMIT_PIXELS) -> str:
    """What an error of the system, or of Pillow's, means for the one whose image it is."""
    text = " ".join(str(error).split())  # one line
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "no such file or folder: check the path"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it: make it smaller first"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        pixels, *pillow_limit = [int(number) for number in re.findall(r"\d+", text)] or [0]
        return _too_large(f"{pixels:,} pixels", min([limit_pixels, *pillow_limit]))
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "truncated: the file ends before the image does; copy or download it again"
    if isinstance(error, OSError) and error.strerror:  # from the system rather than from a decoder
        what = "who may read it" if isinstance(error, PermissionError) else "the path"
        return f"{error.strerror.lower()}: check {what}"
    return f"cannot be decoded, probably damaged or truncated ({type(error).__name__}: {text})"


def _too_large(size: str, limit_pixels: int) -> str:
    return f"too large: {size}, the limit is {limit_pixels:,}; make it smaller first"


def _open_stream(source: str | Path | bytes | BinaryIO, name: str) -> AbstractContextManager[BinaryIO]:
    """The image's bytes as a file that can be wound back; one that was handed in stays open."""
    if isinstance(source, (str, Path)):
        path = at_home(source)
        if "\0" in name:
            raise FileNotFoundError(name)
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise ImageError(name, "is a folder, not an image: name an image in it")
        if not stat.S_ISREG(kind):  # a pipe or a device could keep us waiting for ever
            raise ImageError(name, "not a regular file: save the image to one first")
        return path.open("rb")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    return nullcontext(source) if source.seekable() else io.BytesIO(source.read())


def at_home(path: str | Path) -> Path:
    """The path with `~` spelled out."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~somebody who has no home here: as it stands, and so not found
        return Path(path)


def _open_image(stream: Metered, name: str) -> Image.Image:
    """The image with its header read and nothing decoded yet."""
    stream.seek(0)
    head = stream.read(32)
    if not head:
        raise ImageError(name, "empty file (0 bytes): copy or download it again")
    if head[:2] in (b"II", b"MM"):
        stream.check(strips(stream))
    try:
        image = Image.open(cast(BinaryIO, stream), formats=FORMATS)
    except UnidentifiedImageError:
        reasons = (reason for opening, reason in _STRANGERS if re.match(opening, head, re.DOTALL))
        unknown = f"not an image: none of {', '.join(FORMATS)}; save it as one of these first"
        raise ImageError(name, next(reasons, unknown)) from None
    most = LIMIT_PASSES // max(1, image.width * image.height)
    if image.format == "JPEG" and (passes := scans(stream)) > most:
        reason = (
            f"goes over its {image.width}×{image.height} pixels {passes:,} times, {most:,} at the most: save it again"
        )
        raise ImageError(name, reason)
    return image


def _decode(image: Image.Image, name: str, limit_pixels: int) -> Image.Image:
    width, height = image.size
    limit_pixels = min(limit_pixels, LIMITS.get(image.format or "", limit_pixels))
    if width * height > limit_pixels:
        raise ImageError(name, _too_large(f"{width}×{height} is {width * height:,} pixels", limit_pixels))
    if width * height == 0:
        raise ImageError(name, f"no pixels: it is {width}×{height}")
    image = load_ppm(image) if needs_help(image) else image
    image.load()
    turn = _UPRIGHT.get(_orientation(image))  # after loading: TIFF images are turned by their own decoder
    rgb = _to_rgb(image)
    rgb = rgb.transpose(turn) if turn is not None else rgb
    rgb.info = {}  # the orientation is used up, the transparency too
    return rgb


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken EXIF is no reason to refuse a good image
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _to_eight_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("LA") if image.mode == "La" else image  # Pillow leads La nowhere but to LA
    layer = layer.convert("RGBA")
    page = Image.new("RGB", image.size, "white")
    page.paste(layer, mask=layer)
    return page


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 or 32 bits, or floats, brought to 0..255 (Pillow's own conversion clips them).

    Some rows at a time: all at once would take ten times the image's memory.
    """
    rows = max(1, BAND // image.width)
    bands = [(top, min(top + rows, image.height)) for top in range(0, image.height, rows)]
    low, high = _range(image, bands)
    clear = image.info.get("transparency")  # a PNG may name one grey value that is see-through
    grey_image = Image.new("L", image.size)
    for top, bottom in bands:
        values = _rows(image, top, bottom)
        if image.mode == "F" and not np.isfinite(values).all():  # what is no number becomes black
            values = np.where(np.isfinite(values), values, np.float32(low))
        grey = np.rint(_scaled(values, image.mode, low, high)).astype(np.uint8)
        if isinstance(clear, int):
            grey = np.where(values == clear, np.uint8(255), grey)
        grey_image.paste(Image.fromarray(grey), (0, top))
    return grey_image


def _rows(image: Image.Image, top: int, bottom: int) -> np.ndarray:
    return np.asarray(image.crop((0, top, image.width, bottom)))


def _range(image: Image.Image, bands: list[tuple[int, int]]) -> tuple[float, float]:
    """The smallest and the largest value that is a number; 0 and 0 where there is none."""
    low, high = np.inf, -np.inf
    for top, bottom in bands:
        values = _rows(image, top, bottom)
        if image.mode == "F" and not np.isfinite(values.sum(dtype=np.float64)):
            values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def _scaled(values: np.ndarray, mode: str, low: float, high: float) -> np.ndarray:
    if mode.startswith("I;16"):
        return values / np.float32(257)  # 65535 is 257 × 255
    if mode == "I" and low >= 0 and high <= 65535:
        # 32 bits say nothing about the range: take the smaller of 8 and 16 bits that holds all values
        return values / np.float32(1 if high <= 255 else 257)
    if mode == "F" and low >= 0 and high <= 1:
        return values * np.float32(255)
    # no range is known: darkest to black, brightest to white
    return (values.astype(np.float64) - low) * (255 / ((high - low) or 1))
