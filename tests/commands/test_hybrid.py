"""Runs scored anew by several encoders: by hand, as the reference mixes Joint's scores, and as a command."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from corpus_folders import write_golden
from scipy import sparse

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import FAIL, ArtefactError, LexvlError
from lexvl_anserini.ground.manifest import name_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.hybrid import command
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.runs.trec import read_run
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.rescoring import (
    WeightedEncoder,
    compute_hybrid_lists,
    list_candidates,
    load_run_encoder,
    load_run_topics,
    plan_hybrid,
)
from lexvl_anserini.shards.writing import write_impacts
from tests.encoders.test_d2s import measured
from tests.invoking import invoked

# The published weights of Joint over ALBEF on COCO.
DENSE, LEXICAL = 0.2, 0.5


class Tower:
    """Reads `1 2 3` as a vector."""

    def __init__(self, kind):
        self.kind = kind

    def read(self, document):
        return document.text

    def read_topic(self, topic):
        return topic.text

    def vectors(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        return np.array([[float(number) for number in text.split()] for text in inputs], dtype=np.float32)

    def weights(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        return sparse.csr_matrix(self.vectors(inputs))


def part(kind, weight, documents):
    tower = Tower(kind)
    return WeightedEncoder(Encoder("toy", kind, tower, tower), weight, lambda: iter(documents))


DOCUMENTS = [Document(name, text=text) for name, text in (("a", "1 0"), ("b", "0 1"), ("c", "0 1"), ("d", "9 9"))]


def test_scores_are_weighted_sums_of_the_candidates_only():
    """Dense weighs 2, lexical 10: a has 2 x 1 + 10 x 1, b and c tie at 2 x 2 + 10 x 2, d was never found."""
    parts = [part("dense", 2.0, DOCUMENTS), part("impact", 10.0, DOCUMENTS)]
    topics = [Topic("q", "1 2"), Topic("none", "1 1")]
    found, nothing = compute_hybrid_lists(topics, {"q": ["c", "a", "b"]}, parts)
    assert [(hit.doc_id, hit.rank, hit.score) for hit in found] == [("b", 1, 24), ("c", 2, 24), ("a", 3, 12)]
    assert nothing == []
    [[cut], _] = compute_hybrid_lists(topics, {"q": ["c", "a", "b"]}, parts, hits=1)
    assert cut.doc_id == "b"


@pytest.mark.parametrize(
    ("parts", "doc_ids", "message"),
    [
        ([], ["a"], "nothing to score with"),
        ([part("dense", 1.0, DOCUMENTS)], ["a", "z"], "'z' of a run"),
        ([part("text", 1.0, DOCUMENTS)], ["a"], "no vectors"),
    ],
)
def test_what_cannot_be_scored(parts, doc_ids, message):
    with pytest.raises(LexvlError, match=message):
        list(compute_hybrid_lists([Topic("q", "1 2")], {"q": doc_ids}, parts))


def test_candidates_of_several_runs(tmp_path):
    first, second = tmp_path / "a.trec", tmp_path / "b.trec"
    first.write_text("q Q0 b 2 4 x\nq Q0 a 1 5 x\nq Q0 c 3 1 x\n")
    second.write_text("q Q0 c 1 0.5 x\nq Q0 a 2 0.4 x\nr Q0 b 1 1 x\n")
    assert list_candidates([first, second], 2) == {"q": ["a", "b", "c"], "r": ["b"]}
    assert list_candidates([first, second], 1) == {"q": ["a", "c"], "r": ["b"]}


@pytest.fixture(scope="module")
def joint(shared, tmp_path_factory):
    golden, folder = shared / "golden/joint", tmp_path_factory.mktemp("joint")
    about, arrays = json.loads((golden / "train_data.json").read_text()), np.load(golden / "train_data.npz")
    final = {key: torch.from_numpy(value) for key, value in np.load(golden / "train_final.npz").items()}
    torch.save({"state_dict": final}, folder / "last.ckpt")
    write_golden(folder / "tiny", about, arrays["img_cls"], arrays["text_cls"], "_before_proj_albef")
    return folder


@pytest.fixture
def dataset(joint):
    return load_dataset(f"embeddings:{joint / 'tiny'},before_proj_albef")


@pytest.fixture
def load_joint(shared, joint):
    tiny = str(shared / "golden/common/tokenizer_bert_tiny")
    return partial(load_encoder, "joint", str(joint / "last.ckpt"), tokenizer=tiny, device="cpu")


@pytest.mark.shared
def test_mixed_scores_measure_as_the_reference(shared, load_joint, dataset):
    """`dense_single` of the last validation: w1 x cosine + w2 x lexical, without the temperature."""
    parts = [
        WeightedEncoder(load_joint(vectors=vectors), weight, dataset.documents)
        for vectors, weight in (("dense", DENSE), ("sparse", LEXICAL))
    ]
    topics, doc_ids = list(dataset.topics()), [d.doc_id for d in dataset.documents()]
    lists = list(compute_hybrid_lists(topics, {topic.query_id: doc_ids for topic in topics}, parts))
    scores = [[{hit.doc_id: hit.score for hit in hits}[doc_id] for doc_id in doc_ids] for hits in lists]
    found = measured(np.array(scores), dataset, doc_ids, [topic.query_id for topic in topics])
    golden = json.loads((shared / "golden/joint/train_and_eval.json").read_text())["val_per_epoch"][-1]
    assert found == pytest.approx(golden["dense_single"], rel=1e-6)


@pytest.mark.shared
def test_the_command_mixes_an_inverted_index_and_faiss(load_joint, dataset, tmp_path):
    """Both runs of one checkpoint, then their mixture; the same command again has nothing to do."""
    runs, mixed, topics = [], tmp_path / "mixed.trec", list(dataset.topics())
    for vectors in ("sparse", "dense"):
        write_impacts(dataset, load_joint(vectors=vectors), tmp_path / "out" / vectors)
        build_index(tmp_path / "out" / vectors, tmp_path / "index" / vectors)
        runs.append(tmp_path / f"{vectors}.trec")
        invoked(search, "--index", tmp_path / "index" / vectors, "--output", runs[-1], "--device", "cpu")
    asked = ["--run", runs[0], "--run", runs[1], "--weight", LEXICAL, "--weight", DENSE, "--output", mixed]
    invoked(command, *asked, "--device", "cpu")
    parts = [load_run_encoder(run, weight, None, "cpu") for run, weight in zip(runs, (LEXICAL, DENSE), strict=True)]
    lists = compute_hybrid_lists(topics, list_candidates(runs, 100), parts)
    assert [hit[:3] for hit in read_run(mixed)] == [hit[:3] for hits in lists for hit in hits]
    before = mixed.stat().st_mtime_ns
    invoked(command, *asked, "--device", "cpu")
    assert mixed.stat().st_mtime_ns == before
    with pytest.raises(ArtefactError, match=r"another request \(encoder.options."):
        invoked(command, *asked, "--candidates", 3)
    plan = plan_hybrid(runs, [1.0, 1.0], 100, 10, TopicSource.take_dataset(dataset))
    assert plan.encoder["name"] == "joint+joint" and plan.dataset == dataset.name
    found = load_run_topics(plan, None, None).stream()
    assert [topic.query_id for topic in found] == [topic.query_id for topic in topics]
    name_manifest(runs[0]).unlink()
    with pytest.raises(ArtefactError, match="no manifest"):
        plan_hybrid(runs, [1.0, 1.0], 100, 10, TopicSource.take_dataset(dataset))
