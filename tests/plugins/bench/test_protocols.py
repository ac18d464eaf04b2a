"""Protocols of papers: what they ask of two models, their arithmetic, and the whole on a tiny pair."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from corpus_folders import write_beir
from shard_folders import write_dense_shards, write_shards
from tiny_encoders import BERT, made_dense
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.searching.searcher import search_index
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.bench import protocols
from lexvl_plugins.bench.command import Options, command
from lexvl_plugins.bench.processes import Outcome
from lexvl_plugins.bench.protocols import find_twins, measure, quote, ratios, summarise_times
from lexvl_plugins.papers.sources import PROTOCOLS

DOCUMENTS = [("d1", {"dog": 8, "cat": 2}), ("d2", {"cat": 4})]


def rounds(*of_rounds: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        {"encode_s": [encode, 0.0], "search_s": [0.0, search], "cpu_s": [encode, 0.0]} for encode, search in of_rounds
    ]


def test_times_are_medians_of_the_rounds_means_and_ratios_pair_the_rounds():
    found = summarise_times(rounds((0.010, 0.002), (0.030, 0.004), (0.020, 0.006)))
    rates = {"queries_per_s": round(1000 / 12, 1), "searches_per_s": 500}
    assert found == {"encode_ms": 10, "search_ms": 2, "total_ms": 12, "cpu_ms": 10, **rates}
    both = {"impact": rounds((0.010, 0.002), (0.010, 0.002)), "dense": rounds((0.010, 0.004), (0.020, 0.010))}
    found = {ratio.what: ratio[1:] for ratio in ratios(both, [{"index_mb": 2.0}, {"index_mb": 5.0}])}
    assert found["dense / lexical: encoding, per query"][:3] == (1.5, 1, 2)
    assert found["dense / lexical: search, per query"][:3] == (3.5, 2, 5)
    assert found["dense / lexical: in all, per query"][1:3] == (pytest.approx(14 / 12), pytest.approx(30 / 12))
    assert found["dense / lexical: index bytes"][0] == 2.5


def test_shards_must_be_of_two_models_and_one_corpus(tmp_path: Path) -> None:
    write_shards(tmp_path / "impacts", DOCUMENTS)
    write_dense_shards(tmp_path / "vectors", [("d1", [1.0]), ("d2", [2.0])])
    write_dense_shards(tmp_path / "fewer", [("d1", [1.0])])
    paths = {name: tmp_path / name for name in ("impacts", "vectors", "fewer")}
    twins = Options(shards=paths["impacts"], dense_shards=paths["vectors"])
    assert find_twins(twins) == {"impact": paths["impacts"], "dense": paths["vectors"]}
    assert find_twins(Options(dense_shards=paths["vectors"])) == {"dense": paths["vectors"]}, "a model alone"
    for options, message in (
        (Options(), "--shards FOLDER of impacts, --dense-shards FOLDER of vectors"),
        (Options(shards=paths["vectors"], dense_shards=paths["impacts"]), "vectors: dense shards, expected those"),
        (Options(shards=paths["impacts"], dense_shards=paths["fewer"]), r"toy \(2\), .*fewer has toy \(1\); encode"),
    ):
        with pytest.raises(UsageError, match=message):
            find_twins(options)
    with pytest.raises(UnknownName, match="unknown protocol 'vdr-h'; did you mean 'vdr-g'"):
        measure(Options(protocol="vdr-h"))


class Here(AbstractContextManager["Here"]):
    """A worker in this process; children are the matter of `test_efficiency.py`."""

    peak_bytes = 1 << 20

    def __init__(self, function: str, environ: Any, **arguments: Any):
        assert function == ".protocols:answer" and environ["OMP_NUM_THREADS"] == "1"
        self.facts, self.request = protocols.answer(**arguments)

    def __exit__(self, *_: object) -> None:
        pass


def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "Worker", Here)
    monkeypatch.setattr(protocols, "run_once", lambda _, **paths: Outcome(protocols.build(**paths), 0, 0, 0))


@pytest.fixture(scope="module")
def twins(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twins")
    texts = {"d1": "a dog runs", "d2": "the red boat", "d3": "sea"}
    queries = {"q1": "a dog runs", "q2": "the red boat"}
    corpus = write_beir(folder / "corpus", texts, queries, [("q1", "d1"), ("q2", "d3")])
    dataset = load_dataset(f"beir:{corpus}")
    write_impacts(dataset, load_encoder("splade", str(golden / BERT), device="cpu"), folder / "lexical")
    write_impacts(dataset, load_encoder("sentence", str(made_dense(golden, folder)), device="cpu"), folder / "vectors")
    return folder


def test_a_worker_searches_as_search_does(twins: Path, tmp_path: Path) -> None:
    built = protocols.build(str(twins / "lexical"), str(tmp_path / "index"))
    assert built["engine"] == "lucene" and built["bytes"] > 0
    worker = protocols.answer(str(twins / "lexical"), str(tmp_path / "index"), None, 5, 4, None)
    assert (worker.facts["queries"], worker.facts["notes"]) == (2, [])
    whole = worker.answer(hits=2, limit=None)
    assert len(whole["encode_s"]) == len(whole["search_s"]) == 2 and min(whole["encode_s"]) > 0
    assert list(worker.answer(hits=2, limit=1)["lists"]) == ["q1"]
    # Two words and the two special tokens: what a model with that limit searches.
    corpus = load_dataset(f"beir:{twins / 'corpus'}")
    encoder = read_manifest(twins / "lexical").encoder
    model = load_encoder("splade", encoder.checkpoint, device="cpu", query_max_length=4)
    lists = list(search_index(tmp_path / "index", corpus.topics(), 2, model=model))
    assert [[(d.doc_id, d.score) for d in found] for found in lists] == list(whole["lists"].values())


def test_the_report_of_a_tiny_pair(twins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    assert quote(PROTOCOLS["vdr-g"].items) == "100,000 in the paper"
    pairs = ["--shards", twins / "lexical", "--dense-shards", twins / "vectors", "--workdir", tmp_path]
    options = [str(part) for part in (*pairs, "--repeats", 1, "--protocol", "lexlip", "--format", "json")]
    told = json.loads(CliRunner().invoke(make_app(command), options).stdout)
    lexical, dense = told["rows"]
    assert [(row["system"], row["engine"]) for row in told["rows"]] == [("splade", "lucene"), ("sentence", "faiss")]
    assert lexical["items"] == dense["items"] == 3 and lexical["terms_per_query"] >= lexical["flops"] > 0
    for row in (lexical, dense):
        assert row["total_ms"] == pytest.approx(row["encode_ms"] + row["search_ms"], abs=0.002)
        assert 0 < row["queries_per_s"] < row["searches_per_s"] and row["HitRate@10"] == 1
    used = [told["settings"][name] for name in ("items", "queries")]
    assert used == [f"{number} used, the paper says nothing" for number in (3, 2)]
    assert len(told["ratios"]) == 5 and len(told["notes"]) == 2


def test_an_option_that_protocols_do_not_use_is_refused():
    found = CliRunner().invoke(make_app(command), ["--protocol", "vdr-g", "--shape", "vdr"])
    assert isinstance(found.exception, UsageError) and "does not use --shape" in str(found.exception)
