"""Files and folders on disk: written whole or not at all, locked, replaced, and read with readable errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from hashlib import file_digest
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import MappingProxyType
from typing import IO, Any, BinaryIO, cast

import orjson

from lexvl_anserini.ground.errors import ArtefactError, BusyError, DataError, LexvlError, UsageError, refuse_pointer

# Errors of an output that cannot be written for a reason other than space: permissions, or a file of the same name.
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
UNWRITABLE |= {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY}

# Errors of writing that libraries in other languages quote: Java by their text, Rust by their number.
QUOTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

# Suffixes, beside the output, of what is being written, what is being replaced and what is needed meanwhile. Anything
# else there is the user's, even an `INDEX.old` or a `RUN.part`.
PART, OLD, ROOM = ".lexvl.part", ".lexvl.old", ".lexvl.room"

BOM, LF = b"\xef\xbb\xbf", "\n"
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # before a surrogate, lone or not
_KEY_END = re.compile(rb'"\s*:')  # after every key, and at some places in texts
_TOKEN = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*:)?|[{}]', re.DOTALL)

AT_FDCWD = -100  # an argument of Linux's renameat2: paths are relative to the working directory
RENAME_EXCHANGE = 2  # another: swap the two names


@contextmanager
def disk_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turns the system's error about a full disk or an unwritable path into an ArtefactError of one line.

    Libraries that are not written in Python raise errors of their own classes, which quote the system's. The message
    names `path`, or the other file that the system's error names, and the bytes that are `needed`, if they are known.
    """
    try:
        yield
    except LexvlError:
        raise
    except Exception as error:
        # A copy or a rename writes the second file.
        named = getattr(error, "filename2", None) or getattr(error, "filename", None)
        where = path if named is None or _is_inside(named, path) else named
        number = _get_system_number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            room = f" ({needed:,} bytes needed)" if needed else ""
            remedy = "free some space and run the same command again"
            raise ArtefactError(f"{where}: the disk is full{room}; {remedy}") from error
        if number == errno.EFBIG:
            raise ArtefactError(f"{where}: larger than this disk or `ulimit -f` allows a file to be") from error
        if number in QUOTED or isinstance(error, OSError) and number in UNWRITABLE and where == path:
            raise ArtefactError(f"{where}: cannot be written ({os.strerror(number)}); choose another output") from error
        raise


def _get_system_number(error: BaseException | None) -> int | None:
    """The system's number of an error, of the error that its text quotes, or of the error that it followed."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        if (number := find_quoted_number(str(error))) is not None:
            return number
        error = error.__cause__ or error.__context__
    return None


def find_quoted_number(text: str) -> int | None:
    """The number of the system's error about a full or unwritable disk that a library's message quotes, if it does."""
    return next((number for number in QUOTED if os.strerror(number) in text or f"(os error {number})" in text), None)


def _is_inside(named: str | bytes | int, path: Path) -> bool:
    """True if a file is `path`, its temporary name, or below one of them."""
    if isinstance(named, int):
        return True
    file, target = Path(os.fsdecode(named)).absolute(), follow_link(path).absolute()
    return file in target.parents or not {target, name_part(target)}.isdisjoint((file, *file.parents))


def sync_path(path: Path) -> None:
    """Flushes the content of a file, or the names in a folder, to the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_to(out: IO[bytes]) -> None:
    """Flushes an open file to the disk itself."""
    out.flush()
    os.fsync(out.fileno())


def sync_tree(folder: Path) -> None:
    """Makes everything below a folder survive a power cut: contents of files, and names; opens no link and no pipe."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            sync_tree(entry)
        elif entry.is_file() and not entry.is_symlink():
            sync_path(entry)
    sync_path(folder)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, unless they exist; they survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_path(path.parent)


@contextmanager
def exclusive(folder: Path, wait: bool = False) -> Iterator[None]:
    """Makes a folder if there is none, and locks it until the block ends, or the process does, even if it is killed."""
    with disk_errors(folder):
        handle = _hold_lock(follow_link(folder), folder, True, wait)
    try:
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path, wait: bool) -> None:
    """Locks an open file or folder; the lock ends when the last handle of this opening is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise BusyError(f"{path}: another process is writing it; wait for it or name another output") from error
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be locked ({error.strerror}); choose an output on another disk") from error


def follow_link(path: Path) -> Path:
    """What an output that is a symbolic link names, which is written in its place: the link stays."""
    with suppress(OSError):  # a name that is too long
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    return path


def name_part(path: Path) -> Path:
    """The name of a file or folder while it is written, on the disk where it will be."""
    return name_beside(path, PART)


def name_beside(path: Path, suffix: str) -> Path:
    """The name beside an output of what is needed while it is written; a killed process leaves it behind."""
    path = follow_link(path)
    if path.name in ("", ".."):  # nothing can take the place of `.` while a process is in it
        raise UsageError(f"{path}: a name that leads to a folder of another name; name the output by its own")
    return path.with_name(path.name + suffix)


# The locks of the running thread: temporary names and their open handles. A command locks its output before its first
# look at it, and the function that writes the output finds the lock here, takes it over, and shares it with nobody.
_HELD: ContextVar[Mapping[Path, int]] = ContextVar("held", default=MappingProxyType({}))


@contextmanager
def sole_writer(path: Path, folder: bool = False) -> Iterator[None]:
    """Keeps others from writing a file or folder until the block ends; within it, `atomic_write` or `new_folder` may.

    The temporary file is the lock, so a killed process leaves no lock, and nothing but this file.
    """
    with _claim(path, folder) as (part, handle), _holding({**_HELD.get(), part.absolute(): handle}):
        yield


@contextmanager
def _holding(held: Mapping[Path, int]) -> Iterator[None]:
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)


@contextmanager
def _claim(path: Path, folder: bool) -> Iterator[tuple[Path, int]]:
    """Yields the temporary file or folder, and the handle that locks it; removes it unless it is published."""
    part, held = name_part(path), _HELD.get()
    handle = held.get(part.absolute())
    if handle is not None and _has_name(part, os.fstat(handle)):
        with _holding({name: other for name, other in held.items() if other != handle}):
            yield part, handle
        return
    with disk_errors(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            if not (S_ISDIR if folder else S_ISREG)(path.stat().st_mode):
                raise ArtefactError(f"{path}: exists and is no {'folder' if folder else 'file'}; choose another output")
        handle = _hold_lock(part, path, folder)
    try:
        old = name_beside(path, OLD)
        if old.exists() and not path.exists():  # a killed process left it between two renames
            publish(old, path)
        yield part, handle
    finally:
        try:
            if _has_name(part, os.fstat(handle)):
                _remove(part)
        finally:
            os.close(handle)


def _hold_lock(name: Path, path: Path, folder: bool, wait: bool = False) -> int:
    """Opens a file or folder, makes it if there is none, and locks it; its content stays."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
    while True:
        try:
            handle = os.open(name, flags | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if not folder and name.parent.exists():  # nobody can make files there
                raise
            make_folder(name.parent)
            with suppress(FileExistsError):  # another process makes it, and may take its name away at any moment
                if folder:
                    name.mkdir()
                    sync_path(name.parent)
            continue
        try:
            _lock(handle, path, wait)
            if _has_name(name, os.fstat(handle)):
                return handle
        except BaseException:
            os.close(handle)
            raise
        # Between opening and locking, another process gave it another name, or removed it.
        os.close(handle)


def _has_name(path: Path, status: os.stat_result) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), status)
    return False


@contextmanager
def is_same_file(path: Path) -> Iterator[None]:
    """Raises ArtefactError if another process replaced or removed a file while the block read what is beside it."""
    before = path.stat()
    yield
    if not _has_name(follow_link(path), before):
        raise BusyError(f"{path}: another process is writing it; wait for it or name another output")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        with suppress(OSError):
            path.unlink()


def _clear(part: Path) -> None:
    for entry in part.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def publish(part: Path, path: Path) -> None:
    """Gives a finished temporary file its final name."""
    path = follow_link(path)
    part.replace(path)
    sync_path(path.parent)


def withdraw(path: Path) -> None:
    """Removes a file, if it is there; this survives a power cut."""
    path = follow_link(path)
    path.unlink(missing_ok=True)
    sync_path(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Writes `path` by a temporary name, fsync and rename; an exception leaves neither."""
    with disk_errors(path), _claim(path, folder=False) as (part, _):
        with open(part, "wb") as out:
            yield out
            sync_to(out)
        publish(part, path)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder of a temporary name, which replaces `folder` at the end; an exception removes it.

    An older folder of that name stays until the new one is complete and on the disk.
    """
    with disk_errors(folder), _claim(folder, folder=True) as (part, _):
        _clear(part)
        yield part
        sync_tree(part)
        _replace(part, folder)


def refuse_inside(output: Path, folder: Path, what: str) -> None:
    """Refuses to write into a folder whose files are read."""
    if output.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{output}: it is in {folder}, among {what}; name a folder outside")


def clear_remains(path: Path) -> None:
    """Removes what a killed process left beside a file or folder, unless another process is writing it.

    Where names cannot be swapped, a process that is killed while it replaces a folder leaves it under its older name;
    it gets its name back.
    """
    part, old = name_part(path), name_beside(path, OLD)
    if not part.exists() and not old.exists():
        return
    with suppress(ArtefactError), sole_writer(path, folder=old.exists() or part.is_dir()):
        _remove(old)


def _replace(part: Path, folder: Path) -> None:
    """Renames `part` to `folder`; where the system supports it, a complete folder has the name at every moment."""
    folder, old = follow_link(folder), name_beside(folder, OLD)
    _remove(old)
    if not folder.exists():
        publish(part, folder)
        return
    # The older folder gets the temporary name for a moment, in which nobody else may take it over.
    with exclusive(folder):
        if _exchange(part, folder):
            sync_path(folder.parent)
            _remove(part)
        else:
            folder.rename(old)
            try:
                publish(part, folder)
            except BaseException:
                if not folder.exists():
                    old.rename(folder)
                raise
            _remove(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps the names of two folders in one step; False where the system does not support it."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(swap(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0)


@contextmanager
def open_gzip(out: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    """A stream into an open file, compressed as the suffix of its name says: `.gz`, `.zst`, plain for any other.

    gzip has neither time stamp nor name: equal contents give equal bytes.
    """
    if suffix.lower() == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as stream:
            yield cast(BinaryIO, stream)
    elif suffix.lower() == ".zst":
        from pyarrow import output_stream

        # pyarrow closes the file that it writes to; `out` stays open.
        copy = os.fdopen(os.dup(out.fileno()), "wb")
        with io.BufferedWriter(output_stream(copy, compression="zstd")) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield out


def format_json(data: Mapping[str, Any]) -> bytes:
    """Indented JSON, keys in the order given, one line feed at the end."""
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a JSON file in the form of `format_json`."""
    with atomic_write(path) as out:
        out.write(format_json(data))


def read_json(path: Path, what: str, error: type[LexvlError] = ArtefactError) -> dict[str, Any]:
    """Reads one JSON object."""
    return cast(dict[str, Any], read_json_value(path, what, dict, error))


def read_json_value(path: Path, what: str, kind: type, error: type[LexvlError], **options: Any) -> Any:
    """Reads a JSON file that holds one value of a kind; `options` are those of `parse_json`."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may have no end
            raise error(f"{path}: no {what} (not a regular file)")
        content = path.read_bytes()
    except OSError as problem:
        raise error(f"{path}: no {what} ({problem.strerror or problem})") from problem
    refuse_pointer(path, content, error, plain=True)
    if not isinstance(value := parse_json(content, str(path), error, **options), kind):
        expected = "a list" if kind is list else "an object"
        raise error(f"{path}: the {what} is a JSON {type(value).__name__}, expected {expected}")
    return value


def parse_json(
    data: bytes, where: str, error: type[LexvlError] = DataError, mend: bool = False, left_out: str | None = None
) -> Any:
    r"""One JSON value; an object that has a key twice is refused, a lone surrogate in a key or a text, and NaN.

    With `mend`, a lone surrogate in a text (`"\ud83d"`, left by tools that cut texts by UTF-16 units) becomes U+FFFD,
    which a tokenizer, an index and a UTF-8 file can hold, and NaN, which nothing can store, becomes null. What the key
    `left_out` has is read and dropped, so that it takes no memory.
    """
    data, refusal = data.removeprefix(BOM), ""
    try:
        value = None if left_out else orjson.loads(data)
        if not left_out and has_all_keys(value, data):
            return value
    except orjson.JSONDecodeError as problem:
        # The standard library takes lone surrogates and NaN, and has better messages about malformed JSON.
        refusal = "" if mend else str(problem)
    text = decode_utf8(data, where, error)
    try:
        value = json.loads(text, object_pairs_hook=partial(_build_object, left_out), parse_constant=lambda name: None)
        if refusal:
            raise ValueError(refusal)
        # Only JSON's escapes can leave half a character; written again without escapes, such halves stand out.
        whole = _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)) if _ESCAPED.search(text) else ""
        return json.loads(whole) if whole else value
    except (ValueError, RecursionError) as problem:
        mistake = "" if isinstance(problem, json.JSONDecodeError | RecursionError) else find_mistake(text, mend)
        reason = str(problem).partition(";")[0]  # after a semicolon, Python advises to lift its limit of digits
        raise error(f"{where}{mistake or f': malformed JSON ({reason})'}") from problem


def _build_object(left_out: str | None, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs) or any(map(_SURROGATE.search, record)):
        raise ValueError("wrong keys")
    record.pop(left_out, None)  # type: ignore[arg-type]
    return record


def find_mistake(text: str, mend: bool = False) -> str:
    """What is wrong with well-formed JSON: the first key twice in an object, or lone surrogate; empty if nothing."""
    objects: list[set[str]] = []
    key = problem = ""
    for token in _TOKEN.finditer(text):
        string, is_key = token.groups()
        if string is None:
            objects.append(set()) if token[0] == "{" else objects.pop()
            continue
        value = json.loads(string)
        key = value if is_key else key
        if (is_key or not mend) and _SURROGATE.search(value):
            problem = f"lone surrogate in {'key' if is_key else 'the text of'} {key!r:.80}, expected whole characters"
        elif is_key and key in objects[-1]:
            problem = f"key {key!r:.80} is twice in an object, expected once"
        elif is_key:
            objects[-1].add(key)
        if problem:
            return f" line {text.count(LF, 0, token.start()) + 1}: {problem}" if LF in text else f": {problem}"
    return ""


def has_all_keys(value: Any, data: bytes | bytearray) -> bool:
    """Whether a value that orjson read has all keys of the JSON: of equal ones in an object it keeps the last."""
    number, waiting = 0, [[value]]
    for value in waiting:
        number += len(value) if isinstance(value, dict) else 0
        items = value.values() if isinstance(value, dict) else value
        waiting += [item for item in items if type(item) in (dict, list)]
    # Every key has a colon, so that as many colons as keys are enough; they are counted much faster.
    return data.count(b":") == number or len(_KEY_END.findall(data)) == number


def decode_utf8(data: bytes, where: str, error: type[LexvlError] = DataError) -> str:
    """Bytes as a text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        place = f"0x{data[problem.start]:02x} at byte {problem.start + 1:,}"
        raise error(f"{where}: not valid UTF-8 ({place}); convert the file") from problem


def compute_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read in pieces."""
    with open(path, "rb") as source:
        return file_digest(source, "sha256").hexdigest()
