"""The demo world: scenes of a few things in a place, plain enough to be drawn from simple shapes.

What is plausible is a table: which things a place has, in what weather, which colours a thing comes in, what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SPLITS: Mapping[str, int] = {"train": 20_000, "val": 1_000, "test": 1_000}


@dataclass(frozen=True, slots=True)
class Thing:
    """Something to draw: `count` of a kind, alike in colour and size.

    kind    a key of KINDS
    colour  one of COLOURS (of people: of their clothes); None where the kind has a look of its own
    count   1..4
    size    "small", "medium" or "large", against the usual size of the kind
    """

    kind: str
    colour: str | None
    count: int
    size: str


def scene_id(split: str, number: int) -> str:
    """The name of a scene, its picture and its document: `test-00012`."""
    return f"{split}-{number:05d}"


class Scene(NamedTuple):
    """What one picture shows.

    split, number  which scene this is; the rest follows from them
    place          a key of PLACES
    weather        one of WEATHERS; indoors, what the window shows
    time           "dawn", "day", "sunset" or "night"
    subject        what the picture is about, with its pose
    pose           one of the subject's kind's poses, or None where the relation says what is being done
    relation       of the subject to the landmark: one of RELATIONS, or None
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
        """All that can be seen: equal for scenes that would be drawn alike."""
        return self[2:]


class Kind(NamedTuple):
    """What things of a kind can look like and do.

    colours  it comes in; empty: it has a look of its own
    poses    it takes as the subject, by place class: "ground", "water", "air", "home"
    most     the largest count
    """

    colours: tuple[str, ...]
    poses: Mapping[str, tuple[str, ...]]
    most: int = 3


class Place(NamedTuple):
    """A background.

    ground   "ground", "water" or "home": the class of place that decides poses
    things   that stand, lie or swim there, as subjects or beside one
    air      that fly over it
    weathers it has, with whole-number weights
    scenery  what only stands beside or behind a subject
    """

    ground: str
    things: tuple[str, ...]
    air: tuple[str, ...]
    weathers: Mapping[str, int]
    scenery: tuple[str, ...] = ()


COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey")
SIZES: Mapping[str, int] = {"medium": 50, "small": 25, "large": 25}
COUNTS: Mapping[int, int] = {1: 62, 2: 20, 3: 12, 4: 6}
TIMES: Mapping[str, int] = {"day": 40, "night": 28, "sunset": 20, "dawn": 12}
INDOOR_TIMES: Mapping[str, int] = {"day": 60, "night": 40}
PEOPLE = ("man", "woman", "child")
WEATHERS = ("clear", "cloudy", "rain", "snow", "fog", "storm", "rainbow")

# of the subject to the landmark; "riding", "holding", "flying" and "reading" are told by verbs
RELATIONS = (
    "left of",
    "right of",
    "next to",
    "in front of",
    "behind",
    "above",
    "under",
    "on",
    "in",
    "riding",
    "holding",
    "flying",
    "reading",
)

_FUR = ("brown", "black", "white", "grey")
_PERSON = {
    "ground": ("standing", "walking", "sitting", "running"),
    "water": ("sitting",),
    "home": ("standing", "sitting"),
}
_STILL = {"ground": ("standing",), "home": ("standing",)}
_LYING = {"ground": ("lying",), "home": ("lying",)}

KINDS: Mapping[str, Kind] = {
    "boat": Kind(COLOURS, {"water": ("sailing", "sailing", "moored")}, 4),
    "lighthouse": Kind(COLOURS, {"water": ("standing",)}, 1),
    "buoy": Kind(COLOURS, {"water": ("floating",)}, 4),
    "car": Kind(COLOURS, {"ground": ("driving", "parked")}, 4),
    "bus": Kind(COLOURS, {"ground": ("driving", "parked")}, 2),
    "truck": Kind(COLOURS, {"ground": ("driving", "parked")}, 3),
    "train": Kind(COLOURS, {"ground": ("moving", "stopped")}, 1),
    "bicycle": Kind(COLOURS, {"ground": ("parked",)}, 3),
    "plane": Kind(COLOURS, {"air": ("flying",)}, 3),
    "balloon": Kind(COLOURS, {"air": ("floating",)}, 4),
    "kite": Kind(COLOURS, {"air": ("fluttering",)}, 4),
    "bird": Kind(COLOURS, {"air": ("flying",), "ground": ("perched",), "water": ("perched",)}, 4),
    "duck": Kind(("white", "brown", "yellow", "black"), {"water": ("paddling",), "ground": ("walking",)}, 4),
    "fish": Kind(("orange", "red", "yellow", "blue", "black"), {"water": ("swimming",), "home": ("swimming",)}, 4),
    "dog": Kind(
        (*_FUR, "yellow"), {"ground": ("running", "sitting", "lying", "standing"), "home": ("lying", "sitting")}
    ),
    "cat": Kind((*_FUR, "orange"), {"ground": ("sitting", "lying", "walking"), "home": ("sitting", "lying")}),
    "horse": Kind(_FUR, {"ground": ("running", "grazing", "standing")}),
    "cow": Kind(("brown", "black", "white"), {"ground": ("grazing", "standing", "lying")}, 4),
    "sheep": Kind(("white", "black", "grey"), {"ground": ("grazing", "standing")}, 4),
    "rabbit": Kind(_FUR, {"ground": ("sitting", "running")}),
    "man": Kind(COLOURS, _PERSON),
    "woman": Kind(COLOURS, _PERSON),
    "child": Kind(COLOURS, _PERSON, 4),
    "house": Kind(COLOURS, _STILL),
    "tree": Kind(("green", "green", "green", "yellow", "orange", "red"), _STILL, 4),
    "flower": Kind(("red", "yellow", "pink", "purple", "white", "orange", "blue"), {"ground": ("growing",)}, 4),
    "bench": Kind(COLOURS, _STILL, 2),
    "tent": Kind(COLOURS, {"ground": ("pitched",)}),
    "umbrella": Kind(COLOURS, {"ground": ("open",)}),
    "ball": Kind(COLOURS, _LYING, 4),
    "snowman": Kind((), _STILL),
    "cup": Kind(COLOURS, _LYING, 4),
    "bottle": Kind(("green", "blue", "brown", "red", "yellow"), _STILL, 4),
    "book": Kind(COLOURS, _LYING, 4),
    "lamp": Kind(COLOURS, _STILL, 2),
    "clock": Kind(COLOURS, {}, 1),
    "teddy": Kind(("brown", "white", "pink", "blue", "yellow", "grey"), {"home": ("sitting",)}),
    "chair": Kind(COLOURS, _STILL, 4),
    "table": Kind(COLOURS, _STILL, 2),
    "bowl": Kind((), {}, 1),
}

_TEMPERATE = {"clear": 32, "cloudy": 16, "rain": 20, "fog": 12, "storm": 10, "rainbow": 10}
_FURNITURE = ("table", "chair", "clock")
_WINDOW = {"clear": 60, "rain": 25, "snow": 15}

PLACES: Mapping[str, Place] = {
    "sea": Place(
        "water", ("boat", "boat", "fish", "man", "woman", "buoy"), ("bird", "plane"), _TEMPERATE, ("lighthouse",)
    ),
    "lake": Place("water", ("boat", "duck", "fish", "man", "child", "buoy"), ("bird", "balloon"), _TEMPERATE),
    "harbour": Place("water", ("boat", "boat", "duck", "woman", "lighthouse", "buoy"), ("bird",), _TEMPERATE),
    "beach": Place(
        "ground", ("dog", "child", "man", "woman", "ball", "umbrella", "chair", "horse"), ("bird", "kite"), _TEMPERATE
    ),
    "field": Place(
        "ground",
        ("horse", "cow", "sheep", "rabbit", "tree", "flower", "house", "train", "child"),
        ("kite", "balloon", "bird", "plane"),
        _TEMPERATE,
    ),
    "farm": Place("ground", ("cow", "sheep", "horse", "duck", "house", "truck", "dog", "cat"), ("bird",), _TEMPERATE),
    "forest": Place(
        "ground",
        ("rabbit", "tent", "horse", "dog", "man", "woman", "bicycle", "house"),
        ("bird",),
        {"clear": 35, "rain": 25, "fog": 25, "snow": 15},
    ),
    "mountain": Place(
        "ground",
        ("tent", "sheep", "horse", "house", "man", "woman", "train"),
        ("balloon", "plane", "bird"),
        {"clear": 32, "cloudy": 15, "rain": 10, "snow": 15, "fog": 13, "storm": 10, "rainbow": 5},
    ),
    "desert": Place(
        "ground",
        ("car", "truck", "tent", "horse", "man", "woman"),
        ("plane", "balloon"),
        {"clear": 70, "cloudy": 20, "storm": 10},
    ),
    "park": Place(
        "ground",
        ("bench", "dog", "child", "man", "woman", "ball", "bicycle", "tree", "flower", "umbrella"),
        ("kite", "bird", "balloon"),
        _TEMPERATE,
    ),
    "street": Place(
        "ground",
        ("car", "bus", "truck", "bicycle", "dog", "cat", "man", "woman", "child", "house", "tree", "bench"),
        ("plane",),
        {"clear": 30, "cloudy": 15, "rain": 25, "snow": 10, "fog": 12, "storm": 8},
    ),
    "garden": Place(
        "ground",
        ("flower", "tree", "cat", "rabbit", "chair", "table", "house", "ball", "child"),
        ("bird",),
        _TEMPERATE,
    ),
    "snow": Place(
        "ground",
        ("dog", "child", "man", "woman", "house", "tree", "snowman", "rabbit", "train", "tent"),
        ("bird", "plane"),
        {"clear": 35, "cloudy": 20, "snow": 35, "fog": 10},
    ),
    "kitchen": Place(
        "home", ("cup", "bottle", "chair", "table", "cat", "fish", "woman", "man"), (), _WINDOW, _FURNITURE
    ),
    "living room": Place(
        "home",
        ("cat", "dog", "lamp", "chair", "table", "book", "fish", "child", "man", "woman"),
        (),
        _WINDOW,
        _FURNITURE,
    ),
    "bedroom": Place("home", ("lamp", "teddy", "book", "cat", "chair", "child", "ball"), (), _WINDOW, _FURNITURE),
}
