"""A pair over FDT's own networks in the layout of the published code's runs."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lexvl_anserini.encoders.checkpoints import swin_layout
from lexvl_anserini.encoders.checkpoints.clip_layout import MERGES, name_in_file, stored
from lexvl_anserini.encoders.families.fdt import CODEBOOK, QUERY_MAPS
from lexvl_anserini.ground.files import write_json
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.fdt_networks import merges_of
from lexvl_plugins.train.model_settings import (
    BpeTextSettings,
    ModelSettings,
    PretrainedImage,
    SwinSettings,
)
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import write_weights

# The name of the merges in a checkpoint.
MERGES_FILE = MERGES.removesuffix(".gz")


def save_run(pair: TowerPair, recipe: Recipe, model: ModelSettings, folder: Path) -> None:
    """Writes a pair into an empty folder: config.json, model.safetensors, and the merges of its tokens."""
    assert isinstance(model.text, BpeTextSettings)
    sides: tuple[Any, Any] = pair.encoder_q, pair.encoder_p
    (texts, images), codebook = sides, sides[1].codebook
    swin = isinstance(model.image, SwinSettings)
    of_texts = partial(name_in_file, declip=True)
    of_images = (lambda key: f"visual.{swin_layout.name_in_file(key)}") if swin else of_texts
    state = {
        CODEBOOK: codebook.rows,
        "logit_scale": -pair.log_temperature.reshape(1),
        **stored(texts.network.state_dict(), of_texts),
        **stored(images.network.model.state_dict(), of_images),
        **{f"{QUERY_MAPS['text']}{key}": value for key, value in texts.head.state_dict().items()},
        **{f"{QUERY_MAPS['image']}{key}": value for key, value in images.head.state_dict().items()},
    }
    if not swin:
        state["visual.proj"] = state["visual.proj"].T  # it multiplies from the left
    write_weights(state, folder, getattr(torch, recipe.weights))
    content = merges_of(model.text).read_bytes()
    # Without compression, as other texts that belong to a model.
    (folder / MERGES_FILE).write_bytes(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    write_json(
        folder / "config.json", {"model": {"type": "clip_fdt", "kwargs": kwargs_of(model, codebook.temperature)}}
    )


def kwargs_of(model: ModelSettings, temperature: float) -> dict[str, Any]:
    """The entries of config.json, with the temperature T that the published code computes from its iteration."""
    assert isinstance(model.text, BpeTextSettings) and not isinstance(model.image, PretrainedImage)
    text, image, codebook = model.text, model.image, model.codebook
    settings = image.model_dump(mode="json", exclude={"resolution", "stem", "window"})
    width = image.width << (len(image.depths) - 1) if isinstance(image, SwinSettings) else image.width
    return {
        "image_encode": settings
        | {"embed_dim": codebook.width, "input_resolution": image.resolution}
        | ({"window_size": image.window} if isinstance(image, SwinSettings) else {}),
        "text_encode": {
            "bpe_path": MERGES_FILE,
            "embed_dim": codebook.width,
            "context_length": text.max_length,
            "transformer_width": text.width,
            "transformer_layers": text.layers,
            "transformer_heads": text.heads,
        },
        "fdt": {
            "sd_num": codebook.terms,
            "sd_dim": codebook.width,
            "raw_img_ft_dim": width,
            "raw_txt_ft_dim": text.width,
            "att_func_type": codebook.attention,
            "pool_type": "max",
            "sd_temperature": codebook.temperature,
            "temperature": temperature,
        },
    }
