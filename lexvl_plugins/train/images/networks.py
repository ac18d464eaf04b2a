"""The networks of a pair of texts and images: pretrained or with random weights, and the dimensions of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lexvl_anserini.encoders.checkpoints.clip_layout import HIGHEST_ID, find_merges
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.families.stair import ImageShape, Stage, Stair, StairConfig, TextShape
from lexvl_anserini.encoders.parts import tokens as token_columns
from lexvl_anserini.encoders.parts.backbones import build_bert, read_config
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.images.pixels import make_crop
from lexvl_anserini.encoders.parts.images.vision import PatchStates, PatchTransformer
from lexvl_anserini.encoders.parts.pretrained import make_image_backbone, read_bert_weights
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.train import model_settings, words
from lexvl_plugins.train.clip_twin import StairTwin, TwinConfig
from lexvl_plugins.train.images.resolution import resize_network
from lexvl_plugins.train.run_folder import NETWORK

# Standard deviation of random initial weights, as in BERT and CLIP.
INITIAL_STD = 0.02


class TextNetwork(NamedTuple):
    """A BERT, whose pretrained tokens gain the words of the training captions where these are the terms.

    A row of new input embeddings is the mean of its pieces' rows. Class words that are no terms are tokens too, and
    come first. There is no checkpoint of random weights.
    """

    checkpoint: Checkpoint | None
    digest: str
    bert: Any
    tokenizer: Any
    columns: token_columns.TokenColumns
    classes: Mapping[str, list[int]]


class Networks(NamedTuple):
    """The pretrained networks of a pair."""

    text: TextNetwork
    image: ImageBackbone


def choose_columns(kind: str, tokenizer: Any) -> token_columns.TokenColumns:
    """The dimensions where they are the tokens of a tokenizer: all, or those that published VDR checkpoints have.

    Of BERT's uncased vocabulary these are all 30,522 tokens, or the 27,623 ASCII ones after its unused tokens.
    """
    if kind != "vdr-crossmodal":
        return token_columns.make_all_columns(tokenizer)
    first = token_columns.find_first_word_id(tokenizer) or 1 + max(tokenizer.all_special_ids)
    return token_columns.make_ascii_columns(tokenizer, first)


def prepare_tokens(
    model: model_settings.ModelSettings, captions: words.Texts, folder: Path
) -> tuple[Any, token_columns.TokenColumns]:
    """The tokenizer of a pair without learned words, or with new towers; writes it into a folder."""
    text = model.text
    if isinstance(text, model_settings.PretrainedText):
        checkpoint = find_checkpoint(text.checkpoint)
        tokenizer = words.copy_tokenizer(checkpoint.folder, folder, read_config(checkpoint.folder).vocab_size)
    else:
        assert isinstance(text, model_settings.TextSettings)
        tokenizer = words.make_tokenizer(text.tokenizer, captions, text.words, folder, text.max_length)
    if model.of_tokens or (model.kind == "stair" and model.whole):
        return tokenizer, choose_columns(model.kind, tokenizer)
    first = words.FIRST_TOKEN_ID if model.whole else words.FIRST_WORD_ID
    return tokenizer, token_columns.make_ascii_columns(tokenizer, first)


def load_text_network(model: model_settings.ModelSettings, captions: words.Texts, folder: Path) -> TextNetwork:
    """The network of the texts, and its dimensions; writes the tokenizer into a folder."""
    settings = model.text
    assert not isinstance(settings, model_settings.BpeTextSettings)
    if isinstance(settings, model_settings.TextSettings):
        tokenizer, columns = prepare_tokens(model, captions, folder)
        return TextNetwork(None, "", make_bert(settings, len(tokenizer)).eval(), tokenizer, columns, {})
    checkpoint = find_checkpoint(settings.checkpoint)
    if model.of_tokens:
        bert, tokens = load_bert(settings), prepare_tokens(model, captions, folder)
        return TextNetwork(checkpoint, checkpoint.digest(), bert, *tokens, {})
    config = read_config(checkpoint.folder)
    terms, names = words.learn_terms(captions, settings.least), model.class_names
    classes = words.match_class_words(words.read_class_names(Path(names)), terms) if names else {}
    plain = token_columns.load_tokenizer(checkpoint.folder, config.vocab_size)
    core, pieces = words.add_words(plain, words.join_terms(terms, classes))
    tokenizer = words.save_core(core, folder, settings.max_length)
    config.vocab_size += len(pieces)
    (weights, digest), key = read_bert_weights(checkpoint), "embeddings.word_embeddings.weight"
    rows = [weights[key][list(ids)].mean(dim=0) for ids in pieces]
    weights[key] = torch.cat([weights[key], torch.stack(rows)]) if rows else weights[key]
    bert = build_bert(config, weights, str(checkpoint.folder), torch.device("cpu"))
    vocabulary = Vocabulary(terms, "the terms of the captions")
    columns = token_columns.make_term_columns(tokenizer, vocabulary, settings.checkpoint)
    return TextNetwork(checkpoint, digest, bert, tokenizer, columns, classes)


def choose_cells(image: model_settings.AnyImage) -> model_settings.PretrainedImage:
    """How a head reads the cells of images: of a network with random weights, every patch and their mean."""
    if isinstance(image, model_settings.PretrainedImage):
        return image
    return model_settings.PretrainedImage(checkpoint="", grid=image.grid)


def load_networks(model: model_settings.ModelSettings, captions: words.Texts, folder: Path) -> Networks:
    """The networks of a model, with new weights from the random state of torch; the tokenizer goes into a folder."""
    image = model.image
    if isinstance(model.text, model_settings.BpeTextSettings):
        assert not isinstance(image, model_settings.PretrainedImage)
        # CLIP's tokens, which are no terms.
        tokenizer = ClipBpe(find_merges_file(model.text), SPECIALS)
        network = make_clip_texts(model.text, len(tokenizer), model.projected)
        texts = TextNetwork(None, "", network, tokenizer, make_no_columns(len(tokenizer)), {})
        return Networks(texts, make_patches(image, model.projected))
    assert not isinstance(image, model_settings.SwinSettings)
    if isinstance(image, model_settings.PretrainedImage):
        images = load_image_backbone(image.checkpoint)
        if image.resolution:
            images = resize_network(images, image.resolution, folder.parent / NETWORK)
    else:
        patches = PatchTransformer(**image.shape)
        nn.init.normal_(patches.positional_embedding, std=INITIAL_STD)
        images = make_image_backbone(patches, image.resolution)
    if model.class_names and images.classifier is None:
        raise UsageError(f"class_names {model.class_names}: {images.reference} has no classifier of its states")
    return Networks(load_text_network(model, captions, folder), images)


def make_bert(settings: model_settings.TextSettings, tokens: int) -> Any:
    """A BERT with random weights, without pooler."""
    import transformers

    dropouts: Any = {f"{part}_dropout_prob": settings.dropout for part in ("hidden", "attention_probs")}
    config = transformers.BertConfig(**settings.shape(tokens), **dropouts)
    return transformers.BertModel(config, add_pooling_layer=False)


def load_bert(settings: model_settings.PretrainedText) -> Any:
    """The BERT of a checkpoint as it is, without pooler."""
    checkpoint = find_checkpoint(settings.checkpoint)
    config, (weights, _) = read_config(checkpoint.folder), read_bert_weights(checkpoint)
    return build_bert(config, weights, str(checkpoint.folder), torch.device("cpu"))


def make_no_columns(tokens: int) -> token_columns.TokenColumns:
    """The columns of a tokenizer whose tokens are no dimensions."""
    return token_columns.TokenColumns(Vocabulary(()), np.full(tokens, -1, dtype=np.int64))


def make_patches(settings: model_settings.ImageSettings | model_settings.SwinSettings, joint: int) -> ImageBackbone:
    """CLIP's images or a Swin transformer with random weights; FDT reads the states, CLIP their projection."""
    import transformers

    network: Any
    if isinstance(settings, model_settings.SwinSettings):
        cells = {"image_size": settings.resolution, "patch_size": settings.patch_size, "window_size": settings.window}
        blocks = {"depths": list(settings.depths), "num_heads": list(settings.heads), "embed_dim": settings.width}
        shape: dict[str, Any] = {**cells, **blocks, "drop_path_rate": settings.drop_path}
        config = transformers.Swinv2Config(**shape)
        config.num_labels = joint
        network = transformers.Swinv2ForImageClassification(config)
    else:
        sizes: dict[str, Any] = {"image_size": settings.resolution, "patch_size": settings.patch_size}
        vision = transformers.CLIPVisionConfig(**describe_clip(settings, joint), **sizes)
        network = transformers.CLIPVisionModelWithProjection(vision)
    states = PatchStates(network)
    return ImageBackbone("", states, make_crop(settings.resolution), states.width, "")


def make_stair_config(model: model_settings.ModelSettings, tokens: int, stage: Stage = "single") -> StairConfig:
    """The shapes of a new STAIR over so many tokens. Texts are trained without a prompt."""
    return StairConfig(tokens, *make_stair_shapes(model), stage=stage, prompt="")


def make_stair_shapes(model: model_settings.ModelSettings) -> tuple[TextShape, ImageShape]:
    """The shapes of a new STAIR's encoders."""
    text, image = model.text, model.image
    assert isinstance(text, model_settings.TextSettings) and isinstance(image, model_settings.ImageSettings)
    return TextShape(text.width, text.layers, text.heads, text.max_length), ImageShape(**image.shape)


def make_stair(model: model_settings.ModelSettings, tokens: int) -> Stair:
    """A STAIR, or its CLIP, with random weights; e and positions begin as N(0, 0.02^2), as in BERT and CLIP."""
    stair = StairTwin(make_twin_config(model, tokens)) if model.pooling else Stair(make_stair_config(model, tokens))
    image: Any = stair.image
    embedded = image.class_embedding, image.positional_embedding, stair.text.positional_embedding
    for weights in (stair.embeddings, *embedded):
        nn.init.normal_(weights, std=INITIAL_STD)
    return stair


def make_twin_config(model: model_settings.ModelSettings, tokens: int) -> TwinConfig:
    """The shapes of a new CLIP over STAIR's encoders, over so many tokens."""
    text, image = make_stair_shapes(model)
    assert model.pooling is not None
    return TwinConfig(vocab_size=tokens, text=text, image=image, dimensions=model.dimensions, pooling=model.pooling)


def compute_network_digests(model: model_settings.ModelSettings) -> dict[str, str]:
    """The digests of the networks that a model names, for the request of a run."""
    digests = {}
    if isinstance(model.text, model_settings.PretrainedText):
        digests["text network"] = find_checkpoint(model.text.checkpoint).digest()
    elif isinstance(model.text, model_settings.BpeTextSettings):
        digests["merges"] = compute_sha256(find_merges_file(model.text))
    elif model.text.tokenizer is not None:
        digests["tokenizer"] = find_checkpoint(model.text.tokenizer, weights=False).digest()
    if model.start:
        digests["start"] = find_checkpoint(model.start).digest()
    if isinstance(model.image, model_settings.PretrainedImage):
        digests["image network"] = load_image_backbone(model.image.checkpoint).digest
        if names := model.image.class_names:
            words.read_class_names(Path(names))
            digests["class names"] = compute_sha256(Path(names))
    return digests


def find_merges_file(settings: model_settings.BpeTextSettings) -> Path:
    """The file of the merges."""
    path = find_merges(settings.merges, Path(), {})
    assert path is not None, "it is named"
    return path


def make_clip_texts(settings: model_settings.BpeTextSettings, tokens: int, joint: int) -> Any:
    """A CLIPTextModelWithProjection with DeCLIP's biased projection, which checkpoints of FDT have and FDT ignores."""
    import transformers

    positions, ends = {"max_position_embeddings": settings.max_length}, {"eos_token_id": HIGHEST_ID}
    sizes: Any = {**describe_clip(settings, joint), "vocab_size": tokens, **positions, **ends, "bos_token_id": None}
    texts = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**sizes))
    texts.text_projection = nn.Linear(settings.width, joint)
    return texts


def describe_clip(settings: model_settings.BpeTextSettings | model_settings.ImageSettings, joint: int) -> Any:
    """What the configurations of both CLIP networks name alike."""
    blocks = {"num_hidden_layers": settings.layers, "num_attention_heads": settings.heads, "hidden_act": "quick_gelu"}
    return {"hidden_size": settings.width, "intermediate_size": 4 * settings.width, "projection_dim": joint, **blocks}
