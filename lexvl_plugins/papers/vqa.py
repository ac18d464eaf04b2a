"""FDT's probe of visual question answering (section 4.2): two layers over the features of an image and a question.

Both features stay as they are, side by side; a layer of `HIDDEN` units with ReLU and one of the most frequent answers
read them. The paper says no more: sizes, training and split are in its supplement, which is not public. Here the loss
is the cross-entropy with the scores of a question's answers, divided by their sum; Adam trains on train2014 until the
accuracy on every tenth of its images, which the layers do not learn from, rises no more; val2014 is measured.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from lexvl_eval.analyses.classes.classification import Vectors

from lexvl_anserini.encoders.encoder import Encoder, Tower, encode_inputs
from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.progress import Progress, silent

from .prepared import Need, PartCost, Prepared, RowPart, Workplace, list_needed_weights, prepare
from .questions import SPLITS, VqaQuestion, find_folder, list_files, read_questions
from .retrieval import keep_values, limit_images, load_part_encoder
from .sources import DOCUMENT_COSTS

if TYPE_CHECKING:
    import torch
    from scipy import sparse

log = logging.getLogger(__name__)

# Answers of the training questions that the probe knows, the most frequent ones; units of the first layer.
ANSWERS, HIDDEN = 3129, 1024
# Questions of a step, Adam's learning rate, the most epochs, and those without a better accuracy that end the training.
BATCH, RATE, EPOCHS, PATIENCE = 256, 1e-3, 100, 10
HELD_OUT_EVERY = 10
SEED = 12345

# Images and questions of train2014 and val2014.
IMAGES, QUESTIONS = 82_783 + 40_504, 443_757 + 214_354


class PairFeatures(NamedTuple):
    """The vectors of images and of texts, each once, and the rows of both that a question reads, int64 [Q]."""

    images: Vectors
    texts: Vectors
    image: np.ndarray
    text: np.ndarray

    def take(self, rows: np.ndarray) -> np.ndarray:
        """PairFeatures of both, side by side, float32 [n, D + E]."""
        sides = [self.images[self.image[rows]], self.texts[self.text[rows]]]
        return np.concatenate([side if isinstance(side, np.ndarray) else side.toarray() for side in sides], axis=1)


def read_answered(part: RowPart, work: Prepared, place: Workplace) -> Iterator[tuple[Any, Any]]:
    """The questions of both splits of a part, with their answers."""
    folder = find_folder(place.corpora.get(part.data), place.data_dir)
    for split in SPLITS:
        yield from ((question, question.image) for question in read_questions(folder, split, place.data_dir))


@keep_values(read_answered)
def measure_vqa(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The mean accuracy of the probe's first answer, of all questions and of each kind of answer."""
    folder = find_folder(place.corpora.get(part.data), place.data_dir)
    train, test = (limit_images(read_questions(folder, split, place.data_dir), place.limit) for split in SPLITS)
    model = load_part_encoder(work, place, direction="text-to-image")
    with place.bars(f"vqa {part.data}", None, "images and questions") as progress:
        learned, tested = (encode_questions(model, own, place.batch_size, progress) for own in (train, test))
    answers = choose_answers(train)
    probe = train_probe(learned, tabulate_scores(train, answers), place.device)
    accuracies = pick_scores(tabulate_scores(test, answers), predict(probe, tested))
    values = {"all": float(accuracies.mean())}
    for kind in (name for name in part.measures if name not in values):
        own = np.array([question.kind == kind for question in test])
        if not own.any():
            raise DataError(f"{folder}: no question of {SPLITS[1]} has the answer type {kind!r}")
        values[kind] = float(accuracies[own].mean())
    return {"values": {name: values[name] for name in part.measures}, "quantised": False, "documents": len(test)}


def encode_questions(
    model: Encoder, questions: Sequence[VqaQuestion], batch_size: int = 32, progress: Progress = silent
) -> PairFeatures:
    """The features of questions, of length sqrt(D), as the layers' initial weights expect of D inputs.

    An image, or a text, of several questions is encoded once.
    """
    from sklearn.preprocessing import normalize

    images, texts = (list(dict.fromkeys(own)) for own in zip(*((q.image, q.text) for q in questions), strict=True))
    places = ({name: place for place, name in enumerate(names)} for names in (images, texts))
    of_image, of_text = places

    def encode(tower: Tower, inputs: Sequence[str]) -> Vectors:
        vectors = normalize(encode_inputs(tower, inputs, batch_size, progress))
        return vectors * np.float32(vectors.shape[1] ** 0.5)

    return PairFeatures(
        encode(model.document, images),
        encode(model.query, texts),
        np.array([of_image[question.image] for question in questions]),
        np.array([of_text[question.text] for question in questions]),
    )


def choose_answers(questions: Sequence[VqaQuestion], number: int = ANSWERS) -> list[str]:
    """The answers that have the best score of most questions; of equal ones the first in alphabetical order."""
    best = Counter(
        min(question.scores, key=lambda answer: (-question.scores[answer], answer)) for question in questions
    )
    return sorted(best, key=lambda answer: (-best[answer], answer))[:number]


def tabulate_scores(questions: Sequence[VqaQuestion], answers: Sequence[str]) -> sparse.csr_matrix:
    """The scores of known answers, float32 [Q, A]."""
    from scipy import sparse

    column = {answer: place for place, answer in enumerate(answers)}
    entries = [
        (row, column[answer], score)
        for row, question in enumerate(questions)
        for answer, score in question.scores.items()
        if answer in column
    ]
    rows, columns, scores = zip(*entries, strict=True) if entries else ((), (), ())
    return sparse.csr_matrix((np.array(scores, np.float32), (rows, columns)), shape=(len(questions), len(answers)))


def pick_scores(scores: sparse.csr_matrix, chosen: np.ndarray) -> np.ndarray:
    """The score of each question's chosen answer, [Q]."""
    return np.asarray(scores[np.arange(len(chosen)), chosen]).ravel()


def choose_held_out(features: PairFeatures) -> np.ndarray:
    """Which questions choose the number of epochs, bool [Q]: those about every tenth image, at least one."""
    images = len(np.unique(features.image))
    if images < 2:
        raise DataError(f"training questions about {images} images, expected at least 2: one chooses when to stop")
    return features.image % HELD_OUT_EVERY == min(HELD_OUT_EVERY, images) - 1


def train_probe(
    features: PairFeatures, scores: sparse.csr_matrix, device: str = "cpu", hidden: int = HIDDEN, seed: int = SEED
) -> torch.nn.Sequential:
    """The two layers with the best accuracy on the images held out."""
    import torch

    held_out = choose_held_out(features)
    known = np.asarray(scores.sum(axis=1)).ravel() > 0  # a question without a known answer has no target
    learned, checked = np.flatnonzero(~held_out & known), np.flatnonzero(held_out)
    if not len(learned):
        raise DataError("no training question has a known answer")
    order = np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width = features.take(learned[:1]).shape[1]
        layers = torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, scores.shape[1])
        probe = torch.nn.Sequential(*layers).to(choose_device(device))
    optimiser = torch.optim.Adam(probe.parameters(), lr=RATE)
    best, state, since = -1.0, deepcopy(probe.state_dict()), 0
    for epoch in range(1, EPOCHS + 1):
        for logits, rows in run_batches(probe, features, order.permutation(learned)):
            target = torch.from_numpy(scores[rows].toarray()).to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits, target / target.sum(dim=1, keepdim=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        accuracy = float(pick_scores(scores[checked], predict(probe, features, checked)).mean())
        log.debug("epoch %d: %.4f of the held-out questions", epoch, accuracy)
        if accuracy > best:
            best, state, since = accuracy, deepcopy(probe.state_dict()), 0
        else:
            since += 1
            if since == PATIENCE:
                break
    probe.load_state_dict(state)
    return probe


def run_batches(
    probe: torch.nn.Sequential, features: PairFeatures, rows: np.ndarray
) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
    """The logits [n, A] of questions, a batch at a time, with their rows."""
    import torch

    device = next(probe.parameters()).device
    for start in range(0, len(rows), BATCH):
        own = rows[start : start + BATCH]
        yield probe(torch.from_numpy(features.take(own)).to(device)), own


def predict(probe: torch.nn.Sequential, features: PairFeatures, rows: np.ndarray | None = None) -> np.ndarray:
    """The column of each question's first answer, int64 [n]."""
    import torch

    chosen = np.arange(len(features.image)) if rows is None else rows
    with torch.no_grad():
        return np.concatenate(
            [logits.argmax(dim=1).cpu().numpy() for logits, _ in run_batches(probe, features, chosen)]
        )


def list_vqa_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The weights, the four files of both splits, and COCO's images."""
    folder = find_folder(place.corpora.get(part.data), place.data_dir)
    here = all(path.exists() for split in SPLITS for path in list_files(folder, split, place.data_dir))
    origin = "visualqa.org: questions and annotations of v2; cocodataset.org: train2014.zip and val2014.zip"
    return [*list_needed_weights(part, place), Need("data", str(place.corpora.get(part.data, part.data)), here, origin)]


def estimate_vqa(part: RowPart, place: Workplace) -> PartCost | None:
    """The time of encoding; None where it has no weights. It writes no vectors."""
    work = prepare(part, place)
    if work is None:
        return None
    cost = DOCUMENT_COSTS[work.system.encoder]
    images = min(IMAGES, 2 * place.limit) if place.limit else IMAGES
    texts_s = QUESTIONS * images / IMAGES / (cost.topics_per_s or cost.documents_per_s)
    return PartCost(work.names.run, 0, images / cost.documents_per_s, texts_s)
