"""Rows of tables that measure time: ratios of systems by suites, and latency, alone or beside a dense twin."""

import json
import re
from pathlib import Path

import pytest
from corpus_folders import coloured_coco
from tiny_encoders import made_stair, made_twin

from lexvl_anserini.ground.errors import ArtefactError, DataError, UnknownName
from lexvl_plugins.bench import fdt_cost, reproduction
from lexvl_plugins.bench.command import Options, Ratio, Report, run_suite
from lexvl_plugins.bench.processes import Outcome
from lexvl_plugins.bench.search import ratios_of
from lexvl_plugins.bench.systems import SEARCHERS
from lexvl_plugins.bench.vectors import SHAPES
from lexvl_plugins.papers.prepared import Workplace
from lexvl_plugins.papers.published import load_published_tables, read_tables
from lexvl_plugins.papers.tables import make_plan, read_record
from tests.plugins.bench.test_protocols import work_here
from tests.plugins.papers.test_reproduce import call
from tests.plugins.papers.test_reproduce_vectors import cells_of, table_of


def make_report(cpu_s: dict[tuple[str, int], float]) -> Report:
    """What the suite reports of batches, from the CPU seconds by system and hits."""
    answers = {(name, "batch", k): [{"wall_s": 9.0, "cpu_s": s, "read_s": 0.0}] for (name, k), s in cpu_s.items()}
    return Report(ratios=ratios_of(answers, (10, 1000), 1), machine={"load_average": [3.5, 2, 1]})


def own_tables(folder: Path, monkeypatch: pytest.MonkeyPatch, hits: str = "k=10, k=1000", **rows: str) -> None:
    """A table of rows with suites; the one of `bad` has 200 documents."""
    suite = {"documents": 300, "shape": "splade", "system": ["ours", "stock"], "repeats": 2}
    systems = {name: {"suite": suite | ({"documents": 200} if name == "bad" else {})} for name in rows}
    table = {"title": "ratios", "unit": "x", "columns": [f"speed stock / ours: batch of queries, CPU, [{hits}]"]}
    content = {"paper": "A", "tables": {"speeds": {**table, "rows": rows, "systems": systems}}}
    (folder / "own.yaml").write_text(json.dumps(content))
    tables = {table.name: table for table in read_tables(folder / "own.yaml")}
    monkeypatch.setattr("lexvl_plugins.papers.command.load_published_tables", lambda: tables)


def test_a_ratio_below_its_bound_is_red(tmp_path, monkeypatch):
    """2 / 0.4 = 5 is above 4; 1 / 0.4 = 2.5 is not above 2.5. The suite gets the row's options."""
    called = []

    def measure(options):
        called.append((options.documents, options.shape, options.system, options.repeats, options.query_terms))
        return make_report({("stock", 10): 2.0, ("ours", 10): 0.4, ("stock", 1000): 1.0, ("ours", 1000): 0.4})

    monkeypatch.setattr("lexvl_plugins.bench.search.measure", measure)
    own_tables(tmp_path, monkeypatch, good=">4 >2.5")
    record = tmp_path / "record.json"
    code, text, said = call("own-speeds", "--output", tmp_path / "out", "--record", record, "--agreeing")
    assert (code, said) == (1, "1 of 2 cells differ (--agreeing)") and called == [
        ([300], ["splade"], ["ours", "stock"], 2, None)
    ]
    assert re.search(r"k=10 +5\.0 +>4 +\+1\.0  agrees \(2 rounds in turns; load 3\.5\)", text), text
    assert re.search(r"k=1000 +2\.50 +>2\.5 +\+0\.00  differs", text), text
    assert [(cell.measured, cell.model) for cell in read_record(record).values()] == [(5.0, ""), (2.5, "")]
    own_tables(tmp_path, monkeypatch, good=">4 >2.4")
    assert call("own-speeds", "--output", tmp_path / "out", "--agreeing")[0] == 0


def failing_speeds(folder: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], error: BaseException) -> None:
    """A table of two rows in an order: `good` has the ratio 5, and `bad` raises the error."""

    def measure(options):
        if options.documents == [200]:
            raise error
        return make_report({("stock", 10): 2.0, ("ours", 10): 0.4})

    monkeypatch.setattr("lexvl_plugins.bench.search.measure", measure)
    own_tables(folder, monkeypatch, "k=10", **dict.fromkeys(order, ">4"))


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
def test_a_system_that_fails_costs_its_own_cells(order, tmp_path, monkeypatch):
    """The other row is measured and recorded; the exit code is 1 without any option."""
    failing_speeds(tmp_path, monkeypatch, order, ArtefactError("worker ours: ended"))
    record, results = tmp_path / "record.json", tmp_path / "cells.jsonl"
    code, text, said = call("own-speeds", "--output", tmp_path / "out", "--record", record, "--results", results)
    assert (code, said) == (1, "1 of 2 cells: their systems failed (worker ours: ended)")
    assert text.count("agrees") == 1 and text.count("failed (worker ours: ended)") == 1
    assert [cell.measured for cell in read_record(record).values()] == [5.0]
    expected = [{"good": "agrees", "bad": "failed"}[name] for name in order]
    assert [json.loads(line)["verdict"] for line in results.read_text().splitlines()] == expected


def test_an_end_at_a_later_row_keeps_the_rows_before(tmp_path, monkeypatch):
    failing_speeds(tmp_path, monkeypatch, ("good", "bad"), KeyboardInterrupt())
    record, results = tmp_path / "record.json", tmp_path / "cells.jsonl"
    assert call("own-speeds", "--output", tmp_path / "out", "--record", record, "--results", results)[0] != 0
    assert [cell.measured for cell in read_record(record).values()] == [5.0]
    assert [json.loads(line)["measured"] for line in results.read_text().splitlines()] == [5.0]


def test_ratios_are_measured_on_linux_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("lexvl_plugins.bench.processes.STATUS", tmp_path / "none")
    own_tables(tmp_path, monkeypatch, good=">4 >2.5")
    code, text, _ = call("own-speeds", "--output", tmp_path / "out", "--agreeing")
    assert code == 0 and text.count("run it on Linux)") == 2


def test_suites_name_systems_and_ratios_that_are_measured():
    """Each ratio is one of two systems of its suite, a task and a number of hits that the suite measures."""
    every = (cell for table in load_published_tables().values() for cell in table.cells)
    cells = [cell for cell in every if cell.system and cell.system.suite]
    assert len(cells) >= 4 and {cell.quantity.task for cell in cells} == {"speed"}
    for cell in cells:
        ratio = re.fullmatch(r"(\S+) / (\S+): (single query|batch of queries), CPU, k=(10|1000)", cell.quantity.measure)
        assert ratio and {ratio[1], ratio[2]} <= {*cell.system.suite.system} <= SEARCHERS.keys(), cell
        assert cell.system.suite.shape in SHAPES and cell.bound == ">", cell


LATENT = """\
    columns: ["latency coco/test [queries per second, ms per query, dense ms per query, times faster, times smaller]"]
    unit: ms
    rows: {STAIR: "14.1 ? ? ? ?"}
    uncompared: {"latency coco/test queries per second": another machine}
    systems: {STAIR: {encoder: stair, protocol: vdr-g, dense: {encoder: dense-crossmodal, weights: twin}}}
"""


def test_latency_beside_the_dense_twin(golden, tmp_path, monkeypatch):
    """The protocol gets the vectors of both models over the same documents, at most as many as the paper has."""
    weights, twin, data = made_stair(golden, tmp_path), made_twin(golden, tmp_path), coloured_coco(tmp_path / "data")
    calls = []

    def measured(options: Options) -> Report:
        calls.append(options)
        rows = ({"queries_per_s": 20.0, "total_ms": 50.0, "items": 3}, {"total_ms": 75.0})
        ratios = [("in all, per query", 1.5), ("index bytes", 4.0)]
        return Report(rows=rows, ratios=tuple(Ratio(f"dense / lexical: {what}", n, n, n, 1) for what, n in ratios))

    monkeypatch.setattr(reproduction, "measure", measured)
    table = table_of(tmp_path, LATENT)
    one = Workplace(tmp_path / "out", str(data), checkpoints={"STAIR": str(weights)})
    assert [need.name for need in make_plan(table, one).needs] == [str(weights), "twin", "coco/test"]
    assert {cell.reason for cell in cells_of(table, one)} == {"missing: twin"}
    place = Workplace(tmp_path / "out", str(data), checkpoints={"STAIR": str(weights), "twin": str(twin)})
    cells = cells_of(table, place)
    assert [cell.measured for cell in cells] == [20.0, 50.0, 75.0, 1.5, 4.0]
    assert cells[0].reason == "another machine; other weights" and cells[1].published is None
    assert cells_of(table, place) == cells and len(calls) == 1, "the second call finds the result"
    assert calls[0].protocol == "vdr-g" and calls[0].shards.is_dir() and calls[0].dense_shards.is_dir()
    assert "first-100000" in calls[0].shards.name, "appendix G has 100,000 documents"


def test_the_protocol_runs_over_the_encoded_documents(golden, tmp_path, monkeypatch):
    weights, twin, data = made_stair(golden, tmp_path), made_twin(golden, tmp_path), coloured_coco(tmp_path / "data")
    work_here(monkeypatch)
    place = Workplace(tmp_path / "out", str(data), checkpoints={"STAIR": str(weights), "twin": str(twin)})
    cells = cells_of(table_of(tmp_path, LATENT), place)
    per_second, lexical, dense, faster, smaller = [cell.measured for cell in cells]
    assert per_second == pytest.approx(1000 / lexical, rel=0.01) and min(lexical, dense, faster) > 0
    assert smaller is not None, "of a few kB it is 0: sizes are in hundredths of a megabyte"
    [stored] = [json.loads(path.read_text()) for path in (tmp_path / "out/parts").glob("*.json")]
    assert stored["documents"] == 3 and stored["request"]["dense"]["encoder"] == "dense-crossmodal"


DENSE = """\
    columns: ["latency coco/test [queries per second, ms per query, times faster]"]
    unit: ms
    rows: {CLIP: "? ? -", CLIP beside: "? ? ?"}
    systems:
      CLIP: {encoder: dense-crossmodal, protocol: vdr-g}
      CLIP beside: {encoder: dense-crossmodal, protocol: vdr-g}
"""


def test_a_dense_model_alone_has_its_own_speed(golden, tmp_path, monkeypatch):
    """Without another model beside it, nothing is times faster: such a row is of a later version."""
    twin, data = made_twin(golden, tmp_path), coloured_coco(tmp_path / "data")
    work_here(monkeypatch)
    place = Workplace(tmp_path / "out", str(data), checkpoints={"CLIP": str(twin)})
    table = table_of(tmp_path, DENSE)
    plan = make_plan(table, place)
    assert (plan.runs, plan.own, plan.later) == (2, 0, 3)
    per_second, each, *beside = [cell.measured for cell in cells_of(table, place)]
    assert per_second == pytest.approx(1000 / each, rel=0.01) and each > 0 and beside == [None] * 3


@pytest.mark.parametrize(
    "old,new,message",
    [
        ("protocol: vdr-g", "protocol: vdr-h", "STAIR: unknown protocol 'vdr-h'; did you mean 'vdr-g'"),
        ("weights: twin", "checkpoint: twin", "STAIR: unknown checkpoint 'twin'"),
        ("ms per query,", "s per query,", "unknown measure 's per query'"),
        ("14.1 ?", "14.1 <?", "'<\\?' is no number"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, old, new, message):
    with pytest.raises(DataError, match=message) as caught:
        table_of(tmp_path, LATENT.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_what_fdt_costs_by_hand(tmp_path, monkeypatch):
    """Steps of 2, 3 and 2.4 s beside 2 s each: 1.2 in the median; 4 s of encoding beside 3: a quarter is lost."""
    called = []

    def run_once(function, environ, name, pairs, rounds):
        called.append((name, pairs, rounds))
        step = [2.0, 3.0, 2.4]
        return Outcome(
            {"step FDT": step, "step CLIP": [2.0] * 3, "encode FDT": [4.0] * 3, "encode CLIP": [3.0] * 3}, 1, 1, 1
        )

    monkeypatch.setattr(fdt_cost, "run_once", run_once)
    code, text, said = call("fdt-section4-3", "--output", tmp_path / "out", "--limit", 4)
    assert code == 0 and called == [(name, 4, 3) for name in ("vit-b32", "vit-b16", "swin-b")], said
    assert re.search(r"additional parameters +6\.4 +6 .*agrees", text), text
    assert re.search(r"speed additional training time +20\.0 +13 +\+7\.0  not compared \(the paper names no", text), (
        text
    )
    assert re.search(r"speed lost throughput +25\.0 +12 +\+13\.0  not compared", text), text
    assert not list((tmp_path / "out").glob("parts/*")), "times are never stored"


def test_what_fdt_costs_on_small_networks():
    report = run_suite("fdt-cost", Options(documents=[2], repeats=2))
    assert [(row["networks"], row["model"]) for row in report.rows] == [("small", "CLIP"), ("small", "FDT")]
    names = ["FDT / CLIP: CPU time of a step, small", "FDT / CLIP: pairs encoded per CPU second, small"]
    assert [ratio.what for ratio in report.ratios] == names and all(ratio.low > 0 for ratio in report.ratios)
    with pytest.raises(UnknownName, match="unknown system 'vit-b23'; did you mean 'vit-b32'"):
        fdt_cost.measure(Options(system=["vit-b23"]))


def test_fdt_and_clip_read_the_same_networks():
    """A step of FDT has gradients of the codebook and of the networks, one of CLIP of its projections instead."""
    built = fdt_cost.build_fdt_networks(*fdt_cost.CASES["small"])
    query, document = built.sides
    assert query.network is built.texts and document.network.model is built.images.model
    shares = {id(parameter) for module in (built.texts, built.images) for parameter in module.parameters()}
    added = [parameter for module in built.sides for parameter in module.parameters() if id(parameter) not in shares]
    assert document.codebook.rows.shape == (1024, 64) and len(added) > 2
