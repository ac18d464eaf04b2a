"""Makes the archive of Java's classes that `class_archive.py` describes: `python -m lexvl_anserini.engines.archiving`.

A child builds and searches a small index, and notes the classes that it loads; Java writes these as an archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from lexvl_anserini.engines.class_archive import MAKER, archive_folder, archive_name
from lexvl_anserini.engines.jvm import OUR_JAR, find_jar, find_java, heap_option
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.ground.errors import JavaError
from lexvl_anserini.ground.files import exclusive, file_sha256, sync_path, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Counts, EncodedCorpus, EncoderRef, Manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary
from lexvl_anserini.queries.clauses import All, Not, Term

SHARD = "docs/shard-00000.jsonl"
TIMEOUT_S = 600

# Archives that stay, the newest: environments and checkouts that are gone leave theirs.
ARCHIVES = 8


def make_archive() -> Path:
    """Makes the archive of the runtime and the jars that commands use here, and removes old ones.

    Raises:
        ArtefactError: another process makes one.
        JavaError: this runtime makes no archive.
    """
    home, jars, folder = find_java().home, (find_jar(), OUR_JAR), archive_folder()
    # The first of several makers works.
    with exclusive(folder), TemporaryDirectory(prefix="making-", dir=folder) as work:
        classes, archive = Path(work) / "classes", Path(work) / "archive"
        environ = {**os.environ, "LEXVL_JAVA_OPTIONS": f"-Xshare:off -XX:DumpLoadedClassList={classes}"}
        _run([sys.executable, "-m", MAKER, work], environ)
        # The default collector of some machines writes archives without objects.
        options = [heap_option(), "-XX:+UseG1GC", "-Xshare:dump", f"-XX:SharedClassListFile={classes}"]
        path = os.pathsep.join(map(str, jars))
        _run([str(home / "bin/java"), "-cp", path, *options, f"-XX:SharedArchiveFile={archive}"], dict(os.environ))
        archive.chmod(0o600)
        sync_path(archive)
        name = archive_name(home, jars)
        target = folder / f"{name}-{zlib.crc32(archive.read_bytes()):08x}.jsa"
        archive.replace(target)
    remove_old(folder, target)
    return target


def remove_old(folder: Path, target: Path) -> None:
    """Removes what is of older states of the target's runtime and jars, and all but the `ARCHIVES` newest archives."""
    by_age = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime)
    for other in {*folder.glob(f"{target.name.partition('-')[0]}-*"), *by_age[:-ARCHIVES]} - {target}:
        other.unlink(missing_ok=True)


def _run(command: list[str], environ: dict[str, str]) -> None:
    """Runs a child; raises JavaError with its last words if it fails."""
    child = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
    )
    if child.returncode != 0:
        said = (child.stdout + child.stderr).strip().splitlines() or ["nothing"]
        raise JavaError(f"no archive of classes: {' '.join(command)}: {said[-1]}")


def rehearse(folder: Path) -> None:
    """Builds and searches a small index in a folder, by Lucene's postings and by those that Lucene exports."""
    shards, index, words = folder / "shards", folder / "index", ("boat", "sea", "sun")
    vectors = [{word: 1 + (number + place) % 9 for place, word in enumerate(words)} for number in range(300)]
    (shards / SHARD).parent.mkdir(parents=True)
    rows = ({"id": f"d{number}", "contents": "a boat", "vector": vector} for number, vector in enumerate(vectors))
    (shards / SHARD).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    counts = {"documents": len(vectors), "empty": 0, "postings": len(words) * len(vectors), "max_impact": 9}
    vocabulary = Vocabulary(words)
    vocabulary.write(shards / VOCABULARY)
    entry = {"name": SHARD, **counts, "bytes": (shards / SHARD).stat().st_size, "sha256": file_sha256(shards / SHARD)}
    manifest = Manifest(
        kind="impact",
        encoder=EncoderRef({"name": "rehearsal", "options": {}, "checkpoint": None, "checkpoint_digest": None}),
        corpus=EncodedCorpus({"name": "rehearsal", "split": "test", "data_dir": None}),
        counts=Counts(counts),
        vocabulary={"size": len(vocabulary), "digest": vocabulary.digest},
        shards=(entry,),
    )
    write_json(shards / MANIFEST, manifest.to_json())
    LuceneEngine.build(shards, index, manifest, options=LuceneEngine.options({"text": True, "term_vectors": True}))
    os.environ["LEXVL_POSTINGS"] = "lucene"
    engine = LuceneEngine(index, manifest)
    list(engine.search([ImpactQuery("q", {"boat": 2, "sun": 1})], 10))
    engine.search_tree("q", All((Term("boat"), Not(Term("sun")))), 10)
    engine.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rehearse(Path(sys.argv[1]))
    else:
        make_archive()
