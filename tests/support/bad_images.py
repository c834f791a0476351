"""Make files that are no good images: damaged, truncated, lying about themselves, or made to keep a decoder busy.

`written_by_hand()` returns named ones, `damaged(count, seed)` any number of others. All are made by code, from a seed.
"""

import io
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "AVIF")
SUFFIX = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp", "GIF": "gif", "TIFF": "tif", "AVIF": "avif"}


def noise(height: int, width: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(height * 1000 + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def seeds(kind: str) -> list[bytes]:
    """Sound images to begin with."""
    plain = [encoded(noise(24, 20), kind), encoded(noise(7, 90, "L"), kind)]
    frames = [noise(12, 12), noise(12, 13).resize((12, 12)), noise(12, 14).resize((12, 12))]
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "camera"
    several = {"PNG", "WEBP", "GIF", "TIFF", "AVIF"}
    if kind in several:
        plain.append(encoded(frames[0], kind, save_all=True, append_images=frames[1:]))
    if kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        plain.append(encoded(noise(16, 16), kind, exif=exif.tobytes()))
        plain.append(encoded(noise(16, 16), kind, icc_profile=bytes(range(200))))
    if kind == "JPEG":
        plain.append(encoded(noise(40, 40), kind, progressive=True))
        plain.append(encoded(noise(20, 20, "CMYK"), kind))
    if kind == "PNG":
        plain += [encoded(noise(9, 9, mode), kind) for mode in ("1", "P", "RGBA", "I;16")]
    if kind == "TIFF":
        compressions = ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")
        plain += [encoded(noise(20, 20), kind, compression=each) for each in compressions]
        plain += [encoded(Image.new("F", (6, 6), 0.5), kind), encoded(Image.new("I;16", (6, 6), 9), kind)]
    return plain


def damaged(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`count` files of all kinds in turn: `(what was done, bytes)`."""
    draw = random.Random(seed)
    sound = {kind: seeds(kind) for kind in KINDS}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        data = bytearray(draw.choice(sound[kind]))
        damage = draw.choice(("head", "body", "cut", "numbers", "splice", "grow"))
        if damage in ("head", "body"):
            first, last = (0, min(len(data), 80)) if damage == "head" else (min(len(data) - 1, 30), len(data))
            for _ in range(draw.choice((1, 2, 4, 16))):
                data[draw.randrange(first, last)] = draw.randrange(256)
        elif damage == "cut":  # after the signature, in the header, in a block, before the end
            ends = (draw.randrange(1, 13), draw.randrange(13, 60), draw.randrange(len(data)), len(data) - 1)
            data = data[: draw.choice(ends)]
        elif damage == "numbers":  # sizes, counts and offsets
            size = draw.choice((1, 2, 4, 8))
            offset = draw.randrange(0, max(1, min(len(data) - size, 200)))
            value = draw.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1, 65535))
            value %= 2 ** (8 * size)
            data[offset : offset + size] = value.to_bytes(size, draw.choice(("big", "little")))
        elif damage == "splice":
            other = draw.choice(sound[draw.choice(KINDS)])
            data = data[: draw.randrange(len(data))] + other[draw.randrange(len(other)) :]
        else:
            offset = draw.randrange(len(data))
            data[offset:offset] = draw.randbytes(draw.choice((1, 8, 500)))
        yield f"{damage}.{SUFFIX[kind]}", bytes(data)


# --- by hand --------------------------------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return struct.pack(">I", size) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int = 8, colour: int = 0, before: bytes = b"", data: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", data or zlib.compress(bytes(64))) + chunk(b"IEND")


def tiff(fields: list[tuple[int, int, int, int]], tail: bytes = b"", following: int = 0, at: int = 8) -> bytes:
    """One directory; a field is tag, type, count, and value or offset."""
    body = b"".join(struct.pack("<HHII", *field) for field in fields)
    return b"II*\0" + struct.pack("<IH", at, len(fields)) + body + struct.pack("<I", following) + tail


def grey_tiff(width: int, height: int, *, bits: int = 8, kind: int = 1) -> list[tuple[int, int, int, int]]:
    size = min(width * height * bits // 8, 2**32 - 1)
    fields = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, 1)]
    fields += [(273, 4, 1, 8 + 2 + 12 * 10 + 4), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, size)]
    return [*fields, (339, 3, 1, kind)]


def strips_tiff(count: int) -> bytes:
    start = 8 + 2 + 12 * 9 + 4
    fields = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    fields += [(273, 4, count, start), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, start)]
    return tiff(fields, struct.pack("<I", 8) * count)


def with_orientation(value: int, kind: str = "JPEG") -> bytes:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 3, 1, value) + bytes(4)
    return encoded(noise(10, 14), kind, exif=exif)


def with_exif(body: bytes) -> bytes:
    plain = encoded(noise(10, 14), "JPEG")
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 8) + b"Exif\0\0" + body + plain[2:]


def many_passes(side: int, times: int) -> bytes:
    """A progressive JPEG that goes over its pixels again and again: some bytes each time."""
    plain = encoded(Image.new("L", (side, side)), "JPEG", progressive=True)
    last = plain[plain.rfind(b"\xff\xda") : -2]
    return plain[:-2] + last * times + plain[-2:]


def rle_bitmap(side: int) -> bytes:
    """A BMP of runs of one pixel, which Pillow decodes in Python."""
    runs = b"\x01\x01" * (side * side) + b"\0\1"
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 14 + 40 + 1024 + len(runs), 0, 0, 14 + 40 + 1024) + header + bytes(1024) + runs


def animated(kind: str, frames: int) -> bytes:
    images = [Image.new("RGB", (4, 4), (number % 256, number // 256 * 16, 0)) for number in range(frames)]
    return encoded(images[0], kind, save_all=True, append_images=images[1:])


def written_by_hand(scale: float = 1.0) -> dict[str, bytes]:
    """Files made with intent; `scale` shortens those that are long."""
    many = int(1_000_000 * scale)
    gif, jpeg, sound = encoded(noise(4, 4, "P"), "GIF"), encoded(noise(8, 8), "JPEG"), encoded(noise(8, 8), "PNG")
    palette = 13 + 3 * 2 ** ((gif[10] & 7) + 1)
    nan = struct.pack("<6f", float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 0.0)
    side, frames = int(8000 * scale**0.5), int(3000 * scale)
    files = {
        "empty.png": b"",
        "signature.png": sound[:8],
        "zero-width.png": png(0, 5),
        "zero-height.png": png(5, 0),
        "zero-size.gif": gif[:6] + bytes(4) + gif[10:],
        "zero-size.tif": tiff(grey_tiff(0, 0)),
        "zero-size.bmp": b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, 0, 0, 1, 24, 0, 0, 0, 0, 0, 0),
        "zero-size.ppm": b"P6 0 0 255\n",
        "bomb.png": png(60_000, 60_000, data=zlib.compress(bytes(10_000_000))),
        "more-than-it-says.png": png(8, 8, data=zlib.compress(bytes(50_000_000), 9)),
        "largest-sides.png": png(2**31 - 1, 2**31 - 1),
        "65535-wide.png": png(65_535, 1),
        "65535-high.png": png(1, 65_535),
        "65535-square.png": png(65_535, 65_535),
        "65535-square.gif": gif[:6] + b"\xff\xff\xff\xff" + gif[10:],
        "65535-square.jpg": jpeg.replace(b"\0\x08\0\x08\x03", b"\xff\xff\xff\xff\x03", 1),
        "65535-square.tif": tiff(grey_tiff(65_535, 65_535)),
        "65535-wide.tif": tiff(grey_tiff(65_535, 1), bytes(65_535)),
        "text-bomb.png": png(8, 8, before=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(30_000_000), 9))),
        "profile-bomb.png": png(8, 8, before=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(30_000_000), 9))),
        "profile-junk.png": png(8, 8, before=chunk(b"iCCP", b"a\0\0junk")),
        "profile-junk.jpg": encoded(noise(8, 8), "JPEG", icc_profile=b"\xff" * 3000),
        "profile-junk.webp": encoded(noise(8, 8), "WEBP", icc_profile=b"\0" * 128),
        "chunk-of-four-gigabytes.png": sound[:33] + chunk(b"IDAT", b"x", length=2**32 - 1),
        "chunks.png": png(8, 8, before=chunk(b"prVt") * (many // 2)),
        "palette-missing.png": png(8, 8, colour=3),
        "depth-7.png": png(8, 8, depth=7),
        "sixteen-bit.png": png(4, 4, 16, data=zlib.compress((b"\0" + bytes(range(8))) * 4)),
        "sixteen-bit-colour.png": png(4, 4, 16, 2, data=zlib.compress((b"\0" + bytes(range(24))) * 4)),
        "comments.gif": gif[:palette] + b"\x21\xfe\x01a\x00" * (many // 3) + gif[palette:],
        "long-comment.gif": gif[:palette] + b"\x21\xfe" + b"\x01a" * (many // 2) + b"\0" + gif[palette:],
        "frames.gif": animated("GIF", frames),
        "frames.png": animated("PNG", frames),
        "frames.webp": animated("WEBP", frames // 3),
        "pages.tif": animated("TIFF", frames // 3),
        "exif-blocks.jpg": jpeg[:2] + b"\xff\xe1\0\x0aExif\0\0ab" * (many // 3) + jpeg[2:],
        "comments.jpg": jpeg[:2] + b"\xff\xfe\0\x04ab" * (many // 3) + jpeg[2:],
        "passes.jpg": many_passes(side, 1 + int(400 * scale)),
        "no-end.jpg": jpeg[:-2],
        "two-images.jpg": jpeg + jpeg,
        "strips.tif": strips_tiff(many),
        "strips-few.tif": strips_tiff(1000),
        "own-directory.tif": tiff(grey_tiff(4, 4), bytes(range(16)), following=8),
        "directory-beyond.tif": tiff(grey_tiff(4, 4), bytes(16), at=2**32 - 1),
        "offsets-beyond.tif": tiff([*grey_tiff(4, 4)[:5], (273, 4, 1, 2**31), *grey_tiff(4, 4)[6:]]),
        "count-beyond.tif": tiff([(270, 2, 2**32 - 1, 8), *grey_tiff(4, 4)], bytes(16)),
        "no-number.tif": tiff(grey_tiff(3, 2, bits=32, kind=3), nan),
        "all-nan.tif": tiff(grey_tiff(2, 2, bits=32, kind=3), struct.pack("<4f", *[float("nan")] * 4)),
        "largest-float.tif": encoded(Image.new("F", (side, side), 3.0), "TIFF", compression="tiff_lzw"),
        "largest-whole.tif": encoded(Image.new("I", (side, side), -3), "TIFF", compression="tiff_lzw"),
        "largest.png": encoded(Image.new("RGBA", (side, side)), "PNG"),
        "largest.jp2": encoded(Image.new("RGB", (side, side)), "JPEG2000"),
        "largest.webp": encoded(Image.new("RGB", (side, side)), "WEBP", lossless=True, method=0),
        "largest.avif": encoded(Image.new("RGB", (side, side)), "AVIF", speed=10),
        "comment.ppm": b"P6 #" + b"x" * (5 * many) + b"\n1 1 255\n" + bytes(3),
        "odd-maximum.pgm": b"P5 %d %d 100\n" % (side // 2, side // 2) + bytes((side // 2) ** 2),
        "plain.pgm": b"P2 1000 1000 255\n" + b"0 " * 500_000,
        "runs.bmp": rle_bitmap(int(2000 * scale**0.5)),
        "text.png": b"<html><body>404</body></html>",
        "zeros.jpg": bytes(5000),
    }
    for value in (0, 9, 255, 65535):
        files[f"orientation-{value}.jpg"] = with_orientation(value)
    files["orientation-65535.webp"] = with_orientation(65535, "WEBP")
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)  # its sub-directory is itself
    files["exif-cycle.jpg"] = with_exif(b"II*\0\x08\0\0\0\x01\0" + entry + struct.pack("<I", 8))
    files["exif-beyond.jpg"] = with_exif(b"II*\0\xff\xff\xff\xff")
    files["exif-count.jpg"] = with_exif(b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 0x0112, 3, 2**32 - 1, 0))
    files["exif-text.jpg"] = with_exif(b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 2, 4, 0x41414141))
    files["exif-rational.jpg"] = with_exif(b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 5, 1, 8))
    return files
