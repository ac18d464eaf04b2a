"""Plans, parts and partitions: cut at random, in any order, done twice, killed, damaged, or with parts of others.

The bytes are those of one undisturbed call and the lists those of dot products, or one line says what is wrong.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from byte_towers import tree
from damage import damaged, one_line
from faults import ERRORS, Ended, faults
from rounds import Rounds
from shard_folders import write_shards
from worlds import WORDS

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.encoders.loading import EncoderSpec
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import CorpusRef, ImpactQuery
from lexvl_anserini.queries.query_vectors import ShardVectors
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import search_index
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.cluster.parts import PartsRequest, encode_part, encode_parts, load_plan
from lexvl_plugins.cluster.plans import CorpusPlan, name_listing, plan_corpus
from tests.attack.test_attack_corruption import pairs
from tests.attack.test_attack_search import bound_of, drawn, expected, some_query

pytestmark = [pytest.mark.heavy, pytest.mark.attack]


@pytest.fixture(scope="module")
def encoder(golden: Path) -> EncoderSpec:
    return EncoderSpec("bag-of-tokens", str(golden / "splade/ckpt_bert"), device="cpu")


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))


def planned(random: Random, folder: Path, encoder: EncoderSpec) -> Callable[..., PartsRequest]:
    """A corpus of lines or of files with a plan; returns what makes requests for an output."""
    documents = random.randint(1, 40)
    texts = [" ".join(random.choices(WORDS, k=random.randrange(9))) for _ in range(documents)]
    if random.random() < 0.5:
        ends = [random.choice(["\n", "\r\n", "\n\n"]) for _ in texts]
        rows = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / "corpus").mkdir()
        text = "".join(row + end for row, end in zip(rows, ends, strict=True))
        (folder / "corpus/corpus.jsonl").write_bytes(random.choice([b"", b"\xef\xbb\xbf"]) + text.encode())
        name, options = f"beir:{folder}/corpus", {}
    else:
        (folder / "corpus").mkdir()
        for number, text in enumerate(texts):
            (folder / f"corpus/{number}.txt").write_text(text)
        name, options = f"folder:{folder}/corpus", {"direction": "text-to-text"}
    layout = Layout(shard_size=random.randint(1, 9), contents=random.random() < 0.5)
    plan, parts = folder / "plan.json", random.randint(1, documents)
    corpus = CorpusRef(name, **options)
    listing = name_listing(plan) if random.random() < 0.7 else None
    settings: dict[str, Any] = {"layout": layout, "block_size": random.randint(1, 12), "listing": listing}
    corpus_plan = plan_corpus(load_reference(corpus), encoder.load(), parts, **settings)
    corpus_plan.write(plan)
    assert CorpusPlan.read(plan) == corpus_plan
    return lambda output: PartsRequest(plan, folder / output, corpus, encoder, Quantiser(), layout)


def test_parts_are_those_of_one_undisturbed_call(rounds: Rounds, encoder: EncoderSpec) -> None:
    for _seed, random, folder in rounds:
        request_of = planned(random, folder, encoder)
        with faults(folder / "whole") as counted:
            whole = encode_parts(request_of("whole"))
        bytes_of_whole, parts = tree(folder / "whole"), whole.parts
        number = random.randrange(parts)
        request = request_of("alone")
        corpus, part = load_reference(request.corpus), Part(number, parts)
        write_impacts(corpus, encoder.load(), folder / "alone", layout=request.layout, part=part)
        name = f"part-{number:05}-of-{parts:05}"
        assert tree(folder / "alone") == tree(folder / "whole" / name), name
        request = request_of("out")
        for _ in range(random.randint(1, 4)):
            fault = (random.randint(0, len(counted.calls)), random.choice(["end", *ERRORS]), random.random() < 0.5)
            one, every = partial(encode_part, request, random.randrange(parts)), partial(encode_parts, request)
            work = random.choice([one, every])
            try:
                with faults(folder / "out", *fault):
                    work()
            except Ended:
                rounds.count("parts killed")
            except LexvlError as error:
                one_line(error)
                rounds.count("parts with a failing call")
        assert encode_parts(request) == whole
        assert tree(folder / "out") == bytes_of_whole
        for _ in range(3):
            disturbed(random, folder, request, bytes_of_whole, rounds)


def disturbed(random: Random, folder: Path, request: PartsRequest, sound: dict[str, bytes], rounds: Rounds) -> None:
    """Damages the parts, the plan or its listing; what is made of them has the sound vectors, or there is one line."""
    home = folder / "disturbed"
    shutil.copytree(request.output, home)
    plan = {path: path.read_bytes() for path in (request.plan, name_listing(request.plan)) if path.exists()}
    path = random.choice([*plan, *[p for p in home.rglob("*") if p.is_file()]])
    what = random.choice(["bytes", "bytes", "gone", "of another"])
    if what == "bytes":
        path.write_bytes(damaged(random, path.read_bytes()))
    elif what == "gone":
        path.unlink()
    else:
        parts = sorted(part for part in home.iterdir() if part.is_dir())
        first, second = random.choice(parts), random.choice(parts)
        if first != second:
            shutil.copytree(second, first, dirs_exist_ok=True)
    load_plan.cache_clear()
    try:
        collection = encode_parts(PartsRequest(**{**vars(request), "output": home}))
        vectors = ShardVectors(home, collection.manifest)
        undamaged = ShardVectors(request.output, collection.manifest)
        documents = [document.doc_id for document in load_reference(request.corpus).documents()]
        assert [vectors(d) for d in documents] == [undamaged(d) for d in documents], (path.name, what)
    except LexvlError as error:
        one_line(error)
        rounds.count("damaged parts refused")
    assert tree(request.output) == sound
    for file, content in plan.items():
        file.write_bytes(content)
    load_plan.cache_clear()
    shutil.rmtree(home)
    rounds.count("damaged parts and plans")


def lists_of(index: Path, queries: list[dict[str, int]], hits: int) -> list[Any]:
    stream = [ImpactQuery(str(number), query) for number, query in enumerate(queries)]
    answers: list[Any] = pairs(search_index(index, stream, hits))
    return answers


def disturb_index(random: Random, index: Path, other: Path) -> str:
    """One file or folder of an index in partitions changes."""
    path = random.choice(sorted(p for p in index.rglob("*") if p.is_file() and p.name != "write.lock"))
    partitions = sorted(p for p in index.iterdir() if p.is_dir())
    first, second = random.choice(partitions), random.choice([*partitions, *sorted(other.glob("partition-*"))])
    what = random.choice(["bytes", "bytes", "gone", "swapped", "partition gone"])
    if what == "bytes":
        path.write_bytes(damaged(random, path.read_bytes()))
    elif what == "gone":
        path.unlink()
    elif what == "partition gone":
        shutil.rmtree(first)
    elif first != second:
        copy = index.with_name("copied")
        shutil.copytree(second, copy)
        shutil.rmtree(first)
        copy.rename(first)
    return f"{what}: {path.relative_to(index)}, {first.name}, {second.parent.name}/{second.name}"


def cut(random: Random, folder: Path, vectors: Any, terms: list[str]) -> list[Path]:
    """Shards of the documents, cut into pieces at random."""
    documents = list(vectors.items())
    random.shuffle(documents)
    cuts = sorted(random.sample(range(1, len(documents)), min(random.randrange(4), len(documents) - 1)))
    sources = []
    for a, b in zip([0, *cuts], [*cuts, len(documents)], strict=True):
        write_shards(folder / f"s{a}", documents[a:b], terms=terms)
        sources.append(folder / f"s{a}")
    return sources


def test_lists_of_partitions_are_dot_products_or_refused(rounds: Rounds) -> None:
    for _seed, random, folder in rounds:
        terms, vectors = drawn(random)
        sources, index = cut(random, folder, vectors, terms), folder / "index"
        build = partial(build_index, sources, index, engine="partitions", threads=random.randint(1, 2))
        for _ in range(random.randrange(3)):
            with suppress(Ended), faults(folder, random.randint(1, 60), "end", random.random() < 0.5):
                build()
        build()
        assert sorted(path.name for path in folder.iterdir()) == ["index", *sorted(path.name for path in sources)]
        queries = [q for q in (some_query(random, terms) for _ in range(20)) if bound_of(vectors, q) < 1 << 24]
        hits = random.choice([1, 7, len(vectors) + 1])
        lists = [expected(vectors, query, hits) for query in queries]
        assert lists_of(index, queries, hits) == lists
        rounds.count("lists of partitions", len(lists))
        other = {f"x{number}": {terms[0]: number + 1} for number in range(5)}
        foreign = build_index(cut(random, folder / "other", other, terms), folder / "foreign", engine="partitions").path
        for _ in range(2):
            what = disturb_index(random, index, foreign)
            for act in ("searched", "built again"):
                try:
                    if act == "built again":
                        build()
                    assert lists_of(index, queries, hits) == lists, (act, what)
                except LexvlError as error:
                    one_line(error)
                    rounds.count("damaged partitions refused")
            shutil.rmtree(index)
            build()
            rounds.count("damaged partitions")
