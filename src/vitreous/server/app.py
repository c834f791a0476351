"""The explorer's web application: the page, an API that parses requests, takes images, returns answers and pages.

An image is the raw body of a request and stays in memory; the models are those given at start-up. The response is the
same page data that a report contains; switching heads off runs the model again and has an address of its own.
"""

import asyncio
import io
from collections.abc import Awaitable, Mapping
from functools import cache
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from vitreous import __version__
from vitreous.data.images import ImageError, read_image
from vitreous.data.sample_photos import FILES as SAMPLES
from vitreous.data.sample_photos import samples
from vitreous.models.vit import ViT
from vitreous.pages.render import ASSETS
from vitreous.pages.report import describe_answers
from vitreous.predict.words import LONGEST, TwoTowers
from vitreous.runtime.http import read_address
from vitreous.server.jobs import CancelToken, JobCancelled, JobQueue, ServerBusy
from vitreous.server.page_parts import Parts, Question
from vitreous.server.security import MAX_BODY_BYTES
from vitreous.views.inspection import EXPLAINED, Inspection

FILES = {path.name: path for path in sorted(ASSETS.iterdir()) if path.suffix in (".js", ".css", ".html")}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
SAMPLE_NAMES: list[Any] = [file.partition(".")[0] for file in SAMPLES]
MAX_HEADS_OFF = 4096
MAX_DOWNLOADS = 2
FETCH_SECONDS = 15.0
MAX_SENTENCE = 16_000  # characters that are taken in; `check_sentences` refuses fewer in words of its own
SENTENCE = "a sentence in the place of a class, for a model with a text tower"


class ErrorMessage(BaseModel):
    """The explorer's error response: what is wrong, in one line."""

    detail: str


class ModelInfo(BaseModel):
    """What the explorer's page shows of a model before it sends an image."""

    name: str
    task: str
    """What it gives: `classify`, `multilabel`, `regress` or `segment`."""
    classes: int
    """How many classes, labels or numbers."""
    classifier: bool
    sentences: int
    """Characters that a sentence in the place of a class may have; 0 for a model without text tower."""
    size: list[int]
    depth: int
    heads: int
    parameters: int


class OutputScore(BaseModel):
    """One output in the explorer's response, of a model that gives labels, numbers or masks."""

    index: int
    class_name: str
    probability: float | None = None
    """Of a label: its own probability; of a class of pixels: its share of the image."""
    value: float | None = None
    """Of a number."""


class ClassScore(BaseModel):
    """One of the most probable classes in the explorer's response."""

    index: int
    class_name: str
    probability: float
    logit: float


BYTES = "application/octet-stream"
BINARY = {"type": "string", "format": "binary"}
IMAGE = {"requestBody": {"required": True, "content": {BYTES: {"schema": BINARY}}}}


def error_responses(**reasons: str) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of the explorer's API by status, as in `error_responses(s404="no such model")`."""
    always = {"s401": "no token, where one is asked for", "s403": "from another page", "s421": "by another name"}
    return {int(s[1:]): {"model": ErrorMessage, "description": why} for s, why in {**always, **reasons}.items()}


UPLOAD = error_responses(
    s400="no image that can be read, or no such heads",
    s404="no such model",
    s408="the image took too long to come in",
    s409="a newer request took its place",
    s413="larger than an image may be",
    s503="busy: try again",
)


def create_app(
    models: Mapping[str, ViT], jobs: JobQueue, *, texts: Mapping[str, TwoTowers] | None = None, fetches: bool = False
) -> FastAPI:
    """Create the explorer's application; `SecurityMiddleware` goes in front of it.

    `texts`: those of the models that have a text tower, which can be asked for any sentence.
    `fetches`: it fetches images of the web, which it should do for the user of its own machine alone.
    """
    app = FastAPI(title="vitreous explore", version=__version__, docs_url=None, redoc_url=None)
    named, texts = {"enum": list(models)}, texts or {}

    def model_named(name: str) -> ViT:
        if name not in models:
            raise HTTPException(404, f"no model is called {name!r}: there are {', '.join(models)}")
        return models[name]

    async def answered(result: Awaitable[Any]) -> Any:
        try:
            return await result
        except ServerBusy as error:
            raise busy(error) from error
        except JobCancelled as error:
            raise HTTPException(409, str(error)) from error
        except ImageError as error:
            raise HTTPException(400, error.reason) from error
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    async def image_in(request: Request, client: str, *, quick: bool) -> bytes:
        try:
            jobs.check_capacity(client, quick=quick)
            return await request.body()
        except ServerBusy as error:
            raise busy(error) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client went away") from error  # no one receives it; not a server error

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FILES["explorer.html"], media_type="text/html")

    @app.get("/api", include_in_schema=False)
    async def api() -> FileResponse:
        return FileResponse(FILES["api.html"], media_type="text/html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> FileResponse:
        if name not in FILES:  # looked up by name, never joined to a path
            raise HTTPException(404, "no such file")
        return FileResponse(FILES[name], media_type=TYPES[FILES[name].suffix])

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/api/models", response_model=list[ModelInfo], responses=error_responses())
    async def list_models() -> JSONResponse:
        """List the models; the first one is the default."""
        longest = {name: LONGEST if name in texts else 0 for name in models}
        return JSONResponse([describe(name, model) | {"sentences": longest[name]} for name, model in models.items()])

    @app.get("/api/samples", response_model=list[str], responses=error_responses())
    async def list_samples() -> JSONResponse:
        """List the sample images."""
        return JSONResponse(SAMPLE_NAMES)

    @app.get(
        "/api/samples/{name}",
        response_class=Response,
        responses={200: {"content": {"image/png": {"schema": BINARY}}}, **error_responses(s404="no such sample")},
    )
    async def sample(name: str = InPath(json_schema_extra={"enum": SAMPLE_NAMES})) -> Response:
        """Return a sample image as PNG."""
        if name not in SAMPLE_NAMES:
            raise HTTPException(404, f"no sample is called {name!r}: there are {', '.join(SAMPLE_NAMES)}")
        return Response(encoded_samples()[name], media_type="image/png")

    @app.post(
        "/api/explain",
        response_class=Response,
        responses={200: {"content": {BYTES: {"schema": BINARY}}}, **UPLOAD},
        openapi_extra=IMAGE,
    )
    async def explain(
        request: Request,
        model: str = Query(description="one of /api/models", json_schema_extra=named),
        name: str = Query("image", max_length=200, description="what to call the image"),
        client: str = Query("", max_length=64, description="a newer request of the same client cancels its older one"),
        classes: str = Query("", max_length=200, description="classes to explain, such as 497,663; a label or number"),
        pixel: str = Query("", max_length=20, description="of a mask: row and column of the pixel to explain, 90,120"),
        sentence: str = Query("", max_length=MAX_SENTENCE, description=SENTENCE),
        off: str = Query("", max_length=32_000, description="heads to switch off, such as 7.0,7.3: block, dot, head"),
        gone: str = Query("", max_length=32_000, description="patches to remove, such as 0,17: counted row by row"),
        way: Literal["tokens", "blur"] = Query("tokens", description="remove the patches' tokens, or blur the patches"),
        compare: bool = Query(False, description="end with the patches' directions, to compare with another image's"),
        stages: bool = Query(False, description="send parts as they are ready, each after its length in four bytes"),
    ) -> Response:
        """Explain the image in the body (JPEG, PNG, WebP, …); payload.js describes the layout of the response.

        With `stages` the first part holds the image and the answers, and each further one a view.
        """
        explained, patches = parse_indices(classes, "classes"), parse_indices(gone, "patches")
        question = Question(
            model_named(model),
            explained[:EXPLAINED],
            parse_heads(off),
            patches,
            way == "blur",
            sentence.strip(),
            texts.get(model),
            compare,
            parse_pixel(pixel),
        )
        parts = Parts(question, await image_in(request, client, quick=stages), name)
        jobs.newest[client] = parts
        if not stages:
            return Response(await answered(parts.whole(jobs, client, request.is_disconnected)), media_type=BYTES)
        first = await answered(jobs.run(client, parts.first, request.is_disconnected, quick=True))
        return StreamingResponse(parts.stream(first, jobs, client), media_type=BYTES)

    @app.post("/api/ablate", response_model=list[ClassScore | OutputScore], responses=UPLOAD, openapi_extra=IMAGE)
    async def ablate(
        request: Request,
        model: str = Query(description="one of /api/models", json_schema_extra=named),
        off: str = Query("", max_length=32_000, description="heads to switch off, such as 7.0,7.3: block, dot, head"),
        client: str = Query("", max_length=64),
        sentence: str = Query("", max_length=MAX_SENTENCE, description=SENTENCE),
    ) -> JSONResponse:
        """Answer for the image in the body with some heads switched off: classes, labels, numbers, shares of pixels."""
        client = client and f"{client}/ablate"
        question = Question(
            model_named(model), heads_off=parse_heads(off), sentence=sentence.strip(), towers=texts.get(model)
        )
        body = await image_in(request, client, quick=True)

        def run(cancel: CancelToken) -> list[dict[str, Any]]:
            inspection = Inspection(question.asked, read_image(body))
            with question.changes():
                return describe_answers(inspection)

        return JSONResponse(await answered(jobs.run(client, run, request.is_disconnected, quick=True)))

    downloads = asyncio.Semaphore(MAX_DOWNLOADS)

    @app.post(
        "/api/fetch",
        response_class=Response,
        responses={
            200: {"content": {BYTES: {"schema": BINARY}}},
            **error_responses(s400="no image there", s404="nothing there, or not fetched for others", s503="busy"),
        },
    )
    async def fetch(url: str = Query(max_length=4000, description="an image's address: https or http")) -> Response:
        """Fetch an image of the web from a public address; only an explorer that serves its own machine does."""
        if not fetches:
            raise HTTPException(404, "this explorer fetches no addresses: save the image and drop the file")
        if downloads.locked():
            raise HTTPException(503, "busy: other images are being fetched; try again", headers={"Retry-After": "5"})
        async with downloads:
            try:
                body = await asyncio.to_thread(fetch_image, url)
            except FileNotFoundError as error:
                raise HTTPException(404, str(error)) from error
            except ImageError as error:
                raise HTTPException(400, f"{url[:200]}: {error.reason}") from error
            except (ValueError, OSError) as error:
                raise HTTPException(400, str(error)) from error
        return Response(body, media_type=BYTES)

    @app.get("/api/progress", response_model=dict[str, int | str], responses=error_responses())
    async def progress(client: str = Query(max_length=64, description="as in /api/explain")) -> JSONResponse:
        """Report a client's newest job: how many are `before` it, or what it is `doing`; {} if there is none."""
        return JSONResponse(jobs.progress(client))

    return app


def fetch_image(url: str) -> bytes:
    """Read for the explorer an image of the web, at most as large as an upload may be."""
    body = read_address(
        url, limit=MAX_BODY_BYTES, seconds=FETCH_SECONDS, expected="the image", timeout=5.0, public=True
    )
    read_image(body)  # what is no image is not passed on
    return body


def busy(error: ServerBusy) -> HTTPException:
    """Turn a full queue into the response of the explorer's application, which invites to try again."""
    return HTTPException(503, f"busy: {error}; try again", headers={"Retry-After": "5"})


def parse_heads(text: str) -> list[tuple[int, int]]:
    """Parse the heads that a request to the explorer switches off, `7.0,7.3`, into pairs of block and head.

    >>> parse_heads("7.0,7.3")
    [(7, 0), (7, 3)]
    """
    parts = [part for part in text.split(",") if part]
    if len(parts) > MAX_HEADS_OFF:
        raise HTTPException(400, f"{len(parts)} heads to switch off: {MAX_HEADS_OFF} at the most")
    try:
        pairs = [tuple(int(number) for number in part.split(".")) for part in parts]
        return [(layer, head) for layer, head in pairs]
    except ValueError as error:
        raise HTTPException(
            400, f"heads are written block.head with commas between, such as 7.0,7.3: got {text[:40]!r}"
        ) from error


def parse_indices(text: str, what: str) -> list[int]:
    """Parse the patches in a request to the explorer, numbers with commas between: `3,17`.

    >>> parse_indices("3,17", "patches")
    [3, 17]
    """
    parts = [part for part in text.split(",") if part]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in parts):
        raise HTTPException(400, f"{what} are numbers with commas between, such as 3,17: got {text[:40]!r}")
    return [int(part) for part in parts]


def parse_pixel(text: str) -> tuple[int, int] | None:
    """Parse the pixel in a request to the explorer, row and column: `90,120`.

    >>> parse_pixel("90,120"), parse_pixel("")
    ((90, 120), None)
    """
    numbers = parse_indices(text, "row and column of a pixel")
    if text and len(numbers) != 2:
        raise HTTPException(400, f"a pixel is its row and its column, such as 90,120: got {text!r}")
    return (numbers[0], numbers[1]) if numbers else None


def describe(name: str, model: ViT) -> dict[str, Any]:
    """Describe a model in the explorer app's list of models: the fields of `ModelInfo` but for `sentences`."""
    config = model.config
    return {
        "name": name,
        "task": model.card.task,
        "classes": config.classes,
        "classifier": model.card.head == "classifier",
        "size": list(config.size),
        "depth": config.depth,
        "heads": config.heads,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


@cache
def encoded_samples() -> dict[str, bytes]:
    """Encode the sample images that the explorer's web app offers as PNG, at the first request for one."""
    encoded = {}
    for name, image in samples().items():
        file = io.BytesIO()
        image.save(file, "PNG")
        encoded[name] = file.getvalue()
    return encoded
