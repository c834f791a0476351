"""Send the explorer's page in parts, each view as soon as it is computed; `Question`: what the page is asked with.

A question may change what is looked at: heads switched off, patches removed or blurred, and the classes to explain.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from PIL import ImageFilter
from PIL.Image import Image
from PIL.Image import fromarray as from_array

from vitreous.data.image_dataset import NOUNS
from vitreous.data.images import read_image
from vitreous.inside.intervene import intervene
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.pages.payload import Payload
from vitreous.predict.words import TwoTowers
from vitreous.server.jobs import CancelToken, Disconnected, JobCancelled, JobQueue, ServerBusy
from vitreous.views.inspection import Choice, Inspection

Output = TypeVar("Output")
FIRST_TURN = 4
"""Steps before a page gives way to others: image and answers, predictions, attention and relevance."""


@dataclass(frozen=True)
class Question:
    """What is asked of a model: the classes to explain, and what is taken from it or from the image."""

    model: ViT
    classes: Sequence[int] = ()
    """Classes to explain, the target first; one alone is joined by the likeliest others, none is the prediction.

    Of a model of another task: the label, the number or the class of pixels to explain.
    """
    heads_off: Sequence[tuple[int, int]] = ()
    patches_off: Sequence[int] = ()
    """Patches counted row by row."""
    blur: bool = False
    """Blur these patches in the image, instead of removing their tokens."""
    sentence: str = ""
    """A sentence that stands in the place of a class, for a model with a text tower."""
    towers: TwoTowers | None = None
    """The model with its text tower, if it has one."""
    compare: bool = False
    """Send the patches' directions too, by which they are compared with those of another image."""
    pixel: tuple[int, int] | None = None
    """Row and column of the pixel to explain, of a model that gives masks."""

    @cached_property
    def asked(self) -> ViT:
        """The model that a page's parts are asked of: with the sentence, if there is one, as its first class."""
        if not self.sentence:
            return self.model
        if self.towers is None:
            raise ValueError(f"{self.model.card.name} has no text tower: ask it for one of its classes")
        return self.towers.asked(self.sentence)

    def changes(self) -> AbstractContextManager[None]:
        """Make the intervention under which a page's parts are computed."""
        return intervene(self.asked, heads_off=self.heads_off, patches_off=() if self.blur else self.patches_off)

    def explanation(self, body: bytes, name: str) -> Explanation:
        """Make the explanation whose page the explorer sends in parts.

        What is asked of a label, a number or a mask is found in the image and the model as they are: the same pixels
        are then asked about without some heads or patches.
        """
        model, classes = self.asked, self.classes or ((0,) if self.sentence else ())
        count = model.config.classes
        if strange := [index for index in classes if not 0 <= index < count]:
            raise ValueError(f"there is no class {strange[0]}: this model has 0 to {count - 1}")
        task = model.card.task
        if task != "classify" and len(classes) > 1:
            raise ValueError(f"a model that gives {NOUNS[task]} is asked about one at a time: got {len(classes)}")
        choice = Choice(target=classes[0] if classes else None, pixel=self.pixel)
        inspection = Inspection(model, read_image(body), choice, name=name)
        if len(classes) > 1:
            inspection.classes = list(dict.fromkeys(classes))
        if self.blur and self.patches_off:
            backdrop = from_array(inspection.backdrop)
            inspection.view = blurred(inspection.view, model.config, self.patches_off)
            inspection.backdrop = np.asarray(blurred(backdrop, model.config, self.patches_off))
            for computed in ("seen", "pixels", "x"):  # of the image as it is
                vars(inspection).pop(computed, None)
        explanation = Explanation(inspection)
        explanation.comparable = self.compare
        return explanation


def blurred(image: Image, config: ViTConfig, patches: Sequence[int]) -> Image:
    """Blur some patches of the image that a page's parts are asked for, as widely as a patch is wide.

    The image is what the model sees, or that in more pixels.
    """
    (height, width), (high, wide) = config.size, config.patch
    down, across = image.height / height, image.width / width
    soft = image.filter(ImageFilter.GaussianBlur((across * wide, down * high)))
    found = image.copy()
    for patch in patches:
        edges = zip(config.layout.box(patch), (across, down) * 2, strict=True)
        left, top, right, bottom = (round(edge * scale) for edge, scale in edges)
        found.paste(soft.crop((left, top, right, bottom)), (left, top))
    return found


class Parts:
    """The parts of one image's page: a quick job for the first part, and turns of another one for the rest."""

    def __init__(self, question: Question, body: bytes, name: str) -> None:
        self.question, self.body, self.name = question, body, name
        self.stages: Iterator[bytes] = iter(())
        self.cancel = CancelToken()
        self.done = 0
        """Steps that are computed."""

    def first(self, cancel: CancelToken) -> bytes:
        """Compute the first part of the explorer's page: the answers."""
        self.cancel = cancel
        self.stages = self.question.explanation(self.body, self.name).stages(lambda step: self.cancel.check(step))
        with self.question.changes():
            part = next(self.stages)
        self.done = 1
        return part

    async def whole(self, jobs: JobQueue, client: str, disconnected: Disconnected) -> bytes:
        """Compute all parts of the explorer's page as one payload."""
        payload = Payload()
        steps: Iterator[object] | None = None

        def turn(cancel: CancelToken) -> bool:
            nonlocal steps
            steps = steps or self.question.explanation(self.body, self.name).fill(payload, cancel.check)
            return self.advance(steps, lambda step: None, cancel)

        await jobs.run_in_turns(client, turn, disconnected)
        return payload.to_bytes()

    def advance(self, steps: Iterator[Output], take: Callable[[Output], object], cancel: CancelToken) -> bool:
        """Compute one part of the explorer's page after the other and pass each on; return whether that was all."""
        with self.question.changes():
            for step in steps:
                take(step)
                self.done += 1
                if self.done >= FIRST_TURN and cancel.gives_way():
                    return False
        return True

    async def stream(self, first: bytes, jobs: JobQueue, client: str) -> AsyncIterator[bytes]:
        """Send every part with its length before it; an error after the first part is a part that says so."""
        yield framed(first)
        if client and jobs.newest.get(client) is not self:  # its next job would cancel the newer request's first
            yield framed(Payload({"error": "a newer request took its place"}).to_bytes())
            return
        ready: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def turn(cancel: CancelToken) -> bool:
            self.cancel = cancel
            return self.advance(self.stages, lambda part: loop.call_soon_threadsafe(ready.put_nowait, part), cancel)

        task = asyncio.ensure_future(jobs.run_in_turns(client, turn))
        task.add_done_callback(lambda _: ready.put_nowait(None))
        try:
            while (part := await ready.get()) is not None:
                yield framed(part)
            await task
        except ServerBusy as error:
            yield framed(Payload({"error": f"busy: {error}; try again"}).to_bytes())
        except (JobCancelled, ValueError) as error:
            yield framed(Payload({"error": str(error)}).to_bytes())
        finally:
            task.cancel()  # the client has gone: the job ends at its next layer


def framed(part: bytes) -> bytes:
    """Write a part of the explorer's page after its length.

    >>> framed(b"part")
    b'\\x04\\x00\\x00\\x00part'
    """
    return len(part).to_bytes(4, "little") + part
