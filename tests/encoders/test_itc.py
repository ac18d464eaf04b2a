"""BLIP and ALBEF against LAVIS and transformers (shared golden data), and what a small model of our own shows."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.checkpoints.itc_layout import ItcModel, fit_positions, load_itc
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.features import clean_caption
from lexvl_anserini.ground.errors import CheckpointError, UsageError

TEXTS = ("a man riding a horse on a beach", "", "A dog!", "two dogs and a frisbee " * 20)


# ---- golden: LAVIS

FILES = {"blip": "lavis_checkpoint.pth", "albef": "lavis_checkpoint.pt"}
# The tiny golden models have two heads of 16.
TINY = {"head_width": 16, "device": "cpu"}


@pytest.fixture(scope="module", params=FILES)
def lavis(request, shared):
    """Family, its folder, what its texts and images are, and what LAVIS made of them."""
    folder = shared / "golden" / request.param
    about = json.loads((folder / "lavis_meta.json").read_text())
    return request.param, folder, about, np.load(folder / "lavis_outputs.npz")


def load_lavis(shared, family, **options):
    path, tokenizer = shared / "golden" / family / FILES[family], shared / "golden/common/tokenizer_bert_tiny"
    return load_encoder(family, str(path), tokenizer=str(tokenizer), **{**TINY, **options})


@pytest.mark.shared
def test_states_captions_and_pixels_of_lavis(shared, lavis):
    family, folder, about, arrays = lavis
    model = load_lavis(shared, family)
    assert [clean_caption(text) for text in about["raw_texts"]] == about["cleaned_texts"]
    rows = [list(ids[mask == 1]) for ids, mask in zip(arrays["input_ids_35"], arrays["attention_mask_35"], strict=True)]
    assert model.query.items.reader([clean_caption(text) for text in about["raw_texts"]]) == rows
    images = [str(shared / "golden/common/images" / name) for name in about["images"]]
    for batch in model.document.items.batches(images, 5):
        # Resizing may round half a grey level the other way.
        np.testing.assert_allclose(batch.inputs[0].numpy(), arrays["pixel_values_48"], atol=1 / 255 / 0.26)
    loaded = load_itc(find_checkpoint(str(folder / FILES[family])), torch.device("cpu"), head_width=16)
    ids, mask = (torch.from_numpy(arrays[f"{name}_35"]) for name in ("input_ids", "attention_mask"))
    with torch.inference_mode():
        states = loaded.model.text_states(ids, mask).numpy()
        seen = loaded.model.image_states(torch.from_numpy(arrays["pixel_values_48"])).numpy()
    np.testing.assert_allclose(states, arrays["text_cls_hidden"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(seen, arrays["image_cls_hidden"], atol=1e-5, rtol=1e-5)


@pytest.mark.shared
def test_position_embeddings_for_larger_pictures(shared):
    arrays = np.load(shared / "golden/albef/pos_embed_interpolation_3x3_to_6x6.npz")
    before, after = torch.from_numpy(arrays["before"]), arrays["after"]
    sides = [round((rows - 1) ** 0.5) for rows in (before.shape[1], after.shape[1])]
    np.testing.assert_allclose(fit_positions(before, *sides).numpy(), after, atol=1e-6)
    images = [str(shared / "golden/common/images/img0.png")]
    large = load_lavis(shared, "albef", resolution=96)
    assert large.document.items.pixels.resolution == 96 and large.document.vectors(images).shape[1] == 16
    with pytest.raises(UsageError, match="resolution 100: expected a multiple of the patch size 16"):
        load_lavis(shared, "albef", resolution=100)


# ---- golden: transformers


@pytest.mark.shared
def test_cleaned_captions_are_an_option_of_transformers_folders(shared):
    plain, cleaned = (
        load_encoder("blip", str(shared / "golden/blip/ckpt_v5"), device="cpu", clean=clean) for clean in (None, True)
    )
    assert np.abs(plain.query.vectors(["A dog!"]) - plain.query.vectors(["a dog"])).max() > 1e-3
    assert (cleaned.query.vectors(["A dog!"]) == plain.query.vectors(["a dog"])).all()


# ---- a small model of our own


@pytest.fixture(scope="module")
def small(tmp_path_factory, golden):
    """One model in three layouts: a Hugging Face folder, LAVIS' file, and that of the original ALBEF."""
    from transformers import BlipConfig

    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("blip")
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    text = dict(zip(names, (32, 48, 3, 2), strict=True)) | {"vocab_size": 2000, "max_position_embeddings": 40}
    text |= dict.fromkeys(("bos_token_id", "eos_token_id", "sep_token_id"), None) | {"is_decoder": False}
    vision = dict(zip(names, (48, 64, 2, 3), strict=True)) | {"image_size": 32, "layer_norm_eps": 1e-6}
    config = BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=8)
    model = ItcModel(config.vision_config, config.text_config, 8)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.25)
    transformers = {key: value.detach().contiguous() for key, value in model.state_dict().items()}
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(golden / "splade/ckpt_bert" / name, folder / name)
    config.save_pretrained(folder)
    save_file(transformers, folder / "model.safetensors", {"format": "pt"})
    lavis = tmp_path_factory.mktemp("lavis")
    crossing = {f"text_encoder.encoder.layer.{n}.crossattention.self.query.weight": torch.zeros(1) for n in range(3)}
    extra = {"temp": torch.tensor(0.07), "itm_head.bias": torch.zeros(2), "image_queue": torch.zeros(8, 4)}
    both = {**as_lavis(transformers), **extra}
    seen = {key: value for key, value in both.items() if key.startswith("visual_")}
    momentum = {key.replace("encoder.", "encoder_m.", 1): value for key, value in seen.items()}
    torch.save({"model": {**both, **crossing, **momentum}}, lavis / "blip.pth")
    fused = {key: value for key, value in crossing.items() if ".layer.2." in key}
    authors = {key.replace("text_encoder.", "text_encoder.bert."): value for key, value in {**both, **fused}.items()}
    torch.save({"model": {**authors, "text_encoder.cls.predictions.bias": torch.zeros(2000)}}, lavis / "ALBEF.pth")
    torch.save({"model": both}, lavis / "without.pth")
    return folder, lavis


def as_lavis(weights):
    """Hugging Face's names as LAVIS'."""
    names = {
        "vision_model.embeddings.class_embedding": "visual_encoder.cls_token",
        "vision_model.embeddings.position_embedding": "visual_encoder.pos_embed",
        "vision_model.embeddings.patch_embedding.": "visual_encoder.patch_embed.proj.",
        "vision_model.post_layernorm.": "visual_encoder.norm.",
        "vision_model.encoder.layers.": "visual_encoder.blocks.",
    }
    inside = {".layer_norm": ".norm", ".self_attn.projection.": ".attn.proj.", ".self_attn.qkv.": ".attn.qkv."}
    renamed = {}
    for key, value in weights.items():
        for theirs, lavis in (names | inside).items() if key.startswith("vision_model.") else ():
            key = key.replace(theirs, lavis)
        renamed[key] = value
    return renamed


def load_small(small, name="blip", file=None, **options):
    folder, lavis = small
    where = folder if file is None else lavis / file
    return load_encoder(name, str(where), tokenizer=str(folder), **{**TINY, **options})


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(9)
    return [Image.fromarray(rng.integers(0, 256, (20 + n, 70 - 9 * n, 3), dtype=np.uint8)) for n in range(5)]


def test_layouts_agree(small, drawn):
    folder, file = load_small(small, clean=True), load_small(small, file="blip.pth")
    np.testing.assert_allclose(folder.query.vectors(TEXTS), file.query.vectors(TEXTS), atol=1e-6)
    np.testing.assert_allclose(folder.document.vectors(drawn), file.document.vectors(drawn), atol=1e-6)


def test_the_original_albef_reads_texts_below_its_fusion_layer(small, drawn):
    authors, lavis = load_small(small, "albef", "ALBEF.pth"), load_small(small, file="blip.pth")
    assert (authors.document.vectors(drawn) == lavis.document.vectors(drawn)).all()
    assert np.abs(authors.query.vectors(TEXTS) - lavis.query.vectors(TEXTS)).max() > 1e-3
    told = load_small(small, "albef", "without.pth", fusion_layer=2)
    assert (told.query.vectors(TEXTS) == authors.query.vectors(TEXTS)).all()
    with pytest.raises(CheckpointError, match="no text layer has cross-attention"):
        load_small(small, "albef", "without.pth")
    with pytest.raises(UsageError, match="fusion_layer 9: the text encoder has 3 layers"):
        load_small(small, "albef", "without.pth", fusion_layer=9)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"text_proj.weight": None}, "no text_proj.weight; a matching head .ITM. gives neither"),
        ({"text_proj.weight": None, "itm_head.bias": None}, "no text_proj.weight; not a retrieval model"),
        ({"visual_encoder.pos_embed": torch.zeros(1, 6, 48)}, "6 position embeddings, expected"),
        ({"text_encoder.embeddings.word_embeddings.weight": None}, "no text_encoder.embeddings.word_emb"),
    ],
)
def test_weights_that_do_not_fit(small, tmp_path, changes, message):
    folder, lavis = small
    weights = torch.load(lavis / "blip.pth", weights_only=True)["model"] | changes
    weights = {key: value for key, value in weights.items() if value is not None}
    torch.save({"model": weights}, tmp_path / "changed.pth")
    with pytest.raises(CheckpointError, match=message):
        load_encoder("blip", str(tmp_path / "changed.pth"), tokenizer=str(folder), **TINY)


def test_what_is_not_blip_is_refused(golden, small, tmp_path):
    from transformers import BlipConfig, BlipModel

    # Its projections follow a pooler that BLIP does not have.
    BlipModel(BlipConfig.from_pretrained(small[0])).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="BlipModel, whose vectors are not") as raised:
        load_encoder("blip", str(tmp_path), tokenizer=str(small[0]), **TINY)
    assert "\n" not in str(raised.value)
    with pytest.raises(CheckpointError, match="model type 'bert'; expected a BLIP folder"):
        load_encoder("blip", str(golden / "splade/ckpt_bert"), device="cpu")
    with pytest.raises(CheckpointError, match="the weights are of BLIP"):
        load_small(small, "albef")
    with pytest.raises(UsageError, match="head_width 64: does not divide the width"):
        load_small(small, file="blip.pth", head_width=64)


def test_tokenizers(small, tmp_path):
    """A weight file has none of its own, and the hub is away."""
    path = Path(shutil.copyfile(small[1] / "blip.pth", tmp_path / "blip.pth"))
    with pytest.raises(CheckpointError, match="bert-base-uncased.*a folder that has the tokenizer of .* as tokenizer"):
        load_encoder("blip", str(path), **TINY)
    shutil.copyfile(small[0] / "tokenizer.json", tmp_path / "tokenizer.json")
    shutil.copyfile(small[0] / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    assert load_encoder("blip", str(path), **TINY).query.vectors(["a dog"]).shape == (1, 8)
    with pytest.raises(UsageError, match="reads at least 3 and at most 40 tokens"):
        load_small(small, max_length=41)
