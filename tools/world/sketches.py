"""The drawing language: a drawing as text, and what it means in plain shapes.

The first line is the size, `width,height` in units, then `plain` for a drawing without an outline. Every other line is
a shape, a material and whole numbers, y downwards; later shapes cover earlier ones:

    poly MATERIAL x,y x,y x,y ...    a filled polygon (even-odd)
    box  MATERIAL x,y x,y            a rectangle by two corners
    oval MATERIAL x,y rx,ry          an ellipse by centre and radii
    ring MATERIAL x,y rx,ry width    an ellipse's border, that wide inwards
    line MATERIAL width x,y x,y ...  a stroke with round ends

A number can be calculated from names: `x+36`, `200+(x-200)*7//10`. Names get their values from the lines that repeat or
choose the lines indented below them:

    for x in 10..399 step 66         x = 10, 76, ... up to 399
    for x,tint in 14,red 38,yellow   each pair in turn; a name can also be a material
    for x,y,n in scatter 46 stars    46 random places in the drawing with n from 0 to 3, seeded by `stars`
    if (x*7+y*3)%5                   where this is not 0; `not`, `and`, `or` are known

`use wheels` inserts the lines of parts.yaml under that name. `# ...` is a comment.

A person's drawing is made of the joints of a pose (see poses.yaml): `far_hand` is a point, `hip(-4,0)` the point 4
units left of the hip. `hem_front` and `hem_back` are where a skirt ends, at the lower knee. The pose's own name is 1,
that of every other pose 0: `if sitting or seated`. `shrunk 78,70` in the first line draws the joints closer together:
per cent across and up.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from lexvl_anserini.ground.errors import DataError
from world.catalogue import Range, Sketch, suggestion, world
from world.draws import Draws

Point = Range
# The value of a name in a drawing: a number, a joint, or a material.
Value = int | Point | str

# Materials whose colour belongs to the thing that is drawn; `nothing` erases. The others are in colours.yaml.
ROLES = ("nothing", "main", "dark", "light", "patch", "skin", "hair", "trousers")

# Primitive -> what follows the material: p a point, n a number.
FORMS: Mapping[str, str] = {"poly": "ppp+", "box": "pp", "oval": "pp", "ring": "ppn", "line": "npp+"}

# The ground below a figure's joints, see Pose.
_GROUND = 118

_JOINT = re.compile(r"([a-z_]+)(?:\((-?\d+),(-?\d+)\))?")


class Primitive(NamedTuple):
    """One shape: its numbers in the order of its line, points as two numbers."""

    shape: str
    material: str
    numbers: tuple[int, ...]


class Plan(NamedTuple):
    """A drawing in plain shapes; width and height in units."""

    width: int
    height: int
    outlined: bool
    shapes: tuple[Primitive, ...]


class Statement(NamedTuple):
    """A line of a drawing, and those indented below it."""

    number: int
    text: str
    below: list[Statement]


@cache
def materials() -> tuple[str, ...]:
    """All materials; a material's number is its place."""
    return (*ROLES, *world().colours.materials)


def plan(sketch: Sketch) -> Plan:
    """What a drawing means.

    Raises:
        DataError: a line is not of the language; names file, entry, and line of the drawing.
    """
    size, *lines = _lines(sketch.text) or [Statement(1, "", [])]
    try:
        flags = size.text.split() or [""]
        width, height = _pair(flags.pop(0))
        names = _joints(sketch.pose, width, height, _shrinkage(flags)) if sketch.pose else {}
        unknown = [flag for flag in flags if flag != "plain"]
        if unknown:
            raise ValueError(f"unknown word {unknown[0]!r} after the size")
    except ValueError as error:
        raise _mistake(sketch, size, ValueError(f"expected the size `width,height` in units: {error}")) from None
    interpreter = _Interpreter(sketch, width, height)
    return Plan(width, height, "plain" not in flags, tuple(interpreter.shapes(lines, names)))


def _lines(text: str) -> list[Statement]:
    """The lines of a text as a tree, by their indentation."""
    top: list[Statement] = []
    open_lines: list[tuple[int, list[Statement]]] = [(-1, top)]
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if not content:
            continue
        indent = len(raw) - len(raw.lstrip())
        while open_lines[-1][0] >= indent:
            open_lines.pop()
        line = Statement(number, content, [])
        open_lines[-1][1].append(line)
        open_lines.append((indent, line.below))
    return top


class _Interpreter:
    """Expands the lines of one drawing; `size` is its width and height."""

    def __init__(self, sketch: Sketch, width: int, height: int):
        self.sketch = sketch
        self.size = (width, height)

    def shapes(self, lines: list[Statement], names: Mapping[str, Value]) -> Iterator[Primitive]:
        """The shapes of some lines, given the values of names."""
        for line in lines:
            word, _, rest = line.text.partition(" ")
            try:
                if word == "for":
                    for values in self._repetitions(rest, names):
                        yield from self.shapes(line.below, {**names, **values})
                elif word == "if":
                    if _calculated(_expression(rest), names):
                        yield from self.shapes(line.below, names)
                elif line.below:
                    raise ValueError("the lines below are indented, but nothing repeats or chooses them")
                elif word == "use":
                    part = _part(rest)
                    yield from _Interpreter(part, *self.size).shapes(_lines(part.text), names)
                else:
                    yield _shape(word, rest.split(), names)
            except (ValueError, SyntaxError, ArithmeticError) as error:
                raise _mistake(self.sketch, line, error) from None

    def _repetitions(self, text: str, names: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
        """The values of the names of a `for` line, one mapping for each repetition."""
        listed, _, rest = text.partition(" in ")
        own, words = listed.strip().split(","), rest.split()
        if not words:
            raise ValueError("expected `for NAMES in ...`")
        groups: Iterable[Iterable[Value]]
        match words:
            case ["scatter", count, seed]:
                groups = self._scattered(int(count), seed)
            case ["scatter", *_]:
                raise ValueError("expected `for x,y,n in scatter COUNT SEED`")
            case [ends, "step", step] if ".." in ends:
                groups = _range(ends, step, names)
            case [ends] if ".." in ends:
                groups = _range(ends, "1", names)
            case _:
                groups = ([_item(item, names) for item in word.split(",")] for word in words)
        return (dict(zip(own, group, strict=True)) for group in groups)

    def _scattered(self, count: int, seed: str) -> Iterator[tuple[int, int, int]]:
        draws = Draws("scattered", seed)
        width, height = self.size
        return ((draws.below(width), draws.below(height), draws.below(4)) for _ in range(count))


def _range(ends: str, step: str, names: Mapping[str, Value]) -> Iterator[tuple[int]]:
    first, last = (_number(end, names) for end in ends.split(".."))
    return zip(range(first, last + 1, _number(step, names)), strict=True)


def _part(name: str) -> Sketch:
    parts = world().parts
    if name not in parts:
        raise ValueError(f"unknown part {name!r}{suggestion(name, parts)}")
    return parts[name]


def _mistake(sketch: Sketch, line: Statement, error: Exception) -> DataError:
    return DataError(f"{sketch.where} line {line.number}: `{line.text}`: {error}")


def _shape(shape: str, words: list[str], names: Mapping[str, Value]) -> Primitive:
    if shape not in FORMS:
        raise ValueError(f"unknown shape {shape!r}{suggestion(shape, [*FORMS, 'for', 'if', 'use'])}")
    material = str(names.get(words[0], words[0])) if words else ""
    if material not in materials():
        raise ValueError(f"unknown material {material!r}{suggestion(material, materials())}")
    values = [_values(word, names) for word in words[1:]]
    if not re.fullmatch(FORMS[shape], "".join("np"[len(value) - 1] for value in values)):
        raise ValueError(f"expected {shape} MATERIAL and {FORMS[shape]} (p: a point x,y; n: a number)")
    return Primitive(shape, material, tuple(number for value in values for number in value))


def _values(word: str, names: Mapping[str, Value]) -> tuple[int, ...]:
    """A number `x+4`, a point `x,y`, or a joint `hip(4,0)`."""
    pair = word.split(",", 1)
    try:
        return tuple(map(int, pair))
    except ValueError:
        joint = _JOINT.fullmatch(word)
    if joint and isinstance(point := names.get(joint[1]), tuple):
        return point[0] + int(joint[2] or 0), point[1] + int(joint[3] or 0)
    return tuple(_number(one, names) for one in pair)


# --- numbers --------------------------------------------------------------------------------------------------------


def _pair(text: str) -> Point:
    first, second = text.split(",")
    return int(first), int(second)


def _item(text: str, names: Mapping[str, Value]) -> Value:
    return text if text in materials() else _number(text, names)


def _number(text: str, names: Mapping[str, Value]) -> int:
    try:
        return int(text)
    except ValueError:
        return _calculated(_expression(text), names)


@cache
def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _calculated(node: ast.expr, names: Mapping[str, Value]) -> int:
    """The value of an expression of whole numbers and names."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if isinstance(known := names.get(name), int):
            return known
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_calculated(left, names), _calculated(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _calculated(operand, names)
        case ast.BoolOp(op=sign, values=values):
            results = (_calculated(value, names) for value in values)
            return any(results) if isinstance(sign, ast.Or) else all(results)
    raise ValueError(f"cannot calculate {ast.unparse(node)!r}; known names: {', '.join(names) or '(none)'}")


# --- people ---------------------------------------------------------------------------------------------------------


def _shrinkage(flags: list[str]) -> Point | None:
    """Takes `shrunk A,B` out of the words after a size."""
    if "shrunk" not in flags:
        return None
    place = flags.index("shrunk")
    _, percent = flags[place : place + 2]
    del flags[place : place + 2]
    return _pair(percent)


def _joints(pose: str, width: int, height: int, shrunk: Point | None) -> dict[str, Value]:
    """The names in a person's drawing: the joints of the pose, and every pose."""
    poses = world().poses
    points: dict[str, Point] = {name: point for name, point in poses[pose]._asdict().items() if name != "grip"}
    if shrunk:
        across, up = shrunk
        middle = width // 2
        for name, (x, y) in points.items():
            points[name] = (middle + (x - middle) * across // 100, height - (_GROUND - y) * up // 100)
    (near_x, near_y), (far_x, far_y) = points["near_knee"], points["far_knee"]
    points["hem_front"] = (max(near_x, far_x), max(near_y, far_y))
    points["hem_back"] = (min(near_x, far_x), max(near_y, far_y))
    return {**points, **{name: int(name == pose) for name in poses}}
