"""All that is in the demo world, read once from `tools/world/assets`: what there is, how it looks, its names.

All about a kind of thing is one entry of creatures.yaml, people.yaml, outdoors.yaml or household.yaml, all about a
place one entry of places.yaml. The records below say what an entry holds; the head of each file says how to add one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from lexvl_anserini.data.yaml_files import Many, read_yaml
from lexvl_anserini.ground.errors import DataError

FOLDER = Path(__file__).parent / "assets"
# Files whose entries are kinds of things. Their order is that of the kinds.
KIND_FILES = ("creatures", "people", "outdoors", "household")
# The classes of places: a class decides which poses a thing takes.
GROUNDS = ("ground", "water", "home", "air")
# Where scenery may be, see Prop.
WHERES = ("horizon", "strip", "back", "side", "top", "ground", "wall", "floor", "rug")
# The key of a mapping that holds wherever the mapping has nothing more specific.
ANY = "any"

Colour = tuple[int, int, int]  # red, green, blue: 0..255
Range = tuple[int, int]  # from, to
Forms = Many[str]  # wordings of one thing, the plainest first; "singular/plural" or "ing/singular/plural"


class Sketch(NamedTuple):
    """A drawing as text, in the language of `sketches`.

    where  file and entry that have the text
    pose   of the person that is drawn, or None
    """

    text: str
    where: str = "drawing"
    pose: str | None = None


Drawing = Annotated[Sketch, BeforeValidator(lambda text: {"text": text})]

# --- things ---------------------------------------------------------------------------------------------------------


class Top(NamedTuple):
    """What can be on a thing: `ends` left and right, `down` from the top in per cent; `highest` in thousandths."""

    ends: Range
    down: int
    carries: Many[str]
    highest: int = 520


class Roof(NamedTuple):
    """What can be under a thing: the greatest `height` in per cent of the thing."""

    height: int
    covers: Many[str]


class Grip(NamedTuple):
    """A thing in a hand: its `height` in per cent of the person's; `lift`: per cent of its height below the hand."""

    height: int = 36
    lift: int = 40


class Saddle(NamedTuple):
    """How one rides a thing, per cent of its height: the `seat`, the `rider`; `back`: per cent of its width.

    poses  that it takes with a rider
    """

    seat: int
    rider: int
    back: int
    poses: Many[str] = ()


class Kind(NamedTuple):
    """A kind of thing: its names, what it looks like and does.

    nouns           "singular/plural"; `nouns_by_size` say the size themselves, `nouns_by_place` only fit there
    colours         it comes in; empty: it has a look of its own
    poses           it takes as the subject, by class of place (GROUNDS)
    verbs           "ing/singular/plural" by pose, instead of those of words.yaml
    most            the largest count
    scale           tenths of a thousandth of the image per unit of its drawing, for a medium thing near by
    rigid           never leans
    floats          is anywhere in the air or the water; `level`: it does not tilt there
    aligned         all of a group face the same way
    tall            is "tall" or "short" rather than large or small
    background      the classes of place in whose background it may be
    at_hand         what a person does with what, by class of place: kind -> relation
    not_brought_to  places where people do not come with one
    drawings        by pose, or `any`; several of a pose are variants. Further names: `front` covers those inside,
                    `held` and `reading` are in a hand
    figure          of people: the drawing in all poses of poses.yaml
    """

    nouns: Forms
    scale: int
    nouns_by_size: Mapping[str, Forms] = {}
    nouns_by_place: Mapping[str, Forms] = {}
    colours: Many[str] = ()
    poses: Mapping[str, Many[str]] = {}
    verbs: Mapping[str, Forms] = {}
    most: int = 3
    rigid: bool = False
    floats: bool = False
    level: bool = False
    aligned: bool = False
    tall: bool = False
    background: Many[str] = ()
    top: Top | None = None
    roof: Roof | None = None
    grip: Grip = Grip()
    saddle: Saddle | None = None
    at_hand: Mapping[str, Mapping[str, str]] = {}
    not_brought_to: Many[str] = ()
    drawings: Mapping[str, Many[Drawing]] = {}
    figure: Drawing | None = None


class Pose(NamedTuple):
    """The joints of a person, as points of a drawing; `far` and `near` are the two sides of the body.

    grip  where the hand holds something: per cent of the figure's width and height
    """

    head: Range
    shoulder: Range
    hip: Range
    far_elbow: Range
    far_hand: Range
    far_knee: Range
    far_foot: Range
    near_elbow: Range
    near_hand: Range
    near_knee: Range
    near_foot: Range
    grip: Range | None = None


# --- places ---------------------------------------------------------------------------------------------------------


class Prop(NamedTuple):
    """Scenery of one sort.

    drawings  names in scenery.yaml, one of which is chosen each time
    where     "horizon": on it; "strip": across the image at `height` above `bottom`; "back": on the far ground; "side":
              near, at the left or right edge; "top": hangs from the top; "ground": covers it; in rooms "wall", "floor"
              (at the wall) and "rug"
    many      how many, from and to
    height    from and to, thousandths of the image
    bottom    of a strip, from and to, per cent of the way from the horizon to the lower edge
    colour    of its main, dark and light materials
    percent   chance that it is there at all
    front     painted over the things
    """

    drawings: Many[str]
    where: str
    many: Range = (1, 1)
    height: Range = (100, 200)
    bottom: Range = (0, 0)
    colour: Colour = (150, 150, 150)
    percent: int = 100
    front: bool = False


class Setting(NamedTuple):
    """A background: what is there, its names, how it is painted.

    ground     "ground", "water" or "home": the class of place that decides poses
    things     kinds that are there as subjects or landmarks
    weathers   it has, with whole-number weights
    phrases    where things on the ground or the water are: "on the sea"
    horizon    where the ground begins, from and to (thousandths from the top)
    far, near  colours of the ground (indoors: of the floor)
    air        kinds that fly over it
    landmarks  kinds that are there beside or behind a subject only
    names      what things in the air are over: "the sea"
    textures   of the ground, names in scenery.yaml
    props      scenery
    walls      indoors the colours that a wall may have; `pattern`: on it, a name in scenery.yaml
    """

    ground: str
    things: Many[str]
    weathers: Mapping[str, int]
    phrases: Forms
    horizon: Range
    far: Colour
    near: Colour
    air: Many[str] = ()
    landmarks: Many[str] = ()
    names: Forms = ()
    textures: Many[str] = ()
    props: Many[Prop] = ()
    walls: tuple[Colour, ...] = ()
    pattern: str = ""

    @property
    def indoors(self) -> bool:
        """Whether it is a room."""
        return self.ground == "home"


# --- skies ----------------------------------------------------------------------------------------------------------


class Fall(NamedTuple):
    """What falls from the sky: a drawing of scenery.yaml and its colour."""

    drawing: str
    colour: Colour


class Weather(NamedTuple):
    """A weather.

    grey            what an overcast sky looks like by day
    cover           how much of the sky is that (256ths)
    dim             how bright the land is (256ths)
    clouds          how many, from and to; `cloud`: their colour
    fog             of the horizon, of the background, and of what is near (256ths)
    phrases         "in the rain", by time of day or `any`
    adjectives      "rainy", by time of day or `any`
    window_phrases  what a window shows: "while it rains outside"; {} is the word for the time of day
    """

    grey: Colour
    cover: int
    dim: int
    clouds: Range
    cloud: Colour
    fog: tuple[int, int, int]
    phrases: Mapping[str, Forms]
    adjectives: Mapping[str, Forms]
    window_phrases: Forms = ()
    fall: Fall | None = None


class Time(NamedTuple):
    """A time of day.

    weight           how often it is; `weight_indoors` in rooms
    phrases          "at night"
    nouns            of a scene as a whole: "a rainy dusk"; `on_nouns`: after "on a"
    sky              colours of a clear sky at its top and at the horizon
    tint             of the land's colours (256ths per channel)
    bright           how bright grey air is (256ths)
    sun              colours of its halo and its disc
    glow             the colour that low sun gives to clouds
    """

    weight: int
    phrases: Forms
    nouns: Forms
    on_nouns: Forms
    sky: tuple[Colour, Colour]
    tint: Colour
    bright: int
    weight_indoors: int = 0
    sun: tuple[Colour, Colour] | None = None
    glow: Colour | None = None


class Skies(NamedTuple):
    """Weathers, times of day, and the colours of what is in the sky by material."""

    weathers: Mapping[str, Weather]
    times: Mapping[str, Time]
    lights: Mapping[str, Mapping[str, Colour]]


# --- colours and words ----------------------------------------------------------------------------------------------


class Hue(NamedTuple):
    """A colour: its names, and the shades that things of this colour come in."""

    words: Forms
    shades: tuple[Colour, ...]


class Colours(NamedTuple):
    """The colours of things, of materials, of people and of curtains; `lit`: of windows with a light behind them."""

    hues: Mapping[str, Hue]
    materials: Mapping[str, Colour]
    lit: Colour
    skin: tuple[Colour, ...]
    hair: tuple[Colour, ...]
    trousers: tuple[Colour, ...]
    curtains: tuple[Colour, ...]


class Size(NamedTuple):
    """A size against the usual one of a kind: how often it is, per cent, and adjectives."""

    weight: int
    percent: int
    words: Forms = ()
    words_of_tall_things: Forms = ()
    words_of_people: Forms = ()


class Count(NamedTuple):
    """A number of things: how often it is, their size in per cent of a single one's, and determiners."""

    weight: int
    percent: int
    words: Forms


class Relation(NamedTuple):
    """How a subject is related to a landmark.

    prepositions  "to the left of"
    inverse       the relation of the landmark to the subject
    weight        how often it is; 0: only where the kinds say so
    verbs         "ing/singular/plural" by kind of landmark or `any`, of relations that are something one does
    """

    prepositions: Forms = ()
    inverse: str = ""
    weight: int = 0
    verbs: Mapping[str, Forms] = {}


class Words(NamedTuple):
    """Words for everything but kinds, places, weathers, times and colours.

    verbs            "ing/singular/plural" by pose
    clothes          what people wear: "singular/plural"; {} is the colour, {a} the colour with its article
    garments         clothes for colour words that are adjectives only, `only_adjectives`, as well
    backdrops        {} is the thing in the background
    openings         "a picture of"
    """

    sizes: Mapping[str, Size]
    counts: Mapping[int, Count]
    verbs: Mapping[str, Forms]
    relations: Mapping[str, Relation]
    clothes: Forms
    garments: Forms
    only_adjectives: Many[str]
    backdrops: Forms
    openings: Forms


# --- all of it ------------------------------------------------------------------------------------------------------


class World(NamedTuple):
    """All that is in the world."""

    kinds: Mapping[str, Kind]
    people: frozenset[str]
    poses: Mapping[str, Pose]
    parts: Mapping[str, Sketch]
    scenery: Mapping[str, Sketch]
    places: Mapping[str, Setting]
    skies: Skies
    colours: Colours
    words: Words


def world() -> World:
    """The world of `assets`, read on first use.

    Raises:
        DataError: a file is not as it should be.
    """
    return read_world(FOLDER)


@cache
def read_world(folder: Path) -> World:
    """The world that the files of a folder describe, read once.

    Raises:
        DataError: a file is not as it should be; names file, entry, and what was expected.
    """
    colours: Colours = read_yaml(folder / "colours.yaml", Colours)
    kinds: dict[str, Kind] = {}
    for name in KIND_FILES:
        entries: Mapping[str, Kind] = read_yaml(folder / f"{name}.yaml", Mapping[str, Kind])
        for kind, entry in entries.items():
            if kind in kinds:
                raise DataError(f"{name}.yaml: the kind {kind!r} is in another file as well")
            if not entry.drawings and not entry.figure:
                raise DataError(f"{name}.yaml: the kind {kind!r} has neither drawings nor a figure")
            where = f"{name}.yaml ({kind})"
            kinds[kind] = entry._replace(
                colours=tuple(colours.hues) if entry.colours == (ANY,) else entry.colours,
                drawings={
                    pose: tuple(sketch._replace(where=f"{where}: {pose}") for sketch in sketches)
                    for pose, sketches in entry.drawings.items()
                },
                figure=entry.figure and entry.figure._replace(where=f"{where}: figure"),
            )
    found = World(
        kinds=kinds,
        people=frozenset(kind for kind, entry in kinds.items() if entry.figure),
        poses=read_yaml(folder / "poses.yaml", Mapping[str, Pose]),
        parts=_read_sketches(folder / "parts.yaml"),
        scenery=_read_sketches(folder / "scenery.yaml"),
        places=read_yaml(folder / "places.yaml", Mapping[str, Setting]),
        skies=read_yaml(folder / "skies.yaml", Skies),
        colours=colours,
        words=read_yaml(folder / "words.yaml", Words),
    )
    unknown = [
        f"{entry}: unknown {sort} {name!r}{suggestion(name, known)}"
        for entry, sort, names, known in _references(found)
        for name in names
        if name not in known
    ]
    if mistakes := unknown or list(_without_pose(found)):
        raise DataError(f"{folder.name}: " + "; ".join(mistakes))
    return found


def _read_sketches(path: Path) -> dict[str, Sketch]:
    """The drawings of a file by name."""
    texts = read_yaml(path, Mapping[str, str])
    return {name: Sketch(text, f"{path.name} ({name})") for name, text in texts.items()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'fox'?`, or the known names where none is near."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or '(none)'}"


# An entry, what sort of names it uses, these names, and those that exist.
_Reference = tuple[str, str, Iterable[str], Collection[str]]


def _references(world: World) -> Iterator[_Reference]:
    """The names of other entries that entries use."""
    for name, kind in world.kinds.items():
        for field, sort, names, known in _references_of_kind(kind, world):
            yield f"{name}: {field}", sort, names, known
    for name, place in world.places.items():
        drawings = (*place.textures, *(one for prop in place.props for one in prop.drawings))
        yield f"{name}: things, air, landmarks", "kind", (*place.things, *place.air, *place.landmarks), world.kinds
        yield f"{name}: weathers", "weather", place.weathers, world.skies.weathers
        yield f"{name}: textures, props", "drawing of scenery.yaml", drawings, world.scenery
        yield f"{name}: props", "where", (prop.where for prop in place.props), WHERES
        yield f"{name}: ground", "class of place", (place.ground,), GROUNDS
    for name, weather in world.skies.weathers.items():
        yield f"{name}: phrases, adjectives", "time", (*weather.phrases, *weather.adjectives), {*world.skies.times, ANY}
    for name, relation in world.words.relations.items():
        yield f"{name}: inverse", "relation", filter(None, (relation.inverse,)), world.words.relations
        yield f"{name}: verbs", "kind", relation.verbs, {*world.kinds, ANY}


def _references_of_kind(kind: Kind, world: World) -> Iterator[_Reference]:
    relations, words = world.words.relations, world.words
    yield "colours", "colour", kind.colours, world.colours.hues
    yield "nouns_by_size", "size", kind.nouns_by_size, words.sizes
    yield "nouns_by_place", "place", kind.nouns_by_place, world.places
    yield "poses", "class of place", kind.poses, GROUNDS
    yield "poses", "verb for pose", (one for some in kind.poses.values() for one in some), {*words.verbs, *kind.verbs}
    yield "background", "class of place", kind.background, GROUNDS
    yield "top", "kind", kind.top.carries if kind.top else (), world.kinds
    yield "roof", "kind", kind.roof.covers if kind.roof else (), world.kinds
    yield "at_hand", "kind", (thing for things in kind.at_hand.values() for thing in things), world.kinds
    yield "at_hand", "relation", (one for things in kind.at_hand.values() for one in things.values()), relations
    yield "not_brought_to", "place", kind.not_brought_to, world.places


def _without_pose(world: World) -> Iterator[str]:
    """Kinds that are the subject somewhere, but have no pose for such a place."""
    for name, place in world.places.items():
        for ground, kinds in ((place.ground, place.things), ("air", place.air)):
            for kind in kinds:
                if ground not in world.kinds[kind].poses:
                    yield f"{kind}: poses: none for {ground!r}, the class of the place {name!r}"
