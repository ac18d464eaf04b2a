import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from brute_force import Doc
from corpus_folders import write_beir
from shard_folders import Documents, jsonl, write_dense_shards, write_described_shards, write_shards, write_text_shards
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.encoders.encoder import read_topic, read_topic_image
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.files import compute_sha256, open_gzip, read_json, write_json
from lexvl_anserini.ground.manifest import Manifest, RunManifest, name_manifest, read_manifest, read_run_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, ScoredDoc, Topic, Vocabulary
from lexvl_anserini.queries.clauses import Term, TreeQuery
from lexvl_anserini.queries.query_source import FloatQueries, find_topic_source
from lexvl_anserini.runs.trec import is_finished, read_run, write_run
from lexvl_anserini.search import command
from lexvl_anserini.searching import searcher
from lexvl_anserini.searching.building import append_index, build_index, delete_documents
from lexvl_anserini.searching.index_runs import name_content
from lexvl_anserini.searching.search import NOTED, Cut, Search
from lexvl_anserini.searching.searcher import search_index
from lexvl_anserini.shards.pruning import Pruning, prune_shards
from tests.invoking import invoked

INDEX = Path(__file__).parents[1] / "fixtures/lexvl-1/indexes/splade"

DOCUMENTS: Documents = [("q1", {"dog": 9}), ("d1", {"dog": 3, "cat": 1}), ("d2", {"dog": 3}), ("d3", {})]
TERMS = ["cat", "dog", "zebra"]


class Toy:
    """Its dimensions are words; a topic's weights are the counts of its words."""

    name, kind = "toy", "impact"

    def __init__(self, terms: list[str] = TERMS):
        self.query = SimpleNamespace(kind="impact", vocabulary=Vocabulary(terms), read_topic=read_topic)
        self.vocabulary = self.query.vocabulary


def encode(model: Toy, topics: Iterable[Topic], manifest: Manifest, batch_size: int = 32) -> Iterator[ImpactQuery]:
    for topic in topics:
        words = Counter((topic.text or "").split())
        yield ImpactQuery(topic.query_id, {term: n for term, n in words.items() if term in model.query.vocabulary})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("lexvl_anserini.searching.search.load_encoder_from", lambda *args, **options: Toy())
    monkeypatch.setattr(searcher, "encode_queries", encode)
    write_shards(tmp_path / "shards", DOCUMENTS, terms=TERMS)
    build_index(tmp_path / "shards", tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    topics = {"q1": "dog dog", "q2": "zebra", "q3": "unknown", "q4": "cat"}
    documents = {doc_id: "x" for doc_id, _ in DOCUMENTS}
    return write_beir(tmp_path / "scifact", documents, topics, ((query_id, "d1") for query_id in topics))


invoke = partial(invoked, command)


def pairs(documents: list[ScoredDoc]) -> list[tuple[str, int, float]]:
    return [(d.doc_id, d.rank, d.score) for d in documents]


def test_topics_are_encoded_and_searched(index: Path) -> None:
    """The topic itself is removed before the cut."""
    lists = list(search_index(index, [Topic("q1", "dog dog"), Topic("q2", "nothing"), Topic("q3", "cat")], hits=2))
    assert [pairs(documents) for documents in lists] == [[("q1", 1, 18), ("d1", 2, 6)], [], [("d1", 1, 1)]]
    assert list(search_index(index, [])) == []
    lists = list(search_index(index, [Topic("q1", "dog"), Topic("q9", "dog")], hits=2, remove_query=True))
    assert [pairs(documents) for documents in lists] == [[("d1", 1, 3), ("d2", 2, 3)], [("q1", 1, 9), ("d1", 2, 3)]]


def test_what_does_not_belong_to_the_index(index: Path, tmp_path: Path) -> None:
    topics = [Topic("q", "dog")]
    with pytest.raises(ArtefactError, match=r"encoder 'toy' has vocabulary \w{16}, .* was built with \w{16}"):
        list(search_index(index, topics, model=Toy(["dog", "cat"])))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="topic 'q': a DenseQuery; an index of kind impact answers ImpactQuery"):
        list(search_index(index, [DenseQuery("q", np.zeros(3))]))
    with pytest.raises(ArtefactError, match="absent: no such index; build it with"):
        list(search_index(tmp_path / "absent", topics))
    (index / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match=r"manifest.json: no manifest, so .* is no index of ours; .* --manifest"):
        list(search_index(index, topics))


def test_a_run_of_a_data_set(index: Path, beir: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs/toy.trec"
    told = json.loads(invoke("--index", index, "--topics", f"beir:{beir}", "--output", run, "--format", "json"))
    assert told == {"run": str(run), "topics": 4, "topics_without_hits": 2, "lines": 3}
    assert run.read_text() == "q1 Q0 d1 1 6 toy\nq1 Q0 d2 2 6 toy\nq4 Q0 d1 1 1 toy\n"
    manifest = read_run_manifest(run)
    assert (manifest.dataset, manifest.split, manifest.remove_query) == (f"beir:{beir}", "test", True)
    assert (manifest.index_name, manifest.hits, manifest.encoder["name"]) == ("index", 1000, "toy")
    assert manifest.left_out == 1


def test_the_topic_itself_is_a_hit_in_a_folder_of_ones_own(index: Path, beir: Path, tmp_path: Path, caplog) -> None:
    """Whether the topics come from the folder or from its file; a folder with the name of a BEIR dataset loses it."""
    own = beir.rename(tmp_path / "mine")
    for number, topics in enumerate((f"beir:{own}", own / "queries.jsonl")):
        invoke("--index", index, "--topics", topics, "--output", tmp_path / str(number))
        assert (tmp_path / str(number)).read_text().startswith("q1 Q0 q1 1 18 toy\n")
        manifest = read_run_manifest(tmp_path / str(number))
        assert manifest and (manifest.remove_query, manifest.left_out) == (False, 0)
    assert "left out" not in caplog.text


def test_a_folder_as_run_and_a_file_of_topics_that_is_not_there(index: Path, beir: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match=r"runs: a folder; --output names the run's file, for example .*runs/run.trec"):
        invoke("--index", index, "--topics", f"beir:{beir}", "--output", tmp_path / "runs", "--overwrite")
    with pytest.raises(DataError, match=r"^nosuch.tsv: no such file"):
        invoke("--index", index, "--topics", "nosuch.tsv", "--output", tmp_path / "r.trec")


def test_options_of_the_run(index: Path, beir: Path, tmp_path: Path) -> None:
    def run_with(name: str, *options: Any) -> str:
        invoke("--index", index, "--topics", f"beir:{beir}", "--output", tmp_path / name, *options)
        return (tmp_path / name).read_text()

    assert run_with("a", "--no-remove-query", "--hits", 1) == "q1 Q0 q1 1 18 toy\nq4 Q0 d1 1 1 toy\n"
    assert run_with("b", "--strict-scores").splitlines()[:2] == ["q1 Q0 d1 1 6 toy", "q1 Q0 d2 2 5.9999995 toy"]
    assert run_with("c", "--output-format", "msmarco") == "q1\td1\t1\nq1\td2\t2\nq4\td1\t1\n"


def test_finished_and_other_runs(index: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "toy.trec"
    arguments = ("--index", index, "--topics", f"beir:{beir}", "--output", run)
    told = invoke(*arguments)
    before = run.read_bytes()
    with monkeypatch.context() as patch:
        patch.delattr(searcher, "encode_queries")
        assert invoke(*arguments) == told
    with pytest.raises(ArtefactError, match=r"a run of another request \(hits: .* found, .* requested\); --overwrite"):
        invoke(*arguments, "--hits", 1)
    assert run.read_bytes() == before
    invoke(*arguments, "--hits", 1, "--overwrite")
    assert len(list(read_run(run))) == 2
    name_manifest(run).unlink()
    with pytest.raises(ArtefactError, match="exists without toy.trec.manifest.json; --overwrite replaces it"):
        invoke(*arguments, "--hits", 1)


def test_a_run_is_of_what_the_index_held(index: Path, tmp_path: Path) -> None:
    """Another document was deleted, or the shards were pruned: the run of the index before counted as finished."""
    run, queries, shards = tmp_path / "x.trec", tmp_path / "q.jsonl", tmp_path / "shards"
    queries.write_bytes(jsonl([{"id": "q", "vector": {"dog": 1, "cat": 1}}]))

    def found(*options: str) -> list[str]:
        invoke("--index", index, "--topics", queries, "--output", run, *options)
        return [document.doc_id for document in read_run(run)]

    delete_documents(index, ["d1"])
    assert found() == found() == ["q1", "d2"]
    append_index(index, shards, replace=True)
    delete_documents(index, ["d2"])
    with pytest.raises(ArtefactError, match="request .index: "):
        found()
    assert found("--overwrite") == ["q1", "d1"]
    # Equal shards give an equal index.
    build_index(shards, index, overwrite=True)
    assert found("--overwrite") == ["q1", "d1", "d2"]
    written = run.stat().st_mtime_ns
    build_index(shards, tmp_path / "again" / index.name)
    shutil.rmtree(index)
    (tmp_path / "again" / index.name).rename(index)
    assert found() == ["q1", "d1", "d2"] and run.stat().st_mtime_ns == written
    prune_shards(shards, tmp_path / "pruned", Pruning(without_terms=frozenset({"cat"})))
    build_index(tmp_path / "pruned", index, overwrite=True)
    with pytest.raises(ArtefactError, match="request .index: "):
        found()


@pytest.mark.parametrize(("engine", "other"), [("faiss", {"faiss": "sq8"}), ("lucene", {"metadata": False})])
def test_what_names_the_content_of_an_index(tmp_path: Path, engine: str, other: dict[str, Any]) -> None:
    """Equal for an index that is built again, in any folder of its name; another one for others."""
    shards = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(shards):
        documents = [(f"d{number}", {"dog": 1 + number}), (f"e{number}", {"cat": 2})]
        if engine == "faiss":
            write_dense_shards(folder, [(doc_id, [1.0 + number, *v.values()]) for doc_id, v in documents])
        else:
            write_shards(folder, documents, terms=TERMS)

    def named(folder: str, *sources: Path, **settings: Any) -> str:
        path = tmp_path / folder / "i"
        build_index(sources, path, engine=engine, options=settings)
        return name_content(path, read_manifest(path))

    first = named("a", shards[0])
    assert re.fullmatch(r"i@[0-9a-f]{12}", first) and first == named("b", shards[0])
    assert len({first, named("c", shards[1]), named("d", shards[0], **other)}) == 3


def test_topics_of_the_indexed_dataset_that_changed_are_another_request(index, beir, tmp_path, monkeypatch):
    """The topics, and the name of the run, are by default those of the dataset that the index was made of."""
    manifest, report = (read_json(index / name, "manifest") for name in ("manifest.json", "index.json"))
    write_json(index / "manifest.json", {**manifest, "corpus": {"name": f"beir:{beir}", "split": "test"}})
    write_json(index / "index.json", {key: value for key, value in report.items() if key != "digest"})
    monkeypatch.chdir(tmp_path)
    invoke("--index", index)
    name = "beir-scifact.toy.trec"
    assert sorted(path.name for path in Path("runs").iterdir()) == [name, f"{name}.manifest.json"]
    queries = (beir / "queries.jsonl").read_text()
    (beir / "queries.jsonl").write_text(queries.replace("zebra", "dog"))
    with pytest.raises(ArtefactError, match="topics_sha256"):
        invoke("--index", index)


def test_a_file_of_topics(index: Path, tmp_path: Path) -> None:
    topics = tmp_path / "mine.tsv"
    topics.write_text("7\tcat dog\n")
    run = tmp_path / "x.trec.gz"
    invoke("--index", index, "--topics", topics, "--output", run)
    assert [(d.query_id, d.doc_id, d.score) for d in read_run(run)] == [("7", "q1", 9), ("7", "d1", 4), ("7", "d2", 3)]
    manifest = read_run_manifest(run)
    assert (manifest.topics, manifest.dataset) == ("mine.tsv", "")
    topics.write_text("7\tcat\n")
    with pytest.raises(ArtefactError, match="another request .topics_sha256: "):
        invoke("--index", index, "--topics", topics, "--output", run)
    topics.write_text("")
    with pytest.raises(DataError, match="no query in it"):
        invoke("--index", index, "--topics", topics, "--output", tmp_path / "none.trec")
    assert not (tmp_path / "none.trec").exists()


def test_a_file_of_topics_covers_the_pixels_of_its_pictures(tmp_path: Path) -> None:
    topics, run = tmp_path / "q.jsonl", tmp_path / "x.trec"
    (tmp_path / "a.png").write_bytes(b"1")
    topics.write_bytes(jsonl([{"_id": "q", "image": "a.png"}, {"_id": "r", "text": "dog"}]))
    manifest = read_manifest(INDEX)

    def planned(name: Path = topics) -> RunManifest:
        source = find_topic_source(str(name), INDEX, manifest, None, None)
        return RunManifest("t", "", "", None, {}, {"name": "x"}, {}, "i", 9, False, topics_sha256=source.noted())  # type: ignore[arg-type]

    write_run(run, [[]], planned())
    assert is_finished(run, planned(), False)
    (tmp_path / "a.png").write_bytes(b"2")
    with pytest.raises(ArtefactError, match="another request .topics_sha256: "):
        is_finished(run, planned(), False)
    # A run of an older version, which is made again, and a file of texts have the digest of the file alone.
    write_run(run, [[]], replace(planned(), topics_sha256=compute_sha256(topics)))
    assert not is_finished(run, planned(), False)
    texts = tmp_path / "t.tsv"
    texts.write_text("q\tdog\n")
    assert planned(texts).topics_sha256 == compute_sha256(texts)


def test_a_split_of_a_folder(index: Path, beir: Path, tmp_path: Path) -> None:
    (beir / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td1\t1\n")
    for number, options in enumerate(([f"beir:{beir}/dev"], [f"beir:{beir}", "--split", "dev"])):
        run = tmp_path / f"{number}.trec.zst"
        invoke("--index", index, "--topics", *options, "--output", run)
        manifest = read_run_manifest(run)
        assert (manifest.dataset, manifest.split) == (f"beir:{beir}", "dev")
        assert [(d.query_id, d.doc_id) for d in read_run(run)] == [("q4", "d1")]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_file_of_encoded_queries(index: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("lexvl_anserini.searching.search.load_encoder_from")
    queries = tmp_path / f"q.{suffix}"
    with open(queries, "wb") as raw, open_gzip(raw, queries.suffix) as out:
        out.write(jsonl([{"id": "a", "contents": "", "vector": {"dog": 2}}, {"id": "b", "vector": {}}]))
    told = json.loads(invoke("--index", index, "--topics", queries, "--output", tmp_path / "x", "--format", "json"))
    assert (told["topics"], told["topics_without_hits"], told["lines"]) == (2, 1, 3)


@pytest.mark.parametrize(("vector", "whole"), [({"dog": 2.0, "x": 0}, 2), ([["dog", 2]], 2), ({"dog": 0.3}, 255)])
def test_weights_of_queries_however_they_are_spelt(index: Path, tmp_path: Path, vector: Any, whole: int) -> None:
    """The largest weight of a query of floats becomes 255."""
    (tmp_path / "q.jsonl").write_bytes(jsonl([{"id": 1, "vector": vector}, {"id": "2", "vector": {"dog": whole}}]))
    invoke("--index", index, "--topics", tmp_path / "q.jsonl", "--output", tmp_path / "run")
    a, b = ([(hit[1:]) for hit in read_run(tmp_path / "run") if hit.query_id == query_id] for query_id in "12")
    assert a == b and a


def test_one_fraction_makes_all_weights_of_a_file_floats(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """(2, 1) becomes (255, 127.5), rounded to even: d1 has 3 x 255 + 128. (.5, .0001) becomes (255, .051)."""
    caplog.set_level("INFO")
    rows, queries, run = [{"id": "a", "vector": {"dog": 2, "cat": 1}}], tmp_path / "q.jsonl", tmp_path / "run"
    for further, score in ([], 7), ([{"id": "b", "vector": {"dog": 0.5, "cat": 0.0001}}], 893):
        queries.write_bytes(jsonl([*rows, *further]))
        invoke("--index", index, "--topics", queries, "--output", run, "--overwrite")
        assert ("a", "d1", score) in [(hit.query_id, hit.doc_id, hit.score) for hit in read_run(run)]
    lost = "of 4 weights 1 became 0 and 0 were cut; greatest loss of a query 1.2e-06"
    what = f"{queries}: weights have fractions; 2 queries are quantised as the index's are (peak); {lost}"
    assert caplog.messages.count(what) == 1
    naver = replace(read_manifest(index), quantiser=Quantiser.named("naver").to_json())
    with pytest.raises(DataError, match="q.jsonl line 3: an impact of 100000050 reaches"):
        FloatQueries(naver).quantise({"dog": 1000000.5}, "q.jsonl line 3")


@pytest.mark.parametrize(
    ("row", "beside", "message"),
    [
        ({"id": "b", "vector": {"lion": 1}}, None, "line 2: term 'lion' is not in the vocabulary of"),
        ({"id": "b", "vector": {"dog": 1 << 24}}, None, "line 2: weight 16777216 of term 'dog', expected an integer"),
        (
            {"id": "b", "vector": {"dog": -1.5}},
            None,
            "line 2: weight -1.5 of term 'dog', expected a finite number",
        ),
        (
            {"id": "b", "vector": {"dog": float("nan")}},
            None,
            "line 2: weight null, NaN or infinite of term 'dog'",
        ),
        ({"id": "b", "vector": [1]}, None, r"line 2: vector \[1\], expected an object"),
        ({"id": "b c", "vector": {}}, None, "line 2: id 'b c', expected a text without white space"),
        ({"id": "a", "vector": {}}, None, "line 2: query id 'a' a second time"),
        *(
            ({"id": "b", "vector": {"dog": 2}}, part, f"q.jsonl: encoded with {part} .*0123.*; encode the topics again")
            for part in ("vocabulary", "quantiser")
        ),
    ],
)
def test_encoded_queries_that_are_refused(index: Path, tmp_path: Path, row: Any, beside: str, message: str) -> None:
    queries = tmp_path / "q.jsonl"
    queries.write_bytes(jsonl([{"id": "a", "vector": {"dog": 2}}, row]))
    if beside:
        write_json(tmp_path / "q.jsonl.manifest.json", {beside: {"digest": "0123", "query": {"scheme": "0123"}}})
    with pytest.raises(LexvlError, match=message):
        invoke("--index", index, "--topics", queries, "--output", tmp_path / "x.trec")
    assert not (tmp_path / "x.trec").exists()


def shown(*arguments: Any) -> list[tuple[str, float]]:
    return [(hit["doc_id"], hit["score"]) for hit in json.loads(invoke(*arguments, "--format", "json"))]


def test_texts_come_from_an_index_that_stores_them(tmp_path: Path) -> None:
    """No corpus of that name could be read."""
    documents = [Doc("d1", {"dog": 1}, "a dog 😀\nat sea"), Doc("d2", {"dog": 2})]
    write_described_shards(tmp_path / "shards", documents, TERMS)
    index = build_index(tmp_path / "shards", tmp_path / "index", store_text=True).path
    found = json.loads(invoke("--index", index, "--match", "dog", "--texts", "--format", "json"))
    assert [(hit["doc_id"], hit["text"]) for hit in found] == [("d2", ""), ("d1", "a dog 😀\nat sea")]


def test_an_expression_needs_no_encoder(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("lexvl_anserini.searching.search.load_encoder_from")
    asked = ("--index", index, "--match")
    assert shown(*asked, "+dog cat^5") == [("q1", 9), ("d1", 8), ("d2", 3)]
    assert shown(*asked, "dog -cat", "--hits", 1) == [("q1", 9)]
    assert shown(*asked, "NOT dog") == [("d3", 0)]
    [documents] = search_index(index, [TreeQuery("q", Term("dog") & Term("cat"))])
    assert pairs(documents) == [("d1", 1, 4)]
    with pytest.raises(ArtefactError, match="topic 'query': its score could reach 20,000,007, above 16,777,215"):
        invoke(*asked, "dog^2222223")


def test_filters_lists_of_terms_and_cuts(index: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.txt").write_text("cat\n")
    asked = ("--index", index, "--query", "dog")
    assert shown(*asked, "--require", "cat") == [("d1", 3)]
    assert shown(*asked, "--forbid", "cat", "--where", "NOT id:d2") == [("q1", 9)]
    assert shown(*asked, "--where", "cat OR id:q1") == [("q1", 9), ("d1", 3)]
    asked = ("--index", index, "--query", "dog dog cat")
    assert shown(*asked, "--only-terms", tmp_path / "terms.txt") == [("d1", 1)]
    assert shown(*asked, "--without-terms", tmp_path / "terms.txt", "--hits", 1) == [("q1", 18)]
    assert shown(*asked, "--query-terms", 1) == [("q1", 18), ("d1", 6), ("d2", 6)]
    assert shown(*asked, "--threshold", 0.5) == [("q1", 18), ("d1", 7), ("d2", 6)]
    assert shown(*asked, "--first-terms", 1, "--candidates", 2, "--hits", 2) == [("q1", 18), ("d1", 7)]
    feedback = ("--query", "cat", "--feedback", 1, "--feedback-beta", 1, "--feedback-shards", index.parent / "shards")
    # d1 brings in its dog.
    assert [doc_id for doc_id, _ in shown("--index", index, *feedback)] == ["q1", "d1", "d2"]


def test_a_refined_run_is_another_making(index: Path, beir: Path, tmp_path: Path) -> None:
    run = tmp_path / "x.trec"
    (tmp_path / "terms.txt").write_text("zebra\n")
    arguments = ("--index", index, "--topics", f"beir:{beir}", "--output", run, "--forbid", "cat")
    invoke(*arguments, "--without-terms", tmp_path / "terms.txt")
    assert [(d.query_id, d.doc_id) for d in read_run(run)] == [("q1", "d2")]
    manifest = read_run_manifest(run)
    options = manifest.encoder["options"]
    assert options["forbid"] == ["cat"] and options["without_terms"].startswith("terms.txt@")
    with pytest.raises(ArtefactError, match=r"a run of another request \(encoder.options.without_terms: .*\)"):
        invoke(*arguments)


PASSAGES: Documents = [
    ("d1#0", {"dog": 3}),
    ("d1#1", {"dog": 1, "cat": 2}),
    ("d2", {"dog": 3, "cat": 1}),
    ("q1#0", {"dog": 9}),
    ("q1#1", {"dog": 9}),
    ("d1!#0", {"dog": 3}),
]


@pytest.fixture
def passages(index: Path, tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards-of-passages", PASSAGES, terms=TERMS)
    return build_index(tmp_path / "shards-of-passages", tmp_path / "passages").path


def test_documents_by_their_passages(passages: Path, beir: Path, tmp_path: Path) -> None:
    """`d1!#0` comes before `d1#0`, the document `d1` before `d1!`; the query's own document is no hit."""

    def run_with(words: str, *options: Any) -> str:
        run = tmp_path / f"{words}.trec"
        arguments = ("--index", passages, "--topics", f"beir:{beir}", "--output", run, "--passages", words)
        invoke(*arguments, *options)
        manifest = read_run_manifest(run)
        assert manifest.encoder.options == {"passages": words}
        with pytest.raises(ArtefactError, match="another request .encoder.options.passages: "):
            invoke(*arguments[:-1], "sum", *options)
        return run.read_text()

    assert run_with("max", "--hits", 2) == ("q1 Q0 d1 1 6 toy\nq1 Q0 d1! 2 6 toy\nq4 Q0 d1 1 2 toy\nq4 Q0 d2 2 1 toy\n")
    assert run_with("sum:2").splitlines()[:3] == ["q1 Q0 d1 1 8 toy", "q1 Q0 d1! 2 6 toy", "q1 Q0 d2 3 6 toy"]


def test_passages_of_one_query(passages: Path) -> None:
    asked = ("--index", passages, "--passages", "sum")
    assert shown(*asked, "--query", "dog cat") == [("q1", 18), ("d1", 6), ("d2", 4), ("d1!", 3)]
    assert shown(*asked, "--query", "dog cat", "--hits", 1) == [("q1", 18)]
    # A filter is of passages, and so are the candidates of the first of two phases.
    assert shown(*asked, "--query", "dog cat", "--require", "cat") == [("d2", 4), ("d1", 3)]
    phases = ("--first-terms", 1, "--candidates", 3, "--hits", 3)
    assert shown(*asked, "--query", "dog dog cat", *phases) == [("q1", 36), ("d1!", 6)]
    assert shown(*asked, "--match", "dog -cat^2") == [("q1", 18), ("d1", 3), ("d1!", 3)]
    for *wrong, message in (("--passages", "mean", "mean"), ("--feedback", 1, "feedback"), ("--texts", "--texts")):
        with pytest.raises(UsageError, match=message):
            shown(*asked, "--query", "dog", *wrong)
    queries = [ImpactQuery("d2", {"dog": 1}), ImpactQuery("x", {"cat": 1})]
    lists = search_index(passages, queries, hits=1, remove_query=True, passages="max")
    assert [pairs(documents) for documents in lists] == [[("q1", 1, 9)], [("d1", 1, 2)]]


def test_settings_are_noted_in_one_order() -> None:
    assert Search().note() == {} and not Search().refines
    options = Search(query_terms=3, first_terms=4, text_weight=0.5, feedback=2, rm3=3, min_score=Cut(20, True))
    expected = {"query_terms": 3, "two_phase": [4, 1000], "text_weight": 0.5, "feedback": [2, 20, 1.0, 0.5]}
    expected |= {"rm3": [3, 10, 0.5], "min_score": "20%"}
    assert list(options.note().items()) == list(expected.items())
    assert set(options.note()) < NOTED and options.refines


def test_a_dry_run_searches_nothing(index: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searcher, "open_index", lambda *arguments: pytest.fail("opened"))
    arguments = ("--index", index, "--topics", f"beir:{beir}", "--output", tmp_path / "x", "--dry-run")
    told = json.loads(invoke(*arguments, "--format", "json"))
    assert (told["topics"], told["documents"], told["hits"], told["finished"]) == (4, 4, 1000, False)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--query| ", "cannot be empty"),
        ("--query|dog|--output|x.trec", "--output needs --topics"),
        ("--query|dog|--topics|demo", "exclude each other"),
        ("--query|dog|--query-image|dog.png", "exclude each other"),
        ("--query|dog|--interactive", "exclude each other"),
        ("--interactive|--output|x.trec", "--output needs --topics"),
        ("--query|dog|--split|dev", "--split is of topics"),
        ("--topics|mine.tsv|--split|dev", "no splits"),
        ("--query-image|dog.png", "reads texts.*image-to-text"),
        ("--query|dog|--where|+title:dog", "'title:dog'.*did you mean 'dog'"),
        ("--query|dog|--where|(dog", "not closed"),
        ("--query|dog|--where|meta.year:2010", "'meta.year'"),
        ("--query|dog|--rm3|1", "RM3 is for BM25"),
        ("--query|dog|--feedback|1", "no term vectors"),
        ("--query-image|cat.png", "no such image"),
    ],
)
def test_queries_that_exclude_each_other_or_are_none(index, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("dog.png").write_bytes(b"")
    Path("mine.tsv").write_text("7\tcat\n")
    with pytest.raises(LexvlError, match=message):
        invoke("--index", index, *options.split("|"))


def test_a_picture_as_query(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(model: Toy, topics: Iterable[Topic], *_: Any) -> Iterator[ImpactQuery]:
        for topic in topics:
            yield ImpactQuery(topic.query_id, {Path(str(topic.image)).stem: 2})

    model = Toy()
    model.query.read_topic = read_topic_image
    monkeypatch.setattr("lexvl_anserini.searching.search.load_encoder_from", lambda *args, **options: model)
    monkeypatch.setattr(searcher, "encode_queries", seen)
    (tmp_path / "cat.png").write_bytes(b"")
    assert shown("--index", index, "--query-image", tmp_path / "cat.png") == [("d1", 2)]
    with pytest.raises(UsageError, match="encoder 'toy' reads images, and the query is a text; .* text-to-image"):
        invoke("--index", index, "--query", "dog")


def test_a_least_score(index: Path, beir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The bound of "dog dog" is 18, the score of q1 itself.
    run, topics = tmp_path / "a.trec", ("--topics", f"beir:{beir}", "--no-remove-query")
    invoke("--index", index, *topics, "--output", run, "--min-score", "50%")
    assert [(d.query_id, d.doc_id) for d in read_run(run)] == [("q1", "q1"), ("q4", "d1")]
    manifest = read_run_manifest(run)
    assert manifest.encoder.options == {"min_score": "50%"}
    assert set(manifest.encoder.options) <= NOTED
    written = run.stat().st_ino
    invoke("--index", index, *topics, "--output", run, "--min-score", "50.0%")
    assert run.stat().st_ino == written, "the same request finished it"
    with pytest.raises(ArtefactError, match="--overwrite"):
        invoke("--index", index, *topics, "--output", run)
    caplog.set_level("INFO")
    invoke("--index", index, "--query", "dog", "--min-score", "10")
    assert "no document has a score of at least 10" in caplog.text


def test_what_indexes_of_texts_and_of_dense_vectors_refuse(tmp_path: Path) -> None:
    write_text_shards(tmp_path / "shards", [("d1", "a dog")])
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    for options in (("--query", "dog", "--require", "dog"), ("--match", "dog")):
        with pytest.raises(UsageError, match="index is text; terms, filters, feedback and approximate"):
            invoke("--index", index, *options)
    with pytest.raises(ArtefactError, match="encoder 'toy' is impact, .* is text"):
        list(search_index(index, [Topic("q", "cat")], model=Toy()))  # type: ignore[arg-type]
    write_dense_shards(tmp_path / "vectors", [("d1", [1.0, 0.0])])
    dense = build_index(tmp_path / "vectors", tmp_path / "dense-index").path
    (tmp_path / "q.jsonl").write_bytes(jsonl([{"id": "a", "vector": {"dog": 2}}]))
    with pytest.raises(UsageError, match="encoded lexical queries, but .*index is dense"):
        invoke("--index", dense, "--topics", tmp_path / "q.jsonl", "--output", tmp_path / "x.trec")


def test_lines_of_standard_input_are_answered_with_one_encoder(index, monkeypatch):
    """An empty line ends each answer on the terminal."""
    loaded: list[int] = []
    monkeypatch.setattr(
        "lexvl_anserini.searching.search.load_encoder_from", lambda *args, **options: loaded.append(1) or Toy()
    )

    def answer(lines: str, *options: str) -> list[str]:
        arguments = ["--index", str(index), "--interactive", "--hits", "2", *options]
        answered = CliRunner().invoke(make_app(command), arguments, input=lines)
        assert answered.exit_code == 0, answered.output
        return answered.stdout.splitlines()

    lists = [json.loads(line) for line in answer("dog\n\n  cat dog  \nzebra", "--format", "json")]
    assert [[row["doc_id"] for row in rows] for rows in lists] == [["q1", "d1"], ["q1", "d1"], []]
    assert [rows[0]["score"] for rows in lists[:2]] == [9, 9] and len(loaded) == 1
    assert [line.split() for line in answer("cat\nzebra\ncat\n")] == [["1", "1", "d1"], [], [], ["1", "1", "d1"], []]
