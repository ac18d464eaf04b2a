"""All parts of a plan in one folder: by any runner, in any order, after any failure, the same bytes."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from byte_towers import tree

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import EncoderSpec
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.queries.query_vectors import ShardVectors
from lexvl_anserini.searching.building import build_index, list_folders
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.cluster import parts
from lexvl_plugins.cluster.encode import command as encode_command
from lexvl_plugins.cluster.options import RunnerOptions
from lexvl_plugins.cluster.parts import EncodedCollection, PartsRequest, encode_part, encode_parts
from lexvl_plugins.cluster.plans import plan_corpus
from lexvl_plugins.cluster.runners import RUNNERS, FailedPart, LocalRunner, get_runner, run_on
from tests.plugins.cluster.test_plans import corpus_of

PARTS = 4
SMALL = Layout(shard_size=3)


@pytest.fixture
def request_of(tmp_path: Path, golden: Path) -> Callable[..., PartsRequest]:
    """`request_of(output)`: a planned corpus of 23 documents in four parts."""
    name = f"beir:{corpus_of(tmp_path / 'corpus')}"
    encoder = EncoderSpec("bag-of-tokens", str(golden / "splade/ckpt_bert"), device="cpu")
    plan = plan_corpus(load_dataset(name), encoder.load(), PARTS, layout=SMALL, block_size=5)
    plan.write(tmp_path / "plan.json")

    def made(output: str, **changes: Any) -> PartsRequest:
        values = {"plan": tmp_path / "plan.json", "output": tmp_path / output, "corpus": CorpusRef(name)}
        values |= {"encoder": encoder, "quantiser": Quantiser(), "layout": SMALL, **changes}
        return PartsRequest(**values)

    return made


class BackwardRunner(LocalRunner):
    """Does the last part first."""

    def run(self, work: Callable[[int], Any], numbers: Iterable[int], cores: int = 1) -> Iterator[tuple[int, Any]]:
        yield from super().run(work, reversed(list(numbers)), cores)


def test_the_parts_are_those_of_single_calls_in_any_order(request_of, monkeypatch, tmp_path):
    monkeypatch.setitem(RUNNERS, "backward", f"{__name__}:BackwardRunner")  # type: ignore[arg-type]
    whole = encode_parts(request_of("forward"))
    with run_on(RunnerOptions("backward")) as runner:
        assert get_runner() is runner and encode_parts(request_of("backward")) == whole
    assert type(get_runner()) is LocalRunner
    assert tree(tmp_path / "forward") == tree(tmp_path / "backward")
    request = request_of("alone")
    for number in range(PARTS):
        dataset, model = load_dataset(request.corpus.name), request.encoder.load()
        folder = f"part-{number:05}-of-00004"
        write_impacts(dataset, model, tmp_path / "alone" / folder, layout=SMALL, part=Part(number, PARTS))
        assert tree(tmp_path / "alone" / folder) == tree(tmp_path / "forward" / folder)
    assert (whole.parts, whole.manifest.counts.documents) == (PARTS, 23)
    assert whole.manifest.shards == () and whole.manifest.corpus.part is None


def test_one_index_of_a_collection_is_that_of_the_whole_corpus(request_of, tmp_path):
    request = request_of("out")
    encode_parts(request)
    assert list_folders(request.output) == [tmp_path / f"out/part-{n:05}-of-00004" for n in range(PARTS)]
    write_impacts(load_dataset(request.corpus.name), request.encoder.load(), tmp_path / "whole", layout=SMALL)
    one, other = build_index(tmp_path / "whole", tmp_path / "i"), build_index(request.output, tmp_path / "j")
    assert (one.documents, one.manifest.corpus) == (other.documents, other.manifest.corpus)
    parts = build_index(request.output, tmp_path / "k", engine="partitions")
    vectors = [ShardVectors(tmp_path / "whole", one.manifest), ShardVectors(request.output, parts.manifest)]
    assert all(vectors[0](f"d{number}") == vectors[1](f"d{number}") for number in range(23))


def test_a_failed_part_is_named_and_the_others_are_kept(request_of, monkeypatch, tmp_path):
    encoded: list[int] = []

    def poisoned(request: PartsRequest, number: int) -> int:
        encoded.append(number)
        if number == 1 and encoded.count(1) == 1:
            raise ArtefactError("cannot be written")
        return encode_part(request, number)

    monkeypatch.setattr(parts, "encode_part", poisoned)
    others = "1 of 4 parts failed, the others are finished and kept"
    one = "part-00001-of-00004: cannot be written; the same command goes on with these"
    with pytest.raises(LexvlError, match=f"^{others}: {one}$"):
        encode_parts(request_of("out"))
    assert not (tmp_path / "out/collection.json").exists()
    with pytest.raises(ArtefactError, match="out: parts that are not all encoded; run the same encode command again"):
        list_folders(tmp_path / "out")
    before = (tmp_path / "out/part-00003-of-00004/manifest.json").stat().st_mtime_ns
    encode_parts(request_of("out"))
    assert (tmp_path / "out/part-00003-of-00004/manifest.json").stat().st_mtime_ns == before
    encode_parts(request_of("again"))
    assert tree(tmp_path / "out") == tree(tmp_path / "again")


def test_a_shard_that_changed_afterwards_is_found(request_of, tmp_path):
    """A part that is finished is compared with the digests of its shards, byte for byte, before it counts again."""
    encode_parts(request_of("out"))
    shard = tmp_path / "out/part-00002-of-00004/docs/shard-00000.jsonl"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"d1", b"d2", 1))
    with pytest.raises(LexvlError, match=r"part-00002-of-00004: .*shard-00000.jsonl: not as it was written; remove it"):
        encode_parts(request_of("out"))
    shard.unlink()
    encode_parts(request_of("out"))
    assert shard.read_bytes() == data


def test_another_request_is_refused_unless_it_may_overwrite(request_of, tmp_path):
    encode_parts(request_of("out"))
    other = Layout(shard_size=5)
    with pytest.raises(LexvlError, match="the plan is of another request"):
        encode_parts(request_of("other", layout=other))
    name = request_of("out").corpus.name
    plan = plan_corpus(load_dataset(name), request_of("out").encoder.load(), PARTS, layout=other, block_size=5)
    plan.write(tmp_path / "other.json")
    changed = partial(request_of, "out", plan=tmp_path / "other.json", layout=other)
    with pytest.raises(ArtefactError, match=r"out: holds a collection of another request \(layout"):
        encode_parts(changed())
    encode_parts(changed(overwrite=True))
    assert read_manifest(tmp_path / "out/part-00000-of-00004").layout["shard_size"] == 5


def test_a_part_of_another_encoder_is_no_part(request_of, tmp_path):
    encode_parts(request_of("out"))
    path = tmp_path / "out/part-00001-of-00004/manifest.json"
    content = json.loads(path.read_text())
    content["encoder"]["checkpoint_digest"] = "other"
    path.write_text(json.dumps(content))
    other = r"part-00001-of-00004: .*holds shards of another request \(encoder.checkpoint_digest: "
    with pytest.raises(LexvlError, match=other):
        encode_parts(request_of("out"))


@pytest.mark.parametrize("content", [{}, {"format": "lexvl-collection/9"}, {"format": "lexvl-collection/1"}])
def test_a_damaged_collection_is_one_line(content, tmp_path):
    (tmp_path / "collection.json").write_text(json.dumps(content))
    with pytest.raises(ArtefactError, match="collection.json: no collection of this version"):
        EncodedCollection.read(tmp_path)


def test_runners_by_name():
    with pytest.raises(UnknownName, match="unknown runner 'rai'; did you mean 'ray'"), run_on(RunnerOptions("rai")):
        pass


def test_the_local_runner_passes_failures_on_and_raises_faults():
    def work(number: int) -> int:
        if number == 2:
            raise ArtefactError("full")
        if number == 3:
            raise ZeroDivisionError
        return number * number

    results = LocalRunner().run(work, range(5))
    assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, FailedPart("full"))]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_the_command_encodes_all_parts(tmp_path, golden, capsys):
    corpus, plan, output = f"beir:{corpus_of(tmp_path / 'corpus')}", tmp_path / "plan.json", str(tmp_path / "out")
    encoder = {"encoder": "bag-of-tokens", "checkpoint": str(golden / "splade/ckpt_bert"), "device": "cpu"}
    call = partial(encode_command, plan=plan, corpus=corpus, **encoder)
    call(parts=3)
    call(output=output, style="json")
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (printed["parts"], printed["documents"]) == (3, 23)
    other_parts = r"plan.json: holds a plan of another request \(parts: 3 found, 5 requested\)"
    with pytest.raises(ArtefactError, match=other_parts):
        call(parts=5)
    call(parts=5, overwrite=True)
    another = "part-00000-of-00003: a part of another plan, this one has 5 parts; name another"
    other_encoder = r'the plan is of another request \(encoder: "bag-of-tokens" found, "splade"'
    for options, error, message in (
        ({"parts": 3, "output": "x"}, UsageError, "--parts N writes the --plan alone"),
        ({"output": output, "overwrite": True}, ArtefactError, another),
        ({"encoder": "splade", "output": str(tmp_path / "other")}, ArtefactError, other_encoder),
        ({"corpus": None, "topics": "demo/test", "output": "x"}, UsageError, "--topics are encoded as a whole"),
        ({"workers": 2}, UsageError, "are for --runner ray"),
    ):
        with pytest.raises(error, match=message):
            call(**options)


def test_an_index_of_some_parts_warns_of_the_others(request_of, tmp_path, caplog):
    encode_parts(request_of("out"))
    folders = [tmp_path / f"out/part-{number:05}-of-00004" for number in (0, 2)]
    build_index(folders, tmp_path / "some")
    assert "parts 1, 3 of 4 of beir:" in caplog.text and "are not among these folders" in caplog.text
    caplog.clear()
    build_index(tmp_path / "out", tmp_path / "all")
    assert "are not among" not in caplog.text
