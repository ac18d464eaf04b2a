"""Records of JSON: one line for every value of another type, for what older versions wrote, and for two that differ."""

import inspect
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from damage import places

import lexvl_anserini
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.claims import compare_requests
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, UsageError
from lexvl_anserini.ground.manifest import Manifest, RunManifest, read_manifest, read_run_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.typed import Entry, check, show_value
from lexvl_anserini.queries.clauses import Boost, Term
from lexvl_anserini.queries.query_source import find_topic_source
from lexvl_anserini.queries.query_vectors import Feedback
from lexvl_anserini.runs.fusion import Fusion, fuse_runs
from lexvl_anserini.searching.building import append_index, build_index
from lexvl_anserini.searching.rescoring import compute_hybrid_lists
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import Searcher, search_index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lexvl-1"


class Near(Entry):
    name: str


class Point(Entry):
    name: str
    x: int = 0
    share: float | None = None
    tags: Mapping[str, bool] = {}
    near: tuple[Near, ...] = ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"name": "p"}, None),
        ({"name": "p", "x": None, "share": 1, "tags": {"a": True}, "near": [{"name": "q"}], "more": object}, None),
        ({}, "name is missing, expected a text"),
        ({"name": None}, "name is null, expected a text"),
        ({"name": "p", "x": "3"}, 'x is "3", expected an integer'),
        ({"name": "p", "x": True}, "x is true, expected an integer"),
        ({"name": "p", "x": 1.0}, "x is 1.0, expected an integer"),
        ({"name": "p", "share": []}, "share is [], expected a number or null"),
        ({"name": "p", "tags": []}, "tags is [], expected an object"),
        ({"name": "p", "tags": {"a\n": 1}}, "tags.'a\\n' is 1, expected true or false"),
        ({"name": "p", "near": {}}, "near is {}, expected a list"),
        ({"name": "p", "near": [{"name": "q"}, {}]}, "near[1].name is missing, expected a text"),
        ({"name": "p", "near": ["x" * 99]}, f'near[0] is "{"x" * 56}..., expected an object'),
    ],
)
def test_values_of_another_type(data: Any, problem: str | None) -> None:
    if problem is None:
        check(data, Point, "p.json", "write it again")
        return
    with pytest.raises(ArtefactError) as caught:
        check(data, Point, "p.json", "write it again")
    assert str(caught.value) == f"p.json: {problem}; write it again"
    for value in (1 << 64, [{3: 4}], "\ud800"):  # which JSON has not
        assert show_value(value) == ascii(value)


def replaced(data: Any, values: Sequence[Any]) -> Iterator[Any]:
    """A JSON value with each value within it replaced by each of some; it is the same one after the last."""
    for container, key in places(data):
        original = container[key]
        for value in values:
            container[key] = value
            yield data
        container[key] = original


VALUES = ("x", 7, 2.5, True, None, [], {}, ["x"], {"x": []}, -1, 1e30)


def outcome(read: Any, *arguments: Any) -> str:
    try:
        read(*arguments)
    except ArtefactError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return str(error)
    return ""


@pytest.mark.parametrize(
    "name", ["impacts/part-0", "indexes/changed", "indexes/dense-texts", "text/bm25", "indexes/splade"]
)
def test_every_value_of_a_manifest(name: str) -> None:
    """A manifest is read, or refused in one line, whatever stands in it; what reads it later finds what it expects."""
    whole = json.loads((FIXTURES / name / "manifest.json").read_text())
    lines = [outcome(lambda data: used(Manifest.from_json(data, "m.json")), data) for data in replaced(whole, VALUES)]
    refused = [line for line in lines if line]
    assert len(refused) > 300 and all(line.startswith(("m.json: ", "manifest: ")) for line in refused)


def used(manifest: Manifest) -> None:
    manifest.request(), manifest.meaning(), manifest.corpus.ref, manifest.documents, manifest.vocabulary_digest
    assert manifest.counts.documents + manifest.counts.empty is not None
    assert sum(shard["bytes"] + len(shard["sha256"]) for shard in manifest.shards) is not None


def test_every_value_of_a_runs_manifest_and_of_index_json(tmp_path: Path) -> None:
    [run, *_] = sorted((FIXTURES / "runs").glob("*.manifest.json"))
    for data in replaced(json.loads(run.read_text()), VALUES):
        outcome(lambda data: RunManifest.from_json(data, "r.json").request(), data)
    for name in ("splade", "dense-texts", "bm25"):
        report = json.loads((FIXTURES / "indexes" / name / "index.json").read_text())
        report["longest_lists"] = report.get("longest_lists", [])[:1]
        lines = []
        for data in replaced(report, ("x", 7, [], {})):
            (tmp_path / "index.json").write_text(json.dumps(data))
            lines.append(outcome(read_report, tmp_path))
        assert sum(map(bool, lines)) > len(lines) / 4


def test_files_that_are_none(tmp_path: Path) -> None:
    """Empty, a folder, bytes that are no text, JSON of another kind, thousands of brackets."""
    for name, read in (
        ("manifest.json", lambda: read_manifest(tmp_path)),
        ("index.json", lambda: read_report(tmp_path)),
        ("r.trec.manifest.json", lambda: read_run_manifest(tmp_path / "r.trec")),
    ):
        path = tmp_path / name
        for content in (b"", b"\xff\xfe\x00", b"[]", b"3", b"[" * 5000, b'{"a":' * 5000, b"{}\n{}"):
            path.write_bytes(content)
            assert outcome(read).startswith(str(path)), content
        path.unlink()
        path.mkdir()
        assert str(tmp_path) in outcome(read)
        path.rmdir()


def test_the_manifest_beside_encoded_topics(tmp_path: Path) -> None:
    [queries, *_] = sorted((FIXTURES / "queries").glob("*.jsonl*"))
    for found in (FIXTURES / "queries").iterdir():
        shutil.copy(found, tmp_path / found.name)
    manifest, beside = read_manifest(FIXTURES / "indexes/splade"), tmp_path / (queries.name + ".manifest.json")
    arguments = (str(tmp_path / queries.name), FIXTURES / "indexes/splade", manifest, None, None)
    for data in replaced(json.loads(beside.read_text()), VALUES):
        beside.write_text(json.dumps(data))
        outcome(lambda: sum(1 for _ in find_topic_source(*arguments).stream()))


NO_COUNTS = (0, -1, True, 1.5, float("nan"), "3", None, 2**31, 10**400)


@pytest.mark.parametrize("number", NO_COUNTS)
def test_numbers_at_the_border_of_the_library(tmp_path: Path, number: Any) -> None:
    """Functions that take a number of hits, threads or texts refuse what is none before they do anything."""
    nothing = tmp_path / "nothing"
    topics = [ImpactQuery("q", {"a": 1})]
    calls: dict[str, list[Any]] = {
        "hits": [
            lambda: next(search_index(nothing, topics, hits=number)),
            lambda: Searcher.explain(None, topics[0], hits=number),  # type: ignore[arg-type]
            lambda: next(fuse_runs([nothing], Fusion(), hits=number)),
            lambda: next(compute_hybrid_lists([], {}, [], hits=number)),
        ],
        "threads": [
            lambda: next(search_index(nothing, topics, threads=number)),
            *(() if number is None else (lambda: build_index(nothing, threads=number),)),
            *(() if number is None else (lambda: append_index(nothing, nothing, threads=number),)),
        ],
        "batch_size": [
            lambda: next(search_index(nothing, topics, batch_size=number)),
            lambda: write_impacts(None, None, nothing, batch_size=number),  # type: ignore[arg-type]
            lambda: next(compute_hybrid_lists([], {}, [], batch_size=number)),
        ],
        "shard size": [lambda: Layout(shard_size=number)],
        "documents of feedback": [lambda: Feedback(documents=number)],
        "terms of feedback": [lambda: Feedback(terms=number)],
        "candidates": [] if number is None else [lambda: Search(first_terms=1, candidates=number)],
    }
    for name, every in calls.items():
        for call in every:
            with pytest.raises(UsageError, match=f"^{name} is .*, expected an integer from 1 to") as caught:
                call()
            assert len(str(caught.value)) < 150


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf"), 1e31])
def test_shares_and_weights_at_the_border(number: float) -> None:
    for call in (
        lambda: Search(threshold=number),
        lambda: Search(text_weight=number),
        lambda: Fusion(k=number),
        lambda: Fusion(weights=(1.0, number)),
        lambda: Boost(Term("a"), number),
    ):
        with pytest.raises(UsageError, match="expected"):
            call()
    if number != 1e31:
        with pytest.raises(UsageError, match="expected"):
            Feedback(alpha=number)


# Calls that only hold their arguments, as any class of data does.
RECORDS = {"Dataset", "Document", "Encoder", "LexvlError", "Qrel", "Quantiser", "ScoredDoc", "Topic"}


@pytest.mark.parametrize("value", [3, None, b"x", [3], {3: 3}, object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", sorted(set(lexvl_anserini.__all__) - RECORDS))
def test_a_first_argument_of_another_type(name: str, value: Any) -> None:
    """Every public call refuses it in one line; they raised AttributeError or TypeError from within."""
    call = getattr(lexvl_anserini, name)
    others = [p for p in list(inspect.signature(call).parameters.values())[1:] if p.default is p.empty]
    with pytest.raises(UsageError, match=r" is .*, expected ") as caught:
        call(value, *(None for _ in others))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("load_dataset", {"name": "demo", option: 3}) for option in ("split", "data_dir", "direction")),
        ("load_encoder", {"name": "bm25", "checkpoint": 3}),
        ("load_encoder", {"name": "bm25", "runtime": None}),
        ("build_index", {"shards": "x", "index": 3}),
        ("write_impacts", {"dataset": lexvl_anserini.load_dataset("demo"), "model": 3, "output": "x"}),
        ("Searcher", {"index": "x", "manifest": 3}),
        ("Searcher", {"index": "x", "model": 3}),
        ("as_frame", {"rankings": [[3]]}),
    ],
)
def test_another_argument_of_another_type(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r" is (3|None), expected "):
        getattr(lexvl_anserini, name)(**arguments)


def test_paths_are_taken_where_texts_name_paths(golden: Path, tmp_path: Path) -> None:
    bert = golden / "splade/ckpt_bert"
    with pytest.raises(UsageError, match=f"'{tmp_path}' is a path .* beir:{tmp_path} a corpus.jsonl"):
        load_dataset(tmp_path)
    model = load_encoder("bag-of-tokens", bert, tokenizer=bert)
    assert model.checkpoint == model.options["tokenizer"] == str(bert.resolve())
    with pytest.raises(UsageError, match=r"vectors is \[1\], expected what encode_query or encode_document returns"):
        model.decode([1])  # type: ignore[arg-type]
    missing = {"checkpoint": tmp_path / "x", "tokenizer": tmp_path / "x", "backbone_config": Path("owner/name")}
    for argument, path in missing.items():
        with pytest.raises(CheckpointError, match="no such file or folder; a"):
            load_encoder("bag-of-tokens", **{"checkpoint": bert, argument: path})


def test_requests_that_differ() -> None:
    """The keys at any depth with both values, which are cut where they begin to differ; of four keys at most."""
    digest, corpus = "d" * 200, {"name": "beir:x", "split": None}
    found = {"encoder": {"name": "vdr", "digest": digest, "options": {}}, "corpus": corpus, "hits": 10}
    request = {**found, "encoder": {**found["encoder"], "options": {"m": 64}}, "corpus": {**corpus, "split": "dev"}}
    same = compare_requests(request, found)
    assert str(same) == 'encoder.options.m: null found, 64 requested; corpus.split: null found, "dev" requested'
    assert list(same.differing) == ["encoder", "corpus"]
    assert str(compare_requests({"hits": 5, "encoder": None}, {"hits": 10, "encoder": {"name": "vdr"}})) == (
        'hits: 10 found, 5 requested; encoder: {"name":"vdr"} found, null requested'
    )
    same = compare_requests({"query": "a" * 500 + "b" + "c" * 500}, {"query": "a" * 500})
    found, requested = str(same).removeprefix("query: ").split(" found, ")
    assert found == "..." + "a" * 20 + '"' and requested.startswith("..." + "a" * 20 + "bccc")
    assert requested.endswith("c... requested") and len(requested) < 200
    same = compare_requests({"a": dict.fromkeys("vwxyz", 1), "b": 1}, {"a": dict.fromkeys("vwxyz", 2), "b": 2})
    assert str(same).endswith("a.y: 2 found, 1 requested; also a.z, b")


TAUGHT = {"name": "vdr", "options": {"taught": {"words": {}}}}
FIELD = {"name": "image", "kind": "impact", "encoder": TAUGHT}


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ({"corpus": {"exif": "basic"}}, "EXIF metadata ('exif')"),
        ({"corpus": {"parts": [{}, {"exif": "gps"}]}}, "EXIF metadata ('exif')"),
        ({"encoder": TAUGHT}, "taught words ('taught')"),
        ({"encoder": {"name": "fields", "fields": [FIELD]}}, "taught words ('taught')"),
        ({"encoder": {"name": "vdr", "options": {"languages": True}}}, "queries in other languages ('languages')"),
    ],
)
def test_what_0_3_0_is_the_last_version_to_read(entries: dict[str, Any], what: str) -> None:
    manifest = {"kind": "impact", "encoder": {"name": "vdr"}, "corpus": {}, "counts": {}, "format": "lexvl/1"}
    assert Manifest.from_json(manifest).kind == "impact"
    with pytest.raises(ArtefactError) as refused:
        Manifest.from_json({**manifest, **entries}, "shards/manifest.json")
    assert str(refused.value) == (
        f"shards/manifest.json: has {what}, which 0.3.0 is the last version to read; use 0.3.0, or encode and index "
        "again into another folder"
    )
