"""What a run over texts and images reads and writes: vocabulary, networks, inputs of stages, checkpoint; validation.

What LexLIP's training computes beside vectors, masked words (phase 1) and momentum keys (phase 2), are parts of a pair
while it trains, so that a state has them, and no part of a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import DenseSide, as_dense
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, list_token_strings
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common import tower_pair
from lexvl_plugins.train.common.learner import Examples, StageInputs, choose_examples, shorten
from lexvl_plugins.train.common.tower_pair import Details, TextBatch, TrainingBatch, TrainingPart
from lexvl_plugins.train.images import captioned
from lexvl_plugins.train.images.checkpoints import ClassWordWeights, begin_with, save_new_stair, save_pair, weigh
from lexvl_plugins.train.images.networks import Networks, TextNetwork, load_networks, prepare_tokens
from lexvl_plugins.train.images.resolution import admit_half
from lexvl_plugins.train.images.sides import SIDES, ImageOver, LexicalText, TextOver, VdrImageOver, VdrTextOver
from lexvl_plugins.train.images.stream import StreamedBatches, StreamedImages
from lexvl_plugins.train.model_settings import ImagePairSettings, ImageSettings, ModelSettings, PretrainedImage
from lexvl_plugins.train.objectives import family_losses
from lexvl_plugins.train.objectives.contrastive import Keys, Predicted, keep_heaviest
from lexvl_plugins.train.recipe import Augmentation, Recipe, StageSettings
from lexvl_plugins.train.run_folder import WORDS
from lexvl_plugins.train.splits import EXAMPLES, TRAINING, VALIDATION, Images, Sources

log = logging.getLogger(__name__)

# The largest number of images whose states are standardised, and what their standard deviation is at least.
STANDARD_IMAGES, LEAST_STD = 500, 1e-3


@dataclass(frozen=True)
class Material:
    """What all stages of a run share; a pair whose checkpoint is whole has no networks."""

    model: ModelSettings
    data: Mapping[str, Images]
    reader: TextReader
    columns: TokenColumns
    captions: Mapping[str, tower_pair.TextStore]
    prepare: Pixels
    networks: Networks | None
    sources: Sources

    @classmethod
    def read(cls, recipe: Recipe, output: Path, sources: Sources) -> Material:
        """Learns or copies the tokenizer below `output`, loads the networks and tokenises the captions."""
        model = recipe.model
        assert isinstance(model, ModelSettings)
        data: Mapping[str, Any] = sources.data
        text, image, trained = model.text, model.image, data[TRAINING]
        captions = trained.words if isinstance(trained, StreamedImages) else trained.texts
        if isinstance(trained, StreamedImages):
            trained.keep(sources.cache.folder)  # for a run that resumes
        networks = None
        if model.whole:
            assert isinstance(image, ImageSettings)
            tokenizer, columns = prepare_tokens(model, captions, output / WORDS)
            prepare = Pixels(image.resolution)
        else:
            torch.manual_seed(recipe.seed)  # of networks with random weights
            networks = load_networks(model, captions, output / WORDS)
            if any(stage.augmentation.half for stage in recipe.stages):
                admit_half(networks.image)
            tokenizer, columns, prepare = networks.text.tokenizer, networks.text.columns, networks.image.pixels
        reader = TextReader(tokenizer, text.max_length)
        stores = tokenise(sources.images, reader, columns)
        return cls(model, data, reader, columns, stores, prepare, networks, sources)

    def make_pair(self, recipe: Recipe, device: torch.device) -> tower_pair.TowerPair:
        """The pair that the stages train; its new weights depend on the seed alone."""
        torch.manual_seed(recipe.seed)
        of_bags = any(stage.objective.learn_bag_temperature for stage in recipe.stages)
        sides = SIDES[self.model.kind](self.model, self.columns, self.networks)
        pair = tower_pair.TowerPair(*sides, recipe.stages[0].objective.temperature, of_bags)
        if self.networks is not None:
            pair.parts.update(make_parts(pair, recipe.stages, self.networks.text))
        pair.to(device)
        if self.model.start and self.networks:
            begin_with(pair, self.model.start, self.model, self.networks, self.reader.tokenizer)
        else:
            standardise(pair, self)
        return pair

    def make_stage_inputs(self, recipe: Recipe, number: int, pair: tower_pair.TowerPair) -> StageInputs:
        """The inputs of a stage; decodes its images and computes what its frozen networks make of them."""
        stage, device = recipe.stages[number], pair.log_temperature.device
        memory = self.sources.images
        captions = {role: prepare_captions(role, self, pair) for role in memory}
        images = {role: prepare_images(role, recipe, number, self, pair) for role in memory}
        if isinstance(stream := self.data[TRAINING], StreamedImages):
            streamed = StreamedBatches(stream, recipe, number, self.reader, self.columns, self.prepare, device)
            return make_inputs(streamed, memory, images, captions)
        teachers = [compute_teacher_vectors(checkpoint, self, device) for checkpoint in stage.teachers]
        taught = captioned.Taught.join(teachers) if teachers else None
        return make_inputs(make_batches(recipe, number, stream, images, captions, taught), memory, images, captions)

    def save(self, recipe: Recipe, pair: tower_pair.TowerPair, folder: Path) -> None:
        """Writes the pair in the layout of its encoder."""
        if (self.model.kind == "stair" and self.model.whole) or self.model.pooling:
            save_new_stair(pair, recipe, self.model, self.reader.tokenizer, folder)
            return
        words = weigh_class_words(recipe, self, pair)
        save_pair(pair, recipe, self.model, self.reader.tokenizer, self.columns, folder, self.networks, words)


def tokenise(
    data: Mapping[str, captioned.CaptionedImages], reader: TextReader, columns: TokenColumns
) -> dict[str, tower_pair.TextStore]:
    """All captions by role, tokenised once."""
    return {
        role: tower_pair.TextStore.make(tower_pair.add_types(reader(images.texts)), columns, reader.pad_id)
        for role, images in data.items()
    }


def make_batches(
    recipe: Recipe,
    number: int,
    data: captioned.CaptionedImages,
    images: Mapping[str, captioned.ImageStore],
    captions: Mapping[str, tower_pair.TextStore],
    taught: captioned.Taught | None = None,
) -> captioned.Batches:
    """The batches of a stage from the stores of the training images."""
    stage, plan, first = recipe.stages[number], recipe.stages[number].optimisation, data.first
    expansion = captioned.Expansion.plan(recipe, number, len(images[TRAINING]))
    terms = captioned.CaptionTerms.count(captions[TRAINING], first) if "naming" in stage.names else None
    stores, sizes = (images[TRAINING], captions[TRAINING], first), (plan.batch_size, plan.captions_per_image)
    return captioned.Batches(*stores, *sizes, recipe.seed, expansion, terms, taught)


def make_inputs(
    batches: tower_pair.AnyBatches,
    data: Mapping[str, captioned.CaptionedImages],
    images: Mapping[str, captioned.ImageStore],
    captions: Mapping[str, tower_pair.TextStore],
) -> StageInputs:
    """The inputs of a stage: its batches, and what validates and is shown from the stores of all roles in memory."""
    shown = next(role for role in (VALIDATION, EXAMPLES, TRAINING) if role in data)
    validation = None
    if VALIDATION in data:
        validation = Validation(images[VALIDATION], captions[VALIDATION], data[VALIDATION].first)
    return StageInputs(batches, validation, pick_examples(data[shown], images[shown], captions[shown]))


def pick_examples(
    data: captioned.CaptionedImages, images: captioned.ImageStore, captions: tower_pair.TextStore
) -> Examples:
    """Some images, each with its first caption as query."""
    chosen = choose_examples(len(data))
    texts = [shorten(data.captions[place][0]) for place in chosen]
    queries = captions.read_batch(data.first[chosen])
    return Examples(queries, images.get_plain(chosen), texts, [data.ids[place] for place in chosen])


def prepare_captions(role: str, material: Material, pair: tower_pair.TowerPair) -> tower_pair.TextStore:
    """The captions of a split, with the states of a frozen network where the texts have one."""
    texts, side = replace(material.captions[role], device=pair.log_temperature.device), pair.encoder_q
    if isinstance(side, TextOver) and not any(p.requires_grad for p in side.network.parameters()):
        states = captioned.read_states(texts, side, material.sources.cache, role, material.sources.digests[role])
        return replace(texts, states=states)
    return texts


def prepare_images(
    role: str, recipe: Recipe, number: int, material: Material, pair: tower_pair.TowerPair
) -> captioned.ImageStore:
    """The images of a split: stored views of a frozen network, or pixels."""
    stage, side, images = recipe.stages[number], pair.encoder_p, material.sources.images[role].images
    device, stored = pair.log_temperature.device, (material.sources.cache, role, material.sources.digests[role])
    if not stage.views:
        pixels = captioned.read_pixels(images, material.prepare, *stored)
        return captioned.PixelStore(pixels, material.prepare, stage.augmentation, device)
    assert isinstance(side, ImageOver)
    if any(parameter.requires_grad for parameter in side.network.parameters()):
        raise UsageError(f"recipe {recipe.name}: stage {number} has stored views, and its image network changes")
    views, augmentation = (stage.views, stage.augmentation) if role == TRAINING else (1, Augmentation())
    features = captioned.read_features(images, side, material.prepare, views, augmentation, recipe.seed, *stored)
    return captioned.FeatureStore(features, device)


def weigh_class_words(recipe: Recipe, material: Material, pair: tower_pair.TowerPair) -> ClassWordWeights | None:
    """The weights of class words over the training split of the last stage; None where the pair has none."""
    networks, image, text = material.networks, pair.encoder_p, pair.encoder_q
    if networks is None or not networks.text.classes:
        return None
    assert isinstance(image, VdrImageOver) and isinstance(text, VdrTextOver) and networks.image.classifier is not None
    log.info("weights of %d class words", len(networks.text.classes))
    pair.eval()
    last = len(recipe.stages) - 1
    texts = prepare_captions(TRAINING, material, pair)
    images = prepare_images(TRAINING, recipe, last, material, pair)
    terms = material.columns.vocabulary.dimension
    return weigh(text, image, texts, images, networks.image.classifier, networks.text.classes, terms)


@torch.inference_mode()
def standardise(pair: tower_pair.TowerPair, material: Material) -> None:
    """Gives a pretrained image side the mean and the standard deviation of its states over some training images."""
    side, data = pair.encoder_p, material.data[TRAINING]
    if not isinstance(side, ImageOver) or not isinstance(material.model.image, PretrainedImage):
        return
    device, network = next(side.parameters()).device, side.copy_frozen()

    def computed() -> Iterator[np.ndarray]:
        some = data.select(range(0, len(data), -(-len(data) // STANDARD_IMAGES))).images
        cells = [network(pixels) for pixels in captioned.read_normalised(some, material.prepare, device)]
        states = torch.cat(cells).flatten(0, 1)
        yield torch.stack([states.mean(dim=0), states.std(dim=0) + LEAST_STD]).cpu().numpy()

    read, shape = (repr(material.prepare), captioned.digest_weights(network)), (2, len(side.standard.mean))
    made_of = [material.sources.digests[TRAINING], STANDARD_IMAGES, *read]
    standard = material.sources.cache.store_array("standard", made_of, shape, np.dtype(np.float32), computed())
    mean, std = torch.from_numpy(np.array(standard)).to(device)
    side.standard.mean.copy_(mean)
    side.standard.std.copy_(std)


def compute_teacher_vectors(checkpoint: str, material: Material, device: torch.device) -> tuple[Tensor, Tensor]:
    """The vectors of a dense pair for the training split: images [n, D], captions [m, D]."""
    teacher = load_encoder("dense-crossmodal", checkpoint=checkpoint, device=str(device))
    data = material.sources.images[TRAINING]
    made_of = [material.sources.digests[TRAINING], find_checkpoint(checkpoint).digest()]

    def vectors(what: str, tower: DenseSide, inputs: Sequence[str]) -> Tensor:
        def computed() -> Iterator[np.ndarray]:
            yield tower.vectors(inputs)

        shape, kind = (len(inputs), tower.vectors(inputs[:1]).shape[1]), np.dtype(np.float32)
        array = material.sources.cache.store_array(f"teacher-{what}", made_of, shape, kind, computed())
        return torch.from_numpy(np.array(array)).to(device)

    images, captions = as_dense(teacher.document), as_dense(teacher.query)
    return vectors("images", images, data.images), vectors("captions", captions, data.texts)


# Images or texts of one forward pass of validation.
BATCH = 256
CUTS = (1, 5, 10)


@dataclass(frozen=True)
class Validation:
    """A validation split: its images, all their captions, and where those of each image begin."""

    images: captioned.ImageStore
    captions: tower_pair.TextStore
    first: np.ndarray

    @torch.inference_mode()
    def measure(self, pair: tower_pair.TowerPair, model: ImagePairSettings) -> dict[str, float]:
        """Hit rates in percent, text-to-image and image-to-text; of a lexical pair also those of the alpha mode."""

        def prepare(vectors: Tensor, bag: Tensor | None, topk: int) -> Tensor:
            encoded = tower_pair.drop_registers(vectors, model)
            return keep_heaviest(encoded, bag, topk) if model.family.cut else encoded

        pieces = (self.images.get_plain(chosen) for chosen in tower_pair.split_positions(len(self.images), BATCH))
        images = torch.cat([prepare(pair.encoder_p(piece), None, model.topk) for piece in pieces])
        owner = torch.from_numpy(np.repeat(np.arange(len(self.images)), np.diff(self.first))).to(images.device)
        vectors, bags = [], []
        for chosen in tower_pair.split_positions(len(owner), BATCH):
            batch = self.captions.read_batch(chosen)
            bags.append(batch.bag[:, model.registers :])
            vectors.append(prepare(pair.encoder_q(batch), bags[-1], model.kept_of_texts))
        texts = torch.cat(vectors)
        figures = {f"t2i_R@{k}": rate for k, rate in compute_hit_rates(texts @ images.T, owner).items()}
        figures |= {f"i2t_R@{k}": rate for k, rate in compute_backward_rates(images @ texts.T, owner).items()}
        if model.lexical:
            alpha = compute_hit_rates(torch.cat(bags).float() @ images.T, owner)
            figures |= {f"alpha_t2i_R@{k}": rate for k, rate in alpha.items()}
            has = [(side > 0).float() for side in (texts, images)]
            names = ("mean_text_terms", "mean_image_terms")
            figures |= {name: round(float(side.sum(dim=1).mean()), 1) for name, side in zip(names, has, strict=True)}
            # FLOPS of search: what a random text and a random image share.
            figures["mean_shared_terms"] = round(float(has[0].mean(dim=0) @ has[1].mean(dim=0)), 2)
        return figures

    def score(self, figures: Mapping[str, float]) -> float:
        """The sum of R@1, R@5 and R@10 in both directions."""
        return round(sum(figures[f"{direction}_R@{k}"] for direction in ("t2i", "i2t") for k in CUTS), 2)


def compute_hit_rates(scores: Tensor, place: Tensor) -> dict[int, float]:
    """Share in percent of rows of scores [N, M] whose column `place` [N] is among the first k; ties stay in order."""
    if not torch.isfinite(scores).all():
        raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
    right = scores.gather(1, place[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < place[:, None]
    rank = ((scores > right) | ((scores == right) & before)).sum(dim=1)
    return {k: round(100 * float((rank < k).float().mean()), 2) for k in CUTS}


def compute_backward_rates(scores: Tensor, owner: Tensor) -> dict[int, float]:
    """Share in percent of images [M] that have one of their captions among the first k by scores [M, N]."""
    owned = owner[None, :] == torch.arange(len(scores), device=scores.device)[:, None]
    best = scores.masked_fill(~owned, -torch.inf).amax(dim=1, keepdim=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    return compute_hit_rates(scores, places.masked_fill(~owned | (scores != best), scores.shape[1] - 1).amin(dim=1))


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
    queues = [stage.momentum.queue for stage in stages]
    makers: Mapping[str, Callable[[], TrainingPart]] = {
        "masked_words": lambda: MaskedWords(text),
        "lexlip_momentum": lambda: MomentumKeys(pair, len(text.columns.vocabulary), max(queues)),
    }
    named = {name for stage in stages for name in stage.names}
    return {name: make() for name, make in makers.items() if name in named}
