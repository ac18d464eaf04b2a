"""Scenes of the demo world, each staged from a seed of its own: scene i of a split never depends on another scene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lexvl_anserini.data.world.draws import Draws
from lexvl_anserini.data.world.world import (
    COUNTS,
    INDOOR_TIMES,
    KINDS,
    PEOPLE,
    PLACES,
    SIZES,
    TIMES,
    Place,
    Scene,
    Thing,
)

# Changing the seed changes every scene. This one was chosen so that no scene of val or test looks like another scene of
# any split; within train, five pairs look alike (both tested).
SEED = 7

# What a person does with a thing at hand, and what a thing can lie, sit or stand on, under and in. Only where the place
# has both, except for what a person brings along.
_AT_HAND: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "ground": {
        "man": {"horse": "riding", "bicycle": "riding", "umbrella": "holding", "dog": "next to"},
        "woman": {"horse": "riding", "bicycle": "riding", "umbrella": "holding", "dog": "next to"},
        "child": {"kite": "flying", "bicycle": "riding", "ball": "holding", "umbrella": "holding"},
    },
    "home": {
        "man": {"book": "reading", "cup": "holding"},
        "woman": {"book": "reading", "cup": "holding"},
        "child": {"book": "reading", "teddy": "holding", "ball": "holding"},
    },
}
_NOT_RIDDEN_IN = {"horse": ("street", "park"), "bicycle": ("beach", "desert", "snow", "mountain")}
_ON: Mapping[str, tuple[str, ...]] = {
    "table": ("cup", "bottle", "book", "lamp", "cat", "teddy", "ball"),
    "chair": ("cat", "teddy", "book", "child", "dog"),
    "bench": ("man", "woman", "child", "cat", "ball", "bird"),
    "house": ("cat", "bird"),
    "tree": ("bird",),
    "boat": ("bird",),
    "buoy": ("bird",),
    "umbrella": ("bird",),
}
_UNDER: Mapping[str, tuple[str, ...]] = {
    "tree": ("bench", "dog", "cat", "horse", "cow", "sheep", "rabbit", "man", "woman", "child", "chair", "bicycle"),
    "umbrella": ("chair", "dog", "child", "man", "woman"),
    "table": ("cat", "dog", "ball", "rabbit"),
}
_BACKDROPS: Mapping[str, tuple[str, ...]] = {
    "water": ("boat", "lighthouse", "buoy"),
    "ground": ("house", "tree", "tent", "bench", "car", "train", "truck", "umbrella", "flower"),
    "home": ("lamp", "chair", "table"),
}
_BESIDE: Mapping[str, int] = {"left of": 24, "right of": 24, "next to": 20, "in front of": 18, "behind": 14}


def make_scene(split: str, number: int) -> Scene:
    """Scene `number` of a split, from 0; the same on every machine."""
    draws = Draws(SEED, split, number)
    name = draws.choice(tuple(PLACES))
    place = PLACES[name]
    airborne = bool(place.air) and draws.chance(18)
    kind = draws.choice(place.air if airborne else place.things)
    time = draws.weighted(TIMES if place.ground != "home" else INDOOR_TIMES)
    relation, landmark = _landmark(draws, name, kind, airborne)
    subject = _thing(draws, kind)
    if relation in ("riding", "holding", "flying", "reading"):
        subject = replace(subject, count=1)
    if relation == "in" and kind in PEOPLE:
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
        backdrop=_backdrop(draws, name, taken, 90 if lonely else 40),
    )


def _thing(draws: Draws, kind: str, few: bool = False) -> Thing:
    look = KINDS[kind]
    count = 1 if few and draws.chance(70) else draws.weighted(COUNTS)
    return Thing(
        kind=kind,
        colour=draws.choice(look.colours) if look.colours else None,
        count=min(count, look.most),
        size=draws.weighted(SIZES),
    )


def _weather(draws: Draws, place: Place, time: str) -> str:
    """A rainbow needs the sun."""
    weather = draws.weighted(place.weathers)
    return "clear" if weather == "rainbow" and time == "night" else weather


def _landmark(draws: Draws, name: str, kind: str, airborne: bool) -> tuple[str | None, Thing | None]:
    """How the subject stands to a second thing; fish indoors have their bowl, everything else may be alone."""
    place = PLACES[name]
    if kind == "fish" and place.ground == "home":
        return "in", Thing("bowl", None, 1, draws.weighted(SIZES))
    if place.ground == "water" and kind in PEOPLE:
        return "in", replace(_thing(draws, "boat"), count=1)
    if draws.chance(12):
        return None, None
    at_hand = {} if airborne else _AT_HAND.get(place.ground, {}).get(kind, {})
    brought = tuple(thing for thing in at_hand if name not in _NOT_RIDDEN_IN.get(thing, ()))
    if brought and draws.chance(45):
        other = draws.choice(brought)
        return at_hand[other], replace(_thing(draws, other), count=1)
    # People on the water are in a boat of their own, fish are no landmarks.
    hidden = {kind, "fish", *(PEOPLE if place.ground == "water" else ())}
    others = tuple(dict.fromkeys(thing for thing in (*place.things, *place.scenery) if thing not in hidden))
    other = draws.choice(others)
    if kind in _ON.get(other, ()) and draws.chance(60):
        return "on", replace(_thing(draws, other), count=1)
    if airborne:
        return "above", _thing(draws, other, few=True)
    if other == "clock":
        return "under", replace(_thing(draws, other), count=1)
    if kind in _UNDER.get(other, ()) and draws.chance(60):
        return "under", replace(_thing(draws, other), count=1)
    return draws.weighted(_BESIDE), _thing(draws, other, few=True)


def _pose(draws: Draws, place: Place, kind: str, airborne: bool, relation: str | None) -> str | None:
    if relation in ("riding", "holding", "flying", "reading"):
        return None
    if relation == "on" and kind == "bird":
        return "perched"
    poses = KINDS[kind].poses["air" if airborne else place.ground]
    if relation == "on":
        poses = tuple(pose for pose in poses if pose in ("sitting", "lying", "standing")) or poses
        # Nobody stands or runs on a piece of furniture.
        poses = ("sitting",) if kind in PEOPLE or kind == "dog" else poses
    return draws.choice(poses)


def _backdrop(draws: Draws, name: str, taken: set[str | None], percent: int) -> Thing | None:
    """A third thing of the place itself, in the background."""
    place = PLACES[name]
    fitting = (*place.things, *place.scenery)
    kinds = tuple(kind for kind in _BACKDROPS[place.ground] if kind in fitting and kind not in taken)
    if not kinds or not draws.chance(percent):
        return None
    return _thing(draws, draws.choice(kinds), few=True)
