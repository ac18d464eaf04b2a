"""Stock Pyserini beside us: its modules start in a process that `prepare` made ready, without network."""

import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import version
from pathlib import Path

import pytest
from declared import ROOT
from invoking import run_process, write_texts
from lucene_indexes import DOCUMENTS
from shard_folders import write_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.stock import Catalogues
from lexvl_anserini.searching.building import build_index

# A port that refuses at once: whatever downloads fails, on every machine.
OFFLINE = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


def python(*arguments: str | Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **OFFLINE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ}
    return run_process([sys.executable, *arguments], cwd=folder, env=environ, timeout=900)


def stock(*arguments: str | Path, folder: Path, **environ: str) -> str:
    child = python("-m", "lexvl_anserini.stock", *arguments, folder=folder, **environ)
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout


def old_java(folder: Path) -> dict[str, str]:
    (folder / "old/bin").mkdir(parents=True)
    (folder / "old/bin/java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\nexit 1\n")
    (folder / "old/bin/java").chmod(0o755)
    return {"JAVA_HOME": str(folder / "old"), "PATH": f"{folder / 'old/bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.heavy
def test_stock_indexes_our_shards_and_searches_our_index(tmp_path: Path) -> None:
    """Its commands with the runtime of this package, beside an older default Java."""
    write_shards(tmp_path / "shards", DOCUMENTS)
    build_index(tmp_path / "shards", tmp_path / "ours")
    environ = old_java(tmp_path)
    index = ["--collection", "JsonVectorCollection", "--generator", "DefaultLuceneDocumentGenerator", "--threads", "1"]
    options = ["--input", "shards/docs", "--index", "stock", "--impact", "--pretokenized"]
    stock("pyserini.index.lucene", *index, *options, folder=tmp_path, **environ)
    (tmp_path / "topics.tsv").write_text("q1\tthe first\nq2\tother\n")
    (tmp_path / "queries.jsonl").write_text(
        '{"id":"q1","contents":"the first","vector":{"a":2,"b":3,"the":1}}\n'
        '{"id":"q2","contents":"other","vector":{"日本":2,"😀":1}}\n'
    )
    asked = ["--impact", "--min-idf", "-1", "--topics", "topics.tsv", "--encoder", "queries.jsonl"]
    found = {}
    for name in ("ours", "stock"):
        run = tmp_path / f"{name}.trec"
        stock("pyserini.search.lucene", *asked, "--index", name, "--output", run, folder=tmp_path, **environ)
        found[name] = [line.split()[:5:2] for line in run.read_text().splitlines()]
    assert found["ours"] == found["stock"]
    rounded = [f"{query} {doc} {float(score):.3f}" for query, doc, score in found["ours"]]
    assert rounded == ["q1 d2 18.000", "q1 d1 7.000", "q1 d10 7.000", "q1 é😀 1.000", "q2 é😀 16.000"]


@pytest.mark.heavy
def test_stock_trec_eval_measures_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 9 us\nq1 Q0 d2 2 5 us\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d2 1\n")
    arguments = ["pyserini.eval.trec_eval", "-c", "-m", "recip_rank", "qrels.txt", "run.trec"]
    assert "all\t0.5000" in stock(*arguments, folder=tmp_path, **old_java(tmp_path))


def test_prepare_makes_the_import_work_and_can_be_called_twice(tmp_path: Path) -> None:
    twice = "import os; from lexvl_anserini.stock import prepare; prepare(); path = os.environ['PATH']; prepare()"
    code = f"{twice}; from pyserini.index.lucene import LuceneIndexReader; print(os.environ['PATH'] == path)"
    child = python("-c", code, folder=tmp_path)
    assert child.stdout == "True\n", child.stderr[-2000:]


@pytest.mark.heavy
@pytest.mark.skipif(version("pyserini") >= "2", reason="Pyserini 1.6 alone wants a key")
def test_pyserini_still_wants_the_key_that_prepare_sets(tmp_path: Path) -> None:
    code = "from lexvl_anserini.engines import jvm; jvm.start(); import pyserini.search.lucene"
    child = python("-c", code, folder=tmp_path)
    assert "OPENAI_API_KEY" in child.stderr, "it starts without: `prepare` need not set $OPENAI_API_KEY any more"


def test_settings_of_the_user_stay(tmp_path: Path) -> None:
    code = "import os; from lexvl_anserini.stock import prepare; prepare(); print(*map(os.environ.get, {names}))"
    names = ("OPENAI_API_KEY", "LEXVL_JAVA_HEAP")
    child = python("-c", code.format(names=names), folder=tmp_path, OPENAI_API_KEY="mine", LEXVL_JAVA_HEAP="300m")
    assert child.stdout == "mine 300m\n", child.stderr[-2000:]


def test_what_cannot_run(tmp_path: Path) -> None:
    for arguments, code, message in (
        ((), 2, "usage: python -m lexvl_anserini.stock pyserini.MODULE"),
        (("json.tool",), 2, "error: json.tool is no module of pyserini; usage: python -m "),
        (("pyserini.serach.lucene",), 2, "error: this Pyserini has no module pyserini.serach.lucene; usage: "),
    ):
        child = python("-m", "lexvl_anserini.stock", *arguments, folder=tmp_path)
        [line] = [line for line in child.stderr.splitlines() if "error" in line or "usage" in line]
        assert child.returncode == code and line.startswith(message)
    child = python("-m", "lexvl_anserini.stock", "pyserini.search.lucene", folder=tmp_path, LEXVL_JAVA_HOME="nowhere")
    assert child.returncode == 1 and child.stderr.startswith("error: LEXVL_JAVA_HOME: nowhere has no bin/java")


def test_catalogues_are_loaded_when_one_is_read(tmp_path: Path) -> None:
    """As Pyserini 2.4's, whose module downloads when it is imported."""
    path = tmp_path / "catalogues.py"
    path.write_text("print('a download')\nTF_INDEX_INFO = {'robust04': {'documents': 528030}}\n")
    spec = ModuleSpec("catalogues", SourceFileLoader("catalogues", str(path)), origin=str(path))
    module = Catalogues(spec)
    catalogue = module.TF_INDEX_INFO
    assert not hasattr(module, "__path__")
    assert "loaded" not in vars(module)
    assert "robust04" in catalogue and "mine" not in catalogue
    assert (dict(catalogue), len(catalogue)) == ({"robust04": {"documents": 528030}}, 1)
    assert "loaded" in vars(module)


# A finder that refuses every module of Pyserini but the package itself, which jvm.find_jar looks for.
WITHOUT_PYSERINI = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        assert not name.startswith("pyserini."), name
sys.meta_path.insert(0, Refusing())
from lexvl_anserini import cli
sys.argv[0] = "lexvl"
try:
    cli.main()
finally:
    assert "pyserini" not in sys.modules
"""


@pytest.mark.heavy
def test_our_commands_import_nothing_of_pyserini(tmp_path: Path) -> None:
    """Its import downloads on one line and wants a key on the other; ours only takes Lucene from its jar."""
    texts = {"texts/cat.txt": "a cat on a mat", "texts/dog.txt": "two dogs"}
    write_texts(tmp_path, {**texts, "topics.tsv": "q1\tdogs\n", "qrels.txt": "q1 0 dog 1\n"})
    for line in LINE:
        child = python("-c", WITHOUT_PYSERINI, *line.split(), folder=tmp_path)
        assert child.returncode == 0, (line, child.stderr[-2000:])
    assert read_report(tmp_path / "index")["documents"] == 2
    assert (tmp_path / "run.trec").read_text().split()[:3] == ["q1", "Q0", "dog"]


def test_only_the_engine_of_stock_imports_pyserini() -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:\S+, )*pyserini\b", re.MULTILINE)
    paths = [path for package in ("lexvl_anserini", "eval") for path in (ROOT / package).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in paths if imports.search(path.read_text(encoding="utf-8"))]
    assert found == ["lexvl_anserini/engines/pyserini.py"]


LINE = (
    "encode --corpus folder:texts --encoder bag-of-tokens --checkpoint minilm --output impacts",
    "index impacts --index index",
    "index impacts --index index --check",
    "search --index index --topics topics.tsv --output run.trec",
    "explain --index index --query dogs",
    "score --run run.trec --qrels qrels.txt --measure nDCG@10",
)
