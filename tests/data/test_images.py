"""Images as people have them: whatever the mode and format, upright RGB; whatever fails, one plain line."""

import io
import os
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_hub import LoopbackFiles
from PIL import ExifTags, Image, ImageFile

from vitreous.data.images import FORMATS, ImageError, is_web_address, read_image

WHITE, RED, GREEN, BLUE = (255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture
def files():
    with LoopbackFiles() as files:
        yield files


def noise(height: int = 20, width: int = 30, channels: int = 3) -> Image.Image:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> list:
    assert image.mode == "RGB"
    return np.asarray(image).reshape(-1, 3).tolist()


def failure(source: object, **options: int) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read_image(source, **options)
    error = caught.value
    assert str(error).endswith(f": {error.reason}")
    assert "\n" not in str(error)
    return error


def header_only_png(width: int, height: int) -> bytes:
    """A PNG that claims any size, with nothing behind it that could be decoded."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I", 4) + b"IDAT" + bytes(8)


# --- sources --------------------------------------------------------------------------------------------


def test_all_sources_of_an_image_read_alike(tmp_path):
    path, data = tmp_path / "noise.png", encoded(noise(), "PNG")
    path.write_bytes(data)
    expected = noise().tobytes()
    with path.open("rb") as file:
        file.read()  # wherever it stands, even at its end
        sources = [path, str(path), data, bytearray(data), io.BytesIO(data), file, Image.open(path), noise()]
        for source in sources:
            assert read_image(source).tobytes() == expected
        assert not file.closed


def test_a_stream_that_cannot_be_wound_back_is_read():
    reading, writing = os.pipe()
    data = encoded(noise(), "PNG")
    with os.fdopen(writing, "wb") as file:
        file.write(data)  # small enough for the pipe's buffer
    with os.fdopen(reading, "rb") as stream:
        assert not stream.seekable()
        assert read_image(stream).tobytes() == noise().tobytes()


def test_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    noise().save(tmp_path / "noise.png")
    assert read_image("~/noise.png").size == (30, 20)


def test_the_answer_is_a_new_image_and_the_old_one_unchanged():
    old = noise()
    new = read_image(old)
    new.putpixel((0, 0), RED)
    assert old.tobytes() == noise().tobytes()


@pytest.mark.parametrize("source", [3, None, io.StringIO("text")])
def test_a_source_of_the_wrong_type_is_the_callers_mistake(source):
    with pytest.raises(TypeError, match=f"got {type(source).__name__}"):
        read_image(source)


# --- formats and modes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_of_the_list_is_read(format, tmp_path):
    image = Image.new("RGB", (40, 24), (200, 100, 50))
    image.save(tmp_path / "image", format)
    read = read_image(tmp_path / "image")
    assert read.mode == "RGB"
    assert read.size == (40, 24)
    assert np.abs(np.asarray(read).astype(int) - (200, 100, 50)).max() <= 6  # the lossy ones are near


def test_the_first_image_of_an_mpo_from_a_phone_is_read():
    data = encoded(Image.new("RGB", (16, 16), RED), "MPO", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert read_image(data).getpixel((8, 8))[0] > 250


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_gives_its_first_frame(format):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert read_image(data).getpixel((4, 4)) == RED


def test_an_image_of_one_pixel_is_read():
    assert pixels(read_image(encoded(Image.new("RGB", (1, 1), BLUE), "PNG"))) == [list(BLUE)]


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, WHITE),
        ("L", 77, (77, 77, 77)),
        ("CMYK", (0, 255, 255, 0), RED),
        ("YCbCr", (76, 85, 255), (254, 0, 0)),
        ("HSV", (170, 255, 255), (0, 0, 255)),
        ("LAB", (137, 128, 128), (128, 128, 128)),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("RGBA", (255, 0, 0, 0), WHITE),
        ("RGBA", (255, 0, 0, 51), (255, 204, 204)),
        ("RGBa", (51, 0, 0, 51), (255, 204, 204)),
        ("LA", (0, 51), (204, 204, 204)),
        ("La", (0, 51), (204, 204, 204)),
        ("PA", (0, 0), WHITE),
    ],
)
def test_every_mode_becomes_rgb_on_white(mode, colour, expected):
    read = read_image(Image.new(mode, (2, 3), colour))
    assert read.mode == "RGB"
    assert read.size == (2, 3)
    assert read.getpixel((1, 2)) == expected


def test_lab_tiff_keeps_its_colours():
    lab = Image.new("RGB", (8, 8), (200, 100, 50)).convert("LAB")
    read = read_image(encoded(lab, "TIFF"))
    assert np.abs(np.asarray(read).astype(int) - (200, 100, 50)).max() <= 3


def palette_image() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    return image


@pytest.mark.parametrize("format", ["GIF", "PNG"])
def test_the_clear_colour_of_a_palette_shows_white(format):
    read = read_image(encoded(palette_image(), format, transparency=1))
    assert pixels(read) == [list(RED), list(WHITE), list(BLUE)]


def test_a_palette_with_alpha_for_each_colour_is_laid_over_white():
    read = read_image(encoded(palette_image(), "PNG", transparency=bytes([255, 51, 0])))
    assert pixels(read) == [list(RED), [204, 255, 204], list(WHITE)]


@pytest.mark.parametrize(("mode", "clear"), [("RGB", RED), ("L", 7), ("1", 0), ("I;16", 1799)])
def test_the_one_clear_colour_of_a_png_shows_white(mode, clear):
    read = read_image(encoded(Image.new(mode, (2, 2), clear), "PNG", transparency=clear))
    assert pixels(read) == [list(WHITE)] * 4


@pytest.mark.parametrize(
    ("mode", "format"),
    [(mode, None) for mode in ("I;16", "I;16L", "I;16B", "I;16N")]
    + [("I;16", "PNG"), ("I;16", "TIFF"), ("I;16", "PPM"), ("I;16B", "PNG"), ("I;16B", "TIFF")],
)
def test_sixteen_bit_grey_is_scaled_not_clipped(mode, format):
    order = {"I;16B": ">u2", "I;16N": "=u2"}.get(mode, "<u2")
    values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=order)
    image = Image.frombytes(mode, (6, 1), values.tobytes())
    read = read_image(encoded(image, format) if format else image)
    assert [red for red, _, _ in pixels(read)] == [0, 0, 1, 1, 128, 255]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 65535))
def test_sixteen_bits_are_divided_by_257_and_rounded(value):
    read = read_image(Image.fromarray(np.full((1, 1), value, dtype=np.uint16)))
    assert read.getpixel((0, 0))[0] == (2 * value + 257) // 514


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 100, 255], [0, 100, 255]),  # eight bits in a wider box
        ([0, 256, 65535], [0, 1, 255]),  # sixteen
        ([-1000, 0, 1000], [0, 128, 255]),  # no range that one could know: darkest to brightest
        ([0, 0, 2**31 - 1], [0, 0, 255]),
        ([70000, 70000, 70000], [0, 0, 0]),
    ],
)
def test_thirty_two_bit_grey_takes_the_range_that_holds_it(values, expected):
    image = Image.fromarray(np.array([values], dtype=np.int32))
    for source in (image, encoded(image, "TIFF")):
        assert [red for red, _, _ in pixels(read_image(source))] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.2, 0.2, 0.2], [51, 51, 51]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([10.0, 20.0, 60.0], [10, 20, 60]),  # as the same values of 8 bits
        ([0.0, 1.6, 255.0], [0, 2, 255]),
        ([100.0, 200.0, 600.0], [0, 51, 255]),
        ([-np.inf, 0.4, np.inf], [102, 102, 102]),
    ],
)
def test_float_grey_is_scaled(values, expected):
    image = Image.fromarray(np.array([values], dtype=np.float32))
    for source in (image, encoded(image, "TIFF")):
        assert [red for red, _, _ in pixels(read_image(source))] == expected


# --- orientation ----------------------------------------------------------------------------------------


def turned(orientation: int) -> tuple[Image.Image, Image.Exif]:
    """Four coloured corners, as a camera stores them that was held the way this orientation says."""
    upright = Image.new("RGB", (32, 48))
    for corner, colour in zip([(0, 0), (16, 0), (0, 24), (16, 24)], [RED, GREEN, BLUE, WHITE], strict=True):
        upright.paste(colour, (*corner, corner[0] + 16, corner[1] + 24))
    away = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return upright.transpose(away) if away is not None else upright, exif


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_come_out_upright(format, orientation):
    stored, exif = turned(orientation)
    read = read_image(encoded(stored, format, exif=exif))
    assert read.size == (32, 48)
    for place, colour in (((8, 12), RED), ((24, 12), GREEN), ((8, 36), BLUE), ((24, 36), WHITE)):
        assert np.abs(np.subtract(read.getpixel(place), colour)).max() < 40
    assert read_image(read).tobytes() == read.tobytes()  # and are not turned twice


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"garbage!", b"II*\0", b"Exif\0\0II*\0\x08\0\0\0\x05\0"])
def test_broken_exif_does_not_spoil_the_image(exif):
    assert read_image(encoded(noise(), "PNG", exif=exif)).tobytes() == noise().tobytes()


# --- failures -------------------------------------------------------------------------------------------


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    for path in (tmp_path / "none.jpg", tmp_path / "none" / "none.jpg", "~nobody-of-that-name/none.jpg"):
        error = failure(path)
        assert error.name == str(path)
        assert error.reason == "no such file or folder: check the path"


def test_a_file_taken_for_a_folder_is_missing(tmp_path):
    (tmp_path / "file").touch()
    assert failure(tmp_path / "file" / "none.jpg").reason == "no such file or folder: check the path"


def test_a_folder_is_no_image(tmp_path):
    assert "is a folder" in failure(tmp_path).reason


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in failure(tmp_path / "pipe").reason


@pytest.mark.parametrize("kind", ["path", "bytes", "stream"])
def test_an_empty_file_is_said_to_be_empty(kind, tmp_path):
    (tmp_path / "empty.jpg").touch()
    source = {"path": tmp_path / "empty.jpg", "bytes": b"", "stream": io.BytesIO()}[kind]
    assert failure(source).reason == "empty file (0 bytes): copy or download it again"


def test_a_forbidden_file_is_said_to_be_forbidden(tmp_path, monkeypatch):
    noise().save(tmp_path / "secret.png")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the superuser may read everything, so chmod would not do
    assert failure(tmp_path / "secret.png").reason == "permission denied: check who may read it"


def test_a_name_that_no_file_can_have_is_refused():
    assert failure("a" * 300 + ".jpg").reason == "file name too long: check the path"
    assert failure("nul\0byte.jpg").reason == "no such file or folder: check the path"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"just some words", "not an image: none of JPEG, PNG"),
        (bytes(100), "not an image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "damaged or truncated"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "PostScript"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "HTML"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    ],
)
def test_what_is_no_image_is_called_what_it_is(data, reason):
    assert reason in failure(data).reason


def heif(image: Image.Image, **options: object) -> bytes:
    """An image in the iPhone's format."""
    import pillow_heif

    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, **options)
    return file.getvalue()


@pytest.mark.slow
def test_heic_is_read_upright_where_the_extra_is_installed(tmp_path):
    stored = Image.new("RGB", (64, 32), BLUE)
    stored.paste(RED, (0, 0, 32, 32))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # turn it clockwise: red is on top
    (tmp_path / "photo.heic").write_bytes(heif(stored, quality=-1, exif=exif.tobytes()))
    read = read_image(tmp_path / "photo.heic")
    assert read.size == (32, 64)
    assert np.abs(np.array(read.getpixel((16, 10))) - RED).max() < 12
    assert np.abs(np.array(read.getpixel((16, 54))) - BLUE).max() < 12
    half_clear = heif(Image.new("RGBA", (64, 64), (0, 0, 0, 0)))
    assert read_image(half_clear).getpixel((5, 5)) == (255, 255, 255)
    assert "too large: 64×64" in failure(half_clear, limit_pixels=64 * 64 - 1).reason
    assert "\n" not in str(failure(half_clear[: len(half_clear) // 2]))


def test_heic_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reason = failure(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic").reason
    assert reason == "HEIC needs one more package: pip install 'vitreous[heif]', or save it as JPEG or PNG"


def test_an_image_is_read_from_a_url(files):
    files.files["/noise.png"] = encoded(noise(), "PNG")
    files.files["/page"] = b"<html>"
    assert read_image(f"{files.url}/noise.png").tobytes() == noise().tobytes()
    assert failure(f"{files.url}/dog.png").reason == "there is no file at this address: check the name"
    assert "a text such as HTML" in failure(f"{files.url}/page").reason
    files.redirects["/away.png"] = "file:///etc/hostname"
    assert "is not allowed" in failure(f"{files.url}/away.png").reason


def test_what_is_an_address():
    assert is_web_address("HTTPS://example.org")
    assert not any(is_web_address(text) for text in ("ftp://a", "http", "https:/a", "file:///a", "photos/http://a"))


def test_a_download_is_limited(files, monkeypatch):
    files.files["/noise.png"] = encoded(noise(), "PNG")
    monkeypatch.setattr("vitreous.data.images.LIMIT_BYTES", 100)
    assert failure(f"{files.url}/noise.png").reason == "is larger than 0 MiB: download it first"


def test_standard_input_is_an_image(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(encoded(noise(), "PNG"))))
    assert read_image("-").tobytes() == noise().tobytes()
    assert str(failure("-")) == "standard input: empty: the command before the pipe wrote nothing"
    monkeypatch.setattr("vitreous.data.images.LIMIT_BYTES", 100)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(101))))
    assert "more than 0 MiB" in failure("-").reason
    terminal = io.TextIOWrapper(io.BytesIO())
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert "nothing is piped in" in failure("-").reason


def test_formats_outside_the_list_are_not_opened():
    assert "not an image" in failure(encoded(noise(), "TGA")).reason
    assert "not an image" in failure(encoded(noise(), "ICO")).reason
    assert not {"EPS", "WMF", "PDF", "ICO", "ICNS", "FPX", "MIC"} & set(FORMATS)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_image_is_said_to_be_truncated(format, share):
    data = encoded(noise(60, 80), format)
    reason = failure(data[: int(len(data) * share)]).reason
    surely = format in ("JPEG", "PNG", "BMP", "PPM", "TIFF")  # the others' decoders do not say what is wrong
    assert "truncated: the file ends" in reason if surely else "truncated" in reason


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_images_fail_plainly_or_are_read():
    rng = np.random.default_rng(1)
    for format in FORMATS:
        data = encoded(noise(16, 16), format)
        for _ in range(40):
            damaged = bytearray(data)
            for place in rng.integers(0, min(len(data), 200), 6):
                damaged[place] = rng.integers(256)
            try:
                assert read_image(bytes(damaged)).mode == "RGB"
            except ImageError as error:
                assert error.reason  # noqa: PT017


@pytest.mark.parametrize(
    "raised",
    [
        SyntaxError("broken PNG file"),
        struct.error("unpack requires 4 bytes"),
        OverflowError("too big"),
        ValueError("tile cannot\nextend"),
        zlib.error("Error -3"),
        KeyError(7),
        IndexError(),
        RecursionError("deep"),
    ],
)
def test_whatever_a_decoder_raises_becomes_one_line(raised, monkeypatch):
    def fail(_image: Image.Image) -> None:
        raise raised

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    error = failure(encoded(noise(), "BMP"))
    assert type(raised).__name__ in error.reason
    assert error.__cause__ is raised


def test_other_ways_to_fail_have_their_own_words(monkeypatch):
    data = encoded(noise(), "BMP")
    for raised, reason in ((MemoryError(), "not enough memory"), (EOFError("no more"), "truncated: the file ends")):
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _image, raised=raised: (_ for _ in ()).throw(raised))
        assert reason in failure(data).reason


def test_a_closed_pillow_image_fails_plainly(tmp_path):
    noise().save(tmp_path / "noise.png")
    image = Image.open(tmp_path / "noise.png")
    image.close()
    assert failure(image).name == str(tmp_path / "noise.png")


def test_an_image_without_pixels_is_refused():
    assert "no pixels" in failure(Image.new("RGB", (0, 5))).reason


# --- the pixel limit ------------------------------------------------------------------------------------


def test_an_image_over_the_limit_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _image: pytest.fail("decoded"))
    reason = failure(header_only_png(8001, 8000)).reason
    assert "8001×8000 is 64,008,000 pixels" in reason
    assert "64,000,000" in reason


def test_the_limit_itself_is_allowed():
    data = encoded(noise(20, 30), "PNG")
    assert read_image(data, limit_pixels=600).size == (30, 20)
    assert "600 pixels, the limit is 599" in failure(data, limit_pixels=599).reason
    assert "the limit is 599" in failure(noise(20, 30), limit_pixels=599).reason


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_that_pillow_warns_of_is_refused_with_its_size():
    assert (
        "10000×10000 is 100,000,000 pixels, the limit is 64,000,000" in failure(header_only_png(10_000, 10_000)).reason
    )


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_a_warning_turned_into_an_error_is_a_plain_failure_too():
    assert "100,000,000 pixels, the limit is 64,000,000" in failure(header_only_png(10_000, 10_000)).reason


def test_an_image_that_pillow_itself_refuses_is_refused_with_its_size():
    assert "400,000,000 pixels, the limit is 64,000,000" in failure(header_only_png(20_000, 20_000)).reason
    # and where Pillow's limit is the lower one, that is the one named
    reason = failure(header_only_png(20_000, 20_000), limit_pixels=10**12).reason
    assert f"the limit is {2 * Image.MAX_IMAGE_PIXELS:,}" in reason


def test_reading_leaves_pillow_as_it_was():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    read_image(encoded(noise(), "PNG"))
    failure(header_only_png(20_000, 20_000))
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before == (89_478_485, False)


def test_the_error_survives_a_trip_between_processes():
    error = pickle.loads(pickle.dumps(ImageError("a.jpg", "truncated")))
    assert (error.name, error.reason, str(error)) == ("a.jpg", "truncated", "a.jpg: truncated")


def test_a_name_with_a_line_break_still_makes_one_line():
    assert str(ImageError("two\nlines.jpg", "missing")) == "'two\\nlines.jpg': missing"


# --- arrays and tensors -------------------------------------------------------------------------------------


def test_arrays_and_tensors_are_the_image_they_were_made_from():
    image = noise(20, 30)
    pixels = np.asarray(image)  # [h w c]
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # [c h w], not contiguous
    for source in (
        pixels,
        pixels / 255,
        (pixels / 255).astype(np.float32),
        tensor,
        tensor / 255,
        tensor.double() / 255,
    ):
        assert np.array_equal(np.asarray(read_image(source)), pixels)
    assert np.array_equal(np.asarray(read_image((tensor / 255).requires_grad_())), pixels)
    assert np.array_equal(np.asarray(read_image(np.asfortranarray(pixels))), pixels)
    close = np.asarray(read_image((tensor / 255).bfloat16())).astype(int) - pixels
    assert np.abs(close).max() <= 1


def test_grey_and_transparent_arrays_are_read():
    grey = np.arange(15, dtype=np.uint8).reshape(3, 5)
    for source in (grey, grey[:, :, None], torch.from_numpy(grey), torch.from_numpy(grey)[None]):
        assert np.asarray(read_image(source))[:, :, 1].tolist() == grey.tolist()
    clear = np.zeros((5, 6, 4), np.uint8)
    assert read_image(clear).getpixel((0, 0)) == (255, 255, 255)


def test_an_array_is_not_changed_and_not_shared():
    pixels = np.zeros((5, 6, 3), np.uint8)
    image = read_image(pixels)
    image.putpixel((0, 0), (9, 9, 9))
    assert pixels.max() == 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (np.zeros((3, 20, 30), np.uint8), "got [3, 20, 30]: transpose(1, 2, 0) puts channels last"),
        (torch.zeros(20, 30, 3), "got [20, 30, 3]: permute(2, 0, 1) puts channels first"),
        (torch.zeros(3, 30, 3), "got [3, 30, 3]: ambiguous: pass a NumPy array [h w c]"),
        (np.zeros((20, 30, 2), np.uint8), "got [20, 30, 2]: check its shape"),
        (np.zeros((8, 20, 30, 3), np.uint8), "got [8, 20, 30, 3]: pass a list of images"),
        (torch.zeros(8, 3, 20, 30), "got [8, 3, 20, 30]: pass a list of images"),
        (np.zeros(7, np.uint8), "got [7]: check its shape"),
        (np.zeros((20, 30), np.int64), "got int64: convert it first"),
        (torch.zeros(20, 30, dtype=torch.int32), "got int32: convert it first"),
        (np.zeros((20, 30), bool), "got bool"),
        (np.zeros((20, 30), complex), "got complex128"),
        (np.full((20, 30), 255.0), "got 255 to 255: divide pixels by 255"),
        (np.full((20, 30), -0.5), "expected floats from 0 to 1, got -0.5"),
        (torch.full((3, 20, 30), torch.nan), "expected floats from 0 to 1, got nan to nan"),
        (np.zeros((0, 30), np.uint8), "no pixels"),
        (torch.zeros(3, 20, 0), "no pixels"),
        (np.lib.stride_tricks.as_strided(np.zeros(1), (10_000, 10_000), (0, 0)), "the limit is 64,000,000"),
    ],
)
def test_other_arrays_are_refused_in_one_line(source, reason):
    error = failure(source)
    assert reason in str(error)
    assert "\n" not in str(error)
