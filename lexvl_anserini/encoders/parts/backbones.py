"""Backbones: transformers models as functions from token ids [B, L] to hidden states [B, L, D]."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import complain, load_strictly
from lexvl_anserini.encoders.parts.towers import Backbone, Head
from lexvl_anserini.errors import CheckpointError

# Heads that a plain backbone does not use and that a checkpoint may carry.
UNUSED_HEADS = re.compile(
    r"(.*\.)?(pooler|cls|lm_head|head|decoder|vocab_transform|vocab_layer_norm|vocab_projector|mlm_head|predictions"
    r"|generator_predictions|generator_lm_head|discriminator_predictions)\..*"
)
POSITION_IDS = re.compile(r".*position_ids")

# Architectures whose positions are counted from the padding id on, as fairseq's were: that many fewer tokens fit.
OFFSET_POSITIONS = frozenset(
    {"camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"}
)


class PassThrough(nn.Identity):
    """Stands where a masked-LM's decoder was, so that its `logits` are the decoder's inputs."""

    bias = None


def read_config(folder: Path) -> Any:
    """The transformers configuration of a folder.

    Raises:
        CheckpointError: absent, unreadable, or of a model type transformers does not know.
    """
    import transformers

    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no config.json; a checkpoint is a folder with config.json and weights")
    try:
        return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(f"{folder}/config.json: {str(error).splitlines()[0]}") from error


def position_limit(config: Any) -> int | None:
    """The most tokens a text may have, special ones included; None if the configuration does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return None
    return positions - (config.pad_token_id or 0) - 1 if config.model_type in OFFSET_POSITIONS else positions


@contextmanager
def quietly() -> Iterator[None]:
    """Keeps transformers' bars and load reports out of the user's way; what they would say is raised as an error."""
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
    """Loads through transformers in float32 and eval mode; returns the model and what did not fit.

    Raises:
        CheckpointError: the files cannot be read.
    """
    try:
        with quietly():
            model, info = auto.from_pretrained(
                str(folder),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # reported in the loading info, and refused by `complain`
            )
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{folder}: the weights cannot be read ({type(error).__name__}: {first})") from error
    return model.eval(), info


def misshapen(info: Mapping[str, Any]) -> list[str]:
    """The weights of another shape than the configuration's, as `complain` names them."""
    return [f"{key} {list(found)}, expected {list(wanted)}" for key, found, wanted in info["mismatched_keys"]]


def hidden_states(model: nn.Module) -> Backbone:
    """The last hidden state of an encoder."""
    return lambda input_ids, attention_mask: model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def load_backbone(checkpoint: Checkpoint, device: torch.device) -> tuple[Any, int]:
    """A text encoder without its heads, from any folder that holds one; returns it and its number of tokens.

    Raises:
        CheckpointError: weights of the encoder itself are missing, or keys are left over that are no head.
    """
    import transformers

    config = read_config(checkpoint.folder)
    if not hasattr(config, "vocab_size"):
        raise CheckpointError(f"{checkpoint.folder}: a {config.model_type} model, expected an encoder of texts alone")
    model, info = from_pretrained(transformers.AutoModel, checkpoint.folder)
    complain(
        str(checkpoint.folder),
        missing=[k for k in info["missing_keys"] if not re.fullmatch(r"(.*\.)?pooler\..*", k)],
        unexpected=[k for k in info["unexpected_keys"] if not (UNUSED_HEADS.fullmatch(k) or POSITION_IDS.fullmatch(k))],
        misshaped=misshapen(info),
    )
    return model.to(device), config.vocab_size


def bert_from_weights(config: Any, weights: Mapping[str, Tensor], where: str, device: torch.device) -> Any:
    """A BertModel without pooler holding exactly `weights` (keys as in BertModel)."""
    import transformers

    model = transformers.BertModel(config, add_pooling_layer=False)
    load_strictly(model, weights, where, ignored=[r"pooler\..*"])
    return model.eval().to(device)


def load_masked_lm(folder: Path, device: torch.device) -> tuple[Backbone, Head, int]:
    """A masked language model, split before its decoder.

    Returns the backbone together with the head's transform (dense, GELU, LayerNorm), the head that is left
    (decoder matrix and bias), and the number of tokens. Works for every architecture transformers knows as a
    masked LM: its decoder is replaced by a pass-through, so [B, L, V] is never computed by the model itself.

    Raises:
        CheckpointError: the folder is no masked LM (a dense model has no MLM head), or weights are missing.
    """
    import transformers

    config = read_config(folder)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise CheckpointError(f"{folder}: a {config.model_type} model, which has no masked-LM head")
    model, info = from_pretrained(transformers.AutoModelForMaskedLM, folder)
    missing = list(info["missing_keys"])
    if any(not re.search(r"embeddings|encoder|transformer\.layer|layers\.", key) for key in missing):
        raise CheckpointError(
            f"{folder}: no masked-LM head (missing {', '.join(sorted(missing)[:3])}); a dense or plain backbone "
            "is not a sparse checkpoint: use --encoder sentence for dense vectors or --encoder vdr for the tied head"
        )
    complain(
        str(folder),
        missing=missing,
        unexpected=[
            k
            for k in info["unexpected_keys"]
            if not (re.fullmatch(r"(.*\.)?pooler\..*|.*seq_relationship.*", k) or POSITION_IDS.fullmatch(k))
        ],
        misshaped=misshapen(info),
    )
    return *split_masked_lm(model.to(device)), config.vocab_size


def split_masked_lm(model: Any) -> tuple[Backbone, Head]:
    """A loaded masked LM before its decoder, and the decoder as a head; the model's own decoder is taken out of it."""
    decoder = model.get_output_embeddings()
    head = Head(nn.Identity(), decoder.weight.detach(), None if decoder.bias is None else decoder.bias.detach())
    model.set_output_embeddings(PassThrough())

    def backbone(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits

    return backbone, head
