"""The hub of tests (tests/hub_server.py) with the part of the protocol that uploads need."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from hub_server import LARGE, Hub, HubServer, digest_of


class UploadServer(HubServer):
    """A token of `writers` may write into its owner's repositories; new ones are made in `home`.

    Large files wait in `objects`; `commits` are what a repository consists of, and each changes it whole. The
    connection breaks at the step `fails_at` of an upload: create, preupload, object, commit.
    """

    def __init__(self) -> None:
        super().__init__(UploadHub)
        self.home: Path | None = None
        self.writers: dict[str, str] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict[str, Any]] = []
        self.fails_at: str | None = None


def add_thesis(server: UploadServer, folder: Path) -> Path:
    """A repository that no push of ours wrote, with notes; returns its folder."""
    server.repositories["me/thesis"] = home = folder / "hub/me/thesis"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("x")
    return home


class UploadHub(Hub):
    server: UploadServer

    @property
    def absent(self) -> int:
        return 401 if self.writer() is None else 404

    def hides(self, name: str) -> bool:
        return name in self.server.private and self.writer() != name.partition("/")[0]

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

    def writer(self) -> str | None:
        return self.server.writers.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))

    def breaks(self, step: str) -> bool:
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
