"""A pair encodes a batch: the vectors of both sides, and what else the sides compute that objectives read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lexvl_anserini.training.common.batches import TrainingBatch
from lexvl_anserini.training.common.inputs import Details, TextBatch
from lexvl_anserini.training.common.loss import Temperatures
from lexvl_anserini.training.common.pieces import Pieces
from lexvl_anserini.training.common.tower_pair import TowerPair, WithCodebook
from lexvl_anserini.training.objectives.contrastive import Dense, Encoded


def details(side: Any, inputs: Any) -> Details:
    """What a side computes, in float32; a side without a method `details` has vectors alone."""
    computed: Details = side.details(inputs) if hasattr(side, "details") else Details(side(inputs))
    logits, dense = (None if part is None else part.float() for part in (computed.logits, computed.dense))
    return Details(computed.vectors.float(), logits, dense)


def encode(pair: TowerPair, batch: TrainingBatch, pieces: Pieces) -> tuple[Sequence[Encoded], Temperatures]:
    """One `Encoded` per round of texts, all with the same documents; and the temperatures."""
    # Padding is masked everywhere, so rounds of different lengths pass the text side one after the other.
    documents = pieces(details, pair.encoder_p, batch.documents)
    bag = batch.documents.bag if isinstance(batch.documents, TextBatch) else None
    codebook = pair.encoder_p.codebook.rows if isinstance(pair.encoder_p, WithCodebook) else None
    rounds = [
        with_details(pieces(details, pair.encoder_q, texts), documents, texts.bag, bag)._replace(
            codebook=codebook, expanded=batch.expanded, taught=batch.taught
        )
        for texts in batch.rounds
    ]
    with pieces.together():
        for part in pair.active_parts():
            rounds = part.add_to(pair, batch, rounds)
    of_bags = pair.log_bag_temperature
    return rounds, Temperatures(pair.log_temperature.exp(), None if of_bags is None else of_bags.exp())


def with_details(queries: Details, documents: Details, query_bag: Tensor, document_bag: Tensor | None) -> Encoded:
    """One round of a batch; where documents keep their logits, a caption's vector has its own terms alone."""
    dense = None
    if queries.dense is not None and documents.dense is not None:
        dense = Dense(queries.dense, documents.dense)
    return Encoded(
        queries.vectors,
        documents.vectors,
        query_bag,
        document_bag,
        dense=dense,
        logits=documents.logits,
        caption=None if documents.logits is None else queries.vectors * query_bag,
    )
