"""An index of two fields: queries of both, exact sums, explanations, expressions."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import MemoryEngine
from shard_folders import write_shards
from word_towers import TERMS, WordTower, corpus

from lexvl_anserini.encode import command as encode_command
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.explain import command as explain_command
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Document, ImpactQuery, Topic
from lexvl_anserini.index import command as index_command
from lexvl_anserini.queries.query_vectors import FieldsTower, QueryField, encode_fields, halve_weights, write_queries
from lexvl_anserini.search import command as search_command
from lexvl_anserini.searching.search import EncoderChanges, change_weights, load_fields
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.fields import join_fields
from lexvl_anserini.shards.writing import write_impacts
from tests.invoking import invoked

TINY = Path(__file__).parents[1] / "golden/splade/ckpt_bert"
TEXTS = {"d1": "the red boats", "d2": "a boat boat on the sea", "d3": "dogs", "d4": "the red dog and a red boat"}


class Words(WordTower):
    """A tower whose weights are counts of words, halve_weights; its queries are texts."""

    def read_topic(self, topic: Topic) -> str:
        assert topic.text is not None
        return topic.text


# A weight of one half becomes 1, so that query weights are counts.
COUNTS = Quantiser(query=SideQuantiser("fixed", None, 2.0))
VECTORS = st.dictionaries(st.sampled_from(TERMS), st.integers(1, 255), max_size=4)
FIELD = st.dictionaries(st.sampled_from(["d1", "d2", "d3", "été"]), VECTORS, min_size=1)


def brute_force(vectors: Mapping[str, Mapping[str, int]], query: Mapping[str, int]) -> dict[str, int]:
    """The score of each document with a term of the query."""
    scores = {d: sum(w * vector[t] for t, w in query.items() if t in vector) for d, vector in vectors.items()}
    return {doc_id: score for doc_id, score in scores.items() if score}


@settings(deadline=None, max_examples=40)
@given(FIELD, FIELD, st.lists(st.sampled_from(TERMS), max_size=5), st.integers(0, 9), st.integers(0, 9))
def test_a_score_is_the_weighted_sum_of_the_scores_of_both_fields(
    first: dict[str, Any], second: dict[str, Any], words: list[str], one: int, other: int
) -> None:
    fields = {"a": (first, one), "b": (second, other)}
    expected: dict[str, int] = {}
    for vectors, weight in fields.values():
        counts = {word: weight * words.count(word) for word in words}
        for doc_id, score in brute_force(vectors, counts).items():
            expected[doc_id] = expected.get(doc_id, 0) + score
    with TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in fields}
        for name, (vectors, _) in fields.items():
            write_shards(places[name], list(vectors.items()), terms=TERMS)
        manifest = join_fields(places, Path(folder) / "both", load_word_analysis)
        engine = MemoryEngine(Path(folder) / "both", manifest)
    tower = FieldsTower(tuple(QueryField(name, weight, Words(), COUNTS) for name, (_, weight) in fields.items()))
    inputs = tower.read_topic(Topic("q", " ".join(words)))
    [query] = encode_fields(tower, [inputs], manifest.counts.max_impact, 1)
    [hits] = engine.search([ImpactQuery("q", query)], 10)
    assert dict(hits.pairs()) == expected


@pytest.mark.parametrize(
    ("vector", "within"),
    [
        ({}, {}),
        ({"a": 65793, "b": 1}, {"a": 32896}),  # 255 x 65794 is above 2^24; .5 is rounded to even
        ({"a": 65793}, {"a": 65793}),
        ({"a": 10**6, "b": 10**6, "c": 3}, {"a": 31250, "b": 31250}),
    ],
)
def test_a_query_is_halved_until_no_score_reaches_the_limit(vector: dict[str, int], within: dict[str, int]) -> None:
    assert halve_weights(vector, 255) == within


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the field `text`, BM25, and of the field `bag`, which lacks d3."""
    folder = tmp_path_factory.mktemp("fields")
    documents = [Document(doc_id, text=text) for doc_id, text in TEXTS.items()]
    write_impacts(corpus(documents), load_encoder("bm25"), folder / "words")
    bag = load_encoder("bag-of-tokens", str(TINY))
    write_impacts(corpus([d for d in documents if d.doc_id != "d3"]), bag, folder / "tokens")
    fields = ["--field", f"text={folder / 'words'}", "--field", f"bag={folder / 'tokens'}"]
    printed = invoked(index_command, folder / "both", *fields, "--index", folder / "index", "--format", "json")
    assert json.loads(printed)["fields"] == "text 4, bag 3"
    return folder / "index"


def printed(*arguments: Any, command: Any = search_command) -> Any:
    return json.loads(invoked(command, *arguments, "--format", "json"))


def test_a_text_is_searched_in_both_fields(built: Path) -> None:
    manifest = read_manifest(built)
    assert manifest.encoder.options == {"text.weight": 255, "bag.weight": 255}
    engine = MemoryEngine(built.with_name("both"), manifest)
    model = load_fields(manifest.encoder, {"text.weight": "2", "bag.weight": 3})
    # Words and tokens once a text each, whatever their number: the bag is binary, BM25 counts.
    with Searcher(built, model) as searcher:
        hits = searcher.search("boats boat of the sea")
    query = {"text:boat": 4, "text:sea": 2}
    [tokens] = model.query.fields[1].tower.weights(["boats boat of the sea"])  # type: ignore[union-attr, attr-defined]
    terms = load_encoder("bag-of-tokens", str(TINY)).vocabulary
    query |= {f"bag:{terms[dimension]}": 3 for dimension in tokens.indices}
    assert dict(hits.pairs()) == brute_force(engine.vectors, query)
    rows = printed(
        "--index", built, "--query", "boats boat of the sea", "--set", "text.weight=2", "--set", "bag.weight=3"
    )
    assert [(row["doc_id"], row["score"]) for row in rows] == list(hits.pairs())
    # The field `bag` alone does not know d3.
    [row] = printed("--index", built, "--query", "dogs", "--set", "bag.weight=0")[:1]
    assert row["doc_id"] == "d3"
    assert "d3" not in {row["doc_id"] for row in printed("--index", built, "--query", "dogs", "--set", "text.weight=0")}
    assert dict(change_weights(model, {"bag.weight": 0}).options) == {"text.weight": "2", "bag.weight": 0}


def test_an_explanation_names_fields(built: Path) -> None:
    [first, *_] = Searcher(built).explain("red boat")
    by_field = first.sum_fields()
    assert (first.doc_id, set(by_field), sum(by_field.values())) == ("d4", {"text", "bag"}, first.score)
    assert {term.field for term in first.terms} == {"text", "bag"}
    assert all(term.term.startswith(f"{term.field}:") for term in first.terms)
    arguments = ("--index", built, "--query", "red boat", "--hits", 1)
    [row] = printed(*arguments, command=explain_command)
    assert row["fields"] == by_field and row["terms"][0]["field"] in by_field
    text = invoked(explain_command, *arguments)
    assert f"text {by_field['text']} (" in text.splitlines()[0]


def test_expressions_filters_and_encoded_queries(built: Path, tmp_path: Path) -> None:
    assert {row["doc_id"] for row in printed("--index", built, "--match", "+text:boat -text:sea")} == {"d1", "d4"}
    assert {row["doc_id"] for row in printed("--index", built, "--query", "boat", "--where", "NOT text:red")} == {"d2"}
    assert {row["doc_id"] for row in printed("--index", built, "--query", "boat", "--require", "text:sea")} == {"d2"}
    with pytest.raises(UsageError, match="term 'sea' is not in the vocabulary of the index; did you mean 'text:sea'"):
        printed("--index", built, "--match", "sea")
    queries = tmp_path / "q.jsonl"
    assert write_queries([ImpactQuery("q1", {"text:boat": 3, "text:red": 1})], queries) == 1
    row = printed("--index", built, "--topics", queries, "--output", tmp_path / "run")
    assert row["topics"] == 1 and (tmp_path / "run").read_text().split()[2] == "d1"
    # Topics that are encoded for the index find what a search of the topics finds.
    topics, encoded = tmp_path / "t.tsv", tmp_path / "encoded.jsonl"
    topics.write_text("1\tred boat\n2\tdogs at sea\n")
    arguments = ("--topics", topics, "--index", built, "--set", "text.weight=7")
    assert printed(*arguments, "--output", encoded, command=encode_command)["topics"] == 2
    printed("--index", built, "--topics", encoded, "--output", tmp_path / "first")
    printed(*arguments, "--output", tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    # Passages, feedback and two phases read the terms as any others.
    assert printed("--index", built, "--query", "boat", "--passages", "max", "--first-terms", 1)[0]["doc_id"] == "d2"


def test_a_run_notes_its_weights(built: Path, tmp_path: Path) -> None:
    topics = tmp_path / "t.tsv"
    topics.write_text("1\tred boat\n")
    run = tmp_path / "run"
    printed("--index", built, "--topics", topics, "--output", run, "--set", "bag.weight=1")
    noted = json.loads(run.with_name("run.manifest.json").read_text())["encoder"]
    assert noted["options"] == {"text.weight": 255, "bag.weight": "1"}
    assert [field["name"] for field in noted["fields"]] == ["text", "bag"]


def test_what_is_refused(built: Path) -> None:
    manifest = read_manifest(built)
    for options, problem in (
        (
            {"sea.weight": 1},
            "option 'sea.weight': an index of several fields has options of a field, such as text.weight",
        ),
        ({"weight": 1}, "option 'weight'"),
        ({"text.weight": "1.5"}, "weight '1.5' of field 'text': expected a whole number"),
        ({"text.weight": -1}, "weight -1 of field 'text'"),
        ({"text.weight": 0, "bag.weight": 0}, "the fields text, bag have weight 0 each"),
        ({"text.k1": 2}, "option k1 of field 'text': the impacts of BM25 have its options"),
        ({"bag.nothing": 2}, "unknown option of encoder 'bag-of-tokens' 'nothing'"),
    ):
        with pytest.raises(UsageError, match=problem):
            load_fields(manifest.encoder, options)
    with pytest.raises(UsageError, match=r"name the field: --set bag\.checkpoint=FOLDER"):
        EncoderChanges("elsewhere").load(manifest)
    with pytest.raises(UsageError, match="an index of the fields text, bag: .* with the shards of one field"):
        load_encoder_from(manifest.encoder)
    with pytest.raises(UsageError, match="no text"):
        Searcher(built).search(Topic("q", image="a.png"))
    with pytest.raises(ArtefactError, match=r"is not that of .* \(fields: text, bag\)"):
        Searcher(built, load_encoder("bag-of-tokens", str(TINY))).search("boat")
    model = load_fields(manifest.encoder, {})
    with pytest.raises(UsageError, match="no encoder of its own"):
        _ = model.vocabulary
