"""Lexical heads over one dense vector per item (D2S, Joint): from a live BLIP or ALBEF, or stored in tables.

A head maps a vector to the vocabulary; texts and images share the head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint, has_tokenizer
from lexvl_anserini.encoders.checkpoints.itc_layout import LoadedItc, load_itc
from lexvl_anserini.encoders.encoder import read_document, read_topic
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.images.vision import Images
from lexvl_anserini.encoders.parts.sparsify import keep_own, keep_top
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    TokenColumns,
    load_tokenizer,
    make_all_columns,
    make_term_columns,
    refuse_size,
)
from lexvl_anserini.encoders.parts.towers import (
    Batch,
    Composition,
    Head,
    Items,
    LexicalTower,
    ReadsItems,
    Texts,
    log1p_relu,
    pool_max,
)
from lexvl_anserini.ground.errors import FAIL, CheckpointError, DataError, OnError, UsageError
from lexvl_anserini.ground.records import Document, Topic, Vocabulary

# LAVIS reads 35 tokens in the evaluation of both families, whatever the training configuration has.
MAX_LENGTH = 35
MAX_WORDS = 50

_MARKS = re.compile(r'[.!"()*#:;~]')
_BLANKS = re.compile(r"\s{2,}")


def clean_caption(caption: str, words: int = MAX_WORDS) -> str:
    """Lower case, the characters . ! " ( ) * # : ; ~ as blanks, blanks joined, the first `words` words.

    >>> clean_caption('A "big" wave; the sky is cloudy.')
    'a big wave the sky is cloudy'
    """
    cleaned = _BLANKS.sub(" ", _MARKS.sub(" ", caption.lower())).rstrip("\n").strip(" ")
    return " ".join(cleaned.split(" ", words)[:words])


@dataclass(frozen=True)
class Captions(Texts):
    """Texts, cleaned before they are tokenised if `clean`."""

    clean: bool = True

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """Token ids and attention mask, both int64 [B, L]."""
        return super().batches([clean_caption(text) if self.clean else text for text in inputs], batch_size)


# Every positive dimension, the caption's own tokens with [CLS] and [SEP], or its own WordPieces only.
Expansion = Literal["expanded", "masked", "words"]

# The limit of BERT's tokenizers; the limit of the backbone does not cut a mask.
MASK_LENGTH = 512

# Rows of BLIP's text encoder after BERT's vocabulary, which tokenizers lack.
BLIP_TOKENS = ("[DEC]", "[ENC]")


# The tables of the authors of D2S.
TABLES = "img_embs.parquet, text_embs.parquet"


class Embedded(str):
    """A text (may be empty) with its vector: a reference `table.parquet::id`, or the vector [D] itself."""

    vector: str | np.ndarray

    def __new__(cls, text: str, vector: str | np.ndarray) -> Embedded:
        """A text and its vector."""
        embedded = super().__new__(cls, text)
        embedded.vector = vector
        return embedded


@dataclass(frozen=True)
class Stored(Items):
    """Vectors from tables, float32 [B, width]; with `needs_text`, own tokens of a text beside them mask the output."""

    width: int
    device: torch.device
    needs_text: bool = False
    tables: str = TABLES

    def read(self, document: Document) -> Embedded:
        """The text of a document, if it has one, with the reference of its vector."""
        text = read_document(document) if self.needs_text else document.contents
        return Embedded(text, _place("document", document.doc_id, document.image))

    def read_topic(self, topic: Topic) -> Embedded:
        """The text of a topic, if it has one, with the reference of its vector."""
        text = read_topic(topic) if self.needs_text else topic.text or ""
        return Embedded(text, _place("topic", topic.query_id, topic.image))

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs: `Embedded`, references, or vectors [D]."""
        for start in range(0, len(inputs), batch_size):
            vectors = read_stored_vectors(inputs[start : start + batch_size])
            if vectors.shape[1:] != (self.width,):
                name, reads = f"{_get_vector(inputs[start])!s:.80}", f"{self.width} ({self.tables})"
                raise DataError(f"{name}: vectors of {vectors.shape[1:]} numbers, this head reads {reads}")
            positions = np.arange(start, start + len(vectors), dtype=np.int64)
            yield Batch(positions, (torch.from_numpy(vectors).to(self.device),))


def read_stored_vectors(inputs: Sequence[Any]) -> np.ndarray:
    """The vectors of `Embedded` texts, references or vectors, float32 [n, D]."""
    vectors = [_get_vector(item) for item in inputs]
    places = [position for position, vector in enumerate(vectors) if isinstance(vector, str)]
    for position, row in zip(places, read_embeddings([vectors[p] for p in places]), strict=True):
        vectors[position] = row
    if len({np.shape(vector) for vector in vectors}) != 1:
        raise DataError(f"vectors of different lengths: {sorted({len(vector) for vector in vectors})}")
    return np.stack(vectors).astype(np.float32, copy=False)


def _get_vector(item: Any) -> Any:
    return item.vector if isinstance(item, Embedded) else item if isinstance(item, str) else np.asarray(item)


def _place(what: str, name: str, image: str | None) -> str:
    if image is None:
        encoded = "texts and images are encoded with --set backbone_checkpoint=..."
        raise UsageError(f"{what} {name!r} has no embedding; those of embeddings:<folder> have one, and {encoded}")
    return image


class Features(NamedTuple):
    """The vectors of one side: its items, and the function that embeds one forward pass as [B, D]."""

    items: Items
    embed: Callable[[Batch], Tensor]


def make_stored(width: int, device: torch.device, needs_text: bool = False, tables: str = TABLES) -> Features:
    """Vectors from tables; see `Stored`."""
    return Features(Stored(width, device, needs_text, tables), lambda batch: batch.inputs[0])


class TextAndImage(NamedTuple):
    """The vectors of texts and of images."""

    text: Features
    image: Features


class LiveOptions(NamedTuple):
    """The options of a head that are for the live BLIP or ALBEF below it; None where the user gave none."""

    backbone_checkpoint: str | None
    clean: bool | None
    resolution: int | None
    head_width: int | None


class HeadInputs(NamedTuple):
    """What a head reads of texts and images, its tokenizer, and its terms; None where each token is one."""

    tokenizer: Any
    sides: TextAndImage
    terms: Vocabulary | None = None


def make_caption_items(
    source: Source,
    checkpoint: Checkpoint,
    loaded: LoadedItc,
    clean: bool | None = None,
    max_length: int = MAX_LENGTH,
    fallback: Any = None,
) -> Captions:
    """The items of a BLIP's or ALBEF's text side; `clean` None cleans as the layout's own code does (LAVIS yes)."""
    named = source.tokenizer is not None or has_tokenizer(checkpoint.folder)
    if fallback is not None and not named:
        tokenizer = check_fitting(fallback, loaded.tokens, str(checkpoint.path))
    else:
        tokenizer = load_own_tokenizer(source, checkpoint, loaded.tokens)
    reader = TextReader(tokenizer, max_length, limit=loaded.positions)
    return Captions(reader, source.device, loaded.published == "lavis" if clean is None else clean)


def load_live_features(
    source: Source, live: LiveOptions, width: int, tokenizer: Any, projected: bool = True
) -> TextAndImage:
    """Texts and images of a live BLIP or ALBEF as a head of `width` numbers reads them; `tokenizer` is the head's.

    They are the unit-length ITC vectors if `projected`, else the [CLS] states before their projection.
    """
    assert live.backbone_checkpoint is not None
    checkpoint = find_checkpoint(live.backbone_checkpoint)
    loaded = load_itc(checkpoint, source.device, live.resolution, live.head_width, description=source.backbone_config)
    model = loaded.model
    size = model.text_proj.out_features if projected else model.text_proj.in_features
    if size != width:
        raise CheckpointError(f"{checkpoint.path}: its vectors have {size} numbers, the head reads {width}")

    def features(items: Items, states: Callable[..., Tensor], vectors: Callable[..., Tensor]) -> Features:
        if projected:
            return Features(items, lambda batch: normalize(vectors(*batch.inputs), dim=1))
        return Features(items, lambda batch: states(*batch.inputs))

    captions = make_caption_items(source, checkpoint, loaded, live.clean, fallback=tokenizer)
    return TextAndImage(
        features(captions, model.text_states, model.text_features),
        features(Images(loaded.pixels, source.device), model.image_states, model.image_features),
    )


def load_own_tokenizer(source: Source, checkpoint: Checkpoint, size: int, default: str = "bert-base-uncased") -> Any:
    """The tokenizer of a checkpoint: the one that the user names, the one beside it, or `default` from the hub."""
    folder = source.tokenizer_folder(checkpoint.folder, default=default)
    return check_fitting(load_tokenizer(folder), size, str(folder))


def check_fitting(tokenizer: Any, size: int, where: str) -> Any:
    """The tokenizer, after checking that it has `size` tokens, or all but BLIP's two."""
    if len(tokenizer) not in (size, size - len(BLIP_TOKENS)):
        refuse_size(where, len(tokenizer), size)
    return tokenizer


def make_head_columns(tokenizer: Any, size: int, specials: bool) -> TokenColumns:
    """One dimension per token, and for [DEC] and [ENC] if the head has them; see `make_all_columns`."""
    return make_all_columns(tokenizer, specials, BLIP_TOKENS[: size - len(tokenizer)])


class HeadTower(ReadsItems, LexicalTower):
    """Items to lexical vectors through one dense vector each; the tokens of `words` mask it if the sparsifier does."""

    def __init__(
        self,
        features: Features,
        composition: Composition,
        columns: TokenColumns,
        words: TextReader,
        device: torch.device | str = "cpu",
    ):
        super().__init__(composition, columns, device)
        (self.items, self.embed), self.words = features, words

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The batches of the features, embedded."""
        masks = self.composition.sparsifier.needs_own
        for batch in self.items.batches(inputs, batch_size, on_error):
            texts = [inputs[position] for position in batch.positions] if masks else []
            if others := [type(text).__name__ for text in texts if not isinstance(text, str)]:
                raise UsageError(f"a {others[0]} has no tokens to mask a vector by; give Embedded(text, it)")
            own = self.columns.own(self.words([str(text) for text in texts])) if masks else None
            yield Batch(batch.positions, (self.embed(batch),), None, own)


def build_head_tower(
    features: Features, expansion: Expansion, topk: int | None, head: Head, inputs: HeadInputs, device: torch.device
) -> HeadTower:
    """One side: its vectors through a head that has one dimension per token (and may have BLIP's two), or per term."""
    # A masked vector keeps its own tokens, another one every positive weight or the k largest.
    sparsifier = keep_top(topk) if expansion == "expanded" else keep_own()
    composition = Composition(lambda vectors: vectors[:, None, :], head, log1p_relu, pool_max, sparsifier)
    tokenizer, terms = inputs.tokenizer, inputs.terms
    if terms is None:
        columns = make_head_columns(tokenizer, head.matrix.shape[0], specials=expansion == "masked")
    else:
        columns = make_term_columns(tokenizer, terms, "the dense pair")
    return HeadTower(features, composition, columns, TextReader(tokenizer, MASK_LENGTH), device)
