"""`Payload`: what a page reads, a JSON header and a block of bytes; pack results of views and encode images into it.

Large arrays are stored as a byte a value with a scale a row, which is enough for colours. The report inlines a payload,
the explorer sends it; `pages/assets/payload.js` reads both alike.
"""

import base64
import io
import json
import zlib
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from PIL import Image as pillow
from torch import Tensor

from vitreous.figures.kinds import (
    Bars,
    Crop,
    Diagram,
    Dots,
    Lines,
    Map,
    Mask,
    Matrix,
    Removal,
    Result,
    Steps,
    Story,
    Table,
    Tiles,
)

EXACT = 4096
"""Numbers up to which an array goes to the page as it is; larger ones as bytes with a scale."""


@dataclass
class Payload:
    """The data of a page: a header, and the bytes that its arrays lie in."""

    header: dict[str, Any] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    length: int = 0
    thumbnail: bytes = b""
    """A small copy of the image for a page of several, as WebP."""
    tokens: Tensor | None = None
    """The tokens that leave each block `[blocks t d]`, by which a page of several images compares their patches."""
    known: dict[int, tuple[str, np.ndarray]] = field(default_factory=dict)
    """Arrays that `add_once` has appended."""
    files: dict[bytes, dict[str, int]] = field(default_factory=dict)
    """Where the files lie that `add_bytes` has appended."""

    def __post_init__(self) -> None:
        self.header |= {"arrays": {}, "files": {}}

    def add(self, name: str, values: Tensor | np.ndarray, *, scaled: int | None = None) -> None:
        """Append an array to a payload; with `scaled`, as bytes, each slice over the last `scaled` axes by its largest.

        >>> payload = Payload()
        >>> payload.add("row", np.array([[0.0, 0.5, 1.0]]), scaled=1)
        >>> payload.header["arrays"]["row"]
        {'type': 'uint8', 'shape': [1, 3], 'offset': 4}
        """
        array = values.detach().cpu().float().numpy() if isinstance(values, Tensor) else values
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        if scaled is not None:
            axes = tuple(range(array.ndim - scaled, array.ndim))
            peak = np.abs(array).max(axis=axes, keepdims=True).astype(np.float32)
            signed = bool((array < 0).any())
            steps = 127 if signed else 255
            scale = np.where(peak > 0, peak / steps, 1).astype(np.float32)
            array = np.rint(array / scale).astype(np.int8 if signed else np.uint8)
            self.add(f"{name}.scale", scale.reshape(scale.shape[: array.ndim - scaled]))
        self._raw(b"\0" * (-self.length % 4))  # a Float32Array begins at a multiple of 4
        self.header["arrays"][name] = {"type": array.dtype.name, "shape": list(array.shape), "offset": self.length}
        self._raw(array.tobytes())

    def add_once(self, name: str, values: np.ndarray, *, exact: int | None = None) -> str:
        """Append an array to a payload unless it is there already, and return the name under which it is.

        Beyond `exact` numbers it is stored as bytes with a scale for each row.
        """
        known = self.known.setdefault(id(values), (name, values))  # keeps the array, so that its id stays its own
        if known[0] == name:
            scaled = 1 if exact is not None and values.size > exact and values.dtype != np.uint8 else None
            self.add(name, values, scaled=scaled)
        return known[0]

    def add_symmetric(self, name: str, values: np.ndarray, steps: int = 50) -> str:
        """Append to a payload symmetric matrices `[… n n]`, within −1 to 1, diagonal 1: the upper half, rounded.

        >>> payload = Payload()
        >>> payload.add_symmetric("cosine", np.array([[1.0, 0.5], [0.5, 1.0]]))
        'cosine'
        >>> payload.header["arrays"]["cosine"]
        {'type': 'int8', 'shape': [2, 2], 'offset': 0, 'symmetric': 50}
        """
        known = self.known.setdefault(id(values), (name, values))  # keeps the array, so that its id stays its own
        if known[0] != name:
            return known[0]
        size = values.shape[-1]
        upper = np.rint(values[..., *np.triu_indices(size, 1)] * steps).astype(np.int8)
        self.add(name, upper)
        self.header["arrays"][name] |= {"shape": list(values.shape), "symmetric": steps}
        return name

    def add_bytes(self, name: str, data: bytes) -> None:
        """Append a file to a page's payload as it is, unless it is there already."""
        if data not in self.files:
            self.files[data] = {"offset": self.length, "length": len(data)}
            self._raw(data)
        self.header["files"][name] = self.files[data]

    def _raw(self, data: bytes) -> None:
        """Append bytes to a payload's block."""
        self.parts.append(data)
        self.length += len(data)

    def to_bytes(self) -> bytes:
        """Write the payload as bytes: length of the header as four bytes, the header, then the block (aligned to 8)."""
        head = json.dumps(self.header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        head += b" " * (-(len(head) + 4) % 8)
        return len(head).to_bytes(4, "little") + head + b"".join(self.parts)

    def drain(self, header: dict[str, Any]) -> bytes:
        """Return what was appended to a payload since the last call as a new one, with `header`; its bytes are let go.

        >>> payload = Payload()
        >>> payload.add("first", np.zeros(2))
        >>> _ = payload.drain({})
        >>> payload.add("second", np.ones(1))
        >>> len(payload.drain({})), payload.parts
        (96, [])
        """
        self._raw(b"\0" * (-self.length % 8))
        begin = self.length - sum(map(len, self.parts))
        part = Payload(header | {"from": begin})
        for kind in ("arrays", "files"):
            part.header[kind] = {n: entry for n, entry in self.header[kind].items() if entry["offset"] >= begin}
        part.parts, self.parts = self.parts, []
        return part.to_bytes()

    def to_text(self) -> str:
        """Write the payload compressed, and in letters that an HTML file can hold: gzip, then base 85 without `<`."""
        # filtered: fewer short matches, which noisy bytes such as attention only pay for (4 % less than the default)
        packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_FILTERED)
        packed = packer.compress(self.to_bytes()) + packer.flush()
        return base64.b85encode(packed).decode().replace("<", ",")


def encode_image(pixels: np.ndarray) -> bytes:
    """Encode an image for the payload: a small one without loss, a large one as WebP."""
    file = io.BytesIO()
    options: dict[str, Any] = {"format": "WEBP", "quality": 88} if max(pixels.shape) > 64 else {"format": "PNG"}
    pillow.fromarray(pixels).save(file, **options)
    return file.getvalue()


FIELDS: dict[type, str] = {
    Map: "at axes grid prefix label signed limits from_zero panels chosen colours outliers outliers_from"
    " says points ends",
    Matrix: "at axes rows columns label signed scale prefix names",
    Dots: "label unit ceiling",
    Bars: "names label limits positions indices",
    Steps: "axes steps answers names",
    Removal: "counts best names answers labels chosen passed colour hide show good bad",
    Lines: "baselines verdict",
    Tiles: "grid shares",
    Crop: "box captions",
    Mask: "legend indices",
    Diagram: "",
    Story: "prefix block",
    Table: "rows",
}
"""What the page reads of each kind of result as it is."""


def pack_result(payload: Payload, view: str, part: str, result: Result) -> dict[str, Any]:
    """Pack a view's result into the payload: words in the header, arrays in the block of bytes."""
    name = f"{view}/{part}" if part else view
    entry: dict[str, Any] = {"part": part, "kind": result.kind, "title": result.title}
    entry |= {field: getattr(result, field) for field in FIELDS[type(result)].split()}
    match result:
        case Map():
            values = (result.values * 255).round().astype(np.uint8) if result.colours else result.values
            add = payload.add_symmetric if result.symmetric else partial(payload.add_once, exact=EXACT)
            entry |= {"array": add(name, values), "over": result.over_image}
            entry["names"] = {axis: names for axis, names in result.names.items() if axis == "class"}
        case Matrix():
            entry["array"] = payload.add_once(name, result.values, exact=EXACT)
        case Dots():
            entry["array"] = payload.add_once(name, result.values)
        case Bars():
            entry["logits"] = None if result.logits is None else [float(value) for value in result.logits]
            entry["values"] = [float(value) for value in result.values]
        case Steps():
            entry["array"] = payload.add_once(name, result.curves)
            entry["probabilities"] = [float(value) for value in result.probabilities]
        case Removal():
            arrays = {part: getattr(result, part) for part in ("order", "hidden", "alone")}
            entry |= {part: payload.add_once(f"{name}/{part}", values) for part, values in arrays.items()}
            entry |= {part: [float(value) for value in getattr(result, part)] for part in ("random", "centre")}
            entry["number"] = None if result.number is None else asdict(result.number)
        case Lines():
            entry["panels"] = [
                {
                    **{field: getattr(panel, field) for field in ("title", "label", "better")},
                    "array": payload.add_once(f"{name}/{number}", np.stack(list(panel.series.values()))),
                    "names": list(panel.series),
                    "areas": [panel.areas[each] for each in panel.series],
                }
                for number, panel in enumerate(result.panels)
            ]
        case Crop():
            for part in ("image", "seen"):
                payload.add_bytes(f"{name}/{part}", encode_image(getattr(result, part)))
                entry[part] = f"{name}/{part}"
        case Mask():
            file = io.BytesIO()
            pillow.fromarray(result.colours).save(file, "PNG")  # without loss: a pixel has the colour of its class
            payload.add_bytes(name, file.getvalue())
            entry["file"] = name
        case Diagram():
            entry |= {
                "whole": [asdict(part) for part in result.whole],
                "block": [asdict(part) for part in result.block],
            }
        case Story():
            entry["steps"] = [asdict(step) for step in result.steps]
            arrays = {part: getattr(result, part) for part in ("embedding", "positions", "q", "k", "added")}
            entry |= {
                part: None if values is None else payload.add_once(f"{name}/{part}", values, exact=EXACT)
                for part, values in arrays.items()
            }
        case Tiles(grid=None):
            entry["array"] = payload.add_once(name, (result.images.clip(0, 1) * 255).round().astype(np.uint8))
        case Tiles():
            payload.add_bytes(name, encode_image(result.images[0]))
            entry["file"] = name
    return entry
