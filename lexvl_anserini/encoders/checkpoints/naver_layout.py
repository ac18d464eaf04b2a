"""Files of naver/splade's trainers: the folder of a run, with one or two encoders, and `model.tar`.

    RUN/config.yaml  RUN/model/  RUN/model_q/    its own trainer; model/ has a Hugging Face folder and model.tar
    RUN/  RUN/query/                             its Hugging Face trainer

The user names a run, its folder model/ or model.tar. `model.tar` has no configuration: that of its backbone is beside
it, or comes from the hub id in the run's config.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.find import (
    NAVER_WEIGHTS,
    TOKENIZER_FILES,
    Checkpoint,
    find_checkpoint,
    has_tokenizer,
    is_shard_name,
    read_yaml,
)
from lexvl_anserini.encoders.checkpoints.weights import build, complain, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.parts.backbones import read_config, split_language_model
from lexvl_anserini.encoders.parts.towers import Backbone, Head
from lexvl_anserini.ground.errors import CheckpointError

# The prefixes in model.tar of the document (or only) encoder and of the query encoder.
PREFIXES = {"document": "transformer_rep.transformer.", "query": "transformer_rep_q.transformer."}

# Defaults of the classes of `matching_type`: pooling, top_d, top_q, lexical_type.
DEFAULTS: Mapping[str, tuple[str, int | None, int | None, str]] = {
    "splade": ("max", None, None, "none"),
    "splade_doc": ("sum", None, None, "none"),
    "splade_topk": ("max", 32, 5, "none"),
    "splade_lexical": ("sum", None, None, "query"),
}


@dataclass(frozen=True)
class SpladeRecipe:
    """The settings of a run in its config.yaml; without that file those of SPLADE v2. None keeps all dimensions."""

    pooling: str = "max"
    doc_only: bool = False
    lexical: str = "none"
    topk: int | None = None
    query_topk: int | None = None
    max_length: int | None = None


class SideFiles(NamedTuple):
    """One encoder: the folders of its configuration and tokenizer, and its weights if they come from a tar."""

    config: Path
    tokenizer: Path
    weights: Mapping[str, Tensor] | None = None


class Run(NamedTuple):
    """The encoders of a run; `query` is None if one encoder is used for both sides."""

    document: SideFiles
    query: SideFiles | None
    recipe: SpladeRecipe


def read_run(checkpoint: Checkpoint, backbone_config: str | None, tokenizer: str | None) -> Run | None:
    """The run of a checkpoint; None if it is a plain folder."""
    root = checkpoint.folder
    inside = root / "model"
    main = next((folder for folder in (root, inside) if (folder / "config.json").is_file()), None)
    saved = main is not None and any(is_shard_name(path.name) for path in main.iterdir())
    if main is not None and saved and checkpoint.file is None:
        return list_run_folders(main, root, tokenizer)
    tars = (folder / NAVER_WEIGHTS for folder in (root, inside))
    tar = checkpoint.file or next((path for path in tars if path.is_file()), None)
    if tar is None or tar.suffix.lower() != ".tar":
        return None
    return read_tar(tar, backbone_config, tokenizer)


def list_run_folders(main: Path, root: Path, tokenizer: str | None) -> Run | None:
    """A run of Hugging Face folders; None if it is only one folder. Files outside of the named folder do not count."""
    beside = [main / "query", *([root / "model_q"] if main != root else [])]
    other = next((folder for folder in beside if (folder / "config.json").is_file()), None)
    if main == root and other is None:
        return None
    document = SideFiles(main, find_named_or(tokenizer, main))
    query = None
    if other is not None:
        query = SideFiles(other, find_named_or(tokenizer, other if has_tokenizer(other) else main))
    return Run(document, query, read_recipe(root))


def find_named_or(tokenizer: str | None, folder: Path) -> Path:
    """The folder of the tokenizer that the user names, else `folder`."""
    return folder if tokenizer is None else find_checkpoint(tokenizer, weights=False).folder


def read_tar(tar: Path, backbone_config: str | None, tokenizer: str | None) -> Run:
    """A run from the tensors of its model.tar."""
    weights = read_weights(tar)
    sides = {side: take_below(weights, prefix) for side, prefix in PREFIXES.items()}
    missing = [] if sides["document"] else [f"{PREFIXES['document']}*"]
    complain(str(tar), missing, [key for key in weights if not key.startswith(tuple(PREFIXES.values()))], ())
    run = next((folder for folder in (tar.parent, tar.parent.parent) if (folder / "config.yaml").is_file()), None)
    settings = read_yaml(run / "config.yaml") if run else {}
    trained_from = settings.get("init_dict") or {}
    configs = partial(find_companion, tar, files=["config.json"], option="--backbone-config")
    config = configs(named=backbone_config, near=[tar.parent], trained_from=trained_from.get("model_type_or_dir"))
    if config is None:
        remedy = "name that of its backbone with --backbone-config"
        raise CheckpointError(f"{tar}: no configuration in it or beside it; {remedy}")
    tokens_of = (settings.get("config") or {}).get("tokenizer_type") or trained_from.get("model_type_or_dir")
    near = [tar.parent, config]
    tokens = find_companion(tar, tokenizer, near, TOKENIZER_FILES, tokens_of, "--tokenizer") or tar.parent
    document = SideFiles(config, tokens, sides["document"])
    query = None
    if sides["query"]:
        near = [tar.parent / "query", tar.parent / "model_q", tar.parent.parent / "model_q"]
        query_config = configs(named=None, near=near, trained_from=trained_from.get("model_type_or_dir_q"))
        query = SideFiles(query_config or config, tokens, sides["query"])
    return Run(document, query, read_recipe(run))


def find_companion(
    tar: Path,
    named: str | None,
    near: Iterable[Path],
    files: Iterable[str],
    trained_from: str | None,
    option: str,
) -> Path | None:
    """The folder that the user names, the first of `near` with one of `files`, or that of a model in config.yaml."""
    if named is not None:
        return find_checkpoint(named, weights=False).folder
    nearest = next((folder for folder in near if any((folder / name).is_file() for name in files)), None)
    if nearest is not None or trained_from is None:
        return nearest
    try:
        return find_checkpoint(trained_from, weights=False).folder
    except CheckpointError as error:
        what = f"config.yaml trained from {trained_from}: {error}"
        raise CheckpointError(f"{tar}: {what}; or name it with {option}") from error


def read_recipe(run: Path | None) -> SpladeRecipe:
    """The settings in a run's config.yaml; the defaults without that file."""
    path = run / "config.yaml" if run else None
    if path is None or not path.is_file():
        return SpladeRecipe()
    settings = read_yaml(path)
    model, training = settings.get("init_dict") or {}, settings.get("config") or {}
    kind = training.get("matching_type") or "splade"
    if kind not in DEFAULTS:
        raise CheckpointError(f"{path}: matching_type {kind!r} is not SPLADE; expected {', '.join(DEFAULTS)}")
    pooling, topk, query_topk, lexical = DEFAULTS[kind]
    pooling = model.get("agg") or pooling
    if pooling not in ("max", "sum"):
        raise CheckpointError(f"{path}: agg {pooling!r} is not known; expected max or sum")
    return SpladeRecipe(
        pooling,
        doc_only=kind == "splade_doc",
        lexical=model.get("lexical_type") or lexical,
        topk=read_limit(model.get("top_d", topk)),
        query_topk=read_limit(model.get("top_q", query_topk)),
        max_length=training.get("max_length"),
    )


def read_limit(k: int | None) -> int | None:
    """A number of dimensions to keep; None for the trainer's -1, which keeps all."""
    return k if k is not None and k > 0 else None


def build_masked_lm(
    config: Path, weights: Mapping[str, Tensor], where: str, device: torch.device
) -> tuple[Backbone, Head, int]:
    """A masked LM of exactly `weights`, split before its decoder: backbone, head, number of tokens."""
    import transformers

    model_config, described = read_config(config), f"{config}/config.json"
    if type(model_config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise CheckpointError(f"{described}: {model_config.model_type} is not a masked LM")
    network = partial(transformers.AutoModelForMaskedLM.from_config, model_config, trust_remote_code=False)
    model: Any = build(network, weights, described)
    load_strictly(model, weights, where, ignored=[r"(.*\.)?pooler\..*"])
    return *split_language_model(model.eval().to(device)), model_config.vocab_size
