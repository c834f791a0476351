"""Broken and hostile images are read or refused in one line, in little time; see `benchmarks/fuzz_images.py`."""

import io
import time
import tracemalloc

import bad_images
import numpy as np
import pytest
from PIL import Image

from vitreous.cli.explain import explain
from vitreous.data.colours import to_rgb
from vitreous.data.image_limits import ReadLimitedFile, count_scans, count_strips
from vitreous.data.images import ImageError, read_image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def outcome(data):
    """'read', or the reason why not; anything but an ImageError fails the test."""
    try:
        assert read_image(data).mode == "RGB"
    except ImageError as error:
        return error.reason if "\n" not in str(error) else pytest.fail("more than one line")
    return "read"


@pytest.fixture(scope="module")
def by_hand():
    return bad_images.written_by_hand(scale=0.02)


@pytest.mark.slow
def test_files_made_with_intent_are_read_or_refused_in_one_line(by_hand, monkeypatch):
    monkeypatch.setattr(ReadLimitedFile.__init__, "__defaults__", (6000,))
    found = {name: outcome(data) for name, data in by_hand.items()}
    assert (
        found["exif-cycle.jpg"] == found["orientation-65535.jpg"] == found["frames.gif"] == found["pages.tif"] == "read"
    )
    assert found["no-number.tif"] == found["all-nan.tif"] == found["sixteen-bit-colour.png"] == "read"
    for name in (
        "chunks.png",
        "comments.gif",
        "long-comment.gif",
        "exif-blocks.jpg",
        "strips.tif",
        "comment.ppm",
        "runs.bmp",
    ):
        assert "cut into more than 6,000 pieces" in found[name], name
    for name in ("bomb.png", "65535-square.png", "65535-square.gif", "65535-square.jpg", "65535-square.tif"):
        assert "too large" in found[name], name
    for name in ("zero-width.png", "zero-size.tif", "zero-size.ppm", "signature.png", "directory-beyond.tif"):
        assert found[name] != "read", name


def test_hundreds_of_damaged_files_are_read_or_refused_in_one_line():
    found = [outcome(data) for _, data in bad_images.damaged(600, seed=1)]
    assert 100 < found.count("read") < 500


def test_a_jpeg_that_goes_over_its_pixels_too_often_is_refused_before_it_is_decoded():
    data = bad_images.many_passes(4000, 130)
    begun = time.process_time()
    assert "goes over its 4000×4000 pixels 136 times, the limit is 125" in outcome(data)
    assert time.process_time() - begun < 0.5
    assert outcome(bad_images.many_passes(400, 130)) == "read"


def test_scans_are_counted_across_chunks(monkeypatch):
    monkeypatch.setattr("vitreous.data.image_limits.CHUNK", 3)
    data = b"\xff\xd8\xff\xda12\xff\x00\xff\xda\xff\xff\xda\xda"
    assert count_scans(ReadLimitedFile(io.BytesIO(data))) == data.count(b"\xff\xda") == 3


@pytest.mark.parametrize("kind", [42, 43])
@pytest.mark.parametrize("order", ["little", "big"])
def test_strips_are_counted_in_every_kind_of_tiff(kind, order):
    wide = 8 if kind == 43 else 4
    head = (b"II" if order == "little" else b"MM") + kind.to_bytes(2, order)
    head += (8).to_bytes(2, order) + bytes(2) + (16).to_bytes(8, order) if kind == 43 else (8).to_bytes(4, order)
    entry = (273).to_bytes(2, order) + (4).to_bytes(2, order) + (777).to_bytes(wide, order) + bytes(wide)
    data = head + (1).to_bytes(8 if kind == 43 else 2, order) + entry
    assert count_strips(ReadLimitedFile(io.BytesIO(data))) == 777
    assert count_strips(ReadLimitedFile(io.BytesIO(data[:-9]))) == 0  # cut short: the decoder will say so


@pytest.mark.parametrize("head", [b"P5 30 20 100\n", b"P6 30 20 77\n", b"P5 30 20 1023\n", b"P6 30 20 4095\n"])
def test_a_pgm_of_any_brightest_value_is_read_as_pillow_reads_it(head):
    values = np.random.default_rng(0).integers(0, 256, 3600, dtype=np.uint8).tobytes()
    size = 600 * (3 if b"P6" in head else 1) * (2 if int(head.split()[3]) > 255 else 1)
    data = head + values[:size]
    theirs = np.asarray(to_rgb(Image.open(io.BytesIO(data))))
    assert np.array_equal(np.asarray(read_image(data)), theirs)
    assert "truncated" in outcome(data[:-1])


def test_bands_do_not_show(monkeypatch):
    values = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    values[3, 2], values[40, 1] = np.nan, np.inf
    whole = np.asarray(read_image(Image.fromarray(values)))
    monkeypatch.setattr("vitreous.data.colours.BAND", 20)
    assert np.array_equal(np.asarray(read_image(Image.fromarray(values))), whole)
    assert whole[3, 2].tolist() == whole[40, 1].tolist() == [0, 0, 0]
    assert whole.min() == 0
    assert whole.max() == 255


def test_a_float_image_takes_little_more_memory_than_itself():
    image = Image.new("F", (3000, 3000), 3.0)  # 36 MB, and 150 MB where all was scaled at once
    tracemalloc.start()
    read_image(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120_000_000


@pytest.mark.slow
def test_explain_names_the_image_that_preprocessing_refuses_and_goes_on(tmp_path, capsys):
    Image.new("RGB", (1, 65_000)).save(tmp_path / "a thin one.png")
    bad_images.noise(40, 40).save(tmp_path / "sound.png")
    with pytest.raises(SystemExit) as ended:
        explain((str(tmp_path),), views="predictions", output=tmp_path / "report.html", device="cpu")
    message = "".join(capsys.readouterr().err.split("\n"))
    assert ended.value.code == 2
    assert "a thin one.png: too long and thin" in message
    assert (tmp_path / "report.html").stat().st_size > 10_000
