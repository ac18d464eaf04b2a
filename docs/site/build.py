"""Builds the site: collects its pages, lets Sphinx render them, and checks every link of the result.

Usage: python docs/site/build.py [--no-run] [--repository OWNER/NAME]        (docs/build.sh calls it)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import notebooks
from check import problems
from pages import ROOT, collect, publish_texts
from papers import write_pages

SITE = ROOT / "build" / "site"


def publish_demo(site: Path, environment: dict[str, str]) -> bool:
    """Encodes, indexes and publishes the pictures of the demo, which the first page links; False if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        shards, index = f"{folder}/shards", f"{folder}/demo"
        for arguments in (
            ["lexvl_anserini.encode", "--corpus", "demo", "--output", shards],
            ["lexvl_anserini.index", shards, "--index", index],
            ["lexvl_plugins.serve.publish", index, str(site), "--name", "drawn pictures"],
        ):
            command = [sys.executable, "-m", *arguments]
            if subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL).returncode:
                return False
    return True


def main() -> int:
    """Builds; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-run", action="store_true", help="leave the tutorials without their outputs")
    parser.add_argument("--output", type=Path, default=SITE, help="folder of the site (build/site)")
    parser.add_argument(
        "--repository",
        default=os.environ.get("GITHUB_REPOSITORY", ""),
        help="OWNER/NAME on GitHub, to which Colab's badges and the links of notebooks lead ($GITHUB_REPOSITORY)",
    )
    given = parser.parse_args()
    output = given.output.resolve()
    pages, doctrees = output.with_name(f"{output.name}-pages"), output.with_name(f"{output.name}-doctrees")
    for folder in (pages, doctrees, output):
        shutil.rmtree(folder, ignore_errors=True)
    collect(pages, given.repository)
    write_pages(pages)
    mode = ["-D", "nb_execution_mode=off"] if given.no_run else []
    # -W: warnings are errors; all are printed first.
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-c", str(Path(__file__).parent), *mode]
    places = ["-d", str(doctrees), str(pages), str(output)]
    # Commands in tutorials are those of this environment; notebooks without widgets need no remark of tqdm.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "PYTHONWARNINGS": "ignore:IProgress not found"}
    done = subprocess.run([*command, *places], cwd=ROOT, env=environment, check=False)
    if done.returncode or not publish_demo(output / "demo", environment):
        return 1
    notebooks.finish(output, given.repository)
    publish_texts(output)
    found = problems(output)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if not found:
        print(output / "index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
