"""Stored vectors of some documents: by hand, as their encoder encodes them, and which shards are a run's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus_folders import beir_folder, json_lines
from shard_folders import write_dense_shards, write_shards, write_text_shards
from tiny_encoders import BERT, made_dense

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import read_json, write_json
from lexvl_anserini.ground.manifest import read_manifest, read_run_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.index_runs import plan_run, write_index_run
from lexvl_anserini.searching.rescoring import compute_hybrid_lists, list_candidates, load_own_encoder, load_run_encoder
from lexvl_anserini.searching.search import EncoderChanges, Search
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.reading import match_shards, read_stored_vectors
from lexvl_anserini.shards.writing import write_impacts

DOCUMENTS = [("d1", {"dog": 8, "cat": 2}), ("d2", {}), ("d3", {"cat": 4})]


def quantised_by(shards: Path, **side: Any) -> None:
    """Gives shards a quantiser of the document side."""
    both = Quantiser().to_json()
    manifest = read_json(shards / "manifest.json", "manifest")
    write_json(shards / "manifest.json", {**manifest, "quantiser": {**both, "document": both["document"] | side}})


def test_impacts_are_divided_by_the_scale(tmp_path: Path) -> None:
    write_shards(tmp_path, DOCUMENTS, terms=["cat", "dog"])
    quantised_by(tmp_path, scale=4.0)
    found = read_stored_vectors(tmp_path, {"d3": 0, "d2": 1, "d1": 2})
    assert found.toarray().tolist() == [[1, 0], [0, 0], [0.5, 2]]
    assert read_stored_vectors(tmp_path, {"d2": 0}).shape == (1, 2)
    quantised_by(tmp_path, scheme="binary", bits=1, scale=None)
    assert read_stored_vectors(tmp_path, {"d3": 0}).toarray().tolist() == [[4, 0]]
    quantised_by(tmp_path, scheme="peak", scale=None)
    with pytest.raises(UsageError, match="impacts with a scale of their own per document"):
        read_stored_vectors(tmp_path, {"d3": 0})


def test_dense_vectors_are_the_stored_ones(tmp_path: Path) -> None:
    write_dense_shards(tmp_path, [("a", [0, 1]), ("b", [2, 3])], [("c", [4, 5]), ("d", [6, 7])])
    assert read_stored_vectors(tmp_path, {"c": 0, "a": 1}).tolist() == [[4, 5], [0, 1]]
    with pytest.raises(DataError, match=r"document 'x' of a run \(2 such\) is not in these shards"):
        read_stored_vectors(tmp_path, {"c": 0, "x": 1, "y": 2})


def test_texts_have_no_vectors(tmp_path: Path) -> None:
    write_text_shards(tmp_path, [("a", "x")])
    with pytest.raises(UsageError, match="texts have no vectors"):
        read_stored_vectors(tmp_path, {"a": 0})


@pytest.fixture(scope="module")
def line(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`splade` and `sentence` each: shards, and `NAME.trec`, over eight texts."""
    folder = tmp_path_factory.mktemp("line")
    words = ["dog", "cat", "sea", "the", "runs", "red", "boat"]
    texts = {f"d{n}": " ".join(words[n % 7 : n % 7 + n]) for n in range(1, 9)}
    queries = json_lines({"q1": "a dog runs", "q2": "red boat"})
    corpus = beir_folder(folder / "corpus", json_lines(texts), queries, "q1\td1\t1\nq2\td6\t1\n", None)
    dataset = load_dataset(f"beir:{corpus}")
    models = {
        "splade": load_encoder("splade", str(golden / BERT), device="cpu"),
        "sentence": load_encoder("sentence", str(made_dense(golden, folder)), device="cpu"),
    }
    for name, model in models.items():
        write_impacts(dataset, model, folder / name, layout=Layout(shard_format="parquet"))
        build_index(folder / name, folder / f"{name}-index")
        searcher = Searcher(folder / f"{name}-index", encoder=EncoderChanges(device="cpu"))
        source = TopicSource.take_dataset(dataset)
        request = plan_run(searcher, source, 5, True)
        write_index_run(searcher, source, Search(), request, folder / f"{name}.trec")
    return folder


def mixed(line: Path, *stored: str) -> list[Any]:
    """The lists of a hybrid of both runs, which reads the vectors of some of them."""
    runs = [line / "splade.trec", line / "sentence.trec"]
    parts = [
        load_run_encoder(run, weight, None, "cpu", line / run.stem if run.stem in stored else None)
        for run, weight in zip(runs, (1.0, 20.0), strict=True)
    ]
    topics = load_dataset(f"beir:{line / 'corpus'}").topics()
    return [hit for hits in compute_hybrid_lists(topics, list_candidates(runs, 5), parts) for hit in hits]


def test_stored_vectors_score_as_encoded_documents(line: Path) -> None:
    encoded, dense = mixed(line), mixed(line, "sentence")
    assert [hit[:3] for hit in dense] == [hit[:3] for hit in encoded] and len(dense) > 8
    assert [hit.score for hit in dense] == pytest.approx([hit.score for hit in encoded], rel=1e-6)
    # A weight of a document is wrong by half a step at most.
    step = 1 / Quantiser.from_json(read_manifest(line / "splade").quantiser).document.scale
    model = load_encoder("splade", read_manifest(line / "splade").encoder.checkpoint, device="cpu")
    texts = {topic.query_id: topic.text for topic in load_dataset(f"beir:{line / 'corpus'}").topics()}
    mass = {query_id: float(model.query.weights([text]).sum()) for query_id, text in texts.items()}
    exact = {(hit.query_id, hit.doc_id): hit.score for hit in encoded}
    lexical = mixed(line, "splade", "sentence")
    assert {(hit.query_id, hit.doc_id) for hit in lexical} == exact.keys()
    for hit in lexical:
        assert hit.score == pytest.approx(exact[hit.query_id, hit.doc_id], abs=mass[hit.query_id] * step / 2 + 1e-4)
    assert [hit.score for hit in lexical] != [hit.score for hit in encoded]


def test_which_shards_are_a_runs(line: Path, tmp_path: Path) -> None:
    runs = [(path, read_run_manifest(path)) for path in (line / "splade.trec", line / "sentence.trec")]
    assert match_shards(runs, []) == [None, None]
    assert match_shards(runs, [line / "sentence"]) == [None, line / "sentence"]
    assert match_shards(runs, [line / "sentence", line / "splade"]) == [line / "splade", line / "sentence"]
    write_shards(tmp_path / "other", DOCUMENTS)
    with pytest.raises(UsageError, match="other: vectors of toy over toy; no run's index was built from them"):
        match_shards(runs, [tmp_path / "other"])
    (tmp_path / "same").symlink_to(line / "splade")
    with pytest.raises(UsageError, match="splade.trec: both .*splade and .*same may be the shards of its index"):
        match_shards(runs, [line / "splade", tmp_path / "same"])
    with pytest.raises(ArtefactError, match="nothing: no such folder"):
        match_shards(runs, [tmp_path / "nothing"])
    # Options of the query side may differ, those of the documents not.
    path, about = runs[0]
    for option, fits in (("query_topk", True), ("topk", False)):
        options = {**about.encoder.options, option: 3}
        changed = replace(about, encoder={**about.encoder, "options": options})
        manifest = read_json(line / "splade/manifest.json", "manifest")
        other = tmp_path / option
        other.mkdir()
        manifest["encoder"]["options"][option] = 4
        write_json(other / "manifest.json", manifest)
        if fits:
            assert match_shards([(path, changed)], [other]) == [other]
        else:
            with pytest.raises(UsageError, match="no run's index was built from them"):
                match_shards([(path, changed)], [other])


def test_refinements_are_no_options_of_the_encoder(line: Path) -> None:
    about = read_run_manifest(line / "splade.trec")
    refined = replace(about, encoder={**about.encoder, "options": {**about.encoder.options, "query_terms": 3}})
    assert load_own_encoder(refined) == about.encoder
