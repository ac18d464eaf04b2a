"""Lists the files of which a function runs when the demo is encoded, indexed, searched and measured."""

import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT}/{package}/" for package in ("lexvl_anserini", "eval", "lexvl_plugins"))
LINE = (
    "lexvl_anserini.encode --corpus demo --output impacts",
    "lexvl_anserini.index impacts --index index",
    "lexvl_anserini.search --index index --hits 100 --output run.trec",
    "eval.demo --run run.trec",
)


def trace(out: Path, arguments: list[str]) -> None:
    """Runs a command and writes the files whose functions ran."""
    ran: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(OURS) and frame.f_code.co_name != "<module>":
            ran.add(name)

    def finish(code: int = 0) -> None:
        sys.setprofile(None)
        out.write_text(json.dumps(sorted(ran)))
        end(code)

    end, os._exit = os._exit, finish  # type: ignore[assignment]  # commands may end without Python's own end
    sys.path.insert(0, str(ROOT))
    sys.argv = arguments
    threading.setprofile(profile)
    sys.setprofile(profile)
    code: Any = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code or 0
    finish(int(code))


def list_files() -> list[str]:
    files: set[str] = set()
    with TemporaryDirectory() as work:
        out = Path(work, "files.json")
        for command in LINE:
            call = [sys.executable, __file__, str(out), *command.split()]
            done = subprocess.run(call, cwd=work, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr[-1500:]}"
            files |= set(json.loads(out.read_text()))
    return sorted(name.removeprefix(f"{ROOT}/") for name in files)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trace(Path(sys.argv[1]), sys.argv[2:])
    else:
        print(*list_files(), sep="\n")
