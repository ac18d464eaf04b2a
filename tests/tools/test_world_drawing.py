import tarfile

import numpy as np
import pytest
from byte_towers import tree
from PIL import Image
from world import pictures as module
from world.catalogue import Sketch, world
from world.composing import compose
from world.drawing import draw
from world.draws import Draws
from world.grammar import captions
from world.painting import Canvas, Light
from world.pictures import draw_split
from world.placing import looks, person
from world.scenes import SPLITS, Scene, Thing, make_scene, scenes
from world.shapes import Drawing, rasterise, slanted
from world.sketches import materials, plan

from lexvl_anserini.data.corpora.captioned import PICTURES, list_demo_files, read_karpathy

pytestmark = pytest.mark.extended


WORLD = world()
KINDS, PLACES, HUES = WORLD.kinds, WORLD.places, WORLD.colours.hues
TIMES, WEATHERS = WORLD.skies.times, WORLD.skies.weathers
MATERIALS = materials()


def scene_of(subject, place="beach", weather="clear", time="day", number=3, **others):
    given = {"pose": None, "relation": None, "landmark": None, "backdrop": None, **others}
    return Scene("train", number, place, weather, time, subject, **given)


@pytest.mark.parametrize(
    ("text", "units", "within"),
    [
        ("box main 1,1 3,4", 6, 0),
        ("poly main 0,0 4,0 0,4", 8, 0.1),
        ("oval main 2,2 2,1", np.pi * 2, 0.05),
        ("ring main 2,2 2,2 1", np.pi * 3, 0.05),
        ("line main 2 1,2 3,2", 4 + np.pi, 0.05),
        ("box main 0,0 4,4\nbox nothing 1,1 2,2", 15, 0),
        ("box main 3,3 9,9", 1, 0),
    ],
)
def test_areas_of_shapes(text, units, within):
    """Covered units of a drawing on a field of 4 x 4."""
    drawing = rasterise(Sketch("4,4 plain\n" + text))
    assert (drawing.materials != 0).sum() / 60**2 == pytest.approx(units, abs=within)


def test_later_shapes_cover_and_the_outline_is_inside():
    drawing = rasterise(Sketch("4,4 plain\nbox main 0,0 4,4\nbox ink 0,0 2,4"))
    assert drawing.used == (("main", MATERIALS.index("main")), ("ink", MATERIALS.index("ink")))
    assert (drawing.materials[:, :120] == MATERIALS.index("ink")).all()
    outlined = rasterise(Sketch("4,4\nbox main 1,1 3,3")).materials
    assert (outlined != 0).sum() == 120 * 120
    assert outlined[60, 120] == MATERIALS.index("outline")
    assert outlined[120, 120] == MATERIALS.index("main")


def test_slanting_moves_rows_and_keeps_the_size_of_pixels():
    sketch = Sketch("4,4 plain\nbox main 0,0 4,4")
    assert slanted(sketch, 0, 0) is rasterise(sketch)
    leant = slanted(sketch, 8, 0)
    rows = [np.flatnonzero(row) for row in leant.materials if row.any()]
    assert {len(row) for row in rows} <= {239, 240}
    assert abs(int(rows[0][0]) - int(rows[-1][0])) == pytest.approx(0.08 * 240, abs=2)


def test_every_drawing_is_of_known_shapes_and_not_empty():
    """Each kind has one for each of its poses, each person one of its own."""
    things = [one for kind in KINDS.values() for drawings in kind.drawings.values() for one in drawings]
    people = [person(kind, pose) for kind in WORLD.people for pose in WORLD.poses]
    for sketch in (*things, *people, *WORLD.scenery.values()):
        assert rasterise(sketch).used
    for kind, look in KINDS.items():
        assert all(looks(kind, pose) for pose in {pose for some in look.poses.values() for pose in some} or {None})
    assert len({plan(person("man", pose)) for pose in WORLD.poses}) == len(WORLD.poses)


def block(material):
    return Drawing(2, 2, np.full((2, 2), MATERIALS.index(material), np.uint8), ((material, MATERIALS.index(material)),))


def test_pasting_light_and_fog():
    canvas, grey = Canvas(4), {"main": (100, 100, 100)}
    canvas.bands(0, 1000, [canvas.colour((200, 100, 0))])
    canvas.paste(block("main"), (0, 500, 500, 500), grey)
    canvas.paste(block("main"), (500, 500, 500, 500), grey, fog=128)
    canvas.paste(block("main"), (500, 1000, 500, 500), grey, glows=True)
    image = canvas.finish(Light((128, 256, 256), (20, 20, 20), False))
    corners = [image[place].tolist() for place in ((3, 0), (0, 0), (0, 3), (3, 3))]
    assert corners == [[100, 100, 0], [50, 100, 100], [35, 60, 60], [100, 100, 100]]


def test_painting_outside_the_image_and_the_clip_does_nothing():
    canvas = Canvas(4)
    canvas.bands(0, 1000, [canvas.colour((10, 10, 10))])
    for box in ((-900, 500, 500, 500), (1200, 500, 500, 500), (0, -10, 500, 500), (0, 3000, 500, 500)):
        canvas.paste(block("white"), box, {})
    canvas.clip_to(0, 0, 500, 500)
    canvas.paste(block("white"), (-500, 1500, 2000, 2000), {})
    image = canvas.finish(Light((256, 256, 256), (0, 0, 0), False))[:, :, 0]
    assert (image[:2, :2] > 200).all() and (image[2:] == 10).all() and (image[:, 2:] == 10).all()


@pytest.fixture(scope="module")
def composed():
    return [(scene, compose(scene, Draws("compose", number), 450)) for number, scene in enumerate(scenes("test"))]


def test_everything_is_there_as_often_as_the_scene_says_and_mostly_inside(composed):
    for scene, placed in composed:
        for role in ("subject", "landmark", "backdrop"):
            thing = getattr(scene, role)
            assert sum(one.role == role for one in placed) == (thing.count if thing else 0)
        for one in placed:
            across = min(1000, one.x + one.width // 2) - max(0, one.x - one.width // 2)
            down = min(1000, one.bottom) - max(0, one.bottom - one.height)
            assert across * down > 0.55 * one.width * one.height, (scene, one)


def test_things_stand_as_the_relation_says(composed):
    for scene, placed in composed:
        of = {role: [one for one in placed if one.role == role] for role in ("subject", "landmark")}
        middles = {role: sum(one.x for one in some) / len(some) for role, some in of.items() if some}
        bottoms = {role: [one.bottom for one in some] for role, some in of.items()}
        if scene.relation == "left of":
            assert middles["subject"] < middles["landmark"]
        if scene.relation == "right of":
            assert middles["subject"] > middles["landmark"]
        if scene.relation == "above":
            tops = [one.bottom - one.height for one in of["landmark"]]
            assert sum(bottoms["subject"]) / len(bottoms["subject"]) < min(tops) + 60
        if scene.relation == "in front of":
            assert max(bottoms["subject"]) > max(bottoms["landmark"]) - 30
            assert placed[-1].role == "subject"
        if scene.relation == "behind":
            assert placed[-1].role == "landmark"


def test_times_and_weathers_show():
    dog = Thing("dog", "brown", 1, "medium")
    light = {
        (time, weather): draw(scene_of(dog, "field", weather, time)).astype(int)
        for time in TIMES
        for weather in WEATHERS
    }
    sky = {key: image[:12].mean((0, 1)) for key, image in light.items()}
    assert sky["night", "clear"].sum() < sky["day", "clear"].sum() / 2
    assert sky["day", "clear"][2] - sky["day", "clear"][0] > 60
    assert sky["day", "storm"].sum() < sky["day", "rain"].sum()
    assert light["day", "fog"].std() < light["day", "clear"].std() * 0.6
    assert len({image.tobytes() for image in light.values()}) == 28


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(SPLITS, "val", 6)


def test_a_split_is_drawn_once(tmp_path, few):
    path = draw_split("val", tmp_path, size=32)
    assert path == tmp_path / "val.json"
    with tarfile.open(tmp_path / "images-v3-32px-val.tar", "r:") as archive:
        assert archive.getnames() == [f"val-{number:05d}.png" for number in range(6)]
        with Image.open(archive.extractfile("val-00004.png")) as image:
            assert (np.asarray(image) == draw(make_scene("val", 4), 32)).all()
    written = list(read_karpathy(path))
    assert [image.image_id for image in written] == [scene.scene_id for scene in scenes("val")]
    assert [caption.text for caption in written[3].captions] == list(captions(make_scene("val", 3)))
    before = path.stat()
    assert draw_split("val", tmp_path, size=32).stat() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["images-v3-32px-val.tar", "val.json"]


def test_a_split_is_whole_or_absent(tmp_path, few, monkeypatch):
    def broken(scene, size):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "draw", broken)
    with pytest.raises(KeyboardInterrupt):
        draw_split("val", tmp_path)
    assert not list(tmp_path.iterdir())
    # What a killed process may leave is written over.
    (tmp_path / "images-v3-64px-val.tar.lexvl.part").write_bytes(b"half")
    monkeypatch.setattr(module, "draw", draw)
    draw_split("val", tmp_path)
    with tarfile.open(tmp_path / "images-v3-64px-val.tar", "r:") as archive:
        assert len(archive.getnames()) == 6


def test_processes_draw_the_same_files_as_one(tmp_path, monkeypatch):
    draw_split("val", tmp_path / "one", size=16)
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "count_usable_cores", lambda: 2)
    draw_split("val", tmp_path / "many", size=16)
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


def test_the_package_holds_the_test_split(tmp_path):
    """The files in the package are what the tool draws, byte for byte, on every machine; if one changes, so must the
    version in the name of the pictures.
    """
    draw_split("test", tmp_path)
    assert PICTURES.format(split="test") == "images-v3-64px-test.tar"
    for file, name in zip(list_demo_files(), ("test.json", "images-v3-64px-test.tar"), strict=True):
        assert file.read_bytes() == (tmp_path / name).read_bytes(), name
