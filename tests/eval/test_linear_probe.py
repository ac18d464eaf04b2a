"""The linear probe: its search for the penalty, its scores, its accuracies on colours, and the command."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from colour_towers import painted
from scipy import sparse
from typer.testing import CliRunner

import eval.analyses.classify
from eval.analyses.classify import best_exponent, fitted, held_out, image_vectors, linear_probe, scores_of
from eval.options import ImageEncoderOptions
from lexvl_anserini.cli import make_app
from lexvl_anserini.data.pictures.images import OnError
from lexvl_anserini.ground.errors import DataError, UsageError
from tests.eval.test_zeroshot import images, model, silent

RED, GREEN, BLUE = (painted(8, 8, **{colour: (0, 0, 8, 8)}) for colour in ("red", "green", "blue"))


@pytest.mark.parametrize(("peak", "found"), [(1.3, 1.25), (-6.5, -6.0), (6.0, 6.0), (0.0, 0.0)])
def test_the_search_ends_at_the_nearest_of_96_steps(peak, found):
    tried = []

    def score(exponent):
        tried.append(exponent)
        return -abs(exponent - peak)

    assert best_exponent(score) == found
    assert tried[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(tried) == len(set(tried)) <= 15
    assert all(-6 <= exponent <= 6 and exponent * 8 % 1 == 0 for exponent in tried)


def test_of_equal_scores_the_largest_penalty():
    assert best_exponent(lambda exponent: exponent <= 0.3) == 0.25
    assert best_exponent(lambda exponent: 0) == 6


def test_every_fifth_image_of_a_class_is_held_out():
    labels = np.array([3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0])
    assert np.flatnonzero(held_out(labels)).tolist() == [6]
    assert np.flatnonzero(held_out(np.append(labels, 0))).tolist() == [6, 11]
    with pytest.raises(DataError, match="training images of 1 classes, expected at least 2"):
        held_out(np.zeros(9, int))
    with pytest.raises(DataError, match="no class has 5 training images"):
        held_out(np.array([0, 1, 0, 1]))


def test_scores_have_a_column_for_every_class():
    vectors = sparse.csr_matrix(np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.float32))
    scores = scores_of(fitted(vectors, np.array([1, 3, 1, 3]), 0.0), vectors[:2], 4)
    assert np.isneginf(scores[:, [0, 2]]).all()
    assert (scores[:, 1] == -scores[:, 3]).all() and scores[0, 1] > 0 > scores[1, 1]


def test_colours_are_learned_and_unseen_classes_are_no_answer():
    train = images(images=[RED] * 5 + [BLUE] * 5, labels=np.array([0] * 5 + [1] * 5))
    test = images(images=[RED, BLUE, GREEN], labels=np.array([0, 1, 2]))
    [over_images, over_classes] = linear_probe(model(), train, test, progress=silent)
    assert over_images[:3] == ("toy", "toy", 10)
    assert over_images[4:] == (3, 3, "images", 2 / 3, 2 / 3) and over_classes[6:] == ("classes", 2 / 3, 2 / 3)


def test_images_that_cannot_be_read_leave_their_labels(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = str(tmp_path / "broken.png")
    found = images(images=[RED, broken, GREEN], labels=np.array([0, 1, 2]))
    vectors, kept = image_vectors(model(), found, 2, silent, OnError("skip"))
    assert kept.images == [RED, GREEN] and kept.labels.tolist() == [0, 2]
    assert vectors.toarray() == pytest.approx(np.array([[1.0, 0, 0], [0, 1, 0]]))
    with pytest.raises(DataError, match="broken.png"):
        image_vectors(model(), found, 2, silent)
    with pytest.raises(DataError, match="toy: none of its 2 images can be read"):
        image_vectors(model(), images(images=[broken] * 2, labels=np.array([0, 1])), 2, silent, OnError("skip"))


def test_an_image_of_the_test_that_cannot_be_read_ends_it_before_the_search(tmp_path, monkeypatch):
    (tmp_path / "broken.png").write_bytes(b"no image")
    train = images(images=[RED] * 5 + [BLUE] * 5, labels=np.array([0] * 5 + [1] * 5))
    test = images(images=[RED, str(tmp_path / "broken.png")], labels=np.array([0, 1]))
    monkeypatch.setattr("eval.analyses.classify.best_exponent", lambda score: pytest.fail("the search began"))
    with pytest.raises(DataError, match="broken.png"):
        linear_probe(model(), train, test)


def test_the_command(tmp_path, monkeypatch):
    for split, count in (("train", 5), ("test", 1)):
        for name, image in (("cat", RED), ("dog", BLUE)):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                image.save(tmp_path / split / name / f"{number}.png")
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: model())
    invoke = partial(CliRunner().invoke, make_app(eval.analyses.classify.command), catch_exceptions=False)
    test = str(tmp_path / "test")
    done = invoke(["--images", test, "--train", str(tmp_path / "train")])
    assert done.exit_code == 0
    head, row, _ = (line.split() for line in done.stdout.splitlines())
    assert " ".join(head) == "system dataset trained on lambda images classes mean over top 1 % top 5 %"
    assert row[:3] == ["toy", "test", "10"] and row[4:] == ["2", "2", "images", "100.0", "100.0"]
    [row, _] = json.loads(invoke(["--images", f"cifar10:{tmp_path}", "--format", "json"]).stdout)
    assert (row["dataset"], row["trained_on"], row["classes"], row["top_1"]) == ("cifar10", 10, 10, 1.0)
    with pytest.raises(UsageError, match="test is no known set with images to train on; name some with --train"):
        invoke(["--images", test])
