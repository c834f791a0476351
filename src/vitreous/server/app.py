"""The explorer's server: the page, and an API that answers images with payloads.

An image comes as the raw body of a request and lives in memory alone; models are those allowed at start-up. The same
payload that a report carries is sent back, and what takes a model again (heads switched off) is asked for apart.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from vitreous import __version__
from vitreous.data.images import ImageError, read_image
from vitreous.data.samples import FILES as SAMPLES
from vitreous.data.samples import samples
from vitreous.inside.intervene import intervene
from vitreous.models.vit import ViT
from vitreous.pages.interactive import ASSETS
from vitreous.pages.page_data import page_data, predictions
from vitreous.server.jobs import Busy, Cancelled, Flag, Work
from vitreous.views.inspection import Inspection

FILES = {path.name: path for path in sorted(ASSETS.iterdir()) if path.suffix in (".js", ".css", ".html")}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
SAMPLE_NAMES: list[Any] = [file.partition(".")[0] for file in SAMPLES]
MOST_OFF = 4096


class Refusal(BaseModel):
    """Every answer that is none: what is wrong, in one line."""

    detail: str


class ModelFacts(BaseModel):
    """What the page asks of a model before it sends an image."""

    name: str
    classes: int
    classifier: bool
    size: list[int]
    depth: int
    heads: int
    parameters: int


class Likely(BaseModel):
    """One of the likeliest classes."""

    index: int
    label: str
    probability: float
    logit: float


BINARY = {"type": "string", "format": "binary"}
IMAGE = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": BINARY}}}}


def refusals(**reasons: str) -> dict[int | str, dict[str, Any]]:
    """What an address may refuse, by status: `refusals(s404="no such model")`; what the guard refuses comes with it."""
    message = {"s401": "no token, where one is asked for", "s403": "from another page", "s421": "by another name"}
    return {int(s[1:]): {"model": Refusal, "description": why} for s, why in {**message, **reasons}.items()}


UPLOAD = refusals(
    s400="no image that can be read, or no such heads",
    s404="no such model",
    s408="the image took too long to come in",
    s409="a newer request took its place",
    s413="larger than an image may be",
    s503="busy: try again",
)


def create_app(models: Mapping[str, ViT], work: Work) -> FastAPI:
    """The application; whoever serves it puts `Guard` in front."""
    app = FastAPI(title="vitreous explore", version=__version__, docs_url=None, redoc_url=None)
    named = {"enum": list(models)}
    images: dict[str, bytes] = {}  # samples as PNG, made when the first one is asked for

    def chosen(name: str) -> ViT:
        if name not in models:
            raise HTTPException(404, f"no model is called {name!r}: there are {', '.join(models)}")
        return models[name]

    async def compute(request: Request, client: str, function: Any) -> Any:
        try:
            return await work.run(client, function, request.is_disconnected)
        except Busy as error:
            raise busy(error) from error
        except Cancelled as error:
            raise HTTPException(409, str(error)) from error
        except ImageError as error:
            raise HTTPException(400, error.reason) from error
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    async def image_in(request: Request) -> bytes:
        try:
            work.refuse_if_full()
            return await request.body()
        except Busy as error:
            raise busy(error) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client went away") from error  # nobody hears it; no fault of ours either

    def encoded_sample(name: str) -> bytes:
        if not images:
            images.update((each, encoded(image)) for each, image in samples().items())
        return images[name]

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FILES["explorer.html"], media_type="text/html")

    @app.get("/api", include_in_schema=False)
    async def api() -> FileResponse:
        return FileResponse(FILES["api.html"], media_type="text/html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> FileResponse:
        if name not in FILES:  # a name is looked up, never put together to a path
            raise HTTPException(404, "no such file")
        return FileResponse(FILES[name], media_type=TYPES[FILES[name].suffix])

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/api/models", response_model=list[ModelFacts], responses=refusals())
    async def list_models() -> JSONResponse:
        """The models that may be asked, the first one by default."""
        return JSONResponse([describe(name, model) for name, model in models.items()])

    @app.get("/api/samples", response_model=list[str], responses=refusals())
    async def list_samples() -> JSONResponse:
        """Names of images to begin with."""
        return JSONResponse(SAMPLE_NAMES)

    @app.get(
        "/api/samples/{name}",
        response_class=Response,
        responses={200: {"content": {"image/png": {"schema": BINARY}}}, **refusals(s404="no such sample")},
    )
    async def sample(name: str = InPath(json_schema_extra={"enum": SAMPLE_NAMES})) -> Response:
        """An image to begin with, as PNG."""
        if name not in SAMPLE_NAMES:
            raise HTTPException(404, f"no sample is called {name!r}: there are {', '.join(SAMPLE_NAMES)}")
        return Response(encoded_sample(name), media_type="image/png")

    @app.post(
        "/api/explain",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {"schema": BINARY}}}, **UPLOAD},
        openapi_extra=IMAGE,
    )
    async def explain(
        request: Request,
        model: str = Query(description="one of /api/models", json_schema_extra=named),
        name: str = Query("image", max_length=200, description="what to call the image"),
        client: str = Query("", max_length=64, description="a newer request of the same client cancels its older one"),
    ) -> Response:
        """The image in the body (JPEG, PNG, WebP, …) → a payload: see payload.js for its layout."""
        asked, body = chosen(model), await image_in(request)

        def run(flag: Flag) -> bytes:
            inspection = Inspection(asked, read_image(body), name=name)
            return page_data(inspection, progress=flag.check).to_bytes()

        return Response(await compute(request, client, run), media_type="application/octet-stream")

    @app.post("/api/ablate", response_model=list[Likely], responses=UPLOAD, openapi_extra=IMAGE)
    async def ablate(
        request: Request,
        model: str = Query(description="one of /api/models", json_schema_extra=named),
        off: str = Query("", max_length=32_000, description="heads to switch off, such as 7.0,7.3: block, dot, head"),
        client: str = Query("", max_length=64),
    ) -> JSONResponse:
        """The image in the body → what the model says of it without some of its heads."""
        asked, heads, body = chosen(model), parse_heads(off), await image_in(request)

        def run(flag: Flag) -> list[dict[str, Any]]:
            inspection = Inspection(asked, read_image(body))
            with intervene(asked, heads_off=heads):
                return predictions(inspection)

        return JSONResponse(await compute(request, client and f"{client}/ablate", run))

    @app.get("/api/progress", response_model=dict[str, int | str], responses=refusals())
    async def progress(client: str = Query(max_length=64, description="as in /api/explain")) -> JSONResponse:
        """How the client's newest explanation fares: `before` (how many), or `doing` (what); {} where there is none."""
        return JSONResponse(work.progress(client))

    return app


def busy(error: Busy) -> HTTPException:
    """The refusal of one who may try again in a moment."""
    return HTTPException(503, f"busy: {error}; try again", headers={"Retry-After": "5"})


def parse_heads(text: str) -> list[tuple[int, int]]:
    """`7.0,7.3` as pairs of block and head.

    >>> parse_heads("7.0,7.3")
    [(7, 0), (7, 3)]
    """
    parts = [part for part in text.split(",") if part]
    if len(parts) > MOST_OFF:
        raise HTTPException(400, f"{len(parts)} heads to switch off: {MOST_OFF} at the most")
    try:
        pairs = [tuple(int(number) for number in part.split(".")) for part in parts]
        return [(layer, head) for layer, head in pairs]
    except ValueError as error:
        raise HTTPException(
            400, f"heads are written block.head with commas between, such as 7.0,7.3: got {text[:40]!r}"
        ) from error


def describe(name: str, model: ViT) -> dict[str, Any]:
    """A model as `ModelFacts`."""
    config = model.config
    return {
        "name": name,
        "classes": config.classes,
        "classifier": model.card.head == "classifier",
        "size": list(config.size),
        "depth": config.depth,
        "heads": config.heads,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def encoded(image: Any) -> bytes:
    """An image as PNG."""
    import io

    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
