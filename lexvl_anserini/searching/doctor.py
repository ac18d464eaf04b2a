"""Whether the line runs on this machine, and with what: `python -m lexvl_anserini.searching.doctor`."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from lexvl_anserini.cli import Style, Verbose, as_expected, print_rows, run
from lexvl_anserini.data import caches
from lexvl_anserini.data.pictures.images import usable_cores
from lexvl_anserini.engines import jvm
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.installed import (
    OURS,
    check_model_libraries,
    extra_names,
    lucene_of,
    unmet_requirements,
    version_of,
)
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.ground.registry import import_home
from lexvl_anserini.ground.user_folders import can_write

# Extras for work on this package itself.
OF_DEVELOPERS = frozenset({"browser", "docs", "store-servers", "test", "test-all"})

# Missing packages in a row.
NAMED = 4

# What the trial encodes.
DOCUMENTS = 4


def of_python() -> str:
    """Python, and what it runs on."""
    return f"{platform.python_version()}, {sys.executable}; {platform.platform()}"


def of_packages() -> str:
    """Our version, and what is missing of what every installation has."""
    unmet = unmet_requirements()
    if unmet:
        raise LexvlError(f"{version_of(OURS)} lacks what it needs; pip install {shlex.join(unmet)}")
    return f"{version_of(OURS)}, everything that it needs is installed"


def of_java() -> str:
    """The runtime that commands start."""
    runtime = jvm.find_java()
    return f"{runtime.version} ({runtime.source}), {runtime.home}"


def of_lucene() -> str:
    """Lucene, in Pyserini's jar."""
    return f"{lucene_of(jvm.find_jar())}, Pyserini {version_of('pyserini')}"


def of_torch() -> str:
    """The build of torch, and the devices that it has here."""
    check_model_libraries()
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    devices = ["cpu", *(f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return f"{torch.__version__}, {build}; devices: {', '.join(devices)}"


def of_machine() -> str:
    """Cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{usable_cores()} usable; {memory / 1e9:.1f} GB of memory"


def of_disk() -> str:
    """Free bytes here, and where caches are."""
    held = caches.places().values()
    places = {"here": Path.cwd(), "caches": caches.places()["exports"].path}
    free = {
        name: shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free
        for name, path in places.items()
    }
    ours, shared = (sum(caches.size(place.path) for place in held if place.ours is own) for own in (True, False))
    shown = ", ".join(f"{size / 1e9:.1f} GB free ({name})" for name, size in free.items())
    return f"{shown}; caches hold {ours / 1e6:.1f} MB, downloads {shared / 1e6:.1f} MB (lexvl caches)"


def of_caches() -> str:
    """Where commands keep what they need again, and what of it cannot be written."""
    ours = {name: place.path for name, place in caches.places().items() if place.ours}
    fixed = [name for name, path in ours.items() if not can_write(path if path.is_dir() else path.parent)]
    shown = f"in {caches.data_root(None)}"
    return f"{shown}; cannot be written, and is computed each time: {', '.join(fixed)}" if fixed else shown


def of_measures() -> str:
    """The value of a measure, which ranx computes.

    Raises:
        LexvlError: it is wrong.
    """
    metrics = import_home("lexvl_eval.measures.metrics")
    run, qrels = [ScoredDoc("q", "d2", 1, 2.0), ScoredDoc("q", "d1", 2, 1.0)], [Qrel("q", "d1", 1)]
    if (value := metrics.means(metrics.evaluate(run, qrels, ["RR"]))["RR"]) != 0.5:
        raise LexvlError(f"RR of a relevant document at rank 2 is {value}, expected 0.5; install ranx again")
    return f"ranx {version_of('ranx')} compiles and computes"


def of_line() -> str:
    """The seconds in which packaged pictures are encoded, indexed and found.

    Raises:
        LexvlError: no picture is found.
    """
    from lexvl_anserini import build_index, load_dataset, load_encoder, write_impacts

    started = time.perf_counter()
    demo = load_dataset("demo")
    few = replace(demo, documents=lambda: islice(demo.documents(), DOCUMENTS))
    with TemporaryDirectory(prefix="lexvl-doctor-") as folder:
        model = load_encoder("vdr-crossmodal", checkpoint="demo-vdr", device="cpu")
        write_impacts(few, model, Path(folder) / "impacts")
        hits = build_index(Path(folder) / "impacts", Path(folder) / "index").search("a boat on the sea", k=DOCUMENTS)
    if not hits:
        raise LexvlError("a search of packaged pictures has no hit")
    return f"runs: {DOCUMENTS} pictures encoded, indexed and searched in {time.perf_counter() - started:.1f} s"


CHECKS: dict[str, Callable[[], str]] = {
    "Python": of_python,
    OURS: of_packages,
    "Java": of_java,
    "Lucene": of_lucene,
    "torch": of_torch,
    "cores": of_machine,
    "disk": of_disk,
    "caches": of_caches,
    "measures": of_measures,
    "line": of_line,
}


def of_extra(name: str) -> str:
    """Whether an extra is installed, else the command that installs it."""
    if not (unmet := unmet_requirements(name)):
        return "installed"
    more = f" and {len(unmet) - NAMED} more" if len(unmet) > NAMED else ""
    return f"pip install '{OURS}[{name}]' (missing: {', '.join(unmet[:NAMED])}{more})"


def examined() -> tuple[dict[str, str], bool]:
    """What is here, row by row, and whether the line runs; a row that fails is an error with its remedy."""
    rows: dict[str, str] = {}
    failed = False
    for name, check in CHECKS.items():
        try:
            rows[name] = check()
        except PackageNotFoundError:
            rows[name] = "a checkout that is not installed; bash runs/setup.sh installs it"
        except Exception as error:
            rows[name], failed = f"error: {as_expected(error)}", True
    with suppress(PackageNotFoundError):
        rows |= {f"[{name}]": of_extra(name) for name in extra_names() if name not in OF_DEVELOPERS}
    return rows, not failed


def command(style: Style = "text", verbose: Verbose = False) -> None:
    """Show what commands run with on this machine, and try the whole line; exit code 1 if it does not run.

    Example: python -m lexvl_anserini.searching.doctor --format text
    """
    rows, runs = examined()
    print_rows(rows, style)
    if not runs:
        raise typer.Exit(1)


if __name__ == "__main__":
    run(command)
