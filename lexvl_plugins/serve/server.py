"""The web server: the page, the JSON API under `/api/` with its description; who may ask, and what a request may cost.

uvicorn bounds the headers of a request, `Guard` its body and its time. A connection that sends no whole request costs
an open file and nothing else; to end it is the work of a proxy, where strangers reach the server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial, wraps
from hashlib import sha256
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson
import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lexvl_anserini import __version__
from lexvl_anserini.ground.errors import DataError, InexactScore, LexvlError, UsageError
from lexvl_anserini.ground.files import find_mistake, has_all_keys
from lexvl_anserini.ground.typed import plain
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.answering import Service
from lexvl_plugins.serve.documents import SIDES, EncodedPicture, scale
from lexvl_plugins.serve.messages import ApiFailure, DocumentId, EmbedQuestion, IndexName, Sent, hide_places

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Paths of large bodies: pictures are sent, many texts are embedded, agents call tools with pictures in base64.
UPLOAD_PATH, EMBED_PATH, TOOLS_PATH = "/api/pictures", "/api/embed", "/mcp"

# The last calls of functions before an error of the server that its log names.
LOGGED_CALLS = 6

# Paths that answer without a key.
OPEN = ("/healthz", "/readyz")

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
    purpose = "Searches lexical and dense indexes of pictures and texts. Errors are one line in `error`."
    app = FastAPI(title="LexVL search", version=__version__, description=purpose, docs_url=None, redoc_url=None)
    add_errors(app)
    add_page(app)
    add_health(app, service)
    add_searches(app, service)
    add_pictures(app, service)
    return app


def add_errors(app: FastAPI) -> None:
    """Errors as one line of JSON: 400 for what a user can mend, 404 for what is not there, 503 for what is damaged."""

    async def report(request: Request, error: Exception) -> JSONResponse:
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if not isinstance(error, RequestValidationError):
            status, reason = describe_failure(error, f"{request.method} {find_path(request.scope)}")
        elif request.method == "POST" and content_type != "application/json":
            status, reason = 422, "expected JSON, with the header content-type: application/json"
        else:
            status, reason = 422, describe_first(error.errors())
        headers = getattr(error, "headers", None) or (limits.LATER if isinstance(error, TimeoutError) else None)
        return JSONResponse({"error": hide_places(reason)}, status, headers)

    for kind in (LexvlError, RequestValidationError, TimeoutError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, report)


def describe_failure(error: Exception, call: str) -> tuple[int, str]:
    """Status and reason of a call that failed; of an error of the server the log has the place, not the text."""
    if isinstance(error, LexvlError):
        bad = isinstance(error, UsageError | InexactScore)
        return 400 if bad else 404 if isinstance(error, DataError) else 503, str(error)
    if isinstance(error, TimeoutError):
        return 503, f"no answer within {limits.ANSWER_S:.0f} s"
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if isinstance(error, ClientDisconnect):
        return 400, "the client left before its request had ended"
    calls = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in extract_tb(error.__traceback__)]
    log.error("%s: %s at %s", call, type(error).__name__, ", ".join(calls[-LOGGED_CALLS:]))
    return 500, "an error of the server; its log says more"


def describe_first(problems: Sequence[Any], known: Iterable[str] = ()) -> str:
    """The first thing that is wrong with a record, and where: entries of `errors()` of pydantic."""
    first = problems[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:120]}: {plain(first, known)}"


def add_page(app: FastAPI) -> None:
    """The files of the page."""

    async def send_file(request: Request) -> Response:
        name, media_type = PAGE[request.url.path]
        return Response(contents[name], media_type=media_type, headers={"cache-control": "no-cache"})

    contents = {name: files("lexvl_plugins.serve").joinpath("page", name).read_bytes() for name, _ in PAGE.values()}
    for path in PAGE:
        app.add_api_route(path, send_file, include_in_schema=False, response_class=Response)


class Threads:
    """Calls in threads, a bounded number at a time, each with a deadline; of those that wait, only so many.

    A call that is given up keeps its thread until it ends, so that no more than `most` ever run; `measure` says what
    one costs, and `budget` what all that were admitted and have not ended may cost together.
    """

    def __init__(self, most: int, budget: int = 0, measure: Callable[..., int] = lambda **_: 0):
        self.most, self.budget, self.measure = most, budget, measure
        self.held = 0
        self._limiter: CapacityLimiter | None = None

    async def run(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """The result of a call; refused at once where too many wait already, or it would cost too much beside them."""
        self._limiter = limiter = self._limiter or CapacityLimiter(self.most)
        cost, ticket = self.measure(**named), object()
        if limiter.statistics().tasks_waiting >= limits.WAITING or self.held and self.held + cost > self.budget:
            raise HTTPException(503, f"too many requests at once; try again in {limits.LATER_S} s", limits.LATER)

        def free(ended: asyncio.Future[Any] | None = None) -> None:
            self.held -= cost
            if ended is not None:
                limiter.release_on_behalf_of(ticket)
                # Looked at, so that nothing of an error whose request was given up reaches a log.
                _ = ended.cancelled() or ended.exception()

        self.held += cost
        limits.DEADLINE.set(time.monotonic() + limits.ANSWER_S)
        async with asyncio.timeout(limits.ANSWER_S):
            try:
                await limiter.acquire_on_behalf_of(ticket)
            except BaseException:
                free()
                raise
            thread = to_thread.run_sync(
                partial(call, *arguments, **named), abandon_on_cancel=True, limiter=CapacityLimiter(1)
            )
            work = asyncio.ensure_future(thread)
            work.add_done_callback(free)
            await asyncio.wait([work])  # unlike awaiting it, this leaves the work alone when the request is given up
        return work.result()


def add_health(app: FastAPI, service: Service) -> None:
    """Whether the server runs, and whether all of its indexes answer: for those who start it, without a key."""

    async def tell_health() -> Response:
        return JSONResponse({"status": "ok"})

    async def tell_readiness() -> Response:
        bad, names = service.shelf.count_damaged(), service.shelf.names
        error = {"error": f"{bad} of {len(names)} indexes do not answer; the log says why"}
        return JSONResponse(error, 503) if bad else JSONResponse({"status": "ok"})

    for path, call in zip(OPEN, (tell_health, tell_readiness), strict=True):
        app.add_api_route(path, call, include_in_schema=False, response_class=Response)


def add_searches(app: FastAPI, service: Service) -> None:
    """Searches, products, maps, suggestions, vectors: each path has a name in the description, threads, and a call."""
    searches, maps = Threads(limits.SEARCHES), Threads(limits.MAPS)

    def measure_texts(request: EmbedQuestion) -> int:  # a picture counts as the longest text
        return sum(map(len, request.texts)) + limits.MOST_CHARACTERS * len(request.pictures)

    def build_endpoint(threads: Threads, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)  # with the signature that FastAPI reads
        async def answer(**arguments: Any) -> Any:
            return await threads.run(call, **arguments)

        return answer

    embeds = Threads(limits.EMBEDS, limits.EMBEDDED, measure_texts)
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


# Characters of a key: fewer could be guessed. Hexadecimal digits of its digest, which name it in log lines.
LEAST_KEY = 16
KEY_NAME = 8

# Bearer is for programs; at Basic a browser asks its user, and takes any name with a key as the password. Each has a
# header, because Chromium reads the first challenge of a header alone.
CHALLENGES = ('Bearer realm="LexVL"', 'Basic realm="LexVL", charset="UTF-8"')

# Methods that a log line names; a client may send any other word.
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

# Connections that wait for the server to accept them; seconds that one without a request stays open, and that requests
# have to end when the server ends.
BACKLOG = 512
KEEP_ALIVE_S = 15
SHUTDOWN_S = 3

# The page loads from its own server alone, is in no frame, and runs no code of a document.
HEADERS: Mapping[bytes, bytes] = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}

# The rest of a body is not read after a refusal.
CLOSE = {"connection": "close"}


class ApiKeys:
    """API keys; only their digests are kept, and each is compared in constant time."""

    def __init__(self, keys: Iterable[str], path: Path | None = None):
        self.path = path
        self.digests = [sha256(key.encode()).digest() for key in keys]

    def reload(self, *_: Any) -> None:
        """Reads the file of the keys again; where it has no good ones, those from before stay. For a signal."""
        try:
            self.digests = self.read(self.path).digests if self.path else self.digests
        except DataError as error:
            log.error("%s; the keys read before stay", error)
        else:
            log.info("%s: read again, %d keys", self.path, len(self.digests))

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """The keys of a file, one a line; empty lines and those that begin with # are none."""
        try:
            if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077 and os.name == "posix":
                log.warning("%s: mode %o, others of this machine can read the keys; chmod 600 it", path, mode)
            lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); expected a text file with one key a line") from error
        keys = {number: key for number, key in enumerate(lines, 1) if key and not key.startswith("#")}
        if not keys:
            raise DataError(f"{path}: no key; expected one a line, as `openssl rand -hex 32` prints")
        for number, key in keys.items():
            if len(key) < LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                expected = f"at least {LEAST_KEY} of ASCII without spaces, as `openssl rand -hex 32` prints"
                raise DataError(f"{path} line {number}: {len(key)} characters, expected {expected}")
        return cls(keys.values(), path)

    def find_name(self, authorization: bytes) -> str | None:
        """The name in log lines of the key that an Authorization header has; None if it has none of these keys."""
        scheme, _, value = authorization.strip().partition(b" ")
        key = value.strip()
        if scheme.lower() == b"basic":
            try:
                key = base64.b64decode(key, validate=True).partition(b":")[2]
            except binascii.Error:
                return None
        elif scheme.lower() != b"bearer":
            return None
        digest = sha256(key).digest()
        admitted = [hmac.compare_digest(digest, known) for known in self.digests]  # all, whichever fits
        return digest.hex()[:KEY_NAME] if any(admitted) else None


def check_address(host: str, keys: ApiKeys | None, insecure: bool) -> None:
    """Logs a warning where other machines reach the server without keys; refuses keys that a network would carry."""
    if is_address(host) and ip_address(host).is_loopback or host == "localhost":
        return
    if keys is None:
        open_to = "whoever reaches this machine can search and see the pictures; there is no password"
        log.warning("--host %s: %s", host, open_to)
    elif not insecure:
        raise UsageError(f"--keys with --host {host}: plain HTTP shows keys to the network; use a proxy, or --insecure")


def is_address(host: str) -> bool:
    """Whether a host is a number, which no name leads to."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


class Guard:
    """Refuses requests for other hosts, from other sites, without a key, and slow ones; adds headers of safety.

    A page of another site whose name leads to this machine (DNS rebinding) sends its own name as the host, so that
    unknown names are refused; addresses cannot be rebound. (Starlette's TrustedHostMiddleware would need the list of
    all addresses of this machine.) A logged line has nothing that a user wrote: no query, id, header or address, and of
    a path only what the server knows.
    """

    def __init__(
        self, app: ASGIApp, names: Iterable[str] = (), keys: ApiKeys | None = None, log_requests: bool = False
    ):
        self.app, self.names, self.keys = app, {"localhost", *(name.lower() for name in names)}, keys
        self.log_requests = log_requests
        # Bytes of all bodies that are being received or answered.
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, begun = scope["method"], time.perf_counter()
        if method == "HEAD":  # uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        line: dict[str, Any] = {**dict.fromkeys(("time", "method", "path", "status", "ms")), "received": 0, "sent": 0}
        try:
            await self._answer(scope, receive, send, line)
        finally:
            if self.log_requests:
                line["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
                line["method"] = method if method in METHODS else None
                line["path"], line["key"] = find_path(scope), scope.get("key")
                line["ms"] = round((time.perf_counter() - begun) * 1000, 2)
                log.info("%s", orjson.dumps(line).decode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send, line: dict[str, Any]) -> None:
        large = {UPLOAD_PATH: limits.MOST_UPLOAD, EMBED_PATH: limits.MOST_TEXTS, TOOLS_PATH: limits.MOST_CALL}
        most = large.get(scope["path"], limits.MOST_JSON)
        body = bytearray()

        async def receive_counted() -> Message:
            # The bytes of all bodies are counted, not their number: clients that send none keep nobody waiting.
            message = await receive()
            length = len(message.get("body", b""))
            line["received"] += length
            self.held += length
            if line["received"] > most:
                raise HTTPException(413, f"a body of more than {most:,} bytes", CLOSE)
            if self.held > limits.MOST_HELD:
                raise HTTPException(503, "too many bodies at once; try again", {**CLOSE, **limits.LATER})
            if scope["path"] != UPLOAD_PATH:  # all others are JSON, of which the libraries take the last of equal keys
                body.extend(message.get("body", b""))
                if not message.get("more_body") and (mistake := find_mistake_in(body)):
                    raise HTTPException(400, f"body{mistake}", CLOSE)
            return message

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS.items()]}
            line["sent"] += len(message.get("body", b""))
            await send(message)

        refusal = self.refuse(scope)
        try:
            if refusal is None:
                async with asyncio.timeout(limits.REQUEST_S):
                    await self.app(scope, receive_counted, send_counted)
        except TimeoutError:
            refusal = 408, f"the request did not end within {limits.REQUEST_S:.0f} s"
        except Exception:  # `add_errors` has logged it; passed on, its text would reach uvicorn's log
            refusal = 500, "an error of the server; its log says more"
        finally:
            self.held -= line["received"]
        if refusal and line["status"] is None:
            status, reason = refusal
            response = JSONResponse({"error": reason}, status, CLOSE)
            for challenge in CHALLENGES if status == 401 else ():
                response.headers.append("www-authenticate", challenge)
            await response(scope, receive, send_counted)

    def refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason where the request names another host, comes from a page of another site, or has no key."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self.is_own(host):
            return 421, f"the request is for host {host[:80]!r}, not for this server; --name adds a name"
        if scope["path"] in OPEN:
            return None
        # A link from another site may lead to the page.
        followed = scope["method"] == "GET" and scope["path"] == "/" and headers.get(b"sec-fetch-mode") == b"navigate"
        origin = headers.get(b"origin")
        foreign = origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host
        if foreign or headers.get(b"sec-fetch-site") == b"cross-site" and not followed:
            return 403, "the request comes from a page of another site"
        if self.keys is not None:
            scope["key"] = self.keys.find_name(headers.get(b"authorization", b""))
            if scope["key"] is None:
                return 401, "no valid key; expected the header Authorization: Bearer KEY"
        return None

    def is_own(self, host: str) -> bool:
        """Whether a Host header names this server: a known name, or an address."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return name in self.names or is_address(name)


def find_mistake_in(body: bytearray) -> str:
    """What is wrong with the keys of a body; empty if nothing, or if it is no JSON, which others say."""
    with suppress(ValueError):
        if has_all_keys(orjson.loads(body), body):
            return ""
    with suppress(ValueError, IndexError):
        return find_mistake(body.decode(json.detect_encoding(body)), mend=True)
    return ""


def find_path(scope: Scope) -> str | None:
    """The path of the route that answered a request, such as `/api/pictures/{picture_id}`; None if none did."""
    if "route" in scope:
        return str(scope["route"].path)
    return scope["path"] if "endpoint" in scope and not scope.get("path_params") else None


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 takes a free one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host!r}: {error.strerror or error}; give an address of this machine") from error
    try:
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(f"{host}:{port}: {error.strerror or error}; choose another --port (0: a free one)") from error
    # Of accepted connections too: else the end of an answer waits 40 ms for the client's acknowledgement of its begin.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def format_url(listener: socket.socket) -> str:
    """The address of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def raise_open_files() -> None:
    """Lets the process have as many open connections as the system permits."""
    with suppress(ImportError, ValueError, OSError):  # macOS has a lower limit than it says
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def build_server(
    app: FastAPI, names: Sequence[str], keys: ApiKeys | None = None, log_requests: bool = False
) -> uvicorn.Server:
    """A server that runs by `server.run(sockets=[open_socket(...)])`, until the process gets SIGINT or SIGTERM."""
    config = uvicorn.Config(
        Guard(app, names, keys, log_requests),
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        backlog=BACKLOG,
    )
    return uvicorn.Server(config)
