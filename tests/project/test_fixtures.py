"""Artefacts of `lexvl/1` that 0.1.0 and 0.2.0 wrote: they load, search, resume, merge and go on."""

import gzip
import json
import logging
import shlex
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_towers import tree
from invoking import invoked
from word_towers import rows_of

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.manifest import INDEX_DIGESTS
from lexvl_anserini.searching.searcher import search_index

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lexvl-1"
COMMANDS = [
    shlex.split(line) for line in (FIXTURES / "commands.txt").read_text().splitlines() if not line.startswith("#")
]
CHECKPOINTS = {"bert": "splade/ckpt_bert", "vdr": "vdr/text-tiny", "tiny-bert": "vdr/tiny-bert"}
# Encoders without floating-point arithmetic: the same bytes on every machine.
EXACT = ("bag-of-tokens", "bm25")


def option(command: list[str], *names: str) -> str:
    """The value of the first of some options that the command has."""
    return next((command[command.index(name) + 1] for name in names if name in command), "")


MAKING = [command for command in COMMANDS if not {"--append", "--delete-ids"} & set(command)]
MADE = {option(command, "--output", "--index"): command for command in MAKING}
RUNS = [name for name in MADE if name.startswith("runs/")]
INDEXES = [name for name in MADE if name.startswith("indexes/")]
SHARDS = [name for name in MADE if name.startswith(("impacts/", "dense/", "text/"))]


@pytest.fixture(scope="session")
def checkpoints(golden: Path) -> dict[str, Path]:
    return {name: golden / place for name, place in CHECKPOINTS.items()}


@pytest.fixture
def place(checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixtures with their checkpoints; the working directory."""
    folder = tmp_path / "fixtures"
    shutil.copytree(FIXTURES, folder)
    for name, source in checkpoints.items():
        shutil.copytree(source, folder / "checkpoints" / name)
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        if "<here>" in text:
            path.write_text(text.replace("<here>", str(folder)), encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def invoke(module: str, *arguments: str) -> str:
    return invoked(import_module(module).command, *arguments)


def again(name: str, moved: Mapping[str, str] = {}, *more: str) -> None:
    """The command that made a fixture, with other places for some of its words."""
    module, *arguments = MADE[name]
    invoke(module, *[moved.get(argument, argument) for argument in arguments], *older_rule(name), *more)


def older_rule(name: str) -> list[str]:
    """The option with which a search has the rule that was the default of `beir:` folders until 0.2.0."""
    if "lexvl_anserini.search" not in MADE[name]:
        return []
    return ["--remove-query"] if read(FIXTURES / f"{name}.manifest.json")["remove_query"] else []


def states(path: Path) -> dict[str, tuple[int, bytes]]:
    """The time of change and the content of a file, or of all files of a folder."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files if file.name != "write.lock"}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def encoder_of(name: str) -> str:
    """The encoder that a fixture was made with; a name of its own for what several encoders made."""
    path = FIXTURES / name
    manifest = path / "manifest.json" if path.is_dir() else path.with_name(f"{path.name}.manifest.json")
    return str(read(manifest)["encoder"]["name"])


def close(found: dict[str, float], expected: dict[str, float]) -> bool:
    """Whether two vectors or lists of scores differ by at most a fiftieth of their sum."""
    difference = sum(abs(found.get(key, 0) - expected.get(key, 0)) for key in found.keys() | expected.keys())
    return difference <= 0.02 * sum(map(abs, expected.values())) + 1e-6


def assert_same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]], exact: bool) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            if key == "vector" and not exact:
                assert close(one[key], other[key])
            elif key == "emb" and not exact:
                np.testing.assert_allclose(one[key], other[key], atol=1e-4)
            else:
                assert one[key] == other[key]


def text_of(run: Path) -> str:
    content = run.read_bytes()
    return (gzip.decompress(content) if run.suffix == ".gz" else content).decode()


def scores_of(run: Path) -> dict[str, dict[str, float]]:
    lists: dict[str, dict[str, float]] = {}
    for query_id, _, doc_id, _, score, _ in map(str.split, text_of(run).splitlines()):
        lists.setdefault(query_id, {})[doc_id] = float(score)
    return lists


def assert_same_run(found: Path, expected: Path, exact: bool) -> None:
    """The same bytes, or the same documents with scores that differ by rounding."""
    if exact:
        assert text_of(found) == text_of(expected)
        return
    ours, theirs = scores_of(found), scores_of(expected)
    assert {key: row.keys() for key, row in ours.items()} == {key: row.keys() for key, row in theirs.items()}
    assert all(close(ours[query_id], theirs[query_id]) for query_id in ours)


def same_manifest(found: Path, expected: Path, exact: bool = True) -> None:
    """Every entry of the old manifest is in the new one; sizes and scales of float models agree by rounding only."""
    # Checkpoints are stored with their absolute paths.
    ours, theirs = (json.loads(path.read_text("utf-8").replace(f"{Path.cwd()}/", "")) for path in (found, expected))
    measured = {"versions", "efficiency"} | (set() if exact else {"counts", "quantiser", "shards"})
    for key in theirs.keys() - measured:
        if key == "encoder" and "runs" in ours[key].get("options", {}):
            ours[key]["options"].pop("runs"), theirs[key]["options"].pop("runs")
        if key == "corpus":
            # 0.1.0 did not note the digest of pictures.
            ours[key].pop("contents", None)
        for step in ours[key].get("pruning", ()) if key == "layout" else ():
            step.pop("shards")  # 0.1.0 did not note what was pruned
        if key == "topics_sha256" and not theirs[key]:
            continue  # 0.1.0 noted the digest of files only
        if key == "index":  # without a digest of what it held
            ours[key] = INDEX_DIGESTS.sub("", ours[key])
        assert ours[key] == theirs[key], key


def at_versions_of_this_machine(folder: Path) -> None:
    """Gives an unfinished folder the versions by which this machine encodes; others are refused."""
    invoke("lexvl_anserini.encode", *MADE["impacts/bag"][1:-4], "--device", "cpu", "--output", "impacts/versions")
    unfinished = read(folder / "unfinished.json")
    unfinished["versions"] = read(Path("impacts/versions/manifest.json"))["versions"]
    (folder / "unfinished.json").write_text(json.dumps(unfinished, indent=2) + "\n")


# Runs that do not say what was in their index, which the same command makes again.
MADE_AGAIN = {name for name in RUNS if "lexvl_anserini.fuse" not in MADE[name]}

# An index that changed is another than that of its first shards; pruned shards do not say of which shards they are.
FOUND = {*MADE} - {"indexes/changed", "impacts/pruned"} - MADE_AGAIN


@pytest.mark.parametrize("name", sorted(name for name in FOUND if not name.startswith("training/")))
def test_the_same_command_finds_it_finished(name: str, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = states(place / name)
    with caplog.at_level(logging.INFO, "lexvl_anserini"):
        again(name)
    assert states(place / name) == before
    assert "already" in caplog.text


@pytest.mark.parametrize("name", SHARDS)
def test_encoding_again_gives_the_same_shards(name: str, place: Path) -> None:
    again(name, {name: "new"})
    exact = encoder_of(name) in EXACT or "prune" in MADE[name][0]
    assert_same_rows(rows_of(place / "new"), rows_of(place / name), exact)
    # Compressed bytes are a matter of the libraries' versions.
    plain = exact and not {"--compress", "parquet"} & set(MADE[name]) and name != "text/bm25"
    same_manifest(place / "new/manifest.json", place / name / "manifest.json", plain or "prune" in MADE[name][0])
    if plain:
        assert tree(place / "new/docs") == tree(place / name / "docs")
    for extra in ("vocab.txt", "skipped.jsonl"):
        if (place / name / extra).is_file():
            assert (place / "new" / extra).read_bytes() == (place / name / extra).read_bytes()


def test_unfinished_shards_are_completed_to_the_same_bytes(place: Path) -> None:
    folder, whole = place / "impacts/unfinished", place / "impacts/bag"
    at_versions_of_this_machine(folder)
    first = (folder / "docs/shard-00000.jsonl").stat().st_mtime_ns
    again("impacts/bag", {"impacts/bag": "impacts/unfinished"})
    assert tree(folder / "docs") == tree(whole / "docs") and len(tree(whole / "docs")) == 3
    assert (folder / "docs/shard-00000.jsonl").stat().st_mtime_ns == first
    assert {path.name for path in folder.iterdir()} == {"docs", "manifest.json", "vocab.txt"}
    same_manifest(folder / "manifest.json", whole / "manifest.json")


def test_unfinished_shards_of_other_versions_are_refused(place: Path) -> None:
    path = place / "impacts/unfinished/unfinished.json"
    path.write_text(json.dumps({**read(path), "versions": {"torch": "0"}}))
    with pytest.raises(LexvlError, match="versions"):
        again("impacts/bag", {"impacts/bag": "impacts/unfinished"})
    with pytest.raises(LexvlError, match="unfinished"):
        invoke("lexvl_anserini.index", "impacts/unfinished", "--index", "new")


@pytest.mark.parametrize("name", [name for name in INDEXES if "dense" not in name and "bm25" not in name])
def test_an_index_agrees_with_its_shards(name: str, place: Path) -> None:
    shards = [argument for argument in MADE[name] if argument.startswith("impacts/")]
    if name == "indexes/changed":
        with pytest.raises(LexvlError):
            invoke("lexvl_anserini.index", *shards, "--index", name, "--check")
        return
    found = invoke("lexvl_anserini.index", *shards, "--index", name, "--check", "--format", "json")
    assert json.loads(found)["problems"] == 0


@pytest.mark.parametrize("name", RUNS)
def test_the_same_command_writes_the_same_run(name: str, place: Path) -> None:
    output = f"new/{Path(name).name}"
    again(name, {name: output})
    assert_same_run(place / output, place / name, encoder_of(name) in EXACT or "lexvl_anserini.fuse" in MADE[name])
    same_manifest(place / f"{output}.manifest.json", place / f"{name}.manifest.json")
    expected = read(place / f"{name}.manifest.json")["efficiency"]
    # Which postings served is noted since there are two forms of them.
    added = {"queries_from_lucene"} if "mean_query_terms" in expected else set()
    assert read(place / f"{output}.manifest.json")["efficiency"].keys() == expected.keys() | added


@pytest.mark.parametrize("name", sorted(MADE_AGAIN))
def test_the_same_command_makes_a_run_again(name: str, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lexvl_anserini"):
        again(name)
        assert "an older version wrote it, without digests of all that decides it" in caplog.text
        assert_same_run(place / name, FIXTURES / name, encoder_of(name) in EXACT)
        again(name)
    assert "finished already" in caplog.text


# Runs, by the index that they searched; the others have its name.
OTHER_NAMES = {"runs/refined.trec": "indexes/splade", "runs/encoded-0.2.trec": "indexes/bag-0.2"}
SEARCHED = "bag|refined|parts|images|dense-images|dense-texts|bm25|bag-0.2|encoded-0.2|bm25-0.2|dense-texts-0.2"


@pytest.mark.parametrize("run", [f"runs/{name}.trec" for name in SEARCHED.split("|")])
def test_an_index_built_from_the_shards_gives_the_same_run(run: str, place: Path) -> None:
    index = OTHER_NAMES.get(run, f"indexes/{Path(run).stem}")
    again(index, {index: "new/index"})
    again(run, {index: "new/index", run: "new/run.trec"})
    assert_same_run(place / "new/run.trec", place / run, encoder_of(run) in EXACT)
    ours, theirs = read(place / "new/index/index.json"), read(place / index / "index.json")
    # Each Lucene writes files of its own sizes and its version, which 0.1.0 did not note; the digest covers it.
    compared = theirs.keys() - {"bytes", "digest", "lucene"}
    assert {key: ours[key] for key in compared} == {key: theirs[key] for key in compared}


def test_an_index_takes_documents_and_loses_some(place: Path) -> None:
    """Appending and deleting, and merging an index with shards, give what the changed index holds."""
    ids = place / "ids.txt"
    invoke("lexvl_anserini.index", "impacts/more", "--index", "indexes/bag", "--append")
    invoke("lexvl_anserini.index", "--index", "indexes/bag", "--delete-ids", str(ids))
    invoke("lexvl_anserini.index", "indexes/parts", "impacts/more", "--index", "new/merged")
    invoke("lexvl_anserini.index", "--index", "new/merged", "--delete-ids", str(ids))
    for number, index in enumerate(("indexes/bag", "new/merged")):
        arguments = ["--topics", "topics.tsv", "--output", f"new/{number}.trec", "--device", "cpu"]
        invoke("lexvl_anserini.search", "--index", index, *arguments)
        assert_same_run(place / f"new/{number}.trec", place / "runs/changed.trec", exact=True)
    with pytest.raises(LexvlError, match="d02"):
        invoke("lexvl_anserini.index", "impacts/part-0", "--index", "indexes/changed", "--append")
    invoke("lexvl_anserini.index", "impacts/more", "--index", "indexes/changed", "--replace")
    again("runs/changed.trec", {"runs/changed.trec": "new/2.trec"})
    assert_same_run(place / "new/2.trec", place / "runs/changed.trec", exact=True)


def test_an_index_without_our_files_is_searched_with_the_manifest_of_its_shards(place: Path) -> None:
    for name in ("index.json", "manifest.json", "vocab.txt"):
        (place / "indexes/bag" / name).unlink()
    again("runs/bag.trec", {"runs/bag.trec": "new.trec"}, "--manifest", "impacts/bag/manifest.json")
    assert_same_run(place / "new.trec", place / "runs/bag.trec", exact=True)


def test_indexes_explain_and_show_and_runs_are_measured(place: Path) -> None:
    """By commands, and by the public functions; the run's manifest names the dataset with the judgements."""

    def ask(command: str, index: str, query: str, *others: str) -> Any:
        arguments = ("--index", f"indexes/{index}", "--query", query, "--format", "json", "--device", "cpu", *others)
        return json.loads(invoke(f"lexvl_anserini.{command}", *arguments))

    assert [row["score"] for row in ask("explain", "bag", "a dog on the beach", "--doc-id", "d11")] == [5]
    assert ask("search", "splade", "a dog on the beach", "--hits", "1", "--texts")[0]["text"]
    assert ask("search", "images", "a red boat on the sea")[0]["doc_id"] == "100"
    topics = list(load_dataset("beir:texts").topics())
    found = search_index("indexes/bag", topics, hits=3, remove_query=True, device="cpu")
    lines = [f"{d.query_id}\t{d.doc_id}\t{d.rank}\n" for documents in found for d in documents]
    assert "".join(lines) == (place / "runs/msmarco.tsv").read_text()
    (row,) = json.loads(invoke("eval.score", "--run", "runs/bag.trec", "--measure", "Recall@1", "--format", "json"))
    assert (row["dataset"], row["value"]) == ("beir:texts/test", pytest.approx(0.8))
