"""Hostile inputs: the same documents, one clear line, or log lines that name what is left out."""

import gzip
import io
import json
import logging
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from byte_towers import SMALL, Bytes, Texts, encode, tree
from corpus_folders import beir_folder, json_lines, write_embeddings
from damage import changed_json, damaged, one_line, outcome
from invoking import invoked
from PIL import Image
from rounds import Round, Rounds
from shard_folders import jsonl, write_shards

from eval.score import command as score
from lexvl_anserini.data import digests
from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.lines import log_once
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.data.pictures.images import list_image_suffixes, open_image
from lexvl_anserini.data.topics import read_qrels, read_topics
from lexvl_anserini.encode import command
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.fuse import command as fuse
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError
from lexvl_anserini.ground.manifest import read_manifest, read_run_manifest
from lexvl_anserini.ground.records import Document
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.queries.query_source import read_queries
from lexvl_anserini.runs.trec import read_run
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import read_terms
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.reading import read_ids, read_metadata, read_shard, shard_pieces

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

BLOCK = 512
COUNTED = re.compile(r"skipped, .*?: ([\d,]+) \(")


def read_all(read: Callable[[], Iterable[Any]]) -> list[Any] | str:
    """What is read, or the line of the error; the log repeats what it says once."""
    log_once.cache_clear()
    return outcome(read)


def name_of(random: Random) -> str:
    """A name of a picture, a caption or something else, sometimes long, nested or of another script."""
    stem = random.choice(["a", "b", "c", "dé", "犬", "e" * 90, "f/g", "h/" * 60 + "i"]) + str(random.randrange(9))
    return stem + random.choice([".png", ".jpg", ".txt", ".jpg.txt", ".md"])


def packed(path: Path, random: Random, odd: bool) -> list[tarfile.TarInfo]:
    """A tar of some members; `odd` ones too, if wanted."""
    kind = random.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    files = sorted({name_of(random) for _ in range(random.randrange(3, 9))})
    with tarfile.open(path, "w", format=kind) as archive:
        for name in files:
            add_file(archive, name, random)
            if odd and random.random() < 0.5:
                add_odd(archive, random.choice(files), random)
    with tarfile.open(path) as archive:
        return archive.getmembers()


def add_file(archive: tarfile.TarFile, name: str, random: Random) -> None:
    member, data = tarfile.TarInfo(name), bytes(random.choices(b"abc ", k=random.randrange(1, 1500)))
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def add_odd(archive: tarfile.TarFile, name: str, random: Random) -> None:
    target = random.choice([name, "none.png", "../out.png", "/out.png", f"l{random.randrange(3)}.png", "f"])
    member = tarfile.TarInfo(f"l{random.randrange(3)}.png")
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"Q")
    action = random.randrange(8)
    if action < 5:
        member.type, member.linkname = kinds[action], target
        archive.addfile(member)
    elif action == 5:
        add_file(archive, random.choice([f"../{name}", f"/{name}", f"x/../{name}"]), random)
    elif action == 6:
        add_file(archive, random.choice([name, f"./{name}", name.replace("/", "/./")]), random)
    else:
        add_file(archive, f".hidden/{name}", random)


def ids(documents: list[Any] | str) -> set[str]:
    assert isinstance(documents, list), documents
    return {document.doc_id for document in documents}


def test_damaged_tars_never_lose_a_document_in_silence(rounds: Rounds) -> None:
    for one in rounds:
        path = one.folder / "a.tar"
        members = packed(path, one.random, odd=False)
        whole, read = path.read_bytes(), lambda path=path: load_dataset(f"folder:{path}").documents()
        before = read_all(read)
        for _ in range(20):
            path.write_bytes(damaged_tar(whole, members, one.random))
            after = read_all(read)
            if isinstance(before, list) and isinstance(after, list):
                assert ids(before) == ids(after), "documents came or went without an error"
            elif isinstance(after, str):
                assert "a.tar" in after
            rounds.count("damaged tars")


def damaged_tar(whole: bytes, members: list[tarfile.TarInfo], random: Random) -> bytes:
    """An archive that no program writes; a whole member is never removed, because that leaves a valid archive."""
    data, at = bytearray(whole), random.randrange(len(whole))
    member = random.choice(members)
    header = random.choice([member.offset, member.offset_data - BLOCK])
    action = random.randrange(8)
    if action < 3:
        data[header + random.randrange(BLOCK)] ^= 1 << random.randrange(8)
    elif action == 3:
        del data[at:]
    elif action == 4:
        data[at:at] = random.randbytes(random.choice([1, 7, BLOCK, 3 * BLOCK]))
    elif action == 5:
        data[header : header + BLOCK] = bytes(BLOCK)
    elif action == 6:
        data += random.choice([whole, random.randbytes(9), bytes(BLOCK * random.randrange(9))])
    else:
        del data[header : header + BLOCK]
    return bytes(data)


def documents_and_skipped(corpus: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[Document], int, list[str]]:
    """The documents of a corpus, the entries that log lines count as skipped, and the lines; none for an error."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "lexvl_anserini"):
        documents = read_all(lambda: load_dataset(f"folder:{corpus}").documents())
    counts = (int(match[1].replace(",", "")) for match in map(COUNTED.search, caplog.messages) if match)
    return (documents if isinstance(documents, list) else []), sum(counts), caplog.messages


def captioned(documents: list[Document]) -> list[str]:
    return [document.image for document in documents if document.image is not None and document.text is not None]


def test_every_member_of_an_odd_tar_is_a_document_or_is_counted(rounds, caplog) -> None:
    for one in rounds:
        path = one.folder / "a.tar"
        members = packed(path, one.random, odd=True)
        found, skipped, messages = documents_and_skipped(path, caplog)
        if found:
            expected = len(members) - skipped + captions_of_two(found, path)
            assert len(found) + len(captioned(found)) == expected, messages
        rounds.count("odd tars")


def captions_of_two(documents: list[Document], path: Path) -> int:
    """Captions that belong to a second picture too: `a.txt` of `a.png` and `a.jpg`."""
    there, used = open_archive(path).members, []
    for name in (image.partition("::")[2] for image in captioned(documents)):
        candidates = (name.rpartition(".")[0] + ".txt", f"{name}.txt")
        used.append(next(candidate for candidate in candidates if candidate in there))
    return len(used) - len(set(used))


def test_every_entry_of_an_odd_folder_is_a_document_or_is_counted(rounds, caplog) -> None:
    for one in rounds:
        entries = grown(one.folder / "in", one.random)
        found, skipped, messages = documents_and_skipped(one.folder / "in", caplog)
        if found:
            assert len(found) + len(captioned(found)) + skipped == entries, (messages, found)
        rounds.count("odd folders")


def grown(folder: Path, random: Random) -> int:
    """A folder with files and other things; how many entries must be documents, captions or counted."""
    entries = 0
    for place in (folder, folder / "sub", folder / "sub/deep"):
        place.mkdir()
        for number in range(random.randrange(6)):
            path = place / f"{number}{random.choice(['.png', '.txt', '.md', ''])}"
            if path.exists() or path.is_symlink():
                continue
            action = random.randrange(9)
            entries += 1
            if action < 3:
                path.write_bytes(b"text")
                if path.suffix == ".png" and random.random() < 0.5:
                    path.with_suffix(".txt").write_bytes(b"a caption")
                    entries += 1
            elif action == 3:
                path.symlink_to(random.choice([folder, "nothing", path.name, "..", "/dev/null", "sub"]))
            elif action == 4:
                os.mkfifo(path)
            elif action == 5:
                path.with_name(f".{path.name}").write_bytes(b"hidden")
            elif action == 6:
                path.with_name(f".{path.name}").mkdir()
            else:
                path.symlink_to(folder.parent / "outside.png")
    (folder.parent / "outside.png").write_bytes(b"text")
    return entries


def rows_of(number: int) -> bytes:
    rows = [{"_id": f"d{n}", "text": f"text {n}", "metadata": {"year": n}} for n in range(number)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_damaged_gzip_is_the_same_documents_or_an_error(rounds: Rounds) -> None:
    whole, expected = gzip.compress(rows_of(30), mtime=0), [f"d{n}" for n in range(30)]
    for one in rounds:
        path = one.folder / "corpus.jsonl.gz"
        read = lambda path=path: load_dataset(f"folder:{path.parent}").documents()  # noqa: E731
        for _ in range(40):
            path.write_bytes(damaged(one.random, whole))
            found = read_all(read)
            # A first member that is doubled as a whole is a valid file of more lines.
            assert isinstance(found, str) or [document.doc_id for document in found] == expected
            rounds.count("damaged gzip files")


def test_damaged_texts_captions_tables_and_shards_raise_nothing_else(rounds: Rounds) -> None:
    for one in rounds:
        files = readable(one.folder)
        for _ in range(25):
            path, read = one.random.choice(files)
            whole = path.read_bytes()
            path.write_bytes(hostile(whole, path, one.random))
            read_all(read)
            path.write_bytes(whole)
            rounds.count("damaged files")


def readable(folder: Path) -> list[tuple[Path, Callable[[], Iterable[Any]]]]:
    """Small files of every format, each with what reads it."""
    rows = [{"_id": f"d{n}", "title": "t", "text": "x", "image": "i.png", "metadata": {"a": [n]}} for n in range(4)]
    corpus = "".join(json.dumps(row) + "\n" for row in rows)
    texts = beir_folder(folder / "texts", corpus, json_lines({"q1": "x", "q2": "y"}), "q1\td1\t1\nq2\td0\t2\n", None)
    image = {"filename": "1.jpg", "imgid": 1, "split": "test", "sentences": [{"raw": "a", "sentid": 3}]}
    (texts / "dataset.json").write_text(json.dumps({"images": [image, image | {"imgid": 2, "sentences": []}]}))
    (texts / "1.jpg").write_bytes(b"-")
    vectors = {key: np.array([1.0, n]) for n, key in enumerate(("1", "2"))}
    stored = write_embeddings(folder / "vectors", vectors, {"3": np.ones(2)}, {"1": {"3": "a"}, "2": {}})
    names = (f"beir:{texts}", f"karpathy:{texts}/dataset.json,{texts}", f"embeddings:{stored}")
    beir, captions, tables = map(load_dataset, names)
    return shards(folder) + [
        (texts / "corpus.jsonl", beir.documents),
        (texts / "queries.jsonl", beir.topics),
        (texts / "qrels/test.tsv", beir.qrels),
        (texts / "dataset.json", lambda: load_dataset(captions.name).topics()),
        (texts / "dataset.json", lambda: load_dataset(captions.name, direction="image-to-text").documents()),
        (stored / "img_embs.parquet", lambda: read_embeddings([str(d.image) for d in tables.documents()])),
        (stored / "dataset_meta.json", lambda: load_dataset(tables.name).documents()),
    ]


def shards(folder: Path) -> list[tuple[Path, Callable[[], Iterable[Any]]]]:
    """Shards of each format with each of their readers, which look at no checksum."""
    documents = [Document(f"d{n}", text=f"{n}bc", metadata={"year": n}) for n in range(9)]
    found: list[tuple[Path, Callable[[], Iterable[Any]]]] = []
    queries = folder / "encoded.jsonl"
    queries.write_text('{"id": "q1", "contents": "", "vector": {"ash": 3}}\n{"id": "q2", "vector": {"bay": 1}}\n')
    for name, layout in {
        "json": Layout(metadata=True, contents=True),
        "gz": Layout(compress=True, metadata=True),
        "parquet": Layout("parquet", metadata=True, contents=True),
    }.items():
        manifest = encode(folder / name, documents, Texts(), layout)
        path = folder / name / manifest.shards[0]["name"]
        readers: tuple[Callable[[], Iterable[Any]], ...] = (
            lambda path=path: read_shard(path, Texts.vocabulary),
            lambda path=path: read_metadata(path),
            lambda path=path: shard_pieces(path),
            lambda place=folder / name, manifest=manifest: read_ids(place, manifest),
        )
        found += [(path, reader) for reader in readers]
        found.append((queries, lambda manifest=manifest: read_queries(queries, queries, manifest)))
    return found


def hostile(whole: bytes, path: Path, random: Random) -> bytes:
    """Damaged bytes, or for JSON a value of another kind."""
    if path.suffix not in (".json", ".jsonl") or random.random() < 0.5:
        return damaged(random, whole)
    values = ["null", "7", '"' + "x" * 40_000 + '"', "[" * 2000, "9" * 5000, "1e999", "NaN", '{"": {}}', '"\\ud800"']
    places = [match.span() for match in re.finditer(rb'"[^"]*"|\d+', whole)]
    start, end = random.choice(places)
    return whole[:start] + random.choice(values).encode() + whole[end:]


def test_broken_pictures_are_pictures_or_one_line(rounds: Rounds) -> None:
    formats = [suffix for suffix in sorted(list_image_suffixes()) if pictured(suffix)]
    for one in rounds:
        for _ in range(40):
            suffix = one.random.choice(formats)
            path = one.folder / f"a{suffix}"
            path.write_bytes(damaged(one.random, pictured(suffix)))
            try:
                assert open_image(path).mode == "RGB"
            except DataError as error:
                assert one_line(error).startswith(str(path))
            rounds.count("broken pictures")


@cache
def pictured(suffix: str) -> bytes:
    """A small picture of a format; empty if this Pillow does not write it."""
    out = io.BytesIO()
    pixels = (np.arange(40 * 30 * 3) % 256).astype(np.uint8).reshape(30, 40, 3)
    try:
        Image.fromarray(pixels).save(out, Image.registered_extensions()[suffix])
    except (KeyError, OSError, ValueError):
        return b""
    return out.getvalue()


def test_commands_end_with_one_line(rounds: Rounds) -> None:
    """`encode` by command over damaged corpora: exit code 0 with the counted documents, else one line."""
    whole = rows_of(6)
    for one in rounds:
        (one.folder / "in").mkdir()
        path = one.folder / "in/corpus.jsonl"
        for number in range(6):
            path.write_bytes(hostile(whole, path, one.random))
            output, corpus = one.folder / f"out{number}", f"folder:{path.parent}"
            options = one.random.choice([[], ["--store-metadata"], ["--escape-ids", "--compress"]])
            arguments = ["--corpus", corpus, "--encoder", "bm25", "--output", output, *options, "--format", "json"]
            try:
                report = json.loads(invoked(command, *arguments))
            except LexvlError as error:
                one_line(error)
                assert not (output / "manifest.json").exists()
            else:
                documents = load_dataset(corpus, escape_ids="--escape-ids" in options).documents()
                assert report["documents"] == len(list(documents))
            rounds.count("commands")


@pytest.fixture
def quick_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory of digests that trusts files after some milliseconds, so that it is used at all."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(digests, "RACY_NS", 10**7)


class Stopping(Bytes):
    """Is killed at its n-th call."""

    def __init__(self, calls: int):
        self.calls = calls

    def weights(self, *arguments: Any, **options: Any) -> Any:
        self.calls -= 1
        if self.calls == 0:
            raise KeyboardInterrupt
        return super().weights(*arguments, **options)


@pytest.mark.attack(share=2)
def test_changed_inputs_are_never_finished_already(rounds: Rounds, quick_memory: None) -> None:
    for one in rounds:
        corpus = Corpus(one)
        layout = replace(SMALL, metadata=one.random.random() < 0.5)
        out = one.folder / "out"
        killed = one.random.random() < 0.5
        with suppress(KeyboardInterrupt):
            encode(out, corpus.documents(), Stopping(one.random.randrange(2, 6) if killed else 0), layout)
        whole, begun = (out / "manifest.json").is_file(), any((out / "docs").glob("shard*"))
        time.sleep(0.02)
        before = tree(out)
        matters = corpus.change(layout.metadata)
        try:
            encode(out, corpus.documents(), layout=layout)
            # Unfinished shards may go on: those of changed pictures are encoded again.
            assert not (matters and whole)
        except ArtefactError as error:
            assert "--overwrite replaces" in str(error)
            assert matters and begun and tree(out) == before
            encode(out, corpus.documents(), layout=layout, overwrite=True)
        if not matters and begun:
            assert all(tree(out)[name] == data for name, data in before.items() if name.startswith("docs"))
        encode(one.folder / "fresh", corpus.documents(), layout=layout)
        assert tree(out) == tree(one.folder / "fresh")
        rounds.count("changed inputs" if matters else "inputs touched only")


class Corpus:
    """Pictures in a folder or a tar, with texts and metadata, and ways to change them."""

    def __init__(self, one: Round):
        self.random, self.home = one.random, one.folder / "in"
        self.home.mkdir()
        self.tar = one.folder / "in.tar" if one.random.random() < 0.3 else None
        self.rows = {f"{n}.png": ["title", f"text {n}", {"n": n}] for n in range(one.random.randrange(5, 9))}
        for name in self.rows:
            (self.home / name).write_bytes(one.random.randbytes(9))
        self.pack()
        time.sleep(0.02)

    def pack(self) -> None:
        if self.tar:
            with tarfile.open(self.tar, "w") as archive:
                for path in sorted(self.home.iterdir()):
                    archive.add(path, path.name)

    def documents(self) -> list[Document]:
        place = f"{self.tar}::" if self.tar else f"{self.home}/"
        return [Document(name, title, text, place + name, meta) for name, (title, text, meta) in self.rows.items()]

    def change(self, metadata: bool) -> bool:
        """Changes something; whether it matters for the shards."""
        name = self.random.choice(sorted(self.rows))
        path, row = self.home / name, self.rows[name]
        actions: dict[str, tuple[Callable[[], Any], bool]] = {
            "pixels": (lambda: path.write_bytes(self.random.randbytes(9)), True),
            "pixels of another size": (lambda: path.write_bytes(self.random.randbytes(10)), True),
            "pixels with the old times": (lambda: self.write(path), True),
            "another file with the old times": (lambda: self.write(path, new=True), True),
            "two pictures swapped": (self.swap, True),
            "the same bytes again": (lambda: path.write_bytes(path.read_bytes()), False),
            "title": (lambda: row.__setitem__(0, "other"), True),
            "text": (lambda: row.__setitem__(1, "other"), True),
            "metadata": (lambda: row.__setitem__(2, {"n": -1}), metadata),
            "one fewer": (lambda: self.rows.pop(name), True),
            "times": (lambda: os.utime(path, (1, 1)), False),
            "place": (self.move, False),
        }
        action, matters = self.random.choice(list(actions.values()))
        action()
        self.pack()
        return matters

    def write(self, path: Path, new: bool = False) -> None:
        times = path.stat()
        if new:
            path.unlink()
        path.write_bytes(self.random.randbytes(9))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def swap(self) -> None:
        one, other = self.random.sample(sorted(self.home.iterdir()), 2)
        one.rename(self.home / "x")
        other.rename(one)
        (self.home / "x").rename(other)

    def move(self) -> None:
        self.home = self.home.rename(self.home.with_name("moved"))


FIXTURES = Path(__file__).parent.parent / "fixtures" / "lexvl-1"

RUN = "".join(f"q{q} Q0 d{q}{d} {d + 1} {9 - d}.5 tag\n" for q in range(4) for d in range(6)).encode()
JUDGED = "".join(f"q{q}\td{q}{d}\t{d % 2}\n" for q in range(4) for d in range(5))
QRELS = f"query-id\tcorpus-id\tscore\n{JUDGED}".encode()
TOPICS = "".join(f"q{q}\ta red boat {q} 日本 😀\n" for q in range(5)).encode()
PICTURES = b'{"_id": "q1", "text": "a boat"}\n{"_id": "q2", "text": "", "image": "x.png"}\n'
QUERIES = jsonl([{"id": f"q{q}", "contents": "", "vector": {"a": q + 1, "b": 3}} for q in range(5)])

PIECES = (
    b"\n", b"\0", b"\t", b" ", b"\xff\xfe", b"\xef\xbb\xbf", b"9" * 5000, b"-1", b"nan", b"1e999", b"inf", b"{",
    b"[" * 900, b'"', b"\r", "\u2028😀".encode(), b"null", b"x" * 70_000, b"\\ud800",
)  # fmt: skip


def mutated(random: Random, content: bytes) -> bytes:
    """The content, in four of five cases damaged; now and then nothing or noise instead."""
    if random.random() < 0.03:
        return random.choice([b"", random.randbytes(200)])
    return damaged(random, content, PIECES) if random.random() < 0.8 else content


def put(random: Random, path: Path, content: bytes) -> Path:
    """The file, now and then compressed, cut after that, or a folder."""
    if random.random() < 0.03:
        path.mkdir()
        return path
    if path.suffix == ".gz":
        content = gzip.compress(content)
        content = content[: random.randrange(len(content))] if random.random() < 0.2 else content
    path.write_bytes(content)
    return path


def kind_of(read: Callable[[], Any]) -> str:
    return "refused files" if isinstance(outcome(lambda: [read()]), str) else "files read"


READERS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    **dict.fromkeys(("r.trec", "r.trec.gz"), (RUN, lambda path: list(read_run(path)))),
    **dict.fromkeys(("q.tsv", "q.tsv.gz"), (QRELS, lambda path: list(read_qrels(path)))),
    "t.tsv": (TOPICS, lambda path: list(read_topics(path))),
    "t.jsonl": (PICTURES, lambda path: list(read_topics(path))),
    "terms.txt": (b"a\nb\n", read_terms),
}


def test_readers(rounds: Rounds) -> None:
    for one in rounds:
        for name, (content, read) in READERS.items():
            path = put(one.random, one.folder / name, mutated(one.random, content))
            rounds.count(kind_of(partial(read, path)))


def test_manifests(rounds: Rounds) -> None:
    kinds: list[tuple[str, Callable[[Path], Any]]] = [
        ("indexes/changed/manifest.json", lambda path: read_manifest(path.parent).request()),
        ("dense/texts/manifest.json", lambda path: read_manifest(path.parent).meaning()),
        ("indexes/splade/index.json", lambda path: read_report(path.parent)),
        ("runs/refined.trec.manifest.json", lambda path: read_run_manifest(path.with_name("refined.trec"))),
        ("runs/fused.trec.manifest.json", lambda path: read_run_manifest(path.with_name("fused.trec"))),
    ]
    for one in rounds:
        for number, (name, read) in enumerate(kinds):
            path = one.folder / str(number) / Path(name).name
            path.parent.mkdir()
            data = json.loads((FIXTURES / name).read_text())
            for _ in range(one.random.randint(1, 3)):
                data = changed_json(one.random, data)
            content = json.dumps(data).encode()
            put(one.random, path, mutated(one.random, content) if one.random.random() < 0.3 else content)
            rounds.count(kind_of(partial(read, path)))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_shards(folder / "shards", [(f"d{n}", {"a": n + 1, "b": 2, "c": n % 3 + 1}) for n in range(20)])
    return build_index(folder / "shards", folder / "index").path


VALID = (
    "+a -b", "a b^3", "(a OR b)^2 AND NOT c", "+a (-b)", 'id:d3 "a"', "meta.year:[2010 TO 2020]", 'text:"x y"^2',
    "a^200 b^200",
)  # fmt: skip
SIGNS = (
    *'()+-^"\\ ab[]*{}\0😀\ud800', "AND", "OR", "NOT", "^0", "^99999999999999999999", "^0.5", "id:", "meta.x:", "TO",
    "(" * 60, "a " * 50,
)  # fmt: skip


def searched(engine: LuceneEngine, text: str) -> None:
    clause = parse(text)
    assert isinstance(clause, Clause)
    assert all(hit.score >= 0 for hit in engine.search_tree("q", clause, 5))


def test_expressions(rounds: Rounds, index: Path) -> None:
    engine = LuceneEngine(index, read_manifest(index))
    for one in rounds:
        for _ in range(50):
            text = one.random.choice(VALID) if one.random.random() < 0.5 else ""
            for _ in range(one.random.randint(0, 12)):
                at = one.random.randrange(len(text) + 1)
                text = text[:at] + one.random.choice(SIGNS) + text[at + (one.random.random() < 0.3) :]
            kind_of(partial(searched, engine, text))
            rounds.count("expressions")
    engine.close()


def test_commands(rounds: Rounds, index: Path) -> None:
    for one in rounds:
        contents = {"a.trec": RUN, "b.trec": RUN, "q.tsv": QRELS, "e.jsonl": QUERIES}
        a, b, qrels, queries = (
            put(one.random, one.folder / name, mutated(one.random, content)) for name, content in contents.items()
        )
        if one.random.random() < 0.3:
            shutil.copy(FIXTURES / "runs/bag.trec.manifest.json", one.folder / "a.trec.manifest.json")
        for called, *arguments in (
            (score, "--run", a, "--qrels", qrels, "--measure", "nDCG@10"),
            (fuse, "--run", a, "--run", b, "--output", one.folder / "out.trec"),
            (search, "--index", index, "--topics", queries, "--output", one.folder / "s.trec"),
        ):
            rounds.count(kind_of(partial(invoked, called, *arguments)))
