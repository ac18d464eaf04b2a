"""Captions of a scene, as five people who see the same image would write them.

Every caption is true of its scene; captions differ in the facts they mention, in order, syntax and words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from world import facts
from world.catalogue import world
from world.draws import Draws
from world.facts import Fact, Pen
from world.scenes import SEED, Scene

CAPTIONS = 5
FEWEST_WORDS, MOST_WORDS = 6, 16

# Poses not worth a verb at the end of a caption.
_AT_REST = frozenset({"standing", "lying", "open"})

# Of a hundred captions that can mention a backdrop, those that do where nothing else is beside the subject.
_ALONE = 80


class Description(NamedTuple):
    """A caption and the facts it mentions, in the order in which they were chosen."""

    text: str
    facts: tuple[Fact, ...]


def captions(scene: Scene) -> tuple[str, ...]:
    """Five different captions of 6 to 16 words; the same on every machine."""
    return tuple(description.text for description in descriptions(scene))


def descriptions(scene: Scene) -> tuple[Description, ...]:
    """The captions with their facts."""
    draws = Draws(SEED, "captions", scene.split, scene.number)
    written: dict[str, Description] = {}
    while len(written) < CAPTIONS:
        pen = Pen(scene, draws, [])
        text = draws.choice(_FORMS)(pen)
        if text and FEWEST_WORDS <= len(text.split()) <= MOST_WORDS:
            text = _punctuated(text, draws)
            written[text] = Description(text, tuple(pen.facts))
    return tuple(written.values())


# --- things ---------------------------------------------------------------------------------------------------------


def _thing(pen: Pen, role: str, colour: int = 60, size: int = 35) -> str:
    """`two small crimson boats`; people wear their colour: `a man in a red coat`."""
    thing = facts.thing_of(pen.scene, role)
    assert thing
    noun = pen.say(facts.noun, role)
    person = thing.kind in world().people
    tint = pen.say(facts.colour, role) if thing.colour and pen.draws.chance(colour) else ""
    sized = not facts.says_size(thing, noun) and pen.draws.chance(size)
    named = _join(pen.say(facts.size, role) if sized else "", "" if person else tint, noun)
    count = pen.say(facts.count, role)
    counted = facts.article(named) if count == "a" else _join(count, named)
    return _join(counted, _clothes(pen, thing.count, tint) if person and tint else "")


def _clothes(pen: Pen, count: int, tint: str) -> str:
    words = world().words
    fitting = words.garments if tint in words.only_adjectives else (*words.clothes, *words.garments)
    form = facts.number(pen.word(fitting), count)
    return form.replace("{a}", facts.article(tint)).replace("{}", tint)


# --- what they do and where they are --------------------------------------------------------------------------------


def _beside(pen: Pen, form: int) -> str:
    """The subject's relation to the landmark, or what it does with it."""
    return _join(pen.say(facts.link, form), _thing(pen, "landmark", colour=45))


def _doing(pen: Pen, form: int, pose: int = 75, beside: int = 70, place: int = 65) -> str:
    """What the subject does, as -ing (0) or finite (1; then always there), beside what, and in what place.

    A verb is never alone: `a ball lies` says where.
    """
    scene = pen.scene
    if scene.pose is None:
        verb, where = "", _beside(pen, form)
    else:
        verb = pen.say(facts.pose, form) if form == 1 or pen.draws.chance(pose) else ""
        needed = scene.relation == "in"  # people do not sit on the sea, nor fish swim in the kitchen
        where = _beside(pen, form) if scene.relation and (needed or pen.draws.chance(beside)) else ""
    alone = verb and not where
    named = place and (alone or pen.draws.chance(place))
    return _join(verb, where, pen.say(facts.place, bool(where)) if named else "")


def _backdrop(pen: Pen, percent: int = 0) -> str:
    """What is behind, in so many cases of a hundred; in most where it is the only thing besides the subject."""
    percent = percent if pen.scene.landmark else _ALONE
    if not (percent and pen.draws.chance(percent)) or pen.scene.backdrop is None:
        return ""
    return pen.word(world().words.backdrops).format(_thing(pen, "backdrop", colour=45))


# --- sentences ------------------------------------------------------------------------------------------------------


def _fragment(pen: Pen) -> str:
    """`Two crimson boats sailing on the ocean at dusk`."""
    return _join(_thing(pen, "subject"), _doing(pen, 0), pen.say(facts.sky), _backdrop(pen, 30))


def _clause(pen: Pen) -> str:
    """`Two crimson boats sail on the ocean`."""
    return _join(_thing(pen, "subject"), _doing(pen, 1), pen.say(facts.sky), _backdrop(pen, 25))


def _there_is(pen: Pen) -> str:
    """`There are two crimson boats on the ocean`."""
    there = "there is" if pen.scene.subject.count == 1 else "there are"
    return _join(there, _thing(pen, "subject"), _doing(pen, 0, pose=40, place=75), pen.say(facts.sky), _backdrop(pen))


def _opening(pen: Pen) -> str:
    """`A view of two crimson boats on the ocean`."""
    subject = _thing(pen, "subject")
    backdrop = _backdrop(pen, 30)
    return _join(
        pen.word(world().words.openings), subject, _doing(pen, 0, pose=55, place=60), pen.say(facts.sky), backdrop
    )


def _scene_first(pen: Pen) -> str:
    """`A rainy night on the ocean with two crimson boats`."""
    time = pen.say(facts.season)
    where = pen.say(facts.setting)
    pose = 0 if pen.scene.pose in _AT_REST else 45
    return _join(time, where, "with", _thing(pen, "subject"), _doing(pen, 0, pose=pose, place=0))


def _sky_first(pen: Pen) -> str:
    """`At dusk, two crimson boats sail on the ocean`."""
    sky = pen.say(facts.sky)
    return sky and _join(sky + ",", _thing(pen, "subject"), _doing(pen, 1), _backdrop(pen))


def _landmark_first(pen: Pen) -> str:
    """`A lighthouse to the left of two crimson boats`, where the relation has an inverse."""
    other = facts.inverted(pen.scene)
    if other is None:
        return ""
    pen = pen._replace(scene=other)
    relation = pen.say(facts.link, 0)
    where = pen.maybe(60, lambda: pen.say(facts.setting))
    return _join(_thing(pen, "subject"), relation, _thing(pen, "landmark"), where, pen.say(facts.sky))


def _both(pen: Pen) -> str:
    """`Two crimson boats and a lighthouse on the ocean`."""
    scene = pen.scene
    if facts.inverted(scene) is None or scene.airborne:
        return ""
    where = pen.say(facts.setting)
    return _join(_thing(pen, "subject"), "and", _thing(pen, "landmark"), where, pen.say(facts.sky))


_FORMS: tuple[Callable[[Pen], str], ...] = (
    _fragment,
    _fragment,
    _fragment,
    _clause,
    _clause,
    _there_is,
    _opening,
    _scene_first,
    _sky_first,
    _landmark_first,
    _both,
)


def _punctuated(text: str, draws: Draws) -> str:
    """With a capital and a full stop, as most annotators write, or without."""
    return text if draws.chance(25) else text[0].upper() + text[1:] + "."


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
