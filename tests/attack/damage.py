"""What attacks share: damaged bytes, and outcomes that a user may see."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

from lexvl_anserini.ground.errors import LexvlError


def damaged(random: Random, data: bytes, pieces: Sequence[bytes] = ()) -> bytes:
    """The bytes with a few flipped, cut, removed, repeated, inserted or overwritten, by `pieces` if there are some."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at, length = random.randrange(len(changed) + 1), random.choice([1, 1, 2, 8, 60])
        others = (random.randbytes(length), bytes([random.choice([0, 0xFF, 0x22, 0x0A, 0x7B])]) * length)
        piece = random.choice(pieces or others)
        action = random.choice(["flip", "cut", "insert", "remove", "repeat", "overwrite"])
        if action == "flip" and changed:
            changed[at % len(changed)] ^= 1 << random.randrange(8)
        elif action == "cut":
            del changed[at:]
        elif action == "insert":
            changed[at:at] = piece
        elif action == "remove":
            del changed[at : at + length]
        elif action == "repeat":
            changed[at:at] = changed[at : at + length] * random.randint(1, 3)
        elif action == "overwrite":
            changed[at : at + len(piece)] = piece
    return bytes(changed)


def changed_json(random: Random, data: Any) -> Any:
    if isinstance(data, dict | list) and data and random.random() < 0.9:
        key = random.choice(list(data) if isinstance(data, dict) else range(len(data)))
        data = data.copy()
        if random.random() < 0.1:
            del data[key]
        else:
            data[key] = changed_json(random, data[key])
        return data
    return random.choice(["x", "", 0, -1, 1.5, 10**18, None, True, [], {}, ["x"], {"name": 3}, "x" * 5000, [[[]]]])


def places(value: Any, most: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a JSON value, at most so many of one container."""
    keys = list(value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ())
    for key in keys[:most]:
        yield value, key
        yield from places(value[key], most)


def one_line(error: BaseException) -> str:
    """The text of an error that a user may see: ours, and on one line."""
    assert isinstance(error, LexvlError), repr(error)
    text = str(error)
    assert text.strip() and "\n" not in text and "\tat " not in text and "Traceback" not in text, text[:3000]
    assert len(text) < 2000, text[:3000]
    return text


def outcome(read: Callable[[], Iterable[Any]]) -> list[Any] | str:
    try:
        return list(read())
    except LexvlError as error:
        return one_line(error)
