"""Shards: what is in them, what an output folder may hold before, and the parts of a corpus."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from byte_towers import Model, tree
from pyarrow import parquet
from word_towers import (
    DENSE,
    DOCUMENTS,
    SMALL,
    TERMS,
    TEXT,
    WordTower,
    corpus,
    encode,
    lines,
    model_of,
    rows_of,
    same_as_fresh,
    stopped,
)

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground import files
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Document, ImpactQuery
from lexvl_anserini.queries.query_vectors import write_queries
from lexvl_anserini.shards import writing
from lexvl_anserini.shards.encoding import draw_sample
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts


def expected_vector(document):
    """Counts / 2; the most frequent term of the sample occurs `top` times and becomes 255."""
    top = max(d.text.split().count(t) for d in DOCUMENTS for t in TERMS)
    counts = {term: document.text.split().count(term) for term in TERMS}
    return {term: round(count * 255 / top) for term, count in counts.items() if count}


def test_jsonl(tmp_path):
    manifest = encode(tmp_path / "out")
    names = ["docs/shard-00000.jsonl", "docs/shard-00001.jsonl", "docs/shard-00002.jsonl", "docs/shard-00003.jsonl"]
    assert sorted(tree(tmp_path / "out")) == [*names, "manifest.json", "vocab.txt"]
    found = [line for name in names for line in lines(tmp_path / "out" / name)]
    assert [line["id"] for line in found] == [d.doc_id for d in DOCUMENTS]
    for line, document in zip(found, DOCUMENTS, strict=True):
        assert line == {"id": document.doc_id, "contents": "", "vector": expected_vector(document)}
        assert list(line["vector"]) == [term for term in TERMS if term in line["vector"]]
    assert (tmp_path / "out/vocab.txt").read_text().split() == list(TERMS)
    assert [shard["name"] for shard in manifest.shards] == names
    assert read_manifest(tmp_path / "out") == manifest
    vectors = [expected_vector(document) for document in DOCUMENTS]
    assert manifest.counts == {
        "documents": 30,
        "empty": sum(not vector for vector in vectors),
        "postings": sum(map(len, vectors)),
        "clipped": 0,
        "dropped": 0,
        "max_impact": 255,
    }
    for shard in manifest.shards:
        path = tmp_path / "out" / shard["name"]
        assert (shard["bytes"], shard["sha256"]) == (path.stat().st_size, files.compute_sha256(path))
    for key in ("documents", "empty", "postings"):
        assert sum(shard[key] for shard in manifest.shards) == manifest.counts[key]


@pytest.mark.parametrize(
    ("documents", "scale", "expected"),
    [
        # 600 x .9 = 540 is clipped to 255; .5 x .9 = .45 is dropped; 1 x .9 becomes 1.
        (
            [Document("1", text="ash " * 1200 + "bay"), Document("2", text="ash ash")],
            0.9,
            {"documents": 2, "empty": 0, "postings": 2, "clipped": 1, "dropped": 1, "max_impact": 255},
        ),
        (DOCUMENTS, 0.01, {"empty": 30, "postings": 0, "max_impact": 0}),
    ],
)
def test_clipped_and_dropped_weights_are_counted(tmp_path, documents, scale, expected):
    counts = encode(tmp_path / "a", documents, quantiser=Quantiser.named("fixed", scale=scale)).counts
    assert expected.items() <= counts.items()


def test_gzip_holds_the_same_and_no_time(tmp_path, monkeypatch):
    encode(tmp_path / "plain")
    encode(tmp_path / "packed", layout=replace(SMALL, compress=True))
    monkeypatch.setattr("time.time", lambda: 2e9)
    encode(tmp_path / "later", layout=replace(SMALL, compress=True))
    assert tree(tmp_path / "packed") == tree(tmp_path / "later")
    for number in range(4):
        packed = tmp_path / f"packed/docs/shard-0000{number}.jsonl.gz"
        assert gzip.decompress(packed.read_bytes()) == (tmp_path / f"plain/docs/shard-0000{number}.jsonl").read_bytes()


def test_parquet(tmp_path):
    encode(tmp_path / "out", layout=replace(SMALL, shard_format="parquet", contents=True, compress=True))
    table = parquet.read_table(tmp_path / "out/docs/shard-00001.parquet")
    assert {f.name: str(f.type).replace("element", "item") for f in table.schema} == {
        "id": "string",
        "term": "list<item: uint32>",
        "impact": "list<item: uint32>",
        "contents": "string",
    }
    for row, document in zip(table.to_pylist(), DOCUMENTS[8:16], strict=True):
        assert row["id"] == document.doc_id and row["contents"] == document.text
        named = {TERMS[d]: impact for d, impact in zip(row["term"], row["impact"], strict=True)}
        assert named == expected_vector(document)


def test_dense_parquet(tmp_path):
    manifest = encode(tmp_path / "out", model=DENSE)
    assert manifest.kind == "dense" and manifest.counts.keys() == {"documents", "empty"}
    assert manifest.counts["documents"] == 30
    assert not (tmp_path / "out/vocab.txt").exists() and manifest.quantiser == {}
    table = parquet.read_table(tmp_path / "out/docs/shard-00000.parquet")
    assert str(table.schema.field("emb").type).replace("element", "item") == "list<item: float>"
    expected = WordTower().weights([d.text for d in DOCUMENTS[:8]]).toarray()
    assert (np.array(table["emb"].to_pylist(), dtype=np.float32) == expected).all()


def test_text_jsonl(tmp_path):
    manifest = encode(tmp_path / "out", model=TEXT, layout=replace(SMALL, shard_format="parquet"))
    assert rows_of(tmp_path / "out") == [{"id": document.doc_id, "contents": document.text} for document in DOCUMENTS]
    assert manifest.counts == {"documents": 30, "empty": sum(not document.text for document in DOCUMENTS)}


def test_ids_and_texts_of_any_script(tmp_path):
    documents = [Document('q"\\é犬', text='été \x00\t"\n犬 \U0001f436')]
    encode(tmp_path / "out", documents, layout=Layout(contents=True))
    (line,) = lines(tmp_path / "out/docs/shard-00000.jsonl")
    assert line == {"id": documents[0].doc_id, "contents": documents[0].text, "vector": {"été": 255}}


def test_progress_counts_every_document_once(tmp_path):
    for again in range(2):
        done = []
        encode(tmp_path / "out", progress=done.append)
        assert sum(done) == 30, again


def test_shards_end_where_batches_do(tmp_path):
    """The last shard is short; a shard size above the corpus gives one."""
    assert [shard["documents"] for shard in encode(tmp_path / "a").shards] == [8, 8, 8, 6]
    assert [shard["documents"] for shard in encode(tmp_path / "b", layout=Layout()).shards] == [30]
    assert [shard["documents"] for shard in encode(tmp_path / "c", layout=Layout(shard_size=15)).shards] == [15, 15]


def test_drawn_sample_is_a_sample():
    chosen = [d.doc_id for d in draw_sample(iter(DOCUMENTS), 30, 10)]
    assert len(set(chosen)) == 10 and chosen == sorted(chosen) and chosen != [f"d{i:02d}" for i in range(10)]
    assert chosen == [d.doc_id for d in draw_sample(iter(DOCUMENTS), 30, 10)]
    assert draw_sample(iter(DOCUMENTS[:3]), 3) == DOCUMENTS[:3]


def test_queries_file(tmp_path):
    queries = [ImpactQuery("1", {"ash": 3}), ImpactQuery("é", {})]
    for name in ("q.jsonl", "q.jsonl.gz"):
        assert write_queries(queries, tmp_path / "new" / name) == 2
        assert lines(tmp_path / "new" / name) == [
            {"id": "1", "contents": "", "vector": {"ash": 3}},
            {"id": "é", "contents": "", "vector": {}},
        ]
    assert write_queries(queries, tmp_path / "texts.jsonl", iter(["a tree", ""])) == 2
    assert [line["contents"] for line in lines(tmp_path / "texts.jsonl")] == ["a tree", ""]


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        ([], DataError, "no document"),
        ([*DOCUMENTS, DOCUMENTS[3]], DataError, "'d03' at 4, 31"),
        ([*DOCUMENTS, Document("i", image="i.png")], UsageError, "document 'i' has no text"),
    ],
)
def test_corpora_that_are_refused(tmp_path, documents, error, message):
    with pytest.raises(error, match=message):
        encode(tmp_path / "a", documents)
    assert not (tmp_path / "a/manifest.json").exists()


def test_shards_are_never_documents(tmp_path, monkeypatch):
    """Every text of a folder is one: shards are not written there, and those that lie there are not read."""
    (tmp_path / "a.txt").write_text("fox")
    monkeypatch.chdir(tmp_path)
    for place, output in ((".", "out"), (".", tmp_path), (tmp_path, "sub/out")):
        with pytest.raises(UsageError, match="among the documents; name a folder outside"):
            write_impacts(load_dataset(f"folder:{place}"), model_of(), output)
    assert list(tree(tmp_path)) == ["a.txt"]
    encode(tmp_path / "out")
    with pytest.raises(DataError, match=r"out/vocab\.txt: of shards or an index, no text; move their folder out of"):
        write_impacts(load_dataset("folder:."), model_of(), "../sh")


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (DOCUMENTS[:-1], None),
        ([*DOCUMENTS[:-1], Document("d29", text="fox")], None),
        ([*DOCUMENTS[:-1], Document("d29", text="bay")], Part(0, 3)),
    ],
)
def test_a_corpus_that_changes_meanwhile(tmp_path, changed, part):
    """Read as checked the first time, otherwise the second; outside of a part too, whose scale came from there."""
    readings = iter([DOCUMENTS, changed])
    dataset = replace(corpus(), documents=lambda: iter(next(readings)))
    with pytest.raises(ArtefactError, match="the corpus changed while it was read"):
        write_impacts(dataset, model_of(), tmp_path / "out", layout=SMALL, part=part)
    assert tree(tmp_path / "out") == {}
    encode(tmp_path / "out")
    assert same_as_fresh(tmp_path / "out")


def test_finished_is_left_alone(tmp_path, monkeypatch, caplog):
    before = encode(tmp_path / "out")
    monkeypatch.setattr(writing, "encode_shard", None)
    caplog.set_level("INFO", "lexvl_anserini")
    assert encode(tmp_path / "out") == before == encode(tmp_path / "out", overwrite=True)
    assert "finished already" in caplog.text


@pytest.mark.parametrize(
    "change,told",
    [
        ({"documents": DOCUMENTS[:9]}, "corpus.documents: 30 found, 9 requested"),
        ({"model": model_of(options={"topk": 3})}, "encoder.options.topk: null found, 3 requested"),
        ({"model": model_of(digest="other")}, "encoder.checkpoint_digest: "),
        ({"layout": Layout(shard_size=9)}, "layout.shard_size: 8 found, 9 requested"),
        ({"quantiser": Quantiser.named("naver")}, "quantiser.document.scheme: "),
        ({"quantiser": Quantiser.named(bits=7)}, "quantiser.document.bits: 8 found, 7 requested"),
        ({"model": DENSE}, "kind: .impact. found, .dense. requested"),
    ],
)
def test_another_making_is_refused_unless_told(tmp_path, change, told):
    encode(tmp_path / "out")
    before = tree(tmp_path / "out")
    with pytest.raises(ArtefactError, match=f"holds shards of another request .*{told}.*--overwrite replaces"):
        encode(tmp_path / "out", **change)
    assert tree(tmp_path / "out") == before
    encode(tmp_path / "out", **change, overwrite=True)
    assert same_as_fresh(tmp_path / "out", **change)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "not empty and not written by encode") for name in ("notes.txt", "docs/mine.jsonl", ".hidden")),
        *((name, "not empty and not written by encode") for name in ("vocab.txt", "manifest.txt")),
        ("manifest.json", r"manifest\.json: not a manifest of this version"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, name, message, overwrite):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "my app"}')
    with pytest.raises(ArtefactError, match=message):
        encode(tmp_path / "out", overwrite=overwrite)
    assert tree(tmp_path / "out") == {name: b'{"name": "my app"}'}


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    for output in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(ArtefactError, match="cannot be written"):
            encode(output)
    assert (tmp_path / "out").read_text() == "mine"


def test_reading_what_is_not_finished(tmp_path):
    with pytest.raises(ArtefactError, match="no such folder; encode a corpus first"):
        read_manifest(tmp_path / "none")
    with pytest.raises(ArtefactError, match=r"no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(ArtefactError, match="unfinished; run the same encode command again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("number,of", [(1, 1), (-1, 3), (3, 3), (0, 0), (0, 31)])
def test_parts_that_are_none(tmp_path, number, of):
    with pytest.raises(UsageError, match="shard id|31 parts of a corpus of 30 documents"):
        encode(tmp_path / "out", part=Part(number, of))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("of", [1, 2, 4, 7, 30])
def test_parts_are_the_whole_with_one_scale(tmp_path, of):
    """The largest weight of the corpus lies in one part; the other parts use its scale all the same."""
    whole = encode(tmp_path / "whole")
    parts = [encode(tmp_path / str(number), part=Part(number, of)) for number in range(of)]
    assert [row for number in range(of) for row in rows_of(tmp_path / str(number))] == rows_of(tmp_path / "whole")
    assert all(part.quantiser == whole.quantiser and part.vocabulary == whole.vocabulary for part in parts)
    assert all(part.corpus["digest"] == whole.corpus["digest"] and part.corpus["documents"] == 30 for part in parts)
    assert [part.corpus["part"]["id"] for part in parts] == list(range(of))
    assert all(part.corpus["part"]["documents"] == part.counts["documents"] > 0 for part in parts)
    assert max(part.counts["max_impact"] for part in parts) == whole.counts["max_impact"]
    for key in ("documents", "postings", "empty", "clipped", "dropped"):
        assert sum(part.counts[key] for part in parts) == whole.counts[key]


def test_a_part_is_resumed_and_is_no_other_part(tmp_path, encoded):
    stopped(tmp_path / "out", after=1, part=Part(1, 2))
    encoded.clear()
    encode(tmp_path / "out", part=Part(1, 2))
    assert encoded == ["d23"] and same_as_fresh(tmp_path / "out", part=Part(1, 2))
    for other in (Part(0, 2), Part(1, 3), None):
        with pytest.raises(ArtefactError, match="corpus.part.* requested"):
            encode(tmp_path / "out", part=other)


@pytest.mark.parametrize("shard_format", ["jsonl", "parquet"])
@pytest.mark.parametrize("model", [model_of(), DENSE, TEXT])
def test_metadata_is_stored_if_wanted(tmp_path, shard_format, model):
    told = {"year": 2024, "tags": "a b", "é": 1.5}
    documents = [Document("a", text="ash", metadata=told), Document("b", "Bay", "cat")]
    manifest = encode(tmp_path / "out", documents, model, Layout(shard_format, metadata=True, contents=True))
    assert manifest.layout["metadata"] is True
    rows = rows_of(tmp_path / "out")
    stored = [row["metadata"] for row in rows]
    assert [json.loads(value) if isinstance(value, str) else value for value in stored] == [told, {}]
    assert [row["contents"] for row in rows] == ["ash", "Bay cat"]
    assert "metadata" not in encode(tmp_path / "without", documents, model, Layout(shard_format)).layout


def test_device_and_batch_size_are_noted_where_they_decide(tmp_path):
    noted = replace_device(model_of(), "cpu")
    versions = encode(tmp_path / "a", model=noted, batch_size=16).versions
    assert {"device": "cpu", "batch_size": "16"}.items() <= versions.items()
    assert "device" not in encode(tmp_path / "b", model=replace_device(TEXT, "cpu")).versions
    finished = encode(tmp_path / "a", model=noted, batch_size=8)
    assert finished.versions["batch_size"] == "16", "what is finished stays as it is"


def replace_device(model, device):
    """A model that was loaded on a device."""
    return type("Loaded", (Model,), {"device": device})(model.query, model.document, model.kind)


def test_an_impact_beyond_2_to_the_24_is_named_before_it_is_written(tmp_path):
    documents = [*DOCUMENTS[:3], Document("large", text="dog cat cat cat")]
    beyond = SideQuantiser("fixed", None, 1.2e7)
    with pytest.raises(LexvlError, match=r"^document 'large', term 'cat': an impact of 18000000 reaches 2\^24"):
        encode(tmp_path / "shards", documents, quantiser=Quantiser(beyond, beyond))
    assert not list((tmp_path / "shards/docs").iterdir())


def test_where_a_part_lies_is_no_difference(tmp_path):
    encode(tmp_path / "out", model=model_of(options={"tokenizer": "/here", "query_checkpoint": "a/b@1"}))
    encode(tmp_path / "out", model=model_of(options={"tokenizer": "/there"}))
