"""A small world for attacks on commands: topics, shards, indexes and runs; and the commands that write others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml
from faults import Commands
from pretrained_networks import tiny_vit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lexvl-1"
WORDS = ["a", "dog", "man", "horse", "beach", "ocean", "pizza", "table", "people", "two", "on", "the", "near"]


class Task(NamedTuple):
    """A command that writes below a folder, and how its result is looked at.

    arguments  of `lexvl`; words that start with IN/ are below the folder
    output     below the folder
    first      commands that prepare the folder
    copied     an index of the world that is copied to `output` first
    sources    shards of the world that the index holds afterwards; empty for what is no index of shards
    index      the index below the output, if it is not the output itself
    """

    arguments: Sequence[object]
    output: str
    first: Sequence[Sequence[object]] = ()
    copied: str = ""
    sources: Sequence[str] = ()
    index: str = ""


class World:
    """What the commands read, and the commands."""

    def __init__(self, folder: Path, checkpoint: Path):
        self.folder = folder
        self.commands = Commands(folder / "notes")
        draw = Random(14)
        for name, prefix in (("texts", "d"), ("more", "m")):
            corpus = folder / name
            (corpus / "qrels").mkdir(parents=True)
            rows = [(f"{prefix}{n}", " ".join(draw.choices(WORDS, k=draw.randrange(9)))) for n in range(12)]
            lines(corpus / "corpus.jsonl", [{"_id": i, "title": "", "text": t} for i, t in [*rows, ("both", name)]])
            lines(corpus / "queries.jsonl", [{"_id": f"q{n}", "text": word} for n, word in enumerate(WORDS)])
            (corpus / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\t{prefix}1\t1\n")
        shutil.copytree(FIXTURES / "squares", folder / "squares")
        recipe, place = (FIXTURES / "tiny.yaml").read_text(), "squares/dataset.json,squares"
        (folder / "tiny.yaml").write_text(recipe.replace(place, f"{folder}/squares/dataset.json,{folder}/squares"))
        (folder / "stages.yaml").write_text(stages(folder, checkpoint, tiny_vit(folder / "vit")))
        (folder / "ids.txt").write_text("d1\nd2\n")
        (folder / "topics.tsv").write_text("".join(f"q{n}\t{word}\n" for n, word in enumerate(WORDS)))
        self.encoder = ["--encoder", "bag-of-tokens", "--checkpoint", checkpoint, "--device", "cpu"]
        self.made("encode", *self.corpus("texts"), "--output", folder / "impacts")
        self.made("encode", *self.corpus("more"), "--output", folder / "more-impacts")
        (folder / "alone").mkdir()
        for name in ("x1", "x2"):
            (folder / f"alone/{name}.txt").write_text("two people on a table")
        self.made("encode", "--corpus", f"folder:{folder}/alone", *self.encoder, "--output", folder / "alone-impacts")
        self.made("index", folder / "impacts", "--index", folder / "index")
        for run, hits in (("a", 3), ("b", 9)):
            self.made("search", "--index", folder / "index", "--output", folder / f"{run}.trec", "--hits", hits)
        self.tasks = tasks(self)
        self.undisturbed: dict[str, tuple[Any, int]] = {}

    def made(self, *arguments: object) -> None:
        """Runs a command that must succeed."""
        outcome = self.commands.run(arguments, self.folder / "nowhere")
        assert outcome.code == 0, (arguments, outcome)

    def corpus(self, name: str) -> list[object]:
        return ["--corpus", f"beir:{self.folder / name}", *self.encoder, "--shard-size", 5]

    def whole(self, name: str) -> tuple[Any, int]:
        """The state after an undisturbed task, and the number of its calls; its repetition says that it is finished."""
        if name not in self.undisturbed:
            task, folder = self.tasks[name], self.folder / f"whole {name}"
            outcome = self.commands.run(self.prepare(name, folder), folder)
            assert outcome.code == 0, outcome
            again = self.commands.run([word for word in placed(task, folder) if word != "--overwrite"], folder)
            assert again.code == 0 and (name in ("sheet", "photos") or "already" in again.err), again
            self.undisturbed[name] = (self.state(task, folder), outcome.calls)
        return self.undisturbed[name]

    def ends_as_undisturbed(self, name: str, folder: Path, note: object) -> None:
        """Runs a task again, and compares what it made."""
        self.is_as_undisturbed(name, folder, note, again=True)

    def is_as_undisturbed(self, name: str, folder: Path, note: object, again: bool) -> None:
        """Compares what a task made, with or without running it again."""
        task = self.tasks[name]
        state = self.state(task, folder, *(placed(task, folder) if again else ()))
        assert state == self.whole(name)[0], (name, note)
        litter = {path.name for path in folder.rglob("*") if path.name.endswith((".part", ".old", ".room"))}
        # The state before the last one stays on purpose, and --overwrite writes anew whatever is there.
        assert litter <= {"state.old"}, (name, note, litter)

    def tries(self, name: str) -> range:
        """Tries in one round: one where Java starts, more where it does not."""
        return range(1 if self.tasks[name].sources else 6)

    def prepare(self, name: str, folder: Path) -> list[object]:
        """Makes the folder as it is before a task; returns the arguments of its command."""
        task = self.tasks[name]
        folder.mkdir()
        if task.copied:
            shutil.copytree(self.folder / task.copied, folder / task.output)
        for arguments in task.first:
            self.made(*placed(arguments, folder))
        return placed(task, folder)

    def state(self, task: Task, folder: Path, *before: object) -> Any:
        """What the command made, without what differs between two calls: times, and the ids in Lucene's files.

        `before` is a command that runs first, in the same process; it must succeed.
        """
        if not task.sources and not task.index:
            if before:
                self.made(*before)
            return contents(folder)
        index, run = folder / task.output / task.index, self.folder / "looked.trec"
        check = ["index", *(self.folder / name for name in task.sources), "--index", index, "--check", ";"]
        search = ["search", "--index", index, "--topics", self.folder / "topics.tsv", "--output", run]
        self.made(*before, *([";"] if before else ()), *(check if task.sources else ()), *search, "--overwrite")
        names = sorted(path.name for path in (folder / task.output if task.index else folder).iterdir())
        return run.read_bytes(), json.loads((index / "manifest.json").read_text()), names


def tasks(world: World) -> Mapping[str, Task]:
    """The commands that are attacked."""
    at, corpus, train = world.folder, world.corpus("texts"), ["--output", "IN/t", "--device", "cpu", "--threads", 1]
    again = ["prune", at / "impacts", "--output", "IN/p", "--document-terms"]
    searching = ["search", "--index", at / "index", "--output", "IN/r.trec"]
    runs = ["--run", at / "a.trec", "--run", at / "b.trec", "--output", "IN/r.trec"]
    index, changed = ["index", at / "impacts", "--index", "IN/index"], ["index", "--index", "IN/index"]
    return {
        "encode": Task(["encode", *corpus, "--output", "IN/impacts"], "impacts"),
        "encode bm25": Task(["encode", *corpus[:2], "--encoder", "bm25", "--output", "IN/t"], "t"),
        "encode topics": Task(["encode", *corpus, "--topics", corpus[1], "--output", "IN/q.jsonl.gz"], "q.jsonl.gz"),
        "prune": Task(["prune", at / "impacts", "--output", "IN/new/p", "--document-terms", 2], "new/p"),
        "prune again": Task([*again, 2, "--overwrite"], "p", [[*again, 1]]),
        "index": Task(index, "index", sources=["impacts"]),
        "index again": Task(
            ["index", at / "more-impacts", "--index", "IN/index", "--overwrite"], "index", (), "index", ["more-impacts"]
        ),
        "index dense": Task(["index", FIXTURES / "dense/images", "--index", "IN/index"], "index"),
        "merge": Task(
            ["index", at / "impacts", at / "alone-impacts", "--index", "IN/index"],
            "index",
            sources=["impacts", "alone-impacts"],
        ),
        "append": Task(
            [*changed, at / "alone-impacts", "--append"], "index", (), "index", ["impacts", "alone-impacts"]
        ),
        "replace": Task(
            [*changed, at / "more-impacts", "--replace"], "index", (), "index", ["impacts", "more-impacts"]
        ),
        "delete": Task([*changed, "--delete-ids", at / "ids.txt"], "index", (), "index", ["impacts"]),
        "search": Task(searching, "r.trec"),
        "search again": Task([*searching, "--hits", 2, "--overwrite"], "r.trec", [searching]),
        "fuse": Task(["fuse", *runs], "r.trec"),
        "hybrid": Task(["hybrid", *runs, "--device", "cpu"], "r.trec"),
        "rerank": Task(["rerank", *runs[:2], *runs[4:], "--device", "cpu"], "r.trec"),
        "train": Task(["train", "--recipe", at / "tiny.yaml", *train], "t"),
        "train stages": Task(["train", "--recipe", at / "stages.yaml", *train], "t"),
        "photos": Task(
            ["photos", at / "squares", "a red square", "--checkpoint", "demo-vdr", *train[2:4], "--output", "IN/album"],
            "album",
            index="index",
        ),
        "sheet": Task(["sheet", "--index", at / "index", "--query", "a dog", "--output", "IN/s.png"], "s.png"),
    }


def stages(folder: Path, text: Path, image: Path) -> str:
    """A recipe of two stages over tiny pretrained networks: the heads over stored features, then all of the image."""
    trained = ["encoder_?.head.*", "encoder_?.bias", "encoder_p.proj"]
    stage = {
        "objective": {"name": "vdr", "options": {"topk": 8, "normalised": True}},
        "optimisation": {"steps": 3, "batch_size": 4, "warmup_steps": 1, "average": 0.5},
    }
    recipe = {
        "name": "tiny-stages",
        "data": {"corpus": f"karpathy:{folder}/squares/dataset.json,{folder}/squares"},
        "model": {
            "kind": "vdr-crossmodal",
            "topk": 8,
            "text": {"checkpoint": str(text), "least": 1, "max_length": 16, "dropout": 0.1},
            "image": {"checkpoint": str(image), "grid": 2, "dropout": 0.1},
        },
        "stages": [
            {**stage, "trained": trained, "views": 2, "augmentation": {"flip": True}},
            {**stage, "trained": [*trained, "encoder_p.network.*"]},
        ],
        "validate_every": 3,
        "state_every": 2,
        "log_every": 1,
    }
    return yaml.safe_dump(recipe)


def placed(task: Task | Sequence[object], folder: Path) -> list[object]:
    """The arguments of a task or a command, with the folder for IN/."""
    arguments = task.arguments if isinstance(task, Task) else task
    return [folder / str(word)[3:] if str(word).startswith("IN/") else word for word in arguments]


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, without times and without the folder's own name."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: cleaned(name, data, folder) for name, data in files.items()}


def cleaned(name: str, data: bytes, folder: Path) -> bytes:
    """The content of a file without what differs between two undisturbed calls."""
    timeless: dict[str, Callable[[bytes], bytes]] = {
        "trec.manifest.json": lambda data: json.dumps({**json.loads(data), "efficiency": {}}).encode(),
        "log.jsonl": lambda data: b"".join(
            json.dumps({key: value for key, value in json.loads(line).items() if key != "seconds"}).encode()
            for line in data.splitlines()
        ),
        "step.json": lambda data: json.dumps({**json.loads(data), "seconds": 0}).encode(),
        "random_states_0.pkl": lambda data: b"",
        "digests.json": lambda data: b"",
        "training.json": lambda data: json.dumps({**json.loads(data), "validation": 0}).encode(),
    }
    change = next((change for end, change in timeless.items() if name.endswith(end)), lambda data: data)
    return change(data.replace(bytes(folder), b"FOLDER"))
