"""What a user may set about a benchmark; each suite names the options it heeds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The options of all suites; None is a suite's own default.

    documents     sizes of the collection; most suites take one
    shape         of generated vectors (`vectors.SHAPES`), or what to encode (`encode.SHAPES`)
    terms         per generated document, instead of the shape's own
    shards        a folder that encode wrote, instead of generated vectors
    queries       encoded queries `{"id", "vector"}`, gzipped or not, instead of generated ones
    query_count   how many queries
    query_terms   per generated query
    hits          lengths of the ranked lists
    system        what to compare; default all that are there
    repeats       rounds of alternating runs
    threads       of indexing and of batch search
    batch_size    of encoding
    encoder, checkpoint   of the suites overhead and memory
    corpus, data_dir      whose texts the suite encode reads instead of generated ones
    workdir       where generated files stay, to be used again; default a temporary folder
    seed          of everything generated
    """

    documents: tuple[int, ...] | None = None
    shape: tuple[str, ...] | None = None
    terms: int | None = None
    shards: Path | None = None
    queries: Path | None = None
    query_count: int | None = None
    query_terms: int | None = None
    hits: tuple[int, ...] | None = None
    system: tuple[str, ...] | None = None
    repeats: int | None = None
    threads: int | None = None
    batch_size: int | None = None
    encoder: str | None = None
    checkpoint: str | None = None
    corpus: str | None = None
    data_dir: str | None = None
    workdir: Path | None = None
    seed: int | None = None

    def given(self) -> dict[str, object]:
        """The options that were set."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def one_size(self, default: int) -> int:
        """The number of documents, for a suite that measures one collection.

        Raises:
            UsageError: several were given.
        """
        from lexvl_anserini.errors import UsageError

        sizes = self.documents or (default,)
        if len(sizes) > 1:
            raise UsageError("several --documents are for the suite cost; give one")
        return sizes[0]
