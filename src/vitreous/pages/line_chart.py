"""A chart of named lines on an interactive page: numbers in, HTML out that `pages/assets/curves.js` draws.

It knows nothing of runs: what is compared, and by what, is for the page to say.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

NUMBERS = ("x", "y", "low", "high")


@dataclass(frozen=True)
class Line:
    """One line: as many x as y, and perhaps a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """The lower edge of a band, for instance the worst of several seeds."""
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{name} of {self.label!r} must hold {len(self.x)} numbers, got {len(values)}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"a band needs low and high, {self.label!r} has one of them")


def line_chart(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, unit: str = "", x_from: float | None = None
) -> str:
    """Lines as an element of a page; `x_from` is where the axis begins, if not at the first number.

    >>> line_chart([Line("ViT", [1, 2], [0.5, float("nan")])], title="Loss", x_label="epoch", y_label="loss")[-65:]
    '[{"label": "ViT", "x": [1, 2], "y": [0.5, null]}]}</script></div>'
    """
    message = {"title": title, "xLabel": x_label, "yLabel": y_label, "unit": unit, "xFrom": x_from}
    series = [
        {"label": line.label}
        | {name: _numbers(values) for name in NUMBERS if (values := getattr(line, name)) is not None}
        for line in lines
    ]
    text = json.dumps(message | {"series": series}, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return f'<div class="curves"><script type="application/json">{text}</script></div>'


def _numbers(values: Sequence[float]) -> list[float | None]:
    """What is no number is a gap in the line."""
    return [value if math.isfinite(value) else None for value in values]
