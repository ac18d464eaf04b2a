"""Versions of packages, from their metadata and files: nothing is imported and no Java starts.

The folders of the user who runs a command: home, caches, and a temporary folder where neither can be written. Where
compiled functions lie, and whether those of a package are there; without numba, whose import takes a while.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

from lexvl_anserini.ground.errors import InstallationError

if TYPE_CHECKING:
    from packaging.specifiers import Specifier, SpecifierSet

OURS = "lexvl-anserini"

# Has the options of the compiler.
COMPILER = Path(__file__).parents[1] / "engines/compiling.py"

# What encoders compute with, and the newest versions in constraints/, which were tested. A version below the declared
# range fails late, deep inside a model; a newer one may work.
MODEL_LIBRARIES = {"torch": "2.13", "transformers": "5.23"}

log = logging.getLogger(__name__)


def find_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed, or has no metadata."""
    from importlib.metadata import PackageNotFoundError, version  # with thirty modules of mail and sockets

    with suppress(PackageNotFoundError):
        return version(package)
    return None


def list_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of packages; those without metadata are left out, as ours in a plain checkout."""
    versions = {package: find_version(package) for package in packages}
    return {package: number for package, number in versions.items() if number is not None}


def find_package(module: str) -> Path | None:
    """The folder of an installed top-level package, which is not imported; None if it is not installed."""
    spec = find_spec(module)
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None


def find_shipped(name: str) -> Path:
    """A folder of `runs` that a wheel has too: `name` in the package lexvl_eval, `runs/name` in a checkout."""
    root = Path(__file__).parents[2]
    installed = root / "lexvl_eval" / name
    return installed if installed.is_dir() else root / "runs" / name


def read_declared_versions() -> dict[str, SpecifierSet]:
    """The versions of each package that ours declares to need; nothing in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    with suppress(PackageNotFoundError):
        return {requirement.name: requirement.specifier for requirement in map(Requirement, requires(OURS) or ())}
    return {}


def is_too_old(version: str, declared: Iterable[Specifier]) -> bool:
    """Whether a declared range excludes a version for another reason than that it is newer."""
    return any(not each.contains(version, prereleases=True) for each in declared if not each.operator.startswith("<"))


def list_unmet_requirements(extra: str = "") -> list[str]:
    """What ours needs, or an extra of it, and is not installed, or too old: `fastapi>=0.120`."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    unmet: list[str] = []
    for needed in map(Requirement, requires(OURS) or ()):
        always, here = (needed.marker is None or needed.marker.evaluate({"extra": name}) for name in ("", extra))
        if not here or (extra and always):
            continue
        if needed.name == OURS:
            unmet += [lacking for name in sorted(needed.extras) for lacking in list_unmet_requirements(name)]
            continue
        installed = find_version(needed.name)
        if installed is None or is_too_old(installed, needed.specifier):
            unmet.append(f"{needed.name}{needed.specifier}")
    return list(dict.fromkeys(unmet))


def list_extras() -> list[str]:
    """The extras of ours."""
    from importlib.metadata import metadata

    return sorted(metadata(OURS).get_all("Provides-Extra") or ())


@cache
def check_model_libraries() -> None:
    """Checks torch and transformers before they are imported; one without metadata passes.

    The first call in a process names those that are newer than the tested versions.
    """
    from packaging.version import Version

    declared = read_declared_versions()
    for library, tested in MODEL_LIBRARIES.items():
        versions = declared.get(library, ())
        needed = ",".join(sorted(map(str, versions), reverse=True))
        installed = find_version(library)
        if installed is None:
            if find_spec(library) is None:
                raise InstallationError(f"{library} is not installed; pip install '{library}{needed}'")
        elif is_too_old(installed, versions):
            what = f"{library} {installed} is installed, expected {needed}"
            raise InstallationError(f"{what}; pip install '{library}{needed}'")
        elif Version(installed).release[:2] > Version(tested).release:
            log.info("%s %s is newer than %s, the newest version that was tested", library, installed, tested)


def find_lucene(jar: Path) -> str | None:
    """The version of Lucene in a jar of Anserini, by the project file in it; None if it has none."""
    try:
        with ZipFile(jar) as archive:
            project = archive.read("META-INF/maven/io.anserini/anserini/pom.xml").decode()
    except (OSError, KeyError, BadZipFile):
        return None
    match = re.search(r"<lucene\.version>([^<]+)</lucene\.version>", project)
    return match[1] if match else None


CACHE = Path(".cache/lexvl")  # the folder of caches below a home folder


def find_home_folder() -> Path:
    """The user's home folder; the private temporary folder for a user of whom the system knows none."""
    with suppress(RuntimeError):  # neither $HOME nor an entry of the user
        return Path.home()
    return make_private_folder()


def expand_path(path: str | Path) -> Path:
    """A path whose first part `~` is the home folder, and `~name` that of a user; the path itself for no such user."""
    if not str(path).startswith("~"):
        return Path(path)  # of `./~`, a path keeps `~` alone
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first, *others = Path(path).parts
        return find_home_folder().joinpath(*others) if first == "~" else Path(path)


def split_path(text: str) -> tuple[str, str]:
    """What a name means by `PATH,REST`: the comma after the longest path that exists, else the first."""
    parts = text.split(",")
    ends = (end for end in range(len(parts), 0, -1) if expand_path(",".join(parts[:end])).exists())
    end = next(ends, 1)
    return ",".join(parts[:end]), ",".join(parts[end:])


def cache_folder() -> Path:
    """The folder of what commands keep: ~/.cache/lexvl, or a private one where there is none and none can be made."""
    folder = find_home_folder() / CACHE
    return folder if os.access(folder, os.F_OK) or check_writable(folder) else make_private_folder() / CACHE


def choose_kernels_folder() -> Path:
    """The folder of compiled functions: `$NUMBA_CACHE_DIR`, else one among the caches that can be written."""
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    if named and check_writable(Path(named)):
        return Path(named)
    folder = cache_folder()
    return (folder if check_writable(folder) else make_private_folder() / CACHE) / "kernels"


def check_writable(folder: Path) -> bool:
    """True if this user can write into a folder, or can make it."""
    nearest = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


@cache
def make_private_folder() -> Path:
    """A temporary folder of this user alone, the same one in each process; logs one line that names what to set.

    Where another user made it, it is one of this process alone; where nothing can be written, none can be there.
    """
    name = f"lexvl-{os.geteuid()}"
    try:
        folder = Path(gettempdir(), name)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            folder = Path(mkdtemp(prefix=f"{name}-"))
    except OSError:
        folder = Path(os.devnull, name)
    log.warning("%s: keeps what belongs in a home folder; set HOME to a folder that can be written", folder)
    return folder


@cache
def compute_source_digest(package: Path) -> str:
    """SHA-256 (hex) of a package's modules, of `COMPILER`, and numba's version."""
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
