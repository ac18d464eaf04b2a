"""The facts of captions are those of the grammar: a caption agrees with a scene if it could be written of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from invoking import invoked
from world import facts, grammar
from world.catalogue import world
from world.ceiling import FactIndex, best_recall, ceiling
from world.commands import print_ceiling
from world.draws import _Walk, outcomes
from world.facts import Fact, Pen, inverted, possible_facts, readings
from world.grammar import captions, descriptions
from world.scenes import Scene, Thing, scenes

from lexvl_anserini.ground.errors import UnknownName

pytestmark = pytest.mark.extended

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
    """Actions are links."""
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


def test_best_recall_by_hand():
    assert best_recall([1, 1, 1], 1) == 1
    assert best_recall([1, 2, 4], 1) == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)
    assert best_recall([1, 2, 4, 20], 5) == pytest.approx((1 + 1 + 1 + 5 / 20) / 4)


def test_ceiling_of_the_test_split():
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
