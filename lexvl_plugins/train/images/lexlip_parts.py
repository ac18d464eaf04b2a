"""What LexLIP's training computes beside the vectors of a batch: masked words (phase 1), momentum keys (phase 2).

Both are parts of a pair while it trains, so that a state has them, and no part of a checkpoint. Phase 1 reads the
network of the texts at each step, because masked words change its states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.parts.tokens import list_token_strings
from lexvl_plugins.train.common.tower_pair import Details, TextBatch, TrainingBatch, TrainingPart
from lexvl_plugins.train.images.networks import TextNetwork
from lexvl_plugins.train.images.sides import LexicalText
from lexvl_plugins.train.objectives import family_losses
from lexvl_plugins.train.objectives.encoded import Keys, Predicted
from lexvl_plugins.train.recipe import StageSettings

# Layers of the weak decoder.
DECODER_LAYERS = 2


class MaskedWords(TrainingPart):
    """Predictions of masked words that are terms, of the encoder, and of a weak decoder after text and after image."""

    dimension: Tensor
    continues: Tensor
    special: Tensor

    def __init__(self, text: TextNetwork):
        super().__init__()
        config, tokenizer = text.bert.config, text.tokenizer
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        self.decoder = nn.TransformerEncoder(layer, DECODER_LAYERS, enable_nested_tensor=False)
        self.mask_id, self.size = int(tokenizer.mask_token_id), len(tokenizer)
        self.terms = [int(token) for token in text.columns.tokens]
        continues = torch.tensor([token.startswith("##") for token in list_token_strings(tokenizer)])
        special = torch.zeros(self.size, dtype=torch.bool)
        special[list(tokenizer.all_special_ids)] = True
        self.register_buffer("dimension", torch.from_numpy(text.columns.of_token).clone(), persistent=False)
        self.register_buffer("continues", continues, persistent=False)
        self.register_buffer("special", special, persistent=False)

    def start(self, pair: Any, stage: StageSettings) -> None:
        """Lets the decoder train."""
        self.requires_grad_(True)

    def compute_fields(self, pair: Any, batch: TrainingBatch, documents: Details) -> list[dict[str, Any]]:
        """Three predictions for each round."""
        assert documents.logits is not None, "lexical images keep their logits"
        return [{"predicted": self.predict(pair.encoder_q, texts, documents.logits)} for texts in batch.rounds]

    def predict(self, side: LexicalText, texts: TextBatch, images: Tensor) -> tuple[Predicted, ...]:
        """Predictions of the encoder, of the decoder after the text, and of the decoder after the image."""
        padding: Tensor = texts.attention == 0
        network: Any = side.network
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        ids, labels = self.mask(texts, family_losses.ENCODER_SHARE, generator)
        states = network(input_ids=ids, attention_mask=texts.attention).last_hidden_state
        logits = side.logits(states)  # [B, L, V]
        weak_ids, weak_labels = self.mask(texts, family_losses.DECODER_SHARE, generator)
        embedded = network.embeddings(input_ids=weak_ids)  # [B, L, D]
        words = network.get_input_embeddings().weight[self.terms]
        predicted = [Predicted(logits, labels)]
        for first in (
            family_losses.compute_bottleneck(logits, words, padding),
            family_losses.compute_bottleneck(images[:, None], words),
        ):
            states = torch.cat([first[:, None], embedded[:, 1:]], dim=1)
            decoded = self.decoder(states, src_key_padding_mask=padding)
            predicted.append(Predicted(side.logits(decoded), weak_labels))
        return tuple(predicted)

    def mask(self, texts: TextBatch, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Token ids with masked words, and the term of each masked position, both int64 [B, L]."""
        special = self.special[texts.ids] | (texts.attention == 0)
        begins = ~self.continues[texts.ids] & ~special
        words = (begins.cumsum(dim=1) - 1).masked_fill(special, -1)
        ids, labels = family_losses.mask_words(texts.ids.cpu(), words.cpu(), share, self.mask_id, self.size, generator)
        labels = labels.to(texts.ids.device)
        terms = torch.where(labels == family_losses.IGNORED, -1, self.dimension[labels.clamp(min=0)])
        return ids.to(texts.ids.device), terms.masked_fill(terms < 0, family_losses.IGNORED)


class MomentumKeys(TrainingPart):
    """Encoders whose weights follow those of the pair, and queues of their vectors of earlier batches.

    A stage begins with copies and empty queues; the reference, with untrained networks and noise.
    """

    queries: Tensor
    documents: Tensor
    place: Tensor
    held: Tensor

    def __init__(self, pair: Any, terms: int, queue: int):
        super().__init__()
        self.encoder_q, self.encoder_p = deepcopy(pair.encoder_q), deepcopy(pair.encoder_p)
        self.decay = 0.0
        for name in ("queries", "documents"):
            self.register_buffer(name, torch.zeros(queue, terms))
        for name in ("place", "held"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))
        self.latest: tuple[Tensor, Tensor] | None = None

    def start(self, pair: Any, stage: StageSettings) -> None:
        """Copies the pair and empties the queues."""
        self.decay = stage.momentum.decay
        self.follow(pair, 0.0)
        self.place.zero_()
        self.held.zero_()

    @torch.no_grad()
    def follow(self, pair: Any, decay: float) -> None:
        """Weights become decay times themselves plus the rest of the pair's."""
        for ours, theirs in ((self.encoder_q, pair.encoder_q), (self.encoder_p, pair.encoder_p)):
            for own, value in zip(ours.parameters(), theirs.parameters(), strict=True):
                own.lerp_(value, 1 - decay)
            for own, value in zip(ours.buffers(), theirs.buffers(), strict=True):
                own.copy_(value)

    @torch.no_grad()
    def compute_fields(self, pair: Any, batch: TrainingBatch, documents: Details) -> list[dict[str, Any]]:
        """Keys for each round; those of the last round join the queues after the step."""
        images = normalize(self.encoder_p(batch.documents).float(), dim=1)
        texts = [normalize(self.encoder_q(captions).float(), dim=1) for captions in batch.rounds]
        self.latest = texts[-1], images
        held = int(self.held)
        return [{"keys": Keys(keys, images, self.queries[:held], self.documents[:held])} for keys in texts]

    @torch.no_grad()
    def settle(self, pair: Any) -> None:
        """The weights follow the pair, and the queues get the keys of the batch."""
        self.follow(pair, self.decay)
        if self.latest is None:
            return
        size, count = len(self.queries), len(self.latest[0])
        place = int(self.place)
        self.queries, following = family_losses.enqueue(self.queries, place, self.latest[0])
        self.documents, _ = family_losses.enqueue(self.documents, place, self.latest[1])
        self.place.fill_(following)
        self.held.copy_((self.held + count).clamp(max=size))
        self.latest = None


def make_parts(pair: Any, stages: Sequence[StageSettings], text: TextNetwork) -> dict[str, TrainingPart]:
    """The parts that the stages need, by the name of their objective."""
    makers: Mapping[str, Callable[[], TrainingPart]] = {
        "masked_words": lambda: MaskedWords(text),
        "lexlip_momentum": lambda: MomentumKeys(
            pair, len(text.columns.vocabulary), max(stage.momentum.queue for stage in stages)
        ),
    }
    named = {name for stage in stages for name in stage.names}
    return {name: make() for name, make in makers.items() if name in named}
