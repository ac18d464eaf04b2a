"""The networks of a pair of texts and images: pretrained or with random weights, and the terms of the captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, read_config
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.images.pixels import one_crop
from lexvl_anserini.encoders.parts.images.vision import PatchStates, PatchTransformer
from lexvl_anserini.encoders.parts.network_pair import fresh_image_backbone
from lexvl_anserini.encoders.parts.pretrained import bert_weights
from lexvl_anserini.encoders.parts.tokens import TokenColumns, columns_ascii, columns_of_terms, load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import file_sha256
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.training.images.fdt_networks import clip_texts, merges_of, patch_network
from lexvl_anserini.training.model_settings import (
    AnyImage,
    BpeTextSettings,
    ImageSettings,
    ModelSettings,
    PretrainedImage,
    PretrainedText,
    SwinSettings,
    TextSettings,
)
from lexvl_anserini.training.words import (
    FIRST_WORD_ID,
    learn_terms,
    learn_words,
    read_class_names,
    save_core,
    save_tokenizer,
    with_words,
    words_of_classes,
)

# Standard deviation of random initial weights, as in BERT and CLIP.
INITIAL_STD = 0.02


class TextNetwork(NamedTuple):
    """A pretrained BERT whose tokens gained the words of the training captions.

    checkpoint  of the network; None for one with random weights
    digest      SHA-256 (hex) of its weights
    bert        the network, with a row of its input embeddings for each new token: the mean of its pieces' rows
    tokenizer   with the new tokens
    columns     the dimension of each token, of the terms of the captions
    classes     the classes of each class word, which is a token and no term of the captions
    """

    checkpoint: Checkpoint | None
    digest: str
    bert: Any
    tokenizer: Any
    columns: TokenColumns
    classes: Mapping[str, list[int]]


class Networks(NamedTuple):
    """The pretrained networks of a pair."""

    text: TextNetwork
    image: ImageBackbone


def load_text_network(
    settings: PretrainedText, class_names: str | None, captions: Sequence[str], folder: Path
) -> TextNetwork:
    """A pretrained BERT and the terms of the training captions; writes the tokenizer into a folder."""
    checkpoint = find_checkpoint(settings.checkpoint)
    config = read_config(checkpoint.folder)
    terms = learn_terms(captions, settings.least)
    classes = words_of_classes(read_class_names(Path(class_names)), terms) if class_names else {}
    core, pieces = with_words(load_tokenizer(checkpoint.folder, config.vocab_size), [*terms, *classes])
    tokenizer = save_core(core, folder, settings.max_length)
    config.vocab_size += len(pieces)
    (weights, digest), key = bert_weights(checkpoint), "embeddings.word_embeddings.weight"
    rows = [weights[key][list(ids)].mean(dim=0) for ids in pieces]
    weights[key] = torch.cat([weights[key], torch.stack(rows)]) if rows else weights[key]
    bert = bert_from_weights(config, weights, str(checkpoint.folder), torch.device("cpu"))
    columns = columns_of_terms(tokenizer, Vocabulary(terms, "the terms of the captions"), settings.checkpoint)
    return TextNetwork(checkpoint, digest, bert, tokenizer, columns, classes)


def cells_settings(image: AnyImage) -> PretrainedImage:
    """How a head reads the cells of images: of a network with random weights, every patch and their mean."""
    if isinstance(image, PretrainedImage):
        return image
    return PretrainedImage(checkpoint="", grid=image.grid)


def load_networks(model: ModelSettings, captions: Sequence[str], folder: Path) -> Networks:
    """The networks of a model, and the terms of the training captions; writes the tokenizer into a folder.

    Weights of networks without a checkpoint are drawn from the random state of torch.
    """
    text, image = model.text, model.image
    if isinstance(text, BpeTextSettings):
        assert not isinstance(image, PretrainedImage)
        return Networks(bpe_texts(text, model.codebook.width), fresh_patches(image, model.codebook.width))
    assert not isinstance(image, SwinSettings)
    images = load_image_backbone(image.checkpoint) if isinstance(image, PretrainedImage) else fresh_images(image)
    names = image.class_names if model.lexical and isinstance(image, PretrainedImage) else None
    if names and images.classifier is None:
        raise UsageError(f"class_names {names}: {images.reference} has no classifier of its states")
    if isinstance(text, PretrainedText):
        return Networks(load_text_network(text, names, captions, folder), images)
    return Networks(fresh_texts(text, captions, folder), images)


def fresh_texts(settings: TextSettings, captions: Sequence[str], folder: Path) -> TextNetwork:
    """A BERT with random weights over the words of the training captions, which are the terms."""
    import transformers

    tokenizer = save_tokenizer(learn_words(captions, settings.words), folder, settings.max_length)
    bert = transformers.BertModel(bert_config(settings, len(tokenizer)), add_pooling_layer=False).eval()
    return TextNetwork(None, "", bert, tokenizer, columns_ascii(tokenizer, FIRST_WORD_ID), {})


def bpe_texts(settings: BpeTextSettings, joint: int) -> TextNetwork:
    """CLIP's texts with random weights over the tokens of a merges file, which are no terms."""
    tokenizer = ClipBpe(merges_of(settings), SPECIALS)
    columns = TokenColumns(Vocabulary((), settings.merges), np.full(len(tokenizer), -1, dtype=np.int64))
    return TextNetwork(None, "", clip_texts(settings, len(tokenizer), joint), tokenizer, columns, {})


def fresh_patches(settings: ImageSettings | SwinSettings, joint: int) -> ImageBackbone:
    """CLIP's images or a Swin transformer with random weights, up to the states that FDT reads."""
    network = PatchStates(patch_network(settings, joint))
    return ImageBackbone("", network, one_crop(settings.resolution), network.width, "")


def fresh_images(settings: ImageSettings) -> ImageBackbone:
    """A patch transformer with random weights."""
    network = PatchTransformer(**settings.shape)
    nn.init.normal_(network.positional_embedding, std=INITIAL_STD)
    return fresh_image_backbone(network, settings.resolution)


def bert_config(settings: TextSettings, tokens: int) -> Any:
    """The configuration of a BERT with random weights."""
    import transformers

    return transformers.BertConfig(
        **settings.shape(tokens),
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
    )


def network_digests(model: ModelSettings) -> dict[str, str]:
    """The digests of the networks that a model names, for the request of a run."""
    digests = {}
    if isinstance(model.text, PretrainedText):
        digests["text network"] = find_checkpoint(model.text.checkpoint).digest()
    if isinstance(model.text, BpeTextSettings):
        digests["merges"] = file_sha256(merges_of(model.text))
    if model.start:
        digests["start"] = find_checkpoint(model.start).digest()
    if isinstance(model.image, PretrainedImage):
        digests["image network"] = load_image_backbone(model.image.checkpoint).digest
        if names := model.image.class_names:
            read_class_names(Path(names))
            digests["class names"] = file_sha256(Path(names))
    return digests
