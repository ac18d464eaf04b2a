"""Ways of `reproduce` to measure time: latency by the protocols of papers, and speed by the suites of rows."""

from __future__ import annotations

from statistics import mean
from typing import Any

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.ground.errors import CheckpointError, DataError, LexvlError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_plugins.bench import fdt_cost
from lexvl_plugins.bench.command import Options
from lexvl_plugins.bench.processes import check_system
from lexvl_plugins.bench.protocols import measure
from lexvl_plugins.papers import prepared
from lexvl_plugins.papers.prepared import Finding, Need, PartCost, RowPart, Workplace
from lexvl_plugins.papers.retrieval import encode_documents, keep_values, limit_dataset, read_collection
from lexvl_plugins.papers.sources import SUITE_S
from lexvl_plugins.train.reproduction import FDT_CASES


@keep_values(read_collection)
def measure_latency(part: RowPart, work: prepared.Prepared, place: Workplace) -> dict[str, Any]:
    """What `lexvl efficiency --protocol` reports, on one thread: of a model, and of its dense twin if it has one."""
    twin = prepared.find_twin(part)
    dense = prepared.prepare(twin, place) if twin else None
    if twin and dense is None:
        raise CheckpointError(f"{part.label}: no published weights of the dense model")
    dataset = limit_dataset(load_reference(work.corpus), prepared.find_limit(part, place))
    folders = [encode_documents(model, dataset, place) for model in (work, dense) if model]
    kinds = {read_manifest(folder).kind: folder for folder in folders}
    shards, vectors = kinds.get("impact"), kinds.get("dense")
    report = measure(Options(protocol=work.system.protocol, shards=shards, dense_shards=vectors))
    first, *others = report.rows
    values = {"queries per second": first["queries_per_s"], "ms per query": first["total_ms"]}
    if others:
        ratios = {ratio.what: ratio.median for ratio in report.ratios}
        times = {"times faster": "in all, per query", "times smaller": "index bytes"}
        values |= {"dense ms per query": others[0]["total_ms"]}
        values |= {name: ratios[f"dense / lexical: {what}"] for name, what in times.items()}
    measured = {name: values[name] for name in part.measures}
    return {"values": measured, "quantised": True, "documents": first["items"]}


def measure_speed(part: RowPart, place: Workplace) -> Finding:
    """Other systems over ours, or ours over others, by the suite of a row: medians of ratios in turns, never stored."""
    assert part.system is not None, "`can_be_timed` is true of it"
    try:
        check_system()
    except LexvlError as error:
        raise DataError(str(error)) from None
    if part.system.suite is None:
        return measure_fdt_cost(part, place)
    from lexvl_plugins.bench.search import measure as measure_search

    suite = part.system.suite
    same = {name: getattr(suite, name) for name in ("query_count", "query_terms", "repeats")}
    report = measure_search(Options([suite.documents], [suite.shape], system=[*suite.system], **same))
    ratios = {ratio.what: ratio.median for ratio in report.ratios}
    note = f"{suite.repeats} rounds in turns; load {report.machine['load_average'][0]}"
    return Finding({name: ratios[name] for name in part.measures}, 0, note=note)


def measure_fdt_cost(part: RowPart, place: Workplace) -> Finding:
    """The shares that FDT adds to CLIP's time of a step and takes from its throughput, over the paper's networks.

    Each is the mean over the image encoders of the paper's table 6. `--limit` is the pairs of a batch.
    """
    report = fdt_cost.measure(Options([place.limit] if place.limit else None, system=[*FDT_CASES]))
    values = {
        name: sign * (mean(ratio.median for ratio in report.ratios if what in ratio.what) - 1)
        for name, (what, sign) in fdt_cost.SHARES.items()
    }
    note = f"CPU time, one thread; load {report.machine['load_average'][0]}"
    return Finding({name: values[name] for name in part.measures}, 0, note=note)


# What a protocol measures of a model alone.
OF_ONE = {"queries per second", "ms per query"}


def has_protocol(part: RowPart) -> bool:
    """Whether a row names a protocol of latency and, unless a model alone is measured, a dense model beside its own."""
    own = part.system
    return bool(own and own.protocol and (own.dense or OF_ONE.issuperset(part.measures)))


def can_be_timed(part: RowPart) -> bool:
    """Whether a row names a suite, or what FDT costs."""
    own = part.system
    return bool(own and (own.suite or (own.encoder == "fdt" and {*part.measures} <= {*fdt_cost.SHARES})))


def list_latency_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The weights of both models, and the corpus."""
    models = [model for model in (part, prepared.find_twin(part)) if model]
    weights = [need for model in models for need in prepared.list_needed_weights(model, place)]
    return [*weights, prepared.describe_needed_corpus(part, place)]


def estimate_latency(part: RowPart, place: Workplace) -> PartCost | None:
    """Disk and time of both models, whose documents no other part shares."""
    twin = prepared.find_twin(part)
    costs = [prepared.estimate_retrieval(model, place) for model in (part, twin) if model]
    if None in costs or not costs:
        return None
    name, size, encoding_s, topics_s = zip(*(cost for cost in costs if cost), strict=True)
    return PartCost(" ".join(name), sum(size), sum(encoding_s), sum(topics_s))


def estimate_speed(part: RowPart, place: Workplace) -> PartCost:
    """The time of a suite, whose files are temporary."""
    return PartCost(part.label, 0, SUITE_S, 0)
