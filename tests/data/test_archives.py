"""Images inside zip and tar archives: read in memory, bounded, and never unpacked to disk."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data import archives
from vitreous.data.archives import is_archive, list_members
from vitreous.data.finding import find_names, open_images
from vitreous.data.images import ImageError, read_image


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


FILES = {"dogs/10.png": png(10), "dogs/9.png": png(9), "./cat.png": png(1), "notes.txt": b"words"}
FILES |= {"__MACOSX/._cat.png": b"", ".hidden.png": png(3)}


def archive(folder: Path, name: str, files: dict[str, bytes] = FILES) -> Path:
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as file:
            for member, data in files.items():
                file.writestr(member, data)
        return path
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as file:
        for member, data in files.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        file.addfile(link)
    return path


NAMES = ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz"]


@pytest.mark.parametrize("name", NAMES)
def test_the_images_of_an_archive_are_found_in_natural_order_and_read(tmp_path, name):
    path = archive(tmp_path, name)
    before = sorted(os.listdir(tmp_path))
    names, problems = find_names([path])
    assert problems == []
    assert names == [f"{path}/{inner}" for inner in ("cat.png", "dogs/9.png", "dogs/10.png")]
    assert [read_image(each).getpixel((0, 0))[0] for each in names] == [1, 9, 10]
    assert open_images(path) == (names, False)
    assert sorted(os.listdir(tmp_path)) == before  # nothing was unpacked


def test_files_folders_and_patterns_inside_an_archive_can_be_named(tmp_path):
    path = archive(tmp_path, "a.zip")
    assert find_names([f"{path}/dogs"])[0] == [f"{path}/dogs/9.png", f"{path}/dogs/10.png"]
    assert find_names([f"{path}/dogs/1*.png"])[0] == [f"{path}/dogs/10.png"]
    assert find_names([f"{path}/cat.png"])[0] == [f"{path}/cat.png"]
    (problem,) = find_names([f"{path}/cows"])[1]
    assert problem.reason == "no such file, folder or pattern in the archive: check the path"
    with pytest.raises(ImageError, match=r"cow\.png: no such file in the archive"):
        read_image(f"{path}/cow.png")


def test_an_archive_that_was_replaced_is_opened_again(tmp_path):
    path = archive(tmp_path, "a.zip", {"cat.png": png(1)})
    assert read_image(f"{path}/cat.png").getpixel((0, 0)) == (1, 1, 1)
    archive(tmp_path, "a.zip", {"cat.png": png(200), "dog.png": png(3)})
    assert read_image(f"{path}/cat.png").getpixel((0, 0)) == (200, 200, 200)


def test_names_that_climb_or_start_at_the_root_stay_names(tmp_path):
    path = archive(tmp_path, "a.zip", {"../up.png": png(1), "/etc/root.png": png(2)})
    names, _ = find_names([path])
    assert sorted(read_image(name).getpixel((0, 0))[0] for name in names) == [1, 2]
    assert not (tmp_path.parent / "up.png").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_without_images_says_so(tmp_path, name):
    (problem,) = find_names([archive(tmp_path, name, {"notes.txt": b"words"})])[1]
    assert problem.reason.startswith("no images in this archive: none of .jpg")


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_limited(tmp_path, name, monkeypatch):
    monkeypatch.setattr(archives, "LIMIT_ENTRIES", 3)
    (problem,) = find_names([archive(tmp_path, name)])[1]
    assert problem.reason == "has more than 3 entries: unpack it to a folder first"


def test_the_list_of_a_zip_is_limited_before_it_is_read(tmp_path, monkeypatch):
    path = archive(tmp_path, "a.zip", {f"{i}.png": b"" for i in range(50)})
    monkeypatch.setattr(archives, "LIMIT_DIRECTORY", 1000)
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda self: pytest.fail("it was read"))
    (problem,) = find_names([path])[1]
    assert "entries: unpack it to a folder first" in problem.reason


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_the_bytes_of_a_member_are_limited(tmp_path, name, monkeypatch):
    path = archive(tmp_path, name, {"bomb.png": bytes(5000)})
    monkeypatch.setattr(archives, "LIMIT_BYTES", 4999)
    with pytest.raises(ImageError, match=r"bomb\.png: unpacks to more than 0 MiB"):
        read_image(f"{path}/bomb.png")


def test_a_zip_that_understates_a_member_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb.png", bytes(5000))
    data = bytearray((tmp_path / "a.zip").read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (9).to_bytes(4, "little")  # the unpacked size in the list
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ImageError, match="damaged in the archive"):
        read_image(tmp_path / "a.zip" / "bomb.png")


def test_the_unpacked_bytes_of_a_compressed_tar_are_limited(tmp_path, monkeypatch):
    path = archive(tmp_path, "a.tar.gz", {"bomb.png": bytes(1 << 20)})
    assert path.stat().st_size < 5000
    monkeypatch.setattr(archives, "LIMIT_UNPACKED", 1 << 19)
    (problem,) = find_names([path])[1]
    assert problem.reason.startswith("unpacks to more than")


@pytest.mark.parametrize("name", NAMES)
def test_damaged_archives_are_one_line(tmp_path, name):
    path = archive(tmp_path, name)
    whole = path.read_bytes()
    for cut in (0, 3, len(whole) // 3, len(whole) - 30):
        path.write_bytes(whole[:cut])
        found, problems = find_names([path])
        for each in found:  # a truncated tar may still have its first members
            read_image(each)
        for problem in problems:
            assert "\n" not in str(problem)
    path.write_bytes(b"not an archive at all" * 100)
    assert "cannot be read as an archive" in find_names([path])[1][0].reason


def test_an_encrypted_member_says_what_to_do(tmp_path):
    path = archive(tmp_path, "a.zip", {"cat.png": png(1)})
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(ImageError, match="encrypted: unpack the archive first"):
        read_image(path / "cat.png")


def test_a_zip_of_another_name_is_called_what_it_is(tmp_path):
    path = archive(tmp_path, "a.zip").rename(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match=r"a zip archive: name the file with the suffix \.zip"):
        read_image(path)


def test_suffixes_of_archives():
    assert all(is_archive(name) for name in [*NAMES, "A.ZIP", "my.photos.tar.gz"])
    assert not any(is_archive(name) for name in ("a.gz", "zip", "photos", "a.tar.png", "tar.gz/cat.png"))


def test_a_forked_process_opens_the_archive_itself(tmp_path):
    path = archive(tmp_path, "a.zip")
    assert len(list_members(path)) == 4
    if (child := os.fork()) == 0:
        os._exit(0 if read_image(f"{path}/cat.png").getpixel((0, 0)) == (1, 1, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
