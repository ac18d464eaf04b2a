"""A small world for attacks on commands: topics, shards, indexes and runs; and the commands that write others."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from corpus_folders import write_beir
from faults import Commands
from invoking import write_texts

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lexvl-1"
WORDS = ["a", "dog", "man", "horse", "beach", "ocean", "pizza", "table", "people", "two", "on", "the", "near"]
# Functions that take out of a file what differs between two undisturbed calls, by the end of its name.
Timeless = Mapping[str, Callable[[bytes], bytes]]


def without(**changes: Any) -> Callable[[bytes], bytes]:
    """A function that gives keys of a JSON object these values."""
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


def without_times(data: bytes) -> bytes:
    """A run's manifest with the names of what was measured."""
    manifest = json.loads(data)
    return json.dumps({**manifest, "efficiency": sorted(manifest["efficiency"])}).encode()


RUNS: Timeless = {"trec.manifest.json": without_times}


class Task(NamedTuple):
    """A command that writes below a folder, and how its result is looked at."""

    arguments: Sequence[object]  # of `lexvl`; words that start with IN/ are below the folder
    output: str  # below the folder
    first: Sequence[Sequence[object]] = ()  # commands that prepare the folder
    copied: str = ""  # an index of the world that is copied to `output` first
    sources: Sequence[str] = ()  # shards that the index holds afterwards; empty for what is no index of shards
    index: str = ""  # the index below the output, if it is not the output itself
    takes_long: bool = False  # long enough that it can be killed at a moment, mostly in Java
    again: str = "already"  # what the same command says when all is done; "" where it says nothing of that
    timeless: Timeless = RUNS  # how its files are compared


class World:
    """What the commands read, and the commands; `tasks` makes those that are attacked, of the core by default."""

    def __init__(self, folder: Path, checkpoint: Path, tasks: Callable[..., Mapping[str, Task]] | None = None):
        self.folder = folder
        self.commands = Commands(folder / "notes")
        draw = Random(14)
        topics = {f"q{n}": word for n, word in enumerate(WORDS)}
        for name, prefix in (("texts", "d"), ("more", "m")):
            texts = {f"{prefix}{n}": " ".join(draw.choices(WORDS, k=draw.randrange(9))) for n in range(12)}
            write_beir(folder / name, {**texts, "both": name}, topics, [("q1", f"{prefix}1")])
        (folder / "ids.txt").write_text("d1\nd2\n")
        (folder / "topics.tsv").write_text("".join(f"{query_id}\t{word}\n" for query_id, word in topics.items()))
        self.encoder = ["--encoder", "bag-of-tokens", "--checkpoint", checkpoint, "--device", "cpu"]
        self.made("encode", *self.corpus("texts"), "--output", folder / "impacts")
        self.made("encode", *self.corpus("more"), "--output", folder / "more-impacts")
        write_texts(folder / "alone", dict.fromkeys(("x1.txt", "x2.txt"), "two people on a table"))
        self.made("encode", "--corpus", f"folder:{folder}/alone", *self.encoder, "--output", folder / "alone-impacts")
        self.made("index", folder / "impacts", "--index", folder / "index")
        for run, hits in (("a", 3), ("b", 9)):
            self.made("search", "--index", folder / "index", "--output", folder / f"{run}.trec", "--hits", hits)
        self.tasks = (tasks or core_tasks)(self)
        self.undisturbed: dict[str, tuple[Any, int]] = {}

    def made(self, *arguments: object) -> None:
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
            assert again.code == 0 and task.again in again.err, again
            self.undisturbed[name] = (self.state(task, folder), outcome.calls)
        return self.undisturbed[name]

    def ends_as_undisturbed(self, name: str, folder: Path, note: object, again: bool = True) -> None:
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
        """What the command made but times and Lucene's ids; `before` is a command that runs first and must succeed."""
        if not task.sources and not task.index:
            if before:
                self.made(*before)
            return contents(folder, task.timeless)
        index, run = folder / task.output / task.index, self.folder / "looked.trec"
        check = ["index", *(self.folder / name for name in task.sources), "--index", index, "--check", ";"]
        search = ["search", "--index", index, "--topics", self.folder / "topics.tsv", "--output", run]
        self.made(*before, *([";"] if before else ()), *(check if task.sources else ()), *search, "--overwrite")
        names = sorted(path.name for path in (folder / task.output if task.index else folder).iterdir())
        return run.read_bytes(), json.loads((index / "manifest.json").read_text()), names


def core_tasks(world: World) -> Mapping[str, Task]:
    at, corpus = world.folder, world.corpus("texts")
    again = ["prune", at / "impacts", "--output", "IN/p", "--document-terms"]
    searching = ["search", "--index", at / "index", "--output", "IN/r.trec"]
    runs = ["--run", at / "a.trec", "--run", at / "b.trec", "--output", "IN/r.trec"]
    target = ["--index", "IN/index"]
    more, alone = at / "more-impacts", at / "alone-impacts"
    sheet = ["sheet", "--index", at / "index", "--query", "a dog", "--output", "IN/s.png"]

    def change(words: Sequence[object], *sources: str, copied: str = "index") -> Task:
        return Task(["index", *words], "index", copied=copied, sources=sources, takes_long=True)

    return {
        "encode": Task(["encode", *corpus, "--output", "IN/impacts"], "impacts"),
        "encode bm25": Task(["encode", *corpus[:2], "--encoder", "bm25", "--output", "IN/t"], "t"),
        "encode topics": Task(["encode", *corpus, "--topics", corpus[1], "--output", "IN/q.jsonl.gz"], "q.jsonl.gz"),
        "prune": Task(["prune", at / "impacts", "--output", "IN/new/p", "--document-terms", 2], "new/p"),
        "prune again": Task([*again, 2, "--overwrite"], "p", [[*again, 1]]),
        "index": change([at / "impacts", *target], "impacts", copied=""),
        "index again": change([more, *target, "--overwrite"], "more-impacts"),
        "index dense": Task(["index", FIXTURES / "dense/images", *target], "index"),
        "merge": change([at / "impacts", alone, *target], "impacts", "alone-impacts", copied=""),
        "append": change([*target, alone, "--append"], "impacts", "alone-impacts"),
        "replace": change([*target, more, "--replace"], "impacts", "more-impacts"),
        "delete": change([*target, "--delete-ids", at / "ids.txt"], "impacts"),
        "search": Task(searching, "r.trec", takes_long=True),
        "search again": Task([*searching, "--hits", 2, "--overwrite"], "r.trec", [searching]),
        "fuse": Task(["fuse", *runs], "r.trec"),
        "hybrid": Task(["hybrid", *runs, "--device", "cpu"], "r.trec"),
        "rerank": Task(["rerank", *runs[:2], *runs[4:], "--device", "cpu"], "r.trec"),
        "sheet": Task(sheet, "s.png", again=""),
    }


def placed(task: Task | Sequence[object], folder: Path) -> list[object]:
    """The arguments of a task or a command, with the folder for IN/."""
    words = task.arguments if isinstance(task, Task) else task
    return [folder / str(word)[3:] if str(word).startswith("IN/") else word for word in words]


def contents(folder: Path, timeless: Timeless = RUNS) -> dict[str, bytes]:
    """Every file below a folder, without times and without the folder's own name."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        change = next((change for end, change in timeless.items() if name.endswith(end)), bytes)
        found[name] = change(path.read_bytes().replace(bytes(folder), b"FOLDER"))
    return found
