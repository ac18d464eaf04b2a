"""What commands run with on this machine, and what is missing: `python -m lexvl_anserini.doctor`."""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
from collections.abc import Callable

import typer

from lexvl_anserini.cli import Style, Verbose, as_expected, print_rows, run
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.engines import jvm
from lexvl_anserini.ground import machine as installed
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.machine import OURS, check_writable, choose_kernels_folder, find_version
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.ground.registry import import_home

# Extras for work on this package itself.
OF_DEVELOPERS = frozenset({"browser", "docs", "store-servers", "test", "test-all"})


def check_packages() -> str:
    """Our version; raises LexvlError if a package is missing that every installation has."""
    if find_version(OURS) is None:
        return "a checkout that is not installed; bash runs/setup.sh installs it"
    if unmet := installed.list_unmet_requirements():
        raise LexvlError(f"{find_version(OURS)} lacks what it needs; pip install {shlex.join(unmet)}")
    return f"{find_version(OURS)}, everything that it needs is installed"


def check_torch() -> str:
    """The build of torch, and the devices that it has here."""
    installed.check_model_libraries()
    import torch

    devices = ["cpu", *(f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'is not built in'}; devices: {', '.join(devices)}"


def check_caches() -> str:
    """Where commands keep what they need again, and whether that can be written."""
    folders = (data_root(None), choose_kernels_folder())
    return "; ".join(f"{folder}{'' if check_writable(folder) else ' (cannot be written)'}" for folder in folders)


def check_measures() -> str:
    """The version of ranx; raises LexvlError if it computes a wrong value."""
    metrics = import_home("lexvl_eval.measures.metrics")
    run, qrels = [ScoredDoc("q", "d2", 1, 2.0), ScoredDoc("q", "d1", 2, 1.0)], [Qrel("q", "d1", 1)]
    if (value := metrics.means(metrics.evaluate(run, qrels, ["RR"]))["RR"]) != 0.5:
        raise LexvlError(f"RR of a relevant document at rank 2 is {value}, expected 0.5; install ranx again")
    return f"ranx {find_version('ranx')} compiles and computes"


CHECKS: dict[str, Callable[[], str]] = {
    "Python": lambda: f"{platform.python_version()}, {sys.executable}; {platform.platform()}",
    OURS: check_packages,
    "Java": lambda: "{0.version} ({0.source}), {0.home}".format(jvm.find_java()),
    "Lucene": lambda: f"{installed.find_lucene(jvm.find_jar())}, Pyserini {find_version('pyserini')}",
    "torch": check_torch,
    "cores": lambda: f"{count_usable_cores()}, {jvm.measure_quarter_memory() * 4 / 1e9:.1f} GB of memory",
    "disk": lambda: f"{shutil.disk_usage('.').free / 1e9:.1f} GB free here",
    "caches": check_caches,
    "measures": check_measures,
}


def command(style: Style = "text", verbose: Verbose = False) -> None:
    """Show what commands run with on this machine; exit code 1 if something is missing that all need.

    Example: python -m lexvl_anserini.doctor --format text
    """
    rows: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            rows[name] = check()
        except Exception as error:
            rows[name] = f"error: {as_expected(error)}"
    for extra in installed.list_extras() if find_version(OURS) else ():
        if extra not in OF_DEVELOPERS:
            unmet = ", ".join(installed.list_unmet_requirements(extra))
            rows[f"[{extra}]"] = f"pip install '{OURS}[{extra}]' (missing: {unmet})" if unmet else "installed"
    print_rows(rows, style)
    if any(row.startswith("error: ") for row in rows.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(command)
