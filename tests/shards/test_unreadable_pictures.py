"""Pictures that cannot be read while a corpus is encoded: they end the command, or are skipped and listed."""

import struct
import zlib

import numpy as np
import pytest
from byte_towers import tree
from PIL import Image
from word_towers import PictureTower, WordTower, encode, lines, model_of, rows_of, same_as_fresh

from lexvl_anserini.data.pictures import images
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.ground.errors import FAIL, ArtefactError, DataError, UsageError
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards import writing
from lexvl_anserini.shards.encoding import draw_sample
from lexvl_anserini.shards.layout import Layout


class DensePictureTower(PictureTower):
    kind = "dense"


PICTURES, DENSE_PICTURES = model_of(PictureTower()), model_of(DensePictureTower())

# What is wrong with the pictures of that number; all others are in order.
BROKEN = {3: "cut off", 4: "no picture", 9: "empty", 17: "a bomb", 25: "not there"}


@pytest.fixture
def pictured(tmp_path):
    """Thirty documents, each a small picture, some of them broken."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(30):
        Image.new("RGB", (8, 8), (8 * number, 0, 0)).save(folder / f"{number}.png")
    data = (folder / "3.png").read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "3.png")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:6000])
    (folder / "4.png").write_text("<html>not found</html>")
    (folder / "9.png").write_bytes(b"")
    wide = struct.pack(">II", 60_000, 60_000) + data[24:29]
    bomb = data[:16] + wide + struct.pack(">I", zlib.crc32(b"IHDR" + wide)) + data[33:]
    (folder / "17.png").write_bytes(bomb)
    (folder / "25.png").unlink()
    return [Document(f"d{number:02d}", image=str(folder / f"{number}.png")) for number in range(30)]


def readable(documents):
    return [document for number, document in enumerate(documents) if number not in BROKEN]


@pytest.mark.parametrize("model", [PICTURES, DENSE_PICTURES])
def test_broken_pictures_fail_unless_skipped(tmp_path, pictured, model):
    with pytest.raises(DataError, match=r"pictures.(3|4|9|17|25)\.png: "):
        encode(tmp_path / "out", pictured, model)
    done = []
    manifest = encode(tmp_path / "out", pictured, model, on_error="skip", progress=done.append)
    assert sum(done) == 30
    assert manifest.corpus["documents"] == 30 and manifest.counts["documents"] == 25
    assert manifest.counts["skipped"] == 5 == manifest.corpus["documents"] - manifest.counts["documents"]
    assert [shard.get("skipped", 0) for shard in manifest.shards] == [2, 1, 1, 1]
    rows = lines(tmp_path / "out/skipped.jsonl")
    assert [row["id"] for row in rows] == ["d03", "d04", "d09", "d17", "d25"]
    assert [row["image"] for row in rows] == [pictured[number].image for number in BROKEN]
    reasons = ("cut off", "not a picture", "it is empty", "more than the limit", "No such file")
    for row, told in zip(rows, reasons, strict=True):
        assert row["reason"].startswith(row["image"]) and told in row["reason"]
    assert [row["shard"].partition(".")[0] for row in rows] == [f"docs/shard-0000{n}" for n in (0, 0, 1, 2, 3)]
    encode(tmp_path / "whole", readable(pictured), model)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")
    again = encode(tmp_path / "again", pictured, model, on_error="skip")
    assert again == manifest and tree(tmp_path / "again") == tree(tmp_path / "out")


@pytest.mark.parametrize("name,checkpoint", [("vdr-crossmodal", "demo-vdr"), ("dense-crossmodal", "demo-dense")])
def test_skipping_reads_and_encodes_each_picture_once(tmp_path, pictured, name, checkpoint, monkeypatch):
    model = load_encoder(name, checkpoint, device="cpu")
    fixed = Quantiser.named("fixed", scale=100)  # calibrating would encode its sample once more
    whole = readable(pictured)
    encode(tmp_path / "whole", whole, model, quantiser=fixed, batch_size=1)
    opened, forwarded = [], []
    open_image, normalise = images.open_image, Pixels.normalise
    monkeypatch.setattr(images, "open_image", lambda reference: (opened.append(reference), open_image(reference))[1])
    monkeypatch.setattr(Pixels, "normalise", lambda self, crops: (forwarded.extend(crops), normalise(self, crops))[1])
    manifest = encode(tmp_path / "out", pictured, model, quantiser=fixed, batch_size=1, on_error="skip")
    assert (len(opened), len(forwarded), manifest.counts["skipped"]) == (30, 25, 5)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")


def test_a_failed_run_is_resumed_by_skipping(tmp_path, pictured, encoded):
    order = [*pictured[10:17], pictured[28], *pictured[:10], *pictured[17:28]]  # the first shard is in order
    encode(tmp_path / "fresh", order, PICTURES, on_error="skip")
    sample = {d.doc_id for d in draw_sample(iter(order), len(order))}
    assert sample == {d.doc_id for d in order}, "so small a corpus is its own sample: calibrating fails first"
    with pytest.raises(DataError):
        encode(tmp_path / "out", order, PICTURES)
    fixed = Quantiser.named("fixed", scale=100)
    encode(tmp_path / "fresh-fixed", order, PICTURES, quantiser=fixed, on_error="skip")
    with pytest.raises(DataError):
        encode(tmp_path / "fixed", order, PICTURES, quantiser=fixed)
    encoded.clear()
    encode(tmp_path / "fixed", order, PICTURES, quantiser=fixed, on_error="skip")
    assert encoded == ["d00", "d08", "d23"], "the first shard is not encoded again"
    assert tree(tmp_path / "fixed") == tree(tmp_path / "fresh-fixed")


def test_what_lacks_pictures_is_refused_when_they_are_wanted(tmp_path, pictured):
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    with pytest.raises(ArtefactError, match=r"5 documents .* see skipped\.jsonl; --on-error skip accepts it"):
        encode(tmp_path / "out", pictured, PICTURES)
    whole = readable(pictured)
    encode(tmp_path / "out", whole, PICTURES, overwrite=True)
    assert not (tmp_path / "out/skipped.jsonl").exists()


def test_a_shard_encoded_again_is_listed_once(tmp_path, pictured):
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    for name in ("shard-00000.jsonl", "shard-00002.jsonl"):
        (tmp_path / "out/docs" / name).unlink()
    encode(tmp_path / "out", pictured, PICTURES, on_error="skip")
    assert same_as_fresh(tmp_path / "out", pictured, PICTURES, on_error="skip")


def test_a_list_that_a_killed_run_left_is_mended(tmp_path, pictured):
    """The list is written before the shard is recorded: a picture that was mended meanwhile leaves it again."""
    with pytest.raises(MemoryError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "compute_sha256", lambda path: (_ for _ in ()).throw(MemoryError()))
        encode(tmp_path / "out", pictured, PICTURES, on_error="skip", layout=Layout())
    assert len(lines(tmp_path / "out/skipped.jsonl")) == 5 and not (tmp_path / "out/docs/shard-00000.jsonl").exists()
    for number in BROKEN:
        Image.new("RGB", (8, 8), (8 * number, 0, 0)).save(pictured[number].image)
    manifest = encode(tmp_path / "out", pictured, PICTURES, on_error="skip", layout=Layout())
    assert manifest.counts["documents"] == 30 and not (tmp_path / "out/skipped.jsonl").exists()


def test_no_picture_at_all(tmp_path, pictured):
    broken = [document for number, document in enumerate(pictured) if number in BROKEN]
    with pytest.raises(DataError, match="toy: none of 5 images can be read; the first: .*3.png"):
        encode(tmp_path / "out", broken, PICTURES, on_error="skip")
    with pytest.raises(DataError, match=r"toy: no image can be read; .*skipped\.jsonl lists them"):
        encode(tmp_path / "fixed", broken, PICTURES, quantiser=Quantiser.named("fixed", scale=1), on_error="skip")
    assert len(lines(tmp_path / "fixed/skipped.jsonl")) == 5 and not (tmp_path / "fixed/manifest.json").exists()


def test_errors_that_are_no_pictures_are_never_skipped(tmp_path, monkeypatch):
    def fails(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        raise DataError("something else")

    monkeypatch.setattr(WordTower, "weights", fails)
    with pytest.raises(DataError, match="something else"):
        encode(tmp_path / "out", on_error="skip")
    with pytest.raises(UsageError, match="on_error 'ignore': expected fail or skip"):
        encode(tmp_path / "out", on_error="ignore")
