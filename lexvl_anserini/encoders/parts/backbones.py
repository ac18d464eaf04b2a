"""Backbones: transformers models as functions from token ids [B, L] to hidden states [B, L, D]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import (
    build,
    build_outline,
    check_repeated,
    complain,
    load_strictly,
    read_weights,
)
from lexvl_anserini.encoders.parts.towers import Backbone, Head
from lexvl_anserini.ground.errors import CheckpointError, describe_error
from lexvl_anserini.ground.files import read_json

# Heads that a checkpoint may have and a plain backbone does not use.
UNUSED_HEADS = re.compile(
    r"(.*\.)?(pooler|cls|lm_head|head|decoder|vocab_transform|vocab_layer_norm|vocab_projector|mlm_head|predictions"
    r"|generator_predictions|generator_lm_head|discriminator_predictions)\..*|.*position_ids"
)

# What lies beside the head of a language model.
BESIDE_HEAD = re.compile(r"(.*\.)?pooler\..*|.*seq_relationship.*|.*position_ids")

# Architectures that number positions from the padding id on, as fairseq does: so many fewer tokens fit.
OFFSET_POSITIONS = frozenset(
    {"camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"}
)


class PassThrough(nn.Identity):
    """Replaces the decoder of a masked LM, so that the `logits` of the model are the inputs of the decoder."""

    bias = None


def read_config(folder: Path) -> Any:
    """The transformers configuration of a folder."""
    import transformers

    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: no config.json; a checkpoint is a folder with config.json and weights")
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(f"{folder}: has an adapter (adapter_config.json); merge it into the weights of its model")
    content = read_json(path, "model configuration", CheckpointError)
    check_repeated(content, str(path))
    kind = content.get("model_type")
    if ("model_type" in content or "auto_map" in content) and kind not in list(transformers.CONFIG_MAPPING):
        raise CheckpointError(f"{path}: transformers has no model type {kind!r:.80}; code of a checkpoint is never run")
    if content.get("quantization_config"):
        raise CheckpointError(f"{path}: the weights are quantised; name the checkpoint that they were made from")
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        # A file may name a kernel on the hub here, which is compiled code.
        config._attn_implementation = config._experts_implementation = None
    except Exception as error:  # a wrong value raises any error
        raise CheckpointError(f"{path}: {describe_error(error)}") from error
    return config


def read_position_limit(config: Any) -> int | None:
    """The largest number of tokens of a text, with special tokens; None if the configuration has no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return None
    return positions - (config.pad_token_id or 0) - 1 if config.model_type in OFFSET_POSITIONS else positions


@contextmanager
def quietly() -> Iterator[None]:
    """Hides the progress bars and load reports of transformers; `complain` raises an error for what they report."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def from_pretrained(auto: Any, folder: Path) -> tuple[nn.Module, Mapping[str, Any]]:
    """A model in float32 and eval mode, by no code or adapter of the folder, and the report of keys that do not fit."""
    kind, config, weights = check_model(auto, folder)
    try:
        with quietly():
            model, info = kind.from_pretrained(
                None,
                config=config,
                # Copies, because transformers would use these tensors themselves, which are pages of the file.
                state_dict={key: value.clone() for key, value in weights.items()},
                output_loading_info=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # in the loading info, for which `complain` raises an error
            )
    except Exception as error:
        raise CheckpointError(f"{folder}: the model cannot be loaded ({describe_error(error)})") from error
    return model.eval(), info


def check_model(auto: Any, folder: Path) -> tuple[Any, Any, dict[str, Tensor]]:
    """The class of a model by its configuration, the configuration, and the weights, which fit each other in size."""
    config = read_config(folder)
    # The one file that transformers saved, or the folder if it has several.
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    file = next((folder / name for name in names if (folder / name).is_file()), folder)
    weights = read_weights(folder if file.suffix == ".json" else file)
    make = partial(auto.from_config, config, trust_remote_code=False)
    return type(build_outline(make, weights, str(folder / "config.json"))), config, weights


def complain_of_report(where: str, info: Mapping[str, Any], missing: Iterable[str], unused: re.Pattern[str]) -> None:
    """Raises CheckpointError for `missing` keys, keys that are not `unused`, and shapes that do not fit."""
    unexpected = [key for key in info["unexpected_keys"] if not unused.fullmatch(key)]
    shapes = [f"{key} {list(shape)}, expected {list(expected)}" for key, shape, expected in info["mismatched_keys"]]
    complain(where, missing, unexpected, shapes)


def take_hidden_states(model: nn.Module) -> Backbone:
    """The last hidden state of an encoder."""
    return lambda input_ids, attention_mask: model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def load_backbone(checkpoint: Checkpoint, device: torch.device) -> tuple[Any, int]:
    """A text encoder without its heads, from any folder that has one; returns it and its number of tokens."""
    import transformers

    config = read_config(checkpoint.folder)
    if not hasattr(config, "vocab_size"):
        raise CheckpointError(f"{checkpoint.folder}: a {config.model_type} model, expected an encoder of texts alone")
    model, info = from_pretrained(transformers.AutoModel, checkpoint.folder)
    missing = [key for key in info["missing_keys"] if not re.fullmatch(r"(.*\.)?pooler\..*", key)]
    complain_of_report(str(checkpoint.folder), info, missing, UNUSED_HEADS)
    return model.to(device), config.vocab_size


def build_bert(config: Any, weights: Mapping[str, Tensor], where: str, device: torch.device) -> Any:
    """A BertModel without pooler and with exactly `weights` (keys as in BertModel)."""
    import transformers

    make = partial(transformers.BertModel, config, add_pooling_layer=False)
    model = build(make, weights, f"{where}: its configuration")
    load_strictly(model, weights, where, ignored=[r"pooler\..*"])
    return model.eval().to(device)


def is_causal_lm(architectures: Any) -> bool:
    """Whether `architectures` of a configuration names a decoder with its head, such as Qwen3ForCausalLM."""
    return any(str(name).endswith("ForCausalLM") for name in architectures or ())


def build_language_model(folder: Path) -> Any:
    """The class of transformers that loads a language model: a causal one if the configuration names one, or masked."""
    import transformers

    config = read_config(folder)
    causal = is_causal_lm(config.architectures)
    known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING if causal else transformers.MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in known:
        kind = "language-model" if causal else "masked-LM"
        raise CheckpointError(f"{folder}: a {config.model_type} model, which has no {kind} head")
    if getattr(config, "final_logit_softcapping", None):
        raise CheckpointError(f"{folder}: a {config.model_type} model, which caps its logits; no linear head")
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM


def load_language_model(folder: Path, device: torch.device) -> tuple[Backbone, Head, int]:
    """A masked or causal language model, split before its decoder.

    A pass-through replaces the decoder, so that the model never computes [B, L, V]. Which tokens see each other is the
    configuration's: of a causal model the earlier ones, unless it says `is_causal: false`, as SPLADE-Code does. Returns
    the backbone with the head's transform, the rest of the head (matrix and bias), and the number of tokens.
    """
    model: Any
    model, info = from_pretrained(build_language_model(folder), folder)
    missing = list(info["missing_keys"])
    if any(not re.search(r"embeddings|encoder|transformer\.layer|layers\.", key) for key in missing):
        raise CheckpointError(
            f"{folder}: no masked-LM head (missing {', '.join(sorted(missing)[:3])}); a dense or plain backbone "
            "is not a sparse checkpoint: use --encoder sentence for dense vectors or --encoder vdr for the tied head"
        )
    complain_of_report(str(folder), info, missing, BESIDE_HEAD)
    return *split_language_model(model.to(device)), model.config.vocab_size


def split_language_model(model: Any) -> tuple[Backbone, Head]:
    """A loaded language model up to its decoder, and the decoder as a head; removes the decoder from the model."""
    decoder = model.get_output_embeddings()
    head = Head(nn.Identity(), decoder.weight.detach(), None if decoder.bias is None else decoder.bias.detach())
    model.set_output_embeddings(PassThrough())
    model.config.use_cache = False  # of causal models: keys and values for tokens to come

    def backbone(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits

    return backbone, head
