"""Images of known classes: class folders, lists, files of classes, and the sets of papers in their own layouts."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import pack_text
from PIL import Image
from scipy.io import savemat

from eval.analyses.classes.class_sets import (
    CLASS_SETS,
    CLASSES,
    ImageClasses,
    Labelled,
    fold_label,
    load_labelled,
    read_class_set,
    read_classes,
    read_labelled,
    read_sorted_folders,
    resolve_labels,
)
from lexvl_anserini.ground.errors import DataError, UsageError

# The number of classes of each set.
SIZES = {
    "aircraft": 100, "caltech101": 102, "cars": 196, "cifar10": 10, "cifar100": 100, "dtd": 47, "eurosat": 10,
    "flowers102": 102, "food101": 101, "imagenet": 1000, "pets": 37, "resisc45": 45, "sun397": 397, "svhn": 10,
}  # fmt: skip


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def loaded(name: str, folder: Path, split: str = "test") -> list[tuple[str, str]]:
    """(last two parts of the path, name of the class) of each image."""
    found = load_labelled(f"{name}:{folder}", split=split)
    assert found.name == name
    return [
        ("/".join(Path(image).parts[-2:]), found.classes.names[label][0])
        for image, label in zip(found.images, found.labels, strict=True)
    ]


def test_every_set_of_the_papers_has_its_classes():
    assert SIZES.keys() == CLASS_SETS.keys()
    assert {path.stem for path in CLASSES.glob("*.json")} == SIZES.keys()
    for name, size in SIZES.items():
        classes = read_class_set(name)
        assert len(classes) == size, name
        if name != "imagenet":  # two pairs of its classes have one name; they are known by the order of their folders
            assert len(classes.numbers) == size
    assert read_class_set("imagenet").labels[657] == read_class_set("imagenet").labels[744] == "missile"
    assert len(read_class_set("imagenet").templates) == 80
    means_over_classes = {name for name, row in CLASS_SETS.items() if row.per_class}
    assert means_over_classes == {"aircraft", "caltech101", "flowers102", "pets"}, "as CLIP's"


@pytest.mark.parametrize(
    ("name", "split", "file", "lines", "found"),
    [
        ("pets", "test", "annotations/test.txt", "pug_7 15 2 9", ("images/pug_7.jpg", "pug")),
        ("pets", "train", "annotations/trainval.txt", "pug_1 30 2 20", ("images/pug_1.jpg", "pug")),
        # Also with the folder that the archive unpacks to.
        ("food101", "test", "food-101/meta/test.txt", "hot_dog/1011328", ("hot_dog/1011328.jpg", "hot dog")),
        ("aircraft", "test", "data/images_variant_test.txt", "1514 F-16A/B", ("images/1514.jpg", "F-16A/B")),
        ("sun397", "test", "Testing_01.txt", "/a/abbey/sun_a.jpg", ("abbey/sun_a.jpg", "abbey")),
        ("dtd", "train", "labels/val1.txt", "polka-dotted/1.jpg", ("polka-dotted/1.jpg", "polka-dotted")),
    ],
)
def test_sets_with_lists_of_files(tmp_path, name, split, file, lines, found):
    write(tmp_path / file, f"{lines}\n")
    assert loaded(name, tmp_path, split) == [found]


def test_sets_in_class_folders(tmp_path):
    pictures(tmp_path / "2750", "SeaLake/SeaLake_1.png", "AnnualCrop/AnnualCrop_2.png")
    crop, lake = ("AnnualCrop/AnnualCrop_2.png", "annual crop land"), ("SeaLake/SeaLake_1.png", "lake or sea")
    assert loaded("eurosat", tmp_path) == [crop, lake]
    pictures(tmp_path / "101_ObjectCategories", "BACKGROUND_Google/1.png", "Faces_easy/2.png", "yin_yang/3.png")
    names = [name for _, name in loaded("caltech101", tmp_path)]
    assert names == ["background", "centered face", "yin and yang symbol"]
    with pytest.raises(DataError, match="eurosat has no split 'train'; make a folder or a list of its images"):
        load_labelled(f"eurosat:{tmp_path}", split="train")


def test_class_folders_instead_of_a_sets_own_files(tmp_path, monkeypatch):
    pictures(tmp_path, "test/Acura TL Type-S 2008/1.png", "train/smart_fortwo_Convertible_2012/2.png")
    assert loaded("cars", tmp_path) == [("Acura TL Type-S 2008/1.png", "Acura TL Type-S 2008")]
    [(_, name)] = loaded("cars", tmp_path, "train")
    assert name == "smart fortwo Convertible 2012"
    # A path is no set.
    pictures(tmp_path / "pets", "pug/1.png")
    monkeypatch.chdir(tmp_path)
    assert load_labelled("./pets").classes.labels == ("pug",)


def test_imagenet_is_known_by_the_order_of_its_folders(tmp_path):
    pictures(tmp_path / "val", "n01443537/1.png", "n01440764/2.png")
    found = read_sorted_folders([tmp_path / "val"], tmp_path, "test", count=2)
    assert [(Path(one.image).name, one.label) for one in found] == [("2.png", 0), ("1.png", 1)]
    with pytest.raises(DataError, match="val: 2 class folders, expected 1,000; name this folder itself"):
        load_labelled(f"imagenet:{tmp_path}")
    named = read_classes(classes_in(tmp_path, classes={"n01440764": "tench", "n01443537": "goldfish"}))
    assert load_labelled(str(tmp_path / "val"), named).labels.tolist() == [0, 1]


def test_cifar_in_its_binary_version(tmp_path):
    red, green = (np.repeat(np.uint8(planes), 1024) for planes in ([255, 0, 0], [0, 255, 0]))
    (tmp_path / "test_batch.bin").write_bytes(bytes([5, *red, 8, *green]))
    found = load_labelled(f"cifar10:{tmp_path}")
    assert [found.classes.names[label][0] for label in found.labels] == ["dog", "ship"]
    assert [image.getpixel((31, 0)) for image in found.images] == [(255, 0, 0), (0, 255, 0)]

    (tmp_path / "test.bin").write_bytes(bytes([0, 99, *red]))
    assert load_labelled(f"cifar100:{tmp_path}").labels.tolist() == [99]
    (tmp_path / "test.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="test.bin: 3 bytes, expected a multiple of 3,074"):
        load_labelled(f"cifar100:{tmp_path}")


def test_sets_in_matlab_files(tmp_path):
    rows = np.array([("00001.jpg", 196), ("00002.jpg", 1)], dtype=[("fname", object), ("class", int)])
    savemat(tmp_path / "cars_test_annos_withlabels.mat", {"annotations": rows})
    assert loaded("cars", tmp_path) == [
        ("cars_test/00001.jpg", "smart fortwo Convertible 2012"),
        ("cars_test/00002.jpg", "AM General Hummer SUV 2000"),
    ]
    savemat(tmp_path / "imagelabels.mat", {"labels": [[77, 1, 102]]})
    savemat(tmp_path / "setid.mat", {"trnid": [[3]], "valid": [[1]], "tstid": [[2]]})
    assert loaded("flowers102", tmp_path) == [("jpg/image_00002.jpg", "pink primrose")]
    assert [name for _, name in loaded("flowers102", tmp_path, "train")] == ["blackberry lily", "passion flower"]
    pixels = np.zeros((32, 32, 3, 2), np.uint8)
    pixels[..., 2, 1] = 255
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": [[10], [3]]})
    found = load_labelled(f"svhn:{tmp_path}")
    assert found.labels.tolist() == [0, 3] and found.images[1].getpixel((0, 0)) == (0, 0, 255)
    (tmp_path / "setid.mat").write_bytes(b"no matlab")
    with pytest.raises(DataError, match="setid.mat: cannot be read as MATLAB's tstid"):
        load_labelled(f"flowers102:{tmp_path}")


def test_what_is_missing_or_of_another_form_is_named(tmp_path):
    with pytest.raises(DataError, match="missing: annotations/test.txt .* or class folders in test or val"):
        load_labelled("pets", data_dir=str(tmp_path))
    write(tmp_path / "annotations/test.txt", "pug_1 30 2 20\npug 30\n")
    with pytest.raises(DataError, match=r"test.txt line 2: 'pug 30', expected a line as"):
        load_labelled(f"pets:{tmp_path}")


def pictures(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / name)
    return folder


def classes_in(folder: Path, **contents: object) -> Path:
    path = folder / "classes.json"
    path.write_text(json.dumps(contents))
    return path


def test_labels_are_compared_without_case_and_punctuation_and_name_one_class():
    folded = {fold_label(label) for label in ("Apartment_Building/outdoor", " apartment-building outdoor")}
    assert folded == {"apartment building outdoor"}
    assert fold_label("F-16A/B") == "f 16a b" and fold_label("Hündchen") == "hündchen"
    # Two classes of one label are refused.
    images = [Labelled("x.png", "dog")]
    twice = ImageClasses(("dog", "cat", "Dog"), (("dog",), ("cat",), ("hound",)))
    with pytest.raises(DataError, match="classes 1 and 3 have the same label 'Dog'"):
        resolve_labels("toy", "toy", images, twice)
    # Where data number the classes, the names may be equal, as two of ImageNet's are.
    assert resolve_labels("toy", "toy", [Labelled("x.png", 2)], twice).labels.tolist() == [2]


def test_prompts_have_every_name_in_every_template(tmp_path):
    found = read_classes(classes_in(tmp_path, classes=["cat", ["dog", "hound"]], templates=["a {}.", "{}s: {{x}} {}"]))
    assert found.labels == ("cat", "dog")
    dogs = ["a dog.", "dogs: {{x}} dog", "a hound.", "hounds: {{x}} hound"]
    assert found.prompts() == [["a cat.", "cats: {{x}} cat"], dogs]
    assert read_classes(classes_in(tmp_path, classes={"n1": "tench"})).prompts() == [["a photo of a tench."]]
    assert ImageClasses.read_folders(["big_dog"]).names == (("big dog",),)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"classes": []}, "no classes"),
        ({"templates": ["a {}"]}, "no list or object `classes`"),
        ({"classes": ["a", 3]}, "class 3, expected a name or a list of names"),
        ({"classes": {"a": []}}, r"class \[\], expected a name"),
        ({"classes": ["a"], "templates": "a {}"}, "templates 'a {}', expected a list of texts"),
        ({"classes": ["a"], "names": []}, "key 'names', expected classes and templates"),
        ({"classes": ["a"], "templates": ["a {}", "b"]}, "template 'b' has no {}"),
    ],
)
def test_other_files_of_classes_are_refused(tmp_path, contents, message):
    with pytest.raises((DataError, UsageError), match=message):
        read_classes(classes_in(tmp_path, **contents))


def test_class_folders(tmp_path):
    root = pictures(tmp_path / "set", "big_dog/a b.png", "big_dog/more/c.png", "cat/d.png", ".hidden/e.png")
    (root / "cat/notes.md").touch()
    found = read_labelled(root)
    assert (found.name, found.classes.labels) == ("set", ("big_dog", "cat"))
    assert [Path(image).name for image in found.images] == ["a b.png", "c.png", "d.png"]
    assert found.labels.tolist() == [0, 0, 1]

    named = ImageClasses(("cat", "fish", "Big Dog"), (("cat",), ("fish",), ("big dog",)))
    assert read_labelled(root, named).labels.tolist() == [2, 2, 0]

    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(root / "cat", "cat")
        tar.add(root / "big_dog", "big_dog")
    assert read_labelled(tmp_path / "set.tar").labels.tolist() == [0, 0, 1]


def test_folders_without_pictures_and_unknown_classes_are_refused(tmp_path):
    root = pictures(tmp_path / "set", "cat/d.png")
    (root / "dog").mkdir()
    (root / "dog/readme.txt").touch()
    with pytest.raises(DataError, match="set/dog: a class folder without pictures"):
        read_labelled(root)
    pictures(root, "e.png")
    with pytest.raises(DataError, match="set/e.png: in no class folder"):
        read_labelled(root)
    with pytest.raises(DataError, match="none.csv: cannot be read"):
        read_labelled(tmp_path / "none.csv")
    # Images of unknown classes.
    root = pictures(tmp_path / "other", "cat/d.png", "hound/e.png", "hounds/f.png", "hounds/g.png")
    known = ImageClasses(("cat", "hound"), (("cat",), ("hound",)))
    with pytest.raises(DataError, match="2 images of 1 classes .* did you mean 'hound'"):
        read_labelled(root, known)
    with pytest.raises(DataError, match="1 have 7"):
        resolve_labels("toy", "toy", [Labelled("x.png", 7)], known)


def test_lists_of_images(tmp_path):
    (tmp_path / "images.tsv").write_text("\ufeffimage\tclass\r\na, b.png\tdog\r\n\r\n/x/c.png\tcat\r\n")
    found = read_labelled(tmp_path / "images.tsv")
    assert found.images == [str(tmp_path / "a, b.png"), "/x/c.png"]
    assert found.labels.tolist() == [1, 0]
    (tmp_path / "images.csv").write_text('Image,Class\r"a, b.png",dog\r')
    assert read_labelled(tmp_path / "images.csv").images == [str(tmp_path / "a, b.png")]
    for content, told in (('a.png,dog\nb.png,"cat\nc.png,dog\n', "unexpected end"), ("<html>", "a page of HTML")):
        with pytest.raises(DataError, match=told):
            read_labelled(pack_text(tmp_path / "images.csv", content))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png\tcat\nb.png", "line 2: 1 columns, expected 2"),
        ("a.png\t\n", "line 1: the class is empty"),
        ("a.png\tcat\na.png\tdog\n", "line 2: image 'a.png' occurs twice"),
        ("image\tclass\n", "no images"),
    ],
)
def test_malformed_lists_are_refused(tmp_path, text, message):
    (tmp_path / "images.tsv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_labelled(tmp_path / "images.tsv")
