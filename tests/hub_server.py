"""A hub on this machine: the part of the Hugging Face hub's protocol that downloads and uploads need, honest or not."""

from __future__ import annotations

import base64
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
    """The digest by which the hub names the content of a file."""
    return hashlib.sha256(data).hexdigest() if large else git_sha1(data)


class HubServer(ThreadingHTTPServer):
    """Serves repositories, which are folders by name; its attributes make it fail or lie.

    broken, cut, damaged  the file that is lost, breaks off in the middle, or has one bit changed
    listed                changes the entries of a listing
    sha                   the commit that it names
    headers               of every answer to a request for a file, besides the true ones
    body                  changes the bytes of a file; the digests in listing and headers stay
    redirects             where requests for a file are sent
    requests, tokens, ranges  what it was asked

    Uploads: a token of `writers` may write into its owner's repositories. Large files wait in `objects`; `commits` are
    what a repository consists of, and each changes it whole.

    home       where new repositories are made
    private    names of repositories that others do not see
    fails_at   the step of an upload at which the connection breaks: create, preupload, object, commit
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.repositories: dict[str, Path] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.ranges: list[int] = []
        self.broken: str | None = None
        self.cut: str | None = None
        self.damaged: str | None = None
        self.listed: Any = lambda siblings: siblings
        self.sha: Any = SHA
        self.headers: dict[str, str] = {}
        self.body: Any = lambda name, data: data
        self.redirects: dict[str, str] = {}
        self.gone = False
        self.home: Path | None = None
        self.writers: dict[str, str] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict[str, Any]] = []
        self.fails_at: str | None = None

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.server_port}"


class Hub(BaseHTTPRequestHandler):
    """Answers the requests for listings and files of a `HubServer`."""

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
        if folder is None or (name in self.server.private and self.writer() != name.partition("/")[0]):
            return self.refuse(401 if self.writer() is None else 404, "RepoNotFound")
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

    def parts(self) -> list[str]:
        """The parts of the path; those of a data set as those of a model."""
        path = unquote(urlsplit(self.path).path).strip("/").split("/")
        return ["api", "models", *path[2:]] if path[:2] == ["api", "datasets"] else path[path[0] == "datasets" :]

    def writer(self) -> str | None:
        """The owner whose token the request has."""
        return self.server.writers.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.breaks("object"):
            return None
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(data).hexdigest() != oid:
            return self.send({"error": "other bytes"}, True, 400)
        self.server.objects[oid] = data
        return self.send(b"", True)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.parts()
        self.server.requests.append(self.path)
        if path == ["api", "validate-yaml"]:
            return self.send({"errors": [], "warnings": []}, True)
        if self.writer() is None:
            return self.send({"error": "Invalid credentials in Authorization header"}, True, 401)
        if path == ["api", "repos", "create"]:
            return self.create(json.loads(data))
        name = "/".join(path[2:4]) if path[0] == "api" else "/".join(path[:2]).removesuffix(".git")
        if name not in self.server.repositories:
            return self.refuse(404, "RepoNotFound")
        if self.writer() != name.partition("/")[0]:
            return self.send({"error": "You don't have the rights to write"}, True, 403)
        if path[2:] == ["info", "lfs", "objects", "batch"]:
            return self.batch(json.loads(data))
        if path[5:] != ["main"]:
            return self.refuse(404, "RevisionNotFound")
        return {"preupload": self.preupload, "commit": self.commit}[path[4]](name, data)

    def breaks(self, step: str) -> bool:
        """Closes the connection without an answer if an upload is to break off at this step."""
        self.close_connection = self.server.fails_at == step
        return self.close_connection

    def create(self, about: dict[str, Any]) -> None:
        if self.breaks("create"):
            return None
        owner = about.get("organization") or self.writer()
        name = f"{owner}/{about['name']}"
        if owner != self.writer():
            return self.send({"error": "You don't have the rights to create a model there"}, True, 403)
        url = {"url": f"{self.server.address}/{name}"}
        if name in self.server.repositories:
            return self.send({"error": "You already created this model repo", **url}, True, 409)
        assert self.server.home is not None
        folder = self.server.home / name
        folder.mkdir(parents=True)
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
        self.server.repositories[name] = folder
        if about.get("private") or about.get("visibility") == "private":
            self.server.private.add(name)
        return self.send(url, True)

    def preupload(self, name: str, data: bytes) -> None:
        if self.breaks("preupload"):
            return None
        folder, files = self.server.repositories[name], []
        for file in json.loads(data)["files"]:
            large = file["path"].endswith(LARGE)
            there = folder / file["path"]
            oid = digest_of(there.read_bytes(), large) if there.is_file() else None
            mode = "lfs" if large else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return self.send({"files": files}, True)

    def batch(self, request: dict[str, Any]) -> None:
        objects = []
        for item in request["objects"]:
            action = {"upload": {"href": f"{self.server.address}/lfs/{item['oid']}"}}
            objects.append(item if item["oid"] in self.server.objects else {**item, "actions": action})
        return self.send({"transfer": "basic", "objects": objects}, True)

    def commit(self, name: str, data: bytes) -> None:
        lines = [json.loads(line) for line in data.splitlines()]
        if self.breaks("commit"):
            return None
        [header] = [line["value"] for line in lines if line["key"] == "header"]
        if header.get("parentCommit", self.server.sha) != self.server.sha:
            return self.send({"error": "A commit has happened since"}, True, 412)
        folder = self.server.repositories[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "deletedFile":
                (folder / value["path"]).unlink()
            elif line["key"] in ("file", "lfsFile"):
                small = line["key"] == "file"
                content = base64.b64decode(value["content"]) if small else self.server.objects[value["oid"]]
                (folder / value["path"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / value["path"]).write_bytes(content)
        self.server.commits.append({"repo": name, **header, "files": [line["value"].get("path") for line in lines[1:]]})
        self.server.sha = hashlib.sha1(data).hexdigest()
        url = f"{self.server.address}/{name}/commit/{self.server.sha}"
        return self.send({"commitUrl": url, "commitOid": self.server.sha, "success": True}, True)

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
def serving(files: Path, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub that has a folder as `tiny/splade` and `gated/splade`, for huggingface_hub with its cache in `cache`."""
    from huggingface_hub import constants

    server = HubServer()
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
