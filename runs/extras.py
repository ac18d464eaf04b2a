"""Packages and bytes that each extra brings, counted where all are installed: `python runs/extras.py`.

Prints a Markdown table. A package counts with its files and their compiled forms, and packages that it needs itself.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lexvl_anserini.doctor import OF_DEVELOPERS

OURS = "lexvl-anserini"


def closure(name: str, extras: frozenset[str], counted: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names of a package and of all that it needs with some extras; `counted` has what is walked already."""
    name = canonicalize_name(name)
    if (name, extras) in counted:
        return set()
    counted.add((name, extras))
    try:
        requirements = distribution(name).requires or []
    except PackageNotFoundError:
        return set()
    needed = map(Requirement, requirements)
    chosen = [r for r in needed if any(r.marker is None or r.marker.evaluate({"extra": e}) for e in {"", *extras})]
    return {name}.union(*(closure(r.name, frozenset(r.extras), counted) for r in chosen))


def size(name: str) -> int:
    """Bytes of a package's files."""
    paths = {str(file.locate()): file.locate() for file in distribution(name).files or ()}
    return sum(path.stat().st_size for path in paths.values() if path.is_file())


def main() -> None:
    """Prints a row for no extra, then one for each."""
    print("| extra | packages | MB | more than without |\n|---|---|---|---|")
    core = closure(OURS, frozenset(), set())
    least = sum(map(size, core))
    for extra in ["", *sorted(set(metadata(OURS).get_all("Provides-Extra")) - OF_DEVELOPERS)]:
        packages = closure(OURS, frozenset({extra} - {""}), set())
        total = sum(map(size, packages))
        more = f"{len(packages - core)} packages, {(total - least) / 1e6:,.0f} MB" if extra else ""
        print(f"| {f'`[{extra}]`' if extra else 'none'} | {len(packages)} | {total / 1e6:,.0f} | {more} |")


if __name__ == "__main__":
    main()
