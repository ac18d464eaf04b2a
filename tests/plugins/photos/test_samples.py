"""Sample photos of installed packages: what is read, what is left out, and that licences are those of these files."""

import hashlib
import sys
from pathlib import Path

import pytest
from PIL import Image

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.lines import log_once
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_plugins.photos import samples
from lexvl_plugins.photos.samples import SAMPLES, Sample

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    package = tmp_path / "some_pictures"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('nothing needs to be imported')")
    for name, colour in (("cat.png", "red"), ("dog.png", "blue")):
        Image.new("RGB", (2, 1), colour).save(package / name)
    digest = hashlib.sha256((package / "cat.png").read_bytes()).hexdigest()[:16]
    rows = (
        Sample("black cat", "some_pictures", "cat.png", digest, "CC0", "Ann"),
        Sample("dog", "some_pictures", "dog.png", digest, "CC0", "Ann"),
        Sample("owl", "some_pictures", "owl.png", digest, "CC0", "Ann"),
        Sample("yak", "no_pictures", "yak.png", digest, "CC0", "Ann"),
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(samples, "SAMPLES", rows)
    log_once.cache_clear()
    return package


def test_known_pictures_are_documents(installed, caplog):
    caplog.set_level("INFO")
    dataset = load_dataset("samples")
    assert (dataset.direction, dataset.split) == ("text-to-image", "")
    [cat] = dataset.documents()
    assert (cat.doc_id, cat.title, cat.image) == ("black-cat", "black cat", str(installed / "cat.png"))
    assert cat.metadata == {"package": "some_pictures", "file": "cat.png", "licence": "CC0", "credit": "Ann"}
    assert "other pictures than those known: dog (some_pictures), owl (some_pictures), yak (no_pictures)" in caplog.text
    assert "some_pictures" not in sys.modules


def test_no_picture_is_an_error(installed):
    (installed / "cat.png").unlink()
    with pytest.raises(DataError, match="no package has one of the pictures; pip install scikit-learn scikit-image"):
        list(load_dataset("samples").documents())


@pytest.mark.parametrize("read", ["topics", "qrels"])
def test_there_are_no_captions(read):
    with pytest.raises(DataError, match="samples has no captions and no judgements; search it with --query"):
        getattr(load_dataset("samples"), read)()


def test_one_name_one_direction():
    with pytest.raises(DataError, match="the sample photos have one name, samples, and no splits"):
        load_dataset("samples/cats")
    with pytest.raises(UsageError, match="samples has no direction 'image-to-text'"):
        load_dataset("samples", direction="image-to-text")


def test_the_table_is_in_the_order_of_ids_and_names_free_licences():
    ids = [sample.doc_id for sample in SAMPLES]
    assert ids == sorted(set(ids))
    assert {sample.licence for sample in SAMPLES} == {"CC BY 2.0", "CC0", "public domain"}
    assert all(sample.credit and len(sample.sha256) == 16 for sample in SAMPLES)


def test_the_page_names_them_with_their_credits():
    rows = [line.split(" | ") for line in (ROOT / "docs/corpora.md").read_text().splitlines() if line.startswith("| ")]
    told = {(row[0].strip("| "), row[2].strip(" |")) for row in rows if len(row) == 3}
    assert {(sample.doc_id, f"{sample.licence}, {sample.credit}") for sample in SAMPLES} <= told


def test_pictures_of_required_packages_are_found():
    found = {document.doc_id: document for document in load_dataset("samples").documents()}
    assert {"admiral", "flower", "palace"} <= found.keys()
    assert open_image(found["flower"].image).size == (640, 427)
