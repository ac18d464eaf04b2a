"""The people of the demo world: a skeleton per pose, dressed as a man, a woman or a child, facing right."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

Point = tuple[int, int]


class Pose(NamedTuple):
    """Joints of an adult 120 units tall on a field 80 wide; y downwards, the ground at 118.

    head, shoulder, hip  centres
    far_arm, near_arm    elbow and hand
    far_leg, near_leg    knee and foot
    """

    head: Point
    shoulder: Point
    hip: Point
    far_arm: tuple[Point, Point]
    near_arm: tuple[Point, Point]
    far_leg: tuple[Point, Point]
    near_leg: tuple[Point, Point]


POSES: Mapping[str, Pose] = {
    "standing": Pose(
        (40, 18),
        (40, 42),
        (40, 70),
        ((53, 56), (54, 70)),
        ((27, 56), (26, 70)),
        ((47, 92), (48, 114)),
        ((33, 92), (32, 114)),
    ),
    "walking": Pose(
        (42, 18),
        (41, 42),
        (40, 70),
        ((54, 54), (60, 66)),
        ((28, 54), (24, 66)),
        ((30, 92), (18, 112)),
        ((52, 90), (58, 114)),
    ),
    "running": Pose(
        (52, 17),
        (46, 40),
        (38, 68),
        ((60, 52), (70, 42)),
        ((30, 46), (22, 58)),
        ((22, 84), (6, 86)),
        ((58, 76), (58, 102)),
    ),
    "sitting": Pose(
        (32, 40),
        (31, 64),
        (30, 96),
        ((44, 80), (54, 88)),
        ((36, 82), (50, 92)),
        ((54, 84), (62, 113)),
        ((50, 86), (56, 114)),
    ),
    "seated": Pose(
        (32, 18),
        (31, 42),
        (30, 76),
        ((44, 58), (54, 70)),
        ((36, 60), (48, 74)),
        ((56, 78), (58, 112)),
        ((52, 80), (52, 114)),
    ),
    "riding": Pose(
        (42, 18),
        (40, 42),
        (36, 74),
        ((52, 58), (66, 62)),
        ((44, 60), (62, 66)),
        ((54, 84), (48, 108)),
        ((56, 86), (50, 112)),
    ),
    "holding": Pose(
        (40, 18),
        (40, 42),
        (40, 70),
        ((54, 54), (66, 52)),
        ((52, 58), (66, 56)),
        ((47, 92), (48, 114)),
        ((33, 92), (32, 114)),
    ),
    "flying": Pose(
        (40, 18),
        (40, 42),
        (40, 70),
        ((56, 34), (66, 16)),
        ((27, 56), (26, 70)),
        ((50, 92), (54, 114)),
        ((33, 92), (30, 114)),
    ),
}

# Where a hand holds something: per cent of the figure's width and height.
HAND: Mapping[str, Point] = {"holding": (84, 46), "flying": (83, 12), "sitting": (68, 76), "seated": (68, 62)}


@cache
def person(kind: str, pose: str) -> str:
    """The drawing of a `man`, `woman` or `child` in a pose, as text for `shapes.rasterise`."""
    joints = POSES[pose]
    size = "80,120"
    if kind == "child":
        joints = _childlike(joints)
        size = "80,92"
    return "\n".join((size, *_DRESSED[kind](joints, pose)))


def _childlike(pose: Pose) -> Pose:
    """A child is shorter and slimmer in the limbs; its head is drawn as large as a grown-up's."""
    head, shoulder, hip, *limbs = pose
    first, second, third, fourth = ((_smaller(a), _smaller(b)) for a, b in limbs)
    return Pose(_smaller(head), _smaller(shoulder), _smaller(hip), first, second, third, fourth)


def _smaller(point: Point) -> Point:
    x, y = point
    return 40 + (x - 40) * 78 // 100, 92 - (118 - y) * 70 // 100


def _limb(material: str, width: int, start: Point, joints: tuple[Point, Point]) -> str:
    return f"line {material} {width} " + " ".join(f"{x},{y}" for x, y in (start, *joints))


def _moved(point: Point, dx: int, dy: int = 0) -> Point:
    return point[0] + dx, point[1] + dy


def _oval(material: str, centre: Point, rx: int, ry: int) -> str:
    return f"oval {material} {centre[0]},{centre[1]} {rx},{ry}"


def _polygon(material: str, origin: Point, *offsets: Point) -> str:
    """A polygon by its corners' distances from a point."""
    return f"poly {material} " + " ".join(f"{origin[0] + dx},{origin[1] + dy}" for dx, dy in offsets)


def _torso(material: str, pose: Pose, shoulders: int, waist: int) -> str:
    (sx, sy), (hx, hy) = pose.shoulder, pose.hip
    corners = ((sx - shoulders, sy - 4), (sx + shoulders, sy - 4), (hx + waist, hy + 4), (hx - waist, hy + 4))
    return f"poly {material} " + " ".join(f"{x},{y}" for x, y in corners)


def _legs(material: str, width: int, pose: Pose, skin: bool = False) -> list[str]:
    lower = "s" if skin else material
    lines = []
    for joints, dx in ((pose.far_leg, 4), (pose.near_leg, -4)):
        hip = _moved(pose.hip, dx)
        lines.append(_limb(lower, width - 2 * skin, hip, joints))
        if skin:
            lines.append(f"line {material} {width} {hip[0]},{hip[1]} {joints[0][0]},{joints[0][1]}")
        lines.append(f"line k {width - 1} {joints[1][0]},{joints[1][1]} {joints[1][0] + 6},{joints[1][1] + 1}")
    return lines


def _arm(pose: Pose, joints: tuple[Point, Point], dx: int, width: int, material: str) -> list[str]:
    return [
        _limb(material, width, _moved(pose.shoulder, dx), joints),
        _oval("s", joints[1], width // 2 + 1, width // 2 + 1),
    ]


def _face(head: Point, size: int) -> list[str]:
    x, y = head
    return [
        _oval("s", head, size - 2, size),
        f"oval k {x + size // 5},{y} 2,2",
        f"oval k {x + size * 7 // 10},{y} 2,2",
        f"line r 2 {x + size // 4},{y + size * 6 // 10} {x + size * 6 // 10},{y + size * 6 // 10}",
    ]


def _man(pose: Pose, name: str) -> list[str]:
    x, y = pose.head
    return [
        *_arm(pose, pose.far_arm, 9, 9, "d"),
        *_legs("j", 11, pose),
        _torso("c", pose, 15, 11),
        f"box s {x - 4},{y + 10} {x + 4},{y + 20}",
        *_face(pose.head, 14),
        _polygon("h", pose.head, (-13, 2), (-12, -10), (-4, -16), (8, -15), (13, -7), (-4, -6), (-7, 4)),
        *_arm(pose, pose.near_arm, -9 if name != "holding" else 0, 9, "c"),
    ]


def _woman(pose: Pose, name: str) -> list[str]:
    x, y = pose.head
    hx, hy = pose.hip
    kx, ky = pose.near_leg[0]
    fx, fy = pose.far_leg[0]
    back = _oval("h", (x - 4, y + 6), 15, 22)
    if name in ("sitting", "seated", "riding"):
        skirt = (
            f"poly c {hx - 12},{hy - 16} {hx + 10},{hy - 18} {kx + 12},{ky - 8} {kx + 12},{ky + 14} {hx - 14},{hy + 10}"
        )
    else:
        low = max(ky, fy) + 4
        skirt = f"poly c {hx - 8},{hy - 16} {hx + 8},{hy - 16} {max(kx, fx) + 14},{low} {min(kx, fx) - 14},{low}"
    return [
        back,
        *_arm(pose, pose.far_arm, 7, 7, "d"),
        *_legs("s", 7, pose),
        _torso("c", pose, 12, 8),
        skirt,
        f"box s {x - 3},{y + 10} {x + 4},{y + 20}",
        *_face(pose.head, 13),
        _polygon("h", pose.head, (-13, 14), (-13, -8), (-4, -16), (8, -14), (12, -5), (0, -8), (-7, 16)),
        *_arm(pose, pose.near_arm, -7 if name != "holding" else 0, 7, "c"),
    ]


def _child(pose: Pose, name: str) -> list[str]:
    x, y = _moved(pose.head, 0, 4)
    return [
        *_arm(pose, pose.far_arm, 7, 7, "s"),
        *_legs("j", 9, pose, skin=True),
        _torso("c", pose, 12, 10),
        *_face((x, y), 16),
        f"poly c {x - 16},{y - 3} {x - 13},{y - 14} {x},{y - 20} {x + 12},{y - 14} {x + 15},{y - 5}",
        f"line d 4 {x + 4},{y - 5} {x + 23},{y - 4}",
        *_arm(pose, pose.near_arm, -7 if name != "holding" else 0, 7, "s"),
    ]


_DRESSED = {"man": _man, "woman": _woman, "child": _child}
