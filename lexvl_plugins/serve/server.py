"""The web server: its socket, and what stands between the network and the application.

uvicorn bounds the headers of a request, `Guard` its body and its time. A connection that sends no whole request costs
an open file and nothing else; to end it is the work of a proxy, where strangers reach the server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.access import CHALLENGES, ApiKeys, RequestLog
from lexvl_plugins.serve.app import EMBED_PATH, TOOLS_PATH, UPLOAD_PATH

if TYPE_CHECKING:
    from fastapi import FastAPI

# Connections that wait for the server to accept them.
BACKLOG = 512

# Seconds that a connection without a request stays open, and that requests have to end when the server ends.
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


class Guard:
    """Refuses requests for other hosts, from other sites, and slow ones; adds headers of safety.

    A page of another site whose name leads to this machine (DNS rebinding) sends its own name as the host, so that
    unknown names are refused; addresses cannot be rebound. (Starlette's TrustedHostMiddleware would need the list of
    all addresses of this machine.) `names` are those of this server besides localhost and addresses. With `keys`, a
    request without one of them is refused.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), keys: ApiKeys | None = None):
        self.app, self.names, self.keys = app, {"localhost", *(name.lower() for name in names)}, keys
        # Bytes of all bodies that are being received or answered.
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size, started = 0, False
        large = {UPLOAD_PATH: limits.MOST_UPLOAD, EMBED_PATH: limits.MOST_TEXTS, TOOLS_PATH: limits.MOST_CALL}
        most = large.get(scope["path"], limits.MOST_JSON)

        async def counted() -> Message:
            # The bytes of all bodies are counted, not their number: clients that send none keep nobody waiting.
            nonlocal size
            message = await receive()
            length = len(message.get("body", b""))
            size += length
            self.held += length
            if size > most:
                raise HTTPException(413, f"a body of more than {most:,} bytes", CLOSE)
            if self.held > limits.MOST_HELD:
                raise HTTPException(503, "too many bodies at once; try again", {**CLOSE, **limits.LATER})
            return message

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS.items()]}
            await send(message)

        refusal = self.refusal(scope)
        try:
            if refusal is None:
                async with asyncio.timeout(limits.REQUEST_S):
                    await self.app(scope, counted, sending)
        except TimeoutError:
            refusal = 408, f"the request did not end within {limits.REQUEST_S:.0f} s"
        finally:
            self.held -= size
        if refusal and not started:
            status, reason = refusal
            response = JSONResponse({"error": reason}, status, CLOSE)
            for challenge in CHALLENGES if status == 401 else ():
                response.headers.append("www-authenticate", challenge)
            await response(scope, receive, sending)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason where the request names another host, comes from a page of another site, or has no key."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self.is_own(host):
            return 421, f"the request is for host {host[:80]!r}, not for this server; --name adds a name"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            return 403, "the request comes from a page of another site"
        if self.keys is not None:
            scope["key"] = self.keys.name_of(headers.get(b"authorization", b""))
            if scope["key"] is None:
                return 401, "no valid key; expected the header Authorization: Bearer KEY"
        return None

    def is_own(self, host: str) -> bool:
        """Whether a Host header names this server: a known name, or an address."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name in self.names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def listening(host: str, port: int) -> socket.socket:
    """A socket of an address; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host!r}: {error.strerror or error}; give an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"{host}:{port} cannot be used ({error.strerror or error}); choose another --port, 0 takes a free one"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def raise_open_files() -> None:
    """Lets the process have as many open connections as the system permits."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS has a lower limit than it says
            return


def web_server(
    app: FastAPI, names: Sequence[str], keys: ApiKeys | None = None, log_requests: bool = False
) -> uvicorn.Server:
    """A server that runs by `server.run(sockets=[listening(...)])`, until the process gets SIGINT or SIGTERM."""
    guarded = Guard(app, names, keys)
    config = uvicorn.Config(
        RequestLog(guarded) if log_requests else guarded,
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
