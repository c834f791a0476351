"""A page sent in parts: image and answers at once, then each view as soon as it is computed."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from vitreous.data.images import read_image
from vitreous.models.vit import ViT
from vitreous.pages.explanation import Explanation
from vitreous.pages.payload import Payload
from vitreous.server.jobs import CancelToken, JobCancelled, JobQueue, ServerBusy
from vitreous.views.inspection import Inspection


class Parts:
    """The parts of one image's page, in two jobs: a quick one for the first part, another for the rest."""

    def __init__(self, model: ViT, body: bytes, name: str) -> None:
        self.model, self.body, self.name = model, body, name
        self.stages: Iterator[bytes] = iter(())
        self.cancel = CancelToken()

    def whole(self, cancel: CancelToken) -> bytes:
        """Compute everything: one payload."""
        return self._explanation().payload(cancel.check).to_bytes()

    def first(self, cancel: CancelToken) -> bytes:
        """Compute the answers: the first part."""
        self.cancel = cancel
        self.stages = self._explanation().stages(lambda step: self.cancel.check(step))
        return next(self.stages)

    async def stream(self, first: bytes, jobs: JobQueue, client: str) -> AsyncIterator[bytes]:
        """Send every part with its length before it; an error after the first part is a part that says so."""
        yield framed(first)
        ready: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def rest(cancel: CancelToken) -> None:
            self.cancel = cancel
            for part in self.stages:
                loop.call_soon_threadsafe(ready.put_nowait, part)

        task = asyncio.ensure_future(jobs.run(client, rest))
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

    def _explanation(self) -> Explanation:
        return Explanation(Inspection(self.model, read_image(self.body), name=self.name))


def framed(part: bytes) -> bytes:
    """A part after its length.

    >>> framed(b"part")
    b'\\x04\\x00\\x00\\x00part'
    """
    return len(part).to_bytes(4, "little") + part
