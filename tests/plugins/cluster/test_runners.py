"""The protocol of runners: every part is done once and counted, whatever the order and whatever fails."""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, MissingExtra, UnknownName
from lexvl_plugins.cluster.runners import FailedPart, LocalRunner, Runner, run_all


class ShuffledRunner(LocalRunner):
    """Keeps a few parts under way at a time, and finishes them in any order."""

    def __init__(self, seed: int, window: int):
        self.chance, self.window = random.Random(seed), window

    def run(self, work: Callable[[int], Any], numbers: Iterable[int], cores: int = 1) -> Iterator[tuple[int, Any]]:
        coming = iter(numbers)
        under_way = list(islice(coming, self.window))
        while under_way:
            chosen = under_way.pop(self.chance.randrange(len(under_way)))
            under_way += islice(coming, 1)
            yield from super().run(work, [chosen], cores)


@given(parts=st.integers(0, 40), failing=st.sets(st.integers(0, 39)), seed=st.integers(0, 9), window=st.integers(1, 6))
def test_all_parts_are_done_once_or_named(parts, failing, seed, window):
    failing = {number for number in failing if number < parts}
    runner: Runner = ShuffledRunner(seed, window)
    done: dict[int, int] = {}

    def work(number: int) -> int:
        if number in failing:
            raise ArtefactError(f"no {number}")
        return number * number

    def collect() -> None:
        for number, value in run_all(runner, work, range(parts), lambda n: f"part {n}"):
            assert number not in done
            done[number] = value

    if failing:
        with pytest.raises(LexvlError) as raised:
            collect()
        first = sorted(failing)[:3]
        kept = ", the others are finished and kept" if len(failing) < parts else ""
        assert str(raised.value).startswith(f"{len(failing)} of {parts} parts failed{kept}: ")
        assert "; ".join(f"part {number}: no {number}" for number in first) in str(raised.value)
        assert (f"and {len(failing) - 3} more" in str(raised.value)) == (len(failing) > 3)
    else:
        collect()
    assert done == {number: number * number for number in range(parts) if number not in failing}


def test_errors_keep_class_and_line_in_another_process():
    others = UnknownName("encoder", "spalde", ["splade"]), MissingExtra("--runner ray", "ray")
    for error in (DataError("line 3: no id"), ArtefactError("x" * 3000), *others):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.exit_code) == (type(error), str(error), error.exit_code)


def test_workers_of_this_process():
    class Shelf:
        closed = False

        def __init__(self, argument: Any):
            self.argument = argument

        def double(self, factor: int) -> Any:
            if factor == 0:
                raise DataError("nothing")
            return self.argument * factor

        def close(self) -> None:
            self.closed = True

    one, other = LocalRunner().start_workers(Shelf, [1, "a"])
    assert (one.call("double", 3).result(), other.call("double", 2).result()) == (3, "aa")
    failed = one.call("double", 0)
    with pytest.raises(DataError, match="nothing"):
        failed.result()
    one.close()
    assert one.held.closed
    assert FailedPart("why").reason == "why"
