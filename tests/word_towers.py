"""A model of eight terms without a network, a corpus of thirty documents, and what tests of shards ask of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_towers import Model, tree
from pyarrow import parquet
from scipy import sparse

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.ground.errors import FAIL, UsageError
from lexvl_anserini.ground.records import Document, Vocabulary
from lexvl_anserini.shards import writing
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

TERMS = ("ash", "bay", "cat", "dog", "elm", "fox", "gnu", "été")
SMALL = Layout(shard_size=8)
ENCODE_SHARD = writing.encode_shard


class WordTower:
    """Weight of a term: the number of times it occurs, halved."""

    kind, binary, vocabulary = "impact", False, Vocabulary(TERMS)

    def read(self, document):
        if document.text is None and document.title is None:
            raise UsageError(f"document {document.doc_id!r} has no text; this encoder reads texts only")
        return document.contents

    def weights(self, inputs, batch_size=32, progress=lambda n: None, on_error=FAIL):
        rows = [[text.split().count(term) / 2 for term in TERMS] for text in inputs]
        progress(len(rows))
        return sparse.csr_matrix(np.array(rows, dtype=np.float32).reshape(len(rows), len(TERMS)))

    def vectors(self, inputs, batch_size=32, progress=lambda n: None, on_error=FAIL):
        return self.weights(inputs, batch_size, progress, on_error).toarray()


class PictureTower(WordTower):
    """Weight of a term: a share of the picture's red, so that a vector shows which picture it is of."""

    def read(self, document):
        return document.image

    def weights(self, inputs, batch_size=32, progress=lambda n: None, on_error=FAIL):
        matrix = np.zeros((len(inputs), len(TERMS)), dtype=np.float32)
        pictures = read_images(inputs, workers=2, on_error=on_error)
        for picture in pictures:
            matrix[picture.position, [0, -1]] = np.asarray(picture.value)[0, 0, 0] / 255, 1
            progress(1)
        return sparse.csr_matrix(matrix)


def model_of(tower: Any = None, kind: str = "", **changes: Any) -> Any:
    tower = tower or WordTower()
    tower.kind = kind or tower.kind
    return Model(tower, tower, tower.kind, **changes)


DENSE, TEXT = model_of(kind="dense"), model_of(kind="text")


def text_of(number):
    return " ".join(TERMS[(number * step) % len(TERMS)] for step in range(number % 7))


DOCUMENTS = [Document(f"d{number:02d}", text=text_of(number)) for number in range(30)]


def corpus(documents=DOCUMENTS, name="toy"):
    return Dataset(name, "test", lambda: iter(documents), lambda: iter(()), lambda: iter(()))


def encode(output, documents=DOCUMENTS, model=None, layout=SMALL, **options):
    return write_impacts(corpus(documents), model or model_of(), Path(output), layout=layout, **options)


def lines(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def rows_of(folder):
    paths = sorted((folder / "docs").iterdir())
    return [row for p in paths for row in (parquet.read_table(p).to_pylist() if p.suffix == ".parquet" else lines(p))]


def same_as_fresh(output, *arguments, **options):
    """True if the folder has the bytes of an encoding that nothing disturbed."""
    encode(fresh := output.with_name(f"{output.name}-fresh"), *arguments, **options)
    return tree(output) == tree(fresh)


def first_ids(monkeypatch):
    """The first ids of the shards that are encoded from now on."""
    calls = []

    def counted(batch, *rest):
        calls.append(batch[0].doc_id)
        return ENCODE_SHARD(batch, *rest)

    monkeypatch.setattr(writing, "encode_shard", counted)
    return calls


def stopped(output, after, **options):
    """Encodes until `after` shards are finished, then fails."""
    counted = iter(range(after))

    def limited(*arguments):
        if next(counted, None) is None:
            raise MemoryError
        return ENCODE_SHARD(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(writing, "encode_shard", limited)
        encode(output, **options)
