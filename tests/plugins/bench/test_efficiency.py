"""The benchmark command: its options, its arithmetic, its children, and each suite on a toy collection."""

import json
import os
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lexvl_eval.measures.measure_runs import machine
from scipy import sparse
from shard_folders import write_shards
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.engines.index_folder import compute_mean_recall
from lexvl_anserini.ground.errors import LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.registry import import_home
from lexvl_anserini.queries.clauses import Not, Term
from lexvl_anserini.searching.building import build_index
from lexvl_plugins.bench import baselines, index, search, systems
from lexvl_plugins.bench import command as suites
from lexvl_plugins.bench.collection import describe, prepare, read_queries
from lexvl_plugins.bench.command import Options, Ratio, Report, command
from lexvl_plugins.bench.processes import Outcome, Ready, Stopwatch, Worker, run_once, take_turns, time_each

# Children import this file by its name.
HERE, ME = Path(__file__), "tests.plugins.bench.test_efficiency"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    paths = [str(HERE.parents[2]), str(HERE.parents[3]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setattr("lexvl_plugins.bench.index.OPENINGS", 1)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))


# What children of these tests run.


def add(a, b):
    print("to standard output, which is not for answers")
    return {"sum": a + b}


def hold(size):
    return len(bytearray(size))


def fail(message):
    raise ValueError(message)


def die():
    print("last words", file=sys.stderr)
    os._exit(3)


def counter(start):
    def answer(step):
        nonlocal start
        start += step
        if start > 100:
            raise ValueError("too far")
        return start

    return Ready({"start": start}, answer)


# Arithmetic.


def test_ratios_are_paired_by_round():
    """A round in which the machine is three times slower does not change the ratio."""
    assert suites.ratio("theirs / ours", [10.0, 30.0], [5.0, 15.0]) == Ratio("theirs / ours", 2.0, 2.0, 2.0, 2)
    assert suites.ratio("x", [3.0, 1.0, 2.0], [1.0] * 3)[1:] == (2.0, 1.0, 3.0, 3)
    with pytest.raises(ValueError, match="zip"):
        suites.ratio("x", [1.0], [1.0, 2.0])


def test_latency_percentiles():
    rows = suites.latency([number / 1000 for number in range(1, 101)])
    expected = {"p50_ms": 50.5, "p99_ms": 99.01, "mean_ms": 50.5, "queries_per_s": 19.8}
    assert {name: rows[name] for name in expected} == pytest.approx(expected)


@pytest.fixture
def work(monkeypatch):
    """`work(n)` takes n seconds, of which this process computes a quarter."""
    wall, cpu = [100.0], [7.0]

    def work(seconds):
        wall.append(wall[-1] + seconds)
        cpu.append(cpu[-1] + seconds / 4)

    monkeypatch.setattr(time, "perf_counter", lambda: wall[-1])
    monkeypatch.setattr(time, "process_time", lambda: cpu[-1])
    return work


def test_stopwatch_counts_wall_and_cpu(work):
    assert time_each(work, [0, 8, 4]) == {"wall_s": [0, 8, 4], "cpu_s": [0, 2, 1]}
    with Stopwatch() as watch:
        work(12)
    assert watch.seconds() == {"wall_s": 12, "cpu_s": 3}


def test_rows_of_different_columns_share_a_table():
    table = suites.tabulate_rows([{"system": "ours", "bytes": 1234}, {"system": "stock", "cpu_s": 1.5}])
    assert [column.heading for column in table.columns] == ["system", "bytes", "cpu s"]
    assert table.rows == (("ours", "1,234", "–"), ("stock", "–", "1.5"))
    assert [column.number for column in table.columns] == [False, True, True]
    assert suites.cell(True) == "True"


def test_a_report_as_json_and_text(monkeypatch):
    """It notes its machine once."""
    loads = iter([(1.87, 1.6, 1.77), (1.88, 1.6, 1.77)])
    monkeypatch.setattr("os.getloadavg", lambda: next(loads))
    report = Report({"x": 1}, ({"system": "ours"},), (Ratio("a / b", 2.0, 1.0, 3.0, 3),), {"size": 5}, ("so",))
    found = report.to_json("index")
    assert found == report.to_json("index") and found["machine"]["load_average"] == [1.87, 1.6, 1.77]
    assert found["suite"] == "index" and found["x"] == 1 and found["settings"] == {"size": 5}
    assert found["ratios"] == [{"what": "a / b", "median": 2.0, "low": 1.0, "high": 3.0, "rounds": 3}]
    assert found["machine"]["cores"] == machine()["cores"] >= 1
    assert report.to_text().splitlines() == [
        "size  5", "x     1", "", "system", "ours", "",
        "ratio  median   low  high  rounds", "a / b    2.00  1.00  3.00       3", "", "so",
    ]  # fmt: skip


def test_digests_tell_rankings_apart():
    ranking = [("d1", 5.0), ("d2", 3.0)]
    assert systems.digest([ranking]) == systems.digest([[("d1", 5.000001), ("d2", 2.999999)]])
    assert systems.digest([ranking]) not in (systems.digest([ranking[::-1]]), systems.digest([ranking, []]))


# The command.


def test_every_suite_resolves_and_uses_options_that_exist():
    names = set(Options.__dataclass_fields__)
    for suite in suites.SUITES.values():
        assert callable(import_home(suite.target))
        assert suite.options <= names


def test_options_that_a_suite_would_ignore_are_refused(tmp_path, monkeypatch):
    """As are unknown suites, several sizes, and a system without /proc."""
    with pytest.raises(UsageError, match=r"'startup' does not use --hits, --query-count; it uses --repeats"):
        suites.check_options("startup", Options(hits=(10,), query_count=3))
    with pytest.raises(UnknownName, match="did you mean 'search'"):
        suites.run_suite("serach", Options())
    assert [Options(documents=given).single("documents", 7) for given in (None, (3,))] == [7, 3]
    with pytest.raises(UsageError, match="several --documents"):
        Options(documents=(1, 2)).single("documents", 7)
    monkeypatch.setattr("lexvl_plugins.bench.processes.STATUS", tmp_path / "status")
    with pytest.raises(LexvlError, match="status: not there; .* run it on Linux"):
        suites.run_suite("startup", Options())


def test_the_command_prints_and_writes(tmp_path):
    out = tmp_path / "startup.json"
    arguments = ["--suite", "startup", "--repeats", "1", "--format", "json", "--output", str(out)]
    done = CliRunner().invoke(make_app(command), arguments)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed == json.loads(out.read_text())
    assert printed["suite"] == "startup" and 0 < printed["python_alone_s"] < printed["encode_help_s"]


# Children.


def test_run_once_measures_a_process():
    """And its error says what was wrong, or what it printed last."""
    outcome = run_once(f"{ME}:add", a=2, b=3)
    assert outcome.result == {"sum": 5} and outcome.wall_s > 0 and outcome.cpu_s > 0
    with pytest.raises(LexvlError, match=f"{ME}:fail: out of luck"):
        run_once(f"{ME}:fail", message="out of luck")
    with pytest.raises(LexvlError, match="ended without an answer: last words"):
        run_once(f"{ME}:die")


def test_the_peak_is_the_child_s_own():
    """Not what the parent held when it started the child, which is what wait4 would tell."""
    ballast = np.ones(60 << 20, dtype=np.uint8)
    small, large = (run_once(f"{ME}:hold", size=size << 20) for size in (1, 101))
    assert 95 << 20 < large.peak_bytes - small.peak_bytes < 105 << 20
    assert ballast.sum() == 60 << 20


def test_a_worker_stays_and_survives_an_error():
    with Worker(f"{ME}:counter", start=5) as worker:
        assert worker.facts == {"start": 5}
        assert [worker.request(step=1), worker.request(step=2)] == [6, 8]
        assert worker.peak_bytes > 0
        with pytest.raises(LexvlError, match="too far"):
            worker.request(step=1000)
        assert worker.child.poll() is None
    assert worker.child.poll() == 0


# The suites, on toys.


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("efficiency")


def tiny(workdir, **more):
    law = {"shape": ("splade",), "terms": 6, "query_terms": 3}
    return Options(documents=(40,), query_count=5, repeats=2, workdir=workdir, **law, **more)


@pytest.mark.extended
def test_index_compares_numbers_of_threads(workdir):
    law = {"documents": (40,), "shape": ("splade",), "terms": 6}
    report = index.measure(Options(**law, repeats=1, threads=2, workdir=workdir, system=("ours-parquet",)))
    assert report.settings["documents"] == 40 and report.settings["postings"] == 240
    for row in report.rows:
        assert min(row["lucene_bytes"], row["resident_bytes"]) > 0 and 0 < row["alone_cpu_s"] <= row["cpu_s"]
    ones = ["ours-parquet (1 thread)", "ours-parquet (1 core)"]
    assert [row["system"] for row in report.rows] == ["ours-parquet", *ones]
    what = [f"ours-parquet / {one}: documents per second of indexing alone" for one in ones]
    assert [r.what for r in report.ratios] == what
    seconds = [row["alone_wall_s"] for row in report.rows]
    assert report.ratios[0].median == pytest.approx(seconds[1] / seconds[0], rel=0.2)
    assert index.arrangements(["ours", "stock"], 3)["stock"] == ("stock", 3, None)


def test_index_compares_stock_with_each_of_ours():
    def built(cpu, lucene, resident):
        outcome = Outcome({"cpu_s": cpu / 2, "wall_s": cpu}, cpu, 2 * cpu, int(100 * cpu))
        return index.Built(outcome, {}, lucene, resident)

    rounds = {"ours": [built(1.0, 50, 10), built(2.0, 50, 10)], "stock": [built(10.0, 60, 0), built(10.0, 60, 0)]}
    found = {r.what: r for r in index.compare(rounds)}
    assert found["stock / ours: CPU seconds"][1:] == (7.5, 5.0, 10.0, 2)
    assert (found["stock / ours: Lucene's bytes"].median, found["stock / ours: index bytes"].median) == (1.2, 1.0)
    assert {"CPU seconds of indexing alone", "peak memory"} <= {what.partition(": ")[2] for what in found}


def test_a_user_s_shards_are_read_in_their_format(workdir):
    shards = prepare(tiny(workdir), workdir, 40, "parquet").shards
    theirs = Options(shards=shards)
    assert index.prepare_formats(theirs, workdir) == {"parquet": shards}
    assert describe(theirs, shards)["terms_per_document"] == 6.0
    with pytest.raises(UnknownName, match="ours-parquet"):
        index.measure(Options(shards=shards, system=("stock",), workdir=workdir))
    with pytest.raises(UsageError, match="leave out --documents"):
        prepare(Options(shards=shards, documents=(3,)), workdir, 3)
    with pytest.raises(UsageError, match="--queries are for --shards"):
        prepare(Options(queries=workdir / "q.jsonl"), workdir, 3)
    # Their queries come from their postings.
    found = prepare(Options(shards=shards, query_count=4, query_terms=3), workdir, 0)
    assert found.documents == 40 == read_manifest(shards).counts["documents"]
    assert [len(query.vector) for query in read_queries(str(found.queries))] == [3] * 4


def test_search_times_ours_lucene_and_faiss(workdir):
    names = ("ours", "ours-lucene", "lucene", "faiss-flat", "faiss-hnsw")
    report = search.measure(tiny(workdir, hits=(5,), system=names, threads=2))
    batches = product(("ours", "ours-lucene"), ("batch", "batch, 1 thread"))
    assert {(row["system"], row["task"]) for row in report.rows} == {*product(names, ("latency",)), *batches}
    assert 0 < report.settings["expected_overlapping_postings"] < 3
    assert {r.what for r in report.ratios} == {
        f"{what}: single query, {clock}, k=5"
        for what in ("ours-lucene / ours", "faiss-flat / ours", "faiss-hnsw / ours", "ours / lucene by score")
        for clock in ("wall", "CPU")
    } | {"ours: batch of queries, 1 thread / 2 threads, wall, k=5"}  # fmt: skip
    assert all(r.rounds == 2 and r.low > 0 for r in report.ratios)
    # Of 5 queries: single, a batch with each number of threads, three rounds; then the exact hits.
    assert report.notes == (
        "ours: resident postings answered 45 queries",
        "ours-lucene: lucene postings answered 45 queries",
        "faiss-hnsw is approximate: it finds 1.0000 of the first 5 (efSearch 64)",
    )
    assert set(report.figures) == {
        "open_ms", "open_again_ms", "first_query_ms", "opened_mib", "lucene_bytes_per_posting",
        "resident_bytes_per_posting",
    }  # fmt: skip
    assert min(report.figures[f"{form}_bytes_per_posting"] for form in ("resident", "lucene")) > 0


@pytest.mark.heavy
def test_search_and_index_next_to_stock(workdir):
    found = index.measure(Options(documents=(40,), shape=("splade",), terms=6, repeats=1, workdir=workdir))
    assert [row["system"] for row in found.rows] == ["ours", "ours-parquet", "stock"]
    report = search.measure(tiny(workdir, hits=(5,), system=("ours", "stock")))
    assert any(r.what == "stock / ours: batch of queries, CPU, k=5" for r in report.ratios)


def test_indexes_and_rankings_that_differ_do_not_compare():
    index.expect_equal({"ours": {"documents": 3}, "stock": {"documents": 3}})
    with pytest.raises(LexvlError, match="their costs are not comparable"):
        index.expect_equal({"ours": {"documents": 3}, "stock": {"documents": 2}})
    answers = {("ours", "batch", 5): [{"digest": "a"}], ("stock", "batch", 5): [{"digest": "a"}]}
    search.expect_agreement(answers, (5,))
    answers["ours-lucene", "batch", 5] = [{"digest": "b"}]
    with pytest.raises(LexvlError, match="ours and ours-lucene and stock rank differently at k=5"):
        search.expect_agreement(answers, (5,))


def test_ratios_of_batches_and_single_queries():
    answers = {
        ("ours", "batch", 10): [{"wall_s": 2.0, "cpu_s": 1.0}],
        ("ours", "batch, 1 thread", 10): [{"wall_s": 3.0, "cpu_s": 1.0}],
        ("stock", "batch", 10): [{"wall_s": 8.0, "cpu_s": 6.0, "read_s": 2.0}],
        ("ours", "latency", 10): [{"wall_s": [0.001, 0.002, 0.9], "cpu_s": [0.001] * 3}],
        ("lucene", "latency", 10): [{"wall_s": [0.001] * 3, "cpu_s": [0.001] * 3}],
        ("stock", "latency", 10): [{"wall_s": [0.006] * 3, "cpu_s": [0.004] * 3}],
    }
    assert {r.what: r.median for r in search.ratios_of(answers, (10,), 2)} == pytest.approx(
        {
            "stock / ours: batch of queries, wall, k=10": 4.0,
            "stock / ours: batch of queries, CPU, k=10": 6.0,
            "stock / ours: the same with ids and scores read, k=10": 5.0,
            "ours: batch of queries, 1 thread / 2 threads, wall, k=10": 1.5,
            "stock / ours: single query, wall, k=10": 3.0,
            "stock / ours: single query, CPU, k=10": 4.0,
            "ours / lucene by score: single query, wall, k=10": 2.0,
            "ours / lucene by score: single query, CPU, k=10": 1.0,
        }
    )


def test_the_first_round_is_not_kept():
    asked = []
    cells = {name: lambda name=name: asked.append(name) or len(asked) for name in "ab"}
    assert take_turns(cells, 2, warm_up=1) == {"a": [3, 5], "b": [4, 6]}
    assert asked == ["a", "b"] * 3


def test_systems_by_name(monkeypatch):
    """Those that are not installed are left out, unless they are named."""
    assert systems.choose_systems(None, systems.SEARCHERS) == list(systems.SEARCHERS)
    assert systems.choose_systems(("lucene", "ours"), systems.SEARCHERS) == ["ours", "lucene"]
    with pytest.raises(UnknownName, match="did you mean 'lucene'"):
        systems.choose_systems(("lucence",), systems.SEARCHERS)
    monkeypatch.setattr("lexvl_plugins.bench.systems.find_spec", lambda module: None if module == "pyvsag" else module)
    assert set(systems.SEARCHERS) - set(systems.find_searchers(None)) == {"sindi", "sindi-pruned"}
    assert systems.find_searchers(("seismic", "ours")) == ["ours", "seismic"]
    with pytest.raises(UsageError, match=r"'sindi-pruned': package pyvsag is not installed; pip install pyvsag"):
        systems.find_searchers(("ours", "sindi-pruned"))


def test_a_condition_has_the_nearest_share():
    frequencies = {"every": 10, "most": 8, "some": 3, "one": 1}
    nearest = [(0.9, Not(Term("one")), 0.9), (0.75, Term("most"), 0.8), (0.01, Not(Term("every")), 0.0)]
    for share, *expected in nearest:
        assert systems.choose_condition(frequencies, 10, share) == tuple(expected)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_exact_hits_are_those_of_all_dot_products(workdir, suffix):
    """Tied documents are equally good, and a query of unknown terms has no hit to miss."""
    shards, queries = workdir / f"four-{suffix}", workdir / "q.jsonl"
    write_shards(shards, [("w", {"a": 5, "b": 1}), ("x", {"a": 3})], [("y", {"a": 3}), ("z", {"b": 2})], suffix=suffix)
    queries.write_text('{"id": "1", "vector": {"a": 2, "c": 9}}\n{"id": "2", "vector": {"d": 1}}\n')
    hits = baselines.find_exact(str(shards), str(queries), [2, 10])
    # Scores 10, 6, 6: of two hits the last scores 6, and of ten only three are there.
    assert hits == {"2": [(2, 6), (0, 1)], "10": [(3, 6), (0, 1)]}
    assert compute_mean_recall(hits["2"], [np.array([10, 6]), np.array([])]) == 1.0
    assert compute_mean_recall(hits["10"], [np.array([10, 0, 6]), np.array([])]) == pytest.approx(2 / 3)
    assert baselines.count_documents(shards) == ({"a": 3, "b": 2}, 4)


class PrunedSindi:
    """Stands in for `pyvsag.Index`: the exact hits by numpy, without the last where the query is pruned."""

    def __init__(self, name, parameters):
        expected = {"use_reorder": True, "doc_prune_ratio": 0.3}
        assert name == "sindi" and json.loads(parameters)["index_param"] == expected

    def build(self, index_pointers, indices, values, ids):
        self.documents = sparse.csr_matrix((values, indices, index_pointers), shape=(len(ids), 4))

    def knn_search(self, index_pointers, indices, values, k, parameters):
        query = sparse.csr_matrix((values, indices, index_pointers), shape=(1, 4))
        scores = (self.documents @ query.T).toarray().ravel()
        missed = json.loads(parameters)["sindi"]["query_prune_ratio"] > 0
        order = np.argsort(-scores, kind="stable")[: k - missed]
        return order[None], -scores[order][None]


class SeismicOfFive:
    """Stands in for `seismic.SeismicIndex`: one hit where it reads five terms, else two, the second of them tied."""

    @staticmethod
    def build_from_dataset(dataset):
        return SeismicOfFive()

    def search(self, query_id, components, values, k, query_cut, heap_factor):
        assert components.tolist() == ["0", "1"] and values.tolist() == [2, 9]
        return [(query_id, 19.0, "0"), (query_id, 6.0, "2")][: 1 if query_cut == 5 else k]


class SeismicRows:
    def add_documents_by_id(self, doc_ids, components, values, offsets):
        assert doc_ids == ["0", "1", "2"] and components.tolist() == [0, 1, 0, 0] and offsets.tolist() == [0, 2, 3, 4]


@pytest.fixture
def three(tmp_path):
    write_shards(tmp_path / "three", [("w", {"a": 5, "b": 1}), ("x", {"a": 3}), ("y", {"a": 3})], terms="abcd")
    queries, exact = tmp_path / "q.jsonl", tmp_path / "exact.json"
    queries.write_text('{"id": "1", "vector": {"a": 2, "b": 9, "e": 1}}\n')
    exact.write_text(json.dumps(baselines.find_exact(str(tmp_path / "three"), str(queries), [2])))
    assert json.loads(exact.read_text()) == {"2": [[2, 6]]}
    return {"shards": str(tmp_path / "three"), "queries": str(queries), "exact": str(exact)}


def test_an_approximate_system_answers_with_settings_that_find_enough(three, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyvsag", SimpleNamespace(Index=PrunedSindi, set_logger_off=lambda: None))
    sindi = baselines.search_sindi(**three, pruned=True).answer
    chosen = sindi("recall", 2)
    assert chosen["recall"] == 1.0 and "pruned by 0.3, queries by 0.0, " in chosen["settings"]
    assert len(sindi("latency", 2)["cpu_s"]) == 1
    rows = {"SeismicDataset": SeismicRows, "SeismicIndex": SeismicOfFive, "get_seismic_string": lambda: "U30"}
    monkeypatch.setitem(sys.modules, "seismic", SimpleNamespace(**rows))
    chosen = baselines.search_seismic(**three).answer("recall", 2)
    # The tied document is as good as the one that ranks before it.
    assert chosen["recall"] == 1.0 and not chosen["settings"].startswith("5 terms")


def test_our_approximate_search_is_prepared_with_the_queries(three, tmp_path, monkeypatch):
    # The worker sets it for its process.
    monkeypatch.setenv("LEXVL_POSTINGS", "auto")
    place = str(build_index(three["shards"], tmp_path / "index").path)
    (tmp_path / "q.jsonl").write_text('{"id": "1", "vector": {"a": 2, "b": 9}}\n')
    ours = systems.search_approximately(place, three["queries"], three["exact"]).answer
    assert ours("recall", 2) == {"recall": 1.0, "settings": "0.99 (measured 1.0 of the first 10, 1 queries of q.jsonl)"}
    assert len(ours("latency", 2)["cpu_s"]) == 1


def test_a_system_that_finds_too_few_says_how_many(three):
    inputs = baselines.read_inputs(**three)
    searches = {"one": lambda dims, weights, hits: [0], "none": lambda dims, weights, hits: []}
    assert baselines.make_worker(inputs, searches).answer("recall", 2) == {"recall": 0.5, "settings": "one"}


def test_notes_state_recall_and_conditions():
    def request(task, hits):
        return {"recall": 0.99, "settings": "all"}

    where = SimpleNamespace(facts={"where 1 % match": {"share": 0.0102, "first_s": 0.005}})
    workers = {"sindi": SimpleNamespace(request=request), "ours-where": where}
    assert list(search.write_notes(workers, (10,))) == [
        "ours-where: where 1 % match: 1.0200 %; the first query with this condition takes 5.0 ms of CPU time",
        "sindi finds 0.9900 of the first 10: all",
    ]


@pytest.mark.extended
def test_search_compares_filtered_searches_with_unfiltered_ones(workdir):
    report = search.measure(tiny(workdir, hits=(5,), system=("ours", "ours-where", "ours-lucene-where")))
    ratios = [r.what for r in report.ratios if "CPU" in r.what]
    assert ratios == [
        *(f"ours-where / ours: {task}, CPU, k=5" for task in systems.WHERE),
        *(f"ours-lucene-where / ours-where: {task}, CPU, k=5" for task in systems.WHERE),
    ]
    assert report.notes[1].startswith("ours-where: where 90 % match: 92.5000 %; the first query with this condition")


def test_a_matrix_of_impacts_is_searched(workdir):
    rows = sparse.random(30, 9, 0.4, "csr", random_state=1)
    rows.data = np.ceil(rows.data * 255).astype(np.int64)
    sparse.save_npz(workdir / "docs.npz", rows.astype(np.int64))
    sparse.save_npz(workdir / "queries.npz", rows[:4].astype(np.int64))
    theirs = Options(shards=workdir / "docs.npz", queries=workdir / "queries.npz", query_count=3, workdir=workdir)
    collection = prepare(theirs, workdir, 0)
    assert collection.documents == 30 and len(read_queries(str(collection.queries))) == 3
    assert index.prepare_formats(theirs, workdir) == {"parquet": collection.shards}
    sparse.save_npz(workdir / "queries.npz", rows[:4, :5].astype(np.int64))
    with pytest.raises(LexvlError, match="5 columns, .* has 9 terms"):
        prepare(theirs, workdir, 0)


def test_dense_vectors_are_unit_and_repeat():
    [block] = systems.draw_dense(50, 1, 0)
    assert block.shape == (50, systems.DIMENSIONS) and block.dtype == np.float32
    assert np.linalg.norm(block, axis=1) == pytest.approx(np.ones(50), abs=1e-5)
    assert (next(systems.draw_dense(50, 1, 0)) == block).all() and (next(systems.draw_dense(50, 1, 1)) != block).any()


def test_a_graph_search_reads_candidates_until_it_finds_almost_all():
    """A graph with few links needs more candidates for the same recall."""
    import faiss

    vectors = np.random.default_rng(5).standard_normal((2000, systems.DIMENSIONS)).astype(np.float32)
    poor, rich = (faiss.IndexHNSWFlat(systems.DIMENSIONS, links, faiss.METRIC_INNER_PRODUCT) for links in (4, 64))
    poor.add(vectors)
    rich.add(vectors)
    queries = vectors[:10] + 1
    few, many = systems.find_candidates(rich, queries, 10), systems.find_candidates(poor, queries, 10)
    assert 64 <= few < many and few % 64 == many % 64 == 0
    exact = (queries @ vectors.T).argsort(axis=1)[:, :-11:-1].tolist()
    rich.hnsw.efSearch = few
    assert systems.measure_share(exact, rich.search(queries, 10)[1].tolist()) >= 0.99
    assert systems.measure_share([["a", "b"], ["c"], []], [["b", "x"], ["c"], []]) == pytest.approx((0.5 + 1 + 1) / 3)
