"""What a command is given beside names of images: the clipboard, and what is piped in."""

import io
import json
import os
import subprocess
import sys

import pytest
from PIL import Image, ImageGrab

from vitreous.cli import inputs
from vitreous.cli.console import messages
from vitreous.cli.inputs import find_inputs, is_piped, read_clipboard
from vitreous.cli.main import main
from vitreous.data.images import ImageError


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "teal.png"
    Image.new("RGB", (40, 40), "teal").save(path)
    return path


@pytest.fixture
def piped(monkeypatch):
    """Replace standard input by an open file."""

    def replace(file):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))

    return replace


def test_a_file_as_standard_input_is_classified(image, piped, capsys):
    with image.open("rb") as file:
        piped(file)
        main(["classify", "--json", "--top", "1", "--model", "packaged:cifar10"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["image"] == "standard input"


def test_a_dash_is_standard_input_beside_other_images(image, piped, capsys):
    with image.open("rb") as file:
        piped(file)
        main(["classify", str(image), "-", "--json", "--top", "1", "--model", "packaged:cifar10"])
    one, other = json.loads(capsys.readouterr().out)
    assert (one["image"], other["image"]) == (str(image), "standard input")
    assert one["predictions"] == other["predictions"]


def test_what_is_no_image_is_an_error_by_its_name(piped, tmp_path):
    (tmp_path / "text").write_text("just words")
    with (tmp_path / "text").open("rb") as file:
        piped(file)
        with pytest.raises(ImageError, match="standard input: not an image"):
            find_inputs((), False, messages())


def test_a_pipe_that_stays_silent_or_empty_is_not_waited_for(piped, monkeypatch, capsys):
    monkeypatch.setattr(inputs, "PATIENCE", 0.05)
    reader, writer = os.pipe()
    piped(os.fdopen(reader, "rb"))
    assert is_piped()
    assert find_inputs((), False, messages()) == ([], [])
    assert "name - to wait for it" in capsys.readouterr().err
    os.close(writer)
    assert find_inputs((), False, messages()) == ([], [])
    assert "standard input is empty" in capsys.readouterr().err


def test_standard_input_is_left_alone_if_an_image_is_named(image, piped, monkeypatch):
    with image.open("rb") as file:
        piped(file)
        assert find_inputs((str(image),), False, messages()) == ([str(image)], [])
        assert file.tell() == 0
    with open(os.devnull, "rb") as nothing:
        piped(nothing)
        assert not is_piped()
    monkeypatch.setattr("sys.stdin", None)
    assert not is_piped()


@pytest.mark.slow
def test_a_shells_redirection_works(image):
    words = [sys.executable, "-m", "vitreous", "classify", "--json", "--model", "packaged:cifar10"]
    with image.open("rb") as file:
        out = subprocess.run(words, stdin=file, capture_output=True, check=True).stdout
    assert json.loads(out)[0]["image"] == "standard input"
    out = subprocess.run([*words, "-"], input=image.read_bytes(), capture_output=True, check=True).stdout
    assert json.loads(out)[0]["image"] == "standard input"


def test_the_clipboard_gives_an_image_or_files(monkeypatch, image):
    monkeypatch.setattr(ImageGrab, "grabclipboard", lambda: Image.new("RGB", (4, 4)))
    (found,) = read_clipboard()
    assert found.filename == "clipboard"
    monkeypatch.setattr(ImageGrab, "grabclipboard", lambda: [str(image)])
    assert find_inputs((), True, messages()) == ([str(image)], [])
    monkeypatch.setattr(ImageGrab, "grabclipboard", lambda: None)
    with pytest.raises(ValueError, match="the clipboard holds no image: copy one first"):
        read_clipboard()


def test_a_system_without_a_clipboard_says_so_in_one_line(monkeypatch, capsys):
    def refuse():
        raise NotImplementedError("wl-paste or xclip is required")

    monkeypatch.setattr(ImageGrab, "grabclipboard", refuse)
    with pytest.raises(SystemExit) as stop:
        main(["classify", "--clipboard"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.splitlines() == [
        "vitreous: the clipboard cannot be read here (wl-paste or xclip is required): save the image to a file first"
    ]
