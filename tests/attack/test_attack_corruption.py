"""Damaged indexes: the answers are those of the undamaged one, or one line says what is damaged; never a hang."""

import faulthandler
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from damage import changed_json, damaged, one_line, outcome
from shard_folders import write_dense_shards, write_shards, write_text_shards

from lexvl_anserini.engines import verifying
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, Topic
from lexvl_anserini.queries.clauses import Term, TreeQuery
from lexvl_anserini.searching.building import append_index, build_index, check_index
from lexvl_anserini.searching.searcher import Searcher, search_index

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=2)]

# A search that takes longer hangs.
PATIENCE_S = 120

TERMS = [f"t{number}" for number in range(60)]
WORDS = ["sea", "dog", "boat", "red", "night"]

Read = Callable[[Path], Any]


def impacts(random: Random, first: int, number: int) -> list[tuple[str, dict[str, int]]]:
    return [
        (f"d{n}", {term: random.randint(1, 255) for term in random.sample(TERMS, random.randint(0, 12))})
        for n in range(first, first + number)
    ]


class Sound:
    """An undamaged index, another of the same form, what is read from it, and the answers."""

    def __init__(self, index: Path, other: Path, reads: dict[str, Read]):
        self.index, self.other, self.reads = index, other, reads
        self.answers = {name: read(index) for name, read in reads.items()}


def impact_index(folder: Path) -> Path:
    random = Random(folder.name)
    write_shards(folder / "one", impacts(random, 0, 150), impacts(random, 150, 50), terms=TERMS)
    write_shards(folder / "two", impacts(random, 200, 100), terms=TERMS)
    index = build_index(folder / "one", folder / "index", term_vectors=True).path
    append_index(index, folder / "two")
    return index


def dense_index(folder: Path, layout: str) -> Path:
    vectors = np.random.default_rng(len(folder.name)).normal(size=(80, 16)).astype(np.float32)
    write_dense_shards(folder / "shards", [(f"d{n}", vector.tolist()) for n, vector in enumerate(vectors)])
    return build_index(folder / "shards", folder / "index", options={"faiss": layout}).path


def text_index(folder: Path) -> Path:
    random = Random(folder.name)
    texts = [(f"d{n}", " ".join(random.choices(WORDS, k=5))) for n in range(100)]
    write_text_shards(folder / "shards", texts)
    return build_index(folder / "shards", folder / "index").path


def pairs(lists: Iterator[list[Any]]) -> Any:
    return [[(hit.doc_id, hit.score) for hit in hits] for hits in lists]


def explain_query(index: Path) -> Any:
    """Explains in a block, whose end compares the files."""
    with Searcher(index) as searcher:
        return searcher.explain(ImpactQuery("q", {"t5": 1, "t6": 9}), hits=3)


IMPACT_READS: dict[str, Read] = {
    "search": lambda index: pairs(search_index(index, [ImpactQuery(t, {t: 3, "t1": 2}) for t in TERMS], 1000)),
    "tree": lambda index: pairs(search_index(index, [TreeQuery("q", Term("t3", 2) & ~Term("t4"))], 1000)),
    "explain": explain_query,
}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> list[Sound]:
    root = tmp_path_factory.mktemp("sound")
    vector = np.random.default_rng(9).normal(size=16).astype(np.float32)
    dense: dict[str, Read] = {"dense": lambda index: pairs(search_index(index, [DenseQuery("q", vector)], 9))}
    topics = [Topic(word, word) for word in WORDS]
    layouts = ("flat", "hnsw", "sq8", "binary", "ivfpq")
    kinds: dict[str, tuple[Callable[[Path], Path], dict[str, Read]]] = {
        "impact": (impact_index, IMPACT_READS),
        **{layout: (partial(dense_index, layout=layout), dense) for layout in layouts},
        "text": (text_index, {"bm25": lambda index: pairs(_texts(index, topics))}),
    }
    return [Sound(make(root / name), make(root / f"{name}-other"), reads) for name, (make, reads) in kinds.items()]


def _texts(index: Path, topics: list[Topic]) -> Iterator[list[Any]]:
    """BM25 without loading its encoder, which only passes texts on."""
    from lexvl_anserini.engines.engine import open_index, open_verified
    from lexvl_anserini.ground.manifest import read_manifest

    with open_verified(open_index(index, read_manifest(index))) as engine:
        yield from engine.search(topics, 50)


# Zeros as a file system leaves them after a power cut, and other pieces.
PIECES = (b"\n", bytes(1), bytes(16), bytes(512), bytes(4096), Random(1).randbytes(50))


def change_bytes(random: Random, path: Path, sound: Sound) -> None:
    path.write_bytes(damaged(random, path.read_bytes(), PIECES))


def replace(random: Random, path: Path, sound: Sound) -> None:
    path.unlink()
    if random.random() < 0.5:
        path.mkdir()


def swap(random: Random, path: Path, sound: Sound) -> None:
    other = random.choice(sorted(p for p in path.parent.iterdir() if p.is_file()))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def of_another(random: Random, path: Path, sound: Sound) -> None:
    """The file of that name in another index, or all files of one kind of it."""
    names = [path.name]
    if random.random() < 0.5:
        names = [p.name for p in path.parent.iterdir() if p.suffix not in (".json", ".txt")]
    for name in names:
        if (sound.other / name).is_file():
            shutil.copyfile(sound.other / name, path.parent / name)


def change_value(random: Random, path: Path, sound: Sound) -> None:
    path = path.parent / random.choice(["index.json", "manifest.json"])
    path.write_text(json.dumps(changed_json(random, json.loads(path.read_text()))))


DAMAGES = (*[change_bytes] * 6, replace, replace, swap, of_another, change_value)


def test_answers_of_a_damaged_index_are_right_or_refused(rounds, sounds, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    for _seed, random, folder in rounds:
        sound = random.choice([sounds[0], *sounds])
        index = folder / "index"
        shutil.copytree(sound.index, index)
        # Half of the indexes count as larger than 1 GiB.
        monkeypatch.setattr(verifying, "VERIFIED_BYTES", random.choice([0, 1 << 30]))
        path = random.choice(sorted(p for p in index.iterdir() if p.name != "write.lock"))
        damage = random.choice(DAMAGES)
        damage(random, path, sound)
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        for name, read in sound.reads.items():
            try:
                answers = read(index)
            except LexvlError as error:
                one_line(error)
                rounds.count("damages found")
            else:
                what = f"{sound.index.parent.name}: {name} after {damage.__name__} of {path.name}"
                assert answers == sound.answers[name], what
        if sound is sounds[0]:  # `--check` may also find damage that no answer shows
            outcome(lambda index=index, home=sound.index.parent: [check_index(index, [home / "one", home / "two"])])
        faulthandler.cancel_dump_traceback_later()
        rounds.count("index corruptions")
