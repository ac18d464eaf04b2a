"""What stands between the network and the application: hosts, origins, sizes, deadlines, headers of safety."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any

import orjson

from lexvl_anserini.doors.serving import limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD_PATH = "/api/pictures"

# The page loads from its own server alone, is in no frame, and runs no code of a document.
HEADERS: Mapping[bytes, bytes] = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


class Guard:
    """Refuses requests for other hosts, from other sites, too large or too slow ones; adds headers of safety.

    A page of another site whose name leads to this machine (DNS rebinding) sends its own name as the host, so that
    unknown names are refused; addresses cannot be rebound.

    Args:
        app: the application.
        names: names of this server besides localhost and addresses.
    """

    def __init__(self, app: Application, names: Iterable[str] = ()):
        self.app, self.names = app, {"localhost", *(name.lower() for name in names)}
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        safe = with_headers(send)
        if refusal := self.refusal(scope):
            await refuse(safe, *refusal)
            return
        most = limits.MOST_UPLOAD if scope["path"] == UPLOAD_PATH else limits.MOST_JSON
        body = bytearray()
        try:
            refusal = await self.read(receive, body, most)
            if refusal:
                await refuse(safe, *refusal)
            else:
                await self.app(scope, replaying(bytes(body), receive), safe)
        finally:
            self.held -= len(body)

    async def read(self, receive: Receive, body: bytearray, most: int) -> tuple[int, str] | None:
        """Reads a whole body; returns status and reason where it is too large, too slow, or one of too many.

        The bytes of all bodies are counted, not their number, so that clients that send none keep nobody waiting.
        """
        try:
            async with asyncio.timeout(limits.BODY_S):
                more = True
                while more:
                    message = await receive()
                    piece = message.get("body", b"")
                    body += piece
                    self.held += len(piece)
                    if len(body) > most:
                        return 413, f"a body of more than {most:,} bytes"
                    if self.held > limits.MOST_HELD:
                        return 503, "too many bodies at once; try again"
                    more = message["type"] == "http.request" and message.get("more_body", False)
        except TimeoutError:
            return 408, f"the body did not arrive within {limits.BODY_S:.0f} s"
        return None

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason where the request names another host, or comes from a page of another site."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self.is_own(host):
            return 421, f"the request is for host {host[:80]!r}, not for this server; --name adds a name"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            return 403, "the request comes from a page of another site"
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


def replaying(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read, then what follows."""
    waiting = [body]

    async def again() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def with_headers(send: Send) -> Send:
    """Sends with the headers of safety, and ends where a client does not take what is sent."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS.items()]}
        async with asyncio.timeout(limits.SEND_S):
            await send(message)

    return sending


async def refuse(send: Send, status: int, reason: str) -> None:
    """Answers with a reason, and closes the connection."""
    body = orjson.dumps({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
