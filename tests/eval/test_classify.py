"""Zero-shot classification: class vectors and ranks by hand, the reference's prototypes, and the command."""

import json
import re
from functools import partial

import numpy as np
import pytest
from colour_towers import COLOURS, colour_tower, painted
from invoking import invoked
from scipy import sparse
from tiny_encoders import made_stair

import eval.analyses.classify
from eval.analyses.classes import classification
from eval.analyses.classes.class_sets import ImageClasses, LabelledImages
from eval.analyses.classes.classification import NO_ANSWER, ClassAccuracy, measure_accuracies, rank_images
from eval.options import ImageEncoderOptions
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError, OnError, UsageError
from lexvl_anserini.ground.records import Vocabulary

WHOLE = (0, 0, 8, 8)


class Words:
    """Texts: how often each colour is named."""

    kind, binary, vocabulary = "impact", False, Vocabulary(COLOURS)

    def weights(self, inputs, batch_size=32, progress=print, on_error=None):
        progress(len(inputs))
        rows = [[re.findall(r"\w+", text).count(colour) for colour in COLOURS] for text in inputs]
        return sparse.csr_matrix(np.array(rows, dtype=np.float32).reshape(-1, 3))


class DenseWords(Words):
    """The same as dense vectors."""

    kind = "dense"

    def vectors(self, *args):
        return self.weights(*args).toarray()


def silent(count):
    """Shows no progress."""


def model() -> Encoder:
    return Encoder("toy", "impact", query=Words(), document=colour_tower(1))


def images(**changes) -> LabelledImages:
    """Red, green, mostly red with some blue, and black: of the classes red, blue and green."""
    shown = [painted(8, 8, **boxes) for boxes in ({"red": WHOLE}, {"green": WHOLE})]
    shown += [painted(8, 8, red=WHOLE, blue=(0, 0, 8, 3)), painted(8, 8)]
    classes = ImageClasses(("red", "blue", "green"), (("red",), ("blue",), ("green",)), ("a {} thing",))
    return LabelledImages("toy", shown, np.array([0, 2, 1, 1]), classes)._replace(**changes)


def test_prompts_are_normalised_averaged_and_normalised(monkeypatch):
    prompts = [["red red red", "green"], ["blue", "blue blue"], ["none"]]
    expected = [[0.5**0.5, 0.5**0.5, 0], [0, 0, 1], [0, 0, 0]]
    sparse_rows = classification.encode_classes(Words(), prompts, progress=silent)
    assert sparse_rows.toarray() == pytest.approx(np.array(expected))
    assert classification.encode_classes(DenseWords(), prompts, progress=silent) == pytest.approx(np.array(expected))
    monkeypatch.setattr("eval.analyses.classes.classification.CLASSES_AT_ONCE", 2)
    prompts = [[colour] for colour in COLOURS]
    assert classification.encode_classes(Words(), prompts, progress=silent).toarray() == pytest.approx(np.eye(3))


def test_ranks_by_hand():
    scores = np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [2.0, 2.0, 2.0], [0.0, -np.inf, 1.0]])
    # The second of three equal scores is second; no answer is behind every cut.
    assert classification.rank_classes(scores, np.array([0, 1, 1, 1])).tolist() == [1, 3, 2, NO_ANSWER]
    # A class without a common term is none.
    image, classes = sparse.csr_matrix([[1.0, 0.0]]), sparse.csr_matrix([[0.5, 0.5], [0.0, 1.0]])
    assert classification.compute_similarities(image, classes).tolist() == [[0.5, -np.inf]]
    assert classification.compute_similarities(image.toarray(), classes.toarray()).tolist() == [[0.5, 0.0]]


def test_ranks_of_images():
    assert rank_images(model(), images(), progress=silent).tolist() == [1, 1, 2, NO_ANSWER]
    rows = measure_accuracies("toy", images(), np.array([1, 1, 2, NO_ANSWER]))
    assert rows == [
        ClassAccuracy("toy", "toy", 4, 3, "images", 0.5, 0.75),
        ClassAccuracy("toy", "toy", 4, 3, "classes", 2 / 3, 2.5 / 3),
    ]
    assert measure_accuracies("toy", images(per_class=True), np.array([1, 1, 2, NO_ANSWER])) == rows[::-1]
    # Classes without images count in no mean.
    found = images(labels=np.array([0, 0, 0, 2]))
    [_, over_classes] = measure_accuracies("toy", found, np.array([1, 1, 6, 1]))
    assert over_classes[5:] == (pytest.approx((2 / 3 + 1) / 2), pytest.approx((2 / 3 + 1) / 2))


def test_unreadable_images_fail_or_are_counted(tmp_path, caplog):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    found = images(images=[*images().images[:2], str(tmp_path / "broken.png")], labels=np.array([0, 2, 1]))
    with pytest.raises(DataError, match="broken.png: not a picture of a known format"):
        rank_images(model(), found, progress=silent)
    ranks = rank_images(model(), found, progress=silent, on_error=OnError("skip"))
    assert ranks.tolist() == [1, 1, 0]
    assert "1 of 3 images cannot be read and do not count" in caplog.text and "broken.png" in caplog.text
    assert measure_accuracies("toy", found, ranks)[0][2:] == (2, 3, "images", 1.0, 1.0)
    with pytest.raises(DataError, match="toy: none of its 3 images can be read"):
        measure_accuracies("toy", found, np.zeros(3, int))


@pytest.mark.shared
@pytest.mark.parametrize(("space", "key"), [("features", "proto_sd"), ("weights", "proto_att")])
def test_class_vectors_are_the_references(shared, space, key):
    """The prototype of FDT's evaluation, of captions 0 to 2."""
    folder = shared / "golden" / "fdt"
    captions = json.loads((folder / "fdt-tiny.json").read_text())["captions"][:3]
    encoder = load_encoder("fdt", str(folder), device="cpu", space=space)
    found = classification.encode_classes(encoder.query, [captions])
    found = found if isinstance(found, np.ndarray) else found.toarray()
    assert found[0] == pytest.approx(np.load(folder / "fdt-tiny.npz")[key].ravel(), abs=2e-5)


def test_the_command(tmp_path, monkeypatch):
    for name, image in zip(("red/1", "green/2", "blue/3"), images().images, strict=False):
        (tmp_path / name).parent.mkdir()
        image.save(tmp_path / f"{name}.png")
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: model())
    invoke = partial(invoked, eval.analyses.classify.command, "--images", tmp_path)
    head, over_images, over_classes = (line.split() for line in invoke().splitlines())
    assert head == ["system", "dataset", "images", "classes", "mean", "over", "top", "1", "%", "top", "5", "%"]
    assert over_images == ["toy", tmp_path.name, "3", "3", "images", "66.7", "100.0"]
    assert over_classes[4:] == ["classes", "66.7", "100.0"]
    [row, _] = json.loads(invoke("--template", "{}", "--format", "json"))
    assert row["top_1"] == pytest.approx(2 / 3)
    with pytest.raises(UsageError, match="template 'no place' has no {}"):
        invoke("--template", "no place")


def test_the_encoder_reads_images_and_adds_no_prompt(golden, tmp_path):
    with pytest.raises(UsageError, match="encoder 'splade' reads texts only; choose one that reads images"):
        ImageEncoderOptions(encoder="splade").load()
    with pytest.raises(UsageError, match="--set direction=image-to-text: this command encodes texts as queries"):
        ImageEncoderOptions("stair", "x", settings=["direction=image-to-text"]).load()
    checkpoint = str(made_stair(golden, tmp_path))
    assert ImageEncoderOptions("stair", checkpoint, device="cpu").load().query.reader.prompt == ""
    given = ImageEncoderOptions("stair", checkpoint, settings=["prompt=a photo of "], device="cpu")
    assert given.load().query.reader.prompt == "a photo of "


RED, GREEN, BLUE = (painted(8, 8, **{colour: (0, 0, 8, 8)}) for colour in ("red", "green", "blue"))


@pytest.mark.parametrize(("peak", "found"), [(1.3, 1.25), (-6.5, -6.0), (6.0, 6.0), (0.0, 0.0)])
def test_the_search_ends_at_the_nearest_of_96_steps(peak, found):
    tried = []

    def score(exponent):
        tried.append(exponent)
        return -abs(exponent - peak)

    assert classification.find_exponent(score) == found
    assert tried[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(tried) == len(set(tried)) <= 15
    assert all(-6 <= exponent <= 6 and exponent * 8 % 1 == 0 for exponent in tried)
    # Of equal scores the largest penalty.
    assert classification.find_exponent(lambda exponent: exponent <= 0.3) == 0.25
    assert classification.find_exponent(lambda exponent: 0) == 6


def test_every_fifth_image_of_a_class_is_held_out():
    labels = np.array([3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0])
    assert np.flatnonzero(classification.choose_held_out(labels)).tolist() == [6]
    assert np.flatnonzero(classification.choose_held_out(np.append(labels, 0))).tolist() == [6, 11]
    with pytest.raises(DataError, match="training images of 1 classes, expected at least 2"):
        classification.choose_held_out(np.zeros(9, int))
    with pytest.raises(DataError, match="no class has 5 training images"):
        classification.choose_held_out(np.array([0, 1, 0, 1]))


def test_scores_have_a_column_for_every_class():
    vectors = sparse.csr_matrix(np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.float32))
    scores = classification.score_classes(
        classification.fit_classifier(vectors, np.array([1, 3, 1, 3]), 0.0), vectors[:2], 4
    )
    assert np.isneginf(scores[:, [0, 2]]).all()
    assert (scores[:, 1] == -scores[:, 3]).all() and scores[0, 1] > 0 > scores[1, 1]


def test_colours_are_learned_and_unseen_classes_are_no_answer():
    train = images(images=[RED] * 5 + [BLUE] * 5, labels=np.array([0] * 5 + [1] * 5))
    test = images(images=[RED, BLUE, GREEN], labels=np.array([0, 1, 2]))
    [over_images, over_classes] = classification.run_linear_probe(model(), train, test, progress=silent)
    assert over_images[:3] == ("toy", "toy", 10)
    assert over_images[4:] == (3, 3, "images", 2 / 3, 2 / 3) and over_classes[6:] == ("classes", 2 / 3, 2 / 3)


def test_images_that_cannot_be_read_leave_their_labels(tmp_path, monkeypatch):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = str(tmp_path / "broken.png")
    found = images(images=[RED, broken, GREEN], labels=np.array([0, 1, 2]))
    vectors, kept = classification.encode_images(model(), found, 2, silent, OnError("skip"))
    assert kept.images == [RED, GREEN] and kept.labels.tolist() == [0, 2]
    assert vectors.toarray() == pytest.approx(np.array([[1.0, 0, 0], [0, 1, 0]]))
    with pytest.raises(DataError, match="broken.png"):
        classification.encode_images(model(), found, 2, silent)
    none = images(images=[broken] * 2, labels=np.array([0, 1]))
    with pytest.raises(DataError, match="toy: none of its 2 images can be read"):
        classification.encode_images(model(), none, 2, silent, OnError("skip"))
    # One of the test ends it before the search.
    train = images(images=[RED] * 5 + [BLUE] * 5, labels=np.array([0] * 5 + [1] * 5))
    monkeypatch.setattr(classification, "find_exponent", lambda score: pytest.fail("the search began"))
    with pytest.raises(DataError, match="broken.png"):
        classification.run_linear_probe(model(), train, none)


def test_the_command_probes(tmp_path, monkeypatch):
    for split, count in (("train", 5), ("test", 1)):
        for name, image in (("cat", RED), ("dog", BLUE)):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                image.save(tmp_path / split / name / f"{number}.png")
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: model())
    invoke = partial(invoked, eval.analyses.classify.command, "--images")
    test, train = tmp_path / "test", tmp_path / "train"
    head, row, _ = (line.split() for line in invoke(test, "--train", train).splitlines())
    assert " ".join(head) == "system dataset trained on lambda images classes mean over top 1 % top 5 %"
    assert row[:3] == ["toy", "test", "10"] and row[4:] == ["2", "2", "images", "100.0", "100.0"]
    own = f"cifar10:{tmp_path}"
    [row, _] = json.loads(invoke(own, "--format", "json", "--train", own))
    assert (row["dataset"], row["trained_on"], row["classes"], row["top_1"]) == ("cifar10", 10, 10, 1.0)
    with pytest.raises(UsageError, match="--template is for zero-shot classification"):
        invoke(test, "--train", train, "--template", "a {}")
