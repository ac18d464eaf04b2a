"""Exported encoders: ONNX Runtime gives the vectors of torch, and refuses what is not its own."""

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
from corpus_folders import json_lines
from PIL import Image
from tiny_encoders import BERT, PUBLISHED, SPARSE, close, made_dense, made_twin

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encode import command as encode_command
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.encoders.parts.sparsify import Sparsifier, mark_kept
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, MissingExtra, UnknownName, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import EncoderRef, read_manifest
from lexvl_anserini.ground.records import Document
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.onnx.export_onnx import command as export_command
from lexvl_plugins.onnx.loading import hash_description, mark_kept_rows
from tests.invoking import invoked
from tests.plugins.pages.v_splade_folders import write_export

pytestmark = pytest.mark.extended

# Different lengths, so that there are several batches with padding; empty; longer than every limit; Unicode.
TEXTS = ["a red boat", "", "two dogs play", "Café \u2603 moon!", "the sea " * 40, "a", "a red boat under the moon"]


def write_table(golden: Path, folder: Path) -> Path:
    """Queries that look up IDF weights, in which repeated tokens add up."""
    shutil.copytree(golden / SPARSE / "st6_inference_free_idf_log1p", folder / "table")
    (folder / "table/query_0_SparseStaticEmbedding/config.json").write_text('{"adds": true}')
    return folder / "table"


ALPHA = {"mode": "alpha", "padding": "none", "lexical_union": True, "topk": 9}
CASES: dict[str, tuple[str, Callable[[Path, Path], Path | str], dict]] = {
    "two sides, padded": ("vdr", lambda golden, _: golden / PUBLISHED, {}),
    "alpha, union": ("vdr", lambda golden, _: golden / PUBLISHED, ALPHA),
    "sum, top k": ("splade", lambda golden, _: golden / BERT, {"pooling": "sum", "topk": 16, "query_topk": 4}),
    "table": ("splade", write_table, {}),
    "dense sentences": ("sentence", made_dense, {"dimensions": 8}),
    "dense images": ("dense-crossmodal", made_twin, {}),
    "drawings": ("vdr-crossmodal", lambda golden, _: "demo-vdr", {}),
}


def need_packages() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'lexvl-anserini[onnx]'")


@pytest.fixture(scope="module")
def exported(tmp_path_factory, golden) -> Callable[[str], tuple[Encoder, Path]]:
    """By the name of a case: the encoder of torch, and the folder of its export."""
    need_packages()
    from lexvl_plugins.onnx.exporting import export

    @cache
    def make(case: str) -> tuple[Encoder, Path]:
        name, checkpoint, options = CASES[case]
        folder = tmp_path_factory.mktemp("exported")
        model = load_encoder(name, checkpoint(golden, folder), device="cpu", **options)
        export(model, folder / "export")
        return model, folder / "export"

    return make


def load_onnx(model: Encoder, folder: Path) -> Encoder:
    return load_encoder(model.name, str(folder), runtime="onnx")


def draw(count: int) -> list[Image.Image]:
    """Pictures of several shapes."""
    rng = np.random.default_rng(7)
    return [Image.fromarray(rng.integers(0, 256, (40 + 9 * number, 70, 3), dtype=np.uint8)) for number in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_torch(case, exported):
    """Both sides, in batches of several sizes; of the demo's pair, impacts are equal."""
    model, folder = exported(case)
    graphs = load_onnx(model, folder)
    assert (graphs.kind, graphs.options) == (model.kind, {**model.options, "runtime": "onnx"})
    assert graphs.checkpoint_digest == model.checkpoint_digest
    for side in ("query", "document"):
        theirs, ours = getattr(model, side), getattr(graphs, side)
        images = "images" in case or case == "drawings"
        inputs = draw(5) if images and side == "document" else TEXTS
        if model.kind == "dense":
            for batch_size in (1, 3, 32):
                close(ours.vectors(inputs, batch_size), theirs.vectors(inputs))
            continue
        weights = theirs.weights(inputs)
        close(ours.dense_weights(inputs, 2), theirs.dense_weights(inputs))
        for batch_size in (1, 3, 32):
            rows = ours.weights(inputs, batch_size)
            assert rows.shape == weights.shape and rows.dtype == np.float32
            close(rows, weights.toarray())
        if case == "two sides, padded":  # titles are joined as the encoder of torch joins them
            titled = Document("d", title="Boat", text="on the sea")
            assert ours.read(titled) == theirs.read(titled)
        if case == "drawings":
            np.testing.assert_array_equal(*(np.rint(each.toarray() * 255) for each in (rows, weights)))
        assert (ours.vocabulary.digest, ours.binary) == (theirs.vocabulary.digest, theirs.binary)
        assert ours.weights([]).shape == (0, len(ours.vocabulary))


def test_equal_networks_share_a_file(exported):
    """SPLADE has one network for both sides; a bag of tokens has none."""
    shared = json.loads((exported("sum, top k")[1] / "export.json").read_text())
    assert shared["query"]["graph"] == shared["document"]["graph"] == "query.onnx"
    bag = json.loads((exported("alpha, union")[1] / "export.json").read_text())
    assert bag["query"].get("graph") is None and bag["document"]["graph"] == "document.onnx"


# What a typed query of an exported encoder does without, from the start of the process to its answer.
NOT_FOR_AN_ANSWER = ("torch", "transformers", "pandas", "scipy", "sklearn", "ranx", "numba", "jnius", "pyarrow")


def index_texts(model: Encoder, folder: Path) -> Path:
    (folder / "corpus.jsonl").write_text(json_lines({f"d{number}": text for number, text in enumerate(TEXTS[:5])}))
    dataset = load_dataset(f"beir:{folder}")
    write_impacts(replace(dataset, topics=lambda: iter(())), model, folder / "impacts")
    return build_index(folder / "impacts", folder / "index").path


def search(index: Path, *options: str) -> tuple[list[str], set[str]]:
    """The hits of a typed query in a process of its own, and what that imported of `NOT_FOR_AN_ANSWER`."""
    call = ["lexvl", "search", "--index", str(index), *options]
    code = (
        f"import sys\nsys.argv = {call!r}\nfrom lexvl_anserini.cli import main\n"
        f"try:\n    main()\nfinally:\n    print('loaded', *(set({NOT_FOR_AN_ANSWER!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *hits, loaded = done.stdout.splitlines()
    return hits, set(loaded.split()[1:])


def test_a_typed_query_takes_the_export_that_it_names(exported, tmp_path):
    """Of an index that torch encoded: Java does not start, and no large library is loaded."""
    model, folder = exported("sum, top k")
    query = ("--query", TEXTS[0])
    by_torch, loaded = search(index := index_texts(model, tmp_path), *query)
    assert by_torch and "torch" in loaded and "jnius" not in loaded
    assert search(index, *query, "--checkpoint", str(folder), "--set", "runtime=onnx") == (by_torch, set())


def test_a_table_answers_without_torch_and_onnx_runtime(golden, tmp_path, monkeypatch):
    """Its export of queries alone has arrays, in which "sea" counts 40 times. A whole export needs the packages."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    checkpoint = write_table(golden, tmp_path)
    model, query = load_encoder("splade", checkpoint, device="cpu"), ("--query", TEXTS[4])
    by_torch, loaded = search(index := index_texts(model, tmp_path), *query)
    assert by_torch and "torch" in loaded
    call = ("--encoder", "splade", "--checkpoint", checkpoint, "--format", "json", "--output", tmp_path / "export")
    printed = json.loads(invoked(export_command, *call, "--queries-only"))
    assert (printed["query"], printed["document"]) == ("a bag of tokens, no graph", "left out")
    chosen = ("--checkpoint", str(tmp_path / "export"), "--set", "runtime=onnx")
    assert search(index, *query, *chosen) == (by_torch, set())
    export = load_onnx(model, tmp_path / "export")
    once, often = (export.encode_query(text).max() for text in ("the sea", TEXTS[4]))
    assert often == pytest.approx(40 * once)
    with pytest.raises(UsageError, match="queries alone"):
        export.encode_document(TEXTS)
    with pytest.raises(MissingExtra, match="onnx"):
        invoked(export_command, *call)


def test_queries_of_an_encoder_that_has_no_graphs(golden, tmp_path):
    """V-SPLADE's table has the weights of torch; its pages are refused, and the message names the way."""
    from lexvl_plugins.onnx.exporting import EXPORTED, export

    model = load_encoder("v-splade", str(write_export(tmp_path / "v-splade")), device="cpu")
    export(model, tmp_path / "export", queries_only=True)
    ours, theirs = (each.encode_query(TEXTS) for each in (load_onnx(model, tmp_path / "export"), model))
    assert theirs.nnz and (ours != theirs).nnz == 0
    with pytest.raises(UsageError, match="'v-splade' cannot be exported; .*--queries-only"):
        export(model, tmp_path / "whole")
    with pytest.raises(UsageError, match=f"'bm25' cannot be exported; those that can: {', '.join(EXPORTED)}"):
        export(load_encoder("bm25"), tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_an_index_of_torch_is_searched_by_its_export(exported):
    """And the reverse: the digest is that of the checkpoint. Other options and other checkpoints are refused."""
    model, folder = exported("drawings")
    onnx = {"runtime": "onnx"}
    graphs = load_encoder_from(model.identity(), str(folder), settings=onnx)
    assert graphs.options["runtime"] == "onnx"
    back = load_encoder_from(graphs.identity(), "demo-vdr", device="cpu", settings={"runtime": "torch"})
    assert back.query.__class__.__name__ == "TextTower"
    again = load_encoder_from(graphs.identity())
    assert again.options["runtime"] == "onnx" and again.checkpoint == str(folder.resolve())
    model, folder = exported("sum, top k")
    for change, settings, error, message in (
        ({"options": {"pooling": "sum"}}, onnx, ArtefactError, "exported with query_topk=4"),
        ({}, {**onnx, "query_topk": "5"}, UsageError, "query_topk=4, requested query_topk=5"),
        ({"checkpoint_digest": "0" * 64}, onnx, ArtefactError, "has digest"),
    ):
        with pytest.raises(error, match=message):
            load_encoder_from(EncoderRef({**model.identity(), **change}), str(folder), settings=settings)


def edit(folder: Path, **values) -> None:
    """Changes entries of export.json, which then has its digest."""
    data = {**json.loads((folder / "export.json").read_text()), **values}
    data.pop("digest")
    (folder / "export.json").write_text(json.dumps({**data, "digest": hash_description(data)}))


def swap(folder: Path, data: bytes) -> None:
    """Another graph, with its digest."""
    (folder / "query.onnx").write_bytes(data)
    files = json.loads((folder / "export.json").read_text())["files"]
    edit(folder, files={**files, "query.onnx": compute_sha256(folder / "query.onnx")})


def put_pipe(path: Path) -> None:
    """A pipe in the place of a file: reading it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "query.onnx").write_bytes(b"other"), "query.onnx: has SHA-256 .*, expected"),
        (lambda folder: (folder / "query.onnx").unlink(), "query.onnx: cannot be read"),
        (lambda folder: (folder / "query.tokenizer.json").write_text("{}"), "query.tokenizer.json: has SHA-256"),
        (lambda folder: (folder / "export.json").write_text("{"), "export.json"),
        (lambda folder: edit(folder, format="lexvl-onnx/9"), "not an export of this version"),
        (lambda folder: edit(folder, kind=3), "kind is 3, expected a text"),
        (lambda folder: edit(folder, files={}), "without its digest"),
        (lambda folder: edit(folder, other=3), "of this version"),
        (lambda folder: (folder / "export.json").write_text('{"format": "lexvl-onnx/1"}'), "not as it was written"),
        (lambda folder: swap(folder, b"no graph"), "ONNX Runtime cannot load the graph"),
        (lambda folder: edit(folder, query={"reads": "images", "graph": "query.onnx"}), "pixels of kind"),
        (lambda folder: edit(folder, query={"reads": "texts", "reader": {"max_length": 3}}), "cannot be loaded"),
        (lambda folder: (folder / "export.json").unlink(), "not exported for the runtime onnx"),
        (lambda folder: put_pipe(folder / "query.tokenizer.json"), "not a regular file"),
    ],
)
def test_damaged_exports_are_refused(change, message, exported, tmp_path):
    """Each by one line that says what to do."""
    model, folder = exported("sum, top k")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    change(copy)
    with pytest.raises(CheckpointError, match=message) as error:
        load_onnx(model, copy)
    assert "export" in str(error.value) and "\n" not in str(error.value)


def test_requests_that_no_export_fulfils(exported, tmp_path, monkeypatch):
    _, folder = exported("sum, top k")
    onnx = {"runtime": "onnx"}
    for name, checkpoint, options, error, message in (
        ("vdr", folder, onnx, CheckpointError, "an export of encoder 'splade', expected one of 'vdr'"),
        ("splade", None, onnx, UsageError, "lexvl export-onnx --encoder splade"),
        ("splade", tmp_path, onnx, CheckpointError, "not exported.*lexvl export-onnx --encoder splade"),
        ("splade", folder, {**onnx, "device": "cuda"}, UsageError, "on the CPU"),
        ("splade", folder, {**onnx, "tokenizer": str(tmp_path)}, UsageError, "leave the other folders out"),
        ("splade", folder, {"runtime": "onx"}, UnknownName, "did you mean 'onnx'"),
        ("splade", folder, {"device": "cpu"}, CheckpointError, "runtime of its export"),
    ):
        with pytest.raises(error, match=message):
            load_encoder(name, checkpoint and str(checkpoint), **options)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"\[onnx\]"):
        load_encoder("splade", str(folder), **onnx)


@pytest.mark.parametrize("topk", [None, 0, 1, 3, 5, 9])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("first", [None, 3])
def test_rules_keep_the_same_of_arrays_and_tensors(topk, own, first):
    """Ties, zeros, negative numbers, and own tokens that weigh nothing."""
    import torch

    weights = np.array([[2, 1, 1, 1, 0], [0, 0, -1, 0, 0], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1]], dtype=np.float32)
    tokens = np.array([[0, 0, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=bool)
    rule = Sparsifier(topk, own, first)
    expected = mark_kept(torch.from_numpy(weights), torch.from_numpy(tokens), rule).numpy()
    np.testing.assert_array_equal(mark_kept_rows(weights, tokens, rule), expected)
    if (topk, own, first) == (3, True, None):
        np.testing.assert_array_equal(expected[0], [True, True, True, True, False])
    if (topk, own, first) == (1, False, 3):
        np.testing.assert_array_equal(expected[0], [True, False, False, True, False])


def test_the_command_writes_refuses_and_resumes(golden, tmp_path):
    """A second call writes nothing unless files are damaged; other options need --overwrite; other folders stay."""
    call = ("--encoder", "bag-of-tokens", "--checkpoint", golden / BERT, "--output")
    output = tmp_path / "e"
    for options, document in ((("--queries-only",), "left out"), ((), "a bag of tokens, no graph")):
        rows = json.loads(invoked(export_command, *call, output, *options, "--format", "json"))
        assert (rows["query"], rows["document"]) == ("a bag of tokens, no graph", document)
    for name in ("export.json", "query.tokenizer.json"):
        stamp, content = (output / name).stat().st_mtime_ns, (output / name).read_bytes()
        invoked(export_command, *call, output)
        assert (output / name).stat().st_mtime_ns == stamp
        (output / name).write_text("damaged")
        invoked(export_command, *call, output)
        assert (output / name).read_bytes() == content
    with pytest.raises(ArtefactError, match="--overwrite"):
        invoked(export_command, *call, output, "--set", "max_length=9")
    invoked(export_command, *call, output, "--set", "max_length=9", "--overwrite")
    bag = load_encoder("bag-of-tokens", str(output), runtime="onnx", max_length="9")
    expected = load_encoder("bag-of-tokens", str(golden / BERT), max_length=9)
    assert (bag.encode_query(TEXTS) != expected.encode_query(TEXTS)).nnz == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(ArtefactError, match="something else"):
        invoked(export_command, *call, tmp_path / "mine")
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"


def test_encode_notes_the_runtime(exported, golden, tmp_path):
    """Shards by a graph are a request of their own; without an option, queries are encoded by it too."""
    model, folder = exported("sum, top k")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/boat.txt").write_text("a red boat")
    call = ("--corpus", f"folder:{tmp_path}/c", "--encoder", "splade", "--output", tmp_path / "impacts")
    invoked(encode_command, *call, "--set", "runtime=onnx", "--checkpoint", folder)
    manifest = read_manifest(tmp_path / "impacts")
    assert manifest.encoder.options == {**model.options, "runtime": "onnx"}
    assert manifest.encoder.checkpoint_digest == model.checkpoint_digest
    assert "onnxruntime" in manifest.versions
    assert load_encoder_from(manifest.encoder).options["runtime"] == "onnx"
    settings = [f"--set={key}={value}" for key, value in model.options.items()]
    with pytest.raises(ArtefactError, match=r"another request \(encoder"):
        invoked(encode_command, *call, "--checkpoint", golden / BERT, *settings)
