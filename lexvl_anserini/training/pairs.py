"""Pairs of towers that training changes, and how to save a pair in the layout that its encoder loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.dense_crossmodal import IMAGE_TYPE as DENSE_IMAGE
from lexvl_anserini.encoders.dense_crossmodal import TEXT_TYPE as DENSE_TEXT
from lexvl_anserini.encoders.dense_crossmodal import mean_state
from lexvl_anserini.encoders.parts.activations import elu1p
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.vision import PatchTransformer
from lexvl_anserini.encoders.vdr import HEAD_EPS
from lexvl_anserini.encoders.vdr_crossmodal import IMAGE_TYPES, TEXT_TYPES
from lexvl_anserini.files import write_json
from lexvl_anserini.training.projection import project_max
from lexvl_anserini.training.recipe import ModelSettings
from lexvl_anserini.training.words import CHARACTERS, FIRST_WORD_ID

# The folder of a checkpoint with the configuration of the text backbone and the tokenizer.
TEXT_FOLDER = "text"

# Standard deviation of random initial weights, as in BERT and CLIP.
INITIAL_STD = 0.02


class TextBatch(NamedTuple):
    """Token ids and attention mask, int64 [B, L], and the dimensions of the texts' own tokens, bool [B, V]."""

    ids: Tensor
    attention: Tensor
    bag: Tensor


class TextSide(nn.Module):
    """A BERT without pooler; subclasses add the head. Keys as in published checkpoints."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__()
        import transformers

        text = model.text
        self.config = transformers.BertConfig(
            vocab_size=len(columns.of_token),
            hidden_size=text.width,
            num_hidden_layers=text.layers,
            num_attention_heads=text.heads,
            intermediate_size=4 * text.width,
            hidden_dropout_prob=text.dropout,
            attention_probs_dropout_prob=text.dropout,
            max_position_embeddings=text.max_length,
        )
        self.bert_model = transformers.BertModel(self.config, add_pooling_layer=False)

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D]."""
        states: Tensor = self.bert_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return states


class VdrText(TextSide):
    """w = elu1p(max_i <ln(h_i), E_v>), of unit length."""

    tokens: Tensor

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(model, columns)
        self.ln = nn.LayerNorm(model.text.width, eps=HEAD_EPS)
        self.register_buffer("tokens", torch.from_numpy(columns.tokens), persistent=False)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        embeddings = self.bert_model.embeddings.word_embeddings.weight[self.tokens]
        pooled = project_max(self.ln(self.states(batch)), embeddings, batch.attention == 0)
        return normalize(elu1p(pooled), dim=1)


class VdrImage(PatchTransformer):
    """w = elu1p(max_p <h_p, P_v>), of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(**vision_shape(model))
        self.proj = nn.Parameter(torch.randn(len(columns.vocabulary), model.image.width) * INITIAL_STD)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)

    def forward(self, pixels: Tensor) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return normalize(elu1p(project_max(super().forward(pixels), self.proj)), dim=1)


class DenseText(TextSide):
    """v = W mean_i h_i over the tokens of a text, of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(model, columns)
        self.proj = nn.Parameter(torch.randn(model.dimensions, model.text.width) * model.text.width**-0.5)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(mean_state(self.states(batch), batch.attention) @ self.proj.T, dim=1)


class DenseImage(PatchTransformer):
    """v = W mean_p h_p over the patches, of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(**vision_shape(model))
        self.proj = nn.Parameter(torch.randn(model.dimensions, model.image.width) * model.image.width**-0.5)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)

    def forward(self, pixels: Tensor) -> Tensor:
        """Vectors [B, D]."""
        return normalize(super().forward(pixels).mean(dim=1) @ self.proj.T, dim=1)


class TowerPair(nn.Module):
    """`encoder_q` reads texts, `encoder_p` images; the logarithm of the temperature is learned or constant."""

    def __init__(self, text: TextSide, image: PatchTransformer, temperature: float, learn_temperature: bool):
        super().__init__()
        self.encoder_q, self.encoder_p = text, image
        logarithm = torch.tensor(temperature).log()
        self.log_temperature = nn.Parameter(logarithm, requires_grad=learn_temperature)


class PairKind(NamedTuple):
    """What `model.kind` of a recipe decides.

    text, image            classes of the two sides
    text_type, image_type  their names in config.json
    """

    text: Callable[[ModelSettings, TokenColumns], TextSide]
    image: Callable[[ModelSettings, TokenColumns], PatchTransformer]
    text_type: str
    image_type: str


KINDS: Mapping[str, PairKind] = {
    "vdr-crossmodal": PairKind(VdrText, VdrImage, TEXT_TYPES[0], IMAGE_TYPES[0]),
    "dense-crossmodal": PairKind(DenseText, DenseImage, DENSE_TEXT, DENSE_IMAGE),
}


def vision_shape(model: ModelSettings) -> dict[str, Any]:
    """The arguments of a PatchTransformer, as config.json stores them."""
    shape = model.image.model_dump(mode="json")
    return {key: value for key, value in shape.items() if value is not None}


def make_pair(model: ModelSettings, columns: TokenColumns, temperature: float, learn_temperature: bool) -> TowerPair:
    """A pair with random weights, drawn from the random state of torch."""
    kind = KINDS[model.kind]
    text, image = kind.text(model, columns), kind.image(model, columns)
    return TowerPair(text, image, temperature, learn_temperature)


def words_only(weights: Tensor) -> Tensor:
    """Vectors [n, V] without the dimensions of characters, as the saved pair's encoder returns them: [n, words]."""
    return normalize(weights[:, len(CHARACTERS) :], dim=1)


def save_pair(pair: TowerPair, model: ModelSettings, tokenizer: Any, folder: Path, weights: torch.dtype) -> None:
    """Writes config.json, model.safetensors and `text/` (backbone configuration, tokenizer) into an empty folder.

    Of the dimensions of a lexical pair, only words are saved (see `words`).
    """
    kind = KINDS[model.kind]
    text = {"type": kind.text_type, "model_id": TEXT_FOLDER, "max_len": model.text.max_length, "padding": "none"}
    image = {"type": kind.image_type, **vision_shape(model)}
    text_folder = folder / TEXT_FOLDER
    tokenizer.save_pretrained(str(text_folder))
    pair.encoder_q.config.save_pretrained(str(text_folder))
    state = {
        key: (value.to(weights) if value.is_floating_point() else value).contiguous().cpu()
        for key, value in pair.state_dict().items()
        if key != "log_temperature"
    }
    if model.lexical:
        text |= {"first_word_id": FIRST_WORD_ID, "topk": model.topk}
        image |= {"topk": model.topk}
        state["encoder_p.proj"] = state["encoder_p.proj"][len(CHARACTERS) :].contiguous()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", {"encoder_q": text, "encoder_p": image})
