"""Training on shards that are read step by step: order, memory, resume, shards that vanish, processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.tokens import TextReader, make_ascii_columns
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_plugins.train.images import stream
from lexvl_plugins.train.images.captioned import read_captioned
from lexvl_plugins.train.images.stream import ShardOrder, StreamedBatches, StreamedImages, Survey
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe, check_recipe
from lexvl_plugins.train.words import FIRST_TOKEN_ID, learn_words, save_tokenizer
from tests.plugins.train.pair_shards import pairs, picture, write_shards, write_tar
from tests.plugins.train.test_processes import in_two_processes, same
from tests.plugins.train.test_train import recipe_of
from tests.plugins.train.tiny_training import rows_of, same_weights, weights_of


def order_of(*counts: int, size: int, buffer: int = 1, seed: int = 1) -> ShardOrder:
    return ShardOrder(np.array(counts), size, buffer, seed)


def streaming(corpus: str, **changes: Any) -> Recipe:
    """Six steps of eight pairs of a stream."""
    plan = {"steps": 6, "batch_size": 8, "warmup_steps": 2}
    data = {"corpus": corpus, "buffer": 16, **changes.pop("data", {})}
    return recipe_of(corpus, **{"data": data, "optimisation": plan, **changes})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six shards of seven pairs: a batch of eight begins and ends in the middle of shards."""
    return write_shards(tmp_path_factory.mktemp("shards"), 42, 7)


@pytest.fixture(scope="module")
def trained(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    return train(streaming(corpus), tmp_path_factory.mktemp("trained"), device="cpu")


# --- order ----------------------------------------------------------------------------------------------------------


def test_without_a_buffer_shards_follow_each_other() -> None:
    """Three shards of two pairs, batches of one: the pairs of a shard come together, in epochs of other orders."""
    order = order_of(2, 2, 2, size=1)
    epochs = [[int(order(6 * epoch + step)[0]) for step in range(6)] for epoch in range(20)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(6)) and all(epoch[n + 1] == epoch[n] + 1 for n in (0, 2, 4))
    assert len({tuple(epoch) for epoch in epochs}) > 3


@pytest.mark.parametrize("buffer", [1, 16, 40, 1000])
@pytest.mark.parametrize("size", [1, 6, 8, 24])
def test_an_epoch_has_every_pair_at_most_once(size: int, buffer: int) -> None:
    """And all but a remainder below a batch and the lanes."""
    order = order_of(50, 0, 1, 30, 19, size=size, buffer=buffer)
    for epoch in range(2):
        drawn = np.concatenate([order(epoch * order.per_epoch + number) for number in range(order.per_epoch)])
        assert len(set(drawn.tolist())) == len(drawn) and drawn.min() >= 0 and drawn.max() < 100
        assert 100 - len(drawn) < size + order.lanes
    assert not np.array_equal(order(0), order(order.per_epoch))
    assert np.array_equal(order(1), order_of(50, 0, 1, 30, 19, size=size, buffer=buffer)(1))
    assert not np.array_equal(order(0), order_of(50, 0, 1, 30, 19, size=size, buffer=buffer, seed=2)(0))


def test_a_buffer_shuffles_so_many_pairs() -> None:
    """One shard of 1,000 pairs, a buffer of 100: each hundred pairs come in an order of their own."""
    order = order_of(1000, size=5, buffer=100)
    drawn = np.concatenate([order(step) for step in range(200)])
    for first in range(0, 1000, 100):
        part = drawn[first : first + 100]
        assert sorted(part.tolist()) == list(range(first, first + 100)) and (np.diff(part) < 0).sum() > 30


def test_processes_read_other_shards() -> None:
    """Each half of a batch reads eight of sixteen equal shards in eight lanes; of others it may share one."""
    order = order_of(*[10] * 16, size=16, buffer=32)
    halves = [{int(p) // 10 for step in range(10) for p in order(step)[rows]} for rows in (slice(8), slice(8, 16))]
    assert [len(half) for half in halves] == [8, 8] and not halves[0] & halves[1]


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_pairs_have_positions(corpus: str, tmp_path: Path) -> None:
    whole = StreamedImages.read(corpus, None, [])
    memory = read_captioned(load_dataset(corpus, "train", direction="text-to-image"))
    some, same_ones = whole.select([41, 0, 7]), memory.select([41, 0, 7])
    assert len(whole) == 42 and list(some.ids) == same_ones.ids and some.digest() == same_ones.digest()
    assert whole.words == StreamedImages.read(corpus, None, [tmp_path]).words
    assert StreamedImages.read(corpus, 8, []).survey.counts == [7, 7]  # it goes no further than it must


def test_the_first_pairs_are_held_out(tmp_path: Path) -> None:
    """With every third of 9 of 10 pairs, 3 validate and 6 train; words of those held out alone are not known."""
    members = [pairs([number]) for number in range(10)]
    members[1]["000000001.txt"] = b"xylophone"
    for number, shard in enumerate((members[:2], members[2:8], members[8:])):
        write_tar(tmp_path / f"{number}.tar", {name: value for pair in shard for name, value in pair.items()})
    whole = StreamedImages.read(f"webdataset:{tmp_path}", 9, [])
    stream, held = whole.split_off(3)
    assert held.captions[1] == ["xylophone"] and [ref[-13:-4] for ref in held.images] == [f"{n:09d}" for n in range(3)]
    assert len(stream) == 6 and stream.select(range(6)).texts == [picture(number)[1] for number in range(3, 9)]
    assert stream.used.tolist() == [0, 5, 1] and stream.digest() != whole.digest()
    assert "xylophone" in whole.words and "xylophone" not in stream.words and stream.words["square"] == 6


def test_words_that_come_once_are_forgotten_beyond_a_limit(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(stream, "MOST_WORDS", 2)
    write_tar(tmp_path / "0.tar", {"a.png": picture(0)[0], "a.txt": b"one two two three", "b.png": picture(0)[0]})
    write_tar(tmp_path / "1.tar", {"a.png": picture(0)[0], "a.txt": b"one two"})
    assert StreamedImages.read(f"webdataset:{tmp_path}", None, []).words == {"two": 3, "one": 1}


def test_no_pair_is_an_error(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": picture(0)[0]})
    with pytest.raises(DataError, match="no image with a text in 1 shards"):
        StreamedImages.read(f"webdataset:{tmp_path}", None, [])


# --- batches --------------------------------------------------------------------------------------------------------


def batches_of(corpus: str, folder: Path, **changes: Any) -> StreamedBatches:
    recipe = streaming(corpus, **changes)
    pairs = StreamedImages.read(corpus, None, [])
    tokenizer = save_tokenizer(learn_words(pairs.words, 2000), folder, 16)
    columns = make_ascii_columns(tokenizer, FIRST_TOKEN_ID)
    return StreamedBatches(pairs, recipe, 0, TextReader(tokenizer, 16), columns, Pixels(16), torch.device("cpu"))


def test_images_keep_their_texts(corpus: str, tmp_path: Path) -> None:
    """Pixels and words of a batch are those of its pairs; each round has the only text."""
    plan = {"steps": 6, "batch_size": 8, "captions_per_image": 2}
    batches = batches_of(corpus, tmp_path, augmentation={}, optimisation=plan)
    batch = batches[3]
    expected = batches.stream.select(batch.items)
    crops = [batches.prepare.crop(image.value) for image in read_images(expected.images)]
    assert torch.equal(batch.documents.values, batches.prepare.normalise(torch.from_numpy(np.stack(crops))))
    words = [{batches.columns.vocabulary[int(d)] for d in bag.nonzero().flatten()} for bag in batch.rounds[1].bag]
    assert [set(text.split()) == own for text, own in zip(expected.texts, words, strict=True)] == [True] * 8
    assert batch.texts.shape == (2, 8) and len(batch.rounds) == 2
    assert [row["captions"] for row in batches.stream.describe(batch)] == [[text] for text in expected.texts]


def test_few_shards_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of 64 shards in eight lanes opens each about once, whatever their number, and few at a time."""
    corpus = write_shards(tmp_path / "shards", 128, 2)
    opened: list[int] = []
    plain = StreamedImages.open
    monkeypatch.setattr(StreamedImages, "open", lambda self, number: (opened.append(number), plain(self, number))[1])
    batches = batches_of(corpus, tmp_path, optimisation={"steps": 16, "batch_size": 8})
    for step in range(16):
        batches[step]
    assert batches.order.per_epoch == 16 and batches._open.cache_info().maxsize == 24
    assert sorted(opened) == list(range(64))


def test_a_buffer_over_too_many_shards_is_refused(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair would open a shard: here six shards of seven pairs, of which five can be open."""
    monkeypatch.setattr(stream, "OPEN", 5)
    with pytest.raises(UsageError, match=r"data\.buffer 16 is spread over 6 shards, of which 5 can be open at once"):
        batches_of(corpus, tmp_path)


def test_every_damaged_shard_is_named(tmp_path: Path) -> None:
    for name in "abc":
        path = write_tar(tmp_path / f"{name}.tar", pairs([0]))
        if name != "b":
            path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DataError, match=r"a\.tar: cut off at byte 600 in member '000000000\.png'.*; .*c\.tar: cut off"):
        StreamedImages.read(f"webdataset:{tmp_path}", None, [])


def test_processes_share_a_batch(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two reads its own rows, with the views that one process gives them."""
    changes = {"augmentation": {"zoom": 0.5, "shift": 1, "flip": True}}
    whole = batches_of(corpus, tmp_path, **changes)[1]
    parts = []
    for rows in (slice(4), slice(4, 8)):
        monkeypatch.setattr(stream, "find_own_rows", lambda size, rows=rows: rows)
        monkeypatch.setattr(stream, "gather_texts", lambda texts: texts * 2)
        part = batches_of(corpus, tmp_path, **changes)[1]
        parts.append(part.documents.values)
    assert [len(part) for part in parts] == [4, 4] and torch.equal(torch.cat(parts), whole.documents.values)


def test_an_image_that_cannot_be_decoded_gives_its_place_to_the_next(tmp_path, caplog):
    members = pairs(range(8))
    members["000000003.png"] = b"<html>gone</html>"
    corpus = f"webdataset:{write_tar(tmp_path / '0.tar', members)}"
    batch = batches_of(corpus, tmp_path, augmentation={})[0]
    row, after = (batch.items.tolist().index(number) for number in (3, 4))
    assert torch.equal(batch.documents.values[row], batch.documents.values[after])
    assert torch.equal(batch.rounds[0].ids[row], batch.rounds[0].ids[after])
    assert "0.tar::000000003.png: not a picture of a known format" in caplog.text
    assert "the next pair takes its place (1 so far)" in caplog.text
    write_tar(tmp_path / "0.tar", {name: b"-" if name.endswith("png") else text for name, text in members.items()})
    with pytest.raises(DataError, match=r"0\.tar: none of its 8 images can be decoded \(.*0000000\d\.png: not a pict"):
        batches_of(corpus, tmp_path)[0]


# --- runs -----------------------------------------------------------------------------------------------------------


def rows_without_time(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows_of(folder)]


@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_resumes_in_the_middle_of_a_shard(stop, corpus, trained, tmp_path, monkeypatch):
    """With the same weights and log; shards are surveyed once, and no pixels are stored."""
    train(streaming(corpus), tmp_path / "run", device="cpu", stop_after=stop)
    stored = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "run").glob("stored-*"))
    assert stored == ["stored-pixels-examples", "stored-shards"]
    monkeypatch.setattr(Survey, "take", None)
    assert same_weights(train(streaming(corpus), tmp_path / "run", device="cpu"), trained)
    assert rows_without_time(tmp_path / "run") == rows_without_time(trained.parent)
    assert not list((tmp_path / "run").glob("stored-*"))


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_a_shard_that_vanishes_stops_at_a_state(damage, trained, corpus, tmp_path, monkeypatch):
    """The error names it; when it is back, the run ends with the weights of an uninterrupted one."""
    folder = tmp_path / "shards"
    write_shards(folder, 42, 7)
    plain, path = StreamedBatches._load, folder / "00003.tar"

    def vanishing(self: StreamedBatches, step: int) -> Any:
        if step == 3:
            self._open.cache_clear()
            path.rename(tmp_path / "away")
            if damage == "other":
                write_tar(path, pairs(range(3)))
        return plain(self, step)

    monkeypatch.setattr(StreamedBatches, "_load", vanishing)
    what = {"gone": r"cannot be read \(No such file", "other": r"has other pairs than when .* \(3, expected 7"}[damage]
    with pytest.raises(DataError, match=rf"00003\.tar: {what}.*; .*run has the state of step 3: run again"):
        train(streaming(f"webdataset:{folder}"), tmp_path / "run", device="cpu")
    monkeypatch.undo()
    assert json.loads((tmp_path / "run/state/step.json").read_text())["step"] == 3
    (tmp_path / "away").rename(path)
    assert same_weights(train(streaming(f"webdataset:{folder}"), tmp_path / "run", device="cpu"), trained)


def test_other_shards_are_another_run(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    write_shards(folder, 16, 8)
    run = streaming(f"webdataset:{folder}")
    train(run, tmp_path / "run", device="cpu", stop_after=1)
    members = pairs(range(8))
    members["000000002.txt"] = b"another text"
    write_tar(folder / "00000.tar", members)
    with pytest.raises(ArtefactError, match="content of training"):
        train(run, tmp_path / "run", device="cpu")


def test_held_out_pairs_validate(corpus: str, tmp_path: Path) -> None:
    recipe = streaming(corpus, data={"held_out": 8}, validate_every=6)
    model = train(recipe, tmp_path, device="cpu")
    about = json.loads((model / "training.json").read_text())
    assert about["images"] == 36 and set(about["data"]) == {"training", "validation"}
    assert set(about["validation"]) >= {"t2i_R@1", "i2t_R@10"}


def test_shards_without_a_buffer_are_read_before(corpus: str, tmp_path: Path) -> None:
    """As any corpus, with all that is computed of all pairs once."""
    recipe = streaming(corpus, data={"buffer": None, "held_out": 6}, auxiliaries=[{"name": "naming", "weight": 0.1}])
    model = train(recipe, tmp_path, device="cpu")
    assert json.loads((model / "training.json").read_text())["images"] == 35 and weights_of(model)


@pytest.mark.heavy
def test_two_processes_train_as_one(corpus: str, tmp_path: Path) -> None:
    """The run in two stops once, in the middle of shards; dropout and batch norms read the rows of a process."""
    content = streaming(corpus).model_dump(mode="json")
    content["model"]["text"]["dropout"], content["model"]["image"]["stem"] = 0, None
    recipe = check_recipe(content, "tiny.yaml")
    in_two_processes([(recipe, tmp_path / "two", 3), (recipe, tmp_path / "two", 0)])
    same(tmp_path / "two/model", train(recipe, tmp_path / "one", device="cpu"))


NAMING, HEAD = [{"name": "naming", "weight": 0.1}], {"kind": "d2s", "pair": "photos-dense"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"buffer": 7}}, "data.buffer 7: has no room for the 8 pairs of a batch"),
        ({"data": {"corpus": "karpathy:a.json"}}, "only shards are streamed, webdataset:<shards>, found karpathy"),
        ({"auxiliaries": NAMING}, "the auxiliary 'naming': computed once of all pairs"),
        ({"model": HEAD, "objective": {"name": "d2s"}}, "kind d2s does not train on a stream"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str, corpus: str) -> None:
    with pytest.raises(UsageError, match=f"data.buffer|{message}") as error:
        streaming(corpus, **changes)
    assert message in str(error.value)


def test_shards_have_no_validation_split(corpus: str) -> None:
    assert streaming(corpus).data.validation is None
