"""What naver/splade's trainers leave behind: a run's folder, two encoders side by side, `model.tar`.

    RUN/config.yaml  RUN/model/  RUN/model_q/    its own trainer; model/ holds a Hugging Face folder and model.tar
    RUN/  RUN/query/                             its Hugging Face trainer

A run, its model/ folder or the model.tar alone can be named. `model.tar` holds no configuration: that of its backbone
is taken from beside it, or from the hub id that the run's config.yaml trained from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.filenames import NAVER_WEIGHTS, has_tokenizer, may_be_shards
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint, read_yaml
from lexvl_anserini.encoders.checkpoints.weights import below, complain, load_strictly, read_weights
from lexvl_anserini.encoders.parts.backbones import read_config, split_masked_lm
from lexvl_anserini.encoders.parts.towers import Backbone, Head
from lexvl_anserini.errors import CheckpointError

# Where model.tar keeps the document (or only) encoder and the query encoder.
PREFIXES = {"document": "transformer_rep.transformer.", "query": "transformer_rep_q.transformer."}

# What the classes that `matching_type` names take where a configuration is silent: pooling, top_d, top_q, lexical_type.
DEFAULTS: Mapping[str, tuple[str, int | None, int | None, str]] = {
    "splade": ("max", None, None, "none"),
    "splade_doc": ("sum", None, None, "none"),
    "splade_topk": ("max", 32, 5, "none"),
    "splade_lexical": ("sum", None, None, "query"),
}


@dataclass(frozen=True)
class Recipe:
    """How a run's vectors were made, as its config.yaml says; without that file as SPLADE v2's.

    doc_only    queries are bags of their own tokens
    lexical     sides that keep only their own tokens: none, query, document, both
    topk        dimensions kept per document, query_topk per query; None for all
    """

    pooling: str = "max"
    doc_only: bool = False
    lexical: str = "none"
    topk: int | None = None
    query_topk: int | None = None
    max_length: int | None = None


class SideFiles(NamedTuple):
    """One encoder: the folders of its configuration and tokenizer, and its weights where they come from a tar."""

    config: Path
    tokenizer: Path
    weights: Mapping[str, Tensor] | None = None


class Run(NamedTuple):
    """What a run holds; `query` is None where one encoder serves both sides."""

    document: SideFiles
    query: SideFiles | None
    recipe: Recipe


def read_run(checkpoint: Checkpoint, backbone_config: str | None, tokenizer: str | None) -> Run | None:
    """The run that a checkpoint is; None if it is a plain folder.

    Args:
        checkpoint: what the user named.
        backbone_config: a folder or hub id to take the document encoder's configuration from.
        tokenizer: a folder or hub id to take both tokenizers from.

    Raises:
        CheckpointError: model.tar is unreadable or has other weights, or no configuration or tokenizer can be had.
    """
    root = checkpoint.folder
    inside = root / "model"
    main = next((folder for folder in (root, inside) if (folder / "config.json").is_file()), None)
    saved = main is not None and any(may_be_shards(path.name) for path in main.iterdir())
    if main is not None and saved and checkpoint.file is None:
        return folders_of_run(main, root, tokenizer)
    tars = (folder / NAVER_WEIGHTS for folder in (root, inside))
    tar = checkpoint.file or next((path for path in tars if path.is_file()), None)
    if tar is None or tar.suffix != ".tar":
        return None
    return read_tar(tar, backbone_config, tokenizer)


def folders_of_run(main: Path, root: Path, tokenizer: str | None) -> Run | None:
    """A run of Hugging Face folders; None if it is no more than one folder.

    The folder model_q/ counts if the run was named, not if its model/ was: only what was named is in a digest.
    """
    beside = [main / "query", *([root / "model_q"] if main != root else [])]
    other = next((folder for folder in beside if (folder / "config.json").is_file()), None)
    if main == root and other is None:
        return None
    document = SideFiles(main, named_or(tokenizer, main))
    query = None
    if other is not None:
        query = SideFiles(other, named_or(tokenizer, other if has_tokenizer(other) else main))
    return Run(document, query, read_recipe(root))


def named_or(tokenizer: str | None, folder: Path) -> Path:
    """The tokenizer's folder that was named, else `folder`."""
    return folder if tokenizer is None else find_checkpoint(tokenizer, weights=False).folder


def read_tar(tar: Path, backbone_config: str | None, tokenizer: str | None) -> Run:
    """A run from the tensors of its model.tar."""
    weights = read_weights(tar)
    sides = {side: below(weights, prefix) for side, prefix in PREFIXES.items()}
    complain(
        str(tar),
        missing=[] if sides["document"] else [f"{PREFIXES['document']}*"],
        unexpected=[key for key in weights if not key.startswith(tuple(PREFIXES.values()))],
        misshaped=[],
    )
    run = next((folder for folder in (tar.parent, tar.parent.parent) if (folder / "config.yaml").is_file()), None)
    about = read_yaml(run / "config.yaml") if run else {}
    trained_from = about.get("init_dict") or {}
    near = [tar.parent]
    document_config = config_folder(tar, backbone_config, near, trained_from.get("model_type_or_dir"))
    tokens_of = (about.get("config") or {}).get("tokenizer_type") or trained_from.get("model_type_or_dir")
    tokens = tokenizer_folder(tar, tokenizer, [tar.parent, document_config], tokens_of)
    document = SideFiles(document_config, tokens, sides["document"])
    query = None
    if sides["query"]:
        near = [tar.parent / "query", tar.parent / "model_q", tar.parent.parent / "model_q"]
        named = trained_from.get("model_type_or_dir_q")
        config = config_folder(tar, None, near, named) if named or is_configured(near) else document_config
        query = SideFiles(config, tokens, sides["query"])
    return Run(document, query, read_recipe(run))


def is_configured(folders: list[Path]) -> bool:
    """True if one of the folders has a config.json."""
    return any((folder / "config.json").is_file() for folder in folders)


def config_folder(tar: Path, named: str | None, near: list[Path], trained_from: str | None) -> Path:
    """The folder of a backbone's configuration: the one named, one near, else that of the model it was trained from.

    Raises:
        CheckpointError: none of these can be had.
    """
    if named is not None:
        return find_checkpoint(named, weights=False).folder
    for folder in near:
        if (folder / "config.json").is_file():
            return folder
    if trained_from is None:
        raise CheckpointError(
            f"{tar}: holds no configuration, and none lies beside it; name that of its backbone with --backbone-config"
        )
    return companion(trained_from, tar, "--backbone-config")


def tokenizer_folder(tar: Path, named: str | None, near: list[Path], trained_with: str | None) -> Path:
    """The folder of the tokenizer, found in the same order."""
    if named is not None:
        return find_checkpoint(named, weights=False).folder
    found = next((folder for folder in near if has_tokenizer(folder)), None)
    if found is not None or trained_with is None:
        return found or tar.parent
    return companion(trained_with, tar, "--tokenizer")


def companion(name: str, tar: Path, option: str) -> Path:
    """The folder of a model that a run's config.yaml names.

    Raises:
        CheckpointError: it cannot be had; the message says which option names another.
    """
    try:
        return find_checkpoint(name, weights=False).folder
    except CheckpointError as error:
        raise CheckpointError(f"{tar}: config.yaml trained from {name}: {error}; or name it with {option}") from error


def read_recipe(run: Path | None) -> Recipe:
    """The recipe in a run's config.yaml; an empty one without that file.

    Raises:
        CheckpointError: a kind of model or a pooling that is no SPLADE of the paper's.
    """
    path = run / "config.yaml" if run else None
    if path is None or not path.is_file():
        return Recipe()
    about = read_yaml(path)
    model, training = about.get("init_dict") or {}, about.get("config") or {}
    kind = training.get("matching_type") or "splade"
    if kind not in DEFAULTS:
        raise CheckpointError(f"{path}: matching_type {kind!r} is no SPLADE; expected {', '.join(DEFAULTS)}")
    pooling, topk, query_topk, lexical = DEFAULTS[kind]
    pooling = model.get("agg") or pooling
    if pooling not in ("max", "sum"):
        raise CheckpointError(f"{path}: agg {pooling!r} is not known; expected max or sum")
    return Recipe(
        pooling,
        doc_only=kind == "splade_doc",
        lexical=model.get("lexical_type") or lexical,
        topk=limit(model.get("top_d", topk)),
        query_topk=limit(model.get("top_q", query_topk)),
        max_length=training.get("max_length"),
    )


def limit(k: int | None) -> int | None:
    """A number of dimensions to keep; the trainer's -1 keeps all."""
    return k if k is not None and k > 0 else None


def masked_lm_of(
    config: Path, weights: Mapping[str, Tensor], where: str, device: torch.device
) -> tuple[Backbone, Head, int]:
    """A masked LM of exactly `weights`, split before its decoder: backbone, head, number of tokens.

    Args:
        config: the folder of its configuration.
        weights: by transformers' names.
        where: names the weights in errors.
        device: to put it on.

    Raises:
        CheckpointError: the configuration is no masked LM's, or the weights do not fit it.
    """
    import transformers

    about = read_config(config)
    try:
        model: Any = transformers.AutoModelForMaskedLM.from_config(about)
    except ValueError as error:
        raise CheckpointError(f"{config}/config.json: {about.model_type} is no masked LM") from error
    load_strictly(model, weights, where, ignored=[r"(.*\.)?pooler\..*"])
    return *split_masked_lm(model.eval().to(device)), about.vocab_size
