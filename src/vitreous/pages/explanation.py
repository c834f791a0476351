"""`Explanation`: the views of a model in front of an image, each computed once; drawn, and packed for the report.

`figure` draws a view with matplotlib; `html` gives the interactive page, one file that opens from disk; the explorer
sends the same `payload`. The page's script draws the same results, so that no view is computed twice.
"""

import html as html_text
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image as pillow

from vitreous.figures.kinds import Lines, Map, Result
from vitreous.models.hooks import check_no_copy
from vitreous.models.vit import ViT
from vitreous.pages.live import LIVE_VIEWS, PRECISIONS, LivePrecision, add_seen, check_live, round_weights
from vitreous.pages.payload import Payload, encode_image, pack_result
from vitreous.pages.report import DIRECTIONS, NAMED, predictions, report, report_header, save_report
from vitreous.predict.classify import ANSWERS, Answer, top_classes
from vitreous.runtime.files import check_page_file, short_name, write_atomic
from vitreous.views.inspection import Inspection
from vitreous.views.outputs import WORDS
from vitreous.views.registry import choose_views
from vitreous.views.tokens import SIMILARITY_READ, unit_directions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL = 96
"""Pixels of the longer side of an image in the strip of a page of several."""
OPENING = ("removal", "relevance", "cam", "attention-rows")
"""What the page opens with: the first of these that there is, or else its first view; of a mask, the mask."""
EARLY = ("predictions", "outputs", "attention-rows", "relevance", "removal", "evidence")
"""What is computed first, so that a page that is sent in stages shows it soon."""
LATE = ("integrated-gradients",)
"""What is computed last, since it takes longest."""

Progress = Callable[[str], object]
Format = Literal["png", "svg", "pdf"]


class Explanation:
    """The views of one image, or of a model alone; a view is computed when it is first asked for.

    In a notebook it shows itself as the interactive page.
    """

    def __init__(self, inspection: Inspection, views: str | Sequence[str] = "all") -> None:
        if inspection.model.card.family == "timm":
            raise ValueError(
                "views are drawn of ViTs and ResNets, and this is a timm classifier: use vitreous compare, evaluate or "
                "classify"
            )
        self.inspection = inspection
        self.views = choose_views(views, inspection)
        self.named = {name.strip() for name in (views.split(",") if isinstance(views, str) else views)}
        self.skipped: dict[str, str] = {}
        """Views of `all` that this model or image cannot give, and why."""
        self.comparable = False
        """Whether a page in stages ends with the patches' directions, by which it is compared with another image's."""
        self.live = False
        """Whether its page can be part of a live one."""
        self._results: dict[str, dict[str, Result]] = {}

    def __repr__(self) -> str:
        name = self.inspection.name or "the model"
        answer = f": {self.summary}" if self.summary else ""
        count = f"{len(self.views)} view{'s' * (len(self.views) != 1)}"
        return f"Explanation of {short_name(name)}{answer} ({count}: {', '.join(self.views)})"

    @property
    def answer(self) -> Answer | None:
        """The answer that an `Explanation`'s page states: most probable classes, labels, numbers or mask.

        None without an image or a classifier.
        """
        inspection, found = self.inspection, predictions(self.inspection)
        if not found or inspection.image is None:
            return None
        if inspection.output is None:
            return Answer(inspection.name, found, inspection.image)
        card, size = inspection.asked.card, inspection.image.size
        said = ANSWERS[card.task](inspection.answers, card, NAMED, card.preprocess, size)
        return replace(said, image=inspection.name, source=inspection.image)

    @property
    def summary(self) -> str:
        """An explanation page's answer in a line, `dome 66.9%, church 19.9%`; what is explained, if not the first.

        Of other tasks the labels that are present, the numbers, or the classes of most pixels, and what is explained.
        """
        inspection, found = self.inspection, predictions(self.inspection)[:3]
        if inspection.output is not None:
            answer, asked = self.answer, inspection.asked.card.label(inspection.output)
            several = inspection.asked.config.classes > 1
            return "" if answer is None else answer.brief() + f"; explained: {asked}" * several
        line = ", ".join(map(str, found))
        if not found or inspection.target == found[0].index:
            return line
        ranked = top_classes(inspection.logits, inspection.model.card.label, len(inspection.logits))
        return f"{line}; explained: {next(each for each in ranked if each.index == inspection.target)}"

    @property
    def verdict(self) -> str:
        """Which map on an explanation's page to trust, in a sentence; computing it takes hundreds of forward passes."""
        found = self.results("trust")[""]
        assert isinstance(found, Lines)
        return found.verdict

    def results(self, name: str) -> dict[str, Result]:
        """Compute a view for the page of an `Explanation`, once: its results by name; one alone has the name ''."""
        if name not in self._results:
            self._results[name] = choose_views([name], self.inspection)[name].results(self.inspection)
        return self._results[name]

    def compute(self, progress: Progress = lambda view: None) -> dict[str, dict[str, Result]]:
        """Compute all views of the explanation's page; one of `all` that cannot be is only noted in `skipped`."""
        found = {}
        for name, view in self.views.items():
            progress(view.title)
            if (results := self._computed(name)) is not None:
                found[name] = results
        return found

    def _computed(self, name: str) -> dict[str, Result] | None:
        """Compute a view for the page of an `Explanation`, or note why it was left out."""
        try:
            return self.results(name)
        except ValueError as error:
            if name in self.named:
                raise
            self.skipped[name] = str(error)
            return None

    def map(self, name: str = "removal") -> np.ndarray:
        """Return the heat map of a view, such as `removal`, on the explanation's page: an array `[rows columns]`."""
        for result in self.results(name).values():
            if isinstance(result, Map) and not result.colours:
                return result.shown()
        raise ValueError(f"the view {name!r} is no heat map: try removal, relevance, rollout or attention-rows")

    def figures(self, name: str) -> dict[str, "Figure"]:
        """Draw all results of an `Explanation`'s view outside its page, by name; one alone has the name ''."""
        return {part: self.figure(name, part) for part in self.results(name)}

    def figure(self, name: str, part: str | None = None) -> "Figure":
        """Draw one result of an `Explanation`'s view outside its page: the first, or the one called `part`."""
        from vitreous.figures.draw_by_kind import draw  # imported late: the page needs no matplotlib

        results = self.results(name)
        part = next(iter(results)) if part is None else part
        if part not in results:
            raise ValueError(f"the view {name!r} has no figure {part!r}: it has {', '.join(map(repr, results))}")
        backdrop = None if self.inspection.image is None else self.inspection.backdrop_of_patches
        names = (short_name(self.inspection.model.card.name), short_name(self.inspection.name))
        return draw(results[part], backdrop, footer=" · ".join(filter(None, names)))

    def payload(self, progress: Progress = lambda view: None) -> Payload:
        """Compute all views chosen for an `Explanation` and pack them for the page."""
        payload = Payload()
        for _ in self.fill(payload, progress):
            pass
        return payload

    def stages(self, progress: Progress = lambda view: None) -> Iterator[bytes]:
        """Pack an `Explanation`'s page in stages: image and answers first, then each view as soon as it is computed."""
        payload = Payload()
        return (payload.drain(header) for header in self.fill(payload, progress))

    def fill(self, payload: Payload, progress: Progress) -> Iterator[dict[str, Any]]:
        """Fill the payload of an explanation's page, and yield what each stage adds to its header."""
        header = report_header(self.inspection)
        if self.inspection.image is not None:
            payload.add_bytes("image", encode_image(self.inspection.backdrop))
            small = pillow.fromarray(self.inspection.backdrop)
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            payload.thumbnail = encode_image(np.asarray(small))
        if header["predictions"] and self.inspection.output is None:
            payload.add("probabilities", self.inspection.logits.softmax(dim=-1))
        entries: dict[str, dict[str, Any]] = {
            name: {field: getattr(view, field) for field in ("title", "read", "beware")}
            | {"name": name, "group": view.group, "more": view.more, "results": []}
            for name, view in self.views.items()
        }
        mask = ("outputs",) if header["model"]["task"] == "segment" else ()
        opening = mask + OPENING
        header["start"]["view"] = next((name for name in opening if name in entries), next(iter(entries)))
        if "outputs" in entries:
            entries["outputs"] |= WORDS[header["model"]["task"]]
        if self.comparable and "similarity" in entries:
            entries["similarity"]["read"] += SIMILARITY_READ
        payload.header |= header
        yield header | {"views": list(entries.values())}
        middle = [name for name in entries if name not in (*EARLY, *LATE)]
        for name in filter(entries.__contains__, (*EARLY, *middle, *LATE)):
            progress(self.views[name].title)
            if (found := self._computed(name)) is not None:
                entries[name]["results"] = [pack_result(payload, name, part, result) for part, result in found.items()]
            yield {"views": [entries[name]]}
        if self.comparable and isinstance(self.inspection.model, ViT):
            payload.add(DIRECTIONS, unit_directions(self.inspection.outputs, self.inspection.model), scaled=1)
            yield {"views": []}
        payload.header["views"] = [entry for name, entry in entries.items() if name not in self.skipped]
        header["start"]["view"] = next(
            (name for name in opening if name in entries and name not in self.skipped),
            next((name for name in entries if name not in self.skipped), None),
        )

    def page(self, progress: Progress = lambda view: None) -> tuple[str, Payload]:
        """Pack an `Explanation` as one image of a report's pages: the image's short name, and the payload."""
        payload = self.payload(progress)
        if self.inspection.image is not None and isinstance(self.inspection.model, ViT):
            payload.tokens = self.inspection.outputs.cpu()
        if self.live:
            add_seen(payload, self.inspection)
        return short_name(self.inspection.name) or "the model", payload

    def html(self) -> str:
        """Render the interactive page of an explanation, whole."""
        return report([self.page()], self.inspection.model)

    def save(self, path: str | Path, live: bool | LivePrecision = False) -> Path:
        """Write an `Explanation` as an interactive page: one file that opens from disk and asks nothing of any network.

        A `live` page holds the network too, in fp16 or int8 (True is fp16), and answers for other images without
        Python; what it shows of this image is then computed with the weights that it holds.
        """
        path = check_page_file(Path(path), "save_figures")
        if not live:
            return save_report(path, [self.page()], self.inspection.model)
        precision: LivePrecision = "fp16" if live is True else live
        if precision not in PRECISIONS:
            raise ValueError(f"live must be True, False, fp16 or int8, got {live!r:.60}")
        check_no_copy(self.inspection.model, "save the page without live, or outside")
        model = round_weights(check_live(self.inspection.model), precision)
        if self.inspection.image is None:
            raise ValueError("a live page opens with an image: explain one")
        inspection = Inspection(model, self.inspection.image, self.inspection.choice, self.inspection.name)
        explanation = Explanation(inspection, [*self.views, *LIVE_VIEWS])
        explanation.live = True
        return save_report(path, [explanation.page()], model, live=precision)

    def save_figures(self, folder: str | Path, format: Format = "png", *, apart: bool = False) -> list[Path]:
        """Draw the views of an `Explanation` into a folder instead of a page, one file or more for each view.

        With `apart`, they go into a new folder inside it, named after the image.
        """
        from vitreous.figures.style import encode

        folder = Path(folder)
        if apart:
            stem, number = Path(self.inspection.name).stem, 1
            folder = folder / stem
            while folder.exists():  # two images of one name
                number += 1
                folder = folder.with_name(f"{stem}-{number}")
        written = []
        for name in self.compute():
            for part, figure in self.figures(name).items():
                path = folder / f"{name}-{part}.{format}" if part else folder / f"{name}.{format}"
                written.append(write_atomic(path, partial(Path.write_bytes, data=encode(figure, format))))
        return written

    def _repr_html_(self) -> str:
        """Show the page of an `Explanation` in a notebook, whole and interactive, in a frame of its own."""
        text = html_text.escape(self.html(), quote=True)
        style = "width: 100%; height: 760px; border: 1px solid #ccc; border-radius: 6px"
        return f'<iframe srcdoc="{text}" style="{style}" sandbox="allow-scripts allow-downloads"></iframe>'
