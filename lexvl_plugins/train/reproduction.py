"""Rows whose weights are trained when they are measured, by a recipe of a few minutes, and numbers of parameters.

OUTPUT/training/<recipe>.<digest>/ has the run, with the seed in its name where a row has several; rows of one recipe
share it. OUTPUT/training/cache/ has what frozen networks make of the data. What `train` validated is not measured
again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from lexvl_eval.measures.metrics import mean

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import find_shipped
from lexvl_plugins.papers import prepared
from lexvl_plugins.papers.prepared import Finding, Need, PartCost, Prepared, RowPart, Workplace
from lexvl_plugins.papers.retrieval import keep_values, read_collection
from lexvl_plugins.papers.tables import WAYS


def list_trained_needs(part: RowPart, place: Workplace) -> list[Need]:
    """What a part reads: the corpus that its weights are trained on, and what its task reads."""
    return WAYS[part.task].needs(part, place)


def estimate_trained(part: RowPart, place: Workplace) -> PartCost | None:
    """What a part costs, with its trainings."""
    return WAYS[part.task].cost(part, place)


def can_be_trained(part: RowPart) -> bool:
    """True where the task of a part is measured with weights."""
    return part.task in WAYS and WAYS[part.task].fits(part)


def measure_trained(part: RowPart, place: Workplace) -> Finding:
    """Trains the weights of a part once for each of its seeds, unless the user gives some, and measures its task.

    The values are the means over the seeds. What is finished is found.
    """
    findings = [measure_training(own, place) for own in prepared.list_trainings(part, place)]
    if len(findings) == 1:
        return findings[0]
    values = [finding.values for finding in findings]
    means = {name: mean(of_seed[name] for of_seed in values) for name in part.measures}
    model = sha256("".join(finding.model for finding in findings).encode()).hexdigest()
    return findings[0]._replace(values=means, model=model, seeds=tuple(values))


def measure_training(part: RowPart, place: Workplace) -> Finding:
    """Trains one seed of a part, and measures its task."""
    assert part.system is not None and part.system.trained_on, "`find_way` looked"
    weights, model = prepared.find_weights(part, part.system, place), prepared.place_trained_model(part, place)
    own = weights is not None and weights.reference == str(model)
    if own:
        from lexvl_plugins.train.loop import train
        from lexvl_plugins.train.recipe import parse_changes, read_recipe

        name, *options = shlex.split(part.system.recipe)
        settings = [option.partition("=") for option in options if option != "--set"]
        settings += [("seed", "=", str(part.seed))] if part.seed is not None else []
        corpus = prepared.find_corpus(part._replace(data=part.system.trained_on), place)
        changes = parse_changes({key: value for key, _, value in settings})
        changes |= {"data.corpus": corpus.name, "data.split": corpus.split}
        recipe, cache = read_recipe(find_shipped("recipes") / name, changes), model.parent.with_name("cache")
        train(recipe, model.parent, place.data_dir, place.device, place.overwrite, cache=cache)
    validated = own and not place.limit and {*part.measures} <= read_validated(part, place).keys()
    finding: Finding = take_validated(part, place) if validated else WAYS[part.task].measure(part, place)
    return finding


# Encoder -> options of a row -> how the hit rates begin that `train` validates of such vectors. Other rows run.
VALIDATED: Mapping[str, Mapping[str, str]] = {
    "clip-twin": {"": ""},
    "dense-crossmodal": {"": ""},
    "fdt": {"space=features": ""},
    "joint": {"": ""},
    "lexlip": {"": ""},
    "stair": {"": "", "text_encoder_free=true": "alpha_"},
    "vdr-crossmodal": {"": "", "mode=alpha": "alpha_"},
}
DIRECTIONS = {"text-to-image": "t2i_", "image-to-text": "i2t_"}


def read_validated(part: RowPart, place: Workplace) -> Mapping[str, float]:
    """The hit rates that `train` validated of a trained part by its last weights, if on what the part measures."""
    assert part.system is not None, "it trains"
    written = read_json(prepared.place_trained_model(part, place) / "training.json", "what a checkpoint was trained on")
    corpus, data = prepared.find_corpus(part, place), written["recipe"]["data"]
    options = ",".join(f"{name}={value}" for name, value in part.system.options.items())
    vectors, direction = VALIDATED.get(part.system.encoder, {}).get(options), DIRECTIONS.get(part.task)
    same = (data["corpus"], data["validation"]) == (corpus.name, corpus.split)
    if vectors is None or direction is None or not same:
        return {}
    start, figures = vectors + direction, written["validation"].items()
    return {name.removeprefix(start): value / 100 for name, value in figures if name.startswith(start)}


@keep_values(read_collection)
def take_validated(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Hit rates of the float vectors of all images and captions, in place of encoding, indexing and searching them."""
    rates = read_validated(part, place)
    documents = sum(1 for _ in load_reference(work.corpus).documents())
    return {"values": {name: rates[name] for name in part.measures}, "quantised": False, "documents": documents}


# The tokens of BERT's uncased vocabulary, whose tokenizer the recipes name.
BERT_TOKENS = 30_522


def count_side(recipe: str, number: int, changes: dict[str, Any] | None = None) -> float:
    """The side of texts (0, with the embeddings) or of images (1) that `train` makes of a recipe of STAIR's paper."""
    import numpy as np
    import torch

    from lexvl_anserini.encoders.parts.tokens import TokenColumns
    from lexvl_anserini.ground.records import Vocabulary
    from lexvl_plugins.train.images.sides import SIDES
    from lexvl_plugins.train.model_settings import ModelSettings
    from lexvl_plugins.train.recipe import read_recipe

    model = read_recipe(find_shipped("recipes") / f"{recipe}.yaml", changes).model
    assert isinstance(model, ModelSettings)
    terms = Vocabulary(map(str, range(BERT_TOKENS)), "the numbers of tokens")
    with torch.device("meta"):
        sides = SIDES[model.kind](model, TokenColumns(terms, np.arange(BERT_TOKENS)), None)
    return count_millions(sides[number])


def count_d2s_head() -> float:
    """D2S's head over BLIP's vectors of 256 dimensions, with DistilBERT's width and vocabulary."""
    import torch

    from lexvl_anserini.encoders.families.dense_heads import D2SHead

    with torch.device("meta"):
        return count_millions(D2SHead(256, 768, BERT_TOKENS))


# OpenAI's merges with the three special symbols of FDT's code.
BPE_TOKENS = 49_409


# The image encoders of FDT's table 6: the name of the recipe, without `-paper`, and its changes.
FDT_CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "vit-b32": ("fdt", {}), "vit-b16": ("fdt", {"model.image.patch_size": 16}), "swin-b": ("fdt-swin", {})
}  # fmt: skip


class FdtNetworks(NamedTuple):
    """CLIP's networks with the projections that CLIP uses and FDT does not, and both models' sides over them."""

    texts: Any
    images: Any
    sides: Sequence[Any]
    clip_sides: Sequence[Any]
    model: Any


def build_fdt_networks(name: str, changes: Mapping[str, Any]) -> FdtNetworks:
    """The networks of a recipe of FDT's paper, with random weights."""
    from lexvl_plugins.train.images.networks import (
        Networks,
        TextNetwork,
        make_clip_texts,
        make_no_columns,
        make_patches,
    )
    from lexvl_plugins.train.images.sides import SIDES, ClipImage, ClipText
    from lexvl_plugins.train.model_settings import BpeTextSettings, ModelSettings, PretrainedImage
    from lexvl_plugins.train.recipe import read_recipe

    model = read_recipe(find_shipped("recipes") / f"{name}-paper.yaml", dict(changes)).model
    assert isinstance(model, ModelSettings) and isinstance(model.text, BpeTextSettings)
    assert not isinstance(model.image, PretrainedImage)
    texts = make_clip_texts(model.text, BPE_TOKENS, model.codebook.width)
    images = make_patches(model.image, model.codebook.width)
    networks = Networks(TextNetwork(None, "", texts, None, make_no_columns(BPE_TOKENS), {}), images)
    sides = SIDES[model.kind](model, networks.text.columns, networks)
    return FdtNetworks(texts, images.network, sides, (ClipText(networks.text), ClipImage(images)), model)


def count_fdt_share() -> float:
    """What FDT adds to CLIP's parameters, as a share: the mean over the image encoders of the paper's Table 6."""
    import torch

    with torch.device("meta"):
        built = [build_fdt_networks(*case) for case in FDT_CASES.values()]
    shares = [count_millions(*own.sides) / count_millions(own.texts, own.images) - 1 for own in built]
    return sum(shares) / len(shares)


def count_millions(*modules: Any) -> float:
    """The parameters of networks, in millions."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters()) / 1e6


# Encoder -> what papers count -> the function that counts it.
COUNTS: Mapping[str, Mapping[str, Callable[[], float]]] = {
    "stair": {f"{name} parameters": partial(count_side, "stair-paper", n) for n, name in enumerate(("text", "image"))},
    "clip-twin": {
        f"{name} parameters": partial(count_side, "clip-stair-paper", n) for n, name in enumerate(("text", "image"))
    },
    "d2s": {"parameters": count_d2s_head},
    "fdt": {"additional parameters": count_fdt_share},
}


def can_be_counted(part: RowPart) -> bool:
    """True for the numbers of parameters of a network that this project builds."""
    return part.system is not None and {*part.measures} <= COUNTS.get(part.system.encoder, {}).keys()


def count_parameters(part: RowPart, place: Workplace) -> Finding:
    """What is counted in a part's network: millions of parameters, or a share. All printed digits must agree."""
    assert part.system is not None, "`can_be_counted` is true of it"
    counts = COUNTS[part.system.encoder]
    return Finding({name: counts[name]() for name in part.measures}, 0)
