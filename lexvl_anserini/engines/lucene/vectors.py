"""All vectors of an impact index, read from its postings."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, get_reader
from lexvl_anserini.engines.resident.packing import Lists, exported
from lexvl_anserini.ground.errors import ArtefactError

if TYPE_CHECKING:
    from scipy import sparse


class IndexVectors(NamedTuple):
    """The documents of an index.

    ids      in their order, by code points
    terms    in the order of the index
    impacts  CSR int64 [documents, terms]
    """

    ids: list[str]
    terms: list[str]
    impacts: sparse.csr_matrix


def read_vectors(index: Path) -> IndexVectors:
    """Reads ids and postings of an index once: 16 bytes of memory a posting.

    Raises:
        ArtefactError: no Lucene index, or one with documents without an id.
    """
    from scipy import sparse

    if not any(index.glob("segments_*")):
        raise ArtefactError(f"{index}: no Lucene index; build it with python -m lexvl_anserini.index")
    jvm.start()
    with get_reader(index) as reader:
        holders: dict[int, str] = {}
        for chunk in exported(reader, ID):
            names = np.array(read_names(chunk), object).repeat(np.diff(chunk.ends, prepend=0)).tolist()
            holders |= {number: name.decode() for number, name in zip(chunk.documents.tolist(), names, strict=True)}
        ids = sorted(holders.values())
        place = {doc_id: number for number, doc_id in enumerate(ids)}
        rows = np.full(max(holders, default=-1) + 1, -1, np.int32)
        for number, doc_id in holders.items():
            rows[number] = place[doc_id]
        terms, columns, documents, impacts = list[str](), [], [], []
        for chunk in exported(reader, CONTENTS):
            counts = np.diff(chunk.ends, prepend=0)
            columns.append(np.arange(len(terms), len(terms) + len(counts), dtype=np.int32).repeat(counts))
            terms += [name.decode() for name in read_names(chunk)]
            documents.append(rows[chunk.documents])
            impacts.append(chunk.impacts.astype(np.int64))
    if len(ids) < len(holders) or any((numbers < 0).any() for numbers in documents):
        raise ArtefactError(f"{index}: documents without an id of their own; index again")
    nothing = [np.zeros(0, np.int32)]
    places = np.concatenate(documents or nothing), np.concatenate(columns or nothing)
    values = np.concatenate(impacts or [np.zeros(0, np.int64)])
    return IndexVectors(ids, terms, sparse.csr_matrix((values, places), shape=(len(ids), len(terms))))


def read_names(chunk: Lists) -> list[bytes]:
    """The terms of some posting lists."""
    names, ends = chunk.names.tobytes(), np.cumsum(chunk.lengths).tolist()
    return [names[start:end] for start, end in pairwise([0, *ends])]
