"""What captions say, phrase by phrase: each slot of the grammar, and the wordings that a scene has for it.

A fact is a wording in a slot ("steed" as the subject's noun, "next to" as its relation). It holds of every scene that
has that wording for that slot, so words with two meanings need no table of their own: "seat" holds of benches and of
chairs, "near" of four relations, "indoors" of two rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from lexvl_anserini.data.world import words
from lexvl_anserini.data.world.draws import Draws, outcomes
from lexvl_anserini.data.world.world import PEOPLE, PLACES, Scene, Thing

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
    """A scene, the choices of one caption about it, and the facts told so far."""

    scene: Scene
    draws: Draws
    facts: list[Fact]

    def word(self, options: words.Forms) -> str:
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


def tellable(scene: Scene) -> frozenset[Fact]:
    """Every fact that a caption could tell of a scene."""
    return frozenset(
        Fact(slot, about, wording)
        for slot, abouts in SLOTS.items()
        for about in abouts
        for wording in outcomes(partial(_filled, scene, slot, about))
        if wording
    )


def readings(scene: Scene) -> tuple[frozenset[Fact], ...]:
    """What can be told of a scene from its subject and, where the relation can be turned round, from its landmark.

    A caption agrees with a scene if one reading holds all its facts.
    """
    other = turned(scene)
    return (tellable(scene),) if other is None else (tellable(scene), tellable(other))


def turned(scene: Scene) -> Scene | None:
    """The scene told from its landmark, "a lighthouse to the left of two boats"; None if that cannot be told."""
    inverse = words.INVERSE.get(scene.relation or "")
    if scene.landmark is None or inverse is None:
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
    sized = words.SIZED_NOUNS.get((thing.kind, thing.size), ())
    if sized and pen.draws.chance(45):
        return number(pen.word(sized), thing.count)
    fitting = words.PLACE_NOUNS.get((thing.kind, pen.scene.place), ())
    return number(pen.word((*words.NOUNS[thing.kind], *fitting)), thing.count)


def colour(pen: Pen, role: str) -> str:
    """The thing's colour; of people that of their clothes."""
    thing = thing_of(pen.scene, role)
    return pen.word(words.COLOUR_WORDS[thing.colour]) if thing and thing.colour else ""


def size(pen: Pen, role: str) -> str:
    """An adjective, if the thing is not of medium size."""
    thing = thing_of(pen.scene, role)
    if thing is None or thing.size == "medium" or thing.kind == "child":
        return ""
    table = words.SIZE_WORDS
    if thing.kind in PEOPLE:
        table = words.PERSON_WORDS
    elif thing.kind in words.TALL_KINDS:
        table = words.TALL_WORDS if thing.kind == "tree" or pen.draws.chance(40) else words.SIZE_WORDS
    return pen.word(table[thing.size])


def count(pen: Pen, role: str) -> str:
    """A determiner: how many."""
    thing = thing_of(pen.scene, role)
    if thing is None:
        return ""
    if thing.count > 1:
        return pen.word(words.COUNT_WORDS[thing.count])
    return pen.word(words.ONE_WORDS) if pen.draws.chance(8) else "a"


def thing_of(scene: Scene, role: str) -> Thing | None:
    """The scene's subject, landmark or backdrop, if it has one."""
    thing: Thing | None = getattr(scene, role)
    return thing


def tells_size(thing: Thing, noun: str) -> bool:
    """Whether the noun says the size itself: `puppy`."""
    return noun in (number(forms, thing.count) for forms in words.SIZED_NOUNS.get((thing.kind, thing.size), ()))


# --- what the subject does and where it is; `form` is 0 for -ing, 1 for finite --------------------------------------


def pose(pen: Pen, form: int) -> str:
    """The verb of the subject's pose."""
    scene = pen.scene
    if scene.pose is None:
        return ""
    options = words.VERBS.get(f"{scene.subject.kind} {scene.pose}") or words.VERBS[scene.pose]
    return verb_form(pen.word(options), form, scene.subject.count)


def link(pen: Pen, form: int) -> str:
    """How the subject stands to the landmark, in a preposition, or what it does with it, in a verb."""
    scene = pen.scene
    if scene.relation is None or scene.landmark is None:
        return ""
    kind = scene.landmark.kind
    deeds = words.DEEDS.get((scene.relation, kind)) or words.DEEDS.get((scene.relation, ""))
    if deeds:
        return verb_form(pen.word(deeds), form, scene.subject.count)
    options = words.RELATION_WORDS[scene.relation]
    if scene.relation == "in":
        options = options[:1] if kind == "bowl" and pen.draws.chance(60) else options
        options = tuple(word for word in options if (word == "aboard") <= (kind == "boat"))
    return pen.word(options)


def place(pen: Pen, over_landmark: bool) -> str:
    """Where it is; what flies above a house in town does not fly above the town as well."""
    scene = pen.scene
    named = words.PLACE_NAMES.get(scene.place, ())
    if named and airborne(scene) and not over_landmark:
        return f"{pen.word(('over', 'above'))} {pen.word(named)}"
    if named and scene.pose == "swimming" and scene.relation != "in":
        return f"in {pen.word(named)}"
    return setting(pen)


def setting(pen: Pen) -> str:
    """Where the scene as a whole is."""
    return pen.word(words.PLACE_PHRASES[pen.scene.place])


def airborne(scene: Scene) -> bool:
    """Whether the subject flies."""
    return scene.subject.kind in PLACES[scene.place].air and scene.relation != "on"


# --- weather and time -----------------------------------------------------------------------------------------------


def sky(pen: Pen) -> str:
    """Weather, time, or both in one phrase; plain daylight and a clear sky are seldom worth a word."""
    scene = pen.scene
    weather = pen.draws.chance(30 if scene.weather == "clear" else 62)
    time = pen.draws.chance(12 if scene.time == "day" else 55)
    if weather and (time or pen.draws.chance(25)):
        return "on " + article(_weather_and_time(pen, words.ON_TIME_NOUNS))
    if weather:
        return _weather(pen)
    return pen.word(words.TIME_PHRASES[scene.time]) if time else ""


def season(pen: Pen) -> str:
    """The scene as a time and its weather: `a rainy night`."""
    return article(_weather_and_time(pen, words.TIME_NOUNS))


def _weather(pen: Pen) -> str:
    scene = pen.scene
    if PLACES[scene.place].ground == "home":
        return pen.word(words.WINDOW_PHRASES[scene.weather]).format(pen.word(words.ON_TIME_NOUNS[scene.time]))
    return pen.word(_by_time(words.WEATHER_PHRASES, scene))


def _weather_and_time(pen: Pen, nouns: Mapping[str, words.Forms]) -> str:
    return f"{pen.word(_by_time(words.WEATHER_ADJECTIVES, pen.scene))} {pen.word(nouns[pen.scene.time])}"


def _by_time(table: Mapping[tuple[str, str], words.Forms], scene: Scene) -> words.Forms:
    return table.get((scene.weather, scene.time)) or table[(scene.weather, "")]


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
