"""URLs in place of folders: published whole, taken only with their digests; a line over S3 gives the same bytes.

python -m pip install s3fs 'moto[server]' ray
python -m pytest tests/plugins/cluster/test_storage.py
"""

import json
import pickle
import uuid
from pathlib import Path

import pytest
from byte_towers import tree

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, MissingExtra, UsageError
from lexvl_plugins.cluster import parts, storage
from lexvl_plugins.cluster.encode import command as encode
from lexvl_plugins.cluster.index import command as index
from lexvl_plugins.cluster.search import command as search
from lexvl_plugins.cluster.storage import LISTING, StoredPath, fetch, fetch_file, find_url, place, publish_after
from tests.plugins.cluster.test_plans import corpus_of

PARTS = 3


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """The folder of local copies."""
    monkeypatch.setenv("LEXVL_STORAGE", str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def memory():
    """A URL of a storage in this process, and its file system."""
    fsspec = pytest.importorskip("fsspec")
    return f"memory://{uuid.uuid4().hex}", fsspec.filesystem("memory")


@pytest.fixture
def s3(monkeypatch):
    """A URL of an empty bucket on a local server."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lexvl-anserini[s3]'")
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    keys = dict.fromkeys(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"), "of-a-test")
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {"ENDPOINT_URL": url, "DEFAULT_REGION": "us-east-1", **keys}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}/of us"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def test_places(root, tmp_path, monkeypatch):
    assert type(place("a/b")) is type(Path("a/b")) and place("a/b") == Path("a/b") and find_url(Path("a/b")) is None
    assert place(f"file://{tmp_path}/x/") == tmp_path / "x"
    found = place("s3://bucket/a b/ü/")
    assert (found, find_url(found / "c")) == (root / "s3/bucket/a b/ü", "s3://bucket/a b/ü/c")
    assert isinstance(found / "c", StoredPath) and isinstance(place(Path(found)), StoredPath)
    assert storage.name_urls(f"{root}/s3/me:secret@b/c") == str(UsageError("s3://me:secret@b/c")) == "s3://***@b/c"
    assert storage.name_urls(f"{found / 'c'}: gone, {tmp_path}") == f"s3://bucket/a b/ü/c: gone, {tmp_path}"
    packed = pickle.dumps((found / "c", found.parent.parent.parent))
    monkeypatch.setenv("LEXVL_STORAGE", str(tmp_path / "other"))
    assert pickle.loads(packed) == (tmp_path / "other/s3/bucket/a b/ü/c", root / "s3")
    for url in ("s3://", "s3://b/../c", "s3://b//c", "s3://b/c?x", "S3 x://b"):
        with pytest.raises(UsageError, match="no URL of a folder or file"):
            place(url)


def filled(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_folder_is_there_when_its_listing_is(memory):
    url, system = memory
    folder = place(f"{url}/shards")
    with pytest.raises(ArtefactError, match=f"^{url}/shards: nothing finished there"):
        fetch(folder)
    (folder / "docs").mkdir(parents=True)
    filled(folder, a="one", b="two")
    filled(folder / "docs", c="three")
    storage.publish(folder)
    storage.discard(folder)
    assert not folder.exists()
    assert tree(fetch(folder, ["a", "absent"])) == {"a": b"one"}
    filled(folder, stale="of a killed call")
    assert tree(fetch(folder)) == {"a": b"one", "b": b"two", "docs/c": b"three"}
    system.pipe_file(f"{url}/shards/b", b"too")
    assert (fetch(folder) / "b").read_text() == "two"  # the local copy has the digest
    (folder / "b").unlink()
    with pytest.raises(ArtefactError, match=f"{url}/shards/b: 3 bytes of digest .* files.json has 3 of"):
        fetch(folder)
    assert not (folder / "b").exists()
    system.pipe_file(f"{url}/shards/b", b"two" * 1000)  # one byte more than the listing says is read
    with pytest.raises(ArtefactError, match=f"{url}/shards/b: 4 bytes of digest .* files.json has 3 of"):
        fetch(folder)
    system.rm_file(f"{url}/shards/b")
    with pytest.raises(ArtefactError, match=f"{url}/shards/b: no such bucket, folder or file"):
        fetch(folder)
    system.rm_file(f"{url}/shards/{LISTING}")
    with pytest.raises(ArtefactError, match="nothing finished there"):
        fetch(folder)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"format":"x"}', b'{"format":"lexvl-files/1","files":{"../x":[1,"a"]}}', b"\xff"]
)
def test_a_damaged_listing(memory, content):
    url, system = memory
    system.pipe_file(f"{url}/{LISTING}", content)
    with pytest.raises(ArtefactError, match=f"{url}/{LISTING}: .*write"):
        fetch(place(url))


def test_publishing_goes_on_where_it_ended(memory, monkeypatch):
    url, system = memory
    folder = place(f"{url}/part")
    with pytest.raises(ZeroDivisionError), publish_after(folder):
        filled(folder, a="one")
        raise ZeroDivisionError
    assert not system.exists(f"{url}/part/{LISTING}")
    put = type(system).put_file

    def fails(self, local, name, *more, **options):
        if name.endswith("/b"):
            raise OSError("connection reset")
        put(self, local, name, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "put_file", fails)
        expected = "part: the storage does not answer as expected .*reset"
        with pytest.raises(ArtefactError, match=expected), publish_after(folder):
            assert (folder / "a").read_text() == "one"
            filled(folder, b="two")
    assert not system.exists(f"{url}/part/{LISTING}")
    for _ in range(2):
        with publish_after(folder):
            assert tree(folder) == {"a": b"one", "b": b"two"}
        assert not folder.exists()
    with publish_after(folder):
        (folder / "a").unlink()
    assert tree(fetch(folder)) == {"b": b"two"}


def test_single_files(memory, monkeypatch):
    url, system = memory
    path = place(f"{url}/plan.json")
    assert not fetch_file(path).exists()
    path.write_text("{}")
    assert not fetch_file(path).exists()
    path.write_text("{}")
    storage.publish_file(path)
    path.write_text("changed")
    assert fetch_file(path).read_text() == "{}"
    with monkeypatch.context() as patched:
        patched.setattr(storage, "MOST_UNLISTED", 1)
        with pytest.raises(ArtefactError, match=f"{url}/plan.json: more than 1 bytes"):
            fetch_file(path)
    storage.withdraw_file(path)
    assert not path.exists() and not system.exists(f"{url}/plan.json")


def test_storage_that_is_not_there(monkeypatch):
    with pytest.raises(UsageError, match="nosuch://b/c: .*expected a URL that fsspec opens"):
        fetch(place("nosuch://b/c"))

    def missing(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(MissingExtra, match=r"s3:// of storage needs an extra: pip install 'lexvl-anserini\[s3\]'"):
        fetch(place("s3://b/c"))
    with pytest.raises(UsageError, match="gcs://b/c: ImportError"):
        fetch(place("gcs://b/c"))


@pytest.fixture
def line(tmp_path, golden):
    """`line(home, runner options)`: encodes, indexes and searches a corpus below a folder or URL; returns the run."""
    corpus = corpus_of(tmp_path / "corpus")
    (tmp_path / "topics.tsv").write_text("q1\tash bay\nq2\tcat\nq3\tzzz\n")
    checkpoint = str(golden / "splade/ckpt_bert")
    given = {"corpus": f"beir:{corpus}", "encoder": "bag-of-tokens", "checkpoint": checkpoint, "device": "cpu"}

    def run(home, **runner):
        output = tmp_path / f"{uuid.uuid4().hex}.trec"
        encode(**given, shard_size=4, plan=f"{home}/plan.json", parts=PARTS)
        encode(**given, shard_size=4, plan=f"{home}/plan.json", output=f"{home}/shards", **runner)
        index(shards=[f"{home}/shards"], engine="partitions", index=f"{home}/index", threads=1, **runner)
        search(index=f"{home}/index", topics=str(tmp_path / "topics.tsv"), output=output, **runner)
        return output.read_bytes()

    run.given, run.home = given, tmp_path
    return run


def test_the_line_in_storage_is_that_on_disk(line, memory, root, capsys):
    url, system = memory
    expected = line(line.home / "disk")
    assert line(url) == expected
    assert f"{url}/shards" in capsys.readouterr().out
    assert not list(root.rglob("*.jsonl")), "published shards stay as local copies"
    collection = json.loads(system.cat_file(f"{url}/shards/collection.json"))
    assert collection == json.loads((line.home / "disk/shards/collection.json").read_text())
    for number in range(PARTS):
        name = f"shards/part-{number:05}-of-{PARTS:05}"
        assert tree(fetch(place(f"{url}/{name}"))) == tree(line.home / "disk" / name)
    report, local = read_report(fetch(place(f"{url}/index"))), read_report(line.home / "disk/index")
    assert {**report, "bytes": 0} == {**local, "bytes": 0}
    before = {name: system.modified(name) for name in system.find(url) if "plan.json" not in name}
    assert line(url) == expected  # all is finished
    changed = {name.rpartition("/")[2] for name, when in before.items() if system.modified(name) != when}
    assert changed == {"collection.json"}


def test_shards_of_storage_make_any_index(line, memory):
    url, _ = memory
    line(url)
    index(shards=[f"{url}/shards"], index=f"{url}/one", threads=1)
    topics = str(line.home / "topics.tsv")
    search(index=f"{url}/one", topics=topics, output=line.home / "one.trec")
    encode(**line.given, output=f"{url}/whole")
    index(shards=[f"{url}/whole"], index=str(line.home / "whole"), threads=1)
    search(index=str(line.home / "whole"), topics=topics, output=line.home / "two.trec")
    assert (line.home / "one.trec").read_bytes() == (line.home / "two.trec").read_bytes()


def test_a_part_that_is_missing_or_half_published(line, memory):
    url, system = memory
    line(url)
    system.rm_file(f"{url}/shards/part-00001-of-00003/{LISTING}")
    with pytest.raises(ArtefactError, match="part-00001-of-00003: nothing finished there"):
        index(shards=[f"{url}/shards"], engine="partitions", index=f"{url}/other")
    encode(**line.given, shard_size=4, plan=f"{url}/plan.json", output=f"{url}/shards")
    index(shards=[f"{url}/shards"], engine="partitions", index=f"{url}/other")
    storage.discard(place(f"{url}/index"))
    system.rm_file(f"{url}/index/partition-00002/{LISTING}")
    with pytest.raises(ArtefactError, match="partition-00002: nothing finished there"):
        search(index=f"{url}/index", topics=str(line.home / "topics.tsv"), output=line.home / "no.trec")
    with pytest.raises(ArtefactError, match="nothing finished there"):
        search(index=f"{url}/none", query="ash")


def test_a_killed_command_goes_on_in_storage(line, memory, monkeypatch):
    url, system = memory
    original = parts.encode_part

    def stops(request, number):
        if number == 2:
            raise KeyboardInterrupt
        return original(request, number)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "encode_part", stops)
        with pytest.raises(KeyboardInterrupt):
            line(url)
    finished = [name for name in system.find(url) if name.endswith(LISTING)]
    assert len(finished) == 2
    before = {name: system.modified(name) for name in finished}
    assert line(url) == line(line.home / "disk")
    assert {name: system.modified(name) for name in finished} == before


def test_the_line_over_s3(line, s3):
    assert line(s3) == line(line.home / "disk")
    none = f"s3://no-{uuid.uuid4().hex}"
    with pytest.raises(LexvlError, match=f"{none}/plan.json: (no such bucket|the storage)"):
        line(none)


@pytest.mark.heavy
def test_the_line_over_s3_on_a_cluster_without_a_shared_disk(line, s3, tmp_path):
    """Each node has its own local copies: what one writes, another has from storage only."""
    from tests.plugins.cluster.ray_nodes import running_cluster

    with running_cluster(own_storage=tmp_path / "nodes") as cluster:
        assert line(s3, runner="ray", address=cluster.address) == line(line.home / "disk")
    used = {path.name for path in (tmp_path / "nodes").iterdir()}
    assert len(used) > 1, "several nodes did the work"
