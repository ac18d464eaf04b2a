"""Images with texts that are read from shards while a pair trains: memory does not grow with the number of pairs.

A survey indexes each shard first. A batch is then a function of seed and step, so that a resumed run has no state.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from io import BytesIO
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from lexvl_anserini.data.lines import NAMED, LeftOut, read_file_state
from lexvl_anserini.data.pictures.archives import Archive, index_archive
from lexvl_anserini.data.pictures.images import count_usable_cores, decode_image
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import read_json, write_json
from lexvl_anserini.ground.progress import progress_bar
from lexvl_plugins.train.common.processes import find_own_rows, gather_texts
from lexvl_plugins.train.common.tower_pair import OwnImages, TextStore, TrainingBatch, add_types
from lexvl_plugins.train.corpora.webdataset import ShardImage, find_shards, read_shard
from lexvl_plugins.train.images.captioned import CaptionedImages, make_views
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import STORED
from lexvl_plugins.train.words import count_words

log = logging.getLogger(__name__)

# The places of an epoch from which a batch reads, where its size is a multiple of them.
LANES = 8
# Shards that are open at once, at most.
OPEN = 256
# Different words that a survey counts; beyond, those that occurred once so far are forgotten.
MOST_WORDS = 2_000_000


class OpenShard(NamedTuple):
    """A shard that is read: its archive, with the places of the images alone, and its pairs."""

    archive: Archive
    pairs: Sequence[ShardImage]

    @classmethod
    def read(cls, name: str, path: Path, left_out: LeftOut) -> OpenShard:
        """Indexes a shard and reads its texts."""
        whole = index_archive(path, read_file_state(path))
        pairs = [image for image in read_shard(whole, name, left_out, escape_ids=True) if image.text is not None]
        return cls(Archive(path, {pair.member: whole.place(pair.member) for pair in pairs}), pairs)

    def digest(self) -> str:
        """SHA-256 (hex) of the names, the texts and the sizes of the images."""
        rows = [(pair.pair_id, pair.text, self.archive.place(pair.member).size) for pair in self.pairs]
        return sha256(orjson.dumps(rows)).hexdigest()


class Survey(NamedTuple):
    """What is known of shards before they train: pairs and digest of each, and how often each word of texts occurs."""

    counts: Sequence[int]
    digests: Sequence[str]
    words: Mapping[str, int]

    @classmethod
    def take(cls, shards: Mapping[str, Path], limit: int | None) -> Survey:
        """Indexes the shards one after the other, up to that which has the last of `limit` pairs."""
        left_out, words, problems = LeftOut(), Counter[str](), list[str]()
        counts: list[int] = []
        digests: list[str] = []
        with progress_bar("count pairs", len(shards), "shards") as advance:
            for name, path in shards.items():
                try:
                    shard = OpenShard.read(name, path, left_out)
                except DataError as problem:
                    problems.append(str(problem))
                    continue
                room = None if limit is None else limit - sum(counts)
                words.update(count_words(pair.text or "" for pair in shard.pairs[:room]))
                if len(words) > MOST_WORDS:
                    words = Counter({word: count for word, count in words.items() if count > 1})
                counts.append(len(shard.pairs))
                digests.append(shard.digest())
                advance(1)
                if room is not None and counts[-1] >= room:
                    break
        if problems:
            raise DataError("; ".join(problems))
        left_out.log(str(next(iter(shards.values())).parent))
        return cls(counts, digests, words)


@dataclass(frozen=True)
class StreamedImages:
    """The training pairs `start` to `stop` of shards, from which positions count; nothing of a pair is in memory.

    The survey is kept in a file of that name, and `words` counts those of the texts of these pairs.
    """

    shards: Mapping[str, Path]
    survey: Survey
    start: int
    stop: int
    file: str
    words: Counter[str]

    @classmethod
    def read(cls, corpus: str, limit: int | None, folders: Iterable[Path]) -> StreamedImages:
        """The pairs of a corpus; the survey of files that have not changed is read from one of the folders."""
        shards = find_shards(corpus)
        states = [
            (name, state.size, state.mtime_ns)
            for name, state in zip(shards, map(read_file_state, shards.values()))  # noqa: B905
        ]
        digest = sha256(orjson.dumps([states, limit])).hexdigest()[:16]
        file = STORED.replace("*", f"shards-{digest}.json")
        known = next((path for folder in folders if (path := folder / file).is_file()), None)
        survey = Survey(**read_json(known, "survey of shards")) if known else Survey.take(shards, limit)
        total = sum(survey.counts)
        if not total:
            raise DataError(f"{corpus}: no image with a text in {len(shards)} shards; expected NAME.jpg with NAME.txt")
        return cls(shards, survey, 0, min(total, limit or total), file, Counter(survey.words))

    def keep(self, folder: Path) -> None:
        """Writes the survey into a folder, unless it is there."""
        if not (folder / self.file).exists():
            write_json(folder / self.file, self.survey._asdict())

    def __len__(self) -> int:
        return self.stop - self.start

    def split_off(self, every: int) -> tuple[StreamedImages, CaptionedImages]:
        """Splits off the first of the pairs, one of `every`, for validation; the first ones are in few shards."""
        held = self.select(range(-(-len(self) // every)))
        words = self.words - count_words(held.texts)
        start = self.start + len(held)
        return StreamedImages(self.shards, self.survey, start, self.stop, self.file, words), held

    @cached_property
    def used(self) -> np.ndarray:
        """The number of training pairs of each shard, int64 [S]."""
        ends = np.cumsum(self.survey.counts, dtype=np.int64).clip(self.start, self.stop)
        return np.diff(ends, prepend=self.start)

    @cached_property
    def skipped(self) -> np.ndarray:
        """The pairs of each shard before its first training pair, int64 [S]."""
        before = np.cumsum(self.survey.counts, dtype=np.int64) - self.survey.counts
        return (self.start - before).clip(0, self.survey.counts)

    def find_places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shards [B] of positions [B], and the places of the pairs among the training pairs of each, int64."""
        ends = np.cumsum(self.used)
        shards = np.searchsorted(ends, positions, side="right")
        return shards, positions - (ends - self.used)[shards]

    def open(self, number: int) -> OpenShard:
        """The training pairs of a shard; an error if it is not there, damaged, or has other pairs than its survey."""
        name, path = list(self.shards.items())[number]
        shard = OpenShard.read(name, path, LeftOut())
        if shard.digest() != self.survey.digests[number]:
            pairs, expected = len(shard.pairs), self.survey.counts[number]
            raise DataError(f"{path}: has other pairs than when training began ({pairs:,}, expected {expected:,})")
        skipped = int(self.skipped[number])
        return shard._replace(pairs=shard.pairs[skipped : skipped + int(self.used[number])])

    def select(self, positions: Sequence[int] | np.ndarray) -> CaptionedImages:
        """The images at some positions, with their texts in memory."""
        shards, places = self.find_places(np.asarray(positions, dtype=np.int64))
        rows: dict[int, tuple[str, str, list[str]]] = {}
        for number in np.unique(shards).tolist():
            shard = self.open(number)
            for row in np.flatnonzero(shards == number).tolist():
                pair = shard.pairs[places[row]]
                rows[row] = (pair.pair_id, f"{shard.archive.path}::{pair.member}", [pair.text or ""])
        ids, images, texts = zip(*(rows[row] for row in range(len(rows))), strict=True)
        return CaptionedImages(ids, images, texts)

    def describe(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The images of a batch with their texts, to look at."""
        some = self.select(batch.items)
        rows = zip(some.ids, some.images, some.captions, strict=True)
        return [{"id": pair_id, "image": image, "captions": texts} for pair_id, image, texts in rows]

    def digest(self) -> str:
        """SHA-256 (hex) of the digests of the shards and of the part that trains, without its many pixels."""
        return sha256(orjson.dumps([self.start, self.stop, list(self.survey.digests)])).hexdigest()


class ShardOrder:
    """The order in which batches draw the pairs of shards: a function of seed, epoch and number.

    An epoch has all shards in an order of its own, in `lanes` of equal length, from each of which a batch draws as many
    pairs; so processes read other shards. A lane fills its window of the buffer and draws from it until it is empty.
    The remainder of an epoch is skipped.
    """

    def __init__(self, counts: np.ndarray, size: int, buffer: int, seed: int):
        self.counts, self.size, self.seed, self.lanes = counts, size, seed, gcd(size, LANES)
        self.length, self.window = int(counts.sum()) // self.lanes, max(size, buffer) // self.lanes
        self.per_epoch = self.length // (size // self.lanes)

    def __call__(self, step: int) -> np.ndarray:
        """The positions of the pairs of the batch of a step, int64 [size], lane after lane."""
        epoch, number = divmod(step, self.per_epoch)
        share = self.size // self.lanes
        offsets = np.arange(number * share, (number + 1) * share)
        windows = offsets // self.window
        drawn = []
        for lane in range(self.lanes):
            for window in np.unique(windows).tolist():
                first = window * self.window
                filled = min(self.window, self.length - first)
                order = np.random.default_rng((self.seed, 6, epoch, lane, window)).permutation(filled)
                drawn.append(lane * self.length + first + order[offsets[windows == window] - first])
        places = np.concatenate(drawn)
        shards = np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.counts))
        ends = np.cumsum(self.counts[shards])
        row = np.searchsorted(ends, places, side="right")
        firsts = np.cumsum(self.counts) - self.counts
        return firsts[shards[row]] + places - (ends - self.counts[shards])[row]


# The text of a pair, its pixels uint8 [R, R, 3], and what is wrong with the images that could not be decoded before.
Loaded = tuple[str, np.ndarray, list[str]]


def load(shard: OpenShard, place: int, prepare: Pixels) -> Loaded:
    """The pair at a place of a shard, or the next one whose image can be decoded."""
    problems: list[str] = []
    for number in range(place, place + len(shard.pairs)):
        pair = shard.pairs[number % len(shard.pairs)]
        content = BytesIO(shard.archive.read(pair.member))
        try:
            image = decode_image(content, f"{shard.archive.path}::{pair.member}")
        except DataError as problem:
            problems.append(str(problem))
        else:
            return pair.text or "", prepare.crop(image), problems
    raise DataError(f"{shard.archive.path}: none of its {len(shard.pairs):,} images can be decoded ({problems[0]})")


class StreamedBatches:
    """Batches of a stage over shards; the next one is read while the pair learns from the last."""

    def __init__(
        self,
        stream: StreamedImages,
        recipe: Recipe,
        number: int,
        reader: TextReader,
        columns: TokenColumns,
        prepare: Pixels,
        device: torch.device,
    ):
        self.stream, self.reader, self.columns, self.prepare, self.device = stream, reader, columns, prepare, device
        self.stage, self.seed = recipe.stages[number], recipe.seed
        self.end = recipe.starts[number + 1]
        size, buffer = self.stage.optimisation.batch_size, recipe.data.buffer
        assert buffer is not None, "a stream has a buffer"
        self.order = ShardOrder(stream.used, size, buffer, recipe.seed)
        self.per_epoch = self.order.per_epoch
        # Every lane has its shards open: those of its part of the buffer, and one at each end.
        shards = int((stream.used > 0).sum())
        mean = len(stream) // shards
        held = min(shards, self.order.lanes * (self.order.window // mean + 2))
        if held > OPEN:
            raise UsageError(
                f"recipe {recipe.name}: data.buffer {buffer:,} is spread over {held:,} shards, of which {OPEN} can be "
                f"open at once; lower it, or pack the pairs into larger shards (they have {mean:,} on average)"
            )
        self._open = lru_cache(maxsize=held)(stream.open)
        self.decoding = ThreadPoolExecutor(count_usable_cores(), thread_name_prefix="images")
        self.reading = ThreadPoolExecutor(1, thread_name_prefix="shards")
        self.ahead: tuple[int, Future[list[Loaded]]] | None = None
        self.unreadable = 0

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages; images of this process alone, texts of all."""
        items = self.order(step)
        loaded = self._take_loaded(step)
        crops = np.stack([pixels for _, pixels, _ in loaded])
        draws, rows = np.random.default_rng((self.seed, 1, step)), find_own_rows(len(items))
        views = make_views(crops, self.prepare, self.stage.augmentation, draws, self.device, rows, len(items))
        texts = list(self.reader(gather_texts([text for text, _, _ in loaded])))
        store = TextStore.make(add_types(texts), self.columns, self.reader.pad_id, self.device)
        rounds = self.stage.optimisation.captions_per_image
        batch = store.read_batch(np.arange(len(items)))
        return TrainingBatch(items, OwnImages(views), np.tile(items, (rounds, 1)), (batch,) * rounds)

    def _take_loaded(self, step: int) -> list[Loaded]:
        """The pairs of this process, which are read ahead unless the last step was another."""
        ahead = self.ahead[1] if self.ahead and self.ahead[0] == step else self.reading.submit(self._load, step)
        self.ahead = (step + 1, self.reading.submit(self._load, step + 1)) if step + 1 < self.end else None
        loaded = ahead.result()
        for problem in (problem for *_, problems in loaded for problem in problems):
            self.unreadable += 1
            # Each of a few, then fewer and fewer: shards from the web have many.
            if self.unreadable <= NAMED or str(self.unreadable).strip("0") == "1":
                log.warning("%s; the next pair takes its place (%s so far)", problem, f"{self.unreadable:,}")
        return loaded

    def _load(self, step: int) -> list[Loaded]:
        items = self.order(step)
        shards, places = self.stream.find_places(items[find_own_rows(len(items))])
        opened = {number: self._open(number) for number in dict.fromkeys(shards.tolist())}
        tasks = zip(shards.tolist(), places.tolist(), strict=True)
        return list(self.decoding.map(lambda task: load(opened[task[0]], task[1], self.prepare), tasks))
