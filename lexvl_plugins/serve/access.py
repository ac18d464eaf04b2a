"""Who may ask a server, and the line that is left of each request."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lexvl_anserini.ground.errors import DataError, UsageError

log = logging.getLogger(__name__)

# Characters of a key: fewer could be guessed.
LEAST_KEY = 16

# Hexadecimal digits of a key's digest, which name it in log lines.
KEY_NAME = 8

# Bearer is for programs; at Basic a browser asks its user, and takes any name with a key as the password. Each has a
# header, because Chromium reads the first challenge of a header alone.
CHALLENGES = ('Bearer realm="LexVL"', 'Basic realm="LexVL", charset="UTF-8"')

# Methods of HTTP; a client may send any other word.
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ApiKeys:
    """API keys; only their digests are kept, and each is compared in constant time."""

    def __init__(self, keys: Iterable[str]):
        self.digests = [sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """The keys of a file, one a line; empty lines and those that begin with # are none.

        Raises:
            DataError: the file cannot be read, has no key, or one that is short or has other characters than ASCII.
        """
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); expected a text file with one key a line") from error
        keys = {number: key for number, key in enumerate(lines, 1) if key and not key.startswith("#")}
        if not keys:
            raise DataError(f"{path}: no key; expected one a line, as `openssl rand -hex 32` prints")
        for number, key in keys.items():
            if len(key) < LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise DataError(
                    f"{path} line {number}: {len(key)} characters, expected at least {LEAST_KEY} of ASCII without "
                    "spaces, as `openssl rand -hex 32` prints"
                )
        return cls(keys.values())

    def name_of(self, authorization: bytes) -> str | None:
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


def is_this_machine(host: str) -> bool:
    """Whether only this machine reaches a server that listens at an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard_address(host: str, keys: ApiKeys | None, insecure: bool) -> None:
    """Logs a warning where other machines reach the server without keys; refuses keys that a network would carry.

    Raises:
        UsageError: keys over plain HTTP from other machines, without `insecure`.
    """
    if is_this_machine(host):
        return
    if keys is None:
        log.warning(
            "--host %s: whoever reaches this machine can search and see the pictures; there is no password", host
        )
    elif not insecure:
        raise UsageError(
            f"--keys with --host {host}: the server speaks plain HTTP, so that keys could be read on the network; "
            "listen at 127.0.0.1 behind a proxy with TLS, or give --insecure"
        )


class RequestLog:
    """Logs one JSON line for each request: when, what, status, milliseconds, bytes, and which key.

    Nothing that a user wrote is in a line: no query, id, header or address, and of a path only what the server knows.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, received, sent = time.perf_counter(), None, 0, 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, counted, sending)
        finally:
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": scope["method"] if scope["method"] in METHODS else None,
                "path": known_path(scope),
                "status": status,
                "ms": round((time.perf_counter() - started) * 1000, 2),
                "received": received,
                "sent": sent,
                "key": scope.get("key"),
            }
            log.info("%s", orjson.dumps(line).decode())


def known_path(scope: Scope) -> str | None:
    """The path of the route that answered a request, such as `/api/pictures/{picture_id}`; None if none did."""
    if "route" in scope:
        return str(scope["route"].path)
    return scope["path"] if "endpoint" in scope and not scope.get("path_params") else None
