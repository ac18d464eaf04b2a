"""The archive of Java's classes: with it, a start of Java and of Lucene maps classes instead of parsing them.

`LEXVL_DATA/java` has one file per runtime and jars, named by them (their paths; their sizes and times) and by the
checksum of the archive; a file that is damaged, or that another user could write, counts as none. Java checks its own
version and the jars once more, and starts without an archive that does not fit.

The second start of Java has the archive made, by a process of its own in the background (`archiving.py`): a machine or
a container that starts Java once would not gain by it. What cannot be read or written costs time only.
"""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from lexvl_anserini.ground.user_folders import cache_folder, expanded_path

# Java options by which a user decides about archives.
OF_USERS = ("-Xshare", "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:+AutoCreateSharedArchive")

# What Java says about an archive that it does not take would go to standard output. By default (1) an archive is mapped
# at a random address and all pointers in it are changed, which costs a third of what it saves.
MAPPED = ("-Xlog:cds=off", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")

# What makes an archive, run as a module.
MAKER = "lexvl_anserini.engines.archiving"

# Seconds until an archive that was to be made, and is not there, is to be made again.
PATIENCE_S = 24 * 3600

# Runs a command in the background, without the terminal of this process.
DETACHED = 'nice -n 19 "$@" </dev/null >/dev/null 2>&1 &'


def archive_folder() -> Path:
    """The folder of archives: `java` in $LEXVL_DATA, else in ~/.cache/lexvl."""
    return expanded_path(os.environ.get("LEXVL_DATA") or cache_folder()).absolute() / "java"


def archive_option(home: Path, jars: Sequence[Path]) -> list[str]:
    """The Java options that name the archive of a runtime and of jars; empty while there is none."""
    try:
        name = archive_name(home, jars)
        if (archive := sound_archive(archive_folder(), name)) is not None:
            return [f"-XX:SharedArchiveFile={archive}", *MAPPED]
        request(archive_folder() / f"{name}.wanted")
    except OSError:
        pass
    return []


def archive_name(home: Path, jars: Sequence[Path]) -> str:
    """What an archive is named by: digests of the paths of a runtime and of jars, and of their sizes and times."""
    files = [*jars, *(file for file in (home / "release", home / "lib/modules") if file.is_file())]
    states = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return "-".join(sha256(repr(facts).encode()).hexdigest()[:12] for facts in ([str(home), *map(str, jars)], states))


def sound_archive(folder: Path, name: str) -> Path | None:
    """The archive of a name, if this user alone could write it and it has its checksum."""
    for path in folder.glob(f"{name}-*.jsa"):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            private = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            # Java separates the names of two archives by a colon.
            if private and status.st_size and os.pathsep not in str(path):
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if path.stem == f"{name}-{zlib.crc32(content):08x}":
                        return path
    return None


def request(wanted: Path) -> None:
    """Notes the first start without an archive; a later one has the archive made, once in `PATIENCE_S`."""
    try:
        since = time.time() - wanted.stat().st_mtime
    except FileNotFoundError:
        wanted.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted.touch()
        os.utime(wanted, (0, 0))
        return
    if since < PATIENCE_S or not sys.executable:
        return
    os.utime(wanted)
    places = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
    environ = {**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}
    command = ["/bin/sh", "-c", DETACHED, "sh", sys.executable, "-m", MAKER]
    subprocess.run(command, env=environ, start_new_session=True, check=False)
