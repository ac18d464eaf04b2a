"""Where the things of a scene are in the picture: boxes in thousandths of its side, back to front."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lexvl_anserini.data.world.draws import Draws
from lexvl_anserini.data.world.figures import HAND, person
from lexvl_anserini.data.world.placing import (
    DRAWINGS,
    LEAST,
    RIGID,
    SIZE_PERCENT,
    Placed,
    Stage,
    any_pose,
    in_the_air,
    looks,
    place,
    place_landmark,
    place_subject,
    width_of,
)
from lexvl_anserini.data.world.world import PEOPLE, Scene, Thing

# Where things are put on others: left and right ends and height from the top, per cent of the box.
TOPS: Mapping[str, tuple[int, int, int]] = {
    "table": (12, 88, 12), "chair": (12, 90, 56), "bench": (6, 94, 56), "house": (25, 75, 8), "tree": (22, 78, 9),
    "boat": (10, 90, 70), "buoy": (20, 80, 4), "umbrella": (30, 70, 8),
}  # fmt: skip
# Where things are put under others: the greatest height per cent of the box.
ROOFS: Mapping[str, int] = {"tree": 50, "umbrella": 60, "table": 62}


def compose(scene: Scene, draws: Draws, horizon: int) -> list[Placed]:
    """All things of a scene, back to front."""
    stage = Stage(scene, draws, horizon)
    placed = COMPOSERS[scene.relation](stage)
    if scene.backdrop:
        placed = _behind_all(stage, scene.backdrop, placed) + placed
    return placed


def _behind_all(stage: Stage, thing: Thing, placed: list[Placed]) -> list[Placed]:
    """A thing in the background, where the others hide it least; nearer where nothing stands beside the subject."""
    draws = stage.draws
    near = stage.scene.landmark is None
    depth = 40 if stage.ground == "home" else draws.between(60, 140) + (60 if near else 0)
    width, percent = (460, 92) if near else (360, 72)
    spans = [(start, start + width) for start in range(20, 981 - width, (960 - width) // 4)]
    covered = [sum(_shared(span, one) for one in placed) for span in spans]
    best = min(covered)
    span = draws.choice([span for span, hidden in zip(spans, covered, strict=True) if hidden <= best + 60])
    pose = any_pose(stage, thing.kind)
    return place(stage, "backdrop", thing, pose, span, stage.horizon + depth, 420, percent, far=not near)


def _shared(span: tuple[int, int], one: Placed) -> int:
    return max(0, min(span[1], one.x + one.width // 2) - max(span[0], one.x - one.width // 2))


# --- relations ------------------------------------------------------------------------------------------------------


def _alone(stage: Stage) -> list[Placed]:
    if in_the_air(stage):
        return place_subject(
            stage, (40, 960), stage.draws.between(stage.horizon - 120, stage.horizon + 60), percent=115
        )
    return place_subject(stage, (40, 960), stage.floor(), percent=112)


def _beside(stage: Stage) -> list[Placed]:
    scene, draws = stage.scene, stage.draws
    assert scene.landmark
    leftward = scene.relation == "left of" or (scene.relation == "next to" and draws.chance(50))
    more = max(-120, min(120, 60 * (scene.subject.count - scene.landmark.count)))
    border = 500 + (more if leftward else -more) + draws.between(-40, 40)
    spans = ((25, border - 10), (border + 10, 975))
    ours, theirs = spans if leftward else spans[::-1]
    floor = stage.floor()
    things = place_landmark(stage, theirs, floor + draws.between(-50, 20)) + place_subject(stage, ours, floor)
    return sorted(things, key=lambda one: one.bottom)


def _overlapping(stage: Stage, front: str) -> list[Placed]:
    """One group before the other, moved aside so far that both are seen."""
    scene, draws = stage.scene, stage.draws
    assert scene.landmark
    floor = stage.floor()
    behind_floor = floor - draws.between(70, 130)
    left = draws.chance(50)
    near, far = ((20, 620), (330, 980)) if left else ((380, 980), (20, 670))
    if front == "subject":
        return place_landmark(stage, far, behind_floor, percent=118) + place_subject(stage, near, floor, 480, 84)
    return place_subject(stage, far, behind_floor, percent=118) + place_landmark(stage, near, floor, 480, 84)


def _in_front_of(stage: Stage) -> list[Placed]:
    return _overlapping(stage, "subject")


def _behind(stage: Stage) -> list[Placed]:
    return _overlapping(stage, "landmark")


def _above(stage: Stage) -> list[Placed]:
    draws = stage.draws
    below = place_landmark(stage, (80, 920), stage.floor(), 460, 94)
    top = min(one.bottom - one.height for one in below)
    middle = sum(one.x for one in below) // len(below)
    half = 300 + 60 * stage.scene.subject.count
    centre = max(half // 2 + 20, min(980 - half // 2, middle + draws.between(-80, 80)))
    span = (max(20, centre - half), min(980, centre + half))
    return below + place_subject(stage, span, top - draws.between(10, 50), max(LEAST, min(380, top - 60)))


def _under(stage: Stage) -> list[Placed]:
    landmark, draws = stage.scene.landmark, stage.draws
    assert landmark
    if landmark.kind == "clock":
        clock = place(stage, "landmark", landmark, None, (150, 850), draws.between(290, 360), 250)
        below = place_subject(stage, _around(clock[0], 330), stage.floor(), 480)
        return clock + below
    floor = stage.floor()
    roof = place(stage, "landmark", landmark, any_pose(stage, landmark.kind), (60, 940), floor - 50, 800, 135)[0]
    return [
        roof,
        *place_subject(stage, _around(roof, roof.width * 45 // 100), floor, roof.height * ROOFS[landmark.kind] // 100),
    ]


def _around(one: Placed, reach: int) -> tuple[int, int]:
    return max(10, one.x - reach), min(990, one.x + reach)


def _on(stage: Stage) -> list[Placed]:
    scene = stage.scene
    assert scene.landmark
    kind = scene.landmark.kind
    highest = 620 if kind in ("tree", "house", "boat") else 520
    base = place(stage, "landmark", scene.landmark, any_pose(stage, kind), (60, 940), stage.floor(), highest, 118)[0]
    base = base._replace(lean=0, tilt=0)
    left, right, down = TOPS[kind]
    edge = base.x - base.width // 2
    bottom = base.bottom - base.height * (100 - down) // 100
    if kind == "tree":
        bottom += stage.draws.between(0, base.height // 6)
    pose = "seated" if scene.subject.kind in PEOPLE and scene.pose == "sitting" else scene.pose
    if pose == "seated":
        bottom += base.height * 40 // 100
    span = (edge + base.width * left // 100, edge + base.width * right // 100)
    riders = place(
        stage, "subject", scene.subject, pose, span, bottom, max(150, bottom - 60), 78 if kind in RIGID else 92
    )
    return [base, *(one._replace(bottom=bottom) for one in riders)]


def _inside(stage: Stage) -> list[Placed]:
    """People in a boat, fish in a bowl: they lie between its back and its front."""
    scene, draws = stage.scene, stage.draws
    assert scene.landmark
    landmark = scene.landmark
    bowl = landmark.kind == "bowl"
    pose = None if bowl else draws.choice(("sailing", "moored"))
    holder = place(stage, "landmark", landmark, pose, (60, 940), stage.floor(), 700, 125)[0]._replace(lean=0)
    front = holder._replace(role="prop", drawing=DRAWINGS[f"{landmark.kind} front"])
    across = holder.width * 36 // 100
    down = holder.height * (18 if bowl else 14) // 100
    pose, part, percent = ("swimming", 36, 100) if bowl else ("seated", 62, 72)
    inside = place(
        stage, "subject", scene.subject, pose, _around(holder, across), holder.bottom - down,
        holder.height * part // 100, percent, bowl,
    )  # fmt: skip
    return [holder, *inside, front]


def _riding(stage: Stage) -> list[Placed]:
    scene, draws = stage.scene, stage.draws
    assert scene.landmark
    horse = scene.landmark.kind == "horse"
    pose = draws.choice(("standing", "running")) if horse else None
    mount = place(stage, "landmark", scene.landmark, pose, (60, 940), stage.floor(), 560, 100)[0]._replace(lean=0)
    seat = mount.bottom - mount.height * (62 if horse else 74) // 100
    text = person(scene.subject.kind, "riding")
    tall = mount.height * (92 if horse else 112) // 100 * SIZE_PERCENT[scene.subject.size] // 100
    tall = max(200, min(tall, (seat - 30) * 100 // 62))
    if scene.subject.kind == "child":
        tall = tall * 82 // 100
    shift = mount.width * (8 if horse else 10) // 100
    rider = Placed(
        "subject", scene.subject.kind, text, scene.subject.colour,
        mount.x + (shift if mount.mirror else -shift), seat + tall * 40 // 100, width_of(text, tall), tall,
        mirror=mount.mirror,
    )  # fmt: skip
    return [mount, rider]


def _at_hand(pose: str, drawing: str, percent: int, lift: int) -> Callable[[Stage], list[Placed]]:
    """A person with a thing in the hand; `lift` per cent of its height below the hand."""

    def composer(stage: Stage) -> list[Placed]:
        scene, draws = stage.scene, stage.draws
        assert scene.landmark
        own = pose if scene.relation != "reading" or draws.chance(50) else "sitting"
        holder = place(stage, "subject", scene.subject, own, (160, 840), stage.floor(), 640, 125)[0]._replace(lean=0)
        text = DRAWINGS.get(f"{scene.landmark.kind} {drawing}") or draws.choice(looks(scene.landmark.kind, None))
        part = {"umbrella": 74, "kite": 62}.get(scene.landmark.kind, percent)
        tall = holder.height * part // 100 * (100 + SIZE_PERCENT[scene.landmark.size]) // 200
        across, down = HAND[own if own in HAND else "holding"]
        side = (across - 50) * holder.width // 100
        x = holder.x + (-side if holder.mirror else side)
        y = holder.bottom - holder.height * (100 - down) // 100
        below = {"umbrella": 8, "kite": 0}.get(scene.landmark.kind, lift)
        if scene.landmark.kind == "kite":
            x = 1000 - holder.x + draws.between(-80, 80)
            y = max(tall + 20, y - draws.between(120, 220))
        thing = Placed(
            "landmark", scene.landmark.kind, text, scene.landmark.colour, x, y + tall * below // 100,
            width_of(text, tall), tall, mirror=holder.mirror, tilt=draws.between(-2, 2) * 4,
        )  # fmt: skip
        return [thing, holder] if scene.landmark.kind == "umbrella" else [holder, thing]

    return composer


COMPOSERS: Mapping[str | None, Callable[[Stage], list[Placed]]] = {
    None: _alone,
    "left of": _beside,
    "right of": _beside,
    "next to": _beside,
    "in front of": _in_front_of,
    "behind": _behind,
    "above": _above,
    "under": _under,
    "on": _on,
    "in": _inside,
    "riding": _riding,
    "holding": _at_hand("holding", "held", 36, 40),
    "flying": _at_hand("flying", "", 60, 0),
    "reading": _at_hand("holding", "reading", 30, 60),
}
