"""Exported encoders: ONNX Runtime gives the vectors of torch, and refuses what is not its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_encoders import BERT, PUBLISHED, SPARSE, made_dense, made_twin

from lexvl_anserini import load_encoder
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encode import command as encode_command
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.encoders.parts.sparsify import Sparsifier, kept, kept_rows
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, MissingExtra, UnknownName, UsageError
from lexvl_anserini.ground.files import file_sha256
from lexvl_anserini.ground.manifest import EncoderRef, read_manifest
from lexvl_anserini.ground.records import Document
from lexvl_anserini.search import command as search_command
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.onnx.export_onnx import command as export_command
from lexvl_plugins.onnx.exports import cached_export, export_of, is_sound
from tests.invoking import invoked
from tests.plugins.pages.v_splade_folders import write_export

pytestmark = pytest.mark.extended

GOLDEN = Path(__file__).parents[1] / "golden"

# Different lengths, so that there are several batches with padding; empty; longer than every limit; Unicode.
TEXTS = [
    "a red boat",
    "",
    "two dogs play",
    "Café \u2603 moon!",
    "the sea " * 40,
    "a",
    "a red boat under the moon at night",
]


def table(folder: Path, golden: Path) -> str:
    """Queries that look up IDF weights, in which repeated tokens add up."""
    shutil.copytree(golden / SPARSE / "st6_inference_free_idf_log1p", folder / "table")
    (folder / "table/query_0_SparseStaticEmbedding/config.json").write_text('{"adds": true}')
    return str(folder / "table")


MAKERS: dict[str, tuple[str, Callable[[Path], str], dict]] = {
    "two sides, padded": ("vdr", lambda folder: str(GOLDEN / PUBLISHED), {}),
    "alpha, union": (
        "vdr",
        lambda folder: str(GOLDEN / PUBLISHED),
        {"mode": "alpha", "padding": "none", "lexical_union": True, "topk": 9},
    ),
    "sum, top k": ("splade", lambda folder: str(GOLDEN / BERT), {"pooling": "sum", "topk": 16, "query_topk": 4}),
    "table": ("splade", str, {}),
    "dense sentences": ("sentence", lambda folder: str(made_dense(GOLDEN, folder)), {"dimensions": 8}),
    "dense images": ("dense-crossmodal", lambda folder: str(made_twin(GOLDEN, folder)), {}),
    "drawings": ("vdr-crossmodal", lambda folder: "demo-vdr", {}),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory, golden) -> Callable[[str], tuple[Encoder, Path]]:
    """By the name of a case: the encoder of torch, and the folder of its export."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'lexvl-anserini[onnx]'")
    from lexvl_plugins.onnx.exporting import export

    @cache
    def made(case: str) -> tuple[Encoder, Path]:
        name, checkpoint, options = MAKERS[case]
        folder = tmp_path_factory.mktemp("exported")
        place = table(folder, golden) if case == "table" else checkpoint(folder)
        model = load_encoder(name, place, device="cpu", **options)
        export(model, folder / "export")
        return model, folder / "export"

    return made


def drawn(count: int) -> list[Image.Image]:
    """Pictures of several shapes."""
    rng = np.random.default_rng(7)
    return [Image.fromarray(rng.integers(0, 256, (40 + 9 * number, 70, 3), dtype=np.uint8)) for number in range(count)]


@pytest.mark.parametrize("case", MAKERS)
def test_vectors_are_those_of_torch(case, exported):
    """Both sides, in batches of several sizes."""
    model, folder = exported(case)
    graphs = load_encoder(model.name, str(folder), runtime="onnx")
    assert graphs.kind == model.kind
    assert graphs.options == {**model.options, "runtime": "onnx"}
    assert graphs.checkpoint_digest == model.checkpoint_digest
    for side in ("query", "document"):
        expected, found = getattr(model, side), getattr(graphs, side)
        images = "images" in case or case == "drawings"
        inputs = drawn(5) if images and side == "document" else TEXTS
        if model.kind == "dense":
            vectors = expected.vectors(inputs)
            for batch_size in (1, 3, 32):
                np.testing.assert_allclose(found.vectors(inputs, batch_size), vectors, rtol=1e-5, atol=1e-5)
            continue
        weights = expected.weights(inputs)
        np.testing.assert_allclose(found.dense_weights(inputs, 2), expected.dense_weights(inputs), rtol=1e-5, atol=1e-5)
        for batch_size in (1, 3, 32):
            ours = found.weights(inputs, batch_size)
            assert ours.shape == weights.shape and ours.dtype == np.float32
            np.testing.assert_allclose(ours.toarray(), weights.toarray(), rtol=1e-5, atol=1e-5)
        assert found.vocabulary.digest == expected.vocabulary.digest
        assert found.binary == expected.binary
        assert found.weights([]).shape == (0, len(found.vocabulary))


def test_eight_bits_are_equal(exported):
    """The packaged pair's captions and drawings, as impacts."""
    model, folder = exported("drawings")
    graphs = load_encoder("vdr-crossmodal", str(folder), runtime="onnx")
    for side, inputs in (("query", TEXTS[:4]), ("document", drawn(6))):
        cells = [np.rint(getattr(one, side).weights(inputs).toarray() * 255) for one in (model, graphs)]
        assert cells[0].sum() > 0
        np.testing.assert_array_equal(*cells)


def test_documents_are_read_alike(exported):
    """Titles are joined as the encoder of torch joins them."""
    model, folder = exported("two sides, padded")
    graphs = load_encoder("vdr", str(folder), runtime="onnx")
    document = Document("d", title="Boat", text="on the sea")
    assert graphs.document.read(document) == model.document.read(document)


def test_equal_networks_share_a_file(exported):
    """SPLADE has one network for both sides; a bag of tokens has none."""
    shared = json.loads((exported("sum, top k")[1] / "export.json").read_text())
    assert shared["query"]["graph"] == shared["document"]["graph"] == "query.onnx"
    bag = json.loads((exported("alpha, union")[1] / "export.json").read_text())
    assert bag["query"].get("graph") is None and bag["document"]["graph"] == "document.onnx"


def test_neither_torch_nor_transformers_is_imported(exported):
    """In a process of its own, which encodes a query."""
    _, folder = exported("drawings")
    code = (
        "import sys\n"
        "from lexvl_anserini import load_encoder\n"
        f"model = load_encoder('vdr-crossmodal', {str(folder)!r}, runtime='onnx')\n"
        "assert model.encode_query('a red boat').nnz > 9\n"
        "print([name for name in ('torch', 'transformers', 'sentence_transformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What a typed query of an exported encoder does without, from the start of the process to its answer.
NOT_FOR_AN_ANSWER = ("torch", "transformers", "pandas", "scipy", "sklearn", "ranx", "numba", "jnius", "pyarrow")


def index_of(model: Encoder, folder: Path) -> Path:
    """An index of texts."""
    rows = (json.dumps({"_id": f"d{number}", "text": text}) for number, text in enumerate(TEXTS[:5]))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    dataset = load_dataset(f"beir:{folder}")
    write_impacts(replace(dataset, topics=lambda: iter(())), model, folder / "impacts")
    return build_index(folder / "impacts", folder / "index").path


@pytest.fixture(scope="module")
def indexed(exported, tmp_path_factory) -> Path:
    """An index of texts, encoded by torch."""
    return index_of(exported("sum, top k")[0], tmp_path_factory.mktemp("indexed"))


def searched(index: Path, *options: str) -> tuple[list[str], set[str], str]:
    """The hits of a typed query in a process of its own, what that imported of `NOT_FOR_AN_ANSWER`, and its log."""
    call = ["lexvl", "search", "--index", str(index), "--query", TEXTS[0], *options]
    code = (
        f"import sys\nsys.argv = {call!r}\nfrom lexvl_anserini.cli import main\n"
        f"try:\n    main()\nfinally:\n    print('loaded', *(set({NOT_FOR_AN_ANSWER!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *hits, loaded = done.stdout.splitlines()
    return hits, set(loaded.split()[1:]), done.stderr


def test_a_typed_query_takes_an_export_that_it_finds(exported, indexed, tmp_path, monkeypatch):
    """In the cache; Java does not start, and no large library is loaded. A damaged one counts as none."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path))
    model, folder = exported("sum, top k")
    by_torch, loaded, _ = searched(indexed, "--runtime", "torch")
    assert by_torch and "torch" in loaded and "jnius" not in loaded
    assert searched(indexed)[:2] == (by_torch, loaded)  # there is no export yet
    cached = Path(shutil.copytree(folder, cached_export(model.identity())))
    hits, loaded, log = searched(indexed, "--verbose")
    assert hits == by_torch and loaded == set() and f"queries are encoded by onnx: {cached}" in log
    assert searched(indexed, "--set", "query_topk=3")[1] >= {"torch"}  # another encoder
    (cached / "query.onnx").write_bytes(b"other")
    hits, loaded, log = searched(indexed)
    assert hits == by_torch and "torch" in loaded and "query.onnx: has SHA-256" in log and "torch encodes" in log
    (cached / "export.json").write_bytes(b"{")
    assert export_of(model.identity()) is None and not is_sound(cached)


def test_a_table_answers_without_torch_and_onnx_runtime(golden, tmp_path, monkeypatch):
    """Its export of queries alone has arrays, in which "sea" counts 40 times. A whole export needs the packages."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    checkpoint = table(tmp_path, golden)
    model = load_encoder("splade", checkpoint, device="cpu")
    by_torch, loaded, _ = searched(index := index_of(model, tmp_path), "--query", TEXTS[4])
    assert by_torch and "torch" in loaded
    call = ("--encoder", "splade", "--checkpoint", checkpoint, "--format", "json")
    shown = json.loads(invoked(export_command, *call, "--queries-only"))
    assert (shown["query"], shown["document"]) == ("a bag of tokens, no graph", "left out")
    hits, loaded, log = searched(index, "--query", TEXTS[4], "--verbose")
    assert hits == by_torch and loaded == set() and "queries are encoded by onnx" in log
    assert export_of(model.identity()) == cached_export(model.identity())
    export = load_encoder("splade", str(cached_export(model.identity())), runtime="onnx")
    once, often = (export.encode_query(text).max() for text in ("the sea", TEXTS[4]))
    assert often == pytest.approx(40 * once)
    with pytest.raises(UsageError, match="exported for queries alone; encode documents by torch"):
        export.encode_document(TEXTS)
    with pytest.raises(MissingExtra):
        invoked(export_command, *call)


def test_queries_of_an_encoder_that_has_no_graphs(golden, tmp_path):
    """V-SPLADE's table has the weights of torch; its pages are refused, and the message names the way."""
    from lexvl_plugins.onnx.exporting import export

    model = load_encoder("v-splade", str(write_export(tmp_path / "v-splade")), device="cpu")
    export(model, tmp_path / "export", queries_only=True)
    found, expected = (
        one.encode_query(TEXTS) for one in (load_encoder("v-splade", str(tmp_path / "export"), runtime="onnx"), model)
    )
    assert expected.nnz and (found != expected).nnz == 0
    with pytest.raises(UsageError, match="'v-splade' cannot be exported; .*--queries-only"):
        export(model, tmp_path / "whole")


def test_an_export_beside_the_weights_is_found(exported, tmp_path, monkeypatch):
    """Of a checkpoint that moved too; one of other options, or of another checkpoint, is not."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    model, folder = exported("sum, top k")
    checkpoint = Path(shutil.copytree(model.checkpoint, tmp_path / "checkpoint"))
    assert export_of(model.identity(), str(checkpoint)) is None
    shutil.copytree(folder, tmp_path / "checkpoint.onnx")
    assert export_of(model.identity(), str(checkpoint)) == tmp_path / "checkpoint.onnx"
    assert export_of(model.identity(), str(folder)) == folder
    for key, value in (("options", {"pooling": "sum"}), ("checkpoint_digest", "0" * 64), ("name", "bertlex")):
        assert export_of(EncoderRef({**model.identity(), key: value}), str(checkpoint)) is None


def test_runs_choose_their_runtime_by_name(indexed):
    with pytest.raises(UsageError, match="^--runtime auto is for typed queries; a run names its runtime"):
        invoked(search_command, "--index", indexed, "--topics", "demo", "--runtime", "auto")


def test_the_cache_is_written_once_and_again_where_it_is_damaged(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path))
    exported("sum, top k")
    call = ("--encoder", "bag-of-tokens", "--checkpoint", GOLDEN / BERT, "--format", "json")
    folder = Path(json.loads(invoked(export_command, *call))["output"])
    assert folder.parent == tmp_path / "exports" and is_sound(folder)
    for name in ("export.json", "query.tokenizer.json"):
        stamp = (folder / name).stat().st_mtime_ns
        invoked(export_command, *call)
        assert (folder / name).stat().st_mtime_ns == stamp
        (folder / name).write_text("damaged")
        invoked(export_command, *call)
        assert is_sound(folder)


def test_an_index_of_torch_is_searched_by_its_export(exported):
    """And the reverse: the digest is that of the checkpoint."""
    model, folder = exported("drawings")
    found = load_encoder_of(model.identity(), str(folder), settings={"runtime": "onnx"})
    assert found.options["runtime"] == "onnx"
    back = load_encoder_of(found.identity(), "demo-vdr", device="cpu", settings={"runtime": "torch"})
    assert back.query.__class__.__name__ == "TextTower"
    again = load_encoder_of(found.identity())
    assert again.options["runtime"] == "onnx" and again.checkpoint == str(folder.resolve())


def test_an_export_with_other_options_than_the_index_is_refused(exported):
    """In both directions: an option too few, and one too many."""
    model, folder = exported("sum, top k")
    plain = EncoderRef({**model.identity(), "options": {"pooling": "sum"}})
    with pytest.raises(ArtefactError, match="was exported with query_topk=4"):
        load_encoder_of(plain, str(folder), settings={"runtime": "onnx"})
    with pytest.raises(UsageError, match="exported with query_topk=4, requested query_topk=5; export again"):
        load_encoder_of(model.identity(), str(folder), settings={"runtime": "onnx", "query_topk": "5"})
    other = EncoderRef({**model.identity(), "checkpoint_digest": "0" * 64})
    with pytest.raises(ArtefactError, match="has digest"):
        load_encoder_of(other, str(folder), settings={"runtime": "onnx"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "query.onnx").write_bytes(b"other"), "query.onnx: has SHA-256 .*, expected"),
        (lambda folder: (folder / "query.onnx").unlink(), "query.onnx: cannot be read"),
        (lambda folder: (folder / "query.tokenizer.json").write_text("{}"), "query.tokenizer.json: has SHA-256"),
        (lambda folder: (folder / "export.json").write_text("{"), "export.json"),
        (lambda folder: edit(folder, format="lexvl-onnx/9"), "not an export of this version"),
        (lambda folder: edit(folder, kind=3), "kind is 3, expected a text"),
        (lambda folder: rewrite(folder, files={}), "without its digest"),
        (lambda folder: edit(folder, versions={}), "export.json: not as it was written"),
        (lambda folder: swap(folder, b"no graph"), "ONNX Runtime cannot load the graph"),
        (lambda folder: rewrite(folder, query={"reads": "images", "pixels": {"kind": "Odd"}}), "kind|resolution"),
        (lambda folder: (folder / "export.json").unlink(), "not exported for --runtime onnx"),
        (lambda copy: piped(copy / "query.tokenizer.json"), "not a regular file"),
    ],
)
def test_damaged_exports_are_refused(change, message, exported, tmp_path):
    """Each by one line that says what to do."""
    model, folder = exported("sum, top k")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change(copy)
    with pytest.raises(CheckpointError, match=message) as error:
        load_encoder("splade", str(copy), runtime="onnx")
    assert "export" in str(error.value)


def piped(path: Path) -> None:
    """A pipe in the place of a file: reading it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def edit(folder: Path, **values) -> None:
    """Changes entries of export.json."""
    data = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**data, **values}))


def rewrite(folder: Path, **values) -> None:
    """Changes entries of export.json, whose digest an older version did not write."""
    edit(folder, **values)
    data = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({key: data[key] for key in data if key != "digest"}))


def swap(folder: Path, data: bytes) -> None:
    """Another graph, with its digest."""
    (folder / "query.onnx").write_bytes(data)
    files = json.loads((folder / "export.json").read_text())["files"]
    rewrite(folder, files={**files, "query.onnx": file_sha256(folder / "query.onnx")})


def test_requests_that_no_export_fulfils(exported, tmp_path):
    """Another encoder, no checkpoint, another device, a tokenizer, an unknown runtime, torch on an export."""
    _, folder = exported("sum, top k")
    onnx = {"runtime": "onnx"}
    for name, checkpoint, options, error, message in (
        ("vdr", folder, onnx, CheckpointError, "an export of encoder 'splade', expected one of 'vdr'"),
        ("splade", None, onnx, UsageError, "lexvl export-onnx --encoder splade"),
        ("splade", tmp_path, onnx, CheckpointError, "not exported.*lexvl export-onnx --encoder splade"),
        ("splade", folder, {**onnx, "device": "cuda"}, UsageError, "computes on the CPU"),
        ("splade", folder, {**onnx, "tokenizer": str(tmp_path)}, UsageError, "leave the other folders out"),
        ("splade", folder, {"runtime": "onx"}, UnknownName, "unknown runtime 'onx'; did you mean 'onnx'"),
        ("splade", folder, {"device": "cpu"}, CheckpointError, "an exported encoder; load it with the runtime onnx"),
    ):
        with pytest.raises(error, match=message):
            load_encoder(name, checkpoint and str(checkpoint), **options)


def test_encoders_without_graphs_are_refused(exported, tmp_path):
    """The message names those that have them."""
    from lexvl_plugins.onnx.exporting import EXPORTED, export

    exported("sum, top k")
    with pytest.raises(UsageError, match=f"'bm25' cannot be exported; those that can: {', '.join(EXPORTED)}"):
        export(load_encoder("bm25"), tmp_path / "bm25")
    assert not (tmp_path / "bm25").exists()


def test_missing_packages_name_the_extra(exported, monkeypatch):
    """Of the exporter and of the runtime."""
    from lexvl_plugins.onnx.exporting import check_exporter

    _, folder = exported("sum, top k")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lexvl-anserini\[onnx\]'"):
        load_encoder("splade", str(folder), runtime="onnx")
    with pytest.raises(MissingExtra, match=r"pip install 'lexvl-anserini\[onnx\]'"):
        check_exporter()


@pytest.mark.parametrize("topk", [None, 0, 1, 3, 5, 9])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("first", [None, 3])
def test_rules_keep_the_same_of_arrays_and_tensors(topk, own, first):
    """Ties, zeros, negative numbers, and own tokens that weigh nothing."""
    import torch

    weights = np.array([[2, 1, 1, 1, 0], [0, 0, -1, 0, 0], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1]], dtype=np.float32)
    tokens = np.array([[0, 0, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=bool)
    rule = Sparsifier(topk, own, first)
    expected = kept(torch.from_numpy(weights), torch.from_numpy(tokens), rule).numpy()
    np.testing.assert_array_equal(kept_rows(weights, tokens, rule), expected)
    if (topk, own, first) == (3, True, None):
        np.testing.assert_array_equal(expected[0], [True, True, True, True, False])
    if (topk, own, first) == (1, False, 3):
        np.testing.assert_array_equal(expected[0], [True, False, False, True, False])


def test_the_command_writes_refuses_and_resumes(exported, tmp_path):
    """A second call does nothing; other options need --overwrite; a folder of something else stays."""
    exported("sum, top k")
    call = ("--encoder", "bag-of-tokens", "--checkpoint", GOLDEN / BERT, "--output")
    output = tmp_path / "e"
    first = json.loads(invoked(export_command, *call, output, "--format", "json"))
    assert first["query"] == "a bag of tokens, no graph"
    stamp = (output / "export.json").stat().st_mtime_ns
    invoked(export_command, *call, output)
    assert (output / "export.json").stat().st_mtime_ns == stamp
    with pytest.raises(ArtefactError, match="--overwrite"):
        invoked(export_command, *call, output, "--set", "max_length=9")
    invoked(export_command, *call, output, "--set", "max_length=9", "--overwrite")
    bag = load_encoder("bag-of-tokens", str(output), runtime="onnx", max_length="9")
    expected = load_encoder("bag-of-tokens", str(GOLDEN / BERT), max_length=9)
    assert (bag.encode_query(TEXTS) != expected.encode_query(TEXTS)).nnz == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(ArtefactError):
        invoked(export_command, *call, tmp_path / "mine")
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"


def test_encode_notes_the_runtime(exported, tmp_path):
    """Shards by a graph are a request of their own; without an option, queries are encoded by it too."""
    model, folder = exported("sum, top k")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/boat.txt").write_text("a red boat")
    call = ("--corpus", f"folder:{tmp_path}/c", "--encoder", "splade", "--output", tmp_path / "impacts")
    invoked(encode_command, *call, "--runtime", "onnx", "--checkpoint", folder)
    manifest = read_manifest(tmp_path / "impacts")
    assert manifest.encoder.options == {**model.options, "runtime": "onnx"}
    assert manifest.encoder.checkpoint_digest == model.checkpoint_digest
    assert "onnxruntime" in manifest.versions
    assert load_encoder_of(manifest.encoder).options["runtime"] == "onnx"
    settings = [f"--set={key}={value}" for key, value in model.options.items()]
    with pytest.raises(ArtefactError, match=r"another request \(encoder"):
        invoked(encode_command, *call, "--checkpoint", GOLDEN / BERT, *settings)
