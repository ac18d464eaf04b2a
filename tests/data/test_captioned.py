import json
import re
import shutil
from collections import Counter
from itertools import islice

import pytest
from corpus_folders import captioned_image as image
from corpus_folders import gallery_of, karpathy_folder, pack_text, tar_of
from world.catalogue import world
from world.grammar import captions
from world.pictures import draw_split
from world.scenes import SPLITS, scenes

from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.corpora.captioned import KNOWN, Caption, CaptionedImage, read_karpathy
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.records import Document, Qrel, Topic

TINY = [
    image(1),
    image(2, texts="pqrstu"),
    image(3, "train"),
    image(4, "restval"),
    image(5, "val", texts=("only", "two")),
]


def everything(data):
    return list(data.documents()), list(data.topics()), list(data.qrels())


def test_directions(tmp_path):
    """Text-to-image is the default; text-to-text needs no pictures."""
    root, folder = karpathy_folder(tmp_path, "coco", TINY, pictures=False), tmp_path / "coco/images"
    data = load_dataset("coco", data_dir=root, direction="text-to-text")
    documents, topics, qrels = everything(data)
    assert documents == [Document("1", text="a b c d"), Document("2", text="p q r s")]
    assert topics == [Topic("14", "e"), Topic("24", "t")]
    assert qrels == [Qrel("14", "1", 1), Qrel("24", "2", 1)]
    few = load_dataset("coco/val", data_dir=root, direction="text-to-text")  # an image of two captions
    assert everything(few) == ([Document("5", text="only two")], [], [])
    data = load_dataset("coco", data_dir=karpathy_folder(tmp_path, "coco", TINY))
    assert (data.name, data.split, data.direction, data.remove_query) == ("coco", "test", "text-to-image", False)
    documents, topics, qrels = everything(data)
    assert documents == [Document(name, image=f"{folder}/{name}.jpg") for name in "12"]
    assert topics[:2] == [Topic("10", "a"), Topic("11", "b")] and len(topics) == 5 + 6
    assert qrels[4:6] == [Qrel("14", "1", 1), Qrel("20", "2", 1)]
    documents, topics, qrels = everything(load_dataset("coco", data_dir=root, direction="image-to-text"))
    assert documents[5:7] == [Document("20", text="p"), Document("21", text="q")]
    assert topics == [Topic(name, image=f"{folder}/{name}.jpg") for name in "12"]
    assert [qrel.doc_id for qrel in qrels if qrel.query_id == "2"] == ["20", "21", "22", "23", "24", "25"]


def test_directions_of_folders_and_unknown_ones(tmp_path):
    with pytest.raises(UnknownName, match="unknown direction 'text-to-imgae'; did you mean 'text-to-image'"):
        load_dataset("coco", data_dir=karpathy_folder(tmp_path, "coco", TINY), direction="text-to-imgae")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "t"}')
    assert load_dataset(f"beir:{tmp_path}", direction="text-to-text").direction == "text-to-text"
    with pytest.raises(UsageError, match="has no direction 'text-to-image'; it has text-to-text"):
        load_dataset(f"beir:{tmp_path}", direction="text-to-image")
    with pytest.raises(UnknownName, match="unknown direction 'text-to-imgae'"):
        load_dataset(f"folder:{tmp_path}", direction="text-to-imgae")
    gallery_of(tmp_path, "texts/a.txt", "photos/a.jpg")
    assert load_dataset(f"folder:{tmp_path}/texts").direction == "text-to-text"
    assert load_dataset(f"folder:{tmp_path}/photos").direction == "text-to-image"
    assert load_dataset(f"folder:{tmp_path}/photos", direction="text-to-text").direction == "text-to-text"


@pytest.mark.parametrize(
    ("split", "expected"), [("train", ["3", "4"]), ("train-only", ["3"]), ("restval", ["4"]), ("val", ["5"])]
)
def test_splits(tmp_path, split, expected):
    root = karpathy_folder(tmp_path, "coco", TINY)
    for data in (load_dataset("coco", split, root), load_dataset(f"coco/{split}", data_dir=root)):
        assert (data.name, data.split) == ("coco", split)
        assert [document.doc_id for document in data.documents()] == expected
    with pytest.raises(DataError, match="no image of split 'tset'; splits there: restval, test, train, val"):
        load_dataset("coco", "tset", root)


@pytest.mark.parametrize("folder", ["flickr8k", "captions", "."])
def test_where_the_json_may_be(tmp_path, folder):
    root = karpathy_folder(tmp_path, "flickr8k", TINY, folder=folder)
    assert len(list(load_dataset("flickr8k", data_dir=root).documents())) == 2


def two(first, second):
    paths = [path.rpartition("/") for path in (first, second)]
    return [image(n, filepath=path[0], filename=path[2]) for n, path in enumerate(paths, start=1)]


COCO = two("val2014/COCO_val2014_1.jpg", "train2014/COCO_train2014_2.jpg")


@pytest.mark.parametrize(
    ("images", "files", "found"),
    [
        (two("val2014/1.jpg", "train2014/2.jpg"), ["val2014/1.jpg", "train2014/2.jpg"], [0, 1]),
        (two("b/x.jpg", "a/x.jpg"), ["images/b/x.jpg", "images/a/x.jpg"], [0, 1]),
        ([image(1)], ["images/1.jpg", "images/0/1.jpg"], [0]),
        # Put into one folder, at its top and below.
        (COCO, ["images/COCO_val2014_1.jpg", "images/COCO_train2014_2.jpg"], [0, 1]),
        (COCO, ["images/all/COCO_val2014_1.jpg", "images/all/COCO_train2014_2.jpg"], [0, 1]),
        # Not there, or another picture.
        ([image(1, filepath="val2014")], ["train2014/1.jpg"], r"1 of 1 images are not in .*: val2014/1\.jpg$"),
        ([image(1, filepath="val2014")], ["train2014/1.jpg", "val2014/2.jpg"], "images are not in"),
        ([image(1, filepath="val2014")], ["images/train2014/1.jpg"], r"1 of 1 images are not in .*: val2014/1\.jpg$"),
        (two("a/x.jpg", "b/x.jpg"), ["images/x.jpg"], r"2 of 2 images are not in .*: a/x\.jpg, b/x\.jpg$"),
        ([image(1, filepath="c", filename="x.jpg")], ["images/x.jpg", "images/d/x.jpg"], "images are not in"),
        ([image(number) for number in range(1, 9)], ["images/1.jpg"], "images are not in"),
    ],
)
def test_where_pictures_are_found(tmp_path, images, files, found):
    root = karpathy_folder(tmp_path, "coco", images, pictures=False)
    gallery_of(tmp_path / "coco", *files)
    documents = load_dataset("coco", data_dir=root).documents()
    if isinstance(found, str):
        with pytest.raises(DataError, match=found):
            next(documents)
    else:
        assert [document.image for document in documents] == [f"{tmp_path}/coco/{files[place]}" for place in found]


def test_images_in_several_tars(tmp_path, caplog):
    root = karpathy_folder(tmp_path, "coco", TINY, pictures=False)
    tar_of(tmp_path / "coco" / "one.tar", {"deep/down/1.jpg": b""})
    tar_of(tmp_path / "coco" / "two.TAR", {"./2.jpg": b""})
    found = [document.image for document in load_dataset("coco", data_dir=root).documents()]
    assert found == [f"{tmp_path}/coco/one.tar::deep/down/1.jpg", f"{tmp_path}/coco/two.TAR::2.jpg"]
    caplog.set_level("INFO")
    for name in ("._one.tar", "b.tar.gz", "a.TGZ"):
        (tmp_path / "coco" / name).write_bytes(b"")
    assert [document.image for document in load_dataset("coco", data_dir=root).documents()] == found
    assert caplog.messages == [
        f"{tmp_path}/coco: skipped, hidden: 1 (._one.tar)",
        f"{tmp_path}/coco: skipped, no uncompressed TAR (unpack it): 2 (a.TGZ, b.tar.gz)",
    ]


@pytest.mark.parametrize("name", ["coco", "flickr30k", "flickr8k"])
def test_what_is_not_on_the_disk(tmp_path, name):
    with pytest.raises(DataError, match="^[^\n]*caption_datasets.zip[^\n]*$") as told:
        load_dataset(name, data_dir=str(tmp_path))
    assert f"{tmp_path}/{name}/dataset_{name}.json" in str(told.value)
    root = karpathy_folder(tmp_path, name, TINY, pictures=False)
    with pytest.raises(DataError, match="has its captions but no") as told:
        next(load_dataset(name, data_dir=root).documents())
    for folder in ("images", *KNOWN[name].folders):
        assert f"{tmp_path}/{name}/{folder}/" in str(told.value)
    assert next(load_dataset(name, data_dir=root).qrels())  # what needs no picture asks for none


def test_a_file_of_ones_own(tmp_path):
    karpathy_folder(tmp_path, "mine", TINY)
    path = tmp_path / "mine" / "dataset_mine.json"
    tar_of(tmp_path / "pictures.tar", {"1.jpg": b"", "2.jpg": b""})
    beside = load_dataset(f"karpathy:{path}")
    assert next(beside.documents()).image == f"{tmp_path}/mine/images/1.jpg"
    named = load_dataset(f"karpathy:{path},{tmp_path}/pictures.tar")
    assert named.name == f"karpathy:{path},{tmp_path}/pictures.tar"
    assert next(named.documents()).image == f"{tmp_path}/pictures.tar::1.jpg"
    folder = load_dataset(f"karpathy:{path},{tmp_path}/mine/images", "val")
    assert [document.doc_id for document in folder.documents()] == ["5"]
    shutil.rmtree(tmp_path / "mine/images")
    with pytest.raises(DataError, match="no images beside .*or name them: karpathy:"):
        next(load_dataset(f"karpathy:{path}").documents())
    with pytest.raises(DataError, match="no such folder or tar archive of images"):
        load_dataset(f"karpathy:{path},{tmp_path}/absent")
    assert next(load_dataset(f"karpathy:{path}", direction="text-to-text").topics()) == Topic("14", "e")


def karpathy(tmp_path, text):
    path = tmp_path / "dataset.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_karpathy(path))


def test_other_keys_blanks_and_unicode(tmp_path):
    record = image(1, texts=(" Käse 日本 \n",), filepath="val2014")
    text = '\ufeff { "info" : {"images": []} ,\n "images" : [ ' + json.dumps(record) + " ] }\n"
    expected = CaptionedImage("1", "test", "val2014/1.jpg", (Caption("10", "Käse 日本"),))
    assert karpathy(tmp_path, text) == [expected]
    assert list(read_karpathy(pack_text(tmp_path / "dataset.json.gz", text))) == [expected]


def coco(annotation):
    return f'{{"images": [{{"id": 1, "file_name": "1.jpg"}}], "annotations": [{annotation}]}}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "malformed JSON .*Expecting value"),
        ('{"images": [{"imgid": 1,}]}', "malformed JSON .*line 1 column"),
        ('{"images": []} {}', "malformed JSON .*Extra data"),
        ('{"images": [], "images": []}', "key 'images' is twice in an object"),
        ('{"images": [{}]}', "image 1 .*: no 'split'; keys found: none"),
        ('{"dataset": "x"}', "no 'images'; keys found: dataset"),
        ('{"images": []}', "no image in it"),
        (b"PK\3\4", r"dataset.json: a zip archive; unpack it"),
        ('[{"image": "1.jpg", "caption": "a"}, 3]', "row 2: 3 is not an object"),
        ('[{"image": "1.jpg", "question": "a"}]', "row 1: no 'caption'; keys found: image, question"),
        (coco('{"image_id": 1, "bbox": []}'), "annotation 1: no 'caption'; keys found: image_id, bbox; expected the"),
        (coco("").replace("[]", "null"), "keys found: none; expected the captions of COCO, captions_<split>"),
        (coco('{"image_id": 2, "id": 1, "caption": "a"}'), "annotation 1: image_id 2 is of no image"),
        ('{"images": [{"id": 1, "file_name": "1"}, {"id": 1, "file_name": "2"}], "annotations": []}', "id 1 occurs"),
        ('{"images": [3]}', "image 1: 3 is not an object"),
        ('{"images": {}}', "'images' is not a list"),
        (b'{"images": "\xff"}', "not valid UTF-8"),
        (json.dumps({"images": [image(1, split=3)]}), r"image 1 \(1\.jpg\): 'split' is 3, expected a string"),
        (json.dumps({"images": [image(1), image(2, sentences=4)]}), r"image 2 \(2\.jpg\): 'sentences' is not a list"),
        (json.dumps({"images": [image(1, imgid="a b")]}), "white space in id 'a b'"),
        (json.dumps({"images": [image(1, texts=(None,))]}), "caption 1: 'raw' is None, expected a string"),
    ],
)
def test_malformed_files(tmp_path, text, problem):
    with pytest.raises(DataError, match=problem) as told:
        karpathy(tmp_path, text)
    assert str(told.value).startswith(str(tmp_path))


PAIRS = [{"image": "val2014/7.jpg", "caption": ["a", "b"]}, {"image": "2.jpg", "caption": "c"}]
COCO = {
    "annotations": [{"image_id": 7, "id": 8, "caption": "a"}, {"image_id": 7, "id": 3, "caption": "b"}],
    "images": [{"id": 7, "file_name": "7.jpg", "license": 1}],
}


FIRST = ("0", "val2014/7.jpg", {"0": "a", "1": "b"})


@pytest.mark.parametrize(
    ("name", "content", "split", "images"),
    [
        ("coco_karpathy_test", PAIRS, "test", [FIRST, ("1", "2.jpg", {"2": "c"})]),
        ("train", [*PAIRS, PAIRS[1]], "train", [FIRST, ("1", "2.jpg", {"2": "c", "3": "c"})]),
        ("captions_val2014", COCO, "val", [("7", "7.jpg", {"8": "a", "3": "b"})]),
    ],
)
def test_lists_of_blip_and_annotations_of_coco_are_of_one_split(tmp_path, caplog, name, content, split, images):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(content))
    found = [(one.image_id, one.file, {c.caption_id: c.text for c in one.captions}) for one in read_karpathy(path)]
    assert found == images
    data = load_dataset(f"karpathy:{path}", direction="text-to-text")
    assert data.split == split and [document.doc_id for document in data.documents()] == [one[0] for one in images]
    assert ("papers measure the splits of Karpathy's" in caplog.text) is (content is COCO)
    with pytest.raises(DataError, match=f"no image of split 'dev'; splits there: {split}"):
        load_dataset(f"karpathy:{path}", "dev")


def test_ids_that_come_twice(tmp_path):
    for second, told in ((image(1, first=50), "imgid 1 occurs"), (image(2, first=14), "sentid 14 occurs")):
        with pytest.raises(DataError, match=told):
            load_dataset("coco", data_dir=karpathy_folder(tmp_path, "coco", [image(1), second]))


def test_a_changed_file_is_read_again(tmp_path):
    root = karpathy_folder(tmp_path, "coco", TINY)
    load_dataset("coco", data_dir=root)
    karpathy_folder(tmp_path, "coco", [image(77, texts=("new",))])
    assert [topic.text for topic in load_dataset("coco", data_dir=root).topics()] == ["new"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "split", "images", "sentences", "first"),
    [
        ("coco", "test", 5000, 25010, "A man with a red helmet on a small moped on a dirt road."),
        ("flickr30k", "test", 1000, 5000, "The man with pierced ears is wearing glasses and an orange hat ."),
        ("flickr8k", "val", 1000, 5000, "A child and a woman are at waters edge in a big city ."),
        ("flickr8k", "train", 6000, 30000, "A child in a pink dress is climbing up a set of stairs in an entry way ."),
    ],
)
def test_real_captions(shared, name, split, images, sentences, first):
    data = load_dataset(name, split, str(shared / "data"), direction="text-to-text")
    documents, topics, qrels = everything(data)
    assert len(documents) == len(topics) == len(qrels) == images
    assert documents[0].text.startswith(first)
    path = next((shared / "data").glob(f"*/dataset_{name}.json"))
    assert sum(len(one.captions) for one in read_karpathy(path, frozenset({split}))) == sentences


@pytest.mark.shared
def test_real_images(shared):
    root = str(shared / "data")
    data = load_dataset("flickr8k/val", data_dir=root)
    assert (len(list(data.documents())), len(list(data.topics()))) == (1000, 5000)
    for document in islice(data.documents(), 3):
        assert open_image(document.image).size == (128, 128)
    with pytest.raises(DataError, match="no image of split 'test'; splits there: train, val"):
        load_dataset("flickr8k", data_dir=root)


WORLD = world()


@pytest.fixture(scope="module")
def written():
    return [(scene, captions(scene)) for scene in scenes("test")]


def things(scene):
    return [thing for thing in (scene.subject, scene.landmark, scene.backdrop) if thing]


@pytest.mark.parametrize(("name", "split"), [("demo/val", None), ("demo", "val"), ("demo/val", "val")])
def test_splits_of_the_demo(name, split, tmp_path, monkeypatch):
    monkeypatch.setitem(SPLITS, "val", 3)
    with pytest.raises(DataError, match="val.json: not there; python tools/world draw val, in a checkout, draws the"):
        load_dataset(name, split, str(tmp_path), direction="text-to-text")
    draw_split("val", tmp_path / "demo")
    data = load_dataset(name, split, str(tmp_path), direction="text-to-text")
    assert (data.name, data.split) == ("demo", "val")
    assert next(data.documents()).doc_id == "val-00000"
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
    documents, topics, qrels = everything(data)
    assert (data.name, data.split, data.remove_query) == ("demo", "test", False)
    assert check_corpus(data.documents, "demo").documents == 1000
    assert [topic.text for topic in topics] == [caption for _, five in written for caption in five]
    assert [qrel.doc_id for qrel in qrels] == [document.doc_id for document in documents for _ in range(5)]
    assert [topic.query_id for topic in topics[4:6]] == ["test-00000-5", "test-00001-1"]
    assert documents[3].image.endswith("/images-v3-64px-test.tar::test-00003.png")
    assert open_image(documents[3].image).size == (64, 64)


def test_scenes_are_plausible():
    for split in ("val", "test"):
        for scene in scenes(split):
            ground = WORLD.places[scene.place].ground
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
    for scene, five in written:
        lacking = WORLD.colours.hues.keys() - {thing.colour for thing in things(scene)}
        for colour in lacking:  # words with another meaning as well say nothing about colour
            names = set(WORLD.colours.hues[colour].words) - {"dark", "pale"}
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
