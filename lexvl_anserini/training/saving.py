"""Writes a pair in the layout that its encoder loads: config.json, model.safetensors, `text/` with the tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.filenames import model_files
from lexvl_anserini.encoders.checkpoints.hub import names_in
from lexvl_anserini.encoders.parts.images.image_backbones import PUBLISHED, ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.network_pair import IMAGE, TEXT, types_of
from lexvl_anserini.encoders.parts.pretrained import ADDED, bert_weights
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.training.common.tower_pair import TowerPair, WithCodebook
from lexvl_anserini.training.images.class_words import ClassWordWeights
from lexvl_anserini.training.images.pretrained_sides import Networks, TextNetwork, cells_settings
from lexvl_anserini.training.model_settings import ImageSettings, ModelSettings, PretrainedImage, vision_shape
from lexvl_anserini.training.recipe import Recipe
from lexvl_anserini.training.words import FIRST_WORD_ID

# Names in the folder of a checkpoint: the configuration of the text backbone with the tokenizer, the terms, and
# networks that no package installs.
TEXT_FOLDER, TERMS, TEXT_NETWORK, IMAGE_NETWORK = "text", "terms.txt", "text_network", "image_network"
CLASSES = "classes.json"
# Parts of a pair that no encoder reads.
OF_TRAINING = ("log_", "parts.", "encoder_p.codebook.done")


def save_pair(
    pair: TowerPair,
    model: ModelSettings,
    tokenizer: Any,
    folder: Path,
    weights: torch.dtype,
    networks: Networks | None,
    class_words: ClassWordWeights | None = None,
) -> None:
    """Writes a pair into an empty folder.

    Of the dimensions of a fresh lexical pair, only words are saved (see `words`). Of a pretrained pair, only what was
    added or changed is saved; networks that no package installs are copied.

    Args:
        pair: to save.
        model: of the recipe.
        tokenizer: of the texts.
        folder: of the checkpoint.
        weights: type of the saved numbers.
        networks: of a pretrained pair; None for a fresh one.
        class_words: of a pretrained lexical pair; None if it has none.
    """
    types, text_folder = types_of(model.kind), folder / TEXT_FOLDER
    tokenizer.save_pretrained(str(text_folder))
    config: Any = pair.encoder_q.config
    config.save_pretrained(str(text_folder))
    text = {"type": types[TEXT], "model_id": TEXT_FOLDER, "max_len": model.text.max_length, "padding": "none"}
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith("log_")}
    image: dict[str, Any]
    if networks is None:
        image = {"type": types[IMAGE], **vision_shape(model)}
        if model.lexical:
            text["first_word_id"] = FIRST_WORD_ID
            state["encoder_p.proj"] = state["encoder_p.proj"][model.registers :]
    else:
        assert isinstance(model.image, PretrainedImage)
        image = {"type": types[IMAGE], "grid": model.image.grid}
        text |= named_text(networks.text, folder)
        image |= named_images(networks.image, folder)
        state = added_or_changed(state, networks)
        if model.lexical:
            text["terms"] = TERMS
            terms = [*networks.text.columns.vocabulary, *(networks.text.classes if class_words else ())]
            Vocabulary(terms, "the terms of the captions and the classes").write(folder / TERMS)
        if class_words is not None:
            image["classes"] = CLASSES
            write_json(folder / CLASSES, dict(networks.text.classes))
            state = with_class_words(state, class_words)
            text["unit_terms"] = image["unit_terms"] = len(networks.text.columns.vocabulary)
    if model.lexical:
        text["topk"], image["topk"] = model.kept_of_texts, model.topk
    write_weights(state, folder, weights)
    write_json(folder / "config.json", {"encoder_q": text, "encoder_p": image})


def save_network_pair(
    pair: TowerPair, recipe: Recipe, model: ModelSettings, networks: Networks, folder: Path, weights: torch.dtype
) -> None:
    """Writes a pair of a family over networks into an empty folder, in the layout of `encoders/parts/network_pair.py`.

    Of pretrained networks only what was added or changed is saved; networks with random weights are saved whole.
    """
    networks.text.tokenizer.save_pretrained(str(folder / TEXT_FOLDER))
    networks.text.bert.config.save_pretrained(str(folder / TEXT_FOLDER))
    types = types_of(model.kind)
    text: dict[str, Any] = {"type": types[TEXT], "model_id": TEXT_FOLDER, "max_len": model.text.max_length}
    image: dict[str, Any] = {"type": types[IMAGE], "grid": cells_settings(model.image).grid}
    text |= named_text(networks.text, folder)
    image |= vision_shape(model) if isinstance(model.image, ImageSettings) else named_images(networks.image, folder)
    if model.lexical:
        text["terms"] = TERMS
        networks.text.columns.vocabulary.write(folder / TERMS)
    options = recipe.stages[-1].objective.options
    if model.kind == "stair" and (options.get("masked") or options.get("queries", "vectors") != "vectors"):
        text["text_mask"] = "own"  # texts without their own tokens alone never trained
    if isinstance(pair.encoder_p, WithCodebook):
        codebook = pair.encoder_p.codebook
        image |= {"attention": codebook.settings.attention, "temperature": codebook.temperature}
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith(OF_TRAINING)}
    write_weights(added_or_changed(state, networks), folder, weights)
    write_json(folder / "config.json", {"encoder_q": text, "encoder_p": image})


def write_weights(state: Mapping[str, Tensor], folder: Path, weights: torch.dtype) -> None:
    """model.safetensors with numbers of a type."""
    saved = {
        key: (value.to(weights) if value.is_floating_point() else value).contiguous().cpu()
        for key, value in state.items()
    }
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})


def with_class_words(state: Mapping[str, Tensor], words: ClassWordWeights) -> dict[str, Tensor]:
    """The weights of a pair with class words after the terms of the captions."""
    longer = {"encoder_p.proj": words.rows, "encoder_p.bias": words.image_bias, "encoder_q.bias": words.text_bias}
    return {
        **state,
        **{key: torch.cat([state[key], more.to(state[key].device)]) for key, more in longer.items()},
        "encoder_p.class_scale": words.scale,
    }


def named_text(text: TextNetwork, folder: Path) -> dict[str, Any]:
    """The entry `backbone` of texts; copies a network that no package installs; empty for one with random weights."""
    if text.checkpoint is None:
        return {}
    name = text.checkpoint.reference
    if name not in PACKAGED:
        name = copied(text.checkpoint.folder, folder / TEXT_NETWORK)
    return {"backbone": {"checkpoint": name, "digest": text.digest}}


def named_images(image: ImageBackbone, folder: Path) -> dict[str, Any]:
    """The entry `backbone` of images; copies a network that no package installs."""
    name = image.reference
    if name not in PUBLISHED:
        assert image.folder is not None
        name = copied(image.folder, folder / IMAGE_NETWORK)
    return {"backbone": {"checkpoint": name, "digest": image.digest}}


def copied(network: Path, target: Path) -> str:
    """Copies the files of a network and returns the name of the copy."""
    for name in model_files(names_in(network)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(network / name, target / name)
    return target.name


def added_or_changed(state: Mapping[str, Tensor], networks: Networks) -> dict[str, Tensor]:
    """The weights of a pretrained pair that its networks do not have, under the names of the checkpoint.

    Rows after those of the pretrained input embeddings have the ending `ADDED`.
    """
    known: dict[str, Tensor] = {}
    if networks.text.checkpoint is not None:
        weights, _ = bert_weights(networks.text.checkpoint)
        known |= {f"encoder_q.network.{key}": value for key, value in weights.items()}
    if networks.image.reference:
        original = load_image_backbone(networks.image.reference).network.state_dict()
        known |= {f"encoder_p.network.{key}": value for key, value in original.items()}
    names = {"encoder_q.network.": "encoder_q.bert_model.", "encoder_p.network.": "encoder_p.backbone."}
    kept = {}
    for key, value in state.items():
        name = next((key.replace(theirs, ours) for theirs, ours in names.items() if key.startswith(theirs)), key)
        before = known.get(key)
        if before is None or not torch.equal(value.cpu()[: len(before)] if value.dim() else value.cpu(), before):
            kept[name] = value
        elif value.dim() and len(value) > len(before):
            kept[name + ADDED] = value[len(before) :]
    return kept
