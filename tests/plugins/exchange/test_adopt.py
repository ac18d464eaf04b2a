"""A stock index is searched as ours once it has a manifest, which is written beside its own files."""

import json
from pathlib import Path

import pytest
from invoking import invoked
from lucene_indexes import MANY_DOCUMENTS, MANY_QUERIES, stock_index
from shard_folders import write_shards

from lexvl_anserini import explain as explain_command
from lexvl_anserini import search as search_command
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import IndexVersion
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.rescoring import expect_run_manifest, load_reranking_encoder
from lexvl_anserini.searching.searcher import Searcher
from lexvl_plugins.exchange import adopt, adopting
from lexvl_plugins.exchange.adopting import adopt_index
from lexvl_plugins.exchange.importing import ImportSettings


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", MANY_DOCUMENTS)
    stock_index(tmp_path / "shards", tmp_path / "stock")
    return tmp_path / "stock"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: compute_sha256(path) for path in folder.iterdir() if path.name != "write.lock"}


def test_its_lists_are_those_of_our_index(stock: Path, tmp_path: Path) -> None:
    before = digests(stock)
    manifest = adopt_index(stock)
    after = digests(stock)
    assert after.keys() - before.keys() == {"manifest.json", "vocab.txt", "resident.bin"}
    assert {name: after[name] for name in before} == before
    counts = {"documents": 150, "empty": 0, "postings": 565, "max_impact": 250}
    assert {name: manifest.counts[name] for name in counts} == counts
    ours = build_index(tmp_path / "shards", tmp_path / "ours").path
    lists = []
    for folder in (stock, ours):
        with Searcher(folder) as searcher:
            lists.append(searcher.search(MANY_QUERIES, k=200))
            assert searcher.engine.served() == {"resident": len(MANY_QUERIES)}
    assert lists[0] == lists[1] and all(lists[0])


def test_expressions_and_encoded_queries_need_no_encoder(stock: Path, tmp_path: Path) -> None:
    adopt_index(stock)
    printed = invoked(search_command.command, "--index", stock, "--match", "+t1 t2^3 -t7", "--format", "json")
    vectors = dict(MANY_DOCUMENTS)
    scores = {hit["doc_id"]: hit["score"] for hit in json.loads(printed)}
    assert scores == {d: vectors[d]["t1"] + 3 * vectors[d].get("t2", 0) for d in scores} and scores
    (tmp_path / "q.jsonl").write_text('{"id": "q", "contents": "", "vector": {"t1": 2}}\n')
    invoked(search_command.command, "--index", stock, "--topics", tmp_path / "q.jsonl", "--output", tmp_path / "run")
    assert (tmp_path / "run").read_text().count("\n") == sum("t1" in vector for _, vector in MANY_DOCUMENTS)
    for options, message in (
        (("--query", "t1"), "imported without an encoder"),
        ((), "'stock' is no dataset"),
        (("--match", "unknown"), "'unknown' is not in the vocabulary"),
    ):
        with pytest.raises(UsageError, match=message):
            invoked(search_command.command, "--index", stock, *options)
    with pytest.raises(UsageError, match="imported without an encoder"):
        load_reranking_encoder(expect_run_manifest(tmp_path / "run"), None, None, "cpu", {})


def test_with_its_encoder_it_answers_texts(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", [("x", {"boat": 2, "red": 1}), ("y", {"moon": 3})])
    stock_index(tmp_path / "shards", tmp_path / "stock")
    printed = invoked(adopt.command, tmp_path / "stock", "--encoder", "bag-of-tokens", "--checkpoint", "minilm")
    assert "bag-of-tokens" in printed
    with Searcher(tmp_path / "stock") as searcher:
        assert [hit.doc_id for hit in searcher.search("the red boat")] == ["x"]
    printed = invoked(explain_command.command, "--index", tmp_path / "stock", "--query", "boat", "--doc-id", "x")
    assert "boat" in printed


def test_repeated_and_with_another_request(stock: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = adopt_index(stock)
    assert adopt_index(stock) == manifest == read_manifest(stock)
    (stock / "resident.bin").unlink()
    assert adopt_index(stock) == manifest and (stock / "resident.bin").is_file()
    with pytest.raises(ArtefactError, match="a manifest of another request.*--overwrite"):
        adopt_index(stock, ImportSettings(corpus="demo"))
    assert adopt_index(stock, ImportSettings(corpus="demo"), overwrite=True).corpus.name == "demo"


def test_what_is_not_adopted(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, bag = build_index(tmp_path / "shards", tmp_path / "ours").path, load_encoder("bag-of-tokens", "minilm")
    strange = "40 of 40 terms, the first is 't0', are not in the encoder's vocabulary"
    for index, model, kind, message in (
        (ours, None, UsageError, "needs no other manifest"),
        (tmp_path / "shards", None, ArtefactError, "no Lucene index"),
        (stock, bag, DataError, strange),
    ):
        with pytest.raises(kind, match=message):
            adopt_index(index, ImportSettings(model=model))
    with monkeypatch.context() as patch:
        patch.setattr(adopting, "read_version", lambda index: IndexVersion((8, 11, 0), 8))
        with pytest.raises(ArtefactError, match="created by Lucene 8, .*export-ciff .*; lexvl import .*; lexvl index"):
            adopt_index(stock)
    damaged = next(stock.glob("*.cfs"), None) or next(stock.glob("*.doc"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ArtefactError, match="damaged"):
        adopt_index(stock)
    assert not (stock / "manifest.json").exists()
