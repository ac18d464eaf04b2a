"""UEmbed against MTEB's class, its prompt, its pictures, and folders that it refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from declared import GOLDEN
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from lexvl_anserini.encoders.checkpoints.find import list_model_files
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, InstallationError, UsageError
from lexvl_plugins.models import uembed
from lexvl_plugins.models.patches import Patches
from tests.plugins.models.model_folders import BODY, TAIL, write_uembed
from tests.plugins.models.write_golden import INSTRUCTION, RESIZED, WHOLE


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """What MTEB's class makes of texts and pictures."""
    return dict(np.load(GOLDEN / "families/uembed.npz"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder that the reference read."""
    return write_uembed(tmp_path_factory.mktemp("uembed") / "model")


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def load(folder, **options):
    return load_encoder("uembed", str(folder), device="cpu", **options)


# ---- against MTEB's class


def test_texts_with_and_without_an_instruction(reference, folder):
    texts = json.loads(reference["inputs/texts"].tobytes())
    model = load(folder, direction="text-to-text", instruction=INSTRUCTION)
    np.testing.assert_allclose(model.document.weights(texts).toarray(), reference["outputs/texts"], atol=1e-5)
    np.testing.assert_allclose(model.query.weights(texts).toarray(), reference["outputs/queries"], atol=1e-5)
    assert (reference["outputs/texts"] != reference["outputs/queries"]).any(axis=1).all()


def test_pictures_of_many_shapes(reference, folder):
    """Resized ones differ by the filter: Pillow's here and in the authors' code, torchvision's in MTEB's."""
    tower = load(folder).document
    for width, height in (*WHOLE, *RESIZED):
        picture = Image.fromarray(reference[f"inputs/{width}x{height}"])
        expected = reference[f"outputs/{width}x{height}"]
        tolerance = 1e-5 if (width, height) in WHOLE else 5e-3
        np.testing.assert_allclose(tower.dense_weights([picture])[0], expected, atol=tolerance)
        assert (expected > 0).any()
    outputs = np.stack([reference[f"outputs/{width}x{height}"] for width, height in WHOLE])
    assert len(np.unique(outputs.round(3), axis=0)) == len(WHOLE)


# ---- the prompt


ANSWERS = {
    TAIL: "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    TAIL.replace("is true", "is false").replace("<think>\\n'", "<think>\\n\\n'", 1): (
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n": "<|im_start|>assistant\n",
    "{%- if add_generation_prompt %}{{- 'x' }}{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- 'y' }}{%- endif %}{%- endif %}": "x",
}


@pytest.mark.parametrize("tail", ANSWERS)
def test_the_prompt_is_what_the_chat_template_makes_of_a_text(copy, tail):
    """Transformers renders the same; here no template runs."""
    (copy / "chat_template.jinja").write_text(BODY + tail)
    render = AutoTokenizer.from_pretrained(str(copy)).apply_chat_template
    content = [[{"type": "text", "text": text}] for text in ("{instruction}", "{input}")]
    messages = [{"role": role, "content": part} for role, part in zip(("system", "user"), content, strict=True)]
    expected = render(messages, add_generation_prompt=True, tokenize=False)
    assert uembed.read_prompt(copy) == expected and expected.endswith(ANSWERS[tail])


def test_the_prompt_may_be_given(copy):
    (copy / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(CheckpointError, match="has not the form of Qwen3.5's chat template; give the option prompt"):
        load(copy)
    [row] = load(copy, prompt="{instruction} {input}!").query.reader(["  a dog "])
    assert AutoTokenizer.from_pretrained(str(copy)).decode(row[:-3]) == "Represent the user's input. a dog!"
    with pytest.raises(UsageError, match="expected {input} once"):
        load(copy, prompt="{instruction}")


def test_an_instruction_is_a_sentence():
    assert [uembed.end_sentence(text) for text in ("Find pages", " Why? ", "")] == [
        "Find pages.",
        "Why?",
        "Represent the user's input.",
    ]


# ---- pictures


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((64, 96), (64, 96)),
        ((40, 30), (96, 64)),  # 1 cell is too few: sqrt(4096 / 1200) = 1.85 times as large, rounded up
        ((1, 300), (32, 1120)),  # refused by the published code
        # 94 x 62 cells are too many: 1,800 have 1,663 x 1,109 pixels, rounded down
        ((3000, 2000), (1632, 1088)),
    ],
)
def test_pictures_have_whole_cells(size, expected):
    assert Patches(16, 2, 2).fit(*size) == expected


def test_a_picture_needs_room(folder):
    with pytest.raises(UsageError, match="an image of 16 cells and the prompt have more than the 40 tokens"):
        load(folder, max_length=40).encode_document([Image.new("RGB", (128, 128))])


# ---- files


def test_heads_and_template_are_part_of_the_digest(copy):
    names = ["chat_template.jinja", "config.json", "model.safetensors", "sparse_info.json", "sparse_weights.pt", "x.pt"]
    assert list_model_files(names) == names[:-1]
    assert list_model_files(["chat_template.jinja", "config.json"]) == ["config.json"]
    before = load(copy).checkpoint_digest
    with (copy / "chat_template.jinja").open("a") as file:
        file.write("\n")
    assert load(copy).checkpoint_digest != before


def test_names_of_the_authors_own_class_and_weights_that_it_trains_with(reference, copy):
    """`Qwen3_5ForEmbedding` has its network below `model`; further heads of the language model are not read."""
    weights = {f"model.{name}": value for name, value in load_file(copy / "model.safetensors").items()}
    further = {"lm_head.weight": torch.zeros(2, 2), "mtp.norm.weight": torch.zeros(2)}
    save_file(weights | further, copy / "model.safetensors", {"format": "pt"})
    texts = json.loads(reference["inputs/texts"].tobytes())
    model = load(copy, direction="text-to-text")
    np.testing.assert_allclose(model.document.weights(texts).toarray(), reference["outputs/texts"], atol=1e-5)


def test_terms_have_no_names(folder):
    terms = load(folder).vocabulary.terms
    assert (terms[0], terms[-1], len(terms)) == ("uembed000000", "uembed000063", 64)


def changed(heads: dict, **changes) -> dict:
    return {**heads, **changes}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda heads: {"sparse_lm_heads": heads["sparse_lm_heads"]}, r"missing: sparse_bias\.0, sparse_bias\.1"),
        (lambda heads: changed(heads, sparse_bias=heads["sparse_bias"][:2]), r"missing: sparse_bias\.2"),
        (
            lambda heads: changed(heads, sparse_bias=[*heads["sparse_bias"], torch.ones(3)]),
            r"unexpected: sparse_bias\.3",
        ),
        (
            lambda heads: changed(heads, sparse_bias=heads["sparse_bias"][::-1]),
            r"mis-shaped: sparse_lm_heads\.0 \[20, 32\] with a bias \[14\], expected \[rows, 32\] with \[rows\]",
        ),
    ],
)
def test_heads_that_do_not_fit_are_named(copy, change, error):
    path = copy / "sparse_weights.pt"
    torch.save(change(torch.load(path, weights_only=True)), path)
    with pytest.raises(CheckpointError, match=error):
        load(copy)


def test_other_folders_are_refused_with_one_line(copy, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="adds 2 tokens to a text, expected 3 as in sparse_info.json; download"):
        load(write_uembed(tmp_path / "older", ends=2))
    for entries, error in (
        ({"num_eos_tokens": True}, "num_eos_tokens is True, expected 1"),
        ({}, "is None, expected 1"),
    ):
        (copy / "sparse_info.json").write_text(json.dumps(entries))
        with pytest.raises(CheckpointError, match=error):
            load(copy)
    for name in ("sparse_weights.pt", "sparse_info.json"):
        (copy / name).unlink()
        with pytest.raises(CheckpointError, match=f"no {name}, which UEmbed's sparse vectors need; download the whole"):
            load(copy)
    (copy / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError, match="a 'qwen3' model, expected 'qwen3_5' of UEmbed"):
        load(copy)
    monkeypatch.setattr(uembed, "find_package", lambda name: tmp_path)
    with pytest.raises(InstallationError, match=r"no Qwen3\.5, which uembed needs; pip install 'transformers>=5\.4'"):
        load(copy)
