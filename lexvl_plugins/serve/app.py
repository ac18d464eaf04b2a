"""The application: the page, the JSON API under `/api/`, and its description `/openapi.json`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from importlib.resources import files
from typing import Any, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lexvl_anserini import __version__
from lexvl_anserini.ground.errors import DataError, LexvlError, UsageError
from lexvl_anserini.ground.typed import plain
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.answering import Service
from lexvl_plugins.serve.documents import SIDES, EncodedPicture, scale
from lexvl_plugins.serve.messages import ApiFailure, DocumentId, IndexName, Sent

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Paths of large bodies: pictures are sent, many texts are embedded, agents call tools with pictures in base64.
UPLOAD_PATH, EMBED_PATH, TOOLS_PATH = "/api/pictures", "/api/embed", "/mcp"

# The files of the page by their paths; no other file is served.
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}

FAILURES: dict[int | str, dict[str, Any]] = {status: {"model": ApiFailure} for status in (400, 401, 404, 422, 503)}


def build_app(service: Service) -> FastAPI:
    """The application over a service."""
    app = FastAPI(
        title="LexVL search",
        version=__version__,
        description="Searches lexical and dense indexes of pictures and texts. Errors are one line in `error`.",
        docs_url=None,
        redoc_url=None,
    )
    add_errors(app)
    add_page(app)
    add_searches(app, service)
    add_pictures(app, service)
    return app


def add_errors(app: FastAPI) -> None:
    """Errors as one line of JSON: 400 for what a user can mend, 404 for what is not there, 503 for what is damaged."""

    async def report(request: Request, error: Exception) -> JSONResponse:
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if not isinstance(error, RequestValidationError):
            status, reason = describe_failure(error, f"{request.method} {request.url.path}")
        elif request.method == "POST" and content_type != "application/json":
            status, reason = 422, "expected JSON, with the header content-type: application/json"
        else:
            status, reason = 422, describe_first(error.errors())
        headers = getattr(error, "headers", None) or (limits.LATER if isinstance(error, TimeoutError) else None)
        return JSONResponse({"error": escape(reason)}, status, headers)

    for kind in (LexvlError, RequestValidationError, TimeoutError, HTTPException, Exception):
        app.add_exception_handler(kind, report)


def describe_failure(error: Exception, call: str) -> tuple[int, str]:
    """Status and reason of a call that failed; an error of the server itself is logged."""
    if isinstance(error, LexvlError):
        return 400 if isinstance(error, UsageError) else 404 if isinstance(error, DataError) else 503, str(error)
    if isinstance(error, TimeoutError):
        return 503, f"no answer within {limits.ANSWER_S:.0f} s"
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    log.error("%s: %s", call, error)
    return 500, "an error of the server; its log says more"


def describe_first(problems: Sequence[Any], known: Iterable[str] = ()) -> str:
    """The first thing that is wrong with a record, and where: entries of `errors()` of pydantic."""
    first = problems[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:120]}: {plain(first, known)}"


def escape(text: str) -> str:
    """A text that JSON can hold."""
    return text.encode(errors="replace").decode()


def add_page(app: FastAPI) -> None:
    """The files of the page."""

    async def send_file(request: Request) -> Response:
        name, media_type = PAGE[request.url.path]
        return Response(contents[name], media_type=media_type, headers={"cache-control": "no-cache"})

    contents = {name: files("lexvl_plugins.serve").joinpath("page", name).read_bytes() for name, _ in PAGE.values()}
    for path in PAGE:
        app.add_api_route(path, send_file, include_in_schema=False, response_class=Response)


class Threads:
    """Calls in threads, a bounded number at a time, each with a deadline; of those that wait, only so many."""

    def __init__(self, most: int):
        self.most = most
        self._limiter: CapacityLimiter | None = None

    async def run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a call; refused at once where too many wait already."""
        self._limiter = self._limiter or CapacityLimiter(self.most)
        if self._limiter.statistics().tasks_waiting >= limits.WAITING:
            raise HTTPException(503, f"too many requests at once; try again in {limits.LATER_S} s", limits.LATER)
        async with asyncio.timeout(limits.ANSWER_S):
            return await to_thread.run_sync(call, *arguments, limiter=self._limiter, abandon_on_cancel=True)


def add_searches(app: FastAPI, service: Service) -> None:
    """Searches, products, maps, suggestions, vectors: each path has a name in the description, threads, and a call."""
    searches, maps, embeds = Threads(limits.SEARCHES), Threads(limits.MAPS), Threads(limits.EMBEDS)

    def build_endpoint(threads: Threads, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)  # with the signature that FastAPI reads
        async def answer(**arguments: Any) -> Any:
            return await threads.run(partial(call, **arguments))

        return answer

    for method, path, name, threads, call in (
        ("GET", "/api/indexes", "indexes", searches, service.describe),
        ("POST", "/api/search", "search", searches, service.answer),
        ("POST", "/api/products", "products", searches, service.explain),
        ("POST", "/api/map", "heat_map", maps, service.map_terms),
        ("GET", "/api/suggest", "suggest", searches, service.suggest),
        ("POST", EMBED_PATH, "embed", embeds, service.embed),
    ):
        app.add_api_route(path, build_endpoint(threads, call), methods=[method], name=name, responses=FAILURES)


def add_pictures(app: FastAPI, service: Service) -> None:
    """Pictures of the corpus, and those that users send."""
    drawings, uploads = Threads(limits.DRAWINGS), Threads(limits.DRAWINGS)
    body = {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}, "required": True}

    def respond(picture: EncodedPicture) -> Response:
        headers = {"cache-control": "private, max-age=60"}
        return Response(picture.content, media_type=picture.media_type, headers=headers)

    @app.get("/api/picture", name="picture", responses=FAILURES, response_class=Response)
    async def show_picture(index: IndexName, doc_id: DocumentId, side: Literal["small", "large"] = "small") -> Response:
        """The picture of a document of the corpus, scaled down."""
        return respond(await drawings.run(service.show_picture, index, doc_id, side))

    @app.post(UPLOAD_PATH, responses=FAILURES, openapi_extra={"requestBody": body})
    async def send(request: Request) -> Sent:
        """Keeps a picture as a query for a while; the body is the file."""
        content = await request.body()
        try:
            return Sent(picture=await uploads.run(service.sent.add, content))
        except DataError as error:
            raise UsageError(str(error)) from error

    @app.get("/api/pictures/{picture_id}", name="sent", responses=FAILURES, response_class=Response)
    async def show_sent(picture_id: str) -> Response:
        """A picture that was sent, scaled down."""
        return respond(await drawings.run(scale, service.sent.get(picture_id), SIDES["small"]))
