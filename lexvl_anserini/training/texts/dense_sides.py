"""Dense sides that read texts: DPR's BERTs and models of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.dense.dpr import CONTEXT, QUESTION, read_network
from lexvl_anserini.encoders.families.dense.sentence import load_sentence
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_backbone, position_limit, quietly, read_config
from lexvl_anserini.encoders.parts.batches import PassageReader, read_passage
from lexvl_anserini.encoders.parts.tokens import TextReader, columns_of_all, load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Document
from lexvl_anserini.training.texts.sides import Tokenised, TrainableText


class TrainableDpr(TrainableText):
    """v = the [CLS] state of a BERT, neither projected (unless the checkpoint is) nor normalised."""

    def __init__(self, bert: Any, projection: nn.Module, reader: TextReader):
        super().__init__(reader, columns_of_all(reader.tokenizer))
        if bert.config.model_type not in ("bert", "dpr"):
            raise UsageError(f"kind dpr trains a BERT; the checkpoint is a {bert.config.model_type} model")
        self.bert_model, self.projection = bert, projection

    def read_passages(self, passages: Sequence[Document]) -> list[Tokenised]:
        """Pairs of title and text, with token types 0 and 1."""
        pairs = PassageReader(self.reader)
        return [pairs.tokens(read_passage(passage)) for passage in passages]

    def vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Vectors [B, D]."""
        states = self.bert_model(input_ids=ids, attention_mask=attention, token_type_ids=types).last_hidden_state
        vectors: Tensor = self.projection(states[:, 0])
        return vectors


def load_dpr_sides(source: Source, max_length: int | None) -> tuple[TrainableDpr, TrainableDpr]:
    """One side for both, from a folder of DPR or any BERT.

    Raises:
        CheckpointError: neither.
    """
    checkpoint = source.required("dpr")
    config = read_config(checkpoint.folder)
    if config.model_type == "dpr":
        bert, projection, size = *read_network(checkpoint, (QUESTION, CONTEXT), source.device), config.vocab_size
    else:
        (bert, size), projection = load_backbone(checkpoint, source.device), nn.Identity()
    limit = position_limit(config)
    length = max_length or min(256, limit or 256)
    side = TrainableDpr(
        bert, projection, TextReader(load_tokenizer(source.tokenizer_folder(), size), length, limit=limit)
    )
    return side, side


class TrainableSentence(TrainableText):
    """v = what the modules of a sentence-transformers model give; of unit length where it compares by cosine."""

    def __init__(self, model: Any, cosine: bool, max_length: int | None):
        if model.tokenizer is None or not hasattr(model[0], "auto_model"):
            raise UsageError("kind sentence trains models whose first module is a network of transformers")
        if max_length is not None:
            model.max_seq_length = max_length
        length = model.max_seq_length or position_limit(model[0].auto_model.config) or 512
        super().__init__(TextReader(model.tokenizer, length), columns_of_all(model.tokenizer))
        self.model, self.cosine = model, cosine
        prompts = getattr(model, "prompts", None) or {}
        self.prompts = [prompts.get(side) or "" for side in ("query", "document")]

    def read_queries(self, queries: Sequence[str]) -> list[Tokenised]:
        """Token ids of queries after their prompt."""
        return self._read(queries, self.prompts[0])

    def read_passages(self, passages: Sequence[Document]) -> list[Tokenised]:
        """Token ids of documents after their prompt."""
        return self._read([passage.contents for passage in passages], self.prompts[1])

    def _read(self, texts: Sequence[str], prompt: str) -> list[Tokenised]:
        return [(ids, [0] * len(ids)) for ids in replace(self.reader, prompt=prompt)(texts)]

    def vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Vectors [B, D]."""
        vectors: Tensor = self.model({"input_ids": ids, "attention_mask": attention})["sentence_embedding"]
        return normalize(vectors, dim=1) if self.cosine else vectors


def load_sentence_sides(source: Source, max_length: int | None) -> tuple[TrainableSentence, TrainableSentence]:
    """One side for both, from a folder of sentence-transformers, or any backbone with the mean of its states.

    Raises:
        CheckpointError: neither.
    """
    folder = source.required("sentence").folder
    if (folder / "modules.json").is_file():
        tower: Any = load_sentence(source).query
        side = TrainableSentence(tower.model, tower.normalise, max_length)
        return side, side
    from sentence_transformers import SentenceTransformer

    # 6.x has the modules in another place than 5.x.
    modules: Any
    try:
        modules = import_module("sentence_transformers.sentence_transformer.modules")
    except ImportError:
        modules = import_module("sentence_transformers.models")

    # Raises the errors of a folder that is no backbone, which the library would not.
    width = load_backbone(source.required("sentence"), source.device)[0].config.hidden_size
    with quietly():
        backbone = modules.Transformer(str(folder), max_seq_length=max_length)
        pooling = modules.Pooling(width, "mean")
        model = SentenceTransformer(modules=[backbone, pooling, modules.Normalize()], device=str(source.device))
    side = TrainableSentence(model, True, max_length)
    return side, side
