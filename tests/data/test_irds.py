"""Datasets of ir_datasets: local files that are registered there, and files from a server on this machine."""

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoking import serving_files, write_texts

from lexvl_anserini.data.corpora.irds import _read_documents
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Qrel, Topic

DOCS = "d1\tA dog runs.\nd2\tEin Hündchen läuft 😀.\nd3\t\n"
QUERIES = "q1\tdog\nq2\tHündchen\n"
QRELS = "q1 0 d1 2\nq1 0 d2 0\nq2 0 d2 1\n"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The registry of ir_datasets, with a folder of its own; what a test registers goes away."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_TMP", str(tmp_path / "tmp"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    import ir_datasets

    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    return ir_datasets.registry


@pytest.fixture
def local(registry: Any, tmp_path: Path) -> Path:
    """`irds:mine` of three files, and its subset `irds:mine/judged` with judgements."""
    import ir_datasets

    texts = {"docs.tsv": DOCS, "queries.tsv": QUERIES, "qrels": QRELS}
    folder = write_texts(tmp_path / "mine", texts)
    paths = [str(folder / name) for name in texts]
    registry.register("mine", ir_datasets.create_dataset(*paths[:2]))
    registry.register("mine/judged", ir_datasets.create_dataset(*paths))
    return folder


def test_no_empty_folder_is_left(tmp_path: Path) -> None:
    """ir_datasets makes folders of many sets when it is imported."""
    environ = {**os.environ, "HOME": str(tmp_path)}
    environ.pop("IR_DATASETS_HOME", None)
    program = "from lexvl_anserini import load_dataset; load_dataset('irds:vaswani')"
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert not (tmp_path / ".ir_datasets").exists()
    (tmp_path / ".ir_datasets/mine").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert (tmp_path / ".ir_datasets/mine").is_dir()


def test_a_registered_set_of_local_files_and_its_subset(local: Path) -> None:
    data = load_dataset("irds:mine/judged")
    assert (data.name, data.split, data.direction, data.remove_query) == ("irds:mine/judged", "", "text-to-text", False)
    texts = {"d1": "A dog runs.", "d2": "Ein Hündchen läuft 😀.", "d3": ""}
    assert list(data.documents()) == [Document(doc_id, text=text) for doc_id, text in texts.items()]
    assert list(data.topics()) == [Topic("q1", "dog"), Topic("q2", "Hündchen")]
    assert list(data.qrels()) == [Qrel("q1", "d1", 2), Qrel("q1", "d2", 0), Qrel("q2", "d2", 1)]
    data = load_dataset("irds:mine", "judged")
    assert (data.name, data.split, len(list(data.qrels()))) == ("irds:mine", "judged", 3)
    whole = load_dataset("irds:mine")
    assert len(list(whole.topics())) == 2
    with pytest.raises(DataError, match="irds:mine: no judgements in it; these have: irds:mine/judged$"):
        list(whole.qrels())


def test_what_is_refused(registry: Any, local: Path) -> None:
    with pytest.raises(DataError, match=r"irds:mine/tset: .* no such dataset; it has irds:mine, irds:mine/judged$"):
        load_dataset("irds:mine", "tset")
    with pytest.raises(DataError, match=r"no such dataset; it has irds:.* and \d+ more \(https://ir-datasets.com"):
        load_dataset("irds:???")
    with pytest.raises(DataError, match="no such dataset; it has irds:vaswani$"):
        load_dataset("irds:vaswni")
    with pytest.raises(UsageError, match="irds:mine has no direction 'text-to-image'"):
        load_dataset("irds:mine", direction="text-to-image")
    assert load_dataset("irds:beir/nfcorpus/test").remove_query
    (local / "docs.tsv").write_text("d 1\tx\n")
    with pytest.raises(DataError, match="irds:mine document 1: white space in id 'd 1'"):
        list(load_dataset("irds:mine").documents())
    assert [d.doc_id for d in load_dataset("irds:mine", escape_ids=True).documents()] == ["d%201"]
    (local / "queries.tsv").unlink()
    with pytest.raises(DataError, match=r"irds:mine: ir_datasets cannot fetch or read its topics \(FileNotFoundError"):
        list(load_dataset("irds:mine").topics())


def test_titles_and_default_texts() -> None:
    def read(default: str | None, **fields: Any) -> Document:
        kind: Any = namedtuple("kind", fields)  # type: ignore[misc]
        if default is not None:
            kind.default_text = lambda self: default
        source: Any = SimpleNamespace(has=lambda part: part == "docs", docs_iter=lambda: iter([kind(**fields)]))
        [document] = _read_documents(source, "toy", False)
        return document

    titled = read("a b", doc_id="1", text="b", title="a", url="http://x", year=1999, authors=["n"])
    page = read("a b", doc_id="2", title="a", body="b")
    assert titled == Document("1", "a", "b", metadata={"url": "http://x", "year": 1999})
    assert page == Document("2", None, "a b")
    assert titled.contents == page.contents
    with pytest.raises(DataError, match="irds:toy document 1: no text; its fields are doc_id, data"):
        read(None, doc_id="1", data=b"")


@pytest.fixture
def served(registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """`served(id)` registers a dataset whose files a local server has; returns the list of the requests."""
    from ir_datasets.datasets.base import Dataset as Source
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries
    from ir_datasets.util import Cache, Download, RequestsDownload

    folder, requests = tmp_path / "www", list[str]()
    folder.mkdir()

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def register(dataset_id: str, checksum: str | None = None, refused: bool = False) -> list[str]:
        def cached(name: str, text: str) -> Cache:
            data = text.encode()
            (folder / name).write_bytes(data)
            url = f"{'http://127.0.0.1:9' if refused else address}/{name}"
            download = Download([RequestsDownload(url)], expected_md5=checksum or md5(data).hexdigest())
            return Cache(download, tmp_path / "home" / dataset_id / name)

        parts = TsvDocs(cached("docs.tsv", DOCS)), TsvQueries(cached("queries.tsv", QUERIES))
        registry.register(dataset_id, Source(*parts, TrecQrels(cached("qrels", QRELS), {})))
        return requests

    with serving_files(folder, requests) as address:
        yield register


def test_files_are_fetched_once(served: Callable[..., list[str]]) -> None:
    requests = served("far")
    data = load_dataset("irds:far")
    assert requests == []
    for again in (data, load_dataset("irds:far")):
        assert [len(list(part())) for part in (again.documents, again.topics, again.qrels)] == [3, 2, 3]
    assert sorted(requests) == ["/docs.tsv", "/qrels", "/queries.tsv"]


def test_what_cannot_be_fetched(served: Callable[..., list[str]], tmp_path: Path) -> None:
    served("changed", checksum="0" * 32)
    with pytest.raises(DataError, match=r"irds:changed: .* its documents \(HashVerificationError") as told:
        list(load_dataset("irds:changed").documents())
    assert "\n" not in str(told.value)
    served("refused", refused=True)
    with pytest.raises(DataError, match=r"irds:refused: .* its topics \(ConnectionError"):
        list(load_dataset("irds:refused").topics())
    assert not list((tmp_path / "home").rglob("*.tsv*"))
