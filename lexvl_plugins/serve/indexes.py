"""Open indexes: engine, encoder, vocabulary and corpus of each, opened once; a replaced index is opened anew."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, cast

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.encoder import OtherModality, Tower
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.engines.engine import find_urls, index_name, index_path
from lexvl_anserini.engines.index_folder import index_manifest, read_report
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import FieldEntry, Manifest, expect_lexical
from lexvl_anserini.ground.records import VOCABULARY, Document, mark_field
from lexvl_anserini.ground.registry import TORCH
from lexvl_anserini.queries.query_source import find_vocabulary_file, read_known_terms
from lexvl_anserini.searching.search import EncoderChanges, split_field_options
from lexvl_anserini.searching.searcher import Index, Searcher
from lexvl_plugins.serve import documents, limits

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.parts.images.vision import ImageTower
    from lexvl_anserini.engines.engine import ImpactEngine

log = logging.getLogger(__name__)

# Seconds between two looks at the folder of an index.
LOOK_EVERY_S = 0.5

# The folder of an index in an album that `lexvl photos` makes; the album names the index.
ALBUM = "index"
# Tries to open an index that other processes replace meanwhile, and seconds between two of them.
OPENINGS = 5
PAUSE_S = 0.2

# A copy of an index takes at most this share of the room that a disk has left.
ROOM = 0.5

# The files in the folder of an index: name, inode, bytes and time of each; it changes with each of them.
FolderState = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class ServedIndex:
    """Where an index is, its unique name, and how its encoder is loaded; its data folder is its manifest's if None."""

    name: str
    path: Path
    encoder: EncoderChanges = EncoderChanges()
    data_dir: str | None = None


@dataclass
class LiveIndex:
    """An index that is open: the terms of its vocabulary, types of metadata fields, queries of its corpus.

    No other open index of this process has its serial. A `problem`, an error of its files that a check found after it
    was opened, makes it answer no more.
    """

    served: ServedIndex
    state: FolderState
    searcher: Searcher
    corpus: documents.ShownCorpus
    terms: Sequence[str]
    fields: Mapping[str, str]
    examples: Sequence[str]
    problem: LexvlError | None = None
    users: int = 0
    retired: bool = False
    serial: int = field(default_factory=partial(next, count()))

    @cached_property
    def known(self) -> frozenset[str]:
        """Its terms, to look them up."""
        return frozenset(self.terms)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the index."""
        return self.searcher.index.manifest

    @property
    def model(self) -> Encoder:
        """The encoder of queries, loaded."""
        return self.searcher.model

    @property
    def impacts(self) -> ImpactEngine:
        """The engine of an impact index."""
        expect_lexical(f"index {self.served.name!r}", self.manifest.kind, "only an impact index has terms")
        return cast("ImpactEngine", self.searcher.engine)

    @cached_property
    def picture_tower(self) -> Tower | None:
        """The side of the encoder that reads pictures, that of queries first; None if none does."""
        if self.manifest.corpus.name.startswith(documents.WITHOUT_PICTURES):
            return None
        for tower in (self.model.query, self.model.document):
            try:
                tower.read(Document("a", image="a"))
            except OtherModality:
                continue
            return tower
        return None

    @cached_property
    def drawn_field(self) -> FieldEntry | None:
        """The field of an index of several fields whose encoder reads pictures; None if none does."""
        with_images = (e for e in self.manifest.encoder.fields if e.encoder.name in CARDS and e.kind == "impact")
        return next((e for e in with_images if CARDS[e.encoder.name].reads_images), None)

    @property
    def has_maps(self) -> bool:
        """Whether torch computes a grid of cells over pictures; or words are read in them, of an index of fields."""
        if self.manifest.fields:
            read = any(documents.READ in document.metadata for document in self.corpus.documents.values())
            return self.drawn_field is not None or read
        return self.map_tower is not None

    @cached_property
    def map_tower(self) -> ImageTower | None:
        """The side of documents with its grid of cells, which only torch computes; None without one."""
        from lexvl_anserini.encoders.parts.images.vision import ImageTower

        tower: Any = self.model.document
        if self.manifest.fields:
            if (entry := self.drawn_field) is None:
                return None
            changes, device = self.served.encoder.options, self.served.encoder.device
            own = split_field_options(self.manifest.fields, changes)[entry.name]
            places = own.get("checkpoint"), own.get("tokenizer")
            tower = load_encoder_from(entry.encoder, *places, device, {"runtime": TORCH}).document
        elif self.picture_tower is None:
            return None
        return tower if isinstance(tower, ImageTower) else None

    def suggest(self, prefix: str) -> list[str]:
        """Terms that begin so, in the order of the vocabulary, where frequent ones come first as a rule."""
        beginnings = (prefix, *(mark_field(field, prefix) for field in self.manifest.fields))
        terms = (term for term in self.terms if term.startswith(beginnings))
        return sorted(terms, key=lambda term: term != prefix)[: limits.SUGGESTIONS]

    def verify(self) -> None:
        """Opens what any query may need, and waits until all files are compared; an ArtefactError names the index."""
        try:
            self.searcher.engine.prepare()
            self.searcher.verify()
        except ArtefactError as error:
            raise ArtefactError(str(error).replace(str(self.searcher.index.path), str(self.served.path))) from error

    def close(self) -> None:
        """Closes the index."""
        self.searcher.close()


@dataclass
class ClosedIndex:
    """An index that no opening has opened yet, and why; the next one follows when its folder has another `state`."""

    served: ServedIndex
    state: FolderState
    problem: ArtefactError
    users: int = 0
    retired: bool = False

    def close(self) -> None:
        """Closes nothing."""


def read_folder_state(folder: Path) -> FolderState | None:
    """The files in the folder of an index, and of its partitions, as they are now; None without one."""
    try:
        paths = sorted(list_files(folder))
        return tuple((str(path), s.st_ino, s.st_size, s.st_mtime_ns) for path in paths for s in [path.stat()]) or None
    except OSError:
        return None


def list_files(index: Path) -> Iterator[Path]:
    """The files of an index and of its partitions; pipes and links that lead nowhere are the user's."""
    return (path for path in index.rglob("*") if path.is_file() and path.suffix != ".lock")


@contextmanager
def copy_index(index: Path) -> Iterator[Path]:
    """Yields a private copy of an index, with its partitions; the index itself if it is in a store or without room.

    What opens the copy holds its files when it is gone. Another program may write into the files of the index, or cut
    them: the system ends a process that reads a mapped file where it was cut.
    """
    size = sum(path.stat().st_size for path in list_files(index))
    if not size or size > ROOM * shutil.disk_usage(gettempdir()).free:
        if size:
            remedy = "nothing may write into them: replace the folder as a whole, or set TMPDIR"
            room = f"no room for a copy ({size:,} bytes) in {gettempdir()}; its own files are served"
            log.warning("%s: %s; %s", index, room, remedy)
        yield index
        return
    with TemporaryDirectory(prefix="lexvl-served-") as folder:
        copied = Path(folder, index.name)
        for path in list_files(index):
            target = copied / path.relative_to(index)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        try:
            yield copied
        except ArtefactError as error:
            raise ArtefactError(str(error).replace(str(copied), str(index))) from error


def open_live(served: ServedIndex, before: LiveIndex | None = None) -> LiveIndex:
    """Opens an index, its encoder and its corpus; the encoder of an older state is taken where it is the same.

    An index that replaces an older one is compared with its checksums first; another one beside its first answers.
    """
    for _ in range(OPENINGS):
        state = read_folder_state(served.path)
        try:
            with copy_index(served.path) as folder:
                live = _open(served, folder, before, state or ())
        except Exception:
            if read_folder_state(served.path) == state:
                raise
        else:
            # Manifest, corpus and engine belong to one index only if no process changed it in between.
            if read_folder_state(served.path) == state:
                return _finish(live, before)
            live.close()
        time.sleep(PAUSE_S)
    raise ArtefactError(f"{served.path}: replaced {OPENINGS} times while it was opened; try again when it is written")


def _finish(live: LiveIndex, before: LiveIndex | None) -> LiveIndex:
    """Compares an index with its checksums, and finds examples; closes one that is damaged."""
    try:
        if before is not None:
            live.verify()
        if live.terms and not live.examples:
            live.examples = documents.build_examples(live.corpus, live.impacts, live.terms)
    except BaseException:
        live.close()
        raise

    def verify() -> None:
        try:
            live.verify()
        except LexvlError as error:
            if not live.retired:
                live.problem = error
                log.error("%s", error)

    if before is None:
        Thread(target=verify, name="lexvl-verify", daemon=True).start()
    return live


def _open(served: ServedIndex, folder: Path, before: LiveIndex | None, state: FolderState) -> LiveIndex:
    from lexvl_anserini.data.dataset import load_reference

    manifest = index_manifest(folder)
    same = before and before.manifest.encoder == manifest.encoder and before.manifest.vocabulary == manifest.vocabulary
    searcher = Searcher(Index(folder, manifest), before.model if before and same else None, served.encoder)
    file = find_vocabulary_file(folder, None)
    terms = read_known_terms(file, manifest) if file is not None and manifest.kind == "impact" else ()
    if before and before.terms and manifest.vocabulary and not terms:
        raise ArtefactError(f"{folder}: no {VOCABULARY}, which the manifest has the digest of; copy it there, too")
    try:
        dataset = load_reference(manifest.corpus.ref.at(served.data_dir))
        corpus, examples = documents.read_corpus(dataset), documents.list_examples(dataset)
    except (LexvlError, OSError) as error:
        problem = f"the corpus cannot be read, so that hits have their ids alone: {error}"
        corpus, examples = documents.ShownCorpus({}, problem), []
    fields = read_report(folder).fields if manifest.kind == "impact" else {}
    metadata = {name: kind for name, kind in fields.items() if name.startswith("meta.")}
    return LiveIndex(served, state, searcher.opened(), corpus, terms, metadata, examples)


class Shelf:
    """The open indexes by name. A folder that has another index now is opened anew, while the older answers."""

    def __init__(self, served: Sequence[ServedIndex]):
        self._lock = Lock()
        self._open: dict[str, LiveIndex | ClosedIndex] = {}
        # When each folder was looked at; the states that could not be opened, and why; names that are being opened.
        self._looks: dict[str, float] = {}
        self._failures: dict[str, tuple[FolderState, str]] = {}
        self._opening: set[str] = set()
        self._closed = False
        reasons: list[Exception] = []
        try:
            for index in served:
                state = read_folder_state(index.path) or ()
                try:
                    self._open[index.name] = open_live(index)
                except UsageError:
                    raise
                except Exception as error:  # whatever is in the folder: the others are served, as in `_replace`
                    reasons.append(error)
                    problem = ArtefactError(f"index {index.name!r} cannot be opened: {error}")
                    self._open[index.name] = ClosedIndex(index, state, problem)
            for reason in reasons[len(reasons) == len(served) :]:
                log.error("%s", reason)
            if served and len(reasons) == len(served):
                raise reasons[0]
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """In the order of the page."""
        return list(self._open)

    def is_closed(self, name: str) -> bool:
        """Whether an index was never opened."""
        self._look(name)
        return isinstance(self._open[name], ClosedIndex)

    def count_damaged(self) -> int:
        """How many of the indexes do not answer."""
        return sum(index.problem is not None for index in self._open.values())

    def explain_problem(self, name: str) -> str:
        """Why an index lacks its corpus, or is not the one in its folder; empty if nothing is wrong."""
        index = self._open[name]
        if isinstance(index, ClosedIndex):
            return str(index.problem)
        return self._failures.get(name, ((), ""))[1] or (str(index.problem) if index.problem else index.corpus.problem)

    @contextmanager
    def borrow(self, name: str, damaged: bool = False) -> Iterator[LiveIndex]:
        """An open index, which stays open within the block; one that is damaged raises its problem, unless wanted.

        So does one that was never opened, always.
        """
        limits.refuse_late()
        self._look(name)
        with self._lock:
            index = self._open.get(name)
            if index is None:
                raise UnknownName("index", name[:80], self._open)
            index.users += 1
        try:
            if index.problem is not None and not damaged:
                raise index.problem
            if isinstance(index, ClosedIndex):
                raise index.problem
            yield index
        finally:
            with self._lock:
                index.users -= 1
                last = index.retired and not index.users
            if last:
                index.close()

    def close(self) -> None:
        """Closes all indexes; no request runs any more."""
        with self._lock:
            self._closed = True
        for index in self._open.values():
            index.close()

    def _look(self, name: str) -> None:
        """Begins to open the index anew if its folder has another one now."""
        index, now = self._open.get(name), time.monotonic()
        if index is None or now - self._looks.get(name, 0.0) < LOOK_EVERY_S:
            return
        self._looks[name] = now
        state = read_folder_state(index.served.path)
        if state is None or state in (index.state, self._failures.get(name, (None,))[0]):
            return
        with self._lock:
            # Another thread may have opened it anew since this one looked.
            if name in self._opening or self._open[name] is not index:
                return
            self._opening.add(name)
        Thread(target=self._replace, args=(index, state), name="lexvl-reopen", daemon=True).start()

    def _replace(self, old: LiveIndex | ClosedIndex, state: FolderState) -> None:
        name = old.served.name
        try:
            new = open_live(old.served, None if isinstance(old, ClosedIndex) else old)
        except Exception as error:  # whatever is in the folder: the older index answers, and the next state is tried
            reason = f"the newer index cannot be opened, the older one answers: {error}"
            if isinstance(old, ClosedIndex):
                old.problem = ArtefactError(reason := f"index {name!r} cannot be opened: {error}")
            log.error("%s: %s", old.served.path, reason)
            self._failures[name] = (state, reason)
            with self._lock:
                self._opening.discard(name)
            return
        with self._lock:
            past: LiveIndex | ClosedIndex
            past, self._open[name] = (new, old) if self._closed else (old, new)
            self._failures.pop(name, None)
            self._opening.discard(name)
            past.retired = True
            last = not past.users
        log.info("%s: opened anew, %s documents", old.served.path, f"{new.manifest.counts.documents:,}")
        if last:
            past.close()


def name_indexes(
    places: Sequence[Path | str],
    checkpoints: Sequence[str],
    device: str,
    data_dir: str | None,
    options: Mapping[str, Any] | None = None,
) -> list[ServedIndex]:
    """Names the indexes by their folders, or in their stores; a number follows a name that is there already.

    Checkpoints are those of encoders that were moved, none or one for each index; options replace those of encoders.
    """
    if checkpoints and len(checkpoints) != len(places):
        raise UsageError(f"{len(checkpoints)} --checkpoint for {len(places)} --index; give one for each, or none")
    served: dict[str, ServedIndex] = {}
    for number, place in enumerate(places):
        base = index_name(place)
        if base == ALBUM and not find_urls(place):
            base = Path(place).resolve().parent.name
        if not base:
            raise DataError(f"{place}: a folder without a name; name the folder of an index")
        path = index_path(place)
        name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, len(places) + 2))) if n not in served)
        moved = checkpoints[number] if checkpoints else None
        served[name] = ServedIndex(name, path, EncoderChanges(moved, None, device, options or {}), data_dir)
    return list(served.values())
