"""Read an image from a path, a web address, bytes, standard input, an array or a tensor: bounded, upright, RGB.

A path, a URL, bytes, an open file, a Pillow image, a NumPy array or a tensor becomes an upright 8-bit RGB image; a path
may lead into an archive (`photos.zip/cat.jpg`), and `-` is standard input. Every problem with an image is an
`ImageError`: one line, its name and the reason. Colour profiles are not applied: the models were trained on images read
without them.
"""

import io
import os
import re
import stat
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, Union, cast

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from vitreous.data.colours import to_rgb
from vitreous.data.image_limits import ReadLimitedFile, TooManyPieces, count_scans, count_strips, is_slow_ppm, load_ppm

if TYPE_CHECKING:
    from torch import Tensor

ImageLike: TypeAlias = Union[str, Path, bytes, BinaryIO, Image.Image, npt.NDArray[Any], "Tensor"]
"""What `read_image` takes."""

# The commonest first. Left out on purpose: EPS, WMF and the like, which run other programs; ICO and ICNS, whose headers
# may understate the image inside. MPO is read as the JPEG it begins with.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "AVIF", "TIFF", "JPEG2000")
HEIF = re.compile(rb"....ftyp(hei|hev|mif|msf)", re.DOTALL)
"""First bytes of the iPhone's format, which the extra `[heif]` reads; an AVIF may begin like that too."""
STDIN = "-"
"""The name of standard input."""

# More pixels than any camera people carry; 64 million of them are 192 MB once decoded.
LIMIT_PIXELS = 64_000_000
# Slower decoders: this many pixels take them as long as LIMIT_PIXELS takes the others (about 3 s).
LIMITS = {"JPEG2000": 32_000_000}
# A JPEG may go over its pixels any number of times, each a few bytes and 2 ns a pixel. Usual are up to 10 times.
LIMIT_PASSES = 2_000_000_000
# Of standard input and of a URL's answer: 64 million pixels, stored as they are, with room to spare.
LIMIT_BYTES = 256 << 20
LIMIT_SECONDS = 60.0  # of a download

# EXIF orientation → the transpose that turns the stored image upright.
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
_UPRIGHT = {orientation: Image.Transpose[turn] for orientation, turn in enumerate(_TURNS, start=2)}

_DAMAGED = "damaged or truncated: download it again"
# First bytes → why a file that no format recognised cannot be read.
_UNSUPPORTED = (
    (rb"\xff\xd8\xff|\x89PNG|GIF8|II\*\0|MM\0\*|....ftypavi", _DAMAGED),
    (rb"PK\x03\x04", "a zip archive: name the file with the suffix .zip to read the images in it"),
    (rb"%PDF|%!PS", "a PDF or PostScript document, not an image: export the page as PNG"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the image itself: run `git lfs pull`"),
    (rb"\s*<", "a text such as HTML or SVG, not an image: download the image itself, or export it as PNG"),
)  # fmt: skip


class ImageError(ValueError):
    """An image that cannot be read: its name and the reason, in one line.

    >>> print(ImageError("cat.jpg", "empty file"))
    cat.jpg: empty file
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both in args, so that the error can be pickled
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        name = self.name if self.name.isprintable() else repr(self.name)  # a file name may hold a line break
        return f"{name}: {self.reason}"


def read_image(source: ImageLike, *, limit_pixels: int = LIMIT_PIXELS) -> Image.Image:
    """Read an image as upright RGB on white; an `ImageError` says why it cannot be read.

    Arrays are `[h w]` or `[h w c]`, tensors `[h w]` or `[c h w]` (as torchvision has them), with 1, 3 or 4 channels, of
    uint8 or of floats from 0 to 1. An animation gives its first frame. The size is checked from the header, before
    anything is decoded. The result is always a new image.

    >>> half_clear = Image.new("LA", (3, 2), (0, 128))
    >>> image = read_image(half_clear)
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (3, 2), (127, 127, 127))
    >>> read_image(np.full((2, 3), 0.5)).getpixel((0, 0))
    (128, 128, 128)
    """
    name = image_name(source)
    # Warnings are let through: silencing them is unsafe where several threads read images, and each time makes Python
    # forget which warnings of other libraries it has shown already.
    try:
        if isinstance(source, Image.Image):
            return _decode(source, name, limit_pixels)
        if isinstance(source, np.ndarray) or is_tensor(source):
            return _decode(_from_array(source, name, limit_pixels), name, limit_pixels)
        source = cast("str | Path | bytes | BinaryIO", source)
        with _open_stream(source, name) as stream:
            return _decode(_open_image(ReadLimitedFile(stream), name), name, limit_pixels)
    except ImageError:
        raise
    except Exception as error:  # Pillow's decoders raise far more than OSError
        raise ImageError(name, reason_of(error, limit_pixels)) from error


def read_stored(source: Path) -> Image.Image:
    """Read an image file upright with its values as they are stored: palette indices, 16 bits, no colours.

    Masks are read so; `read_image` converts to RGB.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Image.new("I;16", (2, 2), 700).save(path := Path(folder) / "mask.png")
    ...     read_stored(path).getpixel((0, 0))
    700
    """
    name = str(source)
    try:
        with _open_stream(source, name) as stream:
            image = _open_image(ReadLimitedFile(stream), name)
            _check_size(*image.size, name, LIMIT_PIXELS)
            image.load()
    except ImageError:
        raise
    except Exception as error:  # Pillow's decoders raise far more than OSError
        raise ImageError(name, reason_of(error)) from error
    turn = _UPRIGHT.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def read_size(source: Path) -> tuple[int, int]:
    """Read the width and height of an image file, upright as `read_image` returns it, mostly from its header."""
    name = str(source)
    try:
        with _open_stream(source, name) as stream:
            image = _open_image(ReadLimitedFile(stream), name)
            if image.format == "TIFF":  # turned by its own decoder
                _check_size(*image.size, name, LIMIT_PIXELS)
                image.load()
            width, height = image.size
            return (height, width) if _orientation(image) >= 5 else (width, height)  # turned by a quarter
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(name, reason_of(error)) from error


def image_name(source: object) -> str:
    """Return the name of an image for messages; raise `TypeError` for what cannot be an image.

    >>> image_name(Path("cat.jpg")), image_name(b"...")
    ('cat.jpg', 'image')
    """
    if isinstance(source, (str, Path)):
        return "standard input" if source == STDIN else str(source)
    if not is_image_like(source):
        kinds = "a path, a URL, bytes, a file opened with 'rb', a Pillow image, a NumPy array or a tensor"
        raise TypeError(f"expected {kinds}, got {type(source).__name__}")
    name = getattr(source, "filename" if isinstance(source, Image.Image) else "name", None)
    return name if isinstance(name, str) and name else "image"  # an unnamed file has a number, or nothing


def is_web_address(text: str) -> bool:
    """Return whether an image is to be read from a web address rather than a path.

    >>> is_web_address("https://example.org/cat.jpg"), is_web_address("photos/cat.jpg")
    (True, False)
    """
    return text[:8].lower().startswith(("http://", "https://"))


def is_image_like(source: object) -> bool:
    """Return whether a value is of a kind of image that `read_image` takes."""
    known = (str, Path, bytes, bytearray, memoryview, Image.Image, np.ndarray)
    is_file = hasattr(source, "read") and not isinstance(source, io.TextIOBase)
    return isinstance(source, known) or is_file or is_tensor(source)


def is_tensor(source: object) -> bool:
    """Return whether an image is given as a torch tensor; torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def reason_of(error: Exception, limit_pixels: int = LIMIT_PIXELS) -> str:
    """Explain why an image file cannot be read, for an error of the system or of Pillow."""
    text = " ".join(str(error).split())
    if isinstance(error, TooManyPieces):
        return text
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
    """Say in an `ImageError` why an image is not read: it has too many bytes or pixels."""
    return f"too large: {size}, the limit is {limit_pixels:,}; make it smaller first"


def _open_stream(source: str | Path | bytes | BinaryIO, name: str) -> AbstractContextManager[BinaryIO]:
    """Open the image's bytes as a seekable file; a file of the caller's stays open."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if not isinstance(source, (str, Path)):
        return nullcontext(source) if source.seekable() else io.BytesIO(source.read())
    if source == STDIN:
        if not (data := read_standard_input()):
            raise ImageError(name, "empty: the command before the pipe wrote nothing")
        return io.BytesIO(data)
    if "\0" in name:
        raise FileNotFoundError(name)
    if isinstance(source, str) and is_web_address(source):
        return io.BytesIO(_download(source))
    path = Path(os.path.expanduser(source))
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        from vitreous.data.archives import ArchiveError, read_member, split_member

        if (found := split_member(path)) is None:
            raise
        try:
            return io.BytesIO(read_member(*found))
        except ArchiveError as error:
            raise ImageError(name, str(error)) from error
    if stat.S_ISDIR(kind):
        raise ImageError(name, "is a folder, not an image: name an image in it")
    if not stat.S_ISREG(kind):  # a pipe or a device could block for ever
        raise ImageError(name, "not a regular file: save the image to one first, or pipe it in as -")
    return path.open("rb")


def read_standard_input() -> bytes:
    """Read the bytes of the image named `-` as a file's are read; raise if they are too many.

    They are what is piped to standard input.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise ImageError("standard input", "nothing is piped in: `vitreous classify - < photo.jpg` reads an image")
    data: bytes = sys.stdin.buffer.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise ImageError("standard input", f"more than {LIMIT_BYTES / 2**20:,.0f} MiB: save the image to a file first")
    return data


def _download(url: str) -> bytes:
    """Download an image from the web."""
    from vitreous.runtime.http import read_address

    try:
        return read_address(url, limit=LIMIT_BYTES, seconds=LIMIT_SECONDS, expected="the image")
    except (OSError, ValueError) as error:
        reason = str(error).removeprefix(f"{url} ").replace(f"at {url}", "at this address")
        raise ImageError(url, reason) from error


def register_heif() -> bool:
    """Let Pillow read HEIC and HEIF; False if the extra `[heif]` is not installed."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _open_image(stream: ReadLimitedFile, name: str) -> Image.Image:
    """Read an image's header and kind; nothing is decoded yet."""
    stream.seek(0)
    head = stream.read(32)
    if not head:
        raise ImageError(name, "empty file (0 bytes): copy or download it again")
    if head[:2] in (b"II", b"MM"):
        stream.check(count_strips(stream))
    is_heif = HEIF.match(head) is not None
    has_heif = is_heif and register_heif()
    try:
        image = Image.open(cast(BinaryIO, stream), formats=(*FORMATS, "HEIF") if has_heif else FORMATS)
    except UnidentifiedImageError:
        if is_heif:
            lacking = "HEIC needs one more package: pip install 'vitreous[heif]', or save it as JPEG or PNG"
            raise ImageError(name, _DAMAGED if has_heif else lacking) from None
        reasons = (reason for opening, reason in _UNSUPPORTED if re.match(opening, head, re.DOTALL))
        unknown = f"not an image: none of {', '.join(FORMATS)}; save it as one of these first"
        raise ImageError(name, next(reasons, unknown)) from None
    limit = LIMIT_PASSES // max(1, image.width * image.height)
    if image.format == "JPEG" and (passes := count_scans(stream)) > limit:
        size = f"{image.width}×{image.height} pixels"
        raise ImageError(name, f"goes over its {size} {passes:,} times, the limit is {limit:,}: save it again")
    return image


def _check_size(width: int, height: int, name: str, limit_pixels: int) -> None:
    """Raise `ImageError` on reading an image whose header states too many pixels, or none."""
    if width * height > limit_pixels:
        raise ImageError(name, _too_large(f"{width}×{height} is {width * height:,} pixels", limit_pixels))
    if width * height == 0:
        raise ImageError(name, f"no pixels: it is {width}×{height}")


def _decode(image: Image.Image, name: str, limit_pixels: int) -> Image.Image:
    """Decode an image whose header was read, within the limits of bytes and pixels."""
    _check_size(*image.size, name, min(limit_pixels, LIMITS.get(image.format or "", limit_pixels)))
    image = load_ppm(image) if is_slow_ppm(image) else image
    image.load()
    turn = _UPRIGHT.get(_orientation(image))  # after loading: TIFF images are turned by their own decoder
    rgb = to_rgb(image)
    rgb = rgb.transpose(turn) if turn is not None else rgb
    rgb.info = {}  # the orientation is used up, the transparency too
    return rgb


def _orientation(image: Image.Image) -> int:
    """Read an image's orientation from its EXIF data."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken EXIF is no reason to reject a good image
        return 1


def _from_array(source: Any, name: str, limit_pixels: int) -> Image.Image:
    """Check an array `[h w c]` or a tensor `[c h w]` and turn it into a Pillow image."""
    shape, tensor = tuple(source.shape), is_tensor(source)
    first, last = (len(shape) == 3 and shape[axis] in (1, 3, 4) for axis in (0, -1))
    if len(shape) != 2 and not (first and not last if tensor else last):
        order = "[c h w]" if tensor else "[h w c]"
        advice = "permute(2, 0, 1) puts channels first" if tensor else "transpose(1, 2, 0) puts channels last"
        advice = "ambiguous: pass a NumPy array [h w c]" if first and last else advice
        advice = "pass a list of images" if len(shape) == 4 else advice if first or last else "check its shape"
        raise ImageError(name, f"expected [h w] or {order} with 1, 3 or 4 channels, got {list(shape)}: {advice}")
    if tensor:
        source = source.detach().cpu()
        source = (source.float() if source.is_floating_point() else source).numpy()  # NumPy has no bfloat16
        source = source.transpose(1, 2, 0) if len(shape) == 3 else source
    _check_size(source.shape[1], source.shape[0], name, limit_pixels)
    if source.dtype != np.uint8:
        if not np.issubdtype(source.dtype, np.floating):
            raise ImageError(name, f"expected uint8, or floats from 0 to 1, got {source.dtype}: convert it first")
        low, high = float(source.min()), float(source.max())
        if not (low >= 0 and high <= 1):  # NaN is neither
            advice = "divide pixels by 255, or undo the normalisation"
            raise ImageError(name, f"expected floats from 0 to 1, got {low:g} to {high:g}: {advice}")
        source = np.rint(source * 255).astype(np.uint8)
    pixels = source[:, :, 0] if source.ndim == 3 and source.shape[2] == 1 else source  # [h w] or [h w c]
    return Image.fromarray(np.ascontiguousarray(pixels))
