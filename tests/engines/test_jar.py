"""The jar of our Java classes is what its sources give, byte for byte, and holds nothing else."""

import re
import shutil
import subprocess
import zipfile

import pytest
from build_jar import DIGEST, RELEASE, build_jar, compute_source_digest
from class_files import read_class, unresolved

from lexvl_anserini.engines.jvm import OUR_JAR, find_jar
from lexvl_anserini.ground.errors import JavaError


def compiler_version():
    """The major version of `javac`, 0 if there is none."""
    if not (javac := shutil.which("javac")):
        return 0
    said = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"javac (\d+)", said.stdout + said.stderr)
    return int(found[1]) if found else 0


def release_of(code):
    """The release of Java for which a class file is compiled."""
    return int.from_bytes(code[6:8], "big") - 44


def classes(jar):
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".class")}


def test_every_source_is_in_the_jar_for_its_release():
    names = {name.removeprefix("lexvl/").removesuffix(".class").partition("$")[0] for name in classes(OUR_JAR)}
    assert names == {path.stem for path in OUR_JAR.parent.glob("*.java")}
    for name, code in classes(OUR_JAR).items():
        assert code[:4] == b"\xca\xfe\xba\xbe" and release_of(code) == int(RELEASE), name


def test_only_lucene_is_referred_to():
    """Anserini's classes and Jackson's are of other releases."""
    for name, code in classes(OUR_JAR).items():
        assert b"io/anserini" not in code and b"jackson" not in code, name
    for source in OUR_JAR.parent.glob("*.java"):
        imported = re.findall(r"^import (?:static )?([\w.]+);", source.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(name.startswith(("java.", "org.apache.lucene.")) for name in imported), source.name


def test_the_jar_is_what_its_sources_give(tmp_path):
    version = compiler_version()
    if version < int(RELEASE):
        pytest.skip(f"no javac >= {RELEASE} here")
    with zipfile.ZipFile(find_jar()) as pyserini:
        lucene = release_of(pyserini.read("org/apache/lucene/index/IndexWriter.class"))
    if version < lucene:
        pytest.skip(f"javac {version} cannot read this Lucene, which is compiled for Java {lucene}")
    build_jar(tmp_path / "made.jar")
    made, ours = classes(tmp_path / "made.jar"), classes(OUR_JAR)
    assert made.keys() == ours.keys()
    # Compilers of other versions lay classes out otherwise.
    if version == int(RELEASE):
        differing = [name for name in ours if made[name] != ours[name]]
        assert not differing, "run python tools/build_jar.py"
        assert (tmp_path / "made.jar").read_bytes() == OUR_JAR.read_bytes()


def test_the_jar_was_built_from_these_sources():
    """Also where no compiler is."""
    with zipfile.ZipFile(OUR_JAR) as archive:
        assert archive.read(DIGEST).decode().strip() == compute_source_digest(), "run python tools/build_jar.py"


def test_all_classes_methods_and_fields_are_in_the_lucene_that_is_installed():
    """The one jar serves every line of Lucene: whatever it refers to has the same name and type there."""
    with zipfile.ZipFile(find_jar()) as pyserini:
        for name, code in classes(OUR_JAR).items():
            missing = unresolved(read_class(code), lambda of: read_class(pyserini.read(f"{of}.class")))
            assert not missing, f"{name}: {', '.join(missing)}"


def test_a_method_of_another_type_is_found_missing():
    """The method whose return type Lucene 10 changed."""
    code = read_class(classes(OUR_JAR)["lexvl/IndexUpdater.class"])
    wrong = ("org/apache/lucene/index/IndexWriter", "forceMergeDeletes", "()I")
    with zipfile.ZipFile(find_jar()) as pyserini:
        missing = unresolved(
            code._replace(references={*code.references, wrong}), lambda of: read_class(pyserini.read(f"{of}.class"))
        )
    assert missing == ["org/apache/lucene/index/IndexWriter.forceMergeDeletes()I"]


def test_no_compiler(tmp_path):
    with pytest.raises(JavaError, match="javac-of-nobody cannot be run .*; install a Java development kit >= 17"):
        build_jar(tmp_path / "x.jar", "javac-of-nobody")
