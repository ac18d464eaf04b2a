"""Any SparseEncoder folder: agreement with the families that read it too, manifests, consent to code, bad input."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from tiny_encoders import Runs, close, made_dense

from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, LexvlError, UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_plugins.sparse import sparse_encoder
from lexvl_plugins.sparse.consent import CONSENT
from tests.plugins.sparse.sparse_folders import list_modules, make_folder

TEXTS = ["a man riding a horse on a beach", "a dog", "", "two dogs and a frisbee in the park", "PIZZA, on a table!"]
FAMILIES = {
    "splade": "splade",
    "doc-only": "splade",
    "router": "splade",
    "table": "splade",
    "two networks": "splade",
    "csr": "sae",
    "csr cls": "sae",
    "csr last": "sae",
}


@pytest.fixture(scope="module")
def made(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`made(name)`: the folder of a name, written once."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folders[name] = make_folder(golden, tmp_path_factory.mktemp("made"), name)
        return folders[name]

    return make


def load(folder: Path, **options: Any) -> Any:
    return load_encoder("sparse-encoder", str(folder), device="cpu", **{"direction": "text-to-text", **options})


def refuse(folder: Path, name: str = "sparse-encoder", **options: Any) -> str:
    """The one line that loading a folder raises."""
    text = {"direction": "text-to-text"} if name == "sparse-encoder" else {}
    with pytest.raises(LexvlError) as caught:
        load_encoder(name, str(folder), device="cpu", **{**text, **options})
    line = str(caught.value)
    assert "\n" not in line and "trust_remote_code=" not in line and "weights_only" not in line
    return line


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def copy(made: Any, tmp_path: Path) -> Any:
    """`copy(name)`: a copy of a folder that a test may change."""
    return lambda name: Path(shutil.copytree(made(name), tmp_path / "copy"))


# ---- agreement


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_and_the_library_give_the_same_impacts(made, name) -> None:
    """The family is the default; the library's weights, terms and impacts are the same."""
    folder = made(name)
    native, chosen, library = load_encoder(FAMILIES[name], str(folder)), load(folder), load(folder, native=False)
    assert type(chosen.document) is type(native.document)
    assert type(library.document) is type(library.query) is sparse_encoder.LibraryTexts
    assert library.vocabulary.digest == native.vocabulary.digest
    sample = native.document.weights(TEXTS)
    quantisers = [model.fit_quantiser(Quantiser()).calibrate(sample) for model in (native, library)]
    for side in ("query", "document"):
        one, other = getattr(native, side), getattr(library, side)
        found, expected = other.weights(TEXTS, batch_size=2), one.weights(TEXTS)
        assert expected.nnz > 10
        close(found, expected.toarray())
        close(getattr(chosen, side).weights(TEXTS), expected.toarray())
        assert one.binary == other.binary
        first, second = (
            (quantiser.queries if side == "query" else quantiser.documents)(weights).impacts
            for quantiser, weights in ((quantisers[0], expected), (quantisers[1], found))
        )
        np.testing.assert_array_equal(first.toarray(), second.toarray())


def test_a_sparse_autoencoder_by_hand(golden, copy) -> None:
    """Written a second time from the stored matrices: mean of states, k largest, relu; anonymous terms."""
    folder = copy("csr")
    model = load_encoder("sae", str(folder), device="cpu")
    dense = SentenceTransformer(modules=list_modules(golden, folder, "csr")[:2], device="cpu")
    x = torch.from_numpy(dense.encode(["a dog"]))
    stored = load_file(folder / "2_SparseAutoEncoder/model.safetensors")
    matrix = stored.get("encoder.weight", stored.get("decoder.linear.weight"))
    latents = (x - stored["pre_bias"]) @ matrix.T + stored["latent_bias"]
    expected = torch.zeros_like(latents)
    for position in latents[0].argsort(descending=True)[:16]:
        expected[0, position] = max(0.0, float(latents[0, position]))
    close(model.document.weights(["a dog"]), expected, atol=1e-4)
    assert model.vocabulary.terms[:2] == ("sae00000", "sae00001") and len(model.vocabulary) == 128
    assert np.diff(load_encoder("sae", str(folder), topk=3).document.weights(TEXTS).indptr).max() == 3


def test_prompts_and_lengths_are_those_of_the_folder(golden, tmp_path) -> None:
    for name in ("splade", "csr"):
        folder = make_folder(golden, tmp_path / name, name, prompts={"query": "a man: ", "document": ""})
        native, library = load(folder), load(folder, native=False)
        for side in ("query", "document"):
            close(getattr(library, side).weights(TEXTS), getattr(native, side).weights(TEXTS).toarray())
        assert abs(library.query.weights(TEXTS) - library.document.weights(TEXTS)).max() > 0.01
        short, expected = (
            load(folder, native=choice, max_length=4).document.weights(TEXTS) for choice in (False, True)
        )
        close(short, expected.toarray())
    assert np.diff(load(folder, native=False, query_topk=2).query.weights(TEXTS).indptr).max() == 2


def test_images_and_texts_of_one_model(made) -> None:
    """Either side reads either; a text that looks like the name of a picture or an address is a text."""
    model = load(made("clip"), direction="text-to-image")
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    library = SparseEncoder(str(made("clip")), device="cpu")
    expected = library.encode([picture], convert_to_sparse_tensor=False).numpy()
    close(model.document.weights([picture]), expected, atol=1e-5)
    texts = ["cat.png", "http://127.0.0.1:9/cat.png", "a dog"]
    assert (np.diff(model.query.weights(texts).indptr) == 16).all()
    captions = load(made("clip"))
    close(captions.document.weights(texts), model.query.weights(texts).toarray())


# ---- manifests


def test_a_manifest_notes_the_modules(made) -> None:
    model = load(made("router"), native=False)
    ref = model.identity()
    modules = "document: Transformer, SpladePooling; query: SparseStaticEmbedding"
    assert ref.options == {"direction": "text-to-text", "native": False, "modules": modules}
    again = load_encoder_from(ref, device="cpu", vocabulary=model.vocabulary.digest)
    assert again.identity() == ref
    other = type(ref)({**ref, "options": {**ref.options, "modules": "Transformer"}})
    with pytest.raises(ArtefactError, match="has modules 'document: .* the index was made with 'Transformer'"):
        load_encoder_from(other, device="cpu")


@pytest.mark.parametrize("name", ["csr max", "csr"])
def test_a_saved_model_is_loaded_again(made, tmp_path, name) -> None:
    """A model of the library, and one of a family."""
    from lexvl_plugins.exchange.sharing.saving import save_pretrained

    model = load(made(name), topk=3)
    save_pretrained(model, tmp_path / "saved", licence="mit")
    again = load_encoder("sparse-encoder", str(tmp_path / "saved"), device="cpu")
    assert again.options == model.options and type(again.document) is type(model.document)
    close(again.document.weights(TEXTS), model.document.weights(TEXTS).toarray())


# ---- consent

CODE = """
open({marker!r}, "a").close()
from sentence_transformers.sparse_encoder.modules import SpladePooling as Pooling
class SpladePooling(Pooling):
    def forward(self, features):
        features = super().forward(features)
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features
"""


@pytest.fixture
def foreign(copy, tmp_path, monkeypatch) -> Path:
    """A SPLADE folder whose pooling is a class of its own, by the library's name, which writes the file `ran`."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = copy("splade")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "doubling.SpladePooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "doubling.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    return folder


def test_code_runs_only_where_the_environment_names_its_folder(foreign, made, tmp_path, monkeypatch, caplog) -> None:
    """Its weights are then the module's; one line says so, and the manifest has the digest of what ran."""
    line = refuse(foreign)
    assert "its files name code (doubling.SpladePooling), which runs only with your consent" in line
    assert line.endswith(f"set {CONSENT}={foreign}")
    for other in ("1", "true", "*", str(tmp_path), f"{foreign}x"):
        monkeypatch.setenv(CONSENT, other)
        assert "only with your consent" in refuse(foreign)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv(CONSENT, f"owner/name@{'0' * 40}:{foreign}")
    model = load(foreign)
    assert (tmp_path / "ran").exists()
    [told] = [record.message for record in caplog.records if "runs its code" in record.message]
    ref = model.identity()
    assert str(foreign) in told and ref.options["code"][:16] in told
    assert ref.options["modules"] == "Transformer, SpladePooling"
    close(model.document.weights(TEXTS), 2 * load(made("splade")).document.weights(TEXTS).toarray())
    os.mkfifo(foreign / "pipe")  # beside the code, whose digest has all files
    assert "pipe: neither a file nor a folder" in refuse(foreign)
    (foreign / "pipe").unlink()
    (foreign / "doubling.py").write_text((foreign / "doubling.py").read_text().replace("2 *", "3 *"))
    with pytest.raises(ArtefactError, match="has code '.*, the index was made with"):
        load_encoder_from(ref, device="cpu")


def test_no_data_gives_consent(foreign, tmp_path, made) -> None:
    """Neither a manifest that notes code nor an option does."""
    ref = load(made("splade"), native=False).identity()
    noted = {**ref.options, "modules": "Transformer, SpladePooling", "code": "0" * 64}
    with pytest.raises(CheckpointError, match="only with your consent"):
        load_encoder_from(type(ref)({**ref, "checkpoint": str(foreign), "options": noted}), device="cpu")
    with pytest.raises(UsageError, match="trust_remote_code"):
        load(foreign, trust_remote_code=True)
    assert not (tmp_path / "ran").exists()


def test_code_that_configurations_name(copy, monkeypatch) -> None:
    """A model type that only code knows needs consent; code of another repository is refused with consent too."""
    folder = copy("splade")
    classes = {"AutoModelForMaskedLM": "owner/other--modeling.NewForMaskedLM"}
    edit(folder / "config.json", model_type="new", auto_map=classes)
    assert "name code (owner/other--modeling.NewForMaskedLM)" in refuse(folder)
    monkeypatch.setenv(CONSENT, str(folder))
    assert "owner/other--modeling.NewForMaskedLM is code of another repository" in refuse(folder)


@pytest.mark.parametrize(
    "file,changes,expected",
    [
        ("sentence_bert_config.json", {"model_kwargs": {"attn_implementation": "owner/kernel"}}, "may not choose"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "owner/other"}, "names another tokenizer"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "push_to_hub", "method_output_name": "logits"}}},
            "expected a method of",
        ),
        ("sentence_bert_config.json", {"transformer_task": "retrieval"}, "transformer_task 'retrieval'"),
        ("config.json", {"_attn_implementation": "owner/kernel"}, "attention by 'owner/kernel'"),
    ],
)
def test_what_a_folder_may_not_choose(copy, file, changes, expected) -> None:
    folder = copy("splade")
    edit(folder / file, **changes)
    assert expected in refuse(folder, native=False)


def test_a_chat_template_is_a_program(copy) -> None:
    folder = copy("splade")
    text = {"method": "forward", "method_output_name": "logits"}
    edit(folder / "sentence_bert_config.json", modality_config={"text": text, "message": {**text, "format": "flat"}})
    assert "its inputs go through a chat template, a program of the folder, which runs only" in refuse(
        folder, native=False
    )


def test_pickles_of_modules_are_refused_and_not_run(copy, tmp_path) -> None:
    folder = copy("csr max")
    weights = folder / "2_SparseAutoEncoder/model.safetensors"
    stored = load_file(weights)
    weights.unlink()
    torch.save({**stored, "x": Runs(Path.mkdir, tmp_path / "ran")}, weights.with_name("pytorch_model.bin"))
    assert "2_SparseAutoEncoder" in refuse(folder)
    assert not (tmp_path / "ran").exists()


# ---- bad input


def test_a_dense_model_as_sparse_and_the_reverse(golden, made, tmp_path) -> None:
    """Each line names an encoder that reads the folder; there is no circle."""
    dense = made_dense(golden, tmp_path)
    assert refuse(dense).endswith("a SentenceTransformer, not a SparseEncoder; load it with --encoder sentence")
    assert refuse(dense, "sae").endswith("load it with --encoder sentence")
    assert refuse(dense, "splade").endswith("load it with --encoder sentence")
    assert "no modules.json and no masked LM (architecture CLIPModel)" in refuse(made("clip").parent / "clip")
    for name, family in {"csr": "sae", "splade": "splade", "router": "splade"}.items():
        line = refuse(made(name), "sentence")
        assert line.endswith(f"a sparse model; load it with --encoder {family} or --encoder sparse-encoder")
    assert refuse(made("csr"), "splade").endswith("load it with --encoder sae or --encoder sparse-encoder")
    assert refuse(made("splade"), "sae").endswith("load it with --encoder splade or --encoder sparse-encoder")


def test_an_image_to_a_model_of_texts(made) -> None:
    line = refuse(made("splade"), direction="text-to-image")
    assert "its document side reads texts, and no images; choose a direction of these" in line
    assert "--direction" in line and "text-to-text" in line
    with pytest.raises(UsageError, match="reads texts only"):
        load(made("splade"), native=False).encode_document([Image.new("RGB", (4, 4))])


@pytest.mark.parametrize("native", [True, False])
def test_vocabularies_that_differ_between_sides(golden, tmp_path, native) -> None:
    """Of as many terms in another order."""
    from sentence_transformers.base.modules import Router

    folder = tmp_path / "model"
    sides = (list_modules(golden, tmp_path, name) for name in ("table", "splade"))
    SparseEncoder(modules=[Router.for_query_document(*sides)], device="cpu").save_pretrained(str(folder))
    tokenizer = folder / "query_0_SparseStaticEmbedding/tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["dog"], vocabulary["horse"] = vocabulary["horse"], vocabulary["dog"]
    tokenizer.write_text(json.dumps(content))
    assert "another vocabulary" in refuse(folder, native=native)


def test_weights_that_are_missing_or_no_impacts(copy, tmp_path, monkeypatch) -> None:
    """The library would make up what is missing, and give weights below 0."""
    folder = copy("splade")
    weights = load_file(folder / "model.safetensors")
    bias = "cls.predictions.transform.dense.bias"
    save_file({key: value for key, value in weights.items() if key != bias}, folder / "model.safetensors")
    assert bias in refuse(folder) and bias in refuse(folder, native=False)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load(folder, native=False)
    monkeypatch.setattr(model.document.model, "encode_document", lambda *_, **__: torch.tensor([[-1.0, 1.0]]))
    with pytest.raises(LexvlError, match="a weight that is negative, which no impact can be for input 'a dog'"):
        model.document.weights(["a dog"])


@pytest.mark.parametrize(
    "file,changes,expected",
    [
        ("2_SparseAutoEncoder/config.json", {"k": 0}, "k 0, expected a positive number"),
        ("2_SparseAutoEncoder/config.json", {"input_dim": 31}, r"encoder.weight [128, 32], expected [128, 31]"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling 'max', expected one of mean, cls, lasttoken"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "similarity_fn_name 'euclidean'"),
    ],
)
def test_folders_of_autoencoders_that_are_not_read(copy, file, changes, expected) -> None:
    folder = copy("csr")
    edit(folder / file, **changes)
    assert expected in refuse(folder, "sae")


def test_cosines_are_products_of_vectors_of_unit_length(copy) -> None:
    folder = copy("csr")
    plain = load(folder, native=False).document.weights(TEXTS).toarray()
    edit(folder / "config_sentence_transformers.json", similarity_fn_name="cosine")
    close(load(folder).document.weights(TEXTS), plain / np.linalg.norm(plain, axis=1, keepdims=True))
