"""A hub on this machine: the part of the Hugging Face hub's protocol that downloads need, honest or not."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"
LOOK_UP = socket.getaddrinfo
LARGE = (".safetensors", ".bin")  # the hub stores them by their SHA-256


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def digest_of(data: bytes, large: bool) -> str:
    return hashlib.sha256(data).hexdigest() if large else git_sha1(data)


class HubServer(ThreadingHTTPServer):
    """Serves repositories, which are folders by name; its attributes make it fail or lie."""

    daemon_threads = True
    broken = cut = damaged = None  # the file that is lost, breaks off in the middle, or has one bit changed
    sha: Any = SHA  # the commit that it names
    gone = False

    def __init__(self, handler: Any = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Hub)
        self.repositories: dict[str, Path] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.ranges: list[int] = []
        self.listed: Any = lambda siblings: siblings  # changes the entries of a listing
        self.headers: dict[str, str] = {}  # of every answer to a request for a file, besides the true ones
        self.body: Any = lambda name, data: data  # changes the bytes of a file; the digests in listing and headers stay
        self.redirects: dict[str, str] = {}  # where requests for a file are sent

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Hub(BaseHTTPRequestHandler):
    server: HubServer

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        if self.server.gone:
            self.close_connection = True
            return None
        path = self.parts()
        self.server.requests.append(self.path)
        self.server.tokens.add(self.headers.get("Authorization"))
        api = path[:2] == ["api", "models"]
        name = "/".join(path[2:4] if api else path[:2])
        rest = path[4:] if api else path[2:]
        folder = self.server.repositories.get(name)
        if folder is None or self.hides(name):
            return self.refuse(self.absent, "RepoNotFound")
        if name.startswith("gated/") and not api:
            return self.refuse(403, "GatedRepo")
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if api:
            if rest[:1] == ["revision"] and rest[1] not in ("main", SHA, self.server.sha):
                return self.refuse(404, "RevisionNotFound")
            siblings = [self.sibling(folder, file) for file in files]
            if rest[:1] == ["tree"]:
                names = {"path": "rfilename", "size": "size", "oid": "blobId"}
                tree = [{"type": "file"} | {key: entry[name] for key, name in names.items()} for entry in siblings]
                return self.send(tree, body)
            listed = self.server.listed(siblings)
            return self.send({"id": name, "modelId": name, "sha": self.server.sha, "siblings": listed}, body)
        if rest[2:] == [self.server.broken]:
            return self.refuse(404, "EntryNotFound")
        data = (folder / "/".join(rest[2:])).read_bytes()
        digest = digest_of(data, rest[-1].endswith(LARGE))
        commit = {"X-Repo-Commit": str(self.server.sha)}
        if target := self.server.redirects.get("/".join(rest[2:])):
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), **commit}
            return self.send(b"", False, 302, Location=target, **linked)
        headers = {"ETag": f'"{digest}"', **commit, "Accept-Ranges": "bytes", **self.server.headers}
        data = self.server.body("/".join(rest[2:]), data)
        if rest[2:] == [self.server.damaged]:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start and body:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if rest[2:] == [self.server.cut] and body:
            self.server.ranges.append(start)
            self.close_connection = True
            headers["Content-Length"] = str(len(data) - start)
            data = data[: len(data) // 2]
        return self.send(data[start:], body, 206 if start and body else 200, **headers)

    absent = 401  # the status of a repository that is not there

    def hides(self, name: str) -> bool:
        return False

    def parts(self) -> list[str]:
        """The parts of the path; those of a data set as those of a model."""
        path = unquote(urlsplit(self.path).path).strip("/").split("/")
        return ["api", "models", *path[2:]] if path[:2] == ["api", "datasets"] else path[path[0] == "datasets" :]

    def sibling(self, folder, file):
        data = (folder / file).read_bytes()
        entry = {"rfilename": file, "size": len(data), "blobId": git_sha1(data)}
        if file.endswith(LARGE):
            entry["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
        return entry

    def refuse(self, status: int, code: str) -> None:
        self.send(b"", False, status, **{"X-Error-Code": code, "X-Error-Message": code})

    def send(self, content, body: bool, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def serving(files: Path, cache: Path, patch: pytest.MonkeyPatch, server: Any = HubServer) -> Iterator[Any]:
    """A hub that has a folder as `tiny/splade` and `gated/splade`, for huggingface_hub with its cache in `cache`."""
    from huggingface_hub import constants

    server = server()
    server.repositories = {"tiny/splade": files, "gated/splade": files}
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "ENDPOINT", server.address)
    patch.setattr(socket, "getaddrinfo", only_here)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        patch.delenv(name, raising=False)
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "no-token"))
    try:
        yield server
    finally:
        away(server)


def only_here(host, *args, **kwargs):
    """Stands for socket.getaddrinfo: no test of ours ever asks for another machine."""
    assert host in ("127.0.0.1", b"127.0.0.1", "localhost"), f"a test asked for {host}"
    return LOOK_UP(host, *args, **kwargs)


def away(server: HubServer) -> None:
    """Ends a server; requests are refused from then on, also over connections that are open."""
    server.gone = True
    server.shutdown()
    server.server_close()
