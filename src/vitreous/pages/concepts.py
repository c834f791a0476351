"""`Concepts`: what one block's patches tell apart, and its page: where each concept is strongest, and what it does."""

import base64
import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

from PIL import Image, ImageDraw

from vitreous.inside.concepts import Concept, SparseAutoencoder, switched_off
from vitreous.models.token_layout import TokenLayout
from vitreous.models.vit import ViT
from vitreous.pages.render import render, scripted_page
from vitreous.runtime.files import check_page_file, write_text
from vitreous.runtime.wording import percent

SHOWN = 40  # concepts of a page
PLACES = 6  # images of each
SIDE = 144  # of an image on the page, in pixels


@dataclass(frozen=True)
class Concepts:
    """Concepts of one block's patch tokens, learned and measured on images; `save` writes them as a page."""

    title: str
    """The model's name."""
    block: int
    asked: int
    """How many of the most active concepts were to be measured."""
    found: Sequence[Concept]
    """The measured concepts, those first that do most beyond a random direction."""
    autoencoder: SparseAutoencoder
    images: Sequence[Image.Image]
    """The images as the model sees them."""
    names: Sequence[str]
    class_names: Sequence[str]
    layout: TokenLayout
    learned: int
    """Of how many images the concepts were learned; the others were held out."""
    explained: float
    """The share of the variance of held-out tokens that their rebuilt ones have."""
    unused: float
    """The share of concepts that no patch of a held-out image has."""
    seconds: float

    def __repr__(self) -> str:
        return (
            f"Concepts of block {self.block} of {self.title}: {len(self.autoencoder.directions):,}, "
            f"{len(self.found)} measured on {len(self.images):,} images ({percent(self.explained)} of held-out "
            f"variance explained)"
        )

    @property
    def stronger(self) -> int:
        """Count for the page of concepts those that lower their classes more than as much of random directions does."""
        return sum(each.effect.mean < each.random for each in self.found)

    def switched_off(
        self, model: ViT, concepts: SupportsIndex | Iterable[SupportsIndex]
    ) -> AbstractContextManager[None]:
        """Switch one or several of the page's concepts off: in the `with`, the model's calls go without their part."""
        return switched_off(model, self.block, self.autoencoder, concepts)

    def describe(self, concept: Concept) -> list[tuple[str, float]]:
        """Name on the page of concepts the classes that fall most without one, with the change of their logits."""
        pairs = zip(concept.effect.classes, concept.effect.changes, strict=True)
        return [(self.class_names[index], change) for index, change in pairs]

    def save(self, path: str | Path) -> Path:
        """Write the page of the concepts as one HTML file."""
        path = check_page_file(Path(path))
        title = f"What block {self.block} of {self.title} tells apart"
        changes = [(each.effect.mean, each.random) for each in self.found]
        body = render(
            "concepts.html",
            title=title,
            concepts=self,
            shown=[(each, self._tiles(each), self.describe(each)) for each in self.found[:SHOWN]],
            count=len(self.autoencoder.directions),
            mean=[sum(each) / len(self.found) for each in zip(*changes, strict=True)],
            percent=percent,
        )
        text = scripted_page(title, body, "run.js", styles=["run.css", "comparison.css"])
        return write_text(path, text)

    def _tiles(self, concept: Concept) -> list[tuple[str, str]]:
        """Draw for the page of concepts the images where one is strongest, its patch outlined: names and addresses."""
        return [(self.names[i], self._tile(i, patch)) for i, patch in concept.places[:PLACES]]

    def _tile(self, index: int, patch: int) -> str:
        """Draw for the page of concepts one image with a patch outlined, as an address that holds its own bytes."""
        seen = self.images[index]
        box = [round(e * SIDE / side) for e, side in zip(self.layout.box(patch), seen.size * 2, strict=True)]
        image = seen.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        draw = ImageDraw.Draw(image)
        draw.rectangle(box, outline="white", width=3)
        draw.rectangle(box, outline="#b5004b", width=2)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=82)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
