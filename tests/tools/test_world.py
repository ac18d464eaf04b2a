"""The files of assets/world: what they can say, what they must not, and that a thing is added by data alone."""

import shutil

import pytest
from world import catalogue
from world.catalogue import FOLDER, Sketch, read_world, world
from world.drawing import draw
from world.grammar import captions
from world.scenes import make_scene
from world.shapes import rasterise
from world.sketches import Primitive, plan

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


def test_repetitions():
    assert shapes("9,9\nfor x in 1..8 step 3\n  oval main x,2*x-1 1,1") == [
        Primitive("oval", "main", (x, 2 * x - 1, 1, 1)) for x in (1, 4, 7)
    ]
    assert shapes("9,9\nfor x,tint in 1,red 4,white\n  box tint x,0 x+1,9") == [
        Primitive("box", "red", (1, 0, 2, 9)),
        Primitive("box", "white", (4, 0, 5, 9)),
    ]
    assert len(shapes("9,9\nfor x in 1..3\n  for y in x..3\n    if (x+y)%2\n      oval main x,y 1,1")) == 2


def test_scattered_places_are_in_the_drawing_and_always_the_same():
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
