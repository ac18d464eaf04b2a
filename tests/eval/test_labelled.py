"""Images of known classes: class folders, lists, files of classes, and what each refuses."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from eval.analyses.classes.labelled import (
    ImageClasses,
    Labelled,
    fold_label,
    read_classes,
    read_labelled,
    resolve_labels,
)
from lexvl_anserini.ground.errors import DataError, UsageError


def pictures(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / name)
    return folder


def classes_in(folder: Path, **contents: object) -> Path:
    path = folder / "classes.json"
    path.write_text(json.dumps(contents))
    return path


# --- classes --------------------------------------------------------------------------------------------------------


def test_labels_are_compared_without_case_and_punctuation():
    assert (
        fold_label("Apartment_Building/outdoor")
        == fold_label(" apartment-building outdoor")
        == "apartment building outdoor"
    )
    assert fold_label("F-16A/B") == "f 16a b" and fold_label("Hündchen") == "hündchen"


def test_prompts_have_every_name_in_every_template(tmp_path):
    found = read_classes(classes_in(tmp_path, classes=["cat", ["dog", "hound"]], templates=["a {}.", "{}s: {{x}} {}"]))
    assert found.labels == ("cat", "dog")
    assert found.prompts() == [
        ["a cat.", "cats: {{x}} cat"],
        ["a dog.", "dogs: {{x}} dog", "a hound.", "hounds: {{x}} hound"],
    ]
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
    ],
)
def test_other_files_of_classes_are_refused(tmp_path, contents, message):
    with pytest.raises(DataError, match=message):
        read_classes(classes_in(tmp_path, **contents))


def test_a_template_needs_a_place_for_the_name(tmp_path):
    path = classes_in(tmp_path, classes=["cat"], templates=["a photo of a {}.", "a photo"])
    with pytest.raises(UsageError, match="template 'a photo' has no {} for the name of a class"):
        read_classes(path)


def test_two_classes_of_one_label_are_refused():
    images = [Labelled("x.png", "dog")]
    twice = ImageClasses(("dog", "cat", "Dog"), (("dog",), ("cat",), ("hound",)))
    with pytest.raises(DataError, match="classes 1 and 3 have the same label 'Dog'"):
        resolve_labels("toy", "toy", images, twice)
    # Where data number the classes, the names may be equal, as two of ImageNet's are.
    assert resolve_labels("toy", "toy", [Labelled("x.png", 2)], twice).labels.tolist() == [2]


# --- folders and lists ----------------------------------------------------------------------------------------------


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


def test_a_class_folder_without_pictures_is_refused(tmp_path):
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


def test_images_of_unknown_classes_are_refused(tmp_path):
    root = pictures(tmp_path / "set", "cat/d.png", "hound/e.png", "hounds/f.png", "hounds/g.png")
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
    (tmp_path / "images.csv").write_text('"a, b.png",dog\n')
    assert read_labelled(tmp_path / "images.csv").images == [str(tmp_path / "a, b.png")]


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
