"""Shards: what is in them, that they repeat, and that neither kill, full disk nor a second writer leaves half a folder.

Run as a script (`python test_shards_writing.py FOLDER`), this file is the process that is killed: it kills itself at
every point there is and prints, for each, what the next call found.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image
from pyarrow import parquet
from scipy import sparse

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures import images
from lexvl_anserini.data.pictures.images import FAIL, read_images
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.ground import files
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Document, ImpactQuery
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.queries.query_vectors import write_queries
from lexvl_anserini.shards import encoding, layout, request, writing
from lexvl_anserini.shards.encoding import calibration_sample
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts

TERMS = ("ash", "bay", "cat", "dog", "elm", "fox", "gnu", "été")


# ---- a model of eight terms and a corpus of thirty documents


class ToyTower:
    """Weight of a term: the number of times it occurs, halved."""

    kind = "impact"
    binary = False
    vocabulary = Vocabulary(TERMS)

    def read(self, document):
        if document.text is None and document.title is None:
            raise UsageError(f"document {document.doc_id!r} has no text; this encoder reads texts only")
        return document.contents

    def weights(self, inputs, batch_size=32, progress=lambda n: None, on_error=FAIL):
        rows = [[text.split().count(term) / 2 for term in TERMS] for text in inputs]
        progress(len(rows))
        return sparse.csr_matrix(np.array(rows, dtype=np.float32).reshape(len(rows), len(TERMS)))


class ToyDense(ToyTower):
    kind = "dense"

    def vectors(self, inputs, batch_size=32, progress=lambda n: None, on_error=FAIL):
        progress(len(inputs))
        return self.weights(inputs).toarray()


@dataclass(frozen=True)
class ToyModel:
    """What `write_impacts` asks of an encoder, without a network."""

    vocabulary = Encoder.vocabulary
    fitted = Encoder.fitted
    kind: str = "impact"
    query: Any = field(default_factory=ToyTower)
    document: Any = field(default_factory=ToyTower)
    options: Any = field(default_factory=dict)
    digest: str = "toy"
    name: str = "toy"

    def identity(self):
        options = dict(self.options)
        return {"name": self.name, "checkpoint": None, "checkpoint_digest": self.digest, "options": options}


class TextTower(ToyTower):
    kind = "text"


DENSE = ToyModel("dense", ToyDense(), ToyDense())
TEXT = ToyModel("text", TextTower(), TextTower())


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Tests need no power cut to be survived, and fsync is slow."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def text_of(number):
    return " ".join(TERMS[(number * step) % len(TERMS)] for step in range(number % 7))


DOCUMENTS = [Document(f"d{number:02d}", text=text_of(number)) for number in range(30)]


def corpus(documents=DOCUMENTS, name="toy"):
    return Dataset(name, "test", lambda: iter(documents), lambda: iter(()), lambda: iter(()))


SMALL = Layout(shard_size=8)


def encode(output, documents=DOCUMENTS, model=None, layout=SMALL, **options):
    return write_impacts(corpus(documents), model or ToyModel(), Path(output), layout=layout, **options)


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lines(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode().splitlines()]


def rows_of(folder):
    """All rows of all shards of either format."""
    paths = sorted((folder / "docs").iterdir())
    return [row for p in paths for row in (lines(p) if p.suffix == ".jsonl" else parquet.read_table(p).to_pylist())]


def same_as_fresh(output, *arguments, **options):
    """True if the folder has the bytes of an encoding that nothing disturbed."""
    fresh = output.with_name(f"{output.name}-fresh")
    encode(fresh, *arguments, **options)
    return tree(output) == tree(fresh)


ENCODE_SHARD = writing.encode_shard


@pytest.fixture
def encoded(monkeypatch):
    """First ids of the shards that were encoded."""
    calls = []

    def counted(batch, *rest):
        calls.append(batch[0].doc_id)
        return ENCODE_SHARD(batch, *rest)

    monkeypatch.setattr(writing, "encode_shard", counted)
    return calls


def stopped(output, after, **options):
    """Encodes until `after` shards are finished, then fails."""
    counted = iter(range(after))

    def limited(*arguments):
        if next(counted, None) is None:
            raise MemoryError
        return ENCODE_SHARD(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(writing, "encode_shard", limited)
        encode(output, **options)


def expected_vector(document):
    """Counts / 2; the most frequent term of the sample occurs `top` times and becomes 255."""
    top = max(d.text.split().count(t) for d in DOCUMENTS for t in TERMS)
    counts = {term: document.text.split().count(term) for term in TERMS}
    return {term: round(count * 255 / top) for term, count in counts.items() if count}


# ---- contents


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


def test_counts(tmp_path):
    manifest = encode(tmp_path / "out")
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
        assert (shard["bytes"], shard["sha256"]) == (path.stat().st_size, files.file_sha256(path))
    for key in ("documents", "empty", "postings"):
        assert sum(shard[key] for shard in manifest.shards) == manifest.counts[key]


def test_clipped_and_dropped_are_counted(tmp_path):
    documents = [Document("1", text="ash " * 1200 + "bay"), Document("2", text="ash ash")]
    found = encode(tmp_path / "a", documents, quantiser=Quantiser.named("fixed", scale=0.9)).counts
    # 600 x .9 = 540 is clipped to 255; .5 x .9 = .45 is dropped; 1 x .9 becomes 1.
    assert found == {"documents": 2, "empty": 0, "postings": 2, "clipped": 1, "dropped": 1, "max_impact": 255}


def test_a_document_whose_weights_all_vanish_is_empty(tmp_path):
    found = encode(tmp_path / "a", quantiser=Quantiser.named("fixed", scale=0.01)).counts
    assert (found["empty"], found["postings"], found["max_impact"]) == (30, 0, 0)


def test_contents_on_request(tmp_path):
    encode(tmp_path / "out", layout=replace(SMALL, contents=True))
    assert [line["contents"] for line in lines(tmp_path / "out/docs/shard-00003.jsonl")] == [
        document.text for document in DOCUMENTS[24:]
    ]


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
    assert manifest.kind == "dense" and manifest.counts == {"documents": 30, "empty": 0} | {
        "empty": manifest.counts["empty"]
    }
    assert not (tmp_path / "out/vocab.txt").exists() and manifest.quantiser == {}
    table = parquet.read_table(tmp_path / "out/docs/shard-00000.parquet")
    assert str(table.schema.field("emb").type).replace("element", "item") == "list<item: float>"
    expected = ToyTower().weights([d.text for d in DOCUMENTS[:8]]).toarray()
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


def test_calibration_sample_is_a_sample(monkeypatch):
    monkeypatch.setattr(encoding, "CALIBRATION_SAMPLE", 10)
    chosen = [d.doc_id for d in calibration_sample(iter(DOCUMENTS), 30)]
    assert len(set(chosen)) == 10 and chosen == sorted(chosen) and chosen != [f"d{i:02d}" for i in range(10)]
    assert chosen == [d.doc_id for d in calibration_sample(iter(DOCUMENTS), 30)]
    assert calibration_sample(iter(DOCUMENTS[:3]), 3) == DOCUMENTS[:3]


@pytest.mark.parametrize("arguments", [{"shard_format": "csv"}, {"shard_size": 0}])
def test_layouts_that_make_no_sense(arguments):
    with pytest.raises(UsageError):
        Layout(**arguments)


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


# ---- corpora that are refused


def test_corpora_that_are_refused(tmp_path):
    with pytest.raises(DataError, match="no document"):
        encode(tmp_path / "a", [])
    with pytest.raises(DataError, match="'d03' at 4, 31"):
        encode(tmp_path / "a", [*DOCUMENTS, DOCUMENTS[3]])
    assert not (tmp_path / "a").exists()


def test_documents_without_text(tmp_path):
    with pytest.raises(UsageError, match="document 'i' has no text; this encoder reads texts only"):
        encode(tmp_path / "a", [*DOCUMENTS, Document("i", image="i.png")])
    assert not (tmp_path / "a/manifest.json").exists()


@pytest.mark.parametrize("changed", [DOCUMENTS[:-1], [*DOCUMENTS[:-1], Document("d29", text="fox")]])
def test_a_corpus_that_changes_meanwhile(tmp_path, changed):
    """Read as checked the first time, otherwise the second."""
    readings = iter([DOCUMENTS, changed])
    dataset = replace(corpus(), documents=lambda: iter(next(readings)))
    with pytest.raises(ArtefactError, match="the corpus changed while it was read"):
        write_impacts(dataset, ToyModel(), tmp_path / "out", layout=SMALL)
    assert tree(tmp_path / "out") == {}
    encode(tmp_path / "out")
    assert same_as_fresh(tmp_path / "out")


# ---- what an output may hold


def test_finished_is_left_alone(tmp_path, monkeypatch, caplog):
    before = encode(tmp_path / "out")
    monkeypatch.setattr(writing, "encode_shard", None)
    caplog.set_level("INFO", "lexvl_anserini")
    assert encode(tmp_path / "out") == before == encode(tmp_path / "out", overwrite=True)
    assert "finished already" in caplog.text


@pytest.mark.parametrize(
    "change,told",
    [
        ({"documents": DOCUMENTS[:9]}, "corpus: .*documents.*30.* found, .*9.* requested"),
        ({"model": ToyModel(options={"topk": 3})}, "encoder: .* requested"),
        ({"model": ToyModel(digest="other")}, "encoder: "),
        ({"layout": Layout(shard_size=9)}, "layout: .*shard_size"),
        ({"quantiser": Quantiser.named("naver")}, "quantiser: "),
        ({"quantiser": Quantiser.named(bits=7)}, "quantiser: "),
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


def test_where_a_part_lies_is_no_difference(tmp_path):
    encode(tmp_path / "out", model=ToyModel(options={"tokenizer": "/here", "query_checkpoint": "a/b@1"}))
    encode(tmp_path / "out", model=ToyModel(options={"tokenizer": "/there"}))


@pytest.mark.parametrize("name", ["notes.txt", "docs/mine.jsonl", "vocab.txt", "manifest.txt", ".hidden"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, name, overwrite):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ArtefactError, match="not empty and not written by encode"):
        encode(tmp_path / "out", overwrite=overwrite)
    assert tree(tmp_path / "out") == {name: b"mine"}


def test_a_foreign_manifest(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text('{"name": "my app"}')
    for overwrite in (False, True):
        with pytest.raises(ArtefactError, match=r"manifest\.json: not a manifest of this version"):
            encode(tmp_path / "out", overwrite=overwrite)
    assert tree(tmp_path / "out") == {"manifest.json": b'{"name": "my app"}'}


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    for output in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(ArtefactError, match="cannot be written"):
            encode(output)
    assert (tmp_path / "out").read_text() == "mine"


def test_an_empty_folder_is_fine(tmp_path):
    (tmp_path / "out").mkdir()
    assert encode(tmp_path / "out").counts["documents"] == 30


def test_two_writers(tmp_path):
    (tmp_path / "out").mkdir()
    with exclusive(tmp_path / "out"), pytest.raises(ArtefactError, match="another process is writing it"):
        encode(tmp_path / "out")
    encode(tmp_path / "out")


def test_reading_what_is_not_finished(tmp_path):
    with pytest.raises(ArtefactError, match="no such folder; encode a corpus first"):
        read_manifest(tmp_path / "none")
    with pytest.raises(ArtefactError, match=r"no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(ArtefactError, match="unfinished; run the same encode command again"):
        read_manifest(tmp_path)


# ---- pictures that cannot be read


class PictureTower(ToyTower):
    """Weight of a term: a share of the picture's red, so that a vector shows which picture it is of."""

    def read(self, document):
        return document.image

    def weights(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        matrix = np.zeros((len(inputs), len(TERMS)), dtype=np.float32)
        pictures = read_images(inputs, workers=2, on_error=on_error)
        for picture in pictures:
            matrix[picture.position, [0, -1]] = np.asarray(picture.value)[0, 0, 0] / 255, 1
            progress(1)
        return sparse.csr_matrix(matrix)


class DensePictureTower(PictureTower):
    kind = "dense"

    def vectors(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        return self.weights(inputs, batch_size, progress, on_error).toarray()


PICTURES = ToyModel(query=PictureTower(), document=PictureTower())

# What is wrong with the pictures of that number; all others are in order.
BROKEN = {3: "cut off", 4: "no picture", 9: "empty", 17: "a bomb", 25: "not there"}


@pytest.fixture
def pictured(tmp_path):
    """Thirty documents, each a small picture, some of them broken."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(30):
        Image.new("RGB", (8, 8), (8 * number, 0, 0)).save(folder / f"{number}.png")
    data = (folder / "3.png").read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "3.png")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:6000])
    (folder / "4.png").write_text("<html>not found</html>")
    (folder / "9.png").write_bytes(b"")
    wide = struct.pack(">II", 60_000, 60_000) + data[24:29]
    bomb = data[:16] + wide + struct.pack(">I", zlib.crc32(b"IHDR" + wide)) + data[33:]
    (folder / "17.png").write_bytes(bomb)
    (folder / "25.png").unlink()
    return [Document(f"d{number:02d}", image=str(folder / f"{number}.png")) for number in range(30)]


def readable(documents):
    """Those whose pictures are in order."""
    return [document for number, document in enumerate(documents) if number not in BROKEN]


@pytest.mark.parametrize("model", [PICTURES, ToyModel("dense", DensePictureTower(), DensePictureTower())])
def test_broken_pictures_fail_unless_skipped(tmp_path, pictured, model):
    with pytest.raises(DataError, match=r"pictures.(3|4|9|17|25)\.png: "):
        encode(tmp_path / "out", pictured, model)
    done = []
    manifest = encode(tmp_path / "out", pictured, model, on_error="skip", progress=done.append)
    assert sum(done) == 30
    assert manifest.corpus["documents"] == 30 and manifest.counts["documents"] == 25
    assert manifest.counts["skipped"] == 5 == manifest.corpus["documents"] - manifest.counts["documents"]
    assert [shard.get("skipped", 0) for shard in manifest.shards] == [2, 1, 1, 1]
    rows = lines(tmp_path / "out/skipped.jsonl")
    assert [row["id"] for row in rows] == ["d03", "d04", "d09", "d17", "d25"]
    assert [row["image"] for row in rows] == [pictured[number].image for number in BROKEN]
    reasons = ("cut off", "not a picture", "it is empty", "more than the limit", "No such file")
    for row, told in zip(rows, reasons, strict=True):
        assert row["reason"].startswith(row["image"]) and told in row["reason"]
    assert [row["shard"].partition(".")[0] for row in rows] == [f"docs/shard-0000{n}" for n in (0, 0, 1, 2, 3)]
    again = encode(tmp_path / "again", pictured, model, on_error="skip")
    assert again == manifest and tree(tmp_path / "again") == tree(tmp_path / "out")


def test_what_is_left_is_what_a_corpus_without_them_gives(tmp_path, pictured):
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    whole = readable(pictured)
    encode(tmp_path / "whole", whole, PICTURES)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")


@pytest.mark.parametrize("name,checkpoint", [("vdr-crossmodal", "demo-vdr"), ("dense-crossmodal", "demo-dense")])
def test_skipping_reads_and_encodes_each_picture_once(tmp_path, pictured, name, checkpoint, monkeypatch):
    model = load_encoder(name, checkpoint, device="cpu")
    fixed = Quantiser.named("fixed", scale=100)  # calibrating would encode its sample once more
    whole = readable(pictured)
    encode(tmp_path / "whole", whole, model, quantiser=fixed, batch_size=1)
    opened, forwarded = [], []
    open_image, normalise = images.open_image, Pixels.normalise
    monkeypatch.setattr(images, "open_image", lambda reference: (opened.append(reference), open_image(reference))[1])
    monkeypatch.setattr(Pixels, "normalise", lambda self, crops: (forwarded.extend(crops), normalise(self, crops))[1])
    manifest = encode(tmp_path / "out", pictured, model, quantiser=fixed, batch_size=1, on_error="skip")
    assert (len(opened), len(forwarded), manifest.counts["skipped"]) == (30, 25, 5)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")


@pytest.mark.parametrize("name", ["bag-of-tokens", "splade"])
def test_texts_have_nothing_to_skip(tmp_path, load, name):
    model = load(name, "splade/ckpt_bert")
    encode(tmp_path / "fail", model=model)
    encode(tmp_path / "skip", model=model, on_error="skip")
    assert tree(tmp_path / "fail") == tree(tmp_path / "skip")


def test_skipping_nothing_is_no_difference(tmp_path, pictured):
    whole = readable(pictured)
    encode(tmp_path / "fail", whole, PICTURES)
    manifest = encode(tmp_path / "skip", whole, PICTURES, on_error="skip")
    assert "skipped" not in manifest.counts
    assert tree(tmp_path / "fail") == tree(tmp_path / "skip")
    assert encode(tmp_path / "skip", whole, PICTURES) == manifest


def test_a_failed_run_is_resumed_by_skipping(tmp_path, pictured, encoded):
    order = [*pictured[10:17], pictured[28], *pictured[:10], *pictured[17:28]]  # the first shard is in order
    encode(tmp_path / "fresh", order, PICTURES, on_error="skip")
    sample = {d.doc_id for d in calibration_sample(iter(order), len(order))}
    assert sample == {d.doc_id for d in order}, "so small a corpus is its own sample: calibrating fails first"
    with pytest.raises(DataError):
        encode(tmp_path / "out", order, PICTURES)
    fixed = Quantiser.named("fixed", scale=100)
    encode(tmp_path / "fresh-fixed", order, PICTURES, quantiser=fixed, on_error="skip")
    with pytest.raises(DataError):
        encode(tmp_path / "fixed", order, PICTURES, quantiser=fixed)
    encoded.clear()
    encode(tmp_path / "fixed", order, PICTURES, quantiser=fixed, on_error="skip")
    assert encoded == ["d00", "d08", "d23"], "the first shard is not encoded again"
    assert tree(tmp_path / "fixed") == tree(tmp_path / "fresh-fixed")


def test_what_lacks_pictures_is_refused_when_they_are_wanted(tmp_path, pictured):
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    with pytest.raises(ArtefactError, match=r"5 documents .* see skipped\.jsonl; --on-error skip accepts it"):
        encode(tmp_path / "out", pictured, PICTURES)
    whole = readable(pictured)
    encode(tmp_path / "out", whole, PICTURES, overwrite=True)
    assert not (tmp_path / "out/skipped.jsonl").exists()


def test_a_shard_encoded_again_is_listed_once(tmp_path, pictured):
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    for name in ("shard-00000.jsonl", "shard-00002.jsonl"):
        (tmp_path / "out/docs" / name).unlink()
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    assert same_as_fresh(tmp_path / "out", pictured, PICTURES, on_error="skip")


def test_a_list_that_a_killed_run_left_is_mended(tmp_path, pictured):
    """The list is written before the shard is recorded: a picture that was mended meanwhile leaves it again."""
    with pytest.raises(MemoryError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "file_sha256", lambda path: (_ for _ in ()).throw(MemoryError()))
        encode(tmp_path / "out", pictured, PICTURES, on_error="skip", layout=Layout())
    assert len(lines(tmp_path / "out/skipped.jsonl")) == 5 and not (tmp_path / "out/docs/shard-00000.jsonl").exists()
    for number in BROKEN:
        Image.new("RGB", (8, 8), (8 * number, 0, 0)).save(pictured[number].image)
    manifest = encode(tmp_path / "out", pictured, PICTURES, on_error="skip", layout=Layout())
    assert manifest.counts["documents"] == 30 and not (tmp_path / "out/skipped.jsonl").exists()


def test_no_picture_at_all(tmp_path, pictured):
    broken = [document for number, document in enumerate(pictured) if number in BROKEN]
    with pytest.raises(DataError, match="toy: none of 5 images can be read; the first: .*3.png"):
        encode(tmp_path / "out", broken, PICTURES, on_error="skip")
    with pytest.raises(DataError, match=r"toy: no image can be read; .*skipped\.jsonl lists them"):
        encode(tmp_path / "fixed", broken, PICTURES, quantiser=Quantiser.named("fixed", scale=1), on_error="skip")
    assert len(lines(tmp_path / "fixed/skipped.jsonl")) == 5 and not (tmp_path / "fixed/manifest.json").exists()


def test_errors_that_are_no_pictures_are_never_skipped(tmp_path, monkeypatch):
    def fails(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        raise DataError("something else")

    monkeypatch.setattr(ToyTower, "weights", fails)
    with pytest.raises(DataError, match="something else"):
        encode(tmp_path / "out", on_error="skip")
    with pytest.raises(UsageError, match="on_error 'ignore': expected fail or skip"):
        encode(tmp_path / "out", on_error="ignore")


# ---- parts


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
        with pytest.raises(ArtefactError, match="corpus: .* requested"):
            encode(tmp_path / "out", part=other)


def test_the_corpus_of_a_part_is_checked_as_a_whole(tmp_path):
    """A change outside of the part counts: its scale came from there."""
    changed = [*DOCUMENTS[:-1], Document("d29", text="bay")]
    readings = iter([DOCUMENTS, changed])
    dataset = replace(corpus(), documents=lambda: iter(next(readings)))
    with pytest.raises(ArtefactError, match="the corpus changed while it was read"):
        write_impacts(dataset, ToyModel(), tmp_path / "out", layout=SMALL, part=Part(0, 3))


# ---- metadata


@pytest.mark.parametrize("shard_format", ["jsonl", "parquet"])
@pytest.mark.parametrize("model", [ToyModel(), DENSE, TEXT])
def test_metadata_is_stored_if_wanted(tmp_path, shard_format, model):
    told = {"year": 2024, "tags": "a b", "é": 1.5}
    documents = [Document("a", text="ash", metadata=told), Document("b", "Bay", "cat")]
    manifest = encode(tmp_path / "out", documents, model, Layout(shard_format, metadata=True, contents=True))
    assert manifest.layout["metadata"] is True
    (path,) = (tmp_path / "out/docs").iterdir()
    if path.suffix == ".parquet":
        rows = parquet.read_table(path).to_pylist()
        assert [json.loads(row["metadata"]) for row in rows] == [told, {}]
    else:
        rows = lines(path)
        assert [row["metadata"] for row in rows] == [told, {}]
    assert [row["contents"] for row in rows] == ["ash", "Bay cat"]
    assert "metadata" not in encode(tmp_path / "without", documents, model, Layout(shard_format)).layout


# ---- where and how


def test_device_and_batch_size_are_noted_where_they_decide(tmp_path):
    noted = replace_device(ToyModel(), "cpu")
    assert {"device": "cpu", "batch_size": "16"}.items() <= encode(
        tmp_path / "a", model=noted, batch_size=16
    ).versions.items()
    assert "device" not in encode(tmp_path / "b", model=replace_device(TEXT, "cpu")).versions
    finished = encode(tmp_path / "a", model=noted, batch_size=8)
    assert finished.versions["batch_size"] == "16", "what is finished stays as it is"


def replace_device(model, device):
    """A toy that was loaded on a device."""
    kept = type("Loaded", (ToyModel,), {"device": device})
    return kept(model.kind, model.query, model.document)


# ---- damage


def test_only_what_is_missing_is_encoded(tmp_path, encoded):
    stopped(tmp_path / "out", after=2)
    encoded.clear()
    encode(tmp_path / "out")
    assert encoded == ["d16", "d24"]
    assert same_as_fresh(tmp_path / "out")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_shard_is_encoded_again(tmp_path, encoded, damage, finished):
    if finished:
        encode(tmp_path / "out")
    else:
        stopped(tmp_path / "out", after=3)
    path = tmp_path / "out/docs/shard-00001.jsonl"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    encoded.clear()
    encode(tmp_path / "out")
    assert encoded == (["d08"] if finished else ["d08", "d24"])
    assert same_as_fresh(tmp_path / "out")


def test_changed_bytes_of_an_unfinished_folder_are_seen(tmp_path, encoded):
    stopped(tmp_path / "out", after=3)
    path = tmp_path / "out/docs/shard-00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"255", b"254"))
    encoded.clear()
    encode(tmp_path / "out")
    assert encoded == ["d08", "d24"] and same_as_fresh(tmp_path / "out")


def test_an_unfinished_folder_of_another_making(tmp_path):
    stopped(tmp_path / "out", after=2)
    with pytest.raises(ArtefactError, match="unfinished shards of another request"):
        encode(tmp_path / "out", DOCUMENTS[:9])
    encode(tmp_path / "out", DOCUMENTS[:9], overwrite=True)
    assert same_as_fresh(tmp_path / "out", DOCUMENTS[:9])


def test_a_plan_by_which_nothing_was_encoded_is_no_loss(tmp_path):
    """For example because the encoder cannot read the corpus: the next one may have the folder."""
    stopped(tmp_path / "out", after=0)
    encode(tmp_path / "out", DOCUMENTS[:9])
    assert same_as_fresh(tmp_path / "out", DOCUMENTS[:9])


def test_other_versions_do_not_continue_a_folder(tmp_path, monkeypatch):
    stopped(tmp_path / "out", after=2)
    monkeypatch.setattr(request, "versions_of", lambda packages: {"torch": "1.0"})
    with pytest.raises(ArtefactError, match=r"versions: .*1\.0.* requested"):
        encode(tmp_path / "out")


# ---- full disks


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", range(8))
def test_no_space_at_any_write(tmp_path, monkeypatch, number, call):
    """Every file goes through fsync once; the disk is full at the n-th."""
    counted = iter(range(call))
    sync = files.sync_to

    def full(out):
        if next(counted, None) is None:
            raise OSError(number, os.strerror(number))
        sync(out)

    with monkeypatch.context() as patch, pytest.raises(ArtefactError, match="the disk is full|larger than this disk"):
        patch.setattr(files, "sync_to", full)
        patch.setattr(layout, "sync_to", full)
        encode(tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    assert not list((tmp_path / "out/docs").glob("*.part"))
    encode(tmp_path / "out")
    assert same_as_fresh(tmp_path / "out")


@pytest.mark.parametrize(
    "layout",
    [SMALL, replace(SMALL, compress=True), replace(SMALL, shard_format="parquet")],
    ids=lambda layout: layout.name(0),
)
@pytest.mark.parametrize("limit", [64, 200, 450])
def test_files_that_may_not_grow(tmp_path, layout, limit):
    """A real refusal of the kernel in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(ArtefactError, match="larger than this disk"):
            encode(tmp_path / "out", layout=layout)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out/manifest.json").exists()
    encode(tmp_path / "out", layout=layout)
    assert same_as_fresh(tmp_path / "out", layout=layout)


def test_a_full_file_system(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", mount], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with pytest.raises(ArtefactError, match="the disk is full; free some space"):
            encode(mount / "out", layout=replace(SMALL, contents=True))
        assert not (mount / "out/manifest.json").exists()
    finally:
        subprocess.run(["umount", mount], check=True)


# ---- kill -9


def events(kill_at):
    """Kills this process at the n-th of: before and after each shard's encoding, each fsync, rename and plan."""
    count = 0

    def event():
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function):
        def wrapped(*arguments, **options):
            event()
            result = function(*arguments, **options)
            event()
            return result

        return wrapped

    for module, names in (
        (files, ("sync_to", "publish")),
        (writing, ("publish", "write_json", "encode_shard", "clear")),
        (layout, ("sync_to",)),
    ):
        for name in names:
            setattr(module, name, around(getattr(module, name)))
    shutil.rmtree = around(shutil.rmtree)


def in_child(work):
    """Runs `work` in a fork; the signal that ended it, 0 if none."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def counted_encode(output, **options):
    """First ids of the shards encoded by one call."""
    calls = []

    def counted(batch, *rest):
        calls.append(batch[0].doc_id)
        return ENCODE_SHARD(batch, *rest)

    writing.encode_shard = counted
    try:
        encode(output, **options)
    finally:
        writing.encode_shard = ENCODE_SHARD
    return calls


def finished_shards(output):
    """Numbers of the shards that lie in a folder and that its plan knows."""
    names = [name for name in ("manifest.json", "unfinished.json") if (output / name).is_file()]
    plan = orjson.loads((output / names[0]).read_bytes()) if names else {"shards": []}
    return [shard["name"] for shard in plan["shards"] if (output / shard["name"]).is_file()]


def killed_everywhere(folder, prepare, **options):
    """Per kill point: what was finished, what the next call encoded, whether the folder is as an undisturbed one."""
    encode(folder / "fresh", **options)
    fresh = tree(folder / "fresh")
    results = []
    for kill_at in range(1, 1000):
        output = folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        prepare(output)

        def work(kill_at=kill_at, output=output):
            events(kill_at)
            encode(output, **options)

        if not in_child(work):
            break
        looked_finished = (output / "manifest.json").is_file()
        done = finished_shards(output)
        again = counted_encode(output, **options)
        same = tree(output) == fresh
        results.append({"finished": looked_finished, "done": len(done), "again": len(again), "same": same})
    return results


def killed_at_bytes(folder, **options):
    """As above, killed by the kernel when a file reaches a size."""
    encode(folder / "fresh", **options)
    fresh = tree(folder / "fresh")
    results = []
    for limit in (1, 30, 64, 100, 333, 500, 700, 1000, 1500, 2000, 2500, 3000):
        output = folder / "out"
        shutil.rmtree(output, ignore_errors=True)

        def work(limit=limit, output=output):
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            encode(output, **options)

        signalled = in_child(work)
        done = finished_shards(output)
        again = counted_encode(output, **options)
        results.append({"signal": signalled, "done": len(done), "again": len(again), "same": tree(output) == fresh})
    return results


def main(folder):
    os.fsync = lambda handle: None  # a killed process loses nothing the kernel has; only a power cut would

    def nothing(output):
        pass

    def other(output):
        encode(output, DOCUMENTS[:20])

    report = {
        "plain": killed_everywhere(folder / "a", nothing),
        "overwriting": killed_everywhere(folder / "c", other, overwrite=True),
        "bytes": killed_at_bytes(folder / "d"),
    }
    sys.stdout.buffer.write(orjson.dumps(report))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The report of a process that kills its children; not this one, which may have threads or a JVM."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, __file__, folder], capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["plain", "overwriting"])
def test_killed_anywhere_the_next_call_leaves_the_same_bytes(killed, kind):
    results = killed[kind]
    assert len(results) > 40
    assert all(result["same"] for result in results), [i for i, r in enumerate(results, 1) if not r["same"]]
    if kind != "overwriting":
        assert all(result["again"] <= 4 - result["done"] for result in results), "a finished shard was encoded again"
        assert {result["done"] for result in results} == {0, 1, 2, 3, 4}
        assert [result["finished"] for result in results].count(True) <= 4


def test_killed_in_the_middle_of_a_file(killed):
    results = killed["bytes"]
    assert all(result["same"] for result in results)
    assert sum(result["signal"] == signal.SIGXFSZ for result in results) > 5
    assert all(result["again"] <= 4 - result["done"] for result in results)


def test_manifests_of_other_versions(tmp_path):
    encode(tmp_path / "out")
    about = json.loads((tmp_path / "out/manifest.json").read_text())
    for change in ({"format": "lexvl/0"}, {"new": 1}):
        with pytest.raises(ArtefactError, match="not a manifest of this version"):
            Manifest.from_json({**about, **change}, "here")


def test_an_impact_beyond_2_to_the_24_is_named_before_it_is_written(tmp_path):
    documents = [*DOCUMENTS[:3], Document("large", text="dog cat cat cat")]
    beyond = SideQuantiser("fixed", None, 1.2e7)
    with pytest.raises(LexvlError, match=r"^document 'large', term 'cat': an impact of 18000000 reaches 2\^24"):
        encode(tmp_path / "shards", documents, quantiser=Quantiser(beyond, beyond))
    assert not list((tmp_path / "shards/docs").iterdir())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
