"""Where the things of a scene are in the image: boxes in thousandths of its side, back to front."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from world.catalogue import world
from world.draws import Draws
from world.placing import LEAST, Placed, Stage, any_pose, looks, person, place, place_landmark, place_subject, width_of
from world.scenes import Scene, Thing


def compose(scene: Scene, draws: Draws, horizon: int) -> list[Placed]:
    """All things of a scene, back to front."""
    stage = Stage(scene, draws, horizon)
    placed = COMPOSERS[scene.relation](stage)
    if scene.backdrop:
        placed = _behind_all(stage, scene.backdrop, placed) + placed
    return placed


def _behind_all(stage: Stage, thing: Thing, placed: list[Placed]) -> list[Placed]:
    """A thing in the background, where the others hide it least; nearer where nothing is beside the subject."""
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
    if stage.scene.airborne:
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
    roof = world().kinds[landmark.kind].roof
    assert roof
    floor = stage.floor()
    above = place(stage, "landmark", landmark, any_pose(stage, landmark.kind), (60, 940), floor - 50, 800, 135)[0]
    span = _around(above, above.width * 45 // 100)
    return [above, *place_subject(stage, span, floor, above.height * roof.height // 100)]


def _around(one: Placed, reach: int) -> tuple[int, int]:
    return max(10, one.x - reach), min(990, one.x + reach)


def _on(stage: Stage) -> list[Placed]:
    scene = stage.scene
    assert scene.landmark
    landmark, kinds = scene.landmark, world().kinds
    top = kinds[landmark.kind].top
    assert top
    base = place(
        stage, "landmark", landmark, any_pose(stage, landmark.kind), (60, 940), stage.floor(), top.highest, 118
    )[0]._replace(lean=0, tilt=0)
    left, right = top.ends
    edge = base.x - base.width // 2
    bottom = base.bottom - base.height * (100 - top.down) // 100
    if landmark.kind == "tree":
        bottom += stage.draws.between(0, base.height // 6)
    pose = "seated" if scene.subject.kind in world().people and scene.pose == "sitting" else scene.pose
    if pose == "seated":
        bottom += base.height * 40 // 100
    span = (edge + base.width * left // 100, edge + base.width * right // 100)
    percent = 78 if kinds[landmark.kind].rigid else 92
    riders = place(stage, "subject", scene.subject, pose, span, bottom, max(150, bottom - 60), percent)
    return [base, *(one._replace(bottom=bottom) for one in riders)]


def _inside(stage: Stage) -> list[Placed]:
    """People in a boat, fish in a bowl: they are painted between its back and its front."""
    scene, draws = stage.scene, stage.draws
    assert scene.landmark
    landmark = scene.landmark
    bowl = landmark.kind == "bowl"
    pose = None if bowl else draws.choice(("sailing", "moored"))
    holder = place(stage, "landmark", landmark, pose, (60, 940), stage.floor(), 700, 125)[0]._replace(lean=0)
    front = holder._replace(role="prop", drawing=world().kinds[landmark.kind].drawings["front"][0])
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
    saddle = world().kinds[scene.landmark.kind].saddle
    assert saddle
    pose = draws.choice(saddle.poses) if saddle.poses else None
    mount = place(stage, "landmark", scene.landmark, pose, (60, 940), stage.floor(), 560, 100)[0]._replace(lean=0)
    seat = mount.bottom - mount.height * saddle.seat // 100
    sketch = person(scene.subject.kind, "riding")
    tall = mount.height * saddle.rider // 100 * world().words.sizes[scene.subject.size].percent // 100
    tall = max(200, min(tall, (seat - 30) * 100 // 62))
    if scene.subject.kind == "child":
        tall = tall * 82 // 100
    shift = mount.width * saddle.back // 100
    rider = Placed(
        "subject", scene.subject.kind, sketch, scene.subject.colour,
        mount.x + (shift if mount.mirror else -shift), seat + tall * 40 // 100, width_of(sketch, tall), tall,
        mirror=mount.mirror,
    )  # fmt: skip
    return [mount, rider]


def _in_hand(stage: Stage) -> list[Placed]:
    """A person with a thing in the hand, or at the end of a string."""
    scene, draws = stage.scene, stage.draws
    landmark, relation = scene.landmark, scene.relation
    assert landmark
    kind = world().kinds[landmark.kind]
    pose = "flying" if relation == "flying" else "holding"
    if relation == "reading" and not draws.chance(50):
        pose = "sitting"
    holder = place(stage, "subject", scene.subject, pose, (160, 840), stage.floor(), 640, 125)[0]._replace(lean=0)
    own = kind.drawings.get("reading" if relation == "reading" else "held")
    sketch = own[0] if own else draws.choice(looks(landmark.kind, None))
    percent = 100 + world().words.sizes[landmark.size].percent
    tall = holder.height * kind.grip.height // 100 * percent // 200
    x, y = hand_of(holder, pose)
    if landmark.kind == "kite":
        x = 1000 - holder.x + draws.between(-80, 80)
        y = max(tall + 20, y - draws.between(120, 220))
    thing = Placed(
        "landmark", landmark.kind, sketch, landmark.colour, x, y + tall * kind.grip.lift // 100,
        width_of(sketch, tall), tall, mirror=holder.mirror, tilt=draws.between(-2, 2) * 4,
    )  # fmt: skip
    return [thing, holder] if landmark.kind == "umbrella" else [holder, thing]


def hand_of(person: Placed, pose: str) -> tuple[int, int]:
    """Where a person in a pose holds something."""
    grip = world().poses[pose].grip
    assert grip
    across, down = grip
    side = (across - 50) * person.width // 100
    return person.x + (-side if person.mirror else side), person.bottom - person.height * (100 - down) // 100


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
    "holding": _in_hand,
    "flying": _in_hand,
    "reading": _in_hand,
}
