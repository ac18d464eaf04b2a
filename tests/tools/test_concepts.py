"""Concepts among a picture's terms: which words mean what, how they merge, and what is counted as right.

The facts of captions are those of the grammar: a caption agrees with a scene if it could be written of it.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given as provided
from hypothesis import strategies as st
from invoking import invoked
from world import concepts as image_concepts
from world import facts, grammar
from world.catalogue import world
from world.ceiling import FactIndex, best_recall, ceiling
from world.commands import print_ceiling, print_concepts
from world.concepts import ConceptFrequencies, concept_means, count_correct, sample
from world.draws import _Walk, outcomes
from world.facts import Fact, Pen, inverted, possible_facts, readings
from world.grammar import captions, descriptions
from world.meanings import Concept, Meaning, concepts_in, distinct, lexicon, meaning_of, meanings, named, words_of
from world.scenes import Scene, Thing, scenes

from lexvl_anserini.ground.errors import UnknownName, UsageError

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


def test_a_tally_and_a_row_by_hand():
    # boats and a house, right; a dog, wrong; seat names nothing; finned neither; zebra and photo are never right
    told = found("vessel", "sailboat", "seat", "home", "scarlet", "puppy", "finned", "zebra", "photo", "green", "ocean")
    assert count_correct(told, HARBOUR) == (2, 1, 1, 1, 0, 0)
    # a vague word takes a place too
    assert count_correct(found("boat", "seat", places=1), HARBOUR) == (1, 0, 0, 0, 0, 0)
    assert count_correct([], HARBOUR) == (0, 0, 0, 0, 0, 0)
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


BENCH = Thing("bench", "red", 1, "medium")
CHAIR = Thing("chair", "red", 1, "medium")
SEAT = Scene("test", 0, "park", "clear", "day", BENCH, "standing", None, None, None)


@pytest.fixture(scope="module")
def listed():
    return list(scenes("test"))


@pytest.fixture(scope="module")
def index(listed):
    return FactIndex(listed)


def test_outcomes_are_those_of_every_path():
    both = {*"abc", "ax", "ay", "bx", "by", "cx", "cy"}
    assert outcomes(lambda draws: draws.choice("abc") + (draws.choice("xy") if draws.chance(5) else "")) == both
    assert outcomes(lambda draws: draws.chance(0)) == {False}
    assert outcomes(lambda draws: draws.chance(100)) == {True}
    assert outcomes(lambda draws: draws.between(3, 5)) == {3, 4, 5}
    assert outcomes(lambda draws: draws.weighted({"a": 1, "b": 2})) == {"a", "b"}


LARGE = SEAT._replace(subject=replace(BENCH, count=2, size="large"))
MAN, UMBRELLA = Thing("man", None, 1, "medium"), Thing("umbrella", "red", 1, "medium")
HOLDING = SEAT._replace(subject=MAN, pose=None, relation="holding", landmark=UMBRELLA)


@pytest.mark.parametrize(
    ("scene", "slot", "about", "expected"),
    [
        (SEAT, facts.noun, "subject", {"bench", "seat", "long seat", "park bench"}),
        (SEAT, facts.colour, "subject", {"red", "crimson", "scarlet"}),
        (SEAT, facts.count, "subject", {"a", "one", "a single", "a lone"}),
        (SEAT, facts.size, "subject", set()),
        (SEAT, facts.noun, "landmark", set()),
        (SEAT, facts.link, 0, set()),
        (LARGE, facts.noun, "subject", {"benches", "seats", "long seats", "park benches"}),
        (LARGE, facts.count, "subject", {"two", "a pair of", "a couple of"}),
        (LARGE, facts.size, "subject", {"large", "big", "huge"}),
        (HOLDING, facts.link, 0, {"holding", "under", "carrying", "sheltered by"}),
        (HOLDING, facts.link, 1, {"holds", "is under", "carries", "is sheltered by"}),
    ],
)
def test_slots_offer_what_the_tables_have_for_a_scene(scene, slot, about, expected):
    found = {fact.wording for fact in possible_facts(scene) if fact.slot is slot and fact.about == (about,)}
    assert found == expected


def test_inverted_scenes_are_described_from_the_landmark():
    scene = SEAT._replace(relation="left of", landmark=CHAIR)
    other = inverted(scene)
    assert (other.subject, other.landmark, other.relation, other.pose) == (CHAIR, BENCH, "right of", None)
    assert len(readings(scene)) == 2
    assert inverted(SEAT) is None
    assert inverted(scene._replace(relation="on")) is None
    assert len(readings(SEAT)) == 1


def test_ambiguous_words_agree_with_all_they_can_mean():
    index = FactIndex([SEAT, SEAT._replace(subject=CHAIR), SEAT._replace(subject=replace(BENCH, colour="blue"))])
    seat, bench = (Fact(facts.noun, ("subject",), noun) for noun in ("seat", "bench"))
    red, park = Fact(facts.colour, ("subject",), "red"), Fact(facts.place, (False,), "in a park")
    assert index.agreeing([seat]) == 0b111
    assert index.agreeing([bench, park]) == 0b101
    assert index.agreeing([seat, red]) == 0b011
    assert index.agreeing([bench, red]) == 0b001
    assert index.agreeing([Fact(facts.noun, ("subject",), "boat")]) == 0


def test_facts_of_two_readings_do_not_mix():
    """A bench left of a chair: a chair right of a bench, but no chair left of a bench."""
    index = FactIndex([SEAT._replace(relation="left of", landmark=CHAIR)])

    def agreeing(subject, link, landmark):
        said = ((facts.noun, ("subject",), subject), (facts.link, (0,), link), (facts.noun, ("landmark",), landmark))
        return index.agreeing([Fact(*fact) for fact in said])

    assert agreeing("bench", "to the left of", "chair") == agreeing("chair", "to the right of", "bench") == 1
    assert agreeing("chair", "to the left of", "bench") == agreeing("bench", "to the right of", "chair") == 0


def test_descriptions_agree_with_their_captions_and_scenes(listed, index):
    """Every wording stands in its caption but an article, which is chosen with the word that follows it."""
    for number, scene in enumerate(listed):
        for description in descriptions(scene):
            assert index.agreeing(description.facts) >> number & 1, description
            for fact in description.facts:
                assert fact.wording == "a" or fact.wording in description.text.lower(), (fact, description.text)
    for scene in listed[:50]:
        assert captions(scene) == tuple(description.text for description in descriptions(scene))
        assert all(description.facts for description in descriptions(scene))


class _Elsewhere(Exception):
    """A path of choices that cannot lead to a text."""


def derivable(text, scene):
    """Whether the grammar can write the text of the scene, by every path of choices that keeps to the text's words."""
    wanted = (text[0].lower() + text[1:]).removesuffix(".")
    said = set(wanted.replace(",", "").split())

    def word(pen, options):
        forms = {option: option.replace("{a}", "{}").split("/") for option in options}
        fitting = [option for option in options if any({*form.split()} - {"{}"} <= said for form in forms[option])]
        # The time of day is chosen for every phrase about a window, also for those that do not name it.
        if not fitting and options in [time.on_nouns for time in world().skies.times.values()]:
            return options[0]
        if not fitting:
            raise _Elsewhere
        return pen.draws.choice(fitting)

    guided = type("Guided", (Pen,), {"word": word})
    paths = [[]]
    while paths:
        walk = _Walk(paths.pop())
        try:
            written = walk.choice(tuple(dict.fromkeys(grammar._FORMS)))(guided(scene, walk, []))
        except _Elsewhere:
            written = None
        paths += walk.untaken
        if written == wanted:
            return True
    return False


def test_captions_agree_with_those_scenes_of_which_they_could_be_written(listed, index):
    """The grammar itself is the judge: it is run along all its paths, facts play no part."""
    for scene in listed[3::125]:
        for description in descriptions(scene)[:2]:
            agreeing = index.agreeing(description.facts)
            others = {number for number in range(1000) if agreeing >> number & 1}
            for number in {*range(0, 1000, 8), *others}:
                assert derivable(description.text, listed[number]) == (number in others), (description, listed[number])


def test_best_recall_by_hand_and_of_the_test_split():
    assert best_recall([1, 1, 1], 1) == 1
    assert best_recall([1, 2, 4], 1) == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)
    assert best_recall([1, 2, 4, 20], 5) == pytest.approx((1 + 1 + 1 + 5 / 20) / 4)
    found = ceiling("test")
    assert found.captions == 5000
    assert 0.90 < found.alone < 0.92
    assert 0.940 < found.r_at_1 < 0.948 < found.r_at_5 < found.r_at_10 < 1
    assert 1 < found.mean_scenes < found.most_scenes < 30


def test_command():
    [row] = json.loads(invoked(print_ceiling, "--split", "val", "--format", "json"))
    assert (row["split"], row["captions"]) == ("val", 5000)
    table = invoked(print_ceiling, "--split", "val")
    assert table.splitlines()[1].split()[:2] == ["val", "5,000"]
    assert f"{100 * row['r_at_1']:.1f}" in table
    with pytest.raises(UnknownName, match="unknown split of demo 'tset'; did you mean 'test'"):
        invoked(print_ceiling, "--split", "tset")
