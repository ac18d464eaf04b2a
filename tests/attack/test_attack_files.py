"""Fuzzed files of every kind that a search or an evaluation reads: each is read, or refused in one line."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import changed_json, damaged, one_line
from invoking import invoked
from rounds import Rounds
from shard_folders import write_shards

from eval.score import command as score
from lexvl_anserini.data.topics import read_qrels, read_topics
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.fuse import command as fuse
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.manifest import read_manifest, read_run_manifest
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.runs.trec import read_run
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import read_terms

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

FIXTURES = Path(__file__).parent.parent / "fixtures" / "lexvl-1"

RUN = "".join(f"q{q} Q0 d{q}{d} {d + 1} {9 - d}.5 tag\n" for q in range(4) for d in range(6)).encode()
QRELS = (
    b"query-id\tcorpus-id\tscore\n" + "".join(f"q{q}\td{q}{d}\t{d % 2}\n" for q in range(4) for d in range(5)).encode()
)
TOPICS = "".join(f"q{q}\ta red boat {q} 日本 😀\n" for q in range(5)).encode()
PICTURES = b'{"_id": "q1", "text": "a boat"}\n{"_id": "q2", "text": "", "image": "x.png"}\n'
QUERIES = "".join(
    json.dumps({"id": f"q{q}", "contents": "", "vector": {"a": q + 1, "b": 3}}) + "\n" for q in range(5)
).encode()

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
    """What the summary counts: a file that is read, or refused in one line."""
    try:
        read()
    except LexvlError as error:
        one_line(error)
        return "refused files"
    return "files read"


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
        for command, *arguments in (
            (score, "--run", a, "--qrels", qrels, "--measure", "nDCG@10"),
            (fuse, "--run", a, "--run", b, "--output", one.folder / "out.trec"),
            (search, "--index", index, "--topics", queries, "--output", one.folder / "s.trec"),
        ):
            rounds.count(kind_of(partial(invoked, command, *arguments)))
