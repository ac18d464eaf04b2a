"""The shards of an index, from its own postings: its vectors with other metadata or terms, not encoded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from lexvl_anserini.engines.lucene.vectors import read_vectors
from lexvl_anserini.ground.files import new_folder, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, ShardRecord
from lexvl_anserini.ground.records import NO_METADATA
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary
from lexvl_anserini.shards.layout import Layout, Shard, write_shard
from lexvl_anserini.shards.reading import read_vocabulary


class OwnVectors(NamedTuple):
    """The vectors of an impact index in the order of ids, impacts CSR int64 [documents, V]."""

    ids: Sequence[str]
    impacts: sparse.csr_matrix
    vocabulary: Vocabulary


def own_vectors(index: Path, manifest: Manifest) -> OwnVectors:
    """Reads the vectors of an impact index.

    Raises:
        ArtefactError: no Lucene index, or one without the vocabulary of its manifest.
    """
    vectors, vocabulary = read_vectors(index), read_vocabulary(index, manifest)
    columns = np.array([vocabulary.dimension[term] for term in vectors.terms], np.int32)
    rows, ids = vectors.impacts, vectors.ids
    impacts = sparse.csr_matrix((rows.data, columns[rows.indices], rows.indptr), shape=(len(ids), len(vocabulary)))
    impacts.sort_indices()
    return OwnVectors(ids, impacts, vocabulary)


def write_own_shards(
    index: Path | OwnVectors, output: Path, manifest: Manifest, metadata: Mapping[str, Mapping[str, Any]]
) -> Manifest:
    """Writes the vectors of an impact index as one shard, in the order of ids, whole or not at all.

    Args:
        index: its folder, or its vectors, perhaps with further terms.
        output: a folder, which is replaced.
        manifest: of the index, with what shall differ in the shards, such as the corpus.
        metadata: of the documents that have some.

    Returns:
        The manifest of the shards.

    Raises:
        ArtefactError: no Lucene index, or one without the vocabulary of its manifest.
    """
    ids, impacts, vocabulary = own_vectors(index, manifest) if isinstance(index, Path) else index
    shard = Shard(ids, [""] * len(ids), impacts, metadata=[metadata.get(doc_id, NO_METADATA) for doc_id in ids])
    layout = Layout(shard_size=max(1, len(ids)), metadata=True)
    with new_folder(output) as part:
        (part / "docs").mkdir()
        entry = ShardRecord(write_shard(part, layout.name(0), shard, vocabulary, layout))
        vocabulary.write(part / VOCABULARY)
        whole = replace(manifest, layout=layout.to_json(), shards=(entry,))
        write_json(part / MANIFEST, whole.to_json())
    return whole
