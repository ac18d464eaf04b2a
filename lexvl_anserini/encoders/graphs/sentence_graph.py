"""A dense sentence-transformers model as a side to export: its transformer, pooling and layers after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lexvl_anserini.encoders.graphs.export_folder import TEXTS
from lexvl_anserini.encoders.graphs.exporting import ExportedSide, with_reader
from lexvl_anserini.encoders.parts.tokens import TextReader
from lexvl_anserini.encoders.sentence import SentenceTower
from lexvl_anserini.errors import UsageError


def sentence_side(tower: SentenceTower) -> ExportedSide:
    """The side of a sentence-transformers model.

    Raises:
        UsageError: it has other modules, or its pooling leaves the prompt out.
    """
    model: Any = tower.model
    names = [type(module).__name__ for module in model]
    if names[:2] != ["Transformer", "Pooling"] or set(names[2:]) - {"Dense", "Normalize"}:
        raise UsageError(
            f"a model of {', '.join(names)} cannot be exported; expected Transformer, Pooling, then Dense or Normalize"
        )
    prompt = (model.prompts or {}).get(tower.side) or ""
    if prompt and not getattr(model[1], "include_prompt", True):
        raise UsageError("a model whose pooling leaves the prompt out cannot be exported")

    def network(ids: Tensor, attention: Tensor) -> Tensor:
        features = {"input_ids": ids, "attention_mask": attention, "token_type_ids": torch.zeros_like(ids)}
        kept = set(model.tokenizer.model_input_names)
        vectors: Tensor = model({key: value for key, value in features.items() if key in kept})["sentence_embedding"]
        return vectors

    reader = TextReader(model.tokenizer, model.max_seq_length, prompt=prompt)
    width = model.get_embedding_dimension()
    entry = {"reads": TEXTS, "width": width, "normalise": tower.normalise, "dimensions": tower.dimensions}
    return with_reader(entry, network, reader)
