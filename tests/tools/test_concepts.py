"""Concepts among a picture's terms: which words mean what, how they merge, and what is counted as right."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given as provided
from hypothesis import strategies as st
from invoking import invoked
from world import concepts as image_concepts
from world.commands import print_concepts
from world.concepts import ConceptFrequencies, concept_means, count_correct, sample
from world.grammar import captions
from world.meanings import Concept, Meaning, concepts_in, distinct, lexicon, meaning_of, meanings, named, words_of
from world.scenes import Scene, Thing, scenes

from lexvl_anserini.ground.errors import UsageError

pytestmark = pytest.mark.extended

BOAT = Thing("boat", "red", 2, "large")
HOUSE = Thing("house", "white", 1, "medium")
HARBOUR = Scene("test", 0, "sea", "rain", "night", BOAT, "floating", "in front of", HOUSE, None)
OTHER = HARBOUR._replace(number=1, subject=Thing("dog", "black", 1, "small"), landmark=None, place="park")


def sure(*concepts: tuple[str, str], names: bool = True) -> Meaning:
    return Meaning(frozenset(Concept(*one) for one in concepts), names=names)


def vague(*concepts: tuple[str, str]) -> Meaning:
    return sure(*concepts, names=False)


def found(*terms: str, places: int = 10) -> list[Meaning]:
    return distinct(meanings(terms), places)


@pytest.mark.parametrize(
    ("term", "meant"),
    [
        ("boat", sure(("object", "boat"))),
        ("Yachts", sure(("object", "boat"))),
        ("crimson", sure(("colour", "red"))),
        ("ocean", sure(("place", "sea"))),
        ("seat", vague(("object", "bench"), ("object", "chair"))),
        ("vehicles", vague(("object", "car"), ("object", "bus"), ("object", "truck"))),
        ("finned", vague(("object", "fish"))),
        ("photo", sure(("word", "photo"))),
        ("zebra", sure(("word", "zebra"))),
        *((term, None) for term in ("the", "with", "##s", "a", "x", "7", "2nd", ".", "", "[CLS]")),
    ],
)
def test_words(term, meant):
    assert meaning_of(term) == meant


def test_every_thing_of_the_world_can_be_named():
    nameable = {concept for meaning in lexicon().values() if meaning.names for concept in meaning.senses}
    for scene in scenes("val"):
        for concept in concepts_in(scene):
            assert concept.sort not in ("object", "colour", "place", "weather", "time") or concept in nameable


@pytest.mark.parametrize(
    ("terms", "places", "concepts"),
    [
        ("boat ship yacht crimson red", 10, [sure(("object", "boat")), sure(("colour", "red"))]),
        # A vague word takes the place of what it turns out to be; a chair is something else than that bench.
        ("seat red bench", 10, [sure(("object", "bench")), sure(("colour", "red"))]),
        ("seat", 10, [vague(("object", "bench"), ("object", "chair"))]),
        ("seat bench chair", 10, [sure(("object", "bench")), sure(("object", "chair"))]),
        # Reading stops where one more would begin; a synonym that comes before that still counts.
        ("boat dog cat yacht", 2, [sure(("object", "boat")), sure(("object", "dog"))]),
        ("seat dog bench cat", 2, [sure(("object", "bench")), sure(("object", "dog"))]),
        ("", 2, []),
    ],
)
def test_synonyms_take_one_place(terms, places, concepts):
    assert found(*terms.split(), places=places) == concepts


@provided(st.lists(st.sampled_from(sorted(lexicon()) + ["zebra", "the", "##s"]), max_size=40), st.integers(1, 12))
def test_places_are_few_and_disjoint_where_they_are_sure(terms, places):
    told = found(*terms, places=places)
    assert len(told) <= places and all(one.senses for one in told)
    certain = [concept for one in told if one.names and len(one.senses) == 1 for concept in one.senses]
    assert len(certain) == len(set(certain))


def test_a_tally_by_hand():
    # boats and a house, right; a dog, wrong; seat names nothing; finned neither; zebra and photo are never right
    told = found("vessel", "sailboat", "seat", "home", "scarlet", "puppy", "finned", "zebra", "photo", "green", "ocean")
    assert count_correct(told, HARBOUR) == (2, 1, 1, 1, 0, 0)
    # a vague word takes a place too
    assert count_correct(found("boat", "seat", places=1), HARBOUR) == (1, 0, 0, 0, 0, 0)
    assert count_correct([], HARBOUR) == (0, 0, 0, 0, 0, 0)


def test_a_row_by_hand():
    pictures = [found("boat", "house", "rain"), found("dog", "horse", "green"), found("red")]
    one = concept_means("hand", pictures, [HARBOUR, OTHER, OTHER])
    assert (one.ranking, one.images) == ("hand", 3)
    means = (one.two_objects, one.any_object, one.objects, one.wrong_objects, one.weather)
    assert means == pytest.approx((1 / 3, 2 / 3, (2 + 1 + 0) / 3, (0 + 1 + 0) / 3, 1 / 3))
    with pytest.raises(ValueError, match="zip"):
        concept_means("short", pictures[:2], [HARBOUR, OTHER, OTHER])


def test_what_is_likely_is_counted_in_captions():
    training = [scene for number, scene in zip(range(60), scenes("train"), strict=False)]
    likely = ConceptFrequencies(training)
    assert likely.captions[None, None] == 5 * len(training)
    said = [set(meanings(words_of(caption))) for scene in training for caption in captions(scene)]
    counts = [sum(meaning in one for one in said) for meaning in likely.frequent()]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0
    # in a known place and colour it leads with them
    assert Concept("place", training[0].place) in named(likely.ranked(training[0])[:10], "place")
    # a colour never seen in a place says as much as the place alone
    unseen = training[0]._replace(subject=Thing("boat", "no such colour", 1, "medium"), landmark=None, backdrop=None)
    assert likely.ranked(unseen) == likely._ranked([(unseen.place, None)])


def test_a_sample_is_of_different_pictures_and_repeatable():
    assert sample(1000, 200, 1) == sample(1000, 200, 1) != sample(1000, 200, 2)
    assert len(set(sample(1000, 1000, 3))) == 1000
    for images in (0, 1, 1001):
        with pytest.raises(UsageError, match=f"--images {images}: expected 2 to 1000"):
            sample(1000, images, 1)


class Namer:
    """Names a scene's things right, or one thing for every picture."""

    name, kind = "namer", "impact"

    def __init__(self, knows: bool):
        self.knows = knows
        self.listed = {scene.scene_id: scene for scene in scenes("val")}
        self.document = SimpleNamespace(kind="impact", read=lambda one: one.doc_id, weights=lambda ids, batch_size: ids)

    def decode(self, ids):
        kinds = [[c.value for c in concepts_in(self.listed[i]) if c.sort == "object"] for i in ids]
        return [[(kind, 1.0) for kind in (one if self.knows else ["boat", "dog"])] for one in kinds]


@pytest.fixture
def command(monkeypatch):
    few = [scene for _, scene in zip(range(300), scenes("train"), strict=False)]
    dataset = SimpleNamespace(documents=lambda: (SimpleNamespace(doc_id=scene.scene_id) for scene in scenes("val")))

    def run(model, *arguments):
        monkeypatch.setattr("lexvl_anserini.encoders.loading.load_encoder", lambda *given, **options: model)
        monkeypatch.setattr("lexvl_anserini.data.dataset.load_dataset", lambda *given, **options: dataset)
        monkeypatch.setattr(image_concepts, "scenes", lambda split: iter(few) if split == "train" else scenes(split))
        return invoked(print_concepts, "--split", "val", *arguments)

    return run


def test_it_tells_a_model_that_knows_things_from_one_that_does_not(command):
    knowing = json.loads(command(Namer(True), "--images", "50", "--seed", "4", "--format", "json"))
    rows = {one["ranking"]: one for one in knowing["rows"]}
    assert list(rows) == ["namer", "most frequent", "colours and place", "another picture", "its five captions"]
    # `fish bowl` and such are two things of one name: not all, but nearly all
    assert rows["namer"]["two_objects"] > 0.85
    assert rows["namer"]["wrong_objects"] < 0.1
    assert rows["another picture"]["two_objects"] < 0.3
    chosen = np.random.default_rng(4).choice(1000, 50, replace=False)
    assert [one["image"] for one in knowing["pictures"]] == [f"val-{number:05d}" for number in sorted(chosen.tolist())]
    blind = json.loads(command(Namer(False), "--images", "50", "--format", "json"))["rows"][0]
    assert blind["two_objects"] < 0.1
    assert ">= 2 objects %" in command(Namer(True), "--images", "9")
