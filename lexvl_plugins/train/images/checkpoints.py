"""Checkpoints of a pair of texts and images: written in the layout that its encoder loads, and begun with again.

A checkpoint has config.json, model.safetensors and `text/` with the tokenizer and the configuration of the text
network; over networks, it is that of `encoders/parts/network_pair.py`. A new STAIR has the layout of `save_stair`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import (
    Checkpoint,
    find_checkpoint,
    list_model_files,
    list_names,
    resolve_inside,
)
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.families.stair import save_stair
from lexvl_anserini.encoders.families.vdr_crossmodal import CLASS_SCALE
from lexvl_anserini.encoders.parts.images.image_backbones import PUBLISHED, load_image_backbone
from lexvl_anserini.encoders.parts.network_pair import IMAGE, TEXT, TOKENS, types_of
from lexvl_anserini.encoders.parts.pretrained import ADDED, bert_weights, check_digest, entry_of, named_backbone
from lexvl_anserini.encoders.parts.stair_network import Stage, Stair
from lexvl_anserini.encoders.parts.tokens import TokenColumns, load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.fdt_run import save_run
from lexvl_plugins.train.images.networks import Networks, cells_settings, stair_config, token_columns
from lexvl_plugins.train.images.sides import FdtImage
from lexvl_plugins.train.model_settings import BpeTextSettings, ImageSettings, ModelSettings, PretrainedImage
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import TEXT_FOLDER, write_weights
from lexvl_plugins.train.words import FIRST_WORD_ID, terms_and_class_words

# Names in the folder of a checkpoint: the terms, the class words, and networks that no package installs.
TERMS, CLASSES, TEXT_NETWORK, IMAGE_NETWORK = "terms.txt", "classes.json", "text_network", "image_network"
# Parts of a pair that no encoder reads.
OF_TRAINING = ("log_", "parts.", "encoder_p.codebook.done")


class ClassWordWeights(NamedTuple):
    """What a checkpoint stores of class words.

    scale       a_w of all of them, [W]
    moved       what the images' biases of the terms of the captions change by, [V]
    image_bias  of those that are no terms of the captions, [N]
    text_bias   of the same in texts, [N]
    """

    scale: Tensor
    moved: Tensor
    image_bias: Tensor
    text_bias: Tensor


def save_pair(
    pair: TowerPair,
    recipe: Recipe,
    model: ModelSettings,
    tokenizer: Any,
    columns: TokenColumns,
    folder: Path,
    networks: Networks | None,
    class_words: ClassWordWeights | None = None,
) -> None:
    """Writes a pair into an empty folder; `networks` and `class_words` are None where it has none.

    Of the dimensions of a fresh lexical pair, only words are saved (see `words`). Of pretrained networks, only what was
    added or changed is saved, and those that no package installs are copied; new networks are saved whole.
    """
    if isinstance(model.text, BpeTextSettings):
        save_run(pair, recipe, model, folder)
        return
    tokenizer.save_pretrained(str(folder / TEXT_FOLDER))
    config: Any = pair.encoder_q.config
    config.save_pretrained(str(folder / TEXT_FOLDER))
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith(OF_TRAINING)}
    text = text_entry(recipe, model, networks, columns, folder)
    image = image_entry(pair, model, networks, folder)
    if networks is not None:
        state = added_or_changed(state, networks)
    elif model.lexical:
        state["encoder_p.proj"] = state["encoder_p.proj"][model.registers :]
    if networks is not None and model.lexical and not model.of_tokens:
        classes = networks.text.classes if class_words else {}
        terms = terms_and_class_words(networks.text.columns.vocabulary.terms, classes)
        Vocabulary(terms, "the terms of the captions and the classes").write(folder / TERMS)
        if class_words is not None:
            write_json(folder / CLASSES, dict(networks.text.classes))
            state = with_class_words(state, class_words)
            text["unit_terms"] = len(networks.text.columns.vocabulary)
            image |= {"classes": CLASSES, "unit_terms": text["unit_terms"]}
    if model.family.cut:
        text["topk"], image["topk"] = model.kept_of_texts, model.topk
    write_weights(state, folder, getattr(torch, recipe.weights))
    write_json(folder / "config.json", {TEXT: text, IMAGE: image})


def save_new_stair(pair: TowerPair, recipe: Recipe, model: ModelSettings, tokenizer: Any, folder: Path) -> None:
    """Writes a STAIR whose networks began with random weights into an empty folder."""
    stages: tuple[Stage, ...] = ("single", "2", "3")
    stage: Stage = "1" if masks_texts(recipe) else stages[min(len(recipe.stages), 3) - 1]
    stair = Stair(stair_config(model, len(tokenizer), stage))
    names = {"encoder_q.network": "text", "encoder_q.head": "text_head"}
    names |= {"encoder_p.network": "image", "encoder_p.head": "image_head"}
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith(OF_TRAINING)}
    parts = {key: key.split(".", 2) for key in state}
    named = {f"{names[f'{side}.{part}']}.{key}": state[whole] for whole, (side, part, key) in parts.items()}
    load_strictly(stair, named, "the trained pair")
    save_stair(stair.to(getattr(torch, recipe.weights)), tokenizer, folder)


def masks_texts(recipe: Recipe) -> bool:
    """Whether the last stage trained only masked texts, so that the encoder masks too."""
    options = recipe.stages[-1].objective.options
    return bool(options.get("masked")) or options.get("queries", "vectors") != "vectors"


def text_entry(
    recipe: Recipe, model: ModelSettings, networks: Networks | None, columns: TokenColumns, folder: Path
) -> dict[str, Any]:
    """The entry of the texts in config.json; copies a network that no package installs."""
    entry: dict[str, Any] = {"type": types_of(model.kind)[TEXT], "model_id": TEXT_FOLDER}
    entry["max_len"] = model.text.max_length
    if model.kind in ("vdr-crossmodal", "dense-crossmodal"):
        entry["padding"] = "none"
    if networks is not None and networks.text.checkpoint is not None:
        name = networks.text.checkpoint.reference
        if name not in PACKAGED:
            name = copied(networks.text.checkpoint.folder, folder / TEXT_NETWORK)
        entry["backbone"] = {"checkpoint": name, "digest": networks.text.digest}
    if model.lexical:
        entry |= terms_entry(model, columns)
    if model.kind == "stair" and masks_texts(recipe):
        entry["text_mask"] = "own"
    return entry


def terms_entry(model: ModelSettings, columns: TokenColumns) -> dict[str, Any]:
    """Which tokens are dimensions, as the encoders read it."""
    if model.kind == "vdr-crossmodal" and (model.of_tokens or model.whole):
        return {"first_word_id": int(columns.tokens[0]) if model.of_tokens else FIRST_WORD_ID}
    return {"vocabulary": TOKENS} if model.of_tokens else {"terms": TERMS}


def image_entry(pair: TowerPair, model: ModelSettings, networks: Networks | None, folder: Path) -> dict[str, Any]:
    """The entry of the images in config.json; copies a network that no package installs."""
    entry: dict[str, Any] = {"type": types_of(model.kind)[IMAGE]}
    if networks is not None:
        entry["grid"] = cells_settings(model.image).grid
    if isinstance(model.image, ImageSettings):
        entry |= model.image.shape
    else:
        assert networks is not None
        backbone = networks.image
        name = backbone.reference
        if name not in PUBLISHED:
            assert backbone.folder is not None
            name = copied(backbone.folder, folder / IMAGE_NETWORK)
        entry["backbone"] = {"checkpoint": name, "digest": backbone.digest}
    if isinstance(pair.encoder_p, FdtImage):
        codebook = pair.encoder_p.codebook
        entry |= {"attention": codebook.settings.attention, "temperature": codebook.temperature}
    return entry


def with_class_words(state: Mapping[str, Tensor], words: ClassWordWeights) -> dict[str, Tensor]:
    """The weights of a pair with class words after the terms of the captions; their rows are zeros."""
    rows, bias = state["encoder_p.proj"], state["encoder_p.bias"] + words.moved
    return {
        **state,
        "encoder_p.proj": torch.cat([rows, rows.new_zeros(len(words.image_bias), rows.shape[1])]),
        "encoder_p.bias": torch.cat([bias, words.image_bias.to(bias)]),
        "encoder_q.bias": torch.cat([state["encoder_q.bias"], words.text_bias.to(bias)]),
        f"encoder_p.{CLASS_SCALE}": words.scale,
    }


def copied(network: Path, target: Path) -> str:
    """Copies the files of a network and returns the name of the copy."""
    for name in list_model_files(list_names(network)):
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
    saved = {}
    for key, value in state.items():
        name = next((key.replace(theirs, ours) for theirs, ours in names.items() if key.startswith(theirs)), key)
        before = known.get(key)
        if before is None or not torch.equal(value.cpu()[: len(before)] if value.dim() else value.cpu(), before):
            saved[name] = value
        elif value.dim() and len(value) > len(before):
            saved[name + ADDED] = value[len(before) :]
    return saved


# Weights with a row for each term, by the name of the pair: the rows, and each side's biases.
OF_TERMS = ("encoder_?.proj", "encoder_?.bias", "encoder_?.head.bias")

# What the names of a checkpoint's weights are in a pair.
NAMES = {"encoder_q.bert_model.": "encoder_q.network.", "encoder_p.backbone.": "encoder_p.network."}
EMBEDDINGS = "encoder_q.network.embeddings.word_embeddings.weight"


def begin_with(pair: TowerPair, reference: str, model: ModelSettings, networks: Networks, tokenizer: Any) -> None:
    """Gives a pair the weights of a checkpoint that `train` wrote over the same networks.

    Terms and added tokens are matched by their text; those that only the pair has keep their first weights, and those
    that only the checkpoint has are left out, class words among them. Temperatures are no part of a checkpoint.
    """
    checkpoint = find_checkpoint(reference)
    config, types = checkpoint.config(), types_of(model.kind)
    text, image = (entry_of(checkpoint, config, side, (name,)) for side, name in types.items())
    assert isinstance(model.image, PretrainedImage)
    for entry, digest in ((text, networks.text.digest), (image, networks.image.digest)):
        name, expected = named_backbone(checkpoint, entry)
        check_digest(checkpoint, name, expected, digest)
    if image.get("grid") != model.image.grid:
        raise UsageError(f"start {reference}: reads a grid of {image.get('grid')}, expected {model.image.grid}")
    weights = named_as_in_a_pair(read_weights(checkpoint.folder))
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith("log_")}
    if model.lexical:
        known = terms_of(checkpoint, text, model.kind)
        for key in (key for key in weights if any(fnmatch(key, pattern) for pattern in OF_TERMS)):
            weights[key] = with_rows(state[key], networks.text.columns.vocabulary.terms, weights[key], known)
        weights.pop(f"encoder_p.{CLASS_SCALE}", None)
    if (added := weights.pop(EMBEDDINGS + ADDED, None)) is not None:
        weights[EMBEDDINGS] = with_rows(
            state[EMBEDDINGS], tokens_of(tokenizer), added, added_tokens(checkpoint, text, added)
        )
    load_strictly(pair, {**pair.state_dict(), **weights}, f"start {reference}")


def terms_of(checkpoint: Checkpoint, entry: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The terms of a lexical pair over networks, but for class words; `entry` is that of its texts."""
    where = f"{checkpoint.folder}/config.json"
    if "terms" in entry:
        return Vocabulary.read(resolve_inside(checkpoint.folder, entry["terms"], where)).terms[
            : entry.get("unit_terms")
        ]
    tokenizer = load_tokenizer(resolve_inside(checkpoint.folder, str(entry.get("model_id")), where))
    return token_columns(kind, tokenizer).vocabulary.terms


def named_as_in_a_pair(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint, float32, under the names of a pair."""
    named = {}
    for key, value in weights.items():
        prefix = next((theirs for theirs in NAMES if key.startswith(theirs)), "")
        named[NAMES.get(prefix, "") + key.removeprefix(prefix)] = value.float()
    return named


def with_rows(rows: Tensor, names: tuple[str, ...], known: Tensor, known_names: tuple[str, ...]) -> Tensor:
    """A copy of `rows`, in which a row has the values of the row of `known` with the same name."""
    place = {name: number for number, name in enumerate(known_names)}
    shared = [(number, place[name]) for number, name in enumerate(names) if name in place]
    copy = rows.detach().clone()
    if shared:
        ours, theirs = (torch.tensor(places, device=copy.device) for places in zip(*shared, strict=True))
        copy[ours] = known.to(copy)[theirs]
    return copy


def tokens_of(tokenizer: Any) -> tuple[str, ...]:
    """All tokens in the order of their ids."""
    return tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))


def added_tokens(checkpoint: Checkpoint, entry: Mapping[str, Any], rows: Tensor) -> tuple[str, ...]:
    """The tokens of a checkpoint's added rows, which are its last ones."""
    folder = resolve_inside(checkpoint.folder, str(entry.get("model_id")), f"{checkpoint.folder}/config.json")
    return tokens_of(load_tokenizer(folder))[-len(rows) :]
