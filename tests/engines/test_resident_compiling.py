"""Kernels: their code is kept on disk, and a damaged file of it counts as none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config

from lexvl_anserini.engines.resident.compiling import CodeFiles, KernelCache, kernel


def total(numbers: Any) -> Any:
    return numbers.sum() + 1


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def called(kind: str = "i4") -> tuple[int, bool]:
    """What a new kernel gives for 1 + 2 + 3, and whether its code came from the disk."""
    fresh: Any = kernel(total)
    return int(fresh(np.array([1, 2, 3], kind))), bool(fresh.stats.cache_hits)


def test_each_signature_has_a_file(stored: Path) -> None:
    assert called() == called("i8") == (7, False)
    assert called() == called("i8") == (7, True)
    assert len(list(stored.rglob("*.nbc"))) == 2 and not list(stored.rglob("*.nbi"))


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:999], lambda data: data[:-9] + bytes(9)])
def test_a_damaged_file_is_written_again(change: Any, stored: Path) -> None:
    called()
    [path] = stored.rglob("*.nbc")
    sound = path.read_bytes()
    path.write_bytes(change(sound))
    assert called() == (7, False) and called() == (7, True)


def test_a_file_of_another_signature_or_source_is_not_used(stored: Path) -> None:
    called()
    [first] = stored.rglob("*.nbc")
    called("i8")
    [second] = set(stored.rglob("*.nbc")) - {first}
    second.write_bytes(first.read_bytes())
    assert called("i8") == (7, False)
    fresh: Any = kernel(total)
    fresh._cache._cache_file._source_stamp = (0, 0)
    assert fresh(np.array([1], "i4")) == 2 and not fresh.stats.cache_hits


def test_a_numba_of_another_build_keeps_its_own_files(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeFiles, "_data_path", property(lambda self: self.absent), raising=False)
    fresh: Any = kernel(total)
    assert not isinstance(fresh._cache, KernelCache)


def test_a_disk_that_cannot_be_written_costs_time_only(stored: Path) -> None:
    fresh: Any = kernel(total)
    fresh._cache._cache_file._cache_path = str(stored / "missing")
    assert fresh(np.array([1, 2, 3])) == 7
