"""The networks of a pair of texts and images: pretrained or with random weights, and the dimensions of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
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
from lexvl_anserini.encoders.parts.stair_network import ImageShape, Stage, Stair, StairConfig, TextShape
from lexvl_anserini.encoders.parts.tokens import (
    TokenColumns,
    columns_ascii,
    columns_of_all,
    columns_of_terms,
    find_first_word_id,
    load_tokenizer,
)
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import file_sha256
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_plugins.train.images.fdt_networks import clip_texts, merges_of, patch_network
from lexvl_plugins.train.model_settings import (
    AnyImage,
    BpeTextSettings,
    ImageSettings,
    ModelSettings,
    PretrainedImage,
    PretrainedText,
    SwinSettings,
    TextSettings,
)
from lexvl_plugins.train.words import (
    FIRST_TOKEN_ID,
    FIRST_WORD_ID,
    Texts,
    copied_tokenizer,
    fresh_tokenizer,
    learn_terms,
    read_class_names,
    save_core,
    terms_and_class_words,
    with_words,
    words_of_classes,
)

# Standard deviation of random initial weights, as in BERT and CLIP.
INITIAL_STD = 0.02


class TextNetwork(NamedTuple):
    """A BERT; the tokens of a pretrained one gain the words of the training captions where these are the terms.

    checkpoint  of the network; None for one with random weights
    digest      SHA-256 (hex) of its weights
    bert        the network, with a row of its input embeddings for each new token: the mean of its pieces' rows
    tokenizer   with the new tokens
    columns     the dimension of each token
    classes     the classes of each class word; those that are no terms of the captions come first, and are tokens too
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


def token_columns(kind: str, tokenizer: Any) -> TokenColumns:
    """The dimensions where they are the tokens of a tokenizer: all, or those that published VDR checkpoints have.

    Of BERT's uncased vocabulary these are all 30,522 tokens, or the 27,623 ASCII ones after its unused tokens.
    """
    if kind != "vdr-crossmodal":
        return columns_of_all(tokenizer)
    return columns_ascii(tokenizer, find_first_word_id(tokenizer) or 1 + max(tokenizer.all_special_ids))


def tokens_and_columns(model: ModelSettings, captions: Texts, folder: Path) -> tuple[Any, TokenColumns]:
    """The tokenizer of a pair without learned words, or with new towers; writes it into a folder."""
    text = model.text
    if isinstance(text, PretrainedText):
        checkpoint = find_checkpoint(text.checkpoint)
        tokenizer = copied_tokenizer(checkpoint.folder, folder, read_config(checkpoint.folder).vocab_size)
    else:
        assert isinstance(text, TextSettings)
        tokenizer = fresh_tokenizer(text.tokenizer, captions, text.words, folder, text.max_length)
    if model.of_tokens or (model.kind == "stair" and model.whole):
        return tokenizer, token_columns(model.kind, tokenizer)
    return tokenizer, columns_ascii(tokenizer, FIRST_TOKEN_ID if model.whole else FIRST_WORD_ID)


def load_text_network(model: ModelSettings, captions: Texts, folder: Path) -> TextNetwork:
    """The network of the texts, and its dimensions; writes the tokenizer into a folder."""
    settings, image = model.text, model.image
    assert not isinstance(settings, BpeTextSettings)
    if isinstance(settings, TextSettings) or model.of_tokens:
        tokenizer, columns = tokens_and_columns(model, captions, folder)
        if isinstance(settings, TextSettings):
            return TextNetwork(None, "", new_bert(settings, len(tokenizer)).eval(), tokenizer, columns, {})
        checkpoint = find_checkpoint(settings.checkpoint)
        return TextNetwork(checkpoint, checkpoint.digest(), pretrained_bert(settings), tokenizer, columns, {})
    checkpoint = find_checkpoint(settings.checkpoint)
    config = read_config(checkpoint.folder)
    terms = learn_terms(captions, settings.least)
    class_names = image.class_names if model.lexical and isinstance(image, PretrainedImage) else None
    classes = words_of_classes(read_class_names(Path(class_names)), terms) if class_names else {}
    core, pieces = with_words(
        load_tokenizer(checkpoint.folder, config.vocab_size), terms_and_class_words(terms, classes)
    )
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


def load_networks(model: ModelSettings, captions: Texts, folder: Path) -> Networks:
    """The networks of a model, and the terms of the training captions; writes the tokenizer into a folder.

    Weights of networks without a checkpoint are drawn from the random state of torch.
    """
    image = model.image
    if isinstance(model.text, BpeTextSettings):
        assert not isinstance(image, PretrainedImage)
        return Networks(bpe_texts(model.text, model.codebook.width), fresh_patches(image, model.codebook.width))
    assert not isinstance(image, SwinSettings)
    images = load_image_backbone(image.checkpoint) if isinstance(image, PretrainedImage) else fresh_images(image)
    names = image.class_names if model.lexical and isinstance(image, PretrainedImage) else None
    if names and images.classifier is None:
        raise UsageError(f"class_names {names}: {images.reference} has no classifier of its states")
    return Networks(load_text_network(model, captions, folder), images)


def new_bert(settings: TextSettings, tokens: int) -> Any:
    """A BERT with random weights, without pooler."""
    import transformers

    return transformers.BertModel(bert_config(settings, tokens), add_pooling_layer=False)


def pretrained_bert(settings: PretrainedText) -> Any:
    """The BERT of a checkpoint as it is, without pooler."""
    checkpoint = find_checkpoint(settings.checkpoint)
    weights, _ = bert_weights(checkpoint)
    where = str(checkpoint.folder)
    return bert_from_weights(read_config(checkpoint.folder), weights, where, torch.device("cpu"))


def bpe_texts(settings: BpeTextSettings, joint: int) -> TextNetwork:
    """CLIP's texts with random weights over the tokens of a merges file, which are no terms."""
    tokenizer = ClipBpe(merges_of(settings), SPECIALS)
    texts = clip_texts(settings, len(tokenizer), joint)
    return TextNetwork(None, "", texts, tokenizer, no_columns(len(tokenizer)), {})


def no_columns(tokens: int) -> TokenColumns:
    """The columns of a tokenizer whose tokens are no dimensions."""
    return TokenColumns(Vocabulary(()), np.full(tokens, -1, dtype=np.int64))


def fresh_patches(settings: ImageSettings | SwinSettings, joint: int) -> ImageBackbone:
    """CLIP's images or a Swin transformer with random weights, up to the states that FDT reads."""
    network = PatchStates(patch_network(settings, joint))
    return ImageBackbone("", network, one_crop(settings.resolution), network.width, "")


def fresh_images(settings: ImageSettings) -> ImageBackbone:
    """A patch transformer with random weights."""
    network = PatchTransformer(**settings.shape)
    nn.init.normal_(network.positional_embedding, std=INITIAL_STD)
    return fresh_image_backbone(network, settings.resolution)


def stair_config(model: ModelSettings, tokens: int, stage: Stage = "single") -> StairConfig:
    """The shapes of a new STAIR over so many tokens. Texts are trained without a prompt."""
    text, image = model.text, model.image
    assert isinstance(text, TextSettings) and isinstance(image, ImageSettings)
    return StairConfig(
        vocab_size=tokens,
        text=TextShape(text.width, text.layers, text.heads, text.max_length),
        image=ImageShape(**image.shape),
        stage=stage,
        prompt="",
    )


def new_stair(model: ModelSettings, tokens: int) -> Stair:
    """A STAIR with random weights; e and the positions begin as N(0, 0.02^2), as in BERT and CLIP."""
    stair = Stair(stair_config(model, tokens))
    image: Any = stair.image
    embedded = image.class_embedding, image.positional_embedding, stair.text.positional_embedding
    for weights in (stair.embeddings, *embedded):
        nn.init.normal_(weights, std=INITIAL_STD)
    return stair


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
    elif isinstance(model.text, BpeTextSettings):
        digests["merges"] = file_sha256(merges_of(model.text))
    elif model.text.tokenizer is not None:
        digests["tokenizer"] = find_checkpoint(model.text.tokenizer, weights=False).digest()
    if model.start:
        digests["start"] = find_checkpoint(model.start).digest()
    if isinstance(model.image, PretrainedImage):
        digests["image network"] = load_image_backbone(model.image.checkpoint).digest
        if names := model.image.class_names:
            read_class_names(Path(names))
            digests["class names"] = file_sha256(Path(names))
    return digests
