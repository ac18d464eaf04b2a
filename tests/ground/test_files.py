"""Files appear whole or not at all, also with two writers of one output, and where processes die."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from corpus_folders import write_beir
from faults import Ended, draw_calls, faults, kills
from invoking import invoked, write_texts
from worlds import Task, contents, placed

from eval.analyses.classes.class_sets import read_classes
from lexvl_anserini import encode, fuse, index, prune, search
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.files import (
    atomic_write,
    clear_remains,
    disk_errors,
    exclusive,
    is_same_file,
    new_folder,
    read_json,
    sole_writer,
    write_json,
)
from lexvl_anserini.searching.building import build_index

WRITING = "another process is writing it; wait for it or name another output"


@contextmanager
def folder_of_one(path: Path):
    """`new_folder` with the interface of `atomic_write`."""
    with new_folder(path) as part, open(part / "file", "wb") as out:
        yield out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(path: Path) -> bytes:
    return (path / "file" if path.is_dir() else path).read_bytes()


def test_atomic_write(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as out:
        out.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), OSError(errno.ENOSPC, "no space")])
def test_a_failed_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises((ValueError, KeyboardInterrupt, ArtefactError)), atomic_write(path) as out:
        out.write(b"new")
        raise error
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "error,told",
    [
        (errno.ENOSPC, r"the disk is full \(1,234 bytes needed\); free some space"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EFBIG, "larger than this disk"),
        *((number, "cannot be written") for number in (errno.EROFS, errno.EIO, errno.EACCES, errno.ENOTDIR)),
        # What other languages say.
        ("I/O error: No space left on device (os error 28)", r"the disk is full \(1,234 bytes needed\); free"),
        ("IOException: No space left on device", "the disk is full"),
        ("File too large (os error 27)", "larger than this disk"),
        ("Read-only file system", "cannot be written"),
    ],
)
def test_what_the_disk_says(tmp_path, error, told):
    with pytest.raises(ArtefactError, match=f"a.txt: {told}"), disk_errors(tmp_path / "a.txt", 1234):
        raise RuntimeError(error) if isinstance(error, str) else OSError(error, os.strerror(error))


def test_json_round_trip(tmp_path):
    write_json(path := tmp_path / "a.json", value := {"b": [1, "é"], "a": None})
    assert path.read_text() == '{\n  "b": [\n    1,\n    "é"\n  ],\n  "a": null\n}\n'
    assert read_json(path, "thing") == value


def test_the_lock_goes_with_a_killed_process(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from lexvl_anserini.ground.files import exclusive\n"
        "with exclusive(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with exclusive(tmp_path):
        pass


@pytest.mark.parametrize("write", [atomic_write, folder_of_one])
def test_the_second_writer_of_an_output_gets_one_line(tmp_path, write):
    """Also a second thread: on the former code it took the first one's file, which then had a hole of zero bytes."""
    path = tmp_path / "out"

    def second() -> None:
        with write(path) as out:
            out.write(b"second")

    with ThreadPoolExecutor(1) as other:
        with write(path) as out:
            out.write(b"first, ")
            out.flush()
            with pytest.raises(ArtefactError, match=f"out: {WRITING}"):
                other.submit(second).result()
            with pytest.raises(ArtefactError, match=WRITING):
                second()
            out.write(b"whole")
        assert content(path) == b"first, whole" and names(tmp_path) == ["out"]
        other.submit(second).result()
    assert content(path) == b"second" and names(tmp_path) == ["out"]


@pytest.mark.parametrize("hold", [new_folder, exclusive])
def test_a_folder_that_another_process_makes_and_takes_away_between_two_looks(tmp_path, monkeypatch, hold):
    """Formerly "File exists", because it is there when it is made, and is not there a moment later."""
    path, real = tmp_path / "out", os.mkdir

    def make(name, *mode):
        monkeypatch.undo()
        with hold(path), pytest.raises(FileExistsError) as there:
            real(name, *mode)
        path.rename(tmp_path / "taken")
        raise there.value

    monkeypatch.setattr(os, "mkdir", make)
    with hold(path), ThreadPoolExecutor(1) as other, pytest.raises(ArtefactError, match=f"out: {WRITING}"):
        other.submit(hold(path).__enter__).result()
    assert names(tmp_path) == ["out", "taken"]


def test_a_folder_that_another_process_takes_away_between_two_looks(tmp_path, monkeypatch):
    """Formerly "exists and is no folder": where names cannot be swapped, an older folder has none for a moment."""
    (path := tmp_path / "out").mkdir()
    real = Path.exists

    def look(name):
        found = real(name)
        if name == path and found:
            path.rename(tmp_path / f"taken{len(names(tmp_path))}")
        return found

    monkeypatch.setattr(Path, "exists", look)
    with folder_of_one(path) as out:
        out.write(b"new")
    monkeypatch.undo()
    assert content(path) == b"new"


def test_a_lock_is_of_the_folder_that_has_the_name(tmp_path, monkeypatch):
    """Formerly of one that another process had replaced and removed: two writers were in the newer one."""
    (path := tmp_path / "out").mkdir()
    real = os.open

    def open_and_replace(name, *flags):
        handle = real(name, *flags)
        if name == path:
            monkeypatch.undo()
            with folder_of_one(path):
                pass
        return handle

    monkeypatch.setattr(os, "open", open_and_replace)
    with exclusive(path), pytest.raises(ArtefactError, match=f"out: {WRITING}"), exclusive(path):
        pytest.fail("two processes write one folder")


@pytest.mark.parametrize("write", [atomic_write, folder_of_one])
def test_who_holds_an_output_may_write_it(tmp_path, write):
    path = tmp_path / "out"
    with sole_writer(path, folder=write is folder_of_one):
        with ThreadPoolExecutor(1) as other, pytest.raises(ArtefactError, match=WRITING):
            other.submit(write(path).__enter__).result()
        with write(path) as out:
            out.write(b"mine")
        assert content(path) == b"mine"
    with sole_writer(path, folder=write is folder_of_one):
        assert len(names(tmp_path)) == 2
    assert content(path) == b"mine" and names(tmp_path) == ["out"]


@pytest.mark.parametrize("write", [atomic_write, new_folder])
def test_a_killed_writer_leaves_a_part_that_the_next_writer_takes(tmp_path, write):
    path = tmp_path / "out"
    code = f"""
import os, signal, sys
from pathlib import Path
from lexvl_anserini.ground.files import {write.__name__}
with {write.__name__}(Path(sys.argv[1])) as out:
    out.write(b"long and unfinished") if hasattr(out, "write") else (out / "left").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""

    def killed():
        assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
        assert names(tmp_path) == ["out.lexvl.part"]

    killed()
    clear_remains(path)
    assert names(tmp_path) == []
    killed()
    with (atomic_write if write is atomic_write else folder_of_one)(path) as out:
        out.write(b"new")
    assert content(path) == b"new" and names(tmp_path) == ["out"]
    assert path.is_file() or names(path) == ["file"]


def failing(path: Path) -> None:
    """Begins to write a folder, and does not end."""
    with pytest.raises(ZeroDivisionError), new_folder(path) as part:
        (part / "half").write_text(f"{1 / 0}")


def test_what_remains(tmp_path):
    with ThreadPoolExecutor(1) as other, atomic_write(tmp_path / "out") as out:
        out.write(b"mine")
        other.submit(clear_remains, tmp_path / "out").result()
    assert (tmp_path / "out").read_bytes() == b"mine"
    # Where names cannot be swapped, a process may die between two renames.
    for next_writer in (clear_remains, failing):
        write_texts(tmp_path, {"index.lexvl.old/file": "whole"})
        (tmp_path / "index.lexvl.part").mkdir()
        next_writer(tmp_path / "index")
        assert names(tmp_path) == ["index", "out"] and (tmp_path / "index/file").read_text() == "whole"
        (tmp_path / "index").rename(tmp_path / "index.lexvl.old")


UNSWAPPED = SimpleNamespace(renameat2=lambda *_: -1)  # a file system that cannot swap names


@pytest.fixture(params=[None, SimpleNamespace(), UNSWAPPED], ids=["Linux", "macOS has no renameat2", "no swap"])
def library(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: request.param)


@pytest.mark.parametrize("write", [atomic_write, folder_of_one])
@pytest.mark.parametrize("link", [False, True])
@pytest.mark.usefixtures("library")
def test_what_users_put_beside_an_output_stays(tmp_path, write, link):
    """A backup of an index, a part of a file, an output that is a link: every name but our own is the user's."""
    path, mine = tmp_path / "disk/out", ["out.bak", "out.old", "out.part", "out.partitions", "out.tmp"]
    write_texts(path.parent, {f"{name}/file": name for name in mine})
    if link:
        (path := tmp_path / "link").symlink_to("disk/out")
    clear_remains(path)  # of nothing, and below of what is there
    for text in (b"older", b"newer"):
        with sole_writer(path, folder=write is folder_of_one), write(path) as out:
            out.write(text)
        clear_remains(path)
        assert content(path) == text and path.is_symlink() == link
        assert names(tmp_path) == ["disk", "link"][: 1 + link] and names(tmp_path / "disk") == ["out", *mine]
        assert all(content(tmp_path / "disk" / name) == name.encode() for name in mine)
    with pytest.raises(ArtefactError, match=f"{path.name}: cannot be written"), disk_errors(path):
        raise PermissionError(13, "Permission denied", str(tmp_path / "disk/out.lexvl.part"))


def test_where_names_cannot_be_swapped_a_failure_gives_the_older_folder_its_name_back(tmp_path, monkeypatch):
    with folder_of_one(tmp_path / "out") as out:
        out.write(b"older")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: UNSWAPPED)
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(ArtefactError, match="out: cannot be written"), folder_of_one(tmp_path / "out") as out:
        out.write(b"newer")
    assert content(tmp_path / "out") == b"older" and names(tmp_path) == ["out"]


def test_where_names_cannot_be_swapped_a_folder_that_another_process_makes_meanwhile_stays(tmp_path, monkeypatch):
    path, real = tmp_path / "out", Path.rename
    with folder_of_one(path) as out:
        out.write(b"older")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: UNSWAPPED)
    monkeypatch.setattr(Path, "rename", lambda *names: (real(*names), write_texts(path, {"mine": "mine"})))
    with pytest.raises(ArtefactError, match=r"out: cannot be written \(Directory not empty\)"), folder_of_one(path):
        pass
    assert names(path) == ["mine"] and content(tmp_path / "out.lexvl.old") == b"older"


def test_an_output_of_another_kind_is_refused_before_any_work(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.lexvl.part").symlink_to(tmp_path / "file")
    for name in (".", "..", "folder/.."):
        pytest.raises(UsageError, clear_remains, Path(name)).match("name the output by its own")
    for name in ("folder", "pipe", "link", "loop"):
        with pytest.raises(ArtefactError, match=f"{name}: .*choose another output"), atomic_write(tmp_path / name):
            pytest.fail("the work began")
    with pytest.raises(ArtefactError, match="file: exists and is no folder"), new_folder(tmp_path / "file"):
        pytest.fail("the work began")
    assert (tmp_path / "file").read_bytes() == b""


def test_a_file_that_is_replaced_while_it_is_read(tmp_path):
    path = tmp_path / "run"
    path.write_text("old")
    with is_same_file(path):
        pass
    with pytest.raises(ArtefactError, match=f"run: {WRITING}"), is_same_file(path), atomic_write(path) as out:
        out.write(b"new")
    with pytest.raises(ArtefactError, match=f"run: {WRITING}"), is_same_file(path):
        path.unlink()


def test_the_error_of_another_file_is_not_blamed_on_the_output(tmp_path):
    """A corpus that cannot be read is no output that cannot be written."""
    with pytest.raises(PermissionError, match="corpus"), disk_errors(tmp_path / "out"):
        raise PermissionError(13, "Permission denied", str(tmp_path / "corpus"))
    for inside in ("out", "out.lexvl.part", "out/docs/shard", "."):
        with pytest.raises(ArtefactError, match="out: cannot be written"), disk_errors(tmp_path / "out"):
            raise PermissionError(13, "Permission denied", str(tmp_path / inside))
    full = (28, "No space left on device")
    with pytest.raises(ArtefactError, match="elsewhere: the disk is full"), disk_errors(tmp_path / "out"):
        raise OSError(*full, "elsewhere")
    with pytest.raises(ArtefactError, match="out: the disk is full"), disk_errors(tmp_path / "out"):
        raise OSError(*full, str(tmp_path / "source"), None, str(tmp_path / "out/copy"))
    with pytest.raises(OSError, match="Bad file"), disk_errors(tmp_path):
        raise OSError(errno.EBADF, "Bad file descriptor")


def test_a_folder_in_which_no_files_can_be_made(tmp_path, monkeypatch):
    """Formerly tried again for ever; /proc is such a folder."""
    monkeypatch.setattr(os, "open", Mock(side_effect=FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))))
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "out"):
        pytest.fail("the work began")


def test_a_disk_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with pytest.raises(ArtefactError, match="out: cannot be locked"), atomic_write(tmp_path / "out"):
        pytest.fail("the work began")


TEXTS = {"d1": "a dog on a beach", "d2": "two people and a horse", "d3": "a pizza on the table"}
TOPICS = {"q1": "a dog", "q2": "people on a table"}


@pytest.fixture(scope="module")
def world(tmp_path_factory, golden) -> Path:
    folder = write_beir(tmp_path_factory.mktemp("world"), TEXTS, TOPICS, [("q1", "d1")])
    run("encode", *corpus_options(folder, golden), "--output", folder / "impacts")
    build_index(folder / "impacts", folder / "index")
    run("search", "--index", folder / "index", "--output", folder / "a.trec", "--hits", "2")
    run("search", "--index", folder / "index", "--output", folder / "b.trec")
    return folder


def corpus_options(world: Path, golden: Path) -> list[object]:
    checkpoint = golden / "splade/ckpt_bert"
    options = ["--corpus", f"beir:{world}", "--encoder", "bag-of-tokens", "--checkpoint", checkpoint]
    return [*options, "--device", "cpu", "--shard-size", 2, "--compress"]


def run(name: str, *arguments: object) -> None:
    commands = {"encode": encode, "fuse": fuse, "index": index, "prune": prune, "search": search}
    invoked(commands[name].command, *arguments)


@pytest.mark.usefixtures("library")
def test_backups_survive_every_command_that_writes_a_folder(tmp_path, world, golden, monkeypatch):
    """A user's copies beside its output, and what a user keeps in the folder of an index that changes."""
    monkeypatch.chdir(tmp_path)
    outputs = ("encoded", "pruned", "fields", "index", "joined")
    mine = [f"{name}.{kind}/mine" for name in outputs for kind in ("bak", "lexvl", "old", "part", "tmp")]
    write_texts(tmp_path, {"gone": "d1\n"} | dict.fromkeys(mine, "mine"))
    encoding = ["encode", *corpus_options(world, golden), "--output", "encoded"]
    pruning = ["prune", world / "impacts", "--output", "pruned", "--document-terms"]
    building, changing = ["index", world / "impacts", "--index", "index"], ["index", "--index", "index"]
    joining = ["index", "fields", "--field", f"text={world / 'impacts'}", "--index", "joined"]
    writing = [encoding, [*encoding, "--overwrite"], [*pruning, 2], [*pruning, 1, "--overwrite"], joining]
    for command in (*writing, building, [*building, "--overwrite", "--store-text"]):
        for _ in range(2):  # the second time it is finished, or overwritten again
            run(*command)
    mine += ["index/notes.part", "index/older/notes.txt"]
    write_texts(tmp_path, dict.fromkeys(mine[-2:], "mine"))
    for link, target in (links := {"index/to nothing": "nothing", "index/older/up": ".."}).items():
        Path(link).symlink_to(target)
    os.mkfifo("index/pipe")
    deleting = [*changing, "--delete-ids", "gone"]
    repairing = [*building, "--check", "--repair"]
    for command in (deleting, [*building, "--replace"], deleting, [*changing, "--approximate"], repairing):
        run(*command)
    run(*building, "--append")
    assert {(tmp_path / name).read_text() for name in mine} == {"mine"} and Path("index/pipe").is_fifo()
    assert {link: str(Path(link).readlink()) for link in links} == links and not list(tmp_path.rglob("*.lexvl.*"))


def prepare(task: Task, folder: Path) -> None:
    folder.mkdir()
    for first in task.first:
        run(*placed(first, folder))


def without_overwrite(task: Task) -> Task:
    return task._replace(arguments=[word for word in task.arguments if word != "--overwrite"])


@pytest.fixture(params=["encode", "encode topics", "search", "search again", "fuse"])
def writing(request, world, golden) -> Task:
    encoding = ["encode", *corpus_options(world, golden), "--output"]
    searching = ["search", "--index", world / "index", "--output", "IN/r.trec"]
    fusing = ["fuse", "--run", world / "a.trec", "--run", world / "b.trec", "--output", "IN/new/r.trec"]
    return {
        "encode": Task([*encoding, "IN/impacts"], "impacts"),
        "encode topics": Task([*encoding, "IN/q.jsonl.gz", "--topics", f"beir:{world}"], "q.jsonl.gz"),
        "search": Task(searching, "r.trec"),
        "search again": Task([*searching, "--overwrite", "--hits", 2], "r.trec", [searching]),
        "fuse": Task(fusing, "new/r.trec"),
    }[request.param]


@kills
def test_killed_at_every_call_the_same_command_ends_as_undisturbed(tmp_path, writing, share):
    prepare(writing, tmp_path / "whole")
    before = contents(tmp_path / "whole")
    with faults(tmp_path / "whole") as whole:
        run(*placed(writing, tmp_path / "whole"))
    expected = contents(tmp_path / "whole")
    assert len(whole.calls) >= 8 and any("replace" in call for call in whole.calls)
    names = (writing.output, f"{writing.output}.manifest.json")
    for number in draw_calls(len(whole.calls), share):
        folder = tmp_path / str(number)
        prepare(writing, folder)
        with pytest.raises(Ended), faults(folder, number, after=number % 2 == 0):
            run(*placed(writing, folder))
        left = contents(folder)
        if names[0] in left:
            pairs = [[state.get(name) for name in names] for state in (left, before, expected)]
            assert None not in pairs[0] and pairs[0] in pairs[1:]
        run(*placed(writing, folder))
        assert contents(folder) == expected, whole.calls[number - 1]


def flushed(calls: list[str], folder: Path) -> int:
    """Checks that everything was on the disk before it got its name, and the name soon after; counts the names."""
    renamed = 0
    for at, call in enumerate(calls):
        what, _, names = call.partition(" ")
        if what in ("replace", "rename", "exchange"):
            part, name = names.split(", ")
            folders = [path.parent.name for path in folder.rglob(name)]
            assert f"fsync {part}" in calls[:at], (call, calls)
            synced = {f"fsync {one}{suffix}" for one in folders for suffix in ("", ".lexvl.part")}
            assert not folders or synced & {*calls[at:]}, (call, calls)
            renamed += 1
    return renamed


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not name open files")
def test_what_has_its_name_is_on_the_disk(tmp_path, writing, world):
    folder = tmp_path / "synced"
    prepare(writing, folder)
    with faults(folder) as found:
        run(*placed(writing, folder))
    assert flushed(found.calls, folder) >= 2
    with faults(folder) as found:
        build_index(world / "impacts", folder / "index")
        build_index(world / "impacts", folder / "index", overwrite=True, term_vectors=True)
    assert flushed(found.calls, folder) >= 4
    files = {path.name for path in (folder / "index").iterdir()} - {"write.lock"}
    assert {f"fsync {name}" for name in files} <= {*found.calls}


def test_repeated_after_success_a_command_says_finished(tmp_path, writing, caplog):
    for _ in range(2):
        caplog.clear()
        with caplog.at_level("INFO", "lexvl_anserini"):
            run(*placed(without_overwrite(writing), tmp_path))
    assert "finished already" in caplog.text


def test_no_two_processes_do_the_same_work(tmp_path, writing, monkeypatch):
    """Whoever comes second gets one line before it encodes or searches anything."""
    path = tmp_path / writing.output
    (path if writing.output == "impacts" else path.parent).mkdir(exist_ok=True)
    never = Mock(side_effect=AssertionError("work began beside another writer"))
    with exclusive(path) if path.is_dir() else sole_writer(path), ThreadPoolExecutor(1) as other:
        for name in ("search.write_index_run", "queries.query_vectors.quantise_queries", "shards.writing.encode_shard"):
            monkeypatch.setattr(f"lexvl_anserini.{name}", never)
        with pytest.raises(ArtefactError, match=WRITING):
            other.submit(run, *placed(writing, tmp_path)).result()


def test_topics_that_changed_are_another_request(tmp_path, world, golden):
    topics = tmp_path / "topics.tsv"
    topics.write_text("q1\ta dog\n")
    options = [*corpus_options(world, golden), "--topics", topics, "--output", tmp_path / "q.jsonl"]
    run("encode", *options)
    topics.write_text("q1\ta horse\n")
    with pytest.raises(ArtefactError, match=r"q.jsonl: holds encoded topics of another request \(topics_sha256"):
        run("encode", *options)
    run("encode", *options, "--overwrite")
    assert '"horse":' in (tmp_path / "q.jsonl").read_text()


def test_an_output_in_a_folder_that_is_read_only(tmp_path, writing, monkeypatch):
    """What is finished stays finished there; anything else is one line, with the place."""
    prepare(writing, tmp_path / "made")
    run(*placed(writing, tmp_path / "made"))
    refuse, real = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))), os.open
    for name in ("mkdir", "replace", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, refuse)

    def open_only(path, flags, *others, **options):
        return (refuse if flags & os.O_CREAT else real)(path, flags, *others, **options)

    monkeypatch.setattr(os, "open", open_only)
    run(*placed(without_overwrite(writing), tmp_path / "made"))
    with pytest.raises(ArtefactError, match=r"empty.*: cannot be written \(Read-only file system\); choose another"):
        run(*placed(without_overwrite(writing), tmp_path / "empty"))


@pytest.mark.parametrize("bad", ['"a": 1,\n"a": 2', '"a": [\n"\\ud83d"]', '"b": "a",\n"\\ud83d": 1', '"a":\nNaN'])
@pytest.mark.parametrize("read", [lambda path: read_json(path, "x"), read_classes])
def test_documents_that_readers_understand_differently(tmp_path, read, bad):
    (path := tmp_path / "x.json").write_text(f"{{{bad}}}", encoding="utf-8-sig")
    with pytest.raises(LexvlError, match=r"x\.json( line 2: (key 'a' is twice|lone surrogate)|: malformed JSON)"):
        read(path)
