"""An index of painted pictures, and its dense twin, with encoders that a test can compute by hand, and their server.

A picture's weight of a colour is its largest mean over a grid of 2 x 2 cells; a query is the words that are colours.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from colour_towers import COLOURS, colour_tower, painted
from fastapi import FastAPI
from scipy import sparse

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.encoder import Encoder, read_document, read_topic, read_topic_image
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.ground.errors import FAIL
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.serve.answering import Service
from lexvl_plugins.serve.indexes import Shelf, name_indexes
from lexvl_plugins.serve.server import ApiKeys, build_app, build_server, open_socket

ROOT = Path(__file__).parents[3]

# A name and a caption that would run, if the page took them for HTML.
HOSTILE = "<img src=x onerror=alert(1)>.png"
CAPTION = "<script>alert('caption')</script> & \"quotes\""

LEFT, RIGHT = (0, 0, 32, 64), (32, 0, 64, 64)
PICTURES = {
    "half.png": painted(64, 64, red=LEFT, blue=RIGHT),
    "red.png": painted(64, 64, red=(0, 0, 64, 64)),
    "sub/green.png": painted(64, 64, green=(0, 0, 64, 64)),
    HOSTILE: painted(64, 64, blue=LEFT),
}


class ColourWords:
    """The words of a text that are colours, each with weight 1; a word twice has weight 2."""

    kind = "impact"
    binary = False
    vocabulary = Vocabulary(COLOURS, "colours")

    read = staticmethod(read_document)
    read_topic = staticmethod(read_topic)

    def weights(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        """CSR [n, 3]."""
        return sparse.csr_matrix(self.rows(inputs))

    vectors = weights

    def knows(self, text):
        """Whether a word is a colour."""
        return any(word in COLOURS for word in text.split())

    def rows(self, inputs):
        return np.array([[text.split().count(colour) for colour in COLOURS] for text in inputs], dtype=np.float32)


class DenseWords(ColourWords):
    """The same numbers as a dense vector."""

    kind = "dense"

    def vectors(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        """float32 [n, 3]."""
        return self.rows(inputs)


class ColourMeans:
    """The mean colour of a picture, dense."""

    kind = "dense"
    read = staticmethod(read_topic_image)
    read_topic = staticmethod(read_topic_image)

    def vectors(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        """float32 [n, 3]."""
        return np.array([np.asarray(open_image(one)).mean(axis=(0, 1)) / 255 for one in inputs], dtype=np.float32)


LEXICAL = Encoder("bag-of-tokens", "impact", query=ColourWords(), document=colour_tower(2))
DENSE = Encoder("sentence", "dense", query=DenseWords(), document=ColourMeans())


def load(ref: Any, *arguments: Any, **options: Any) -> Encoder:
    """In place of `load_encoder_from`."""
    toys = {model.name: model for model in (LEXICAL, DENSE)}
    return toys[ref.name] if ref.name in toys else load_encoder_from(ref, *arguments, **options)


def paint(folder: Path, pictures: Mapping[str, Any] = PICTURES) -> None:
    """Writes pictures, and a caption of the hostile one."""
    for name, picture in pictures.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(folder / name)
    if HOSTILE in pictures:
        (folder / HOSTILE.replace(".png", ".txt")).write_text(CAPTION)


def index_pictures(folder: Path, index: Path, model: Encoder = LEXICAL, pictures: Mapping[str, Any] = PICTURES) -> Path:
    """Paints, encodes and indexes; another call replaces the index."""
    paint(folder, pictures)
    dataset = load_dataset(f"folder:{folder}", escape_ids=True)
    years = replace(dataset, documents=lambda: (d._replace(metadata=facts(d.doc_id)) for d in dataset.documents()))
    shards = index.with_name(f"{index.name}-shards")
    write_impacts(years, model, shards, layout=Layout(metadata=model is LEXICAL), overwrite=True)
    build_index(shards, index, overwrite=True)
    return index


def index_texts(folder: Path) -> dict[str, str]:
    """Makes `index` in a folder by commands, of a text: other processes lack toy encoders. Their environment."""
    (folder / "texts").mkdir()
    (folder / "texts" / "boat.txt").write_text("a red boat")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    encode = ("lexvl_anserini.encode", "--corpus", "folder:texts", "--encoder", "bag-of-tokens", "--output", "impacts")
    for step in (encode, ("lexvl_anserini.index", "impacts", "--index", "index")):
        subprocess.run([sys.executable, "-m", *step], cwd=folder, env=environ, check=True)
    return environ


def facts(doc_id: str) -> dict[str, Any]:
    """Metadata: the length of the id as a year, and where it is."""
    return {"year": 2000 + len(doc_id), "place": doc_id.rpartition("/")[0] or "top"}


def wait_for(condition: Callable[[], Any]) -> Any:
    """What a condition says when it is true."""
    deadline = time.monotonic() + 900
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@contextmanager
def running(
    *indexes: Path | str,
    examples: tuple[str, ...] = (),
    make: Callable[[Service], FastAPI] = build_app,
    keys: ApiKeys | None = None,
    log_requests: bool = False,
) -> Iterator[Client]:
    """A server of an application over indexes, and a client of it."""
    shelf = Shelf(name_indexes(indexes, [], "cpu", None))
    service = Service(shelf, examples)
    listener = open_socket("127.0.0.1", 0)
    server = build_server(make(service), [], keys, log_requests)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield Client(listener.getsockname()[1], service)
    finally:
        server.should_exit = True
        thread.join()
        shelf.close()
        listener.close()


@contextmanager
def serving(folder: Path, dense: bool = False, **options: Any) -> Iterator[Client]:
    """A server of an index made in a folder, `colours`, and of its dense twin, by encoders of this module."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lexvl_anserini.searching.search.load_encoder_from", load)
        indexes = [index_pictures(folder / "pictures", folder / "colours")]
        if dense:
            indexes.append(index_pictures(folder / "pictures", folder / "twin", DENSE))
        with running(*indexes, **options) as client:
            yield client


class Client(SimpleNamespace):
    """Requests to a server, each on a connection of its own."""

    def __init__(self, port: int, service: Service):
        super().__init__(port=port, service=service, url=f"http://127.0.0.1:{port}/")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content; a body in pieces is sent without its length."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON of a path that answers."""
        status, _, content = self.request("GET", path)
        assert status == 200, content
        return json.loads(content)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON."""
        status, _, content = self.request("POST", path, json.dumps(body), content_type="application/json")
        return status, json.loads(content)

    def ask(self, **question: Any) -> Any:
        """The answer to a question of the index `colours`."""
        status, found = self.post("/api/search", {"index": "colours", **question})
        assert status == 200, found
        return found
