"""Checkpoints of a pair of texts and images: written in the layout that its encoder loads, and begun with again."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints import clip_layout, find
from lexvl_anserini.encoders.checkpoints.clip_layout import MERGES, name_in_file
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.families.fdt import CODEBOOK, QUERY_MAPS
from lexvl_anserini.encoders.families.stair import Stage, Stair, save_stair
from lexvl_anserini.encoders.families.vdr_crossmodal import CLASS_SCALE, ClassLogits
from lexvl_anserini.encoders.parts import pretrained
from lexvl_anserini.encoders.parts.images.image_backbones import PUBLISHED, Classifier, load_image_backbone
from lexvl_anserini.encoders.parts.pretrained import IMAGE, TEXT, TOKENS, list_types
from lexvl_anserini.encoders.parts.tokens import TokenColumns, load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.train import model_settings
from lexvl_plugins.train.clip_twin import StairTwin, save_stair_twin
from lexvl_plugins.train.common.tower_pair import TextStore, TowerPair, project_max, split_positions
from lexvl_plugins.train.images.captioned import ImageStore
from lexvl_plugins.train.images.networks import (
    Networks,
    choose_cells,
    choose_columns,
    find_merges_file,
    make_stair_config,
    make_twin_config,
)
from lexvl_plugins.train.images.resolution import fit_positions
from lexvl_plugins.train.images.sides import FdtImage, VdrImageOver, VdrTextOver
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import TEXT_FOLDER, write_weights
from lexvl_plugins.train.words import FIRST_WORD_ID, join_terms

# Names in the folder of a checkpoint: the terms, the class words, and networks that no package installs.
TERMS, CLASSES, TEXT_NETWORK, IMAGE_NETWORK = "terms.txt", "classes.json", "text_network", "image_network"
# Parts of a pair that no encoder reads.
TRAINING_ONLY = ("log_", "parts.", "encoder_p.codebook.done")


class ClassWordWeights(NamedTuple):
    """What a checkpoint stores of class words: the scale a_w of all [W], and biases of images and of texts.

    `moved` are the changes of the images' biases of the terms of captions [V]; the biases are of the other words [N].
    """

    scale: Tensor
    moved: Tensor
    image_bias: Tensor
    text_bias: Tensor


def save_pair(
    pair: TowerPair,
    recipe: Recipe,
    model: model_settings.ModelSettings,
    tokenizer: Any,
    columns: TokenColumns,
    folder: Path,
    networks: Networks | None,
    class_words: ClassWordWeights | None = None,
) -> None:
    """Writes a pair into an empty folder; `networks` and `class_words` are None where it has none.

    A fresh lexical pair keeps words alone, a pretrained network what changed; one that no package installs is copied.
    """
    if isinstance(model.text, model_settings.BpeTextSettings):
        save_run(pair, recipe, model, folder)
        return
    tokenizer.save_pretrained(str(folder / TEXT_FOLDER))
    config: Any = pair.encoder_q.config
    config.save_pretrained(str(folder / TEXT_FOLDER))
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith(TRAINING_ONLY)}
    text = describe_text(recipe, model, networks, columns, folder)
    image = describe_image(pair, model, networks, folder)
    if networks is not None:
        state = find_changes(state, networks)
    elif model.lexical:
        state["encoder_p.proj"] = state["encoder_p.proj"][model.registers :]
    if networks is not None and model.lexical and not model.of_tokens:
        classes = networks.text.classes if class_words else {}
        terms = join_terms(networks.text.columns.vocabulary.terms, classes)
        Vocabulary(terms, "the terms of the captions and the classes").write(folder / TERMS)
        if class_words is not None:
            write_json(folder / CLASSES, dict(networks.text.classes))
            state = add_class_words(state, class_words)
            text["unit_terms"] = len(networks.text.columns.vocabulary)
            image |= {"classes": CLASSES, "unit_terms": text["unit_terms"]}
    if model.family.cut:
        text["topk"], image["topk"] = model.kept_of_texts, model.topk
    write_weights(state, folder, getattr(torch, recipe.weights))
    write_json(folder / "config.json", {TEXT: text, IMAGE: image})


def save_new_stair(
    pair: TowerPair, recipe: Recipe, model: model_settings.ModelSettings, tokenizer: Any, folder: Path
) -> None:
    """Writes a STAIR, or its CLIP, whose networks began with random weights into an empty folder."""
    stages: tuple[Stage, ...] = ("single", "2", "3")
    stage: Stage = "1" if masks_texts(recipe) else stages[min(len(recipe.stages), 3) - 1]
    tokens, kind = len(tokenizer), getattr(torch, recipe.weights)
    stair = (
        StairTwin(make_twin_config(model, tokens)) if model.pooling else Stair(make_stair_config(model, tokens, stage))
    )
    names = {"encoder_q.network": "text", "encoder_q.head": "text_head"}
    names |= {"encoder_p.network": "image", "encoder_p.head": "image_head"}
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith(TRAINING_ONLY)}
    parts = {key: key.split(".", 2) for key in state}
    named = {f"{names[f'{side}.{part}']}.{key}": state[whole] for whole, (side, part, key) in parts.items()}
    load_strictly(stair, named, "the trained pair")
    if isinstance(stair, StairTwin):
        save_stair_twin(stair, tokenizer, folder, kind)
    else:
        save_stair(stair.to(kind), tokenizer, folder)


def masks_texts(recipe: Recipe) -> bool:
    """Whether the last stage trained only masked texts, so that the encoder masks too."""
    options = recipe.stages[-1].objective.options
    return bool(options.get("masked")) or options.get("queries", "vectors") != "vectors"


def describe_text(
    recipe: Recipe, model: model_settings.ModelSettings, networks: Networks | None, columns: TokenColumns, folder: Path
) -> dict[str, Any]:
    """The entry of the texts in config.json; copies a network that no package installs."""
    entry: dict[str, Any] = {"type": list_types(model.kind)[TEXT], "model_id": TEXT_FOLDER}
    entry["max_len"] = model.text.max_length
    if model.kind in ("vdr-crossmodal", "dense-crossmodal"):
        entry["padding"] = "none"
    if networks is not None and networks.text.checkpoint is not None:
        name = networks.text.checkpoint.reference
        if name not in PACKAGED:
            name = copy_network(networks.text.checkpoint.folder, folder / TEXT_NETWORK)
        entry["backbone"] = {"checkpoint": name, "digest": networks.text.digest}
    if model.lexical:
        if model.kind == "vdr-crossmodal" and (model.of_tokens or model.whole):
            entry["first_word_id"] = int(columns.tokens[0]) if model.of_tokens else FIRST_WORD_ID
        else:
            entry |= {"vocabulary": TOKENS} if model.of_tokens else {"terms": TERMS}
    if model.kind == "stair" and masks_texts(recipe):
        entry["text_mask"] = "own"
    return entry


def describe_image(
    pair: TowerPair, model: model_settings.ModelSettings, networks: Networks | None, folder: Path
) -> dict[str, Any]:
    """The entry of the images in config.json; copies a network that no package installs."""
    entry: dict[str, Any] = {"type": list_types(model.kind)[IMAGE]}
    if networks is not None:
        entry["grid"] = choose_cells(model.image).grid
    if isinstance(model.image, model_settings.ImageSettings):
        entry |= model.image.shape
    else:
        assert networks is not None
        backbone = networks.image
        name = backbone.reference
        if name not in PUBLISHED:
            assert backbone.folder is not None
            name = copy_network(backbone.folder, folder / IMAGE_NETWORK)
        entry["backbone"] = {"checkpoint": name, "digest": backbone.digest}
    if isinstance(pair.encoder_p, FdtImage):
        codebook = pair.encoder_p.codebook
        entry |= {"attention": codebook.settings.attention, "temperature": codebook.temperature}
    return entry


def add_class_words(state: Mapping[str, Tensor], words: ClassWordWeights) -> dict[str, Tensor]:
    """The weights of a pair with class words after the terms of the captions; their rows are zeros."""
    rows, bias = state["encoder_p.proj"], state["encoder_p.bias"] + words.moved
    return {
        **state,
        "encoder_p.proj": torch.cat([rows, rows.new_zeros(len(words.image_bias), rows.shape[1])]),
        "encoder_p.bias": torch.cat([bias, words.image_bias.to(bias)]),
        "encoder_q.bias": torch.cat([state["encoder_q.bias"], words.text_bias.to(bias)]),
        f"encoder_p.{CLASS_SCALE}": words.scale,
    }


def copy_network(network: Path, target: Path) -> str:
    """Copies the files of a network and returns the name of the copy."""
    for name in find.list_model_files(find.list_names(network)):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(network / name, target / name)
    return target.name


def find_changes(state: Mapping[str, Tensor], networks: Networks) -> dict[str, Tensor]:
    """The weights of a pair that its networks lack, by their names in a checkpoint; added embeddings end in `ADDED`."""
    known: dict[str, Tensor] = {}
    if networks.text.checkpoint is not None:
        weights, _ = pretrained.read_bert_weights(networks.text.checkpoint)
        known |= {f"encoder_q.network.{key}": value for key, value in weights.items()}
    if networks.image.reference:
        original = load_image_backbone(networks.image.reference).network.state_dict()
        known |= {f"encoder_p.network.{key}": value for key, value in original.items()}
    saved = {}
    for key, value in state.items():
        name = next((key.replace(theirs, ours) for ours, theirs in NAMES.items() if key.startswith(theirs)), key)
        before = known.get(key)
        if before is None or not torch.equal(value.cpu()[: len(before)] if value.dim() else value.cpu(), before):
            saved[name] = value
        elif value.dim() and len(value) > len(before):
            saved[name + pretrained.ADDED] = value[len(before) :]
    return saved


# Weights with a row for each term, by the name of the pair: the rows, and each side's biases.
TERM_WEIGHTS = ("encoder_?.proj", "encoder_?.bias", "encoder_?.head.bias")

# What the names of a checkpoint's weights are in a pair.
NAMES = {"encoder_q.bert_model.": "encoder_q.network.", "encoder_p.backbone.": "encoder_p.network."}
EMBEDDINGS = "encoder_q.network.embeddings.word_embeddings.weight"


def begin_with(
    pair: TowerPair, reference: str, model: model_settings.ModelSettings, networks: Networks, tokenizer: Any
) -> None:
    """Gives a pair the weights of a checkpoint that `train` wrote over the same networks, but for its temperatures.

    Terms and added tokens are matched by their text; those that only the pair has keep their first weights.
    """
    checkpoint = find.find_checkpoint(reference)
    config, types = checkpoint.config(), list_types(model.kind)
    text, image = (pretrained.read_entry(checkpoint, config, side, (name,)) for side, name in types.items())
    assert isinstance(model.image, model_settings.PretrainedImage)
    resized = networks.image.folder is not None and model.image.resolution is not None
    for entry, digest in ((text, networks.text.digest), (image, networks.image.digest)):
        name, expected = pretrained.read_named_backbone(checkpoint, entry)
        if entry is image and resized and expected != digest:  # it was trained before its positions were interpolated
            digest = find.find_checkpoint(model.image.checkpoint).digest()
        pretrained.check_digest(checkpoint, name, expected, digest)
    if image.get("grid") != model.image.grid and not resized:
        raise UsageError(f"start {reference}: reads a grid of {image.get('grid')}, expected {model.image.grid}")
    weights = {}
    for key, value in read_weights(checkpoint.folder).items():
        prefix = next((theirs for theirs in NAMES if key.startswith(theirs)), "")
        weights[NAMES.get(prefix, "") + key.removeprefix(prefix)] = value.float()
    state = {key: value for key, value in pair.state_dict().items() if not key.startswith("log_")}
    if model.lexical:
        known = find_terms(checkpoint, text, model.kind)
        for key in (key for key in weights if any(fnmatch(key, pattern) for pattern in TERM_WEIGHTS)):
            weights[key] = match_rows(state[key], networks.text.columns.vocabulary.terms, weights[key], known)
        weights.pop(f"encoder_p.{CLASS_SCALE}", None)
    if (added := weights.pop(EMBEDDINGS + pretrained.ADDED, None)) is not None:
        where = f"{checkpoint.folder}/config.json"
        folder = find.resolve_inside(checkpoint.folder, str(text.get("model_id")), where)
        stored = list_tokens(load_tokenizer(folder))[-len(added) :]  # the tokens of added rows are the last ones
        weights[EMBEDDINGS] = match_rows(state[EMBEDDINGS], list_tokens(tokenizer), added, stored)
    weights = fit_positions(weights, state)
    load_strictly(pair, {**pair.state_dict(), **weights}, f"start {reference}")


def find_terms(checkpoint: find.Checkpoint, entry: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The terms of a lexical pair over networks, but for class words; `entry` is that of its texts."""
    where = f"{checkpoint.folder}/config.json"
    if "terms" in entry:
        terms = Vocabulary.read(find.resolve_inside(checkpoint.folder, entry["terms"], where)).terms
        return terms[: entry.get("unit_terms")]
    tokenizer = load_tokenizer(find.resolve_inside(checkpoint.folder, str(entry.get("model_id")), where))
    return choose_columns(kind, tokenizer).vocabulary.terms


def match_rows(rows: Tensor, names: tuple[str, ...], known: Tensor, known_names: tuple[str, ...]) -> Tensor:
    """A copy of `rows`, in which a row has the values of the row of `known` with the same name."""
    place = {name: number for number, name in enumerate(known_names)}
    shared = [(number, place[name]) for number, name in enumerate(names) if name in place]
    copy = rows.detach().clone()
    if shared:
        ours, theirs = (torch.tensor(places, device=copy.device) for places in zip(*shared, strict=True))
        copy[ours] = known.to(copy)[theirs]
    return copy


def list_tokens(tokenizer: Any) -> tuple[str, ...]:
    """All tokens in the order of their ids."""
    return tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))


# The name of the merges in a checkpoint.
MERGES_FILE = MERGES.removesuffix(".gz")


def read_stored(weights: Mapping[str, Tensor], name_in_file: Callable[[str], str]) -> dict[str, Tensor]:
    """The weights under the names that they have in a file, which has query, key and value in one matrix."""
    rows: dict[str, list[Tensor]] = {}
    for key in sorted(weights, key=lambda key: next((n for n, part in enumerate("qkv") if f".{part}" in key), 0)):
        rows.setdefault(name_in_file(key), []).append(weights[key])
    return {name: value[0] if len(value) == 1 else torch.cat(value) for name, value in rows.items()}


def save_run(pair: TowerPair, recipe: Recipe, model: model_settings.ModelSettings, folder: Path) -> None:
    """Writes an FDT, or its CLIP, over its own networks in the layout of the published code's runs, with the merges."""
    assert isinstance(model.text, model_settings.BpeTextSettings)
    sides: tuple[Any, Any] = pair.encoder_q, pair.encoder_p
    texts, images = sides
    swin = isinstance(model.image, model_settings.SwinSettings)
    of_texts = partial(name_in_file, declip=True)
    of_images = (lambda key: f"visual.{clip_layout.name_swin_in_file(key)}") if swin else of_texts
    state = {
        "logit_scale": -pair.log_temperature.reshape(1),
        **read_stored(texts.network.state_dict(), of_texts),
        **read_stored(images.network.model.state_dict(), of_images),
    }
    settings = describe_run(model)
    if model.kind == "fdt":
        state[CODEBOOK] = images.codebook.rows
        for modality, side in (("text", texts), ("image", images)):
            state |= {f"{QUERY_MAPS[modality]}{key}": value for key, value in side.head.state_dict().items()}
        settings["fdt"] = describe_codebook(model, images.codebook.temperature)
    if not swin:
        state["visual.proj"] = state["visual.proj"].T  # it multiplies from the left
    write_weights(state, folder, getattr(torch, recipe.weights))
    content = find_merges_file(model.text).read_bytes()
    # Without compression, as other texts that belong to a model.
    (folder / MERGES_FILE).write_bytes(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    write_json(
        folder / "config.json", {"model": {"type": "clip_fdt" if "fdt" in settings else "clip", "kwargs": settings}}
    )


def describe_run(model: model_settings.ModelSettings) -> dict[str, Any]:
    """The entries of config.json for both networks."""
    assert isinstance(model.text, model_settings.BpeTextSettings)
    assert not isinstance(model.image, model_settings.PretrainedImage)
    text, image = model.text, model.image
    settings = image.model_dump(mode="json", exclude={"resolution", "stem", "window"})
    return {
        "image_encode": settings
        | {"embed_dim": model.projected, "input_resolution": image.resolution}
        | ({"window_size": image.window} if isinstance(image, model_settings.SwinSettings) else {}),
        "text_encode": {"bpe_path": MERGES_FILE, "embed_dim": model.projected, "context_length": text.max_length}
        | {f"transformer_{size}": getattr(text, size) for size in ("width", "layers", "heads")},
    }


def describe_codebook(model: model_settings.ModelSettings, temperature: float) -> dict[str, Any]:
    """The entry of FDT's codebook, with the temperature T that the published code computes from its iteration."""
    text, image, codebook = model.text, model.image, model.codebook
    assert isinstance(text, model_settings.BpeTextSettings)
    assert not isinstance(image, model_settings.PretrainedImage)
    width = image.width << (len(image.depths) - 1) if isinstance(image, model_settings.SwinSettings) else image.width
    return {
        "sd_num": codebook.terms,
        "sd_dim": codebook.width,
        "raw_img_ft_dim": width,
        "raw_txt_ft_dim": text.width,
        "att_func_type": codebook.attention,
        "pool_type": "max",
        "sd_temperature": codebook.temperature,
        "temperature": temperature,
    }


# Images, or texts, of one forward pass, and the largest number of texts.
BATCH, TEXTS = 64, 6000

# A class word of probability 1 is as heavy as the heaviest term of a photo, one of this probability as the term of this
# rank. Terms of captions change by this share of that with the probability. Chosen on held-out photos
# (docs/plugins/photos.md).
LIKELY, RANK, SHARE = 1 / 3, 5, 0.2


@torch.inference_mode()
def weigh(
    text: VdrTextOver,
    image: VdrImageOver,
    texts: TextStore,
    images: ImageStore,
    classifier: Classifier,
    words: Mapping[str, list[int]],
    terms: Mapping[str, int],
) -> ClassWordWeights:
    """The weights of class words beside those of a trained pair in eval mode, from means over the training split.

    A term of the captions keeps its mean logit. A text has a class word as heavy as the mean term that it contains.
    `words` has the classes of each class word, `terms` the dimensions of the terms of the captions.
    """
    known = torch.tensor([word in terms for word in words])
    classes = ClassLogits(classifier, image.standard, list(words.values()), known).to(image.proj.device)
    heaviest, logs = [], []
    for chosen in split_positions(len(images), BATCH):
        states = image.compute_states(images.get_plain(chosen))
        logits = project_max(image.head(states), image.proj) + image.bias
        heaviest.append(logits.topk(min(RANK, logits.shape[1]), dim=1).values)
        logs.append(classes(states).amax(dim=1)[:, known])
    levels = torch.cat(heaviest).mean(dim=0)
    slope = (levels[0] - levels[-1]) / -log(LIKELY)
    scale = slope * torch.where(known, SHARE, 1.0).to(slope)
    moved = torch.zeros_like(image.bias)
    dims = [terms[word] for word in words if word in terms]
    moved[dims] = -SHARE * slope * torch.cat(logs).mean(dim=0)
    count = int((~known).sum())
    own = measure_own_logit(text, texts, image.proj)
    return ClassWordWeights(scale, moved, levels[0].repeat(count), own.repeat(count))


def measure_own_logit(text: VdrTextOver, texts: TextStore, rows: Tensor) -> Tensor:
    """The mean logit of the terms that texts contain, a scalar."""
    total, count = rows.new_zeros(()), 0
    some = np.arange(0, len(texts), -(-len(texts) // TEXTS))
    for chosen in split_positions(len(some), BATCH):
        batch = texts.read_batch(some[chosen])
        logits = project_max(text.head(text.compute_states(batch)), rows, batch.attention == 0) + text.bias
        total, count = total + logits[batch.bag].sum(), count + int(batch.bag.sum())
    return total / max(count, 1)
