"""Tables of papers: what is needed, the line of a row on tiny models and collections, verdicts, scripts, the page."""

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import captioned_image, coloured_coco, karpathy_folder, write_beir, write_embeddings
from tiny_encoders import WORDPIECES, made_stair
from typer.main import get_command
from typer.testing import CliRunner

from eval.analyses.classes import classification as classes
from eval.analyses.classes.class_sets import CLASS_SETS, load_labelled
from eval.measures.inputs import JudgementSource, describe_run
from eval.measures.measure_runs import measure_runs, read_results
from eval.measures.metrics import evaluate, means
from lexvl_anserini.cli import make_app
from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError, LexvlError, UsageError
from lexvl_anserini.runs.trec import read_run
from lexvl_plugins.papers import retrieval
from lexvl_plugins.papers.command import command, parse_assignments
from lexvl_plugins.papers.prepared import (
    Finding,
    RowPart,
    Workplace,
    find_corpus,
    find_weights,
    is_file_name,
    list_retrieval_needs,
    list_rows,
    prepare,
    select_document_options,
    write_remarks,
)
from lexvl_plugins.papers.published import (
    PublishedCell,
    PublishedSystem,
    Quantity,
    combine_parts,
    list_parts,
    load_published_tables,
    read_tables,
)
from lexvl_plugins.papers.retrieval import choose_images
from lexvl_plugins.papers.sources import COLLECTIONS, DIGESTS, DOCUMENT_COSTS, FILES, IMAGE_SETS, PRIVATE, UNCONFIRMED
from lexvl_plugins.papers.tables import (
    TablePlan,
    check_agreement,
    make_plan,
    read_record,
    reproduce_cell,
    reproduce_rows,
)

ROOT = Path(__file__).parents[3]
TABLES = load_published_tables()
VDR, TINY = "jzhoubu/vdr-msmarco", "splade/ckpt_bert"

# Of a collection in BEIR's layout: six documents and three topics, of words that the tiny tokenizer
# knows; one id has a blank, as those of LIMIT.
CORPUS = {"d1": "black bear", "d2": "black boat", "d3": "big bird", "d4": "boat book bird"}
CORPUS |= {"d 5": "beach book", "d6": "bear book"}
TOPICS = {"q1": ("boat", ("d2", "d4")), "q2": ("big bird", ("d3",)), "q3": ("beach", ("d 5",))}


def write_collection(folder: Path) -> Path:
    judged = [(topic, doc_id) for topic, (_, relevant) in TOPICS.items() for doc_id in relevant]
    return write_beir(folder, CORPUS, {topic: text for topic, (text, _) in TOPICS.items()}, judged)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one collection, named as SciFact; nothing can be fetched."""

    def refused(name: str, root: Path) -> Path:
        raise DataError(f"beir/{name} could not be fetched")

    monkeypatch.setattr("lexvl_anserini.data.corpora.beir.fetch_beir", refused)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    write_collection(tmp_path / "data/beir/scifact")
    return tmp_path / "data"


def call(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(make_app(command), list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        if not isinstance(done.exception, LexvlError):
            raise done.exception
        return done.exception.exit_code, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, done.stderr


def cells_of(text: str) -> dict[tuple[str, str], dict]:
    return {(cell["row"], cell["quantity"]): cell for cell in map(json.loads, text.splitlines())}


def test_means_and_sums_have_parts():
    mean = Quantity("text-to-text", "beir-12", "nDCG@10")
    assert len(list_parts(mean)) == 12 and Quantity("text-to-text", "beir/nq/test", "nDCG@10") in list_parts(mean)
    assert combine_parts(mean, [0.2] * 6 + [0.4] * 6) == pytest.approx(0.3)
    rsum = Quantity("captions", "coco/test", "rsum")
    assert [str(part) for part in list_parts(rsum)] == [
        f"{direction} coco/test R@{k}" for direction in ("text-to-image", "image-to-text") for k in (1, 5, 10)
    ]
    assert combine_parts(rsum, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx(2.1)
    alone = Quantity("text-to-text", "beir/nq/test", "nDCG@10")
    assert list_parts(alone) == (alone,) and combine_parts(alone, [0.25]) == 0.25


def test_a_row_has_one_part_per_run():
    [row] = list_rows(TABLES["vdr-table5"], "K=32")
    measured = {(part.task, part.data): part.measures for part in row.parts()}
    assert measured["text-to-image", "coco/test"] == ("R@1", "R@5", "R@10")
    assert len(measured) == 5 and row.is_ours
    [mean] = [row for row in list_rows(TABLES["vdr-table3"]) if row.label == "VDR 5"]
    assert len(list(mean.parts())) == 13, "twelve collections of the mean, and MS MARCO"
    assert [row.label for row in list_rows(TABLES["vdr-table4"], "VDR k=*6*")] == ["VDR k=64", "VDR k=256", "VDR k=768"]
    of_scifact = list_rows(TABLES["vdr-table4"], "*scifact*")
    assert [row.label for row in of_scifact[2:4]] == ["VDRα", "VDR k=0*"], "where rows are data sets"
    assert {cell.quantity.data for row in of_scifact for cell in row.cells} == {"beir/scifact/test"}
    assert not any(row.is_ours for row in list_rows(TABLES["limit-table3"]))
    assert all(row.is_ours for row in list_rows(TABLES["trec-runs-dl19"]))


def test_names_may_have_equals_signs():
    known = {"VDR k=32", "VDR k=3", "a/b"}
    assert parse_assignments(["VDR k=32=x=y", "a/b=c"], known, "--checkpoint") == {"VDR k=32": "x=y", "a/b": "c"}
    expected = "expected NAME=VALUE with a name of the selected tables: VDR k=3, VDR k=32, a/b"
    for wrong, message in ((["VDR=x"], expected), (["a/b="], "no value"), (["a/b=x", "a/b=y"], "two values")):
        with pytest.raises(UsageError, match=message):
            parse_assignments(wrong, known, "--checkpoint")


def part_of(system: PublishedSystem, data: str = "beir/scifact/test", task: str = "text-to-text") -> RowPart:
    return RowPart("table", "a row", system, None, task, data, ("nDCG@10",))


def test_weights_are_published_or_the_users(tmp_path, monkeypatch):
    vdr = PublishedSystem("vdr", VDR, {"query_topk": "32"})
    folder = str(tmp_path)
    two = PublishedSystem("dpr", "a/context", {"query_checkpoint": "a/question"})
    other, word = ("other weights", ""), ("", "--as-published")
    for given, system, reference, remarks, by_word in (
        ({}, vdr, VDR, ("", ""), ("", "")),
        ({VDR: folder}, vdr, folder, other, word),
        ({VDR: "minilm"}, vdr, "minilm", other, other),
        ({VDR: "someone/else"}, vdr, "someone/else", other, other),
        ({"a row": folder}, PublishedSystem("stair"), folder, other, other),
        ({}, PublishedSystem("bm25"), None, ("", ""), ("", "")),
        ({"a/context": folder}, two, folder, other, word),
        ({"a/question": "minilm"}, two, "a/context", other, other),
    ):
        weights = find_weights(part_of(system), system, Workplace(tmp_path, checkpoints=given))
        assert weights.reference == reference
        assert (write_remarks(weights, False), write_remarks(weights, True)) == (remarks, by_word)
    assert find_weights(part_of(PublishedSystem("stair")), PublishedSystem("stair"), Workplace(tmp_path)) is None
    # A known digest is a published checkpoint.
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    weights = find_weights(part_of(vdr), vdr, Workplace(tmp_path, checkpoints={VDR: folder}))
    monkeypatch.setitem(DIGESTS, VDR, hashlib.sha256(b"weights").hexdigest())
    assert write_remarks(weights, False) == ("", "")


def test_a_probe_of_a_set_without_splits_needs_the_users(tmp_path):
    """Three sets of STAIR's table 4 have no split for training; the plan names it, and class folders supply it."""
    place = Workplace(tmp_path / "out", data_dir=str(tmp_path), checkpoints={"STAIR": str(tmp_path)})
    plan = make_plan(TABLES["stair-table4"], place)
    needs = [need.name for need in plan.needs if need.name.endswith(", train")]
    assert needs == ["caltech101, train", "eurosat, train", "resisc45, train"]
    (tmp_path / "eurosat/train").mkdir(parents=True)
    needs = {need.name: need.here for need in make_plan(TABLES["stair-table4"], place).needs}
    assert needs["eurosat, train"] and not needs["resisc45, train"]


def test_ids_that_no_source_confirms_are_marked(bare):
    code, text, said = call("vdr-table4", "--dry-run")
    assert code == 0 and "jzhoubu/vdr-msmarco (unconfirmed)" in text, said
    assert "no source confirms the id, its authors publish vsearch/svdr-msmarco" in text
    parts = [part for table in TABLES.values() for row in list_rows(table) for part in row.parts() if part.system]
    used = {part.system.find_checkpoint_name(part.data) for part in parts}
    assert used & UNCONFIRMED.keys() == {VDR, "lsr42/d2s_flickr30k-blip-dense_q_reg_0.001_d_reg_0.001"}


def test_rows_that_differ_in_their_queries_share_documents(tmp_path):
    place = Workplace(tmp_path)
    rows = {row.label: row for row in list_rows(TABLES["vdr-table4"]) if row.system}
    names = [prepare(next(row.parts()), place).names for row in rows.values()]
    assert {name.documents for name in names} == {"beir-msmarco-dev.vdr.vdr-msmarco"}
    assert len({name.run for name in names}) == 7
    assert select_document_options("svdr", {"mode": "alpha"}) == {"mode": "alpha"}, "bags are documents of svdr"
    beta = {"mode": "beta", "topk": "8"}
    assert select_document_options("vdr", {**beta, "query_topk": "9"}) == beta
    limited = prepare(next(rows["VDR k=32"].parts()), Workplace(tmp_path, limit=5)).names
    assert limited.run == "beir-msmarco-dev.first-5.vdr.vdr-msmarco.query_topk-32"


def cell(value: float, decimals: int = 1, unit: str = "%", quantity: str = "text-to-text beir/nq/test nDCG@10"):
    task, data, measure = quantity.split()
    measured = Quantity(task, data, measure)
    return PublishedCell("t", "r", "c", "r", measured, value, decimals, unit, "printed", "", "", None)


def test_verdicts_have_tolerances():
    found = [check_agreement(measured, cell(45.8), 0.3) for measured in (46.1, 46.11, 45.5, 45.49)]
    assert found == [True, False, True, False]
    assert [check_agreement(measured, cell(0.5058, 4), 0) for measured in (0.50583, 0.50586)] == [True, False]


def test_a_cell_in_percent_and_as_it_is():
    found = Finding({"nDCG@10": 0.4612}, 0.003)
    assert reproduce_cell(cell(46.0), [found])[7:10] == (pytest.approx(46.12), pytest.approx(0.12), "agrees")
    assert reproduce_cell(cell(0.4612, 4, "1"), [found])[7:10] == (0.4612, 0, "agrees")
    assert reproduce_cell(cell(0.457, 3, "1"), [found]).verdict == "differs"
    stated = cell(46.0)._replace(tolerance=0.1)
    assert reproduce_cell(stated, [found]).verdict == "differs", "a stated tolerance decides"
    six = [Finding({"R@1": 0.1, "R@5": 0.2, "R@10": 0.3}, 0.001)] * 6
    sums = [reproduce_cell(cell(value, quantity="captions coco/test rsum"), six).verdict for value in (120.6, 120.7)]
    assert sums == ["agrees", "differs"], "a sum has the tolerance of its parts"
    other = reproduce_cell(cell(46.0), [found._replace(remark="other weights")])
    assert (other.verdict, other.reason) == ("not compared", "other weights")


def test_a_part_of_a_collection_keeps_relevant_documents(tmp_path):
    whole = load_dataset(f"beir:{write_collection(tmp_path / 'six')}", escape_ids=True)
    three = retrieval.limit_dataset(whole, 3)
    assert [d.doc_id for d in three.documents()] == ["d2", "d3", "d4"]
    assert [t.query_id for t in three.topics()] == ["q1", "q2"]
    assert [tuple(q) for q in three.qrels()] == [("q1", "d2", 1), ("q1", "d4", 1), ("q2", "d3", 1)]
    assert [d.doc_id for d in retrieval.limit_dataset(whole, 5).documents()] == ["d1", "d2", "d3", "d4", "d%205"]


def test_the_whole_line_and_again(data, golden, tmp_path, monkeypatch, caplog):
    """Seven rows share one index; each has its own run; a second call finds them all."""
    results, out = tmp_path / "cells.jsonl", tmp_path / "out"
    line = ["vdr-table4", "--checkpoint", f"{VDR}={golden / TINY}", "--as-published", "--data-dir", data]
    line += ["--output", out]
    code, text, said = call(*line, "--results", results)
    assert code == 0, said
    cells = cells_of(results.read_text())
    measured = {row: cell for (row, quantity), cell in cells.items() if cell["measured"] is not None}
    assert list(measured) == ["VDRα", *(f"VDR k={k}" for k in ("0*", 32, 64, 128, 256, 768))]
    assert [path.name for path in (out / "indexes").iterdir()] == ["beir-scifact-test.vdr.ckpt_bert"]
    for row, run in (("VDRα", ".mode-alpha"), ("VDR k=32", ".query_topk-32"), ("VDR k=768", "")):
        path = out / "runs" / f"beir-scifact-test.vdr.ckpt_bert{run}.trec"
        qrels = load_dataset("beir/scifact", None, str(data), True).qrels()
        found = means(evaluate(read_run(path), qrels, ["nDCG@10"]))
        assert measured[row]["measured"] == pytest.approx(100 * found["nDCG@10"])
        assert measured[row]["verdict"] == "differs" and "--as-published" in measured[row]["reason"]
    assert re.search(r"VDR k=32 +text-to-text beir/scifact/test nDCG@10 +[0-9.]+ +66.8 ", text)
    mean = cells["VDR k=32", "text-to-text beir-12 nDCG@10"]
    assert (mean["verdict"], mean["reason"]) == ("skipped", "missing: beir/arguana/test (11 of 12 parts)")
    assert caplog.text.count("beir/arguana could not be fetched") == 1, "tried once"

    stored = {one.system: one for one in read_results(out / "results")}
    assert len(stored) == 7 and all(one.dataset == "beir/scifact/test" for one in stored.values())

    monkeypatch.setattr(retrieval, "index_part", None)
    assert call(*line)[:2] == (0, text), "finished rows need no step"
    assert call(*line, "--strict")[0] == 1
    # A table of other people's systems has empty results; one without its data names its weights too.
    others = next(name for name, table in TABLES.items() if {row.is_ours for row in list_rows(table)} == {False})
    assert call(others, "--output", out, "--results", results)[0] == 0 and results.read_bytes() == b""
    _, text, _ = call("vdr-table5", "--data-dir", tmp_path, "--output", out)
    assert "missing: vsearch/vdr-cross-modal (downloaded when the rest is here), coco/test" in text


def test_a_killed_line_goes_on(data, tmp_path, monkeypatch):
    line = ["bm25-beir", "--data-dir", data, "--output", tmp_path / "out"]
    with monkeypatch.context() as changed:
        changed.setattr(retrieval, "search_part", None)
        with pytest.raises(TypeError):
            call(*line)
    assert not list((tmp_path / "out").rglob("*.trec")) and not list((tmp_path / "out/parts").iterdir())
    shard = next((tmp_path / "out/impacts").rglob("shard-*"))
    written = shard.stat().st_mtime_ns
    code, text, said = call(*line)
    assert code == 0 and shard.stat().st_mtime_ns == written, said
    assert re.search(r"beir/scifact/test nDCG@10 +1\.0000 +0\.6789 .* differs", text), "BM25 finds all of so little"
    judged = data / "beir/scifact/qrels/test.tsv"
    judged.write_text(judged.read_text().replace("d3", "d1"))
    assert re.search(r"beir/scifact/test nDCG@10 +0\.6667 ", call(*line)[1]), "other judgements, other values"


def test_other_weights_and_parts_are_not_compared(data, tmp_path):
    line = ["vdr-table4", "--rows", "VDR k=32", "--data-dir", data, "--output", tmp_path / "out"]
    code, text, said = call(*line, "--checkpoint", f"{VDR}=minilm", "--limit", 3)
    assert code == 0 and "not compared (other weights, --limit 3)" in text
    judged = (tmp_path / "out/runs/beir-scifact-test.first-3.vdr.minilm.query_topk-32.qrels").read_text()
    assert judged == "q1 0 d2 1\nq1 0 d4 1\nq2 0 d3 1\n"


def test_first_documents_are_scored_again(data, golden, tmp_path):
    line = ["svdr-msmarco", "--rows", "beta*", "--data-dir", data, "--output", tmp_path / "out"]
    code, text, said = call(*line, "--checkpoint", f"vsearch/svdr-msmarco={golden / TINY}")
    assert code == 0, said
    runs = {path.name for path in (tmp_path / "out/runs").glob("*.trec")}
    name = "beir-scifact-test.svdr.ckpt_bert.rerank-100"
    assert runs == {f"{name}.found.trec", f"{name}.trec"}
    assert [row.query_id for row in read_run(tmp_path / f"out/runs/{name}.trec") if row.rank == 1] == ["q1", "q2", "q3"]


def test_images_and_captions_in_both_directions(golden, tmp_path, caplog):
    """Three drawn images, two captions each, by a STAIR with random weights in the place of the unpublished one."""
    coloured_coco(tmp_path)
    line = ["stair-table2", "--data-dir", tmp_path, "--output", tmp_path / "out", "--format", "json"]
    code, text, said = call(*line, "--checkpoint", f"STAIR={made_stair(golden, tmp_path)}")
    assert code == 0, said
    cells = {cell["quantity"]: cell for cell in json.loads(text)}
    measured = {name: cell["measured"] for name, cell in cells.items() if "coco" in name}
    assert measured["text-to-image coco/test R@5"] == 100 and measured["image-to-text coco/test R@10"] == 100
    assert cells["text-to-image coco/test R@1"]["reason"] == "other weights"
    assert len(list((tmp_path / "out/impacts").iterdir())) == 2, "images and captions"
    assert caplog.text.count("missing: flickr30k/test, Karpathy's caption_datasets.zip and Flickr30k's images") == 1


def test_a_record_grows_and_says_with_what(data, tmp_path):
    """BM25 finds all of six documents, which is not what SciFact has: red by --agreeing, and recorded all the same."""
    record = tmp_path / "runs/measured.json"
    line = ["--data-dir", data, "--output", tmp_path / "out", "--record", record]
    code, _, said = call("bm25-beir", *line, "--agreeing")
    assert (code, said) == (1, "1 of 2 cells differ (--agreeing)")
    assert call("bm25-beir", *line)[0] == 0 and call("stair-table1", *line, "--agreeing")[0] == 0
    cells = read_record(record)
    assert [(key, cell.measured, cell.verdict) for key, cell in cells.items()] == [
        ("bm25-beir | BM25 | text-to-text beir/scifact/test nDCG@10", 1.0, "differs"),
        ("stair-table1 | CLIP | model image parameters", pytest.approx(88.56, abs=0.01), "not compared"),
        ("stair-table1 | CLIP | model text parameters", pytest.approx(53.76, abs=0.01), "not compared"),
        ("stair-table1 | STAIR | model image parameters", pytest.approx(86.82, abs=0.01), "not compared"),
        ("stair-table1 | STAIR | model text parameters", pytest.approx(53.79, abs=0.01), "agrees"),
    ]
    found = cells["bm25-beir | BM25 | text-to-text beir/scifact/test nDCG@10"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.date) and "numpy" in found.environment["versions"] and not found.model
    assert len(json.loads(record.read_text())["environments"]) == 1
    assert read_record(tmp_path / "none.json") == {}
    for content in ("[1]", '{"cells": {"a": {}}}', '{"cells": {"a": {"environment": "x"}}, "environments": {}}'):
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(DataError, match="record.json"):
            read_record(tmp_path / "record.json")


def write_things(folder: Path) -> Path:
    """Two classes of five drawn images each, in class folders."""
    from PIL import Image

    for name, colour in (("apple", (200, 20, 20)), ("boat", (20, 20, 200))):
        (folder / name).mkdir(parents=True)
        for n in range(5):
            shade = tuple(min(255, part + 10 * n) for part in colour)
            Image.new("RGB", (40, 40), shade).save(folder / name / f"{n}.png")
    return folder


def test_images_are_classified(golden, tmp_path):
    """Zero-shot, linear probe and class words of STAIR, with random weights and a set of our own."""
    weights, things = made_stair(golden, tmp_path), write_things(tmp_path / "things")
    line = ["stair-table3", "stair-table4", "stair-table5", "--checkpoint", f"STAIR={weights}"]
    line += ["--corpus", f"cifar100={things}", "--data-dir", tmp_path, "--output", tmp_path / "out"]
    code, text, said = call(*line, "--format", "json")
    assert code == 0, said
    cells = {cell["quantity"]: cell for cell in json.loads(text) if cell["row"] == "STAIR"}
    model = load_encoder("stair", str(weights), device="cpu", prompt="")
    found = load_labelled(str(things))
    expected = classes.measure_accuracies("stair", found, classes.rank_images(model, found))[0].top_1
    assert cells["zero-shot cifar100 top-1"]["measured"] == pytest.approx(100 * expected)
    assert cells["linear-probe cifar100 top-1"]["measured"] == 100, "red and blue are easily told apart"
    own = classes.measure_class_words("stair", classes.build_lexical_space(model, 32), found)[0]
    assert cells["words cifar100 top-100"]["measured"] == pytest.approx(100 * own.top_100)
    assert cells["zero-shot imagenet top-1"]["reason"] == "missing: imagenet"
    assert cells["words cifar100 top-1"]["reason"] == "other weights"
    # A limit takes images of all classes.
    assert choose_images(found, 4).labels.tolist() == [0, 0, 1, 1]
    assert choose_images(found, None) is found and choose_images(found, 10) is found


PUBLISHED_RUN = """\
paper: A
tables:
  runs:
    title: two runs
    unit: "1"
    columns: ["text-to-text beir/scifact/test [RR@10, nDCG@10]"]
    rows:
      one: 0.5000 0.6309
      other: 1.0000 1.0000
    runs: {files: "theirs/{}.txt", qrels: theirs/qrels.txt, origin: the authors}
"""


def test_published_runs_come_out_to_the_last_digit(tmp_path):
    """Equal scores have trec_eval's order: d2 before d1."""
    (tmp_path / "paper.yaml").write_text(PUBLISHED_RUN)
    [table] = read_tables(tmp_path / "paper.yaml")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/qrels.txt").write_text("q1 0 d1 1\n")
    (tmp_path / "theirs/one.txt").write_text("q1 Q0 d1 1 9 x\nq1 Q0 d2 2 9 x\n")
    place = Workplace(tmp_path / "out", data_dir=str(tmp_path))
    one, other = reproduce_rows(list_rows(table), place)
    assert [(cell.published, round(cell.measured, 4)) for cell in one] == [(0.5, 0.5), (0.6309, 0.6309)]
    assert {cell.verdict for cell in one} == {"agrees"}
    assert {(cell.verdict, cell.reason) for cell in other} == {("skipped", "missing: theirs/other.txt")}
    [stored] = read_results(tmp_path / "out/results")
    assert (stored.system, stored.dataset, stored.ties) == ("one", "beir/scifact/test", "trec_eval")
    assert stored.measures.keys() == {"RR@10", "nDCG@10"}


@pytest.mark.shared
def test_the_published_runs_of_trec(shared):
    code, text, said = call("trec-runs-dl19", "trec-runs-covid", "--strict", "--data-dir", shared / "data")
    assert code == 0 and text.count("agrees") == 51, said


WEIGHTS_OF_AN_IMAGE = """\
paper: A
tables:
  readme:
    title: terms of an image
    data: tiny-dense
    unit: "1"
    terms: {{D2S: {terms}}}
    systems:
      D2S:
        encoder: d2s
        checkpoint: lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001
        options: {{tokenizer: {tokenizer}}}
        corpora: {{tiny-dense: "embeddings:{vectors}"}}
        item: "7"
"""


@pytest.mark.shared
def test_the_weights_of_an_image_come_out(shared, golden, tmp_path):
    """Image 7 of stored vectors by the reference's head: the reference's own weights agree, and another's differ."""
    arrays = np.load(shared / "golden/d2s/head.npz")
    images = dict(zip(("2", "7"), arrays["dense_imgs"], strict=False))
    vectors = write_embeddings(tmp_path / "vectors", images, {"1": arrays["dense_texts"][0]})
    tokenizer, name = golden / WORDPIECES, "lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001"
    head = load_encoder("d2s", str(shared / "golden/d2s/ckpt"), tokenizer=str(tokenizer), device="cpu")
    terms = head.vocabulary.terms
    heaviest = [n for n in np.argsort(-arrays["img_full"][1]) if re.fullmatch("[a-z]+", terms[n])][:5]
    printed = [f"{terms[n]} {arrays['img_full'][1][n]:.4f}" for n in heaviest] + [f"{terms[n]} 9.0000" for n in (60,)]
    text = WEIGHTS_OF_AN_IMAGE.format(terms=json.dumps(", ".join(printed)), tokenizer=tokenizer, vectors=vectors)
    (tmp_path / "paper.yaml").write_text(text)
    [table] = read_tables(tmp_path / "paper.yaml")
    place = Workplace(tmp_path / "out", checkpoints={name: str(shared / "golden/d2s/ckpt")}, as_published=True)
    [cells] = reproduce_rows(list_rows(table), place)
    assert [cell.verdict for cell in cells] == ["agrees"] * 5 + ["differs"]
    assert {cell.reason for cell in cells} == {"--as-published"}
    assert make_plan(table, place).runs == 6 and make_plan(TABLES["d2s-readme"], place).runs == 20


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data and models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    return tmp_path


def plans() -> list[TablePlan]:
    return [make_plan(table, Workplace(Path("out"))) for table in TABLES.values()]


def test_every_table_has_a_plan(bare):
    found = plans()
    assert [plan.table for plan in found] == list(TABLES)
    assert sum(plan.cells for plan in found) == sum(len(table.cells) for table in TABLES.values())
    assert all(min(plan.runs, plan.own, plan.later, plan.others) >= 0 for plan in found)
    by_name = {plan.table: plan for plan in found}
    assert by_name["vdr-table4"].runs == 98 and by_name["vdr-table4"].others == 24
    lacking = {name: {n.name for n in plan.needs if n.public and not n.here} for name, plan in by_name.items()}
    archived = {name for name in COLLECTIONS if re.match("beir/(?!quora|limit|scifact/train)", name)}
    assert lacking["vdr-table4"] == {VDR, *archived}
    assert by_name["stair-table1"][3:7] == (4, 4, 0, 0) and not by_name["stair-table1"].needs
    assert by_name["stair-table9"].own == 6 and not lacking["stair-table9"], "nobody publishes what it needs"
    fetched = {plan.table: plan for plan in found if plan.runs and lacking[plan.table]}
    free = {name for name, plan in fetched.items() if not (plan.bytes and plan.seconds)}
    assert free <= {"trec-runs-dl19", "trec-runs-covid", "d2s-readme"}


def test_what_is_here_is_seen(data, tmp_path):
    plan = make_plan(TABLES["bm25-beir"], Workplace(Path("out"), data_dir=str(data)))
    assert {need.name: need.here for need in plan.needs} == {"beir/scifact/test": True, "beir/nfcorpus/test": False}
    given = Workplace(Path("out"), data_dir=str(data), checkpoints={VDR: "minilm"})
    plan = make_plan(TABLES["vdr-table4"], given, "VDR k=32")
    assert (plan.needs[0].name, plan.needs[0].here, plan.cells) == ("minilm", True, 14)
    # Captions without images are not all of a corpus.
    karpathy_folder(tmp_path, "coco", [captioned_image(1)], pictures=False)
    plan = make_plan(TABLES["clip-coco"], Workplace(Path("out"), data_dir=str(tmp_path)))
    assert [need.here for need in plan.needs if need.name == "coco/test"] == [False]


def test_a_corpus_in_the_place_of_another_has_its_split_and_a_reason(tmp_path):
    """`coco/val` is the split val of coco; what cannot be read says why."""
    place = Workplace(tmp_path, data_dir=str(tmp_path), corpora={"coco/test": "flickr8k/val"})
    [row] = list_rows(TABLES["clip-coco"])[:1]
    part = next(row.parts())
    for name, split in (("flickr8k/val", "val"), ("flickr8k", "test"), ("karpathy:a/val", "test")):
        found = find_corpus(part, replace(place, corpora={"coco/test": name}))
        assert (found.name, found.split) == (name.removesuffix("/val") if split == "val" else name, split)
    [need] = [need for need in list_retrieval_needs(part, place) if need.kind == "data"]
    assert not need.here and re.search("cannot be read: .*dataset_flickr8k.json", need.origin), need


@pytest.mark.parametrize("table", ["stair-figure4", "joint-training", "fdt-introduction"])
def test_a_table_without_numbers_says_why(table, tmp_path, caplog):
    with caplog.at_level("INFO"):
        assert call(table, "--output", tmp_path)[0] == 0
    assert f"{table}: nothing to measure: {TABLES[table].missing}" in caplog.text and "0 cells: none" in caplog.text


def test_captions_are_not_taken_for_another_collection(tmp_path, caplog):
    """One image in ten is the most that a caption's judgements can know of its first ten: R@10 of 5 % is no mistake."""
    lines = [f"q{q} Q0 d{(q + 1 + n) % 100} {n} {100 - n} s\n" for q in range(100) for n in range(10)]
    found = [f"q{q} Q0 d{q} 10 90 s\n" for q in range(5)]
    others = [line for line in lines if not re.match("q[0-4] .* 9 ", line)]
    judged = tmp_path / "qrels"
    judged.write_text("".join(f"q{q} 0 d{q} 1\n" for q in range(100)))
    for name, run, remarks in (("five", [*others, *found], 0), ("none", lines, 1)):
        (tmp_path / f"{name}.trec").write_text("".join(run))
        caplog.clear()
        measure_runs([describe_run(tmp_path / f"{name}.trec")], JudgementSource(judged), ["HitRate@10"])
        assert caplog.text.count("judgements of another collection") == remarks, caplog.text


def test_facts_cover_what_is_run():
    parts = [part for table in TABLES.values() for row in list_rows(table) for part in row.parts() if part.system]
    retrieved = [part for part in parts if part.task in ("text-to-text", "text-to-image", "image-to-text")]
    trained_on = {part.system.trained_on for part in retrieved if part.system.trained_on}
    assert {part.data for part in retrieved} | trained_on == {*COLLECTIONS, *PRIVATE}
    assert {part.system.encoder for part in retrieved} <= DOCUMENT_COSTS.keys() <= CARDS.keys()
    assert IMAGE_SETS.keys() == CLASS_SETS.keys()
    checkpoints = {part.system.find_checkpoint_name(part.data) for part in parts}
    assert {name for name in checkpoints if is_file_name(name)} == FILES.keys()
    archived = {data for data, collection in COLLECTIONS.items() if "BEIR's archive" in collection.origin}
    assert archived == {data for data in COLLECTIONS if data.rpartition("/")[0] in {f"beir/{n}" for n in BEIR_ARCHIVES}}


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "name a table, or give --all"),
        (["vdr-table4", "--all"], "name a table, or give --all"),
        (["vdr-tabel4"], "unknown table 'vdr-tabel4'; did you mean 'vdr-table4'"),
        (["vdr-table4", "--rows", "DPR"], "--rows 'DPR' matches no row; rows: VDRα, VDR k=0"),
        (["vdr-table4", "--checkpoint", "minilm"], "expected NAME=VALUE"),
        (["stair-table2", "--corpus", "cocoa=x"], "coco/test, flickr30k/test"),
        (["vdr-table4", "--limit", "9", "--record", "x.json"], "takes whole collections"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, message):
    code, _, said = call(*arguments)
    assert code == 2 and re.search(message.replace("--", "-{2}"), said), said


def test_a_dry_run_says_where_to_get_what(bare):
    code, text, _ = call("vdr-table5", "joint-table2", "--dry-run")
    assert code == 0
    assert re.search(r"vdr-table5 +70 +70 +0 +0 +0 +0 of 4 ", text)
    assert re.search(r"weights +vsearch/vdr-cross-modal +no +model hub, fetched when a row needs it", text)
    assert re.search(r"weights +blip_coco_retrieval.pth +no +GitHub: salesforce/LAVIS", text)
    assert re.search(r"data +coco/test +no +Karpathy's caption_datasets.zip and COCO's val2014.zip", text)
    assert len(json.loads(call("vdr-table5", "--dry-run", "--format", "json")[1])) == 1
    assert not (bare / "reproduction").exists()


SCRIPT = """\
#!/usr/bin/env bash
# {about}
# Usage: bash runs/{table}.sh [--dry-run] [--limit N] [other options of `lexvl reproduce`]
bash "$(dirname "${{BASH_SOURCE[0]}}")/reproduce.sh" {table} "$@"
"""


def test_every_table_that_can_run_has_a_script(bare):
    wanted = {
        f"{plan.table}.sh": SCRIPT.format(about=plan.title[0].upper() + plan.title[1:], table=plan.table)
        for plan in plans()
        if (plan.runs or plan.own) and not plan.table.startswith(("regressions-", "trends-"))
    }
    others = {"beir-small", "families", "photos", "photos-vdr", "quickstart", "regressions"}
    others |= {"reproduce", "setup", "texts", "trends"}
    found = {path.name: path.read_text() for path in (ROOT / "runs").glob("*.sh") if path.stem not in others}
    assert found == wanted
    assert all((ROOT / "runs" / name).stat().st_mode & 0o100 for name in found)


def start(folder: Path, script: str, *options: str, **variables: str) -> subprocess.CompletedProcess:
    line, environment = ["bash", f"runs/{script}", *options], {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def copy_script(folder: Path, script: str, setup: str = "") -> None:
    """A script of `runs/` beside a set-up of ours."""
    (folder / "runs").mkdir()
    (folder / "runs/setup.sh").write_text(setup)
    (folder / "runs" / script).write_text((ROOT / "runs" / script).read_text())


def echo(*programs: Path) -> None:
    """Programs that print their arguments."""
    for program in programs:
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)


def test_scripts_call_the_command_and_a_dry_run_installs_nothing(tmp_path):
    """With a set-up that says what it does, and the command that prints how it is called."""
    copy_script(tmp_path, "reproduce.sh", f'PATH={tmp_path}:$PATH; echo "set up $1"\n')
    started = partial(start, tmp_path, "reproduce.sh", "vdr-table4")
    done = started("--dry-run")
    assert (done.returncode, done.stdout) == (1, "") and "a dry run installs nothing" in done.stderr
    (tmp_path / ".venv/bin").mkdir(parents=True)
    echo(tmp_path / ".venv/bin/lexvl", tmp_path / "lexvl")
    assert started("--dry-run").stdout == "reproduce vdr-table4 --dry-run\n"
    (tmp_path / "runs/vdr-table4.sh").write_text((ROOT / "runs/vdr-table4.sh").read_text())
    done = start(tmp_path, "vdr-table4.sh", "--dry-run", "--rows", "VDR k=*", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.stdout == "reproduce vdr-table4 --dry-run --rows VDR k=*\n"
    assert started("--rows", "VDR").stdout == "set up minilm\nreproduce vdr-table4 --rows VDR\n"
    assert started("--rows=VDR", "--help").stdout == "reproduce vdr-table4 --rows=VDR --help\n"
    (tmp_path / ".venv/bin/lexvl").unlink()
    done = started("--help")
    assert (done.returncode, done.stdout) == (0, OPTIONS_OF_SCRIPTS), "without an environment too"
    for wrong in ("--hlep", "--limits=9"):
        done = started(wrong)
        assert (done.returncode, done.stdout) == (2, "") and f"no such option: {wrong}; options" in done.stderr


PARAMETERS = get_command(make_app(command)).params
OPTIONS_OF_SCRIPTS = "lexvl reproduce vdr-table4: options {}; docs/plugins/papers.md explains them\n".format(
    " ".join(sorted({"--help", *(name for p in PARAMETERS for name in p.opts if name.startswith("-"))}))
)


@pytest.mark.parametrize("script", ["photos", "photos-vdr", "quickstart", "regressions", "trends"])
def test_the_help_of_a_script_installs_nothing(script, tmp_path):
    copy_script(tmp_path, f"{script}.sh", "exit 99\n")
    done = start(tmp_path, f"{script}.sh", "--help")
    assert done.returncode == 0 and f"Usage: bash runs/{script}.sh" in done.stdout


def test_the_regressions_name_their_tables_and_the_users_pool(tmp_path):
    copy_script(tmp_path, "regressions.sh", f"PATH={tmp_path}:$PATH\n")
    echo(tmp_path / "lexvl", tmp_path / "python")
    (tmp_path / "data/beir/msmarco-dl19-pool").mkdir(parents=True)
    started = partial(start, tmp_path, "regressions.sh", HOME=str(tmp_path))
    drawn, line = started("--data-dir", "data").stdout.splitlines()
    assert drawn.endswith("runs/../tools/world draw val --data-dir data")
    program, *words = line.split()
    names = [word for word in words if word in TABLES]
    assert program == "reproduce" and {name for name in TABLES if name.startswith("regressions-")} < {*names}
    assert "--corpus msmarco-dl19-pool=beir:data/beir/msmarco-dl19-pool" in " ".join(words) and "--agreeing" in words
    assert started("d2s-head").stdout.startswith("reproduce d2s-head --output ")


def test_a_script_of_its_own_knows_its_options_before_it_installs(tmp_path):
    copy_script(tmp_path, "beir-small.sh")
    for options in (["--dry-run"], ["--data-dir"], ["--data-dir", "a", "--dry-run"]):
        done = start(tmp_path, "beir-small.sh", *options)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("usage: ")


def test_the_page_is_the_matrix_of_a_bare_machine(bare):
    page = (ROOT / "docs/plugins/papers.md").read_text(encoding="utf-8")
    code, text, _ = call("--all", "--dry-run", "--format", "markdown")
    assert code == 0
    assert page.endswith(text), "write it anew: python -m eval.reproduce --all --dry-run --format markdown"
