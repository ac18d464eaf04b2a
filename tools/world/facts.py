"""What captions say, phrase by phrase: each slot of the grammar, and the wordings that fit a scene there.

A fact is a wording in a slot ("steed" as the subject's noun, "next to" as its relation). It holds of every scene that
has that wording for that slot, so words with two meanings need no table of their own: "seat" holds of benches and of
chairs, "near" of four relations, "indoors" of two rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from world.catalogue import ANY, Forms, world
from world.draws import Draws, outcomes
from world.scenes import Scene, Thing

# Chance (percent) of the first, plainest word of a list; the others share the rest.
PLAIN = 34

# A phrase's wording; of a scene without the thing or the relation, an empty one.
Slot = Callable[..., str]


class Fact(NamedTuple):
    """One phrase of a caption: the slot, what of the scene it is about (a role, a form), and the wording."""

    slot: Slot
    about: tuple[object, ...]
    wording: str


class Pen(NamedTuple):
    """A scene, the choices of one caption about it, and the facts mentioned so far."""

    scene: Scene
    draws: Draws
    facts: list[Fact]

    def word(self, options: Forms) -> str:
        """One of the wordings, most often the first."""
        if len(options) == 1 or self.draws.chance(PLAIN):
            return options[0]
        return options[1 + self.draws.below(len(options) - 1)]

    def maybe(self, percent: int, phrase: Callable[[], str]) -> str:
        """The phrase in so many of a hundred cases, else nothing."""
        return phrase() if self.draws.chance(percent) else ""

    def say(self, slot: Slot, *about: object) -> str:
        """A wording for the slot, noted as a fact."""
        wording = slot(self, *about)
        if wording:
            self.facts.append(Fact(slot, about, wording))
        return wording


def possible_facts(scene: Scene) -> frozenset[Fact]:
    """Every fact that a caption could mention of a scene."""
    return frozenset(
        Fact(slot, about, wording)
        for slot, abouts in SLOTS.items()
        for about in abouts
        for wording in outcomes(partial(_filled, scene, slot, about))
        if wording
    )


def readings(scene: Scene) -> tuple[frozenset[Fact], ...]:
    """The possible facts of a scene described from its subject and, if the relation has an inverse, from its landmark.

    A caption agrees with a scene if one reading holds all its facts.
    """
    other = inverted(scene)
    return (possible_facts(scene),) if other is None else (possible_facts(scene), possible_facts(other))


def inverted(scene: Scene) -> Scene | None:
    """The scene described from its landmark, "a lighthouse to the left of two boats"; None without an inverse."""
    if scene.landmark is None or scene.relation is None:
        return None
    inverse = world().words.relations[scene.relation].inverse
    if not inverse:
        return None
    return scene._replace(subject=scene.landmark, landmark=scene.subject, relation=inverse, pose=None)


def _filled(scene: Scene, slot: Slot, about: tuple[object, ...], draws: Draws) -> str:
    return slot(Pen(scene, draws, []), *about)


# --- things; `role` is subject, landmark or backdrop ----------------------------------------------------------------


def noun(pen: Pen, role: str) -> str:
    """A noun in the right number."""
    thing = thing_of(pen.scene, role)
    if thing is None:
        return ""
    kind = world().kinds[thing.kind]
    sized = kind.nouns_by_size.get(thing.size, ())
    if sized and pen.draws.chance(45):
        return number(pen.word(sized), thing.count)
    fitting = kind.nouns_by_place.get(pen.scene.place, ())
    return number(pen.word((*kind.nouns, *fitting)), thing.count)


def colour(pen: Pen, role: str) -> str:
    """The thing's colour; of people that of their clothes."""
    thing = thing_of(pen.scene, role)
    return pen.word(world().colours.hues[thing.colour].words) if thing and thing.colour else ""


def size(pen: Pen, role: str) -> str:
    """An adjective, if the thing is not of medium size."""
    thing = thing_of(pen.scene, role)
    if thing is None or thing.size == "medium" or thing.kind == "child":
        return ""
    kind, size = world().kinds[thing.kind], world().words.sizes[thing.size]
    if kind.figure:
        return pen.word(size.words_of_people)
    if kind.tall and (thing.kind == "tree" or pen.draws.chance(40)):
        return pen.word(size.words_of_tall_things)
    return pen.word(size.words)


def count(pen: Pen, role: str) -> str:
    """A determiner: how many."""
    thing = thing_of(pen.scene, role)
    if thing is None:
        return ""
    determiners = world().words.counts[thing.count].words
    return pen.word(determiners) if thing.count > 1 or pen.draws.chance(8) else "a"


def thing_of(scene: Scene, role: str) -> Thing | None:
    """The scene's subject, landmark or backdrop, if it has one."""
    thing: Thing | None = getattr(scene, role)
    return thing


def says_size(thing: Thing, noun: str) -> bool:
    """Whether the noun says the size itself: `puppy`."""
    return noun in (number(forms, thing.count) for forms in world().kinds[thing.kind].nouns_by_size.get(thing.size, ()))


# --- what the subject does and where it is; `form` is 0 for -ing, 1 for finite --------------------------------------


def pose(pen: Pen, form: int) -> str:
    """The verb of the subject's pose."""
    scene = pen.scene
    if scene.pose is None:
        return ""
    options = world().kinds[scene.subject.kind].verbs.get(scene.pose) or world().words.verbs[scene.pose]
    return verb_form(pen.word(options), form, scene.subject.count)


def link(pen: Pen, form: int) -> str:
    """The subject's relation to the landmark: a preposition, or a verb for what it does with it."""
    scene = pen.scene
    if scene.relation is None or scene.landmark is None:
        return ""
    kind = scene.landmark.kind
    relation = world().words.relations[scene.relation]
    verbs = relation.verbs.get(kind) or relation.verbs.get(ANY)
    if verbs:
        return verb_form(pen.word(verbs), form, scene.subject.count)
    options = relation.prepositions
    if scene.relation == "in":
        options = options[:1] if kind == "bowl" and pen.draws.chance(60) else options
        options = tuple(word for word in options if (word == "aboard") <= (kind == "boat"))
    return pen.word(options)


def place(pen: Pen, over_landmark: bool) -> str:
    """Where it is; what flies above a house in town does not fly above the town as well."""
    scene = pen.scene
    named = world().places[scene.place].names
    if named and scene.airborne and not over_landmark:
        return f"{pen.word(('over', 'above'))} {pen.word(named)}"
    if named and scene.pose == "swimming" and scene.relation != "in":
        return f"in {pen.word(named)}"
    return setting(pen)


def setting(pen: Pen) -> str:
    """Where the scene as a whole is."""
    return pen.word(world().places[pen.scene.place].phrases)


# --- weather and time -----------------------------------------------------------------------------------------------


def sky(pen: Pen) -> str:
    """Weather, time, or both in one phrase; plain daylight and a clear sky are seldom worth a word."""
    scene = pen.scene
    weather = pen.draws.chance(30 if scene.weather == "clear" else 62)
    time = pen.draws.chance(12 if scene.time == "day" else 55)
    if weather and (time or pen.draws.chance(25)):
        return "on " + article(_weather_and_time(pen, world().skies.times[scene.time].on_nouns))
    if weather:
        return _weather(pen)
    return pen.word(world().skies.times[scene.time].phrases) if time else ""


def season(pen: Pen) -> str:
    """The scene as a time and its weather: `a rainy night`."""
    return article(_weather_and_time(pen, world().skies.times[pen.scene.time].nouns))


def _weather(pen: Pen) -> str:
    scene, skies = pen.scene, world().skies
    weather = skies.weathers[scene.weather]
    if world().places[scene.place].indoors:
        return pen.word(weather.window_phrases).format(pen.word(skies.times[scene.time].on_nouns))
    return pen.word(weather.phrases.get(scene.time) or weather.phrases[ANY])


def _weather_and_time(pen: Pen, nouns: Forms) -> str:
    adjectives = world().skies.weathers[pen.scene.weather].adjectives
    return f"{pen.word(adjectives.get(pen.scene.time) or adjectives[ANY])} {pen.word(nouns)}"


# --- spelling -------------------------------------------------------------------------------------------------------


def number(forms: str, count: int) -> str:
    """`boat/boats` in the number that fits."""
    return forms.split("/")[count > 1]


def verb_form(forms: str, form: int, count: int) -> str:
    """`sailing/sails/sail`: the first, or the finite one in the number that fits."""
    return forms.split("/")[0 if form == 0 else 1 + (count > 1)]


def article(phrase: str) -> str:
    """With `a` or `an`."""
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("ewe", "one"))
    return f"{'an' if vowel else 'a'} {phrase}"


_ROLES = (("subject",), ("landmark",), ("backdrop",))
_VERB_FORMS = ((0,), (1,))

# Every slot, and what it can be about.
SLOTS: Mapping[Slot, tuple[tuple[object, ...], ...]] = {
    noun: _ROLES,
    colour: _ROLES,
    size: _ROLES,
    count: _ROLES,
    pose: _VERB_FORMS,
    link: _VERB_FORMS,
    place: ((False,), (True,)),
    setting: ((),),
    sky: ((),),
    season: ((),),
}
