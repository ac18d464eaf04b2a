"""What a run reads at each step: its vocabulary and networks, and per stage the stores of images and texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import DenseSide, as_dense
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.pretrained import PIECE
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, columns_ascii
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.batches import Batches, CaptionStore, TrainingBatch
from lexvl_anserini.training.common.inputs import Tokens
from lexvl_anserini.training.common.stage import StageInputs, Taught
from lexvl_anserini.training.common.stores import (
    FeatureStore,
    ImageStore,
    PixelStore,
    read_features,
    read_pixels,
    read_states,
    weights_digest,
)
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.images.captioned import CaptionedImages, tokenise
from lexvl_anserini.training.images.class_words import ClassWordWeights, weigh
from lexvl_anserini.training.images.measuring import Validation, examples_of, listed_images
from lexvl_anserini.training.images.network_families import NETWORK_FAMILIES
from lexvl_anserini.training.images.pretrained_sides import (
    ImageOver,
    Networks,
    TextOver,
    VdrImageOver,
    VdrTextOver,
    load_networks,
)
from lexvl_anserini.training.images.starting import begin_with
from lexvl_anserini.training.model_settings import ImageSettings, ModelSettings, PretrainedImage, TextSettings
from lexvl_anserini.training.objectives.caption_terms import CaptionTerms
from lexvl_anserini.training.pairs import KINDS, make_pair
from lexvl_anserini.training.recipe import Augmentation, Recipe, StageSettings
from lexvl_anserini.training.run_folder import WORDS
from lexvl_anserini.training.saving import save_network_pair, save_pair
from lexvl_anserini.training.splits import TRAINING, VALIDATION, Sources
from lexvl_anserini.training.words import FIRST_TOKEN_ID, learn_words, save_tokenizer

log = logging.getLogger(__name__)

# The largest number of images whose states are standardised, and what their standard deviation is at least.
STANDARD_IMAGES, LEAST_STD = 500, 1e-3

# The dense pair that teaches.
TEACHER = "dense-crossmodal"


@dataclass(frozen=True)
class Material:
    """What all stages of a run share.

    model      of the recipe
    data       images and captions by role
    tokenizer  of the texts
    columns    the dimension of each token
    tokens     of the captions by role
    prepare    how an image becomes pixels
    networks   of a pair over networks; None for a family with fresh towers of its own
    sources    which `data` is of
    """

    model: ModelSettings
    data: Mapping[str, CaptionedImages]
    tokenizer: Any
    columns: TokenColumns
    tokens: Mapping[str, Tokens]
    prepare: Pixels
    networks: Networks | None
    sources: Sources

    def make_pair(self, recipe: Recipe, device: torch.device) -> TowerPair:
        """The pair that the stages train; its new weights depend on the seed alone."""
        torch.manual_seed(recipe.seed)
        pair = make_pair(recipe, self.model, self.columns, self.networks).to(device)
        if self.model.start and self.networks:
            begin_with(pair, self.model.start, self.model, self.networks, self.tokenizer)
        else:
            standardise(pair, self)
        return pair

    def stage_inputs(self, recipe: Recipe, number: int, pair: TowerPair) -> StageInputs:
        """The inputs of a stage."""
        return stage_inputs(recipe, number, self, pair)

    def listed(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The images of a batch with the captions that were drawn, to look at."""
        return listed_images(self.data[TRAINING], batch)

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes the pair in the layout of its encoder."""
        kind, words = getattr(torch, recipe.weights), class_words_of(recipe, self, pair)
        if self.networks is not None and self.model.kind in NETWORK_FAMILIES:
            save_network_pair(pair, recipe, self.model, self.networks, folder, kind)
        else:
            save_pair(pair, self.model, self.tokenizer, folder, kind, self.networks, words)


def read_material(recipe: Recipe, output: Path, sources: Sources) -> Material:
    """Learns the vocabulary, which it writes below `output`, loads the networks and tokenises the captions."""
    model = recipe.model
    assert isinstance(model, ModelSettings)
    images = sources.images
    text, image, captions = model.text, model.image, images[TRAINING].texts
    networks = None
    if isinstance(text, TextSettings) and isinstance(image, ImageSettings) and model.kind in KINDS:
        tokenizer = save_tokenizer(learn_words(captions, text.words), output / WORDS, text.max_length)
        columns, prepare = columns_ascii(tokenizer, FIRST_TOKEN_ID), Pixels(image.resolution)
    else:
        torch.manual_seed(recipe.seed)  # of networks with random weights
        networks = load_networks(model, captions, output / WORDS)
        tokenizer, columns, prepare = networks.text.tokenizer, networks.text.columns, networks.image.pixels
    reader = TextReader(tokenizer, text.max_length)
    tokens = {role: tokenise(captioned.captions, reader) for role, captioned in images.items()}
    return Material(model, images, tokenizer, columns, tokens, prepare, networks, sources)


def stage_inputs(recipe: Recipe, number: int, material: Material, pair: TowerPair) -> StageInputs:
    """The inputs of a stage; decodes its images and computes what its frozen networks make of them."""
    stage, plan = recipe.stages[number], recipe.stages[number].optimisation
    device = pair.log_temperature.device
    captions = {role: captions_of(role, material, pair) for role in material.data}
    images = {role: images_of(role, recipe, number, material, pair) for role in material.data}
    batches = Batches(images[TRAINING], captions[TRAINING], plan.batch_size, plan.captions_per_image, recipe.seed)
    validation = Validation(images[VALIDATION], captions[VALIDATION]) if VALIDATION in images else None
    names = any(auxiliary.name == "naming" for auxiliary in stage.auxiliaries)
    terms = CaptionTerms.of(material.tokens[TRAINING], material.columns, device) if names else None
    taught = taught_by(stage, material, device) if stage.teacher else None
    shown = VALIDATION if VALIDATION in images else TRAINING
    examples = examples_of(material.data[shown], images[shown], captions[shown])
    return StageInputs(batches, terms, validation, taught, examples)


def captions_of(role: str, material: Material, pair: TowerPair) -> CaptionStore:
    """The captions of a split, with the states of a frozen network where the texts have one."""
    tokens, side = material.tokens[role], pair.encoder_q
    states = None
    if isinstance(side, TextOver) and not any(p.requires_grad for p in side.network.parameters()):
        states = read_states(tokens, side, material.sources.cache, role, material.sources.digests[role])
    return CaptionStore(tokens, material.columns, pair.log_temperature.device, states)


def images_of(role: str, recipe: Recipe, number: int, material: Material, pair: TowerPair) -> ImageStore:
    """The images of a split: stored views of a frozen network, or pixels."""
    stage, side, images = recipe.stages[number], pair.encoder_p, material.data[role].images
    device, kept = pair.log_temperature.device, (material.sources.cache, role, material.sources.digests[role])
    if not stage.views:
        pixels = read_pixels(images, material.prepare, *kept)
        return PixelStore(pixels, material.prepare, stage.augmentation, device)
    assert isinstance(side, ImageOver)
    if any(parameter.requires_grad for parameter in side.network.parameters()):
        raise UsageError(f"recipe {recipe.name}: stage {number} has stored views, and its image network changes")
    views, augmentation = (stage.views, stage.augmentation) if role == TRAINING else (1, Augmentation())
    features = read_features(images, side, material.prepare, views, augmentation, recipe.seed, *kept)
    return FeatureStore(features, device)


def class_words_of(recipe: Recipe, material: Material, pair: TowerPair) -> ClassWordWeights | None:
    """The weights of class words over the training split of the last stage; None where the pair has none."""
    networks, image, text = material.networks, pair.encoder_p, pair.encoder_q
    if networks is None or not networks.text.classes:
        return None
    assert isinstance(image, VdrImageOver) and isinstance(text, VdrTextOver) and networks.image.classifier is not None
    log.info("weights of %d class words", len(networks.text.classes))
    pair.eval()
    last = len(recipe.stages) - 1
    texts = captions_of(TRAINING, material, pair)
    images = images_of(TRAINING, recipe, last, material, pair)
    ids = material.tokenizer.convert_tokens_to_ids(list(networks.text.classes))
    return weigh(text, image, texts, images, networks.image.classifier, networks.text.classes, ids)


@torch.inference_mode()
def standardise(pair: TowerPair, material: Material) -> None:
    """Gives a pretrained image side the mean and the standard deviation of its states over some training images."""
    side, images = pair.encoder_p, material.data[TRAINING].images
    if not isinstance(side, ImageOver) or not isinstance(material.model.image, PretrainedImage):
        return
    some = images[:: -(-len(images) // STANDARD_IMAGES)]
    device, network = next(side.parameters()).device, side.frozen()

    def computed() -> Iterator[np.ndarray]:
        crops = read_images(some, prepare=material.prepare.crop)
        found = []
        while piece := list(islice(crops, PIECE)):
            pixels = torch.from_numpy(np.stack([image.value for image in piece])).to(device)
            found.append(network(material.prepare.normalise(pixels)))
        states = torch.cat(found).flatten(0, 1)
        yield torch.stack([states.mean(dim=0), states.std(dim=0) + LEAST_STD]).cpu().numpy()

    made_of = [material.sources.digests[TRAINING], STANDARD_IMAGES, repr(material.prepare), weights_digest(network)]
    shape = (2, len(side.standard.mean))
    found = material.sources.cache.array("standard", made_of, shape, np.dtype(np.float32), computed())
    mean, std = torch.from_numpy(np.array(found)).to(device)
    side.standard.mean.copy_(mean)
    side.standard.std.copy_(std)


def taught_by(stage: StageSettings, material: Material, device: torch.device) -> Taught:
    """The vectors of the teacher of a stage for the training split."""
    teacher = load_encoder(TEACHER, checkpoint=stage.teacher, device=str(device))
    data = material.data[TRAINING]
    assert stage.teacher is not None
    made_of = [material.sources.digests[TRAINING], find_checkpoint(stage.teacher).digest()]

    def vectors(what: str, tower: DenseSide, inputs: Sequence[str]) -> Tensor:
        shape, kind = (len(inputs), tower.vectors(inputs[:1]).shape[1]), np.dtype(np.float32)
        array = material.sources.cache.array(f"teacher-{what}", made_of, shape, kind, computed(tower, inputs))
        return torch.from_numpy(np.array(array)).to(device)

    def computed(tower: DenseSide, inputs: Sequence[str]) -> Iterator[np.ndarray]:
        yield tower.vectors(inputs)

    images, captions = as_dense(teacher.document), as_dense(teacher.query)
    return Taught(vectors("images", images, data.images), vectors("captions", captions, data.texts))
