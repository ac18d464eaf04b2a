"""V-SPLADE against the authors' code, its layouts, its tiles, and queries without a network."""

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from declared import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from lexvl_anserini.encoders.checkpoints.find import list_model_files
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.grounding import compute_patch_logits, localise
from lexvl_anserini.ground.errors import CheckpointError, InstallationError, UsageError
from lexvl_plugins.exchange.sharing.saving import save_pretrained
from lexvl_plugins.pages import v_splade
from lexvl_plugins.pages.page_network import Tiles
from lexvl_plugins.pages.v_splade import PageShape, list_shapes
from tests.plugins.pages.v_splade_folders import PUBLISHED, TEMPLATE, Draws, add_modules, write_export


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """What the authors' code makes of pages and queries; `inputs/kept` are the columns that are stored."""
    return dict(np.load(GOLDEN / "families/v-splade.npz"))


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """An export of the published number of tokens, whose weights the reference had."""
    return write_export(tmp_path_factory.mktemp("published") / "export", PUBLISHED)


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    """A small export."""
    return write_export(tmp_path_factory.mktemp("small") / "export")


def loaded(folder: Path, **options):
    return load_encoder("v-splade", str(folder), device="cpu", **options)


def changed(folder: Path, name: str, **entries) -> None:
    """Changes entries of a JSON file; None removes one."""
    content = json.loads((folder / name).read_text()) | entries
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def with_weights(folder: Path, **arrays: np.ndarray | None) -> None:
    """Changes weights of an export, whose names have `__` for dots here; None removes one."""
    weights = load_file(folder / "model.safetensors") | {k.replace("__", "."): v for k, v in arrays.items()}
    save_file({key: value for key, value in weights.items() if value is not None}, folder / "model.safetensors")


# ---- against the authors' code


def test_pages_of_many_shapes(reference, published):
    tower, kept = loaded(published).document, reference["inputs/kept"]
    names = [key.removeprefix("inputs/") for key, value in reference.items() if value.ndim == 3]
    pages = [Image.fromarray(reference[f"inputs/{name}"]) for name in names]
    expected = np.stack([reference[f"outputs/page_{name}"] for name in names])
    np.testing.assert_allclose(tower.dense_weights(pages)[:, kept], expected, atol=1e-5)
    assert len(names) == 6 and len(np.unique(expected.round(3), axis=0)) == 6
    for name, page in zip(names, pages, strict=True):
        tiles = tower.pixels.cut(page)
        ids = tower.composition.backbone.tokenise(torch.tensor([tiles.rows, tiles.columns]))
        np.testing.assert_array_equal(ids[0], reference[f"outputs/ids_{name}"])


def test_queries_sum_the_weights_of_their_tokens(reference, published):
    kept, queries = reference["inputs/kept"], json.loads(reference["inputs/queries"].tobytes())
    found = loaded(published).query.weights(queries).toarray()
    np.testing.assert_allclose(found[:, kept], reference["outputs/queries"], atol=1e-5)
    assert not np.delete(found, kept, axis=1).any()
    once, thrice = (loaded(published).query.weights([text]).max() for text in ("report", "report report report"))
    assert thrice == pytest.approx(3 * once)


def test_the_other_activation_and_a_low_rank_change(reference, published, tmp_path):
    folder = write_export(tmp_path / "export", PUBLISHED)
    draws, kept = Draws(PUBLISHED), reference["inputs/kept"]
    change = {"A": draws.tensor("query_encoder.lora_A", PUBLISHED, 4), "B": draws.tensor("query_encoder.lora_B", 4, 16)}
    with_weights(folder, **{f"query_encoder__lora_{name}": value for name, value in change.items()})
    queries = json.loads(reference["inputs/queries"].tobytes())
    found = loaded(folder, table_activation="relu").query.weights(queries).toarray()[:, kept]
    np.testing.assert_allclose(found, reference["outputs/queries_relu_lora"], atol=1e-5)


def test_bags(reference, published):
    """The reference gives a token of a tile, as `<image>`, to the last dimension of the head; here it has none."""
    kept, queries = reference["inputs/kept"], json.loads(reference["inputs/queries"].tobytes())
    model = loaded(published, text="bow")
    expected = reference["outputs/queries_bow"].copy()
    [row] = [number for number, text in enumerate(queries) if "<image>" in text]
    assert expected[row, kept == PUBLISHED - 1] == 1
    expected[row, kept == PUBLISHED - 1] = 0
    np.testing.assert_array_equal(model.query.weights(queries).toarray()[:, kept], expected)
    assert model.query.binary and not loaded(published).query.binary


# ---- layouts


def test_a_folder_of_sentence_transformers_has_its_own_table_and_code_that_is_not_run(export, tmp_path):
    folder = add_modules(write_export(tmp_path / "export"), np.arange(128, dtype=np.float32))
    for name in ("modeling_vsplade", "modeling_st_vsplade"):
        (folder / f"{name}.py").write_text("raise SystemExit('run')")
    changed(folder, "config.json", auto_map={"AutoModelForMaskedLM": "modeling_vsplade.VSPLADEForMaskedLM"})
    page, model = Image.new("RGB", (60, 40), "red"), loaded(folder)
    vector, terms = model.query.weights(["dog dog horse"]).toarray()[0], model.vocabulary.dimension
    expected = {"dog": 2 * terms["dog"], "horse": terms["horse"], "\u0120": 2 * terms["\u0120"]}
    assert {term: vector[number] for term, number in terms.items() if vector[number]} == expected
    plain = loaded(export)
    np.testing.assert_array_equal(model.document.dense_weights([page]), plain.document.dense_weights([page]))
    again = loaded(folder, table_activation="softplus").query.weights(["dog dog horse"])
    assert (again != plain.query.weights(["dog dog horse"])).nnz == 0
    save_pretrained(model, tmp_path / "saved")
    saved, plain = (one.query.weights(["dog dog horse"]) for one in (loaded(tmp_path / "saved"), model))
    assert (saved != plain).nnz == 0
    save_file({"weight": np.ones(127, np.float32)}, folder / "query_0_VSPLADEStaticEmbedding/model.safetensors")
    with pytest.raises(CheckpointError, match="expected a weight for each of 128 tokens"):
        loaded(folder)


def test_a_configuration_that_only_names_its_networks_is_the_published_one(tmp_path):
    """Of which this file has other shapes; bags need no table."""
    folder = write_export(tmp_path / "export")
    changed(folder, "config.json", text_config={"text_model_name": "jhu-clsp/ettin-encoder-150m"})
    with pytest.raises(CheckpointError, match=r"missing: encoder\.encoder\.model\.text_model\.layers\.10"):
        loaded(folder)
    folder = write_export(tmp_path / "bow")
    with_weights(folder, **{f"query_encoder__{key}": None for key in ("projection__weight", "projection__bias")})
    with pytest.raises(CheckpointError, match=r"missing: query_encoder\.projection\.bias"):
        loaded(folder)
    assert loaded(folder, text="bow").query.weights(["a dog"]).nnz == 3


def test_what_siglip_and_modernbert_leave_unused_is_ignored(export, tmp_path):
    folder, page = write_export(tmp_path / "export"), Image.new("RGB", (60, 40), "red")
    prefix = "encoder__encoder__model"
    unused = ("vision_model__head__probe", "text_model__layers__0__attn_norm__weight")
    with_weights(folder, **{f"{prefix}__{key}": np.ones((1, 1, 16), np.float32) for key in unused})
    found, expected = (loaded(place).document.dense_weights([page]) for place in (folder, export))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "entries", "error"),
    [
        ("config.json", {"model_type": "siglip"}, "a 'siglip' model, expected 'modernvbert'"),
        ("config.json", {"image_token_id": 5}, "<image> at 167; the model has 128 to 168, <image> at 5"),
        ("config.json", {"pixel_shuffle_factor": 3}, "tiles of 32 pixels are no whole number of cells of 12"),
        ("config.json", {"pixel_shuffle_factor": True}, "pixel_shuffle_factor is True, expected a positive number"),
        ("preprocessor_config.json", {"do_image_splitting": False}, "without do_image_splitting; expected the tiles"),
        ("preprocessor_config.json", {"max_image_size": {"longest_edge": 64}}, "tiles of 64 .* reads tiles of 32"),
        ("preprocessor_config.json", {"image_std": [0.5, 0, 0.5]}, r"image_std \[0.5, 0, 0.5\]"),
        ("processor_config.json", {"chat_template": "{{ 1 / 0 }}"}, "its chat template has not the form of Idefics3's"),
    ],
)
def test_other_folders_are_refused_with_one_line(tmp_path, name, entries, error):
    folder = write_export(tmp_path / "export")
    (folder / "chat_template.jinja").unlink()
    changed(folder, name, **entries)
    with pytest.raises(CheckpointError, match=error):
        loaded(folder)


def test_a_transformers_without_modernvbert_says_so(export, monkeypatch, tmp_path):
    monkeypatch.setattr(v_splade, "find_package", lambda name: tmp_path)
    with pytest.raises(InstallationError, match=r"no ModernVBERT.* pip install 'transformers>=5\.3'"):
        loaded(export)


def test_the_names_are_those_of_as_many_numbers_as_the_hub_counts():
    """330,010,817 of naver/v-splade-quality: 7,087,104 are SigLIP's pooling (a probe, attention, a norm and an MLP)."""
    shape = PageShape.read({}, "config.json")
    shapes = [shape for name, shape in list_shapes(shape, 50368).items() if "lora" not in name]
    pooling = 768 + 4 * (768 * 768 + 768) + 2 * 768 + (768 * 3072 + 3072) + (3072 * 768 + 768)
    assert sum(map(prod, shapes)) + pooling == 330_010_817


def test_terms_have_no_white_space(export):
    terms = loaded(export).vocabulary.terms
    assert terms[6] == "\u2423\u2423" and loaded(export).query.weights(["a  dog"]).nnz == 3


# ---- the prompt


def test_the_prompt_is_what_the_chat_template_makes_of_an_image(tmp_path):
    """Transformers renders the same; here no template runs."""
    folder, prompts = write_export(tmp_path / "export"), []

    def prompt(**options) -> str:
        return loaded(folder, **options).document.composition.backbone.prompt

    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ""}]}]
    for template in (TEMPLATE, f"<|begin_of_text|>{TEMPLATE}"):
        (folder / "chat_template.jinja").write_text(template)
        render = AutoTokenizer.from_pretrained(str(folder)).apply_chat_template
        assert prompt() == render(messages, chat_template=template, add_generation_prompt=True, tokenize=False)
        prompts.append(prompt())
    (folder / "chat_template.jinja").unlink()
    assert prompts == [prompt(), f"<|begin_of_text|>{prompt()}"]
    changed(folder, "processor_config.json", chat_template=f"<s>{TEMPLATE}")
    assert prompt() == f"<s>{v_splade.PROMPT}" and prompt(prompt="page <image>") == "page <image>"
    with pytest.raises(UsageError, match="expected <image> once"):
        prompt(prompt="page")


def test_a_template_is_part_of_the_digest(tmp_path):
    folder = write_export(tmp_path / "export")
    before = loaded(folder).checkpoint_digest
    (folder / "chat_template.jinja").write_text(f"<s>{TEMPLATE}")
    assert loaded(folder).checkpoint_digest != before
    # Of a folder without a processor it is not: no encoder read it there, and digests stay.
    assert list_model_files(["chat_template.jinja", "config.json"]) == ["config.json"]


# ---- queries


def test_a_query_loads_no_network(export, monkeypatch):
    calls: list[str] = []
    load = v_splade.load_network
    monkeypatch.setattr(v_splade, "load_network", lambda *given: calls.append("network") or load(*given))
    model = loaded(export)
    assert model.encode_query(["annual report", "dogs"]).nnz == 4 and calls == []
    model.encode_document([Image.new("RGB", (40, 30))])
    model.encode_document([Image.new("RGB", (40, 30))])
    assert calls == ["network"]


# ---- tiles


@pytest.mark.parametrize(
    ("size", "resized", "enlarged"),
    [
        ((1000, 500), (2048, 1024), (2048, 1024)),
        ((1, 5000), (1, 2048), (512, 2048)),
        ((1700, 2200), (1582, 2048), (2048, 2048)),
        ((2200, 1000), (2048, 930), (2048, 1024)),
        ((3000, 1001), (2048, 684), (2048, 1024)),
    ],
)
def test_sizes_of_pages(size, resized, enlarged):
    tiles = Tiles(512)
    assert (tiles.fit(size), tiles.round_up(resized)) == (resized, enlarged)


def test_tiles_lie_row_by_row_before_the_whole():
    """A page of six colours, three in a row."""
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[9, 9, 9], [90, 90, 90], [200, 200, 200]]], np.uint8)
    page = Tiles(8, longest=24, resample=0).cut(Image.fromarray(colours.repeat(8, 0).repeat(8, 1)))
    assert (page.rows, page.columns, page.tiles.shape) == (2, 3, (7, 8, 8, 3))
    np.testing.assert_array_equal(page.tiles[:6], np.broadcast_to(colours.reshape(6, 1, 1, 3), (6, 8, 8, 3)))
    found, expected = ({tuple(c) for c in one.reshape(-1, 3).tolist()} for one in (page.tiles[6], colours))
    assert found == expected
    alone = Tiles(24, longest=24).cut(Image.new("RGB", (10, 7), "red"))
    assert (alone.rows, alone.columns, alone.tiles.shape) == (0, 0, (1, 24, 24, 3))


def test_pages_of_more_tokens_than_positions_are_refused(tmp_path):
    folder = write_export(tmp_path / "export")
    changed(folder, "preprocessor_config.json", size={"longest_edge": 2048})
    with pytest.raises(CheckpointError, match="a page of 64 x 64 tiles and the prompt have more tokens than the 7999"):
        loaded(folder).encode_document([Image.new("RGB", (9, 9))])


@settings(max_examples=12)
@given(width=st.integers(1, 90), height=st.integers(1, 90), longest=st.sampled_from([32, 64, 96]))
def test_tiles_are_those_of_transformers(width, height, longest):
    """Its image processor with Pillow, which the authors' code runs."""
    module = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
    half, sizes = [0.5] * 3, {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": 16}}
    processor = module.Idefics3ImageProcessorPil(image_mean=half, image_std=half, **sizes)
    image = Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))
    expected = processor([image], return_tensors="np", return_row_col_info=True)
    page = Tiles(16, longest=longest).cut(image)
    assert ([[page.rows]], [[page.columns]]) == (expected["rows"], expected["cols"])
    found = Tiles(16).normalise(torch.from_numpy(page.tiles))
    np.testing.assert_allclose(found, expected["pixel_values"][0], atol=1e-6)


# ---- maps


def test_the_cells_of_a_page_have_its_shape(export):
    """States that are the numbers of their positions come back in the order in which the page shows them."""
    tower = loaded(export).document
    network = tower.composition.backbone
    layout = torch.tensor([2, 3])
    ids = network.tokenise(layout)[0]
    numbers = torch.full((1, len(ids), 1), -1.0)
    numbers[0, ids == network.model.config.image_token_id, 0] = torch.arange(7.0 * 4)
    grid = network.select_cells(numbers, layout)[0, :, :, 0].int()
    upper, lower = [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]], [[12, 13, 16, 17, 20, 21], [14, 15, 18, 19, 22, 23]]
    assert grid.tolist() == [*upper, *lower]
    numbers = torch.zeros(1, len(network.tokenise(torch.tensor([0, 0]))[0]), 1)
    assert network.select_cells(numbers, torch.tensor([0, 0])).shape == (1, 2, 2, 1)


def test_maps_of_pages(export):
    model = loaded(export)
    wide, tall = Image.new("RGB", (80, 40), "white"), Image.new("RGB", (20, 80), "white")
    assert localise(model, [wide], "annual report").shape == (1, 4, 8)
    dims = [model.vocabulary.dimension["dog"]]
    logits = compute_patch_logits(model.document, [tall], dims)
    assert logits.shape == (1, 8, 2, 1)
    # The text of the prompt and the whole image count too, so that a weight is at least the largest of the map.
    activation = np.log1p(max(0, logits.max()))
    assert model.document.dense_weights([tall])[0, dims[0]] >= activation * (1 - 1e-6)
    with pytest.raises(UsageError, match="take the images one at a time"):
        localise(model, [wide, tall], "dog")
