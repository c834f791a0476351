"""`write_maps_page`: the comparison of heat maps as one HTML file: tables, and images where methods agree or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from vitreous.figures.maps import draw_overlay
from vitreous.pages.render import figure_image, render, scripted_page
from vitreous.runtime.files import write_text


@dataclass(frozen=True)
class MapExample:
    """One image of the page, with the maps of several methods and how alike they are."""

    name: str
    answer: str
    """The class that the maps explain, and its probability."""
    pixels: np.ndarray
    """What the model sees, as far as its patches read it: uint8 `[H W 3]`."""
    maps: Mapping[str, np.ndarray]
    """A map of each method: `[rows columns]`."""
    alike: float
    """Mean rank correlation between the maps."""

    def drawings(self) -> list[tuple[str, Markup]]:
        """Draw on the page of heat maps the image, and the image under each map without what is against the class."""
        drawn = [("image", figure_image(draw_overlay(self.pixels), self.name))]
        for method, values in self.maps.items():
            shown = figure_image(draw_overlay(self.pixels, np.maximum(values, 0)), f"{method} of {self.name}")
            drawn.append((method, shown))
        return drawn


def write_maps_page(
    path: Path,
    tables: Sequence[Any],
    *,
    title: str,
    agree: Sequence[MapExample] = (),
    disagree: Sequence[MapExample] = (),
    command: str = "",
) -> Path:
    """Write the page of a comparison of maps; a table has a heading, lead, head, rows, notes; `command` repeats it."""
    body = render("maps.html", title=title, tables=tables, agree=agree, disagree=disagree, command=command)
    text = scripted_page(title, body, "run.js", styles=["run.css", "comparison.css"])
    return write_text(path, text)
