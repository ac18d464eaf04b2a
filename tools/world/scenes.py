"""Scenes of the demo world: a few things in a place, each scene made from a seed of its own.

Scene i of a split never depends on another scene. What is plausible is in the `catalogue`: which things a place has, in
what weather, which colours a thing comes in, what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from lexvl_anserini.ground.errors import UnknownName
from world.catalogue import Kind, Setting, world
from world.draws import Draws

SPLITS: Mapping[str, int] = {"train": 20_000, "val": 1_000, "test": 1_000}

# Changing the seed changes every scene. With this one no scene of val or test looks like another scene of any split;
# within train, five pairs look alike (both tested).
SEED = 7

# Relations that are something a person does with a thing.
ACTIONS = frozenset({"riding", "holding", "flying", "reading"})


@dataclass(frozen=True, slots=True)
class Thing:
    """Something to draw: `count` of a kind, alike in colour and size.

    kind    a name in the catalogue's kinds
    colour  a name in the catalogue's hues (of people: of their clothes); None where the kind has a look of its own
    count   1..4
    size    "small", "medium" or "large", against the usual size of the kind
    """

    kind: str
    colour: str | None
    count: int
    size: str


def scenes(split: str) -> Iterator[Scene]:
    """The scenes of a split in order; `make_scene` makes one alone.

    Raises:
        UnknownName: no such split.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    return (make_scene(split, number) for number in range(SPLITS[split]))


def scene_id(split: str, number: int) -> str:
    """The name of a scene, its image and its document: `test-00012`."""
    return f"{split}-{number:05d}"


class Scene(NamedTuple):
    """What one image shows.

    split, number  which scene this is; the rest follows from them
    place          a name in the catalogue's places
    weather        a name in the catalogue's weathers; indoors, what the window shows
    time           "dawn", "day", "sunset" or "night"
    subject        what the image is about, with its pose
    pose           one of the subject's kind's poses, or None where the relation says what the subject does
    relation       of the subject to the landmark: a name in the catalogue's relations, or None
    landmark       the second thing, or None
    backdrop       a third thing, behind the others; or None
    """

    split: str
    number: int
    place: str
    weather: str
    time: str
    subject: Thing
    pose: str | None
    relation: str | None
    landmark: Thing | None
    backdrop: Thing | None

    @property
    def scene_id(self) -> str:
        """`test-00012`."""
        return scene_id(self.split, self.number)

    @property
    def sight(self) -> tuple[object, ...]:
        """All that can be seen: equal for scenes whose drawings would be alike."""
        return self[2:]

    @property
    def airborne(self) -> bool:
        """Whether the subject flies over the place."""
        return self.subject.kind in world().places[self.place].air and self.relation != "on"


def make_scene(split: str, number: int) -> Scene:
    """Scene `number` of a split, from 0; the same on every machine."""
    draws = Draws(SEED, split, number)
    name = draws.choice(tuple(world().places))
    place = world().places[name]
    airborne = bool(place.air) and draws.chance(18)
    kind = draws.choice(place.air if airborne else place.things)
    time = draws.weighted(_times(place))
    relation, landmark = _landmark(draws, name, kind, airborne)
    subject = _thing(draws, kind)
    if relation in ACTIONS:
        subject = replace(subject, count=1)
    if relation == "in" and _is_person(kind):
        subject = replace(subject, count=min(subject.count, 2))
    pose = _pose(draws, place, kind, airborne, relation)
    lonely = landmark is None or landmark.kind == "bowl"
    taken = {kind, landmark.kind if landmark else None}
    return Scene(
        split=split,
        number=number,
        place=name,
        weather=_weather(draws, place, time),
        time=time,
        subject=subject,
        pose=pose,
        relation=relation,
        landmark=landmark,
        backdrop=_backdrop(draws, place, taken, 90 if lonely else 40),
    )


def _thing(draws: Draws, kind: str, few: bool = False) -> Thing:
    entry, words = world().kinds[kind], world().words
    counts = {count: one.weight for count, one in words.counts.items()}
    count = 1 if few and draws.chance(70) else draws.weighted(counts)
    return Thing(
        kind=kind,
        colour=draws.choice(entry.colours) if entry.colours else None,
        count=min(count, entry.most),
        size=_size(draws),
    )


def _size(draws: Draws) -> str:
    return draws.weighted({size: one.weight for size, one in world().words.sizes.items()})


def _times(place: Setting) -> dict[str, int]:
    """The weights of the times of day."""
    times = world().skies.times
    return {name: time.weight_indoors if place.indoors else time.weight for name, time in times.items()}


def _weather(draws: Draws, place: Setting, time: str) -> str:
    """A rainbow needs the sun."""
    weather = draws.weighted(place.weathers)
    return "clear" if weather == "rainbow" and time == "night" else weather


def _landmark(draws: Draws, name: str, kind: str, airborne: bool) -> tuple[str | None, Thing | None]:
    """A relation and a second thing; fish indoors have their bowl, everything else may be alone."""
    place, kinds = world().places[name], world().kinds
    if kind == "fish" and place.indoors:
        return "in", Thing("bowl", None, 1, _size(draws))
    if place.ground == "water" and _is_person(kind):
        return "in", replace(_thing(draws, "boat"), count=1)
    if draws.chance(12):
        return None, None
    at_hand = {} if airborne else kinds[kind].at_hand.get(place.ground, {})
    brought = tuple(thing for thing in at_hand if name not in kinds[thing].not_brought_to)
    if brought and draws.chance(45):
        other = draws.choice(brought)
        return at_hand[other], replace(_thing(draws, other), count=1)
    # People on the water are in a boat of their own, fish are no landmarks.
    hidden = {kind, "fish", *(world().people if place.ground == "water" else ())}
    others = tuple(dict.fromkeys(thing for thing in (*place.things, *place.landmarks) if thing not in hidden))
    other = draws.choice(others)
    return _relation(draws, kind, other, kinds[other], airborne)


def _relation(draws: Draws, kind: str, other: str, landmark: Kind, airborne: bool) -> tuple[str, Thing]:
    """How a subject is related to a landmark that it meets by chance, and the landmark."""
    if landmark.top and kind in landmark.top.carries and draws.chance(60):
        return "on", replace(_thing(draws, other), count=1)
    if airborne:
        return "above", _thing(draws, other, few=True)
    if other == "clock" or (landmark.roof and kind in landmark.roof.covers and draws.chance(60)):
        return "under", replace(_thing(draws, other), count=1)
    weights = {name: one.weight for name, one in world().words.relations.items() if one.weight}
    return draws.weighted(weights), _thing(draws, other, few=True)


def _pose(draws: Draws, place: Setting, kind: str, airborne: bool, relation: str | None) -> str | None:
    if relation in ACTIONS:
        return None
    if relation == "on" and kind == "bird":
        return "perched"
    poses = world().kinds[kind].poses["air" if airborne else place.ground]
    if relation == "on":
        poses = tuple(pose for pose in poses if pose in ("sitting", "lying", "standing")) or poses
        # People and dogs sit on furniture; they do not stand or run there.
        poses = ("sitting",) if _is_person(kind) or kind == "dog" else poses
    return draws.choice(poses)


def _backdrop(draws: Draws, place: Setting, taken: set[str | None], percent: int) -> Thing | None:
    """A third thing of the place itself, in the background."""
    fitting = {*place.things, *place.landmarks} - taken
    kinds = tuple(name for name, kind in world().kinds.items() if place.ground in kind.background and name in fitting)
    if not kinds or not draws.chance(percent):
        return None
    return _thing(draws, draws.choice(kinds), few=True)


def _is_person(kind: str) -> bool:
    return kind in world().people
