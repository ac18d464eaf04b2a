"""The set-up: the Python that runs/setup.sh takes, how it installs, `tests/run.sh --python`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from declared import REQUIREMENTS, ROOT, SETUP
from invoking import run_process, write_texts
from packaging.utils import canonicalize_name
from packaging.version import Version
from pins import constraints

pytestmark = pytest.mark.extended

# An interpreter of which only the version is true: it makes environments with itself in them and notes what it runs.
FAKE_PYTHON = """#!/bin/sh
case "$1" in
-c)
  case "$2" in
  *urlopen*) [ -n "${TORCH_INDEX:-}" ] ;;
  *) [ -z "$2" ] || echo VERSION ;;
  esac ;;
--version) echo "Python VERSION.0" ;;
-m)
  if [ "$2" = pip ]; then
    echo "VERSION $*" >>"$NOTES"
    echo "Collecting torch>=2" && echo "  Downloading torch-2.13.0-cp313.whl.metadata (28 kB)"
    echo "Downloading torch-2.13.0-cp313.whl (190.1 MB)" && echo "Building wheels for collected packages: pyserini"
    echo "Installing collected packages: torch, pyserini" && exit "${PIP_FAILS:-0}"
  fi
  [ "$2" = venv ] || exit 0
  [ -z "${NO_VENV:-}" ] || exit 1
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  echo "VIRTUAL_ENV=$PWD/$3; export VIRTUAL_ENV; PATH=$PWD/$3/bin:\\$PATH" >"$3/bin/activate" ;;
*) echo "VERSION $*" >>"$NOTES" ;;
esac
"""

FAKE_UV = """#!/bin/sh
for folder; do :; done
echo "uv $*" >>"$NOTES"
[ "$1" != venv ] || "$5" -m venv "$folder"
"""

TOOLS = ("bash", "sh", "dirname", "cat", "cksum", "tr", "rm", "mkdir", "cp", "touch", "sed")


class Machine:
    """A checkout's scripts, and a PATH with the basic tools and chosen interpreters on it."""

    def __init__(self, folder: Path):
        self.folder, self.path, self.notes = folder / "checkout", folder / "bin", folder / "notes"
        (self.folder / "runs").mkdir(parents=True)
        self.path.mkdir()
        for file in ("runs/setup.sh", "setup.cfg", "setup.py", "pyproject.toml"):
            shutil.copy(ROOT / file, self.folder / file)
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool))
        self.program("uname", "#!/bin/sh\necho Linux\n")

    def program(self, name: str, text: str) -> Path:
        file = self.path / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def python(self, version: str, name: str = "") -> Path:
        return self.program(name or f"python{version}", FAKE_PYTHON.replace("VERSION", version))

    def bash(self, *arguments: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess:
        environ = {"PATH": str(self.path), "HOME": str(self.folder), "NOTES": str(self.notes), **environ}
        return run_process([self.path / "bash", *arguments], cwd=cwd or self.folder, env=environ)

    def set_up(self, **environ: str) -> subprocess.CompletedProcess:
        return self.bash("-c", "set -euo pipefail; source runs/setup.sh test; echo done", **environ)

    def install(self, *expected: str, **environ: str) -> subprocess.CompletedProcess:
        """Sets up, which must succeed, and compares all that was noted up to then."""
        done = self.set_up(**environ)
        assert done.returncode == 0 and self.noted() == [*expected], (done.stderr, self.noted())
        return done

    def commit(self) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example", "-c", "commit.gpgsign=false"]
        for command in (["add", "."], ["commit", "-qm", "x"]):
            subprocess.run(["git", "-C", self.folder, *who, *command], check=True)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


def installed(version: str, extras: str = "test", options: str = "") -> str:
    return f"{version} -m pip install --disable-pip-version-check --progress-bar off {options}--editable .[{extras}]"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def refusal(done: subprocess.CompletedProcess, code: int = 1) -> str:
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    return done.stderr


def test_the_newest_supported_python_is_taken_and_installs_once(machine):
    for version in ("3.10", "3.11", "3.13", "3.15"):
        machine.python(version)
    machine.python("3.15", "python3")
    first = machine.install(installed("3.13"))
    assert first.stdout == "done\n" and "making .venv with Python 3.13.0" in first.stderr
    for line in ("Downloading torch-2.13.0-cp313.whl (190.1 MB)", "Building wheels for collected packages: pyserini"):
        assert f"\n  {line}\n" in first.stderr
    assert machine.install(installed("3.13")).stderr == ""
    with open(machine.folder / "setup.cfg", "a") as out:
        out.write("# changed\n")
    machine.install(*[installed("3.13")] * 2)
    (machine.folder / "setup.cfg").write_text("changed")
    failed = machine.set_up(PIP_FAILS="1")
    assert failed.returncode == 1 and "cannot be installed" in failed.stderr.splitlines()[-1]


def test_an_interpreter_that_cannot_run_is_passed_over(machine):
    """pyenv has such programs: the name is on PATH, and the version is not chosen."""
    machine.program("python3.13", "#!/bin/sh\nexit 127\n")
    machine.python("3.12", "python3")  # no name with a version
    machine.install(installed("3.12"))


@pytest.mark.parametrize("version", ["3.10", "3.15", "2.7", None])
def test_a_machine_without_a_supported_python(machine, version):
    if version:
        machine.python(version, "python3")
    reason = f"(python3 is {version}); LexVL needs one of Python 3.14 3.13 3.12 3.11" if version else "(found none)"
    assert reason in refusal(machine.set_up())
    assert not (machine.folder / ".venv").exists()


def test_the_python_that_the_user_names(machine):
    _, older, oldest = map(machine.python, ("3.13", "3.11", "3.10"))
    assert f"PYTHON={oldest} is Python 3.10" in refusal(machine.set_up(PYTHON=str(oldest)))
    assert "PYTHON=/nowhere/python cannot be run" in refusal(machine.set_up(PYTHON="/nowhere/python"))
    machine.install(installed("3.11"), PYTHON=str(older))
    assert ".venv is Python 3.11, but PYTHON=python3.13 is another" in refusal(machine.set_up(PYTHON="python3.13"))


def test_uv_makes_the_environment_where_it_is_on_the_path(machine):
    python, _ = machine.python("3.12"), machine.program("uv", FAKE_UV)
    machine.install(
        f"uv venv --quiet --no-python-downloads --python {python} .venv",
        f"uv pip install --python {machine.folder}/.venv/bin/python --editable .[test] pip",
    )


def test_the_active_environment_is_used(machine):
    machine.python("3.14")
    active = machine.folder / "mine"
    (active / "bin").mkdir(parents=True)
    shutil.copy(machine.python("3.12", "x"), active / "bin/python")
    machine.install(installed("3.12"), VIRTUAL_ENV=str(active))
    assert not (machine.folder / ".venv").exists()
    shutil.copy(machine.python("3.10", "x"), active / "bin/python")
    assert f"{active} is Python 3.10" in refusal(machine.set_up(VIRTUAL_ENV=str(active)))
    shutil.rmtree(active)
    assert f"VIRTUAL_ENV={active} has no Python that runs" in refusal(machine.set_up(VIRTUAL_ENV=str(active)))


def test_a_python_without_venv(machine):
    machine.python("3.13")
    done = machine.set_up(NO_VENV="1")
    assert done.returncode == 1 and done.stderr.endswith("on Debian and Ubuntu: apt-get install python3.13-venv\n")
    assert not (machine.folder / ".venv").exists()


def test_the_supported_versions_are_those_of_setup_cfg():
    classified = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
    listed = re.search(r'^supported="([\d. ]+)"', (ROOT / "runs/setup.sh").read_text(), re.MULTILINE)[1].split()
    assert listed == classified[::-1]
    least, above = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", SETUP["options"]["python_requires"]).groups()
    assert classified == [f"3.{minor}" for minor in range(int(least), int(above))]


def test_no_release_is_excluded_before_it_breaks_something():
    """An upper bound is a major version: what works with 2.13 is expected to work with 2.14."""
    for requirement in REQUIREMENTS:
        assert {each.operator for each in requirement.specifier} <= {">=", "<"}, requirement
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == "<"]
        assert all(bound == Version(str(bound.major)) for bound in bounds), requirement


@pytest.mark.parametrize("file", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda file: file.stem)
def test_constraints_pin_what_setup_cfg_admits(file):
    pins = dict(line.split("==") for line in file.read_text().splitlines() if not line.startswith("#"))
    for requirement in REQUIREMENTS:
        if requirement.name in ("pip", "setuptools"):  # as `pip freeze`: what installs is not pinned
            continue
        pinned = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned), f"{requirement} in setup.cfg, {pinned} in {file.name}"


@pytest.mark.parametrize(("unpinned", "options"), [("", "--constraint constraints/py313.txt "), ("1", "")])
def test_the_versions_that_were_tested_together(machine, unpinned, options):
    """Each Python has a file of its own; one without a file, and a request, take the newest that setup.cfg admits."""
    write_texts(machine.folder, {"constraints/py313.txt": "torch==2.13.0\n"})
    machine.python("3.13")
    machine.install(installed("3.13", options=options), LEXVL_UNPINNED=unpinned)


@pytest.mark.parametrize(
    ("system", "gpu", "chosen", "pip", "uv"),
    [
        ("Linux", False, "", True, "cpu"),
        ("Linux", True, "", False, "auto"),
        ("Linux", True, "cpu", True, "cpu"),
        ("Linux", False, "cuda", False, None),
        ("Darwin", False, "", False, None),
    ],
)
def test_the_build_of_torch_is_that_of_the_machine(machine, system, gpu, chosen, pip, uv):
    """With pip, the CPU build is installed before everything else; uv knows the builds by itself."""
    machine.python("3.13")
    machine.program("uname", f"#!/bin/sh\necho {system}\n")
    if gpu:
        machine.program("nvidia-smi", "#!/bin/sh\necho GPU 0\n")
    environ = {"TORCH_INDEX": "1", "LEXVL_TORCH": chosen}
    torch = re.search(r"^ +(torch>=.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
    index = f"--no-deps --extra-index-url https://download.pytorch.org/whl/cpu {torch}"
    first = [installed("3.13").replace("--editable .[test]", index)] if pip else []
    assert "note" not in machine.install(*first, installed("3.13"), **environ).stderr
    shutil.rmtree(machine.folder / ".venv")
    machine.program("uv", FAKE_UV)
    assert machine.set_up(**environ).returncode == 0
    backend = f"--torch-backend={uv} " if uv else ""
    assert machine.noted()[-1].startswith(f"uv pip install {backend}--python ")


def test_without_an_index_of_cpu_builds_the_configured_one_is_used(machine):
    machine.python("3.13")
    notes = re.findall("^note: .*", machine.install(installed("3.13")).stderr, re.MULTILINE)
    assert len(notes) == 1 and "torch comes from the configured index" in notes[0]
    shutil.rmtree(machine.folder / ".venv")
    assert "error: LEXVL_TORCH=gpu, expected cpu or cuda\n" in machine.set_up(LEXVL_TORCH="gpu").stderr


@pytest.fixture
def checkout(machine) -> Machine:
    """The committed scripts of a checkout whose tests and quickstart only say where they run, and with which Python."""
    (machine.folder / "tests").mkdir()
    for file in ("tests/other_python.sh", "tests/debian_root.sh", "tests/run.sh"):
        shutil.copy(ROOT / file, machine.folder / file)
    steps = 'echo "$0 $PYTHON $* in $PWD"; touch .venv/made; exit "${FAIL:-0}"\n'
    (machine.folder / "tests/pins.py").touch()
    (machine.folder / "runs/quickstart.sh").write_text("mkdir -p .venv; ls -A .venv; unset FAIL; " + steps)
    run = (machine.folder / "tests/run.sh").read_text().partition("source runs/setup.sh")[0]
    (machine.folder / "tests/run.sh").write_text(run + "mkdir -p .venv; " + steps)
    subprocess.run(["git", "init", "-q", machine.folder], check=True)
    machine.commit()
    for tool in ("git", "ln", "env", "ls", "chmod"):
        (machine.path / tool).unlink(missing_ok=True)
        (machine.path / tool).symlink_to(shutil.which(tool))
    return machine


def run_with(checkout: Machine, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
    environ = {"HOME": str(checkout.folder.parent), "PYTHONPATH": "x", **environ}
    return checkout.bash(checkout.folder / "tests/run.sh", "--python", *arguments, **environ)


def test_another_python_on_the_path_tests_a_clone_of_the_commit(checkout):
    checkout.python("3.13")
    (checkout.folder / "new").touch()
    done = run_with(checkout, "3.13", "-k", "one")
    project = checkout.folder.parent / ".cache/lexvl-roots/python3.13/project"
    said = done.stdout.splitlines()
    assert said[0] == f"tests/run.sh python3.13 -k one in {project}", done.stderr
    assert said[1:3] == ["made", f"runs/quickstart.sh python3.13  in {project}"]
    assert re.fullmatch(r"Python python3.13: tests \d+ s, quickstart \d+ s, both with setting up; exit code 0", said[3])
    assert done.returncode == 0 and "note: changes that are not committed" in done.stderr
    assert not (project / "new").exists() and (project / ".venv/made").exists()
    again = run_with(checkout, "3.13", FAIL="5")  # finds the clone
    assert again.returncode == 5 and again.stdout.endswith("exit code 5\n")


# What makes the environment of a clone: its interpreter prints the versions of the run, and `pip check` fails.
MAKES_PYTHON = r"""mkdir -p .venv/bin
cat >.venv/bin/python <<'END'
#!/bin/sh
case "$*" in
tests/pins.py) echo torch==3.1.0 ;;
*check) sed -n 's/^ *torch/bounds of torch: /p' setup.cfg && exit 1 ;;
esac
END
chmod +x .venv/bin/python
"""
BOUNDS = "[options]\npython_requires = >=3.11,<3.15\ninstall_requires =\n    numpy>=2.1\n    torch>=2.9,<3\n"


@pytest.mark.parametrize("fails", ["", "--lint", "--all", "quickstart"])
def test_newest_versions_are_pinned_only_if_everything_passes(checkout, fails):
    checkout.python("3.13")
    reads = '$(sed -n "s/^ *torch//p; s/^python_requires = //p" setup.cfg)'
    says = f'echo "$0 $* $LEXVL_UNPINNED $LEXVL_TEST_EXTRAS" {reads}; '
    (checkout.folder / "setup.cfg").write_text(BOUNDS)
    run, quickstart = checkout.folder / "tests/run.sh", checkout.folder / "runs/quickstart.sh"
    head = run.read_text().partition("mkdir -p .venv")[0]
    run.write_text(head + MAKES_PYTHON + says + '[ "$1" != "$FAILS" ]\n')
    quickstart.write_text(says + '[ "$FAILS" != quickstart ]\n')
    checkout.commit()
    pinned = checkout.folder / "constraints/py313.txt"
    left = checkout.folder.parent / ".cache/lexvl-roots/python3.13/newest-project/.venv/left"
    for option, written, bounds in (("--newest", False, ">=2.9"), ("--pin", not fails, ">=2.9,<3")):
        done = run_with(checkout, "3.13", option, FAILS=fails)
        assert done.returncode == int(bool(fails)) and not left.exists(), done.stderr
        commands = ["tests/run.sh --lint", "tests/run.sh --all", "runs/quickstart.sh "]
        expected = [f"{command} 1 test-all >=3.11,<3.15 {bounds}" for command in commands]
        assert done.stdout.splitlines()[:4] == [*expected, "bounds of torch: >=2.9,<3"], "what pip checks fails nothing"
        assert pinned.exists() == written
        left.touch()
    assert fails or pinned.read_text() == "torch==3.1.0\n"
    refused = run_with(checkout, "3.13", "--pin", "-k", "one")
    assert (refused.returncode, refused.stderr) == (2, "error: --pin runs all tests, found '-k one'\n")


def test_a_file_of_constraints_names_versions_without_their_builds():
    packages = [
        ("torch", "2.13.0+cpu", ">=3.10"), ("pyserini", "1.6.0", ""), ("jaraco.classes", "3.4.0", ""),
        ("mcp_types", "2.3.0", ""), ("mcp", "2.3.0", ""), ("lexvl-anserini", "0.2.0", ""), ("pip", "25.1", ""),
        ("soupsieve", "4.1.2", ">=3.11.5"),  # which the Python of Debian 12, 3.11.2, cannot install
    ]  # fmt: skip
    first, second, *pins = constraints(packages, "3.11", "9.9.1")
    assert first == "# The versions that were tested together: Python 3.11 with Pyserini 1.6 (Lucene 9.9)."
    assert second == "# pip install -c constraints/py311.txt ..."
    assert pins == ["jaraco-classes==3.4.0", "mcp==2.3.0", "mcp-types==2.3.0", "pyserini==1.6.0", "torch==2.13.0"]


@pytest.mark.parametrize(
    ("version", "user", "code", "message"),
    [
        ("3", "0", 2, "--python expects a version such as 3.13, found '3'"),
        ("--heavy", "0", 2, "found '--heavy'"),
        ("3.10", "0", 2, "LexVL does not support Python 3.10, expected one of 3.14 3.13 3.12 3.11"),
        ("3.12", "0", 1, "python3.12 is not on PATH, and there is no Debian root for it"),
        ("3.13", "1000", 1, "python3.13 is not on PATH, and only root can make a Debian root for it"),
        ("3.13", "0", 1, "python3.13 is not on PATH, and debootstrap is missing: apt-get install debootstrap"),
    ],
)
def test_another_python_that_cannot_be_had(checkout, version, user, code, message):
    checkout.program("id", f"#!/bin/sh\necho {user}\n")
    assert message in refusal(run_with(checkout, version), code)
