"""Kernels: their code is kept on disk, and a damaged file of it counts as none."""

import ast
import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from lexvl_anserini.engines.compiling import MOST_VERSIONS, CodeFiles, KernelCache, keep_by_content, kernel
from lexvl_anserini.ground.machine import compute_source_digest

ROOT = Path(__file__).parents[2]


def total(numbers):
    return numbers.sum() + 1


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def called(kind="i4"):
    """What a new kernel gives for 1 + 2 + 3, and whether its code came from the disk."""
    fresh = kernel(total)
    return int(fresh(np.array([1, 2, 3], kind))), bool(fresh.stats.cache_hits)


def test_each_signature_has_a_file(stored):
    assert called() == called("i8") == (7, False)
    assert called() == called("i8") == (7, True)
    assert len(list(stored.rglob("*.nbc"))) == 2 and not list(stored.rglob("*.nbi"))


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:999], lambda data: data[:-9] + bytes(9)])
def test_a_damaged_file_is_written_again(change, stored):
    called()
    [path] = stored.rglob("*.nbc")
    sound = path.read_bytes()
    path.write_bytes(change(sound))
    assert called() == (7, False) and called() == (7, True)


def test_a_file_of_another_signature_or_source_is_not_used(stored):
    called()
    [first] = stored.rglob("*.nbc")
    called("i8")
    [second] = set(stored.rglob("*.nbc")) - {first}
    second.write_bytes(first.read_bytes())
    assert called("i8") == (7, False)
    fresh = kernel(total)
    fresh._cache._cache_file._source_stamp = (0, 0)
    assert fresh(np.array([1], "i4")) == 2 and not fresh.stats.cache_hits


def test_a_numba_of_another_build_keeps_its_own_files(stored, monkeypatch):
    monkeypatch.setattr(CodeFiles, "_data_path", property(lambda self: self.absent), raising=False)
    fresh = kernel(total)
    assert not isinstance(fresh._cache, KernelCache)


def test_a_disk_that_cannot_be_written_costs_time_only(stored):
    fresh = kernel(total)
    fresh._cache._cache_file._cache_path = str(stored / "missing")
    (stored / "file").touch()
    fresh._cache._impl.locator.get_cache_path = lambda: str(stored / "file/below")
    assert fresh(np.array([1, 2, 3])) == 7


def test_equal_sources_share_their_code_wherever_they_lie(stored, tmp_path):
    """Also those of a package that calls numba itself; a changed module of the package makes another folder."""
    text = "from numba import njit\n\n\n@njit(cache=True)\ndef twice(number):\n    return 2 * number\n"
    hits = []
    for place, other in (("a", ""), ("b", ""), ("c", "STEP = 3\n")):
        folder = tmp_path / place / "package"
        folder.mkdir(parents=True)
        (folder / "other.py").write_text(other)
        (folder / "doubling.py").write_text(text)
        spec = spec_from_file_location("doubling", folder / "doubling.py")
        module = module_from_spec(spec)
        with keep_by_content():
            spec.loader.exec_module(module)
        assert module.twice(4) == 8
        hits.append(bool(module.twice.stats.cache_hits))
    assert hits == [False, True, False]
    assert len(list(stored.glob("package-*"))) == 2 and not list(tmp_path.rglob("__pycache__/*.nb?"))


def test_folders_of_former_sources_go(stored):
    """The newest stay, and so do those of other packages."""
    for number in range(MOST_VERSIONS + 2):
        folder = stored / f"engines-{number:016}"
        folder.mkdir()
        os.utime(folder, (number, number))
    (stored / "metrics-0").mkdir()
    called()
    fresh = f"engines-{compute_source_digest(Path(__file__).parent)[:16]}"
    kept = [f"engines-{number:016}" for number in range(3, MOST_VERSIONS + 2)]
    assert sorted(path.name for path in stored.iterdir()) == sorted([*kept, fresh, "metrics-0"])


def test_what_a_kernel_reads_is_in_its_package():
    """The digest that names the code of kernels covers their package: no constant of theirs comes from elsewhere."""
    allowed, inside = {"typing", "numpy", "lexvl_anserini.engines.compiling"}, "lexvl_anserini.engines.resident."
    for path in sorted((ROOT / "lexvl_anserini/engines/resident").glob("*.py")):
        tree = ast.parse(path.read_text())
        names = {name for node in tree.body if is_kernel(node) for name in names_read(node)}
        modules = {
            node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names}
        }
        assert not [module for module in modules - allowed if not module.startswith(inside)], path


def is_kernel(node):
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list
    )


def names_read(function):
    """The names that the body of a function reads; its annotations are none of the compiler's."""
    assert isinstance(function, ast.FunctionDef)
    return {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
