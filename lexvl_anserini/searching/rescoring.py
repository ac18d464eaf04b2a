"""Runs scored again by encoders: a weighted sum of several encoders' scores, or the first documents of one run.

`compute_hybrid_lists` sums weight x <query, document> over encoders, in floats. Joint's authors mix w1 x cosine + w2 x
lexical dot product. Scores of runs cannot be mixed in this way: those of an impact index are integers with a scale
of their own per query, and a document may be missing from a list. Here the runs only name candidates; each candidate is
scored by every run's encoder, which encodes it or has its vector in shards. With more candidates than the corpus has
documents the result is exact.

`rerank_lists` scores the first documents of a run by one encoder. SVDR's late parametric search indexes documents as
bags of tokens without a network (beta), and both towers score the first `depth` documents of a query, which are encoded
on the fly. FDT finds by weights and re-ranks by features. The documents below `depth` keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.topics import read_topics
from lexvl_anserini.encoders.cards import CARDS, make_direction_option
from lexvl_anserini.encoders.encoder import DenseSide, Encoder, ReadsImages, encode_inputs
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import (
    MANIFEST,
    NAMED,
    Counts,
    EncoderRef,
    RunManifest,
    read_manifest,
    read_run_manifest,
)
from lexvl_anserini.ground.progress import make_batches
from lexvl_anserini.ground.records import Document, QuantiserEntry, ScoredDoc, Topic
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.runs.fusion import Fusion, build_fused_manifest
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.runs.trec import DEFAULT_HITS, read_lists
from lexvl_anserini.searching.search import NOTED
from lexvl_anserini.shards.encoding import Covered, CoveredDigest, digest_documents
from lexvl_anserini.shards.reading import read_stored_vectors

if TYPE_CHECKING:
    import numpy as np


log = logging.getLogger(__name__)

PIECE = 256  # topics encoded at once
CANDIDATES = 100  # documents of each run that `hybrid` scores by default
DEPTH = 100  # documents of a run that `rerank` scores by default: the published protocol (model cards of SVDR)

# Topic -> ids of the documents to score.
Candidates = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class WeightedEncoder:
    """One summand of a hybrid score.

    Attributes:
        model: its towers encode topics and documents.
        weight: of its inner product.
        documents: reads the corpus for this encoder, from the start at each call.
        shards: have the documents' vectors; None to encode the documents.
    """

    model: Encoder
    weight: float
    documents: Callable[[], Iterator[Document]]
    shards: Path | None = None


def compute_hybrid_lists(
    topics: Iterable[Topic],
    candidates: Candidates,
    encoders: Sequence[WeightedEncoder],
    hits: int = DEFAULT_HITS,
    batch_size: int = 32,
) -> Iterator[RankedList]:
    """One ranked list per topic: its candidates by the weighted sum of all encoders' scores, summed in float64.

    Each distinct candidate is encoded (or read) once per encoder and its vectors stay in memory: 4 bytes a dimension
    (dense), 8 a posting (lexical; 12 if read).
    """
    import numpy as np

    check_count("hits", hits)
    check_count("batch_size", batch_size)
    if not encoders:
        raise UsageError("nothing to score with: give at least one run")
    rows = {doc_id: row for row, doc_id in enumerate(dict.fromkeys(d for ids in candidates.values() for d in ids))}
    documents = [read_candidate_vectors(encoder, rows, batch_size) for encoder in encoders]
    for piece in make_batches(topics, PIECE):
        towers = [encoder.model.query for encoder in encoders]
        queries = [vectors(tower, map(tower.read_topic, piece), batch_size) for tower in towers]
        for position, topic in enumerate(piece):
            doc_ids = candidates.get(topic.query_id, ())
            chosen = [rows[doc_id] for doc_id in doc_ids]
            scores = sum(
                encoder.weight * products(matrix[chosen], query[position])
                for encoder, matrix, query in zip(encoders, documents, queries, strict=True)
            )
            rounded = np.atleast_1d(np.asarray(scores, dtype=np.float32)).tolist()  # equal vectors keep equal scores
            yield rank_hits(topic.query_id, zip(doc_ids, rounded, strict=True), hits)


def read_candidate_vectors(encoder: WeightedEncoder, rows: Mapping[str, int], batch_size: int) -> Any:
    """The vectors of the candidates, in the order of `rows`: float32 [n, D], or CSR [n, V]."""
    if encoder.shards is not None:
        return read_stored_vectors(encoder.shards, rows)
    tower = encoder.model.document
    inputs = {d.doc_id: tower.read(d) for d in encoder.documents() if d.doc_id in rows}
    if missing := [doc_id for doc_id in rows if doc_id not in inputs]:
        raise DataError(
            f"document {missing[0]!r} of a run ({len(missing)} such) is not in the corpus of encoder "
            f"{encoder.model.name!r}; give runs of one corpus"
        )
    return vectors(tower, (inputs[doc_id] for doc_id in rows), batch_size)


def vectors(tower: Any, inputs: Iterable[Any], batch_size: int) -> Any:
    """float32 [n, D] of a dense tower, CSR [n, V] of a lexical one; else what `@` compares with a query."""
    if tower.kind == "text":
        raise UsageError("bm25 has no vectors to score with; mix its run with python -m lexvl_anserini.fuse")
    if tower.kind == "multi-vector":
        return cast(DenseSide, tower).vectors(list(inputs), batch_size)
    return encode_inputs(tower, list(inputs), batch_size)


def products(documents: Any, query: Any) -> np.ndarray:
    """Inner products float64 [k] of documents, float [k, D] or CSR [k, V], and one query."""
    import numpy as np

    dense = query if isinstance(query, np.ndarray) else query.toarray()[0]
    return np.asarray(documents.astype(np.float64) @ dense.astype(np.float64)).reshape(-1)


def list_candidates(runs: Sequence[Path], depth: int) -> dict[str, list[str]]:
    """The first `depth` documents of every run, each once, in the order in which the runs name them."""
    merged: dict[str, dict[str, None]] = {}
    for path in runs:
        for query_id, documents in read_lists(path).items():
            merged.setdefault(query_id, {}).update(dict.fromkeys(documents.doc_ids[:depth]))
    return {query_id: list(doc_ids) for query_id, doc_ids in merged.items()}


def load_run_encoder(
    path: Path, weight: float, data_dir: str | None, device: str, shards: Path | None = None
) -> WeightedEncoder:
    """The encoder and the corpus of a run, loaded from the run's manifest."""
    run = expect_run_manifest(path)
    vocabulary = None if shards is None else read_manifest(shards).vocabulary_digest
    model = load_encoder_from(load_own_encoder(run), device=device, vocabulary=vocabulary)
    return WeightedEncoder(model, weight, partial(load_run_documents, run, data_dir), shards)


def load_own_encoder(run: RunManifest) -> EncoderRef:
    """The encoder of a run without the options that refined its queries."""
    options = {name: value for name, value in run.encoder.options.items() if name not in NOTED}
    return EncoderRef({**run.encoder, "options": options})


def load_run_documents(run: RunManifest, data_dir: str | None) -> Iterator[Document]:
    """The documents of a run, read again; the last one is followed by a comparison with what was encoded.

    Pictures that differ are a warning: those of a corpus that was encoded in parts have a digest of their parts.
    """
    corpus, texts = run.corpus, sha256()
    dataset = load_reference(corpus.ref.at(data_dir))
    if not corpus.digest or corpus.get("parts"):  # several corpora in one index
        yield from dataset.documents()
        return
    with FileDigests() as files:
        # Whether pictures were encoded, and metadata stored, which the digest then covers, no run says.
        kinds = ((True, False), (True, True), (False, True)) if corpus.contents and not corpus.part else ()
        digests = {kind: CoveredDigest(Covered(ReadsImages(), kind[1], files)) for kind in kinds}
        for document in digest_documents(dataset.documents(), texts):
            for (pictures, _), contents in digests.items():
                contents.add([document if pictures else document._replace(image=None)])
            yield document
    if texts.hexdigest() != corpus.digest:
        raise ArtefactError(
            f"{corpus.name}: its documents changed since they were encoded (digest {texts.hexdigest()[:12]} found, "
            f"{corpus.digest[:12]} in the run's manifest); encode, index and search them again"
        )
    if digests and corpus.contents not in {contents.hexdigest() for contents in digests.values()}:
        log.warning("%s: pictures or vectors changed since they were encoded, or were encoded in parts", corpus.name)


def expect_run_manifest(path: Path, mixed: bool = False) -> RunManifest:
    """The manifest beside a run, which names one encoder, unless it may be mixed."""
    run = read_run_manifest(path)
    if run is None:
        raise ArtefactError(f"{path}: no manifest beside it that names its encoder; make the run with search")
    if run.mixes and not mixed:
        raise UsageError(
            f"{path}: a mixture of {len(run.encoder.options['runs'])} runs, which has no encoder to score with; give "
            "the runs that it was made of"
        )
    return run


def load_run_topics(run: RunManifest, topics: str | None, data_dir: str | None) -> TopicSource:
    """The topics of a run; `topics` names their file, if they came from one."""
    if topics is not None:
        path = Path(topics)
        stream = partial(read_topics, path, run.corpus.escape_ids)
        return TopicSource(stream, path.name, sha256=compute_sha256(path) if path.is_file() else "")
    if run.judged is None:
        raise UsageError(f"the topics came from the file {run.topics}; name it with --topics")
    return TopicSource.take_dataset(load_reference(run.judged.at(data_dir)))


def describe_other_topics(run: RunManifest, topics: TopicSource) -> dict[str, str]:
    """The digest of topics that differ from what was searched: a file that changed, or texts of encoded queries."""
    noted = topics.noted()
    same = not run.topics_sha256 or run.topics_sha256 in (noted, noted.partition("+")[0])
    return {} if same else {"topics": noted[:NAMED]}


def plan_hybrid(
    runs: Sequence[Path],
    weights: Sequence[float],
    candidates: int,
    hits: int,
    topics: TopicSource,
    shards: Sequence[Path | None] = (),
) -> RunManifest:
    """The manifest of a hybrid run: topics and judgements as in the runs, their names and weights.

    `shards` are those that are read, one (or None) for each run; empty for none.
    """
    shared = build_fused_manifest(runs, Fusion("interpolation", tuple(weights), normalisation="none"), hits)
    options = {"weights": list(weights), "candidates": candidates, "runs": shared.encoder.options["runs"]}
    options |= describe_other_topics(shared, topics)
    if any(shards):
        # Their impacts are rounded, so that scores differ from those of encoded documents.
        options["shards"] = [
            folder and f"{folder.name}@{compute_sha256(folder / MANIFEST)[:NAMED]}" for folder in shards
        ]
    # Equal runs may be of other encoders and of other documents, whose vectors decide the scores.
    scored = [expect_run_manifest(path) for path in runs]
    content = [[run.encoder.without_places(), run.corpus.digest, run.corpus.contents] for run in scored]
    index = f"@{sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:NAMED]}"
    encoder = EncoderRef(name="+".join(run.encoder.name for run in scored), options=options)
    return replace(shared, encoder=encoder, index=index)


def rerank_lists(
    topics: Iterable[Topic],
    lists: Mapping[str, Sequence[ScoredDoc]],
    model: Encoder,
    documents: Callable[[], Iterator[Document]],
    depth: int = DEPTH,
    batch_size: int = 32,
) -> Iterator[RankedList]:
    """One list per topic: its first `depth` documents by the model's inner product, then the others as they were.

    `documents` reads the corpus from the start at each call; only documents that are scored are encoded.
    """
    listed = {query_id: RankedList.of(hits) for query_id, hits in lists.items()}
    candidates = {query_id: hits.doc_ids[:depth] for query_id, hits in listed.items()}
    encoders = [WeightedEncoder(model, 1.0, documents)]
    for first in compute_hybrid_lists(topics, candidates, encoders, hits=depth, batch_size=batch_size):
        yield filter_above(first, listed[first.query_id][depth:]) if first else first


def filter_above(first: RankedList, rest: RankedList) -> RankedList:
    """`first`, then documents with scores of another scale, from 1 below its last; their order and distances stay."""
    import numpy as np

    shift = first.scores[-1] - 1 - rest.scores[0] if rest else 0.0
    return RankedList(
        first.query_id, [*first.doc_ids, *rest.doc_ids], np.concatenate([first.scores, rest.scores + shift])
    )


def load_reranking_encoder(
    run: RunManifest,
    checkpoint: str | None,
    tokenizer: str | None,
    device: str,
    settings: Mapping[str, Any],
    encoder: str | None = None,
) -> Encoder:
    """The encoder of a run, or another, with the options of its card for re-ranking and the user's settings."""
    own = CARDS[name].rerank_options if (name := encoder or run.encoder.name) in CARDS else {}
    if encoder is not None:
        options = {**make_direction_option(encoder, run.corpus.direction or "text-to-text"), **own, **settings}
        return load_encoder(encoder, checkpoint, tokenizer, device=device, **options)
    # No vocabulary: it may differ from the index's.
    return load_encoder_from(load_own_encoder(run), checkpoint, tokenizer, device, {**own, **settings})


def plan_rerank(path: Path, topics: TopicSource, model: Encoder, depth: int) -> RunManifest:
    """The manifest of a re-ranked run: its encoder and depth, and the encoder and the digest of the first search."""
    run = expect_run_manifest(path, mixed=True)
    first = {"depth": depth, "encoder": dict(run.encoder), **describe_other_topics(run, topics)}
    index = f"{run.index}+{compute_sha256(path)[:NAMED]}"
    encoder = EncoderRef({**model.identity(), "reranks": first})
    return replace(run, encoder=encoder, index=index, quantiser=QuantiserEntry(), efficiency={}, counts=Counts())
