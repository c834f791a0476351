"""A chart of named lines: numbers in, HTML out that `pages/assets/curves.js` draws."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

NUMBERS = ("x", "y", "low", "high")


@dataclass(frozen=True)
class Line:
    """One line: as many x as y, and perhaps a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """The lower edge of a band, such as the worst of several seeds."""
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
) -> Markup:
    """Draw lines as an element of a page; the x axis begins at `x_from`, or at the first number.

    >>> str(line_chart([Line("ViT", [1, 2], [0.5, float("nan")])], title="Loss", x_label="epoch", y_label="loss"))[-65:]
    '[{"label": "ViT", "x": [1, 2], "y": [0.5, null]}]}</script></div>'
    """
    chart = {"title": title, "xLabel": x_label, "yLabel": y_label, "unit": unit, "xFrom": x_from}
    series = [
        {"label": line.label}
        | {name: _numbers(values) for name in NUMBERS if (values := getattr(line, name)) is not None}
        for line in lines
    ]
    text = json.dumps(chart | {"series": series}, ensure_ascii=False, allow_nan=False)
    text = text.replace("<", "\\u003c")  # a label cannot end the script
    return Markup(f'<div class="curves"><script type="application/json">{text}</script></div>')  # noqa: S704


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Infinite and undefined values become gaps in the line."""
    return [value if math.isfinite(value) else None for value in values]
