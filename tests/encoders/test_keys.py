"""Weights that do not fit: every key that is missing, unexpected or of another shape is named, whatever the layout."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import SHARED
from safetensors.torch import save_file
from tiny_encoders import TINY_ENCODERS, Tiny, copied, pytest_generate_tests, weight_files  # noqa: F401

from lexvl_anserini.encoders.checkpoints.clip_layout import BLOCK, TEXT, VISION, convert_names, name_in_file
from lexvl_anserini.encoders.checkpoints.weights import read_contents
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError

# What a layout carries for training only, or an encoder for another vector than its own, and that may lack or differ.
UNUSED = re.compile(
    r"(.*\.)?(position_ids|pooler\..*|temp|logit_scale.*|cls\.seq_relationship.*|itm_head\..*)"
    r"|.*(_m\.|crossattention|relative_position_index|decoder_heads).*|.*queue.*|(.*\.)?decoder\.(weight|bias)"
    r"|encode_text\.text_projection.*|.*\.predictions\.bias|lm_head\..*|text_decoder\..*"
)
# Keys whose shapes say how large the model is; the error for a tokenizer or a codebook of another size says so.
SIZES = re.compile(r".*(embedding|conv1|space_dict|vocab_projector|proj|bias_table|predictions|cls|decoder)(s?\..*)?")

# Of each checkpoint, so that the suite stays quick; spread over its keys.
TRIED = 3


class Damaged:
    """A checkpoint whose weights are written anew with changes."""

    def __init__(self, tiny: Tiny, located: Any, folder: Path):
        self.tiny = tiny
        checkpoint, self.options = located(tiny)
        self.path = copied(Path(checkpoint), folder / "copy")
        (self.file,) = weight_files(self.path)
        self.contents = read_contents(self.file)

    def told(self, weights: dict[str, torch.Tensor]) -> str | None:
        """What loading these weights is refused with, all keys of it; None if they are loaded."""
        if self.file.suffix == ".safetensors":
            save_file(weights, self.file, {"format": "pt"})
        else:
            torch.save({**self.contents.extra, "state_dict": weights}, self.file)
        try:
            load_encoder(self.tiny.encoder, str(self.path), device="cpu", **self.options)
        except CheckpointError as error:
            assert "\n" not in str(error)
            return "\n".join([str(error), *getattr(error, "__notes__", [])])
        return None

    def keys(self, without: re.Pattern[str]) -> list[str]:
        """A few keys that are used, one of each kind."""
        kinds: dict[str, str] = {}
        for key in sorted(self.contents.weights):  # the first layers: ALBEF's last ones take no part
            if not without.fullmatch(key):
                kinds.setdefault(re.sub(r"\d+", "#", key), key)
        keys = list(kinds.values())
        return keys[:: max(1, len(keys) // TRIED)][:TRIED]


@pytest.fixture
def damaged(request, located, tmp_path) -> Damaged:
    return Damaged(request.param, located, tmp_path)


def own_name(key: str) -> str:
    """The end of a key, which errors name after a prefix has been told."""
    return ".".join(key.split(".")[-2:])


# Errors give their keys by the names of Hugging Face's layout, into which LAVIS' are translated.
TRANSLATED = ("albef", "blip")


def test_missing_and_misshaped_keys_are_named(damaged):
    weights = dict(damaged.contents.weights)
    assert damaged.told(weights) is None, "untouched weights are loaded"
    translated = damaged.tiny.encoder in TRANSLATED
    for key in damaged.keys(UNUSED):
        told = damaged.told({name: value for name, value in weights.items() if name != key})
        assert told is not None, f"{key} may be missing"
        assert translated or own_name(key) in told or key.split(".")[0] in told, told
    for key in damaged.keys(re.compile(f"{UNUSED.pattern}|{SIZES.pattern}")):
        told = damaged.told({**weights, key: torch.cat([weights[key], weights[key]])})
        assert told is not None, f"{key} may be of another shape"
        assert "expected" in told and (translated or own_name(key) in told), told


def test_unexpected_keys_are_named(damaged):
    weights = damaged.contents.weights
    used = damaged.keys(UNUSED)
    for prefix in ("", *(f"{key.rpartition('.')[0]}." for key in used if "." in key)):
        told = damaged.told({**weights, f"{prefix}stray_key": torch.zeros(2)})
        assert told is not None and "stray_key" in told, prefix


def test_scalars_of_another_shape_are_named(located, tmp_path):
    if not SHARED.is_dir():
        pytest.skip("the shared evaluation data does not lie beside the checkout")
    damaged = Damaged(TINY_ENCODERS["fdt weights"], located, tmp_path)
    told = damaged.told({**damaged.contents.weights, "logit_scale": torch.zeros(2)})
    assert told is not None and "logit_scale [2], expected []" in told


def test_names_of_openais_layouts_and_back():
    inside = [f"transformer.resblocks.1.{module}.{kind}" for module in BLOCK for kind in ("weight", "bias")]
    packed = [f"transformer.resblocks.1.attn.in_proj_{kind}" for kind in ("weight", "bias")]
    towers = {"visual.": [*VISION, *inside, *packed], "": [*TEXT, *inside, *packed]}
    for declip in (False, True):
        projections = ["visual.proj", *(["encode_text.text_projection.bias"] if declip else ["text_projection"])]
        texts = "encode_text." if declip else ""
        keys = [f"{prefix or texts}{key}" for prefix, own in towers.items() for key in own]
        for key in (*keys, *projections):
            context = {"encode_text.x": torch.zeros(1)} if declip else {}
            names = set(convert_names({key: torch.zeros(3, 2), **context}, "x")) - set(convert_names(context, "x"))
            assert {name_in_file(name, declip) for name in names} == {key}, names
    assert name_in_file("somewhere.else", declip=True) == "somewhere.else"


def test_towers_of_the_dense_twin_give_the_same_dimensions(located, tmp_path):
    damaged = Damaged(TINY_ENCODERS["dense-crossmodal"], located, tmp_path)
    weights = damaged.contents.weights
    more = {"encoder_p.proj": torch.zeros(9, 24)}
    assert "encoder_q.proj gives 8 dimensions, encoder_p.proj 9" in str(damaged.told({**weights, **more}))
    wide = {"encoder_p.proj": torch.zeros(8, 25)}
    assert "encoder_p.proj [8, 25], expected [dimensions, 24]" in str(damaged.told({**weights, **wide}))
