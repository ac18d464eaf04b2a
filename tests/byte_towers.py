"""A model without a network: the weights of a document are the bytes of its picture, its vector or its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import open_source
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import FAIL, OnError
from lexvl_anserini.ground.manifest import EncoderRef, Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Document, Vocabulary
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

SMALL = Layout(shard_size=2)


class Bytes:
    """Reads pictures: the weights of "ash", "bay" and "cat" are the first three bytes of the file."""

    kind, binary, vocabulary = "impact", False, Vocabulary(["ash", "bay", "cat"])

    def read(self, document: Document) -> str:
        return document.image or ""

    def contents(self, given: str) -> bytes:
        with open_source(given) as source:
            return source.read()

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        progress(len(inputs))
        rows = [list(self.contents(given)[:3].ljust(3, b"\0")) for given in inputs]
        return sparse.csr_matrix(np.array(rows, dtype=np.float32).reshape(len(rows), 3))


class Texts(Bytes):
    """Reads the text although there is a picture."""

    def read(self, document: Document) -> str:
        return document.contents

    def contents(self, given: str) -> bytes:
        return given.encode()


class Stored(Bytes):
    def contents(self, given: str) -> bytes:
        return read_embeddings([given])[0].astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Model:
    """What `write_impacts` needs of an encoder."""

    vocabulary = Encoder.vocabulary
    fit_quantiser = Encoder.fit_quantiser
    query: Any = field(default_factory=Bytes)
    document: Any = field(default_factory=Bytes)
    kind: str = "impact"
    name: str = "toy"
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = "toy"

    def identity(self) -> EncoderRef:
        return EncoderRef(name=self.name, checkpoint=None, checkpoint_digest=self.digest, options=dict(self.options))


def encode(
    output: Path, documents: Sequence[Document], tower: Bytes | None = None, layout: Layout = SMALL, **options: Any
) -> Manifest:
    dataset = Dataset("toy", "", lambda: iter(documents), lambda: iter(()), lambda: iter(()))
    model: Any = Model(document=tower or Bytes())
    return write_impacts(dataset, model, output, layout=layout, **options)


def documents_of(folder: Path, **changes: Any) -> list[Document]:
    return [Document(path.name, text="abc", image=str(path), **changes) for path in sorted(folder.glob("*.png"))]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
