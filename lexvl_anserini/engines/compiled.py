"""Where compiled functions lie, and whether those of a package are there; without numba, whose import takes a while."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from lexvl_anserini.ground.machine import choose_kernels_folder, find_version

COMPILER = Path(__file__).with_name("compiling.py")


@cache
def compute_source_digest(package: Path) -> str:
    """SHA-256 (hex) of a package's modules, of `compiling`, which has the compiler's options, and numba's version."""
    digest = sha256(str(find_version("numba")).encode())
    for path in [*sorted(package.glob("*.py")), COMPILER]:
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def find_code_folder(package: Path) -> Path:
    """The folder of the compiled functions of a package's modules as they are now."""
    return choose_kernels_folder() / f"{package.name}-{compute_source_digest(package)[:16]}"


def is_compiled(package: Path, form: str) -> bool:
    """Returns True if `mark_compiled` was called on this machine for the same sources."""
    return (find_code_folder(package) / f"compiled-{form}").is_file()


def mark_compiled(package: Path, form: str) -> None:
    """Notes that the functions of a package are compiled for a form of their arguments."""
    with suppress(OSError):
        (find_code_folder(package) / f"compiled-{form}").touch()
