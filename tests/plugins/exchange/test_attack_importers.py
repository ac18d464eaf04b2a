"""Damaged and crafted files of every importer, in a process of its own: shards or one line, and no signal ends it."""

import gzip
import io
import json
import multiprocessing
import resource
import shutil
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from damage import changed_json, damaged, one_line
from rounds import Rounds
from scipy import sparse

from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.exchange.ciff_writing import encode_bytes, encode_message, encode_number
from lexvl_plugins.exchange.importing import READERS, ImportSettings, import_file

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

PATIENCE_S = 300
MOST_BYTES = 8 << 30  # of addresses
ROWS = sparse.random(7, 5, 0.5, "csr", np.float32, 1)
NUMBERS = (0, 1, -1, 4, 5, 7, 1000, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62))


def serve(connection: Connection) -> None:
    """Imports what it is sent; answers with "imported" or the line of the refusal."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    while True:
        source = Path(connection.recv())
        named = {"ids": source.parent / "ids", "vocabulary": source.parent / "terms"}
        beside = named if source.suffix in MATRICES else {}
        try:
            import_file(source, source.parent / "out", ImportSettings(**beside))
            connection.send("imported")
        except LexvlError as error:
            connection.send(one_line(error))
        except BaseException as error:
            connection.send(f"WRONG: {type(error).__name__}: {error}")


def craft_numbers(random: Random, array: Any) -> Any:
    """The array with some numbers replaced, another type or another length."""
    array = np.array(array)
    for _ in range(random.choice([0, 1, 1, 3])):
        if array.size and array.dtype.kind in "iuf":
            number = random.choice(NUMBERS)
            array = array.astype(np.int64) if array.dtype.kind in "iu" and abs(number) >= 2**31 else array
            array.flat[random.randrange(array.size)] = number
    if random.random() < 0.2:
        array = array[: random.randrange(len(array) + 1)] if array.ndim else array
    types: list[Any] = [array.dtype] * 40 + [np.int8, np.uint64, np.float64, np.complex64]
    with np.errstate(invalid="ignore"):
        return array.astype(random.choice(types))


def craft_npz(random: Random) -> bytes:
    """A matrix of scipy whose arrays do not fit each other; the archive itself is whole."""
    whole, file = io.BytesIO(), io.BytesIO()
    kind = random.choice(["csr", "csc", "coo", "bsr", "dia"])
    sparse.save_npz(whole, random.choice([ROWS, sparse.csr_array(ROWS)]).asformat(kind))
    whole.seek(0)
    arrays = dict(np.load(whole))
    for name in random.sample(sorted(arrays.keys() - {"format"}), random.randint(1, 2)):
        arrays[name] = craft_numbers(random, arrays[name])
    np.savez(file, **arrays)
    return file.getvalue()


def craft_pt(random: Random) -> bytes:
    """A tensor of torch of any layout whose parts do not fit each other."""

    def craft(array: Any) -> torch.Tensor:
        crafted = craft_numbers(random, array)
        return torch.tensor(crafted if crafted.dtype != np.uint64 else crafted.astype(np.int64))

    shape = random.choice([(7, 5), (7, 4), (2, 5), (7, 5, 1), (7,)])
    coo, parts, file = ROWS.tocoo(), (ROWS.indptr, ROWS.indices, ROWS.data), io.BytesIO()
    makers: list[Callable[[], Any]] = [
        lambda: torch.sparse_coo_tensor(craft(coo.coords), craft(coo.data), shape, check_invariants=False),
        lambda: torch.sparse_csr_tensor(*map(craft, parts), shape, check_invariants=False),
        lambda: [craft(row) for row in ROWS.toarray()],
        lambda: random.choice([{}, [], "x", craft(ROWS.toarray()), torch.nn.Linear(2, 2).state_dict()]),
    ]
    try:
        torch.save(random.choice(makers)(), file)
    except (RuntimeError, ValueError, TypeError, IndexError):  # torch makes no such tensor
        torch.save(torch.tensor(ROWS.toarray()), file)
    return damaged(random, file.getvalue()) if random.random() < 0.2 else file.getvalue()


def craft_lines(random: Random) -> bytes:
    rows = [{"id": f"d{n}", "vector": {"a": n, "b": 1.5}, "contents": "x", "metadata": {"k": 1}} for n in range(4)]
    lines = [json.dumps(changed_json(random, row) if random.random() < 0.3 else row) for row in rows]
    content = random.choice(["\n", "\r", "\r\n"]).join(lines).encode()
    return damaged(random, content) if random.random() < 0.7 else content


def craft_ciff(random: Random) -> bytes:
    """Two documents of one term; sometimes with other numbers, which protobuf can hold."""
    numbers = [1, 1, 2, 2, 3, 1, 4]
    if random.random() < 0.5:
        numbers[random.randrange(len(numbers))] = random.choice(NUMBERS) & (1 << 63) - 1
    version, lists, documents, frequency, impact, gap, more = numbers
    postings = [encode_number(2, impact), encode_number(1, gap) + encode_number(2, more)]
    listed = encode_bytes(1, b"a") + encode_number(2, frequency) + b"".join(encode_bytes(4, each) for each in postings)
    header = encode_number(1, version) + encode_number(2, lists) + encode_number(3, documents)
    records = (encode_number(1, number) + encode_bytes(2, b"xy"[number : number + 1]) for number in range(2))
    content = b"".join(map(encode_message, (header, listed, *records)))
    return damaged(random, content) if random.random() < 0.7 else content


MATRICES = {".npz": craft_npz, ".pt": craft_pt}
CRAFTS = {**MATRICES, ".ciff": craft_ciff, ".jsonl": craft_lines, ".json": craft_lines}


def test_no_file_ends_the_process(rounds: Rounds) -> None:
    assert CRAFTS.keys() == READERS.keys() - {""}
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=serve, args=(other,), daemon=True)
    process.start()
    other.close()  # so that its end is seen here
    for one in rounds:
        for _ in range(50):
            suffix = one.random.choice(list(CRAFTS))
            content, packed = CRAFTS[suffix](one.random), suffix not in MATRICES and one.random.random() < 0.2
            content = damaged(one.random, gzip.compress(content)) if packed else content
            (folder := one.folder / "one").mkdir()
            (folder / "ids").write_text("".join(f"d{n}\n" for n in range(7)))
            (folder / "terms").write_text("a\nb\nc\nd\ne\n")
            (source := folder / f"in{suffix}{'.gz' if packed else ''}").write_bytes(content)
            connection.send(str(source))
            try:
                answer = connection.recv() if connection.poll(PATIENCE_S) else f"WRONG: silent for {PATIENCE_S} s"
            except EOFError:
                process.join()
                answer = f"WRONG: ended by {process.exitcode}"
            assert not answer.startswith("WRONG"), f"{source}: {answer}"
            rounds.count("damaged imports taken" if answer == "imported" else "damaged imports refused")
            shutil.rmtree(folder)
    process.kill()
