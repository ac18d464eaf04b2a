"""The completeness probe: its pairs of sentences, its shares by hand, and the command."""

from __future__ import annotations

import json
from functools import partial

import pytest
from colour_towers import painted
from typer.testing import CliRunner

import eval.analyses.interpretability
from eval.analyses.sentence_pairs import (
    CompletenessShare,
    SentencePair,
    compare_sentences,
    format_sentence,
    load_sentence_pairs,
    make_caption_pairs,
    split_caption,
)
from eval.options import ImageEncoderOptions
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import DataError, UsageError
from tests.eval.test_classify import model, silent
from tests.eval.test_interpretability import dataset as captioned

# --- sentences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("Two dogs , and a man with a ball .", "Two dogs"),
        ("A man WITH a hat", "A man"),
        ("A handstand without shoes", None),
        ("and a dog", None),
        ("The and a dog", None),
        ("A dog and .", None),
        ("A dog", None),
    ],
)
def test_a_partial_caption_ends_before_and_or_with(caption, found):
    assert split_caption(caption) == found


def test_sentences_of_objects():
    assert format_sentence(["dog"]) == "a photo of a dog"
    assert format_sentence(["apple", "dog"]) == "a photo of an apple and a dog"
    assert format_sentence(["cat", "dog", "oven"]) == "a photo of a cat, a dog and an oven"


def test_pairs_of_annotated_objects(tmp_path):
    """Image 1 has three categories, one of them twice, hence three pairs; image 2 has one, hence none."""
    path = tmp_path / "instances.json"
    objects = [(1, 18), (1, 1), (1, 18), (1, 3), (2, 1)]
    found = {
        "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}, {"id": 18, "name": "dog"}],
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [{"image_id": image, "category_id": category} for image, category in objects],
    }
    path.write_text(json.dumps(found))
    pairs = load_sentence_pairs(f"{path},{tmp_path / 'train'}")
    assert {pair.image for pair in pairs} == {str(tmp_path / "train/1.jpg")}
    assert {pair.complete for pair in pairs} == {"a photo of a car, a dog and a person"}
    assert [pair.partial.removeprefix("a photo of ") for pair in pairs] == [
        "a dog and a person",
        "a car and a person",
        "a car and a dog",
    ]
    with pytest.raises(UsageError, match="instances.json names no images; expected .*instances.json,IMAGES"):
        load_sentence_pairs(str(path))
    path.write_text(json.dumps({**found, "annotations": [{"image_id": 1}]}))
    with pytest.raises(DataError, match=r"no annotations of objects as COCO's \('category_id' is missing"):
        load_sentence_pairs(f"{path},train")
    path.write_text(json.dumps({**found, "annotations": []}))
    with pytest.raises(DataError, match="no pair of sentences in it"):
        load_sentence_pairs(f"{path},train")


def test_pairs_of_a_list(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("image\tcomplete\tpartial\na.png\ta dog, a cat\ta dog\n")
    assert load_sentence_pairs(str(path)) == [SentencePair(str(tmp_path / "a.png"), "a dog, a cat", "a dog")]
    path.write_text("a.png\ta dog\ta dog\n")
    with pytest.raises(DataError, match="pairs.tsv line 1: the two sentences are equal: 'a dog'"):
        load_sentence_pairs(str(path))
    path.write_text("a.png\ta dog\n")
    with pytest.raises(DataError, match=r"line 1: 2 columns, expected 3 \(image, complete, partial\)"):
        load_sentence_pairs(str(path))


def test_pairs_of_captions(monkeypatch):
    monkeypatch.setattr(
        "tests.eval.test_interpretability.CAPTIONS", {"1": "A dog and a man", "2": "A dog", "3": "x and y"}
    )
    assert list(make_caption_pairs(captioned())) == [
        SentencePair("x.png", "A dog and a man", "A dog"),
        SentencePair("x.png", "x and y", "x"),
    ]
    with pytest.raises(UsageError, match="toy is image-to-text; expected images that captions describe"):
        list(make_caption_pairs(captioned(direction="image-to-text")))


# --- shares ---------------------------------------------------------------------------------------------------------


def pairs(folder) -> list[SentencePair]:
    """An image half red, half blue, and one that is green."""
    painted(8, 8, red=(0, 0, 8, 4), blue=(0, 4, 8, 8)).save(folder / "both.png")
    painted(8, 8, green=(0, 0, 8, 8)).save(folder / "green.png")
    both, green = str(folder / "both.png"), str(folder / "green.png")
    return [
        SentencePair(both, "red and blue", "red"),
        SentencePair(green, "green and red", "green"),
        SentencePair(both, "blue and green", "blue"),
        SentencePair(green, "red, red", "red"),
    ]


def test_shares_by_hand(tmp_path, monkeypatch):
    """The first image gains by naming blue too: .7 instead of .5. Green loses by red, and the first image by green.

    With the other image, "green and red" (.35 instead of 0) and "blue and green" (.7 instead of 0) gain. Equal vectors
    are no gain.
    """
    expected = [CompletenessShare("toy", "four", 2, 4, 0.25), CompletenessShare("another image", "four", 2, 4, 0.5)]
    assert compare_sentences(model(), "four", pairs(tmp_path), progress=silent) == expected
    monkeypatch.setattr("eval.analyses.sentence_pairs.IMAGES_AT_ONCE", 1)
    assert compare_sentences(model(), "four", pairs(tmp_path), progress=silent) == expected


def test_one_image_is_refused(tmp_path):
    with pytest.raises(DataError, match="one: pairs of 1 images, expected at least 2"):
        compare_sentences(model(), "one", pairs(tmp_path)[:1], progress=silent)


def test_the_command(tmp_path, monkeypatch):
    rows = "".join(f"{image}\t{complete}\t{rest}\n" for image, complete, rest in pairs(tmp_path))
    (tmp_path / "pairs.tsv").write_text(rows)
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: model())
    invoke = partial(CliRunner().invoke, make_app(eval.analyses.interpretability.command), catch_exceptions=False)
    done = invoke(["--pairs", str(tmp_path / "pairs.tsv")])
    head, own, other = (line.split() for line in done.stdout.splitlines())
    assert " ".join(head) == "ranking dataset images pairs complete first %"
    assert own[2:] == ["2", "4", "25.0"] and other[:2] == ["another", "image"]
