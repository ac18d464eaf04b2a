"""One model of a protocol in a child: its index, and its topics encoded and searched one at a time."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from .processes import Ready, Stopwatch


def build(shards: str, index: str) -> dict[str, Any]:
    """Indexes shards with the default engine of their kind, unless it is done: seconds, bytes, name of the engine."""
    from lexvl_anserini import build_index
    from lexvl_anserini.engines.index_folder import read_report

    from .index import index_bytes, resident_bytes

    with Stopwatch() as watch:
        build_index(shards, index)
    path = Path(index)
    size = index_bytes(path) + resident_bytes(path)
    return {"build_s": watch.wall_s, "bytes": size, "engine": read_report(path)["engine"]}


def answer(shards: str, index: str, topics: str | None, count: int, tokens: int | None, data_dir: str | None) -> Ready:
    """A worker around an index, its encoder and the first `count` topics; one thread.

    A request is `hits` and a `limit` of topics; the answer has per topic the seconds of encoding and of searching, the
    CPU seconds of both, and the ranked list.
    """
    import faiss
    import torch

    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.engines.opening import open_index
    from lexvl_anserini.ground.errors import UsageError
    from lexvl_anserini.ground.records import ImpactQuery
    from lexvl_anserini.queries.query_source import topic_source, vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries

    from ..measures.flops import sparsity_of

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    path = Path(index)
    manifest = index_manifest(path)
    model, notes = load_limited(manifest, tokens)
    source = topic_source(topics, path, manifest, data_dir, vocabulary_file(path, None))
    if source.encoded:
        raise UsageError(f"{source.label}: encoded queries, but a protocol measures their encoding; give topics")
    asked: list[Any] = list(islice(source.stream(), count))
    engine = open_index(path, manifest)

    def respond(hits: int, limit: int | None) -> dict[str, Any]:
        encode_s, search_s, cpu_s, lists = [], [], [], {}
        for topic in asked[:limit]:
            started, worked = time.perf_counter(), time.process_time()
            [query] = encode_queries(model, [topic], manifest, batch_size=1)
            encoded = time.perf_counter()
            [hits_of_query] = engine.search([query], hits + source.remove_query)
            search_s.append(time.perf_counter() - encoded)
            cpu_s.append(time.process_time() - worked)
            encode_s.append(encoded - started)
            lists[topic.query_id] = [(document.doc_id, document.score) for document in hits_of_query]
        return {"encode_s": encode_s, "search_s": search_s, "cpu_s": cpu_s, "lists": lists}

    sparsity: dict[str, float] = {}
    if manifest.kind == "impact":
        queries = encode_queries(model, asked, manifest)
        row = sparsity_of(Path(shards), (query.vector for query in queries if isinstance(query, ImpactQuery)))
        sparsity = {"terms_per_query": round(row.terms_per_query, 1), "flops": round(row.flops, 2)}
    about = {
        "label": source.label,
        "queries": len(asked),
        "judged": source.judged and asdict(source.judged),
        "remove_query": source.remove_query,
        "sparsity": sparsity,
        "notes": notes,
    }
    return Ready(about, respond)


def load_limited(manifest: Any, tokens: int | None) -> tuple[Any, list[str]]:
    """The encoder of an index, whose queries have at most so many tokens; and a note where it has its own limit."""
    from lexvl_anserini.encoders.cards import length_options
    from lexvl_anserini.encoders.loading import load_encoder_of
    from lexvl_anserini.ground.errors import UsageError

    digest, direction = manifest.vocabulary_digest, manifest.corpus.direction or ""
    if tokens is None:
        return load_encoder_of(manifest.encoder, device="cpu", vocabulary=digest), []
    try:
        limited = length_options(manifest.encoder.name, direction, tokens, tokens)
        return load_encoder_of(manifest.encoder, device="cpu", settings=limited, vocabulary=digest), []
    except UsageError as problem:
        note = f"its own limit of tokens, not {tokens} ({problem})"
        return load_encoder_of(manifest.encoder, device="cpu", vocabulary=digest), [note]
