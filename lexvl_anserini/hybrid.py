"""Runs -> one run scored by several encoders at once: score = sum over runs of weight x <query, document>, in floats.

python -m lexvl_anserini.hybrid --run sparse.trec --run dense.trec --weight 0.5 --weight 0.2 --output hybrid.trec

Joint's authors mix w1 x cosine + w2 x lexical dot product. Scores of runs cannot be mixed so: those of an impact index
are integers of a scale of their own per query, and a document may be missing from one list. Here the runs only name
candidates; each is encoded again by every run's encoder and scored by all of them. With candidates beyond the size of
the corpus the result is exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini.cli import DataDir, Overwrite, Verbose, check_style, print_rows, run
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.fuse import fused_manifest
from lexvl_anserini.manifest import EncoderRef, RunManifest, read_run_manifest
from lexvl_anserini.ranking.fusion import Fusion
from lexvl_anserini.ranking.order import ranked
from lexvl_anserini.ranking.runs import DEFAULT_HITS, is_finished, lists_of, write_run
from lexvl_anserini.records import Document, ScoredDoc, Topic

if TYPE_CHECKING:
    import numpy as np

    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.hybrid")

# Topics encoded at once.
PIECE = 256
# Documents of each run that are scored anew, unless told otherwise.
CANDIDATES = 100

# Topic -> ids of the documents to score.
Candidates = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """One term of the sum.

    model      its towers encode topics and documents
    weight     of its inner product
    documents  the corpus as this encoder reads it, from the start at each call
    """

    model: Encoder
    weight: float
    documents: Callable[[], Iterator[Document]]


def hybrid_lists(
    topics: Iterable[Topic],
    candidates: Candidates,
    parts: Sequence[Part],
    hits: int = DEFAULT_HITS,
    batch_size: int = 32,
) -> Iterator[list[ScoredDoc]]:
    """One ranked list per topic: its candidates by the weighted sum of all parts' scores, summed in float64.

    Each distinct candidate is encoded once per part and its vectors are held: 4 bytes a dimension (dense), 8 a posting
    (lexical).

    Raises:
        UsageError: no part, or one without vectors.
        DataError: a candidate is not in a part's corpus.
    """
    if not parts:
        raise UsageError("nothing to score with: give at least one run")
    rows = {doc_id: row for row, doc_id in enumerate(dict.fromkeys(d for ids in candidates.values() for d in ids))}
    documents = [candidate_vectors(part, rows, batch_size) for part in parts]
    stream = iter(topics)
    while piece := list(islice(stream, PIECE)):
        queries = [vectors(part.model.query, map(part.model.query.read_topic, piece), batch_size) for part in parts]
        for position, topic in enumerate(piece):
            doc_ids = candidates.get(topic.query_id, ())
            chosen = [rows[doc_id] for doc_id in doc_ids]
            scores = sum(
                part.weight * products(matrix[chosen], query[position])
                for part, matrix, query in zip(parts, documents, queries, strict=True)
            )
            yield ranked(topic.query_id, zip(doc_ids, _rounded(scores), strict=True), hits)


def candidate_vectors(part: Part, rows: Mapping[str, int], batch_size: int) -> Any:
    """The vectors of the candidates, row by row as `rows` says: float32 [n, D], or CSR [n, V].

    Raises:
        UsageError: the encoder has no vectors.
        DataError: one is not in the corpus.
    """
    found = {d.doc_id: part.model.document.read(d) for d in part.documents() if d.doc_id in rows}
    if missing := [doc_id for doc_id in rows if doc_id not in found]:
        raise DataError(
            f"document {missing[0]!r} of a run ({len(missing)} such) is not in the corpus of encoder "
            f"{part.model.name!r}; give runs of one corpus"
        )
    return vectors(part.model.document, (found[doc_id] for doc_id in rows), batch_size)


def vectors(tower: Any, inputs: Iterable[Any], batch_size: int) -> Any:
    """float32 [n, D] of a dense tower, CSR [n, V] of a lexical one.

    Raises:
        UsageError: a tower of plain texts.
    """
    if tower.kind == "text":
        raise UsageError("bm25 has no vectors to score with; mix its run with python -m lexvl_anserini.fuse")
    encode = tower.vectors if tower.kind == "dense" else tower.weights
    return encode(list(inputs), batch_size)


def products(documents: Any, query: Any) -> np.ndarray:
    """Inner products float64 [k] of documents, float [k, D] or CSR [k, V], and one query."""
    import numpy as np

    dense = query if isinstance(query, np.ndarray) else query.toarray()[0]
    return np.asarray(documents.astype(np.float64) @ dense.astype(np.float64)).reshape(-1)


def _rounded(scores: Any) -> list[float]:
    """Scores rounded to float32, so that equal vectors keep equal scores."""
    import numpy as np

    return np.atleast_1d(np.asarray(scores, dtype=np.float32)).tolist()


def candidates_of(runs: Sequence[Path], depth: int) -> dict[str, list[str]]:
    """The first `depth` documents of every run, each once, in the order in which the runs name them.

    Raises:
        DataError: a run cannot be read.
    """
    merged: dict[str, dict[str, None]] = {}
    for path in runs:
        for query_id, documents in lists_of(path).items():
            merged.setdefault(query_id, {}).update(dict.fromkeys(document.doc_id for document in documents[:depth]))
    return {query_id: list(doc_ids) for query_id, doc_ids in merged.items()}


def part_of(path: Path, weight: float, data_dir: str | None, device: str) -> Part:
    """What a run was made with, loaded again from its manifest.

    Raises:
        ArtefactError: no manifest, or another checkpoint than the run's.
    """
    from lexvl_anserini.data.dataset import noted_dataset
    from lexvl_anserini.encoders.loading import load_encoder_of

    about = _manifest_of(path)
    return Part(load_encoder_of(about.encoder, device=device), weight, noted_dataset(about.corpus, data_dir).documents)


def _manifest_of(path: Path) -> RunManifest:
    about = read_run_manifest(path)
    if about is None:
        raise ArtefactError(f"{path}: no manifest beside it that names its encoder; make the run with search")
    return about


def topics_of(about: RunManifest, topics: str | None, data_dir: str | None) -> Iterator[Topic]:
    """The topics that a run answers.

    Raises:
        UsageError: they came from a file, and it is not named.
    """
    from lexvl_anserini.data.dataset import noted_dataset
    from lexvl_anserini.data.topics import read_topics

    if topics is not None:
        return read_topics(Path(topics), bool(about.corpus.get("escape_ids")))
    if not about.dataset:
        raise UsageError(f"the topics came from the file {about.topics}; name it with --topics")
    asked = {**about.corpus, "name": about.dataset, "split": about.split, "data_dir": about.data_dir}
    return noted_dataset(asked, data_dir).topics()


def hybrid_manifest(runs: Sequence[Path], weights: Sequence[float], candidates: int, hits: int) -> RunManifest:
    """What is known of the new run: where its judgements are, and the runs and weights it was made of.

    Raises:
        UsageError: the runs answer different topics.
    """
    shared = fused_manifest(runs, Fusion("interpolation", tuple(weights), normalisation="none"), hits)
    options = {"weights": list(weights), "candidates": candidates, "runs": shared.encoder.options["runs"]}
    parts = [_manifest_of(path).encoder.name for path in runs]
    return replace(shared, encoder=EncoderRef(name="+".join(parts), options=options))


def command(
    runs: Annotated[list[Path], typer.Option("--run", help="A run with its manifest; its encoder scores, repeatable.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    weights: Annotated[
        list[float] | None, typer.Option("--weight", help="Of each run's score, in their order; default 1 each.")
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Documents taken from each run, per topic.")] = CANDIDATES,
    hits: Annotated[int, typer.Option(min=1, help="Per topic.")] = DEFAULT_HITS,
    topics: Annotated[str | None, typer.Option(help="The topics' file, if the runs' topics came from one.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Items per forward pass.")] = 32,
    overwrite: Overwrite = False,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Score what runs found by a weighted sum of their encoders' own scores.

    Example: python -m lexvl_anserini.hybrid --run runs/demo.vdr.trec --run runs/demo.sentence.trec --output runs/h.trec
    """
    check_style(style)
    if weights and len(weights) != len(runs):
        raise UsageError(f"{len(weights)} weights for {len(runs)} runs; give one for each, or none")
    weights = weights or [1.0] * len(runs)
    wanted = hybrid_manifest(runs, weights, candidates, hits)
    if is_finished(output, wanted, overwrite):
        log.info("%s: finished already, nothing to do", output)
        written = read_run_manifest(output)
        assert written is not None
    else:
        stream = topics_of(_manifest_of(runs[0]), topics, data_dir)
        parts = [part_of(path, weight, data_dir, device) for path, weight in zip(runs, weights, strict=True)]
        lists = hybrid_lists(stream, candidates_of(runs, candidates), parts, hits, batch_size)
        written = write_run(output, lists, wanted, tag=wanted.encoder["name"])
    print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    run(command)
