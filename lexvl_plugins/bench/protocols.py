"""The protocols by which papers compare a lexical with a dense model in cost, on the stored vectors of two real models.

Both models encode the same topics, one at a time on one thread, and search their own index: the lexical one Lucene's
(with resident postings where it has them), the dense one FAISS, flat. Each is in a child, and rounds take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

from lexvl_eval.measures.flops import count_sparsity
from lexvl_eval.measures.inputs import JudgementSource, read_judgements
from lexvl_eval.measures.metrics import evaluate, means

from lexvl_anserini.encoders.cards import make_length_options
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.engines.engine import open_index
from lexvl_anserini.engines.index_folder import index_manifest, measure_folder, measure_resident, read_report
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import CorpusRef, ImpactQuery, ScoredDoc
from lexvl_anserini.queries.query_source import find_topic_source, find_vocabulary_file
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.searching.building import build_index
from lexvl_plugins.bench.collection import open_workdir
from lexvl_plugins.bench.command import Options, Ratio, Report, mib, ratio
from lexvl_plugins.bench.processes import Ready, Stopwatch, Worker, run_once, take_turns
from lexvl_plugins.papers.sources import PROTOCOLS, Protocol

REPEATS = 3
# Topics that warm caches, Java's compiler and the model before the first round, and those of a protocol by default.
WARM_UP, QUERIES = 20, 1000
# One thread for every library that has threads of its own.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")}


def measure(options: Options) -> Report:
    """One row per model: milliseconds to encode, to search and in all, queries per second, bytes, FLOPS, measures."""
    name = options.protocol or ""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    protocol, twins = PROTOCOLS[name], find_twins(options)
    count = options.query_count or protocol.queries or QUERIES
    with open_workdir(options) as folder, ExitStack() as stack:
        built, workers = {}, {}
        for kind, shards in twins.items():
            index = folder / f"index-{kind}-{shards.name}"
            built[kind] = run_once(".protocols:build", shards=str(shards), index=str(index)).result
            inputs = {"topics": options.topics, "count": count, "tokens": protocol.tokens, "data_dir": options.data_dir}
            worker = Worker(".protocols:answer", ONE_THREAD, shards=str(shards), index=str(index), **inputs)
            workers[kind] = stack.enter_context(worker)
        for worker in workers.values():
            worker.request(hits=protocol.depth, limit=WARM_UP)
        whole = {kind: partial(worker.request, hits=protocol.depth, limit=None) for kind, worker in workers.items()}
        rounds = take_turns(whole, options.repeats or REPEATS)
        rows = []
        for kind, worker in workers.items():
            row = describe_model(kind, twins[kind], built[kind], worker) | summarise_times(rounds[kind])
            rows.append(row | judge_lists(protocol, kind, worker, rounds[kind][0]["lists"]))
    first = workers[next(iter(twins))].facts
    settings = {
        "protocol": f"{name} ({protocol.paper})",
        "topics": first["label"],
        "items": f"{rows[0]['items']:,} used, {quote(protocol.items)}",
        "queries": f"{first['queries']:,} used, {quote(protocol.queries)}",
        "most tokens of a query": quote(protocol.tokens),
        "threads, batch size": "1, 1",
        "hits per query": protocol.depth,
        "rounds": options.repeats or REPEATS,
    }
    notes = [f"{kind}: peak memory {mib(worker.peak_bytes)} MiB" for kind, worker in workers.items()]
    notes += [f"{kind}: {note}" for kind, worker in workers.items() for note in worker.facts["notes"]]
    compared = tuple(ratios(rounds, rows)) if len(rows) > 1 else ()
    return Report(rows=tuple(rows), ratios=compared, settings=settings, notes=tuple(notes))


def find_twins(options: Options) -> dict[str, Path]:
    """The shards of both models, or of one alone, by kind: impact and dense."""
    twins = {kind: own for kind, own in (("impact", options.shards), ("dense", options.dense_shards)) if own}
    if not twins:
        raise UsageError(
            "a protocol measures one model or two: --shards FOLDER of impacts, --dense-shards FOLDER of vectors"
        )
    manifests = {kind: read_manifest(shards) for kind, shards in twins.items()}
    for kind, manifest in manifests.items():
        if manifest.kind != kind:
            raise UsageError(f"{twins[kind]}: {manifest.kind} shards, expected those of kind {kind!r}")
    if len({(m.corpus.digest, m.corpus.direction, m.counts.documents) for m in manifests.values()}) > 1:
        lexical, dense = (f"{manifest.corpus.name} ({manifest.counts.documents:,})" for manifest in manifests.values())
        raise UsageError(f"{twins['impact']} has {lexical}, {twins['dense']} has {dense}; encode one corpus twice")
    return twins


def describe_model(kind: str, shards: Path, built: Mapping[str, Any], worker: Worker) -> dict[str, Any]:
    """The model, and the size of its index."""
    manifest = read_manifest(shards)
    counts, names = manifest.counts, {"system": manifest.encoder.name, "engine": built["engine"]}
    terms = {"terms_per_item": round(counts.postings / counts.documents, 1)} if kind == "impact" else {}
    sizes = {"items": counts.documents, "index_mb": round(built["bytes"] / 1e6, 2)}
    return {**names, **sizes, **terms, **worker.facts["sparsity"]}


def summarise_times(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of the mean of their queries, in milliseconds, and queries per second."""
    parts = ("encode_s", "search_s", "cpu_s")
    encode, search, cpu = (median(1000 * mean(answer[part]) for answer in rounds) for part in parts)
    times = {"encode_ms": encode, "search_ms": search, "total_ms": encode + search, "cpu_ms": cpu}
    rates = {"queries_per_s": 1000 / (encode + search), "searches_per_s": 1000 / search}
    return {name: round(value, 3) for name, value in times.items()} | {n: round(v, 1) for n, v in rates.items()}


def judge_lists(protocol: Protocol, kind: str, worker: Worker, lists: Mapping[str, Any]) -> dict[str, float]:
    """The measures of a model's rankings over the topics that were searched; none where there are no judgements."""
    if (judged := worker.facts["judged"]) is None:
        return {}
    qrels = [qrel for qrel in read_judgements(JudgementSource(corpus=CorpusRef(**judged))).qrels if qrel[0] in lists]
    hits = [
        ScoredDoc(query_id, doc_id, rank, score)
        for query_id, documents in lists.items()
        for rank, (doc_id, score) in enumerate(documents, start=1)
    ]
    measures = protocol.measures["text" if judged["direction"] == "text-to-text" else "image"]
    values = means(evaluate(hits, qrels, measures, name=kind, remove_query=worker.facts["remove_query"]))
    return {measure: round(value, 4) for measure, value in values.items()}


def ratios(rounds: Mapping[str, Sequence[Mapping[str, Any]]], rows: Sequence[Mapping[str, Any]]) -> Iterator[Ratio]:
    """The dense model over the lexical one: above 1, the lexical one is faster or smaller."""

    def of(kind: str, *parts: str) -> list[float]:
        return [sum(mean(answer[part]) for part in parts) for answer in rounds[kind]]

    compared = {"encoding": ["encode_s"], "search": ["search_s"], "in all": ["encode_s", "search_s"]}
    for what, parts in {**compared, "in all, CPU": ["cpu_s"]}.items():
        yield ratio(f"dense / lexical: {what}, per query", of("dense", *parts), of("impact", *parts))
    yield ratio("dense / lexical: index bytes", [rows[1]["index_mb"]], [rows[0]["index_mb"]])


def quote(number: int | None) -> str:
    """A number of the protocol."""
    return "the paper says nothing" if number is None else f"{number:,} in the paper"


def build(shards: str, index: str) -> dict[str, Any]:
    """Indexes shards with the default engine of their kind, unless it is done: seconds, bytes, name of the engine."""
    with Stopwatch() as watch:
        build_index(shards, index)
    size = measure_folder(Path(index)) + measure_resident(Path(index))
    return {"build_s": watch.wall_s, "bytes": size, "engine": read_report(Path(index))["engine"]}


def answer(shards: str, index: str, topics: str | None, count: int, tokens: int | None, data_dir: str | None) -> Ready:
    """A worker around an index, its encoder and the first `count` topics; one thread.

    The answer has per topic the seconds of encoding and of searching, the CPU seconds of both, and the ranked list.
    """
    import torch

    torch.set_num_threads(1)
    path = Path(index)
    manifest = index_manifest(path)
    model, notes = load_limited(manifest, tokens)
    source = find_topic_source(topics, path, manifest, data_dir, find_vocabulary_file(path, None))
    if source.encoded:
        raise UsageError(f"{source.label}: encoded queries, but a protocol measures their encoding; give topics")
    chosen: list[Any] = list(islice(source.stream(), count))
    engine = open_index(path, manifest)

    def respond(hits: int, limit: int | None) -> dict[str, Any]:
        seconds: dict[str, list[float]] = {"encode_s": [], "search_s": [], "cpu_s": []}
        lists = {}
        for topic in chosen[:limit]:
            with Stopwatch() as encoding:
                [query] = encode_queries(model, [topic], manifest, batch_size=1)
            with Stopwatch() as searching:
                [ranking] = engine.search([query], hits + source.remove_query)
            seconds["encode_s"].append(encoding.wall_s)
            seconds["search_s"].append(searching.wall_s)
            seconds["cpu_s"].append(encoding.cpu_s + searching.cpu_s)
            lists[topic.query_id] = [(document.doc_id, document.score) for document in ranking]
        return {**seconds, "lists": lists}

    sparsity: dict[str, float] = {}
    if manifest.kind == "impact":
        queries = encode_queries(model, chosen, manifest)
        row = count_sparsity(Path(shards), (query.vector for query in queries if isinstance(query, ImpactQuery)))
        sparsity = {"terms_per_query": round(row.terms_per_query, 1), "flops": round(row.flops, 2)}
    judged = {"judged": source.judged and asdict(source.judged), "remove_query": source.remove_query}
    facts = {"label": source.label, "queries": len(chosen), **judged, "sparsity": sparsity, "notes": notes}
    return Ready(facts, respond)


def load_limited(manifest: Any, tokens: int | None) -> tuple[Any, list[str]]:
    """The encoder of an index, whose queries have at most so many tokens; and a note where it has its own limit."""
    load = partial(load_encoder_from, manifest.encoder, device="cpu", vocabulary=manifest.vocabulary_digest)
    if tokens is None:
        return load(), []
    direction = manifest.corpus.direction or ""
    try:
        return load(settings=make_length_options(manifest.encoder.name, direction, tokens, tokens)), []
    except UsageError as problem:
        return load(), [f"its own limit of tokens, not {tokens} ({problem})"]
