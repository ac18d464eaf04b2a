"""Builds the project's Java library, through which Python writes and searches Lucene, from its sources.

`python tools/build_jar.py` compiles lexvl_anserini/engines/java/*.java with `javac --release 17` against the Lucene
classes in Pyserini's jar (nothing else of it: Anserini's own classes are of a later release) and writes
lexvl.jar beside them, byte for byte the same from the same sources. The classes refer only to what Lucene 9 and 10
both have, so one jar serves both lines; a file in it holds the digest of its sources.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from lexvl_anserini.engines.jvm import OUR_JAR, find_jar
from lexvl_anserini.ground.errors import JavaError

RELEASE = "17"

# The time stamp of every file in the zip archive: always the same, so that bytes repeat.
EPOCH = (1980, 1, 1, 0, 0, 0)


# The file of the jar that holds the digest of its sources.
DIGEST = "lexvl/sources.sha256"


def compute_source_digest() -> str:
    """SHA-256 (hex) of all sources and their names."""
    whole = sha256()
    for source in sorted(OUR_JAR.parent.glob("*.java")):
        whole.update(f"{source.name}\n".encode() + source.read_bytes())
    return whole.hexdigest()


def build_jar(jar: Path = OUR_JAR, javac: str = "javac") -> None:
    """Compiles the sources beside `OUR_JAR` into `jar`."""
    sources = sorted(OUR_JAR.parent.glob("*.java"))
    with TemporaryDirectory() as folder:
        command = [javac, "-Xlint:all", "-g:none", "--release", RELEASE, "-encoding", "UTF-8"]
        command += ["-cp", str(find_jar()), "-d", folder, *map(str, sources)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise JavaError(f"{javac} cannot be run ({error}); install a Java development kit >= {RELEASE}") from error
        if done.returncode:
            raise JavaError(f"{javac} refused the sources: {done.stderr or done.stdout}")
        # Written beside the old file and renamed: a running JVM continues to read the old one, which it has open.
        written = jar.with_name(jar.name + ".part")
        with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
            members = {path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*.class")}
            for name, content in sorted({**members, DIGEST: f"{compute_source_digest()}\n".encode()}.items()):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
        written.replace(jar)


if __name__ == "__main__":
    build_jar()
    sys.stdout.write(f"{OUR_JAR}\n")
