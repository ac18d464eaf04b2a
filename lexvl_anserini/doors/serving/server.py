"""The web server: its socket, and connections that end if their requests do not arrive in time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lexvl_anserini.doors.serving import limits
from lexvl_anserini.doors.serving.guard import Guard
from lexvl_anserini.ground.errors import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

# Connections that wait for the server to accept them.
BACKLOG = 512

# Seconds that a connection without a request stays open, and that requests have to end when the server ends.
KEEP_ALIVE_S = 15
SHUTDOWN_S = 3


class PatientProtocol(H11Protocol):
    """Closes a connection whose request line and headers are not there after `limits.HEADERS_S`."""

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The time of the first request begins."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """The time of a further request begins with its first byte, and ends with its headers."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is watched any more."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self.waiting is None:
            self.waiting = self.loop.call_later(limits.HEADERS_S, self._end)

    def _end(self) -> None:
        self.waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _forget(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


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


def url_of(found: socket.socket) -> str:
    """The address of the page."""
    host, port = found.getsockname()[:2]
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


def web_server(app: FastAPI, names: Sequence[str]) -> uvicorn.Server:
    """A server that runs by `server.run(sockets=[listening(...)])`, until the process gets SIGINT or SIGTERM.

    Args:
        app: the application.
        names: names of the server besides localhost and addresses.
    """
    config = uvicorn.Config(
        Guard(app, names),
        http=PatientProtocol,
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
