"""Which files words on a command line name, and in which order."""

import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.data import finding
from vitreous.data.finding import SUFFIXES, find_images, find_names, open_images
from vitreous.data.images import FORMATS, ImageError, register_heif


@pytest.fixture
def album(tmp_path, monkeypatch):
    """A folder, also the current one, that holds what folders of images hold."""
    for name in (
        "10.jpg", "9.JPG", "notes.txt", ".hidden.jpg", "photo [1].png", "scan.dat",
        "trip/b2.jpg", "trip/b10.jpg", "trip/B3.jpeg", "trip/deep/c.webp", ".cache/thumb.jpg", "texts/a.txt",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*paths: str) -> list[str]:
    found, problems = find_images(paths)
    assert problems == []
    return [str(path) for path in found]


ALL = ["9.JPG", "10.jpg", "photo [1].png", "trip/b2.jpg", "trip/B3.jpeg", "trip/b10.jpg", "trip/deep/c.webp"]


def test_a_folder_is_walked_in_natural_order_without_hidden_files(album):
    assert names(".") == ALL
    assert find_images([album])[0] == [album / name for name in ALL]
    assert names("trip") == ALL[3:]


@given(st.lists(st.text("01² 2aAb-_.ß٣", max_size=8), max_size=6))
def test_natural_order_compares_words_as_words_and_numbers_as_numbers(names):
    def pieces(name: str) -> list[str | int]:  # the same said at length: words at even places, numbers at odd ones
        return [int(x) if i % 2 else x for i, x in enumerate(re.split(r"(\d+)", name.casefold()))]

    assert sorted(names, key=finding._natural) == sorted(names, key=pieces)


def test_one_path_need_not_be_in_a_list(album):
    assert find_images("trip") == find_images(["trip"]) == find_images(Path("trip"))


def test_files_are_taken_as_given(album):
    assert names("scan.dat", "notes.txt", ".hidden.jpg", "10.jpg") == ["scan.dat", "notes.txt", ".hidden.jpg", "10.jpg"]


def test_duplicates_stay_where_they_were_first(album):
    assert names("10.jpg", ".", "./10.jpg", str(album / "9.JPG"), "trip/../10.jpg") == ["10.jpg", ALL[0], *ALL[2:]]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jpg", ["10.jpg"]),
        ("trip/b*.jpg", ["trip/b2.jpg", "trip/b10.jpg"]),
        ("trip/b?.jpg", ["trip/b2.jpg"]),
        ("[0-9].*", ["9.JPG"]),
        ("**/*.jpg", ["10.jpg", "trip/b2.jpg", "trip/b10.jpg"]),
        ("**", ALL),
        ("**/*", ALL),
        ("*", ALL),
        ("tr*", ALL[3:]),
        ("trip/*", ALL[3:]),
        ("*.dat", ["scan.dat"]),
        (".*.jpg", [".hidden.jpg"]),
        ("trip/../*.jpg", ["trip/../10.jpg"]),
        ("photo [1].png", ["photo [1].png"]),
    ],
)
def test_patterns_are_expanded(album, pattern, expected):
    assert names(pattern) == expected


def test_patterns_work_from_the_root(album):
    assert names(f"{album}/*.jpg") == [f"{album}/10.jpg"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none.jpg", "no such file or folder"),
        ("none/none.jpg", "no such file or folder"),
        ("~nobody-of-that-name", "no such file or folder"),
        ("nul\0byte", "no such file or folder"),
        ("*.gif", "no image matches this pattern"),
        ("texts/*", "no image matches this pattern"),
        ("none/*.jpg", "no image matches this pattern"),
        ("**.jpg[", "pattern"),
        ("nothing", "no images in this folder"),
        ("texts", "no images in this folder"),
        ("a" * 300, "file name too long"),
        ("", "empty path"),
    ],
)
def test_what_leads_nowhere_is_a_problem_beside_the_rest(album, path, reason):
    found, problems = find_images([path, "10.jpg"])
    assert found == [Path("10.jpg")]
    assert len(problems) == 1
    assert reason in problems[0].reason
    assert problems[0].name == (path or "''")


def test_a_folder_that_may_not_be_listed_is_a_problem_beside_the_rest(album, monkeypatch):
    scandir = os.scandir

    def refuse_deep(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(finding.os, "scandir", refuse_deep)
    found, problems = find_images(["trip"])
    assert [str(path) for path in found] == ALL[3:-1]
    assert [str(problem) for problem in problems] == ["trip/deep: permission denied: check who may read it"]


def test_nothing_else_is_said_of_a_folder_that_may_not_be_listed_itself(album, monkeypatch):
    def refuse(path: Path) -> Iterator[os.DirEntry[str]]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(finding.os, "scandir", refuse)
    found, problems = find_images(["trip"])
    assert not found
    assert [str(problem) for problem in problems] == ["trip: permission denied: check who may read it"]


def test_links_are_followed_and_loops_are_not(album):
    for number in range(3):  # with three loops, whoever follows them is busy for ever
        (album / "trip" / f"loop{number}").symlink_to(album, target_is_directory=True)
    (album / "self").symlink_to(album / "self")
    (album / "linked").symlink_to(album / "trip", target_is_directory=True)
    (album / "gone.jpg").symlink_to(album / "none.jpg")
    answers: list[list[str]] = []

    def search() -> None:
        answers.append(names("."))
        answers.append(names("linked/deep"))
        answers.append([name for name in names("**/*.webp") if "loop" not in name])

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert len(answers) == 3, "still following the loop"
    # the same folder under two names is walked under the first
    assert answers[0] == [*ALL[:2], "linked/b2.jpg", "linked/B3.jpeg", "linked/b10.jpg", "linked/deep/c.webp", ALL[2]]
    assert answers[1] == ["linked/deep/c.webp"]
    assert "trip/deep/c.webp" in answers[2]


def test_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "noise.png").touch()
    assert find_images(["~"]) == ([tmp_path / "noise.png"], [])


def test_every_suffix_is_a_suffix_of_a_format_of_the_list():
    Image.init()
    assert register_heif()
    known = Image.registered_extensions() | {".hif": "HEIF"}  # Canon's and Sony's suffix
    assert {known[suffix] for suffix in SUFFIXES} <= {*FORMATS, "MPO", "HEIF"}


# --- what a Python call is given ----------------------------------------------------------------------------


def test_one_image_in_is_one_image_out(album):
    path = album / "10.jpg"
    for source in (
        path,
        str(path),
        path.read_bytes(),
        Image.new("RGB", (3, 3)),
        np.zeros((3, 3)),
        torch.zeros(3, 9, 9),
    ):
        found, one = open_images(source)
        assert one
        assert len(found) == 1
        assert found[0] is source
    with path.open("rb") as file:
        assert open_images(file) == ([file], True)


def test_lists_folders_and_patterns_are_several(album):
    image = Image.new("RGB", (3, 3))
    assert open_images([image]) == ([image], False)
    assert open_images(iter([image, "a.jpg"])) == ([image, "a.jpg"], False)
    assert open_images([]) == ([], False)
    inside, _ = find_names([album])
    assert open_images(album) == (inside, False)
    assert open_images([image, str(album), image]) == ([image, *inside, image], False)
    assert open_images(album / "10.*") == ([str(album / "10.jpg")], False)
    assert open_images([album / "10.jpg"] * 2) == ([album / "10.jpg"] * 2, False)  # a list keeps its length


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("none.zip", "no such file or folder"),
        ("none/*.jpg", "no image matches this pattern"),
        (["none/*.jpg"], "no image matches this pattern"),
    ],
)
def test_what_leads_to_no_image_is_refused_in_one_line(source, reason):
    with pytest.raises(ImageError, match=reason):
        open_images(source)


def test_urls_and_standard_input_are_names_of_images(album):
    one, other = "https://example.org/cat.jpg?size=1", "https://example.org//cat.jpg?size=1"
    assert find_names([one, "-", other, one, "10.jpg"]) == ([one, "-", other, "10.jpg"], [])
    assert open_images(one) == ([one], True)
    assert open_images([one, b"..."]) == ([one, b"..."], False)


def test_a_path_that_is_missing_is_left_to_the_reader():
    assert open_images("missing.jpg") == (["missing.jpg"], True)
    for source in (3, None, io.StringIO("text")):
        with pytest.raises(TypeError, match=f"expected a path, .* got {type(source).__name__}"):
            open_images(source)
