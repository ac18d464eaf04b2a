import re
from collections import Counter

import pytest
from world.catalogue import world
from world.grammar import captions
from world.pictures import draw_split
from world.scenes import SPLITS, scenes

from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError

WORLD = world()
KINDS, PLACES, HUES = WORLD.kinds, WORLD.places, WORLD.colours.hues
TIMES, WEATHERS = WORLD.skies.times, WORLD.skies.weathers


@pytest.fixture(scope="module")
def written():
    return [(scene, captions(scene)) for scene in scenes("test")]


def things(scene):
    return [thing for thing in (scene.subject, scene.landmark, scene.backdrop) if thing]


def test_documents_topics_and_qrels():
    data = load_dataset("demo", direction="text-to-text")
    assert (data.name, data.split, data.remove_query) == ("demo", "test", False)
    assert check_corpus(data.documents, "demo").documents == 1000
    document, topic, qrel = next(data.documents()), next(data.topics()), next(data.qrels())
    assert (document.doc_id, topic.query_id) == ("test-00000", "test-00000-5")
    assert qrel == ("test-00000-5", "test-00000", 1)
    first = captions(next(scenes("test")))
    assert (document.text, topic.text) == (" ".join(first[:4]), first[4])


@pytest.mark.parametrize(("name", "split"), [("demo/val", None), ("demo", "val"), ("demo/val", "val")])
def test_splits(name, split, tmp_path, monkeypatch):
    monkeypatch.setitem(SPLITS, "val", 3)
    with pytest.raises(DataError, match="val.json: not there; python tools/world draw val, in a checkout, draws the"):
        load_dataset(name, split, str(tmp_path), direction="text-to-text")
    draw_split("val", tmp_path / "demo")
    data = load_dataset(name, split, str(tmp_path), direction="text-to-text")
    assert (data.name, data.split) == ("demo", "val")
    assert next(data.documents()).doc_id == "val-00000"


def test_contradicting_splits():
    with pytest.raises(UnknownName, match="did you mean 'train'"):
        scenes("trian")
    with pytest.raises(UsageError, match="the name says split 'val', the split option 'test'"):
        load_dataset("demo/val", "test")


def test_no_scene_that_is_measured_looks_like_another():
    assert dict(SPLITS) == {"train": 20_000, "val": 1_000, "test": 1_000}
    train, val, test = ([scene.sight for scene in scenes(split)] for split in SPLITS)
    assert len({*val, *test}) == 2_000
    assert not {*val, *test} & {*train}
    assert sorted(Counter(train).values())[-6:] == [1, 2, 2, 2, 2, 2], "five pairs"


def test_captions_and_pictures_of_the_package_are_those_of_the_scenes(written):
    data = load_dataset("demo", direction="text-to-image")
    documents, topics, qrels = list(data.documents()), list(data.topics()), list(data.qrels())
    assert [topic.text for topic in topics] == [caption for _, five in written for caption in five]
    assert [qrel.doc_id for qrel in qrels] == [document.doc_id for document in documents for _ in range(5)]
    assert [topic.query_id for topic in topics[4:6]] == ["test-00000-5", "test-00001-1"]
    assert documents[3].image.endswith("/images-v3-64px-test.tar::test-00003.png")
    assert open_image(documents[3].image).size == (64, 64)


def test_scenes_are_plausible():
    for split in ("val", "test"):
        for scene in scenes(split):
            ground = PLACES[scene.place].ground
            kinds = {thing.kind for thing in things(scene)}
            assert len(kinds) == len(things(scene)), "each kind once, so that captions are never ambiguous"
            assert not (scene.weather == "rainbow" and scene.time == "night")
            assert "boat" not in kinds or ground == "water"
            assert not {"car", "bus", "train"} & kinds or ground == "ground"
            if ground == "water" and scene.subject.kind in WORLD.people:
                assert (scene.relation, scene.landmark.kind) == ("in", "boat")
            if ground == "home" and scene.subject.kind == "fish":
                assert (scene.relation, scene.landmark.kind) == ("in", "bowl")


def said(caption):
    return set(re.findall(r"[a-z-]+", caption.lower()))


def test_captions_name_no_colour_their_scene_lacks(written):
    # Words with another meaning as well say nothing about colour.
    ambiguous = {"dark", "pale"}
    for scene, five in written:
        seen = {thing.colour for thing in things(scene)}
        for colour in HUES:
            names = set(HUES[colour].words) - ambiguous
            if colour not in seen:
                assert not any(names & said(caption) for caption in five), (scene, colour)


def test_captions_name_time_and_weather_truly(written):
    times = {
        "night": {"midnight", "moonlight", "moonlit", "stars", "starry"},
        "sunset": {"dusk", "sunset", "evening", "twilight", "nightfall"},
        "dawn": {"dawn", "sunrise", "daybreak", "morning"},
        "day": {"afternoon", "daylight", "sunny", "sunshine"},
    }
    weathers = {
        "rain": {"rain", "rainy", "wet", "drizzly", "downpour", "shower"},
        "fog": {"fog", "mist", "misty", "hazy"},
    }
    for scene, five in written:
        for table, fact in ((times, scene.time), (weathers, scene.weather)):
            for other, words in table.items():
                if other != fact:
                    assert not any(words & said(caption) for caption in five), (scene, five)
