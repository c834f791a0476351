"""Tiny folders and parquet files of one-coloured images, for the tests of this folder."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(number: int) -> bytes:
    """An image that can be told from the others by its colour."""
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (number % 256, number // 256, 7)).save(file, "PNG")
    return file.getvalue()


def number_of(image: Image.Image | Path) -> int:
    """Which image that is."""
    if isinstance(image, Path):
        image = Image.open(image)
    red, green, blue = image.getpixel((0, 0))
    assert blue == 7
    return red + 256 * green


def make_folder(folder: Path, classes: dict[str, int], first: int = 0) -> Path:
    """`folder/<class>/<number>.png`, so many of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in classes.items():
        (folder / name).mkdir(exist_ok=True)
        for _ in range(count):
            (folder / name / f"{first}.png").write_bytes(png(first))
            first += 1
    return folder


def make_parquet(
    path: Path,
    labels: list,
    *,
    first: int = 0,
    names: list[str] | None = None,
    column: str = "image",
    label: str = "label",
    group: int = 3,
    images: list[bytes | None] | None = None,
    flat: bool = False,
) -> Path:
    """A file as the Hub writes it: row groups of `group` rows, and class names in the schema where given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [png(first + i) for i in range(len(labels))] if images is None else images
    values = cells if flat else [{"bytes": cell, "path": f"{first + i}.png"} for i, cell in enumerate(cells)]
    kind = pa.binary() if flat else pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({column: pa.array(values, kind), label: pa.array(labels)})
    if names is not None:
        features = {column: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)
    return path


def colour_folder(root, names, each=6, size=32):
    """A class a colour: easy to tell apart."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(each):
            pixels = draw.integers(0, 60, (size, size, 3))
            pixels[:, :, label % 3] += 180
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


def numbers(data):
    return [number_of(data.image(i)) for i in range(len(data))]


def put_numbers(data, queue):
    queue.put(numbers(data))
