"""Captions of a scene, as five people who see the same picture would write them.

Every caption is true of its scene; captions differ in the facts they mention, in order, syntax and words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lexvl_anserini.data.scenes import words
from lexvl_anserini.data.scenes.draws import Draws
from lexvl_anserini.data.scenes.staging import SEED
from lexvl_anserini.data.scenes.world import PEOPLE, PLACES, Scene, Thing

CAPTIONS = 5
FEWEST_WORDS, MOST_WORDS = 6, 16

# Poses not worth a verb at the end of a caption.
_AT_REST = frozenset({"standing", "lying", "open"})

# Chance (percent) of the first, plainest word of a list; the others share the rest.
PLAIN = 34


def captions(scene: Scene) -> tuple[str, ...]:
    """Five different captions of 6 to 16 words; the same on every machine."""
    draws = Draws(SEED, "captions", scene.split, scene.number)
    written: dict[str, None] = {}
    while len(written) < CAPTIONS:
        text = draws.choice(tuple(_FORMS))(_Pen(scene, draws))
        if text and FEWEST_WORDS <= len(text.split()) <= MOST_WORDS:
            written[_set(text, draws)] = None
    return tuple(written)


class _Pen(NamedTuple):
    """A scene and the choices of one caption about it."""

    scene: Scene
    draws: Draws

    def word(self, options: words.Forms) -> str:
        """One of the wordings, most often the first."""
        if len(options) == 1 or self.draws.chance(PLAIN):
            return options[0]
        return options[1 + self.draws.below(len(options) - 1)]

    def maybe(self, percent: int, phrase: Callable[[], str]) -> str:
        """The phrase in so many of a hundred cases, else nothing."""
        return phrase() if self.draws.chance(percent) else ""


# --- things ---------------------------------------------------------------------------------------------------------


def _thing(pen: _Pen, thing: Thing, colour: int = 60, size: int = 35) -> str:
    """`two small crimson boats`; people wear their colour: `a man in a red coat`."""
    noun, told = _noun(pen, thing)
    person = thing.kind in PEOPLE
    tint = pen.word(words.COLOUR_WORDS[thing.colour]) if thing.colour and pen.draws.chance(colour) else ""
    adjectives = _join("" if told or not pen.draws.chance(size) else _size(pen, thing), "" if person else tint, noun)
    return _join(_counted(pen, thing.count, adjectives), _clothes(pen, thing.count, tint) if person and tint else "")


def _noun(pen: _Pen, thing: Thing) -> tuple[str, bool]:
    """A noun in the right number, and whether it tells the size."""
    sized = words.SIZED_NOUNS.get((thing.kind, thing.size), ())
    if sized and pen.draws.chance(45):
        return _number(pen.word(sized), thing.count), True
    fitting = words.PLACE_NOUNS.get((thing.kind, pen.scene.place), ())
    return _number(pen.word((*words.NOUNS[thing.kind], *fitting)), thing.count), False


def _size(pen: _Pen, thing: Thing) -> str:
    if thing.size == "medium" or thing.kind == "child":
        return ""
    table = words.SIZE_WORDS
    if thing.kind in PEOPLE:
        table = words.PERSON_WORDS
    elif thing.kind in words.TALL_KINDS:
        table = words.TALL_WORDS if thing.kind == "tree" or pen.draws.chance(40) else words.SIZE_WORDS
    return pen.word(table[thing.size])


def _counted(pen: _Pen, count: int, phrase: str) -> str:
    if count > 1:
        return _join(pen.word(words.COUNT_WORDS[count]), phrase)
    if pen.draws.chance(8):
        return _join(pen.word(("one", "a single", "a lone")), phrase)
    return _article(phrase)


def _clothes(pen: _Pen, count: int, tint: str) -> str:
    fitting = words.GARMENTS if tint in words.ONLY_ADJECTIVES else words.CLOTHES
    form = _number(pen.word(fitting), count)
    return form.replace("{a}", _article(tint)).replace("{}", tint)


# --- what they do and where they are --------------------------------------------------------------------------------


def _deed(pen: _Pen, form: int) -> str:
    """The verb of a relation that is an action, with its object; `form` 0 -ing, 1 finite."""
    scene = pen.scene
    assert scene.relation and scene.landmark
    options = words.DEEDS.get((scene.relation, scene.landmark.kind)) or words.DEEDS[(scene.relation, "")]
    return _join(_verb_form(pen.word(options), form, scene.subject.count), _thing(pen, scene.landmark, colour=45))


def _pose(pen: _Pen, form: int) -> str:
    scene = pen.scene
    assert scene.pose
    options = words.VERBS.get(f"{scene.subject.kind} {scene.pose}") or words.VERBS[scene.pose]
    return _verb_form(pen.word(options), form, scene.subject.count)


def _beside(pen: _Pen) -> str:
    """The relation to the landmark in a preposition."""
    scene = pen.scene
    assert scene.relation and scene.landmark
    options = words.RELATION_WORDS[scene.relation]
    if scene.relation == "in":
        options = options[:1] if scene.landmark.kind == "bowl" and pen.draws.chance(60) else options
        options = tuple(word for word in options if (word == "aboard") <= (scene.landmark.kind == "boat"))
    return _join(pen.word(options), _thing(pen, scene.landmark, colour=45))


def _doing(pen: _Pen, form: int, pose: int = 75, beside: int = 70, place: int = 65) -> str:
    """What the subject does, as -ing (0) or finite (1; then always there), beside what, and in what place.

    A verb never stands alone: `a ball lies` says where.
    """
    scene = pen.scene
    if scene.pose is None:
        verb, where = _deed(pen, form), " "
    else:
        verb = _pose(pen, form) if form == 1 or pen.draws.chance(pose) else ""
        needed = scene.relation == "in"  # nobody sits on the sea or swims in the kitchen
        where = _beside(pen) if scene.relation and (needed or pen.draws.chance(beside)) else ""
    alone = verb and not where
    named = place and (alone or pen.draws.chance(place))
    return _join(verb, where.strip(), _place(pen, over_landmark=bool(where)) if named else "")


def _place(pen: _Pen, over_landmark: bool) -> str:
    """Where it is; what flies above a house in town does not fly above the town as well."""
    scene = pen.scene
    if _airborne(scene) and not over_landmark:
        return _join(pen.word(("over", "above")), pen.word(words.PLACE_NAMES[scene.place]))
    if scene.pose == "swimming" and scene.relation != "in":
        return _join("in", pen.word(words.PLACE_NAMES[scene.place]))
    return pen.word(words.PLACE_PHRASES[scene.place])


def _airborne(scene: Scene) -> bool:
    return scene.subject.kind in PLACES[scene.place].air and scene.relation != "on"


def _backdrop(pen: _Pen) -> str:
    scene = pen.scene
    if scene.backdrop is None:
        return ""
    return pen.word(words.BACKDROP_PHRASES).format(_thing(pen, scene.backdrop, colour=45))


# --- weather and time -----------------------------------------------------------------------------------------------


def _sky(pen: _Pen) -> str:
    """Weather, time, or both in one phrase; plain daylight and a clear sky are seldom worth a word."""
    scene = pen.scene
    weather = pen.draws.chance(30 if scene.weather == "clear" else 62)
    time = pen.draws.chance(12 if scene.time == "day" else 55)
    if weather and (time or pen.draws.chance(25)):
        return "on " + _article(_weather_and_time(pen, words.ON_TIME_NOUNS))
    if weather:
        return _weather(pen)
    return pen.word(words.TIME_PHRASES[scene.time]) if time else ""


def _weather(pen: _Pen) -> str:
    scene = pen.scene
    if PLACES[scene.place].ground == "home":
        return pen.word(words.WINDOW_PHRASES[scene.weather]).format(pen.word(words.ON_TIME_NOUNS[scene.time]))
    return pen.word(_by_time(words.WEATHER_PHRASES, scene))


def _weather_and_time(pen: _Pen, nouns: Mapping[str, words.Forms]) -> str:
    """`rainy night`."""
    scene = pen.scene
    return _join(pen.word(_by_time(words.WEATHER_ADJECTIVES, scene)), pen.word(nouns[scene.time]))


def _by_time(table: Mapping[tuple[str, str], words.Forms], scene: Scene) -> words.Forms:
    return table.get((scene.weather, scene.time)) or table[(scene.weather, "")]


# --- sentences ------------------------------------------------------------------------------------------------------


def _fragment(pen: _Pen) -> str:
    """`Two crimson boats sailing on the ocean at dusk`."""
    return _join(_thing(pen, pen.scene.subject), _doing(pen, 0), _sky(pen), pen.maybe(30, lambda: _backdrop(pen)))


def _clause(pen: _Pen) -> str:
    """`Two crimson boats sail on the ocean`."""
    return _join(_thing(pen, pen.scene.subject), _doing(pen, 1), _sky(pen), pen.maybe(25, lambda: _backdrop(pen)))


def _there_is(pen: _Pen) -> str:
    """`There are two crimson boats on the ocean`."""
    there = "there is" if pen.scene.subject.count == 1 else "there are"
    return _join(there, _thing(pen, pen.scene.subject), _doing(pen, 0, pose=40, place=75), _sky(pen))


def _opening(pen: _Pen) -> str:
    """`A view of two crimson boats on the ocean`."""
    subject = _thing(pen, pen.scene.subject)
    backdrop = pen.maybe(30, lambda: _backdrop(pen))
    return _join(pen.word(words.OPENINGS), subject, _doing(pen, 0, pose=55, place=60), _sky(pen), backdrop)


def _scene_first(pen: _Pen) -> str:
    """`A rainy night on the ocean with two crimson boats`."""
    time = _article(_weather_and_time(pen, words.TIME_NOUNS))
    where = pen.word(words.PLACE_PHRASES[pen.scene.place])
    pose = 0 if pen.scene.pose in _AT_REST else 45
    return _join(time, where, "with", _thing(pen, pen.scene.subject), _doing(pen, 0, pose=pose, place=0))


def _sky_first(pen: _Pen) -> str:
    """`At dusk, two crimson boats sail on the ocean`."""
    sky = _sky(pen)
    return sky and _join(sky + ",", _thing(pen, pen.scene.subject), _doing(pen, 1))


def _landmark_first(pen: _Pen) -> str:
    """`A lighthouse to the left of two crimson boats`, where the relation can be turned round."""
    scene = pen.scene
    inverse = words.INVERSE.get(scene.relation or "")
    if scene.landmark is None or inverse is None:
        return ""
    turned = pen.word(words.RELATION_WORDS[inverse])
    where = pen.maybe(60, lambda: pen.word(words.PLACE_PHRASES[scene.place]))
    return _join(_thing(pen, scene.landmark), turned, _thing(pen, scene.subject), where, _sky(pen))


def _both(pen: _Pen) -> str:
    """`Two crimson boats and a lighthouse on the ocean`."""
    scene = pen.scene
    if scene.landmark is None or scene.relation not in words.INVERSE or _airborne(scene):
        return ""
    where = pen.word(words.PLACE_PHRASES[scene.place])
    return _join(_thing(pen, scene.subject), "and", _thing(pen, scene.landmark), where, _sky(pen))


_FORMS: tuple[Callable[[_Pen], str], ...] = (
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


def _set(text: str, draws: Draws) -> str:
    """With a capital and a full stop, as most annotators write, or without."""
    return text if draws.chance(25) else text[0].upper() + text[1:] + "."


# --- spelling -------------------------------------------------------------------------------------------------------


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _number(forms: str, count: int) -> str:
    """`boat/boats` in the number that fits."""
    return forms.split("/")[count > 1]


def _verb_form(forms: str, form: int, count: int) -> str:
    """`sailing/sails/sail`: the first, or the finite one in the number that fits."""
    return forms.split("/")[0 if form == 0 else 1 + (count > 1)]


def _article(phrase: str) -> str:
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("ewe", "one"))
    return _join("an" if vowel else "a", phrase)
