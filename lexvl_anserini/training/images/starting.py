"""A pair over pretrained networks that begins with the weights of a trained one, for further stages of training."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.filenames import inside
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.saved import about
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.parts.network_pair import types_of
from lexvl_anserini.encoders.parts.pretrained import ADDED, check_digest, named_backbone
from lexvl_anserini.encoders.parts.tokens import load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.images.pretrained_sides import Networks
from lexvl_anserini.training.model_settings import ModelSettings, PretrainedImage

# Weights with a row for each term, by the name of the pair: the rows, and each side's biases.
OF_TERMS = ("encoder_?.proj", "encoder_?.bias", "encoder_?.head.bias")

# What the names of a checkpoint's weights are in a pair.
NAMES = {"encoder_q.bert_model.": "encoder_q.network.", "encoder_p.backbone.": "encoder_p.network."}
EMBEDDINGS = "encoder_q.network.embeddings.word_embeddings.weight"


def begin_with(pair: TowerPair, reference: str, model: ModelSettings, networks: Networks, tokenizer: Any) -> None:
    """Gives a pair the weights of a checkpoint that `train` wrote over the same networks.

    Terms and added tokens are matched by their text; those that only the pair has keep their first weights, and those
    that only the checkpoint has are left out, class words among them. Temperatures are no part of a checkpoint.

    Args:
        pair: new, on any device.
        reference: packaged name, folder or hub id of the checkpoint.
        model: of the recipe.
        networks: of the pair.
        tokenizer: of the pair's texts.

    Raises:
        CheckpointError: the checkpoint is of another kind, or was trained over other weights of the networks.
        UsageError: its image side reads another grid.
    """
    checkpoint = find_checkpoint(reference)
    config, types = checkpoint.config(), types_of(model.kind)
    text, image = (about(checkpoint, config, side, (name,)) for side, name in types.items())
    assert isinstance(model.image, PretrainedImage)
    for entry, digest in ((text, networks.text.digest), (image, networks.image.digest)):
        name, expected = named_backbone(checkpoint, entry)
        check_digest(checkpoint, name, expected, digest)
    if image.get("grid") != model.image.grid:
        raise UsageError(f"start {reference}: reads a grid of {image.get('grid')}, expected {model.image.grid}")
    weights = named_as_in_a_pair(read_weights(checkpoint.folder))
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith("log_")}
    if model.lexical:
        path = inside(checkpoint.folder, str(text.get("terms")), f"{checkpoint.folder}/config.json")
        known = Vocabulary.read(path).terms[: text.get("unit_terms")]
        for key in (key for key in weights if any(fnmatch(key, pattern) for pattern in OF_TERMS)):
            weights[key] = with_rows(state[key], networks.text.columns.vocabulary.terms, weights[key], known)
        weights.pop("encoder_p.class_scale", None)
    if (added := weights.pop(EMBEDDINGS + ADDED, None)) is not None:
        weights[EMBEDDINGS] = with_rows(
            state[EMBEDDINGS], tokens_of(tokenizer), added, added_tokens(checkpoint, text, added)
        )
    load_strictly(pair, {**pair.state_dict(), **weights}, f"start {reference}")


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
    folder = inside(checkpoint.folder, str(entry.get("model_id")), f"{checkpoint.folder}/config.json")
    return tokens_of(load_tokenizer(folder))[-len(rows) :]
