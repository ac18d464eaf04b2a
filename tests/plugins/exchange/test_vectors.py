"""Vectors of other encoders become shards: integers as they are, other weights quantised, damaged lines counted."""

import gzip
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from invoking import invoked
from lucene_indexes import DOCUMENTS
from scipy import sparse
from shard_folders import read_all, write_shards

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.fuse import command as fuse
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import RunManifest, read_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.runs.trec import ensure_run, write_run
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.rescoring import plan_hybrid
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.fields import join_fields
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.pruning import Pruning, prune_shards
from lexvl_plugins.exchange import import_shards
from lexvl_plugins.exchange.importing import ImportSettings, import_file, name_shards
from lexvl_plugins.exchange.vectors import JsonVectors, MatrixVectors, read_matrix

# What `SparseEncoder.decode` of sentence-transformers returns for a document.
PAIRS = [["boat", 2.0], ["sea", 1.0]]


def lines(*rows: Any) -> bytes:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()


def imported(folder: Path, content: bytes, name: str = "in.jsonl", **values: Any) -> dict[str, dict[str, int]]:
    (folder / name).write_bytes(content)
    import_file(folder / name, folder / "out", ImportSettings(**values), overwrite=True)
    return read_all(folder / "out")


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.json"])
def test_integers_stay_as_they_are(tmp_path: Path, name: str) -> None:
    documents = [*DOCUMENTS, ("n", {"a": (1 << 24) - 1})]
    rows = [{"id": doc_id, "contents": "", "vector": vector} for doc_id, vector in documents]
    content = lines(*rows, {"_id": 7, "content": "a text", "vector": {"a": 0, "b": 9}})
    content = gzip.compress(content) if name.endswith(".gz") else content
    assert imported(tmp_path, content, name) == {**dict(DOCUMENTS), "n": {"a": (1 << 24) - 1}, "7": {"b": 9}}
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.counts.documents, manifest.counts.dropped, manifest.counts.empty) == (7, 1, 1)
    assert manifest.quantiser["document"]["scale"] == 1.0
    naver = Quantiser.named("naver")  # by which they came about
    assert imported(tmp_path, lines({"id": "x", "vector": {"a": 250}}), quantiser=naver) == {"x": {"a": 250}}
    assert read_manifest(tmp_path / "out").quantiser == naver.to_json()


def test_a_folder_of_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "in/b").mkdir(parents=True)
    (tmp_path / "in/a.jsonl").write_bytes(lines({"id": "1", "vector": {"t": 1}}))
    (tmp_path / "in/b/c.jsonl.gz").write_bytes(gzip.compress(lines({"id": "2", "vector": {"u": 2}})))
    (tmp_path / "in/.hidden").write_bytes(b"not read")
    import_file(tmp_path / "in", tmp_path / "out")
    assert list(read_all(tmp_path / "out").items()) == [("1", {"t": 1}), ("2", {"u": 2})]
    (tmp_path / "in/notes.txt").write_bytes(b"notes")
    with pytest.raises(DataError, match=r"notes.txt: no JSON lines \(1 such files\)"):
        import_file(tmp_path / "in", tmp_path / "other")
    write_shards(tmp_path / "shards", DOCUMENTS)
    with pytest.raises(UsageError, match="encoded documents already; index them"):
        import_file(tmp_path / "shards", tmp_path / "other")


def test_whole_numbers_are_impacts_however_they_are_spelt(tmp_path: Path) -> None:
    content = b'{"id": "x", "vector": {"a": 13.0, "b": 2e2}}\n{"id": "y", "vector": [["a", 12], ["b", 0.0]]}\n'
    assert imported(tmp_path, content) == {"x": {"a": 13, "b": 200}, "y": {"a": 12}}
    assert read_manifest(tmp_path / "out").counts.dropped == 1
    (tmp_path / "list").write_text("x\ny")
    sparse.save_npz(tmp_path / "m.npz", sparse.csr_matrix([[13.0, 200], [12, 0]]))
    import_file(tmp_path / "m.npz", tmp_path / "m", ImportSettings(ids=tmp_path / "list", vocabulary=tmp_path / "list"))
    assert read_all(tmp_path / "m") == {"x": {"x": 13, "y": 200}, "y": {"x": 12}}


@pytest.mark.parametrize("vector", [PAIRS, dict(PAIRS)], ids=["pairs", "object"])
def test_other_weights_are_quantised_by_the_greatest_of_all(tmp_path: Path, vector: Any) -> None:
    """Scale 255 / 2; .001 becomes 0."""
    content = lines({"id": "x", "vector": vector}, {"id": "y", "vector": {"sea": 0.5, "moon": 0.001}})
    assert imported(tmp_path, content) == {"x": {"boat": 255, "sea": 128}, "y": {"sea": 64}}
    manifest = read_manifest(tmp_path / "out")
    assert manifest.quantiser["document"] == {"scheme": "calibrated", "bits": 8, "scale": 127.5, "percentile": 100.0}
    assert (manifest.counts.postings, manifest.counts.dropped) == (3, 1)
    fixed = imported(tmp_path, content, quantiser=Quantiser.named("naver"))
    assert fixed == {"x": {"boat": 200, "sea": 100}, "y": {"sea": 50}}
    clipped = imported(tmp_path, content, quantiser=Quantiser.named("fixed", bits=4, scale=10))
    assert clipped == {"x": {"boat": 15, "sea": 10}, "y": {"sea": 5}}
    assert read_manifest(tmp_path / "out").counts.clipped == 1


def test_texts_and_metadata_stay_if_the_layout_has_them(tmp_path: Path) -> None:
    row = {"id": "x", "contents": "a boat", "vector": {"boat": 2}, "metadata": {"year": 1999}}
    imported(tmp_path, lines(row), layout=Layout(contents=True, metadata=True))
    assert json.loads((tmp_path / "out/docs/shard-00000.jsonl").read_text()) == row


DAMAGED = {
    '{"id": "x"': "malformed JSON",
    "[1]": "a JSON array, expected an object",
    '{"vector": {"a": 1}}': "id None is not a string",
    '{"id": "a b", "vector": {"a": 1}}': "white space in id 'a b'.*--escape-ids",
    '{"id": "x"}': "vector None, expected an object of term and weight, or pairs",
    '{"id": "x", "vector": ["boat", "sea"]}': "vector .*expected an object",
    '{"id": "x", "vector": {"a": "1"}}': "weight '1' of term 'a', expected a finite number, 0 or more",
    '{"id": "x", "vector": {"a": -1}}': "weight -1 of term 'a'",
    '{"id": "x", "vector": {"a": NaN}}': "weight null, NaN or infinite of term 'a'",
    '{"id": "x", "vector": {"a": 1e999}}': "weight inf of term 'a'|malformed JSON",
    '{"id": "x", "vector": {"a": true}}': "weight True of term 'a'",
    '{"id": "x", "vector": {"a b": 1}}': "term 'a b' contains white space",
    '{"id": "x", "vector": {"": 1}}': "term '' is empty",
    '{"id": "x", "vector": [["a", 1], ["a", 2]]}': "a term twice in vector",
    '{"id": "x", "vector": {"a": 1, "b": 1, "a": 2}}': "key 'a' is twice in an object",
    r'{"id": "x", "vector": {"\ud83d": 1, "\ud83c": 2}}': "lone surrogate in key",
    '{"id": "x", "vector": [[5, 1]]}': "vector .*, expected an object of term and weight, or pairs",
}


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    content = lines({"id": "1", "vector": {"a": 1}}, line, {"id": "2", "vector": {"a": 1}})
    with pytest.raises(DataError, match=f"^1 of 3 lines are no documents: .*in.jsonl line 2: .*{DAMAGED[line]}"):
        imported(tmp_path, content)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_all_damaged_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^17 of 18 lines are no documents: .* line 3: .*; and 14 more$"):
        imported(tmp_path, lines({"id": "1", "vector": {"a": 1}}, *DAMAGED))


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no document in it"),
    "an id twice": (lines(*[{"id": "x", "vector": {"a": 1}}] * 2), "'x' occurs twice"),
    "too large": (lines({"id": "x", "vector": {"a": 1 << 24}}), "an impact of 16,777,216, expected at most 16,777,215"),
    "gzip": (gzip.compress(lines({"id": "x", "vector": {"a": 1}}))[:-9], "damaged gzip file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_and_writes_nothing(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    with pytest.raises(LexvlError, match=message):
        imported(tmp_path, content, "in.jsonl.gz" if name == "gzip" else "in.jsonl")
    assert len(list(tmp_path.iterdir())) == 1


MATRIX = sparse.csr_matrix(np.array([[0, 2.0, 1.0], [0, 0, 0], [0.5, 0, 0]], np.float32))


TENSOR = torch.tensor(MATRIX.toarray())
# What scipy saves; `SparseEncoder.encode`; the same with `convert_to_tensor=False`; dense rows of few bits.
SAVERS: dict[str, Callable[[Path], Any]] = {
    "npz": lambda path: sparse.save_npz(path, MATRIX),
    "coo.pt": lambda path: torch.save(TENSOR.to_sparse_coo(), path),
    "rows.pt": lambda path: torch.save([row.to_sparse_coo() for row in TENSOR], path),
    "dense.pt": lambda path: torch.save(TENSOR.to(torch.bfloat16), path),
}


@pytest.mark.parametrize("kind", SAVERS)
def test_rows_of_a_matrix_are_documents(tmp_path: Path, kind: str) -> None:
    SAVERS[kind](tmp_path / (name := f"m.{kind}"))
    (tmp_path / "ids.txt").write_bytes(b"\xef\xbb\xbfx\r\ny\r\nz")
    (tmp_path / "terms.txt").write_bytes(b"\xef\xbb\xbfboat\nsea\nmoon")
    beside = {"ids": tmp_path / "ids.txt", "vocabulary": tmp_path / "terms.txt"}
    import_file(tmp_path / name, tmp_path / "out", ImportSettings(**beside))
    assert read_all(tmp_path / "out") == {"x": {"sea": 255, "moon": 128}, "y": {}, "z": {"boat": 64}}
    (tmp_path / "ids.txt").write_bytes(b"x\ncaf\xe9\nz\n")
    with pytest.raises(DataError, match=r"ids.txt line 2: not valid UTF-8 \(0xe9 at byte 4"):
        import_file(tmp_path / name, tmp_path / "other", ImportSettings(**beside))
    (tmp_path / "ids.txt").write_text("x\ny\n")
    with pytest.raises(DataError, match=r"3 rows and 3 columns, expected 2 \(.*ids.txt\) and 3"):
        import_file(tmp_path / name, tmp_path / "other", ImportSettings(**beside))
    with pytest.raises(ArtefactError, match="another request"):
        import_file(tmp_path / name, tmp_path / "out", ImportSettings(**beside))


def write_inputs(at: Path, n: int) -> None:
    """Files that have the same names whatever the number, which is in their content, or in the encoder beside it."""
    shutil.rmtree(at / "s", ignore_errors=True)
    write_shards(at / "s", [("d1", {"a": n})], terms=["a"])
    (at / "in.jsonl").write_bytes(lines({"id": "d1", "vector": {"a": n}}))
    about = RunManifest("t", "", "", None, {}, {"name": "x", "checkpoint_digest": str(n)}, {}, "i", 9, False)  # type: ignore[arg-type]
    for name, score in (("one", n), ("two", 1)):
        write_run(at / name, [[ScoredDoc("q", "d1", 1, score)]], about)


def mix(at: Path) -> None:
    request = plan_hybrid([at / "two"], [1.0], 9, 9, TopicSource(iter, "t", sha256="0", encoded=True))  # type: ignore[arg-type]
    ensure_run(at / "mixed", request, False, lambda: write_run(at / "mixed", [], request))


ACTS: dict[str, Callable[[Path], Any]] = {
    "import": lambda at: import_file(at / "in.jsonl", at / "imported"),
    "prune": lambda at: prune_shards(at / "s", at / "pruned", Pruning(least_impact=2)),
    "fields": lambda at: join_fields({"x": at / "s"}, at / "joined", lambda settings: str.split),
    "index": lambda at: build_index(at / "s", at / "index"),
    "fuse": lambda at: invoked(fuse, "--run", at / "one", "--run", at / "two", "--output", at / "fused"),
    "hybrid": mix,
}


@pytest.mark.parametrize("name", ACTS)
def test_inputs_of_the_same_names_that_changed(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No command says of the output of other content that it is finished."""
    caplog.set_level("INFO", "lexvl_anserini")
    for number, finished in ((3, False), (3, True), (4, False)):
        write_inputs(tmp_path, number)
        caplog.clear()
        with pytest.raises(ArtefactError, match="another request") if number == 4 else nullcontext():
            ACTS[name](tmp_path)
        assert ("finished already" in caplog.text) == finished


def save_twice(path: Path, kind: str, weights: np.ndarray) -> None:
    coo = sparse.coo_matrix((weights, ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    # Conversions sum; the parts of a file need not be.
    csr = sparse.csr_matrix((weights, np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    csc = sparse.csc_matrix((np.roll(weights, 1), np.array([1, 0, 0]), np.array([0, 1, 3])), shape=(2, 2))
    if kind == "pt":
        torch.save(torch.sparse_coo_tensor(np.array(coo.coords), torch.tensor(coo.data), coo.shape), path)
    else:
        sparse.save_npz(path, {"csr": csr, "csc": csc, "coo": coo}[kind])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "pt"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.float32])
def test_weights_of_one_place_are_summed(tmp_path: Path, kind: str, dtype: Any) -> None:
    path = tmp_path / ("m.pt" if kind == "pt" else "m.npz")
    save_twice(path, kind, np.array([100, 120, 5], dtype))
    matrix = read_matrix(path)
    assert matrix.toarray().tolist() == [[0, 220], [5, 0]] and matrix.nnz == 2


OUTSIDE: dict[str, dict[str, Any]] = {
    "csr": {"indices": [0, 9], "indptr": [0, 1, 2]},
    "csr, below 0": {"indices": [0, -2], "indptr": [0, 1, 2]},
    "csr, ends that fall": {"indices": [0, 1], "indptr": [0, 900_000, 2]},
    "csr, an end below 0": {"indices": [0, 1], "indptr": [0, 900_000, -1]},
    "csc": {"indices": [0, 9], "indptr": [0, 1, 2]},
    "csc, ends that fall": {"indices": [0, 1], "indptr": [0, 900_000, 2]},
    "bsr": {"indices": [0, 9], "indptr": [0, 1, 2]},
    "coo": {"row": [0, 9], "col": [0, 1]},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_weights_outside_of_a_matrix_are_one_line(tmp_path: Path, name: str) -> None:
    kind, path = name[:3], tmp_path / "m.npz"
    numbers = {part: np.array(values, np.int32) for part, values in OUTSIDE[name].items()}
    data = np.ones((2, 1, 1) if kind == "bsr" else 2, np.float32)
    np.savez(path, format=np.array(kind.encode()), shape=np.array([2, 2]), data=data, **numbers)
    with pytest.raises(DataError, match=r"m.npz: no sparse matrix \[documents, terms\] \(ValueError: "):
        read_matrix(path)
    wrong = {"csr": torch.sparse_csr_tensor, "csc": torch.sparse_csc_tensor}.get(kind)
    if wrong is not None:
        ends, places = (torch.tensor(OUTSIDE[name][part]) for part in ("indptr", "indices"))
        torch.save(wrong(ends, places, torch.ones(2), (2, 2), check_invariants=False), tmp_path / "m.pt")
        with pytest.raises(DataError, match=r"m.pt: no sparse matrix \[documents, terms\] \(RuntimeError: "):
            read_matrix(tmp_path / "m.pt")


def test_what_a_matrix_lacks_and_what_is_none(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "m.npz", MATRIX)
    (tmp_path / "ids.txt").write_text("x\n")
    beside = ImportSettings(ids=tmp_path / "ids.txt", vocabulary=tmp_path / "ids.txt")
    for name in ("no.npz", "no.pt", "m.npz.gz"):
        (tmp_path / name).write_bytes(b"no matrix")
    sparse.save_npz(tmp_path / "row.npz", sparse.coo_array([1.0, 2.0]))
    sparse.save_npz(tmp_path / "complex.npz", sparse.csr_matrix([[1 + 2j]]))
    sparse.save_npz(tmp_path / "marks.npz", sparse.csr_matrix([[True]]))
    torch.save(MATRIX.toarray(), tmp_path / "array.pt")
    (tmp_path / "in.jsonl").write_bytes(lines({"id": "x", "vector": {}}))
    for name, options, kind, message in (
        ("m.npz", ImportSettings(), UsageError, "give --ids, and --vocabulary or --encoder"),
        ("no.npz", beside, DataError, "no.npz: no sparse matrix .*no .npz of scipy.sparse.save_npz, or a damaged one"),
        ("m.npz.gz", beside, UsageError, "m.npz.gz: a packed matrix; unpack it"),
        ("no.pt", beside, DataError, "no.pt: no sparse matrix"),
        ("row.npz", beside, DataError, "dimensions: 1, expected documents and terms"),
        ("complex.npz", beside, DataError, "weights of type complex128, expected integers or floats"),
        ("marks.npz", beside, DataError, "weights of type bool, expected integers or floats"),
        ("array.pt", beside, DataError, r"terms\] \(UnpicklingError: more than plain data, which could run code\)$"),
        ("in.jsonl", beside, UsageError, "--ids and --vocabulary are for matrices"),
        ("ids.txt", ImportSettings(), UsageError, "expected a file in .ciff, .jsonl"),
        ("absent.jsonl", ImportSettings(), DataError, "absent.jsonl: no such file"),
    ):
        with pytest.raises(kind, match=message):
            import_file(tmp_path / name, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_an_encoder_gives_the_vocabulary_and_encodes_queries(tmp_path: Path) -> None:
    """Vectors of our own encoder, as pairs of other order, find what its own shards find."""
    model = load_encoder("bag-of-tokens", "minilm")
    texts = {"x": "a red boat", "y": "the blue moon", "z": "a boat under the moon"}
    vectors = {doc_id: model.decode(model.encode_document(text)) for doc_id, text in texts.items()}
    rows = [{"id": doc_id, "vector": pairs[::-1]} for doc_id, [pairs] in vectors.items()]
    imported(tmp_path, lines(*rows), model=model)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.vocabulary_digest == model.vocabulary.digest and manifest.encoder == model.identity()
    with Searcher(build_index(tmp_path / "out", tmp_path / "index")) as searcher:
        assert [hit.doc_id for hit in searcher.search("boat moon")] == ["z", "x", "y"]
    with pytest.raises(DataError, match="1 of 2 terms, the first is 'zzzunknown', are not in the encoder's vocabulary"):
        imported(tmp_path, lines({"id": "x", "vector": {"boat": 1, "zzzunknown": 2}}), model=model)


def test_white_space_and_padding_of_an_encoder(tmp_path: Path) -> None:
    """As sentence-transformers writes tokens of ModernBERT, and 4 columns of 3 tokens."""
    (tmp_path / "v.jsonl").write_bytes(lines({"id": "x", "vector": [["  ", 1], ["\n", 2]]}))
    assert JsonVectors(tmp_path / "v.jsonl", tmp_path, 1, tokens=True).terms == ("␣␣", "<0x0A>")
    (tmp_path / "v.jsonl").write_bytes(lines({"id": "x", "vector": {" ": 1, "␣": 2}}))
    with pytest.raises(DataError, match="a term twice in vector"):
        JsonVectors(tmp_path / "v.jsonl", tmp_path, 1, tokens=True)
    sparse.save_npz(tmp_path / "m.npz", sparse.csr_matrix([[0, 2, 1, 7]]))
    (tmp_path / "ids").write_text("x")
    padded = partial(MatrixVectors, tmp_path / "m.npz", tmp_path, 1, ids=tmp_path / "ids", terms=["a", "b", "c"])
    [shard] = padded(tokens=True).read_shards(silent)
    assert shard.vectors.toarray().tolist() == [[0, 2, 1]]
    with pytest.raises(DataError, match=r"1 rows and 4 columns, expected 1 \(.*ids\) and 3"):
        padded()


weights = st.one_of(st.integers(1, 1 << 20), st.floats(0, 1e6, width=32))


@settings(max_examples=40)
@given(
    vectors=st.lists(st.dictionaries(st.sampled_from("abcdef"), weights), min_size=1, max_size=9),
    size=st.integers(1, 4),
)
def test_what_an_impact_loses(tmp_path: Path, vectors: list[dict[str, float]], size: int) -> None:
    """Integers lose nothing; of others an impact is the weight times the scale, to half a unit."""
    rows = [{"id": f"d{number}", "vector": vector} for number, vector in enumerate(vectors)]
    back = imported(tmp_path, lines(*rows), layout=Layout(shard_size=size))
    manifest = read_manifest(tmp_path / "out")
    assert list(back) == [row["id"] for row in rows]
    if all(float(weight).is_integer() for vector in vectors for weight in vector.values()):
        assert list(back.values()) == [{term: weight for term, weight in each.items() if weight} for each in vectors]
        return
    scale = manifest.quantiser["document"]["scale"]
    for vector, impacts in zip(vectors, back.values(), strict=True):
        for term, weight in vector.items():
            assert abs(impacts.get(term, 0) - weight * scale) <= 0.5 + 1e-9 * weight * scale
    given, kept = (sum(map(len, each)) for each in (vectors, back.values()))
    assert given == kept + manifest.counts.dropped


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl.gz").write_bytes(gzip.compress(lines({"id": "x y", "vector": {"a": 1}})))
    printed = invoked(import_shards.command, "in.jsonl.gz", "--escape-ids", "--format", "json")
    assert json.loads(printed)["documents"] == 1 and name_shards(Path("in.jsonl.gz")) == Path("impacts/in")
    assert read_all(Path("impacts/in")) == {"x%20y": {"a": 1}}
    with pytest.raises(UsageError, match="are for --encoder"):
        invoked(import_shards.command, "in.jsonl.gz", "--checkpoint", "minilm")


def test_a_matrix_that_unpacks_without_end(tmp_path, monkeypatch):
    sparse.save_npz(path := tmp_path / "m.npz", sparse.csr_matrix(np.ones((100, 1000))))
    assert read_matrix(path).nnz == 100_000
    monkeypatch.setattr("lexvl_plugins.exchange.vectors.MOST_LINE", 1000)
    monkeypatch.setattr("lexvl_plugins.exchange.vectors.MOST_UNPACKED", 2)
    with pytest.raises(DataError, match=r"m.npz: .*it unpacks to [\d,]+ bytes, expected at most [\d,]+\)"):
        read_matrix(path)
