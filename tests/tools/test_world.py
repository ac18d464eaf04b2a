"""The files of assets/world: what they can say, what they must not, and that a thing is added by data alone."""

import shutil
import tarfile

import numpy as np
import pytest
from byte_towers import tree
from PIL import Image
from world import catalogue
from world import pictures as module
from world.catalogue import FOLDER, Sketch, read_world, world
from world.composing import compose
from world.drawing import draw
from world.draws import Draws
from world.grammar import captions
from world.painting import Canvas, Light
from world.pictures import draw_split
from world.placing import looks, person
from world.scenes import SPLITS, Scene, Thing, make_scene, scenes
from world.shapes import Drawing, rasterise, slanted
from world.sketches import Primitive, materials, plan

from lexvl_anserini.data.corpora.captioned import PICTURES, list_demo_files, read_karpathy
from lexvl_anserini.ground.errors import DataError

pytestmark = pytest.mark.extended

FOX = """
fox:
  nouns: [fox/foxes, vixen/vixens]
  nouns_by_size: {small: [fox cub/fox cubs]}
  colours: [red, orange]
  poses: {ground: [prowling]}
  verbs: {prowling: [prowling/prowls/prowl, sneaking/sneaks/sneak]}
  scale: 40
  drawings:
    prowling: |
      100,60
      oval main 45,30 30,12
      poly main 70,30 80,6 98,26
      for x in 22..70 step 16
        line dark 6 x,36 x,56
      line white 6 18,28 2,20   # the tip of the tail
"""


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(FOLDER, tmp_path / "world")


@pytest.fixture
def use(monkeypatch):
    """Makes the library read another folder, until the test ends."""
    return lambda folder: monkeypatch.setattr(catalogue, "FOLDER", folder)


def edit(folder, name, old, new):
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_thing_is_added_by_data_alone(folder, use):
    with (folder / "creatures.yaml").open("a") as file:
        file.write(FOX)
    edit(folder, "places.yaml", "things: [rabbit, tent,", "things: [fox, rabbit, tent,")
    use(folder)
    found = [scene for scene in (make_scene("train", number) for number in range(2_000)) if scene.subject.kind == "fox"]
    assert found
    assert {scene.place for scene in found} == {"forest"}
    words = {"fox", "foxes", "vixen", "vixens"}
    for scene in found:
        assert scene.pose in ("prowling", None)
        assert scene.subject.colour in ("red", "orange")
        assert any(words & set(caption.lower().strip(".").split()) for caption in captions(scene))
        assert draw(scene).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("creatures", "  scale: 28", "  scal: 28", "creatures.yaml: .*bird.scal: unknown key"),
        ("creatures", "  scale: 28\n", "", "creatures.yaml: bird.scale: is missing"),
        ("creatures", "scale: 28", "scale: big", 'bird.scale: "big", expected an integer'),
        ("creatures", "floats: yes", "floats: so", 'bird.floats: "so", expected true or false'),
        ("creatures", "\nduck:", "\nbird:", r"creatures.yaml: .*'bird' is there twice .* line \d+"),
        ("household", "\nclock:", "\nbird:", r"household.yaml: the kind 'bird' is in another file as well"),
        ("creatures", "[white, brown, yellow, black]", "[whit]", "duck: colours: unknown colour 'whit'; did you m"),
        ("places", "things: [rabbit,", "things: [rabit,", r"forest: things.*: unknown kind 'rabit'; did you mean 'ra"),
        ("places", "[360, 460]", "[360]", "sea.horizon.1: is missing"),
        ("places", "where: strip", "where: stripe", r"sea: props: unknown where 'stripe'; did you mean 'strip'"),
        ("words", "counts:\n  1:", "counts:\n  one:", 'counts.one.* "one", expected an integer'),
        ("words", "verbs:\n  sailing:", "verbs:\n  sail:", "unknown verb .* 'sailing'; did you mean 'sail'"),
        ("household", "drawings:\n    any: |\n      92,74", "verbs:\n    any: |\n      92,74", "'cup' has neither"),
        ("creatures", "poses: {air: [flying], ", "poses: {", "bird: poses: none for 'air', the class of the place"),
        ("skies", "weathers:", "weathers: [", r"skies.yaml: not YAML"),
    ],
)
def test_a_mistake_names_file_and_entry(folder, name, old, new, message):
    edit(folder, f"{name}.yaml", old, new)
    with pytest.raises(DataError, match=message):
        read_world(folder)


def test_a_mistake_in_a_drawing_names_its_line(folder, use):
    edit(folder, "creatures.yaml", "poly dark 62,46 88,4 84,46", "poly darkish 62,46 88,4 84,46")
    use(folder)
    line = world().kinds["bird"].drawings["flying"][0].text.splitlines().index("poly darkish 62,46 88,4 84,46") + 1
    where = rf"creatures.yaml \(bird\): flying line {line}"
    with pytest.raises(DataError, match=f"{where}: .*; did you mean 'dark'"):
        rasterise(world().kinds["bird"].drawings["flying"][0])


def shapes(text, pose=None):
    return list(plan(Sketch(text, pose=pose)).shapes)


def test_repetitions_and_scattered_places():
    assert shapes("9,9\nfor x in 1..8 step 3\n  oval main x,2*x-1 1,1") == [
        Primitive("oval", "main", (x, 2 * x - 1, 1, 1)) for x in (1, 4, 7)
    ]
    boxes = [Primitive("box", "red", (1, 0, 2, 9)), Primitive("box", "white", (4, 0, 5, 9))]
    assert shapes("9,9\nfor x,tint in 1,red 4,white\n  box tint x,0 x+1,9") == boxes
    assert len(shapes("9,9\nfor x in 1..3\n  for y in x..3\n    if (x+y)%2\n      oval main x,y 1,1")) == 2
    text = "50,20\nfor x,y,n in scatter 30 seed\n  line main 2 x,y x+n,y"
    places = shapes(text)
    assert places == shapes(text) != shapes(text.replace("seed", "other"))
    assert len(places) == 30
    for _, _, (width, x, y, right, _) in places:
        assert (width, 0 <= x < 50, 0 <= y < 20, 0 <= right - x <= 3) == (2, True, True, True)


def test_joints_and_poses():
    pose = world().poses["sitting"]
    x, y = pose.hip
    text = "80,120\nline skin 4 hip hip(-4,2) near_hand\nif sitting or seated\n  oval skin head 3,3"
    assert shapes(text, "sitting") == [
        Primitive("line", "skin", (4, x, y, x - 4, y + 2, *pose.near_hand)),
        Primitive("oval", "skin", (*pose.head, 3, 3)),
    ]
    assert len(shapes(text, "standing")) == 1
    [low] = shapes("80,92 shrunk 50,50\noval skin head 3,3", "standing")
    assert low.numbers == (40, 92 - (118 - 18) // 2, 3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the size"),
        ("40,30 plane", "unknown word 'plane' after the size"),
        ("9,9\novel main 1,2 3,4", r"drawing line 2: `ovel main 1,2 3,4`: unknown shape 'ovel'; did you mean 'oval'"),
        ("9,9\noval man 1,2 3,4", "unknown material 'man'; did you mean 'main'"),
        ("9,9\noval main 1,2", "expected oval MATERIAL"),
        ("9,9\noval main x,2 3,4", "cannot calculate 'x'; known names"),
        ("9,9\nbox main 1/2,2 3,4", "cannot calculate '1 / 2'"),
        ("9,9\nfor x in\n  box main x,2 3,4", "expected `for NAMES in"),
        ("9,9\nfor x in 1..9 by 2\n  box main x,2 3,4", "cannot calculate|invalid"),
        ("9,9\nfor x,y,n in scatter 9\n  box main x,y 3,4", "expected `for x,y,n in scatter COUNT SEED`"),
        ("9,9\nif 1%0\n  box main 0,0 3,4", "by zero"),
        ("9,9\nbox main 0,0 3,4\n  box main 0,0 3,4", "line 2: .*: the lines below are indented"),
        ("9,9\nuse weels", "unknown part 'weels'; did you mean 'wheels'"),
        ("9,9\nif open('x')\n  box main 0,0 3,4", "cannot calculate"),
    ],
)
def test_mistakes_in_drawings(text, message):
    with pytest.raises(DataError, match=message):
        plan(Sketch(text))


WORLD = world()
KINDS = WORLD.kinds
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


def test_painting_light_fog_and_outside_the_image():
    canvas, grey = Canvas(4), {"main": (100, 100, 100)}
    canvas.bands(0, 1000, [canvas.colour((200, 100, 0))])
    canvas.paste(block("main"), (0, 500, 500, 500), grey)
    canvas.paste(block("main"), (500, 500, 500, 500), grey, fog=128)
    canvas.paste(block("main"), (500, 1000, 500, 500), grey, glows=True)
    image = canvas.finish(Light((128, 256, 256), (20, 20, 20), False))
    corners = [image[place].tolist() for place in ((3, 0), (0, 0), (0, 3), (3, 3))]
    assert corners == [[100, 100, 0], [50, 100, 100], [35, 60, 60], [100, 100, 100]]
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
    pairs = [(time, weather) for time in WORLD.skies.times for weather in WORLD.skies.weathers]
    light = {(time, weather): draw(scene_of(dog, "field", weather, time)).astype(int) for time, weather in pairs}
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
    """Byte for byte what the tool draws, on every machine; if a file changes, so must the version in its name."""
    draw_split("test", tmp_path)
    assert PICTURES.format(split="test") == "images-v3-64px-test.tar"
    for file, name in zip(list_demo_files(), ("test.json", "images-v3-64px-test.tar"), strict=True):
        assert file.read_bytes() == (tmp_path / name).read_bytes(), name
