"""The image sets of papers: their own layouts on a few files, class folders instead, and their lists of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from eval.analyses.classes.class_sets import CLASS_SETS, CLASSES, load_labelled, read_class_set, read_sorted_folders
from eval.analyses.classes.labelled import read_classes
from lexvl_anserini.ground.errors import DataError
from tests.eval.test_labelled import classes_in, pictures

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


def test_means_over_classes_are_those_of_clip():
    assert {n for n, row in CLASS_SETS.items() if row.per_class} == {"aircraft", "caltech101", "flowers102", "pets"}


@pytest.mark.parametrize(
    ("name", "split", "file", "lines", "found"),
    [
        (
            "pets",
            "test",
            "annotations/test.txt",
            "basset_hound_7 15 2 9",
            ("images/basset_hound_7.jpg", "basset hound"),
        ),
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


def test_a_line_of_another_form_is_refused(tmp_path):
    write(tmp_path / "annotations/test.txt", "pug_1 30 2 20\npug 30\n")
    with pytest.raises(DataError, match=r"test.txt line 2: 'pug 30', expected a line as"):
        load_labelled(f"pets:{tmp_path}")


def test_sets_in_class_folders(tmp_path):
    pictures(tmp_path / "2750", "SeaLake/SeaLake_1.png", "AnnualCrop/AnnualCrop_2.png")
    assert loaded("eurosat", tmp_path) == [
        ("AnnualCrop/AnnualCrop_2.png", "annual crop land"),
        ("SeaLake/SeaLake_1.png", "lake or sea"),
    ]
    pictures(tmp_path / "101_ObjectCategories", "BACKGROUND_Google/1.png", "Faces_easy/2.png", "yin_yang/3.png")
    assert [name for _, name in loaded("caltech101", tmp_path)] == [
        "background",
        "centered face",
        "yin and yang symbol",
    ]
    with pytest.raises(DataError, match="eurosat has no split 'train'; make a folder or a list of its images"):
        load_labelled(f"eurosat:{tmp_path}", split="train")


def test_class_folders_instead_of_a_sets_own_files(tmp_path):
    pictures(tmp_path, "test/Acura TL Type-S 2008/1.png", "train/smart_fortwo_Convertible_2012/2.png")
    assert loaded("cars", tmp_path) == [("Acura TL Type-S 2008/1.png", "Acura TL Type-S 2008")]
    assert loaded("cars", tmp_path, "train") == [
        ("smart_fortwo_Convertible_2012/2.png", "smart fortwo Convertible 2012")
    ]


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


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="missing: annotations/test.txt .* or class folders in test or val"):
        load_labelled("pets", data_dir=str(tmp_path))


def test_a_path_is_no_set(tmp_path, monkeypatch):
    pictures(tmp_path / "pets", "pug/1.png")
    monkeypatch.chdir(tmp_path)
    assert load_labelled("./pets").classes.labels == ("pug",)
