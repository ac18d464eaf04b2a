"""The stored vectors of some documents: what `encode` wrote, instead of encoding the documents again."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.run_manifest import RunManifest
from lexvl_anserini.shards.reading import read_impacts, read_vectors, read_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from scipy import sparse


def stored_vectors(shards: Path, rows: Mapping[str, int]) -> Any:
    """The vectors of some documents: float32 [n, D] of dense shards, CSR [n, V] float64 of impacts.

    A dense vector is the encoder's own. An impact is divided by the scale of the shards: it differs from the encoder's
    weight by half a step of the quantiser at most, or by what was clipped.

    Args:
        shards: a folder that `encode` wrote.
        rows: doc_id -> row of the result, 0 to n - 1.

    Raises:
        UsageError: shards of texts, or of impacts that have no common scale.
        DataError: a document is not in the shards.
        ArtefactError: the shards are unfinished or damaged.
    """
    manifest = read_manifest(shards)
    if manifest.kind == "text":
        raise UsageError(f"{shards}: texts have no vectors to score with; mix runs with python -m lexvl_anserini.fuse")
    return (_dense if manifest.kind == "dense" else _lexical)(shards, manifest, rows)


def _dense(shards: Path, manifest: Manifest, rows: Mapping[str, int]) -> np.ndarray:
    import numpy as np

    places, parts = array("q"), []
    for batch in read_vectors(shards, manifest):
        matches = [(rows[doc_id], place) for place, doc_id in enumerate(batch.doc_ids) if doc_id in rows]
        places.extend(row for row, _ in matches)
        parts.append(batch.vectors[[place for _, place in matches]])
    _check_all(shards, rows, places)
    vectors: np.ndarray = np.concatenate(parts)[np.argsort(places)]
    return vectors


def _lexical(shards: Path, manifest: Manifest, rows: Mapping[str, int]) -> sparse.csr_matrix:
    import numpy as np
    from scipy import sparse

    side = Quantiser.from_json(manifest.quantiser).document if manifest.quantiser else Quantiser().document
    if side.scheme != "binary" and side.scale is None:
        raise UsageError(f"{shards}: impacts with a scale of their own per document; encode again, or leave it out")
    vocabulary = read_vocabulary(shards, manifest)
    places, lengths, dims, impacts = array("q"), array("q"), array("i"), array("i")
    for document in read_impacts(shards, manifest, vocabulary):
        if document.doc_id in rows:
            places.append(rows[document.doc_id])
            lengths.append(len(document.vector))
            dims.extend(vocabulary.dimension[term] for term in document.vector)
            impacts.extend(document.vector.values())
    _check_all(shards, rows, places)
    weights = np.frombuffer(impacts, dtype=np.intc) / (side.scale or 1.0)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    shape = (len(rows), len(vocabulary))
    matrix = sparse.csr_matrix((weights, np.frombuffer(dims, dtype=np.intc), ends), shape=shape)
    return matrix[np.argsort(places)]


def _check_all(shards: Path, rows: Mapping[str, int], places: Sequence[int]) -> None:
    """Raises DataError if a document was not found."""
    if len(places) < len(rows):
        present = set(places)
        missing = [doc_id for doc_id, row in rows.items() if row not in present]
        raise DataError(f"{shards}: document {missing[0]!r} of a run ({len(missing)} such) is not in these shards")


def shards_of_runs(runs: Sequence[tuple[Path, RunManifest]], folders: Sequence[Path]) -> list[Path | None]:
    """For each run the folder that its index was built from, among some folders; None where there is none."""
    manifests = {folder: read_manifest(folder) for folder in folders}
    chosen = [
        [folder for folder, manifest in manifests.items() if _may_have_answered(manifest, run_manifest)]
        for _, run_manifest in runs
    ]
    for (run, _), fitting in zip(runs, chosen, strict=True):
        if len(fitting) > 1:
            raise UsageError(f"{run}: both {fitting[0]} and {fitting[1]} may be the shards of its index; give one")
    if strangers := [folder for folder in folders if not any(folder in fitting for fitting in chosen)]:
        manifest = manifests[strangers[0]]
        known = "; ".join(
            f"{run} of {run_manifest.encoder.name} over {run_manifest.corpus.name}" for run, run_manifest in runs
        )
        raise UsageError(
            f"{strangers[0]}: vectors of {manifest.encoder.name} over {manifest.corpus.name}; no run's index was built "
            f"from them ({known}; encoder, options, corpus and quantiser must be the same)"
        )
    return [fitting[0] if fitting else None for fitting in chosen]


def _may_have_answered(shards: Manifest, run: RunManifest) -> bool:
    """True if an index of the shards may have answered a run; the search may have changed options of the query side."""
    same = (shards.corpus, shards.quantiser, shards.encoder.name, shards.encoder.checkpoint_digest)
    if same != (run.corpus, run.quantiser, run.encoder.name, run.encoder.checkpoint_digest):
        return False
    options = shards.encoder.without_places()["options"]
    return all(name.startswith("query") or run.encoder.options.get(name) == value for name, value in options.items())
