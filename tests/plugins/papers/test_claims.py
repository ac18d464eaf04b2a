"""Claims of papers: what the reader refuses, verdicts on invented results, and the claims of the project's files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from eval.measures.significance import compare
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.papers.claims import (
    MeasuredCell,
    PaperClaim,
    compute_margins,
    describe_relation,
    estimate_over_seeds,
    find_published,
    judge_cells,
    judge_claim,
    judge_record,
    load_claims,
    read_claims,
)
from lexvl_plugins.papers.prepared import Finding, Workplace, list_rows, make_names, prepare
from lexvl_plugins.papers.published import load_published_tables, read_tables
from lexvl_plugins.papers.tables import ReproducedCell, make_key, read_record, reproduce_rows
from tests.plugins.papers.test_reproduce import call

PAPER = """\
paper: A
tables:
  t:
    title: four models
    columns: ["text-to-image coco/test [R@1, R@5]", "sparsity coco/test [query terms, document terms]"]
    rows:
      ours: 41.1 65.4 20 90
      twin: 36.2 62.2 - -
      one: 30.0 50.0 10 40
      two: 30.0 55.0 5 20
    units: {sparsity coco/test query terms: count, sparsity coco/test document terms: count}
    systems:
      ours: {encoder: stair}
      twin: {encoder: clip, weights: theirs}
      one: {encoder: stair, trained_on: demo/val, recipe: stair-small.yaml, seeds: 3}
claims:
  ahead:
    says: ours is ahead
    where: abstract
    relation: ahead
    rows: [ours, twin]
    tables:
      t: ["text-to-image coco/test R@1"]
      trends-t: ["text-to-image flickr8k/val R@10"]
    printed: 4.9
"""


def read(folder: Path, text: str = PAPER) -> list[PaperClaim]:
    path = folder / "paper.yaml"
    path.write_text(text, encoding="utf-8")
    return list(read_claims(path, {table.name: table for table in read_tables(path)}))


def change(**keys: object) -> str:
    """The file with other keys in its claim; None leaves one out."""
    claim = {
        "says": "ours is ahead",
        "where": "abstract",
        "relation": "ahead",
        "rows": ["ours", "twin"],
        "tables": {"t": ["text-to-image coco/test R@1"]},
    }
    claim = {key: value for key, value in {**claim, **keys}.items() if value is not None}
    return f"{PAPER.partition('claims:')[0]}claims: {json.dumps({'ahead': claim})}\n"


def test_a_claim_has_cells_in_each_table(tmp_path):
    own, trends = read(tmp_path)
    assert (own.name, own.table, own.quantity) == ("paper-ahead", "paper-t", "text-to-image coco/test R@1")
    assert [(cell.label, cell.value) for cell in own.cells] == [("ours", 41.1), ("twin", 36.2)]
    assert (own.printed, find_published(own)) == (4.9, 4.9)
    assert (trends.table, trends.cells, trends.printed) == ("trends-t", (), None), "no such table yet"


T, K = "text-to-image coco/test R@1", "sparsity coco/test query terms"
BAD = {
    "unknown row": ({"rows": ["ours", "twins"]}, "paper-t: unknown row 'twins'; did you mean 'twin'"),
    "unknown table": ({"tables": {"u": [T]}}, "unknown table 'paper-u'; did you mean 'paper-t'"),
    "unknown relation": ({"relation": "above"}, "claims.ahead.relation: "),
    "unknown key": ({"title": "x"}, "claims.ahead.title: unknown key"),
    "unknown task": ({"tables": {"t": ["image coco/test R@1"]}}, "unknown task 'image'"),
    "another quantity": ({"tables": {"t": ["text-to-image coco/test R@10"]}}, "paper-t has no .*R@10' of 'ours'"),
    "a dash": ({"tables": {"t": [K]}}, "paper-t has no 'sparsity coco/test query terms' of 'twin'"),
    "three rows": ({"rows": ["ours", "twin", "two"]}, "ahead with 3 rows, expected two rows"),
    "one row": ({"rows": ["ours"], "relation": "rises"}, "rises with 1 rows, expected two rows or more"),
    "no rows": ({"rows": [], "relation": "at most", "bound": 1}, "at most with 0 rows, expected one row or more"),
    "no bound": ({"relation": "at least"}, "at least needs `bound`"),
    "a bound": ({"bound": 1}, "ahead has no `bound`"),
    "a margin": ({"relation": "falls", "margin": 1}, "`margin` and `than` are for ahead, not for falls"),
    "no tables": ({"tables": {}}, "no tables; name where"),
    "no quantity": ({"tables": {"t": []}}, "t: no quantity; name one"),
    "not a number": ({"relation": "at most", "bound": "nan"}, "claims.ahead.bound: "),
    "another number": ({"printed": [4.8]}, "printed 4.8, but the cells of paper-t give 4.9"),
    "two numbers": ({"printed": [4.9, 1]}, "2 printed numbers, expected 1, one per quantity of t"),
    "seeds": ({"rows": ["ours", "one"]}, "seeds of compared rows differ: 'ours' has 1 and 'one' has 3"),
}


@pytest.mark.parametrize("keys,message", BAD.values(), ids=BAD)
def test_a_mistake_is_one_line(tmp_path, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, change(**keys))
    assert "\n" not in str(caught.value) and "paper.yaml" in str(caught.value)


SEEDS = "one: {encoder: stair, trained_on: demo/val, recipe: stair-small.yaml, seeds: 3}"


@pytest.mark.parametrize(
    "system,message",
    [
        ("one: {encoder: stair, seeds: 3}", "seeds: 3, expected a number of trainings `trained_on`"),
        (SEEDS.replace("seeds: 3", "seeds: 0"), "seeds: 0, expected"),
        (SEEDS.replace(".yaml", ".yaml --set seed=7"), "seeds: 3 and a recipe with `seed=`; leave out one"),
    ],
)
def test_seeds_are_of_trainings(tmp_path, system, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, PAPER.replace(SEEDS, system))


def claim_about(folder: Path, **keys: object) -> PaperClaim:
    [claim] = read(folder, change(**keys))
    return claim


def judge(claim: PaperClaim, *values: object, place: Workplace | None = None, own: bool = False) -> tuple:
    """The verdict, difference, interval and scale for a value of each row, or values by seed."""
    measured = {}
    for cell, value in zip(claim.cells, values, strict=True):
        seeds = value if isinstance(value, list) else []
        one = MeasuredCell(float(np.mean(value)), seeds, own)
        measured[make_key(cell.table, cell.label, cell.heading)] = one
    found = judge_claim(claim, measured, place)
    return found.verdict, found.difference, found.low, found.high, found.over, found.scale


def test_without_an_interval_the_sign_decides(tmp_path):
    ahead = claim_about(tmp_path)
    assert judge(ahead, 41.0, 36.5) == ("holds", 4.5, None, None, "", "paper")
    assert judge(ahead, 36.5, 41.0)[:2] == ("does not hold", -4.5)
    assert judge(ahead, 36.5, 36.5)[0] == "does not hold", "equal is not ahead"
    close = claim_about(tmp_path, margin=-2)
    assert [judge(close, value, 40.0)[0] for value in (38.5, 37.5)] == ["holds", "does not hold"]
    far = claim_about(tmp_path, margin=5)
    assert [judge(far, value, 40.0)[0] for value in (45.5, 44.5)] == ["holds", "does not hold"]
    rows = ["ours", "twin", "two"]
    rises, falls = (claim_about(tmp_path, rows=rows, relation=relation) for relation in ("rises", "falls"))
    assert judge(rises, 1.0, 2.5, 3.0)[:2] == ("holds", 0.5) and judge(falls, 3.0, 2.5, 1.0)[:2] == ("holds", 0.5)
    assert judge(rises, 1.0, 3.0, 2.0)[:2] == ("does not hold", -1.0) and judge(falls, 3, 3, 1)[0] == "does not hold"
    most, least = (claim_about(tmp_path, rows=["ours"], relation=name, bound=2) for name in ("at most", "at least"))
    assert [judge(most, value)[:2] for value in (1.5, 2.0, 2.5)] == [
        *(("holds", 0.5), ("holds", 0.0), ("does not hold", -0.5))
    ]
    assert [judge(least, value)[0] for value in (1.5, 2.0, 2.5)] == ["does not hold", "holds", "holds"]


def test_images_and_texts_of_one_row(tmp_path):
    quantity = {"t": ["sparsity coco/test document terms"]}
    broader = claim_about(tmp_path, rows=["ours", "ours"], than="query terms", tables=quantity)
    assert describe_relation(broader.entry) == "ours ahead of its query terms" and find_published(broader) == 70
    assert judge_claim(broader, {}).reason == "ours"
    measured = {
        f"paper-t | ours | sparsity coco/test {side} terms": MeasuredCell(n)
        for side, n in (("document", 9), ("query", 4))
    }
    assert judge_claim(broader, measured).difference == 5


def test_intervals_over_seeds(tmp_path):
    """Student's t of the differences per seed, as SciPy computes it."""
    ahead = claim_about(tmp_path)
    for ours, theirs, verdict in (
        ([41.4, 40.2, 41.1], [38.8, 39.4, 38.2], "not clear"),  # 2.6, 0.8, 2.9
        ([234.6, 234.4, 235.3], [228.4, 226.4, 227.4], "holds"),
        ([228.4, 226.4, 227.4], [234.6, 234.4, 235.3], "does not hold"),
    ):
        differences = np.subtract(ours, theirs)
        interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        found = judge(ahead, ours, theirs)
        assert found[0] == verdict and found[4] == "3 seeds"
        assert found[1:4] == pytest.approx((differences.mean(), interval.low, interval.high))
    low, high = estimate_over_seeds(np.array([[1.0, 1.0]]))
    assert (low[0], high[0]) == (1, 1), "seeds that agree have an interval of one point"
    assert judge(ahead, [1.0, 2.0], [0.0, 0.0, 0.0])[2] is None, "an older record has other seeds: no pairs"
    # Of several steps, the one that speaks for the claim the least is shown and decides.
    rises = claim_about(tmp_path, rows=["ours", "twin", "two"], relation="rises")
    found = judge(rises, [10.0, 11.0, 10.5], [20.0, 21.0, 20.4], [20.5, 20.9, 20.6])
    assert (found[0], round(found[1], 3)) == ("not clear", 0.2)


def write_topics(place: Workplace, claim: PaperClaim, values: dict[str, dict[str, float]]) -> None:
    """What OUTPUT has of each row after a call: values by topic, and their means."""
    for cell in claim.cells:
        [row] = list_rows(next(read_tables(place.output / "paper.yaml")), cell.label)
        [part] = [part for part in row.parts() if part.task == cell.quantity.task]
        work = prepare(part, place)
        assert work and make_names(part, work.system, work.weights, place) == work.names
        request = {"checkpoint_digest": find_checkpoint(work.weights.reference).digest()}
        for folder, content in (
            ("topics", {"R@1": values[cell.label]}),
            ("parts", {"values": {"R@1": float(np.mean([*values[cell.label].values()]))}, "request": request}),
        ):
            (place.output / folder).mkdir(exist_ok=True)
            (place.output / folder / f"{work.names.run}.json").write_text(json.dumps(content))


def test_intervals_over_topics(tmp_path):
    """The bootstrap of `eval.compare`; values of other topics, or of another call, have no interval."""
    import pandas as pd

    for folder in ("a", "b", "else/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(folder.encode())
    given = {"ours": str(tmp_path / "a"), "theirs": str(tmp_path / "b")}
    place = Workplace(tmp_path, checkpoints=given)
    claim = claim_about(tmp_path)
    rng = np.random.default_rng(5)
    ours, theirs = (rng.random(200) < share for share in (0.5, 0.3))
    values = {
        name: {f"q{n}": float(hit) for n, hit in enumerate(hits)} for name, hits in (("ours", ours), ("twin", theirs))
    }
    write_topics(place, claim, values)
    found = judge_record([claim], {}, place)[0]
    frame = pd.DataFrame({("R@1", "twin"): theirs, ("R@1", "ours"): ours}).astype(float)
    [expected] = compare(frame)
    assert (found.low, found.high) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert (found.verdict, found.over, found.scale) == ("holds", "200 topics", "own")
    assert found.difference == pytest.approx(100 * (ours.mean() - theirs.mean()))
    # Other weights of the same name, and weights that are not there, have no result in OUTPUT.
    for wrong in ("else/a", "none/a"):
        others = replace(place, checkpoints={**given, "ours": str(tmp_path / wrong)})
        assert judge_record([claim], {}, others)[0][-2:] == ("not measured", "ours")
    # The value of a record is that of another call.
    recorded = judge(claim, 60.0, 20.0, place=place)
    assert recorded == ("holds", 40.0, None, None, "", "paper")
    values["twin"] = {f"other{query_id}": value for query_id, value in values["twin"].items()}
    write_topics(place, claim, values)
    assert judge_record([claim], {}, place)[0].over == ""
    # A difference that topics do not decide.
    values = {"ours": {"q1": 1.0, "q2": 0.0, "q3": 1.0}, "twin": {"q1": 0.0, "q2": 1.0, "q3": 0.0}}
    write_topics(place, claim, values)
    assert judge_record([claim], {}, place)[0].verdict == "not clear"


def test_what_was_not_measured_and_what_is_small(tmp_path):
    own, trends = read(tmp_path)
    assert judge_claim(own, {})[-2:] == ("not measured", "ours, twin")
    one = {make_key("paper-t", "ours", "text-to-image coco/test R@1"): MeasuredCell(41.0)}
    assert judge_claim(own, one)[-2:] == ("not measured", "twin")
    assert judge_claim(trends, {})[-2:] == ("not measured", "no such table yet")
    small = trends._replace(cells=tuple(cell._replace(table="trends-t") for cell in own.cells))
    assert judge(small, 41.0, 40.0)[-1] == "small" and judge(own, 41.0, 40.0, own=True)[-1] == "own"
    assert find_published(small) is None, "its stated numbers are measured here"


def test_margins_are_those_of_a_plain_loop(tmp_path):
    rng = np.random.default_rng(1)
    values = rng.random((3, 5))
    rises = claim_about(tmp_path, rows=["ours", "twin", "two"], relation="rises")
    by_hand = [[values[r + 1, n] - values[r, n] for n in range(5)] for r in range(2)]
    np.testing.assert_allclose(compute_margins(rises, values), by_hand)
    most = claim_about(tmp_path, rows=["ours", "twin", "two"], relation="at most", bound=0.5)
    np.testing.assert_allclose(compute_margins(most, values), 0.5 - values)


# From here on: the files of the project.

# Claims in general words that a printed number does not bear out.
AGAINST = {
    ("fdt-tokens-16384", "text-to-image flickr30k/test R@1"),
    ("fdt-sparse-features", "text-to-image flickr30k/test R@1"),
    ("fdt-sparse-features", "captions flickr30k/test rsum"),
}


def test_printed_numbers_bear_the_claims_out():
    claims = [claim for claim in load_claims() if not claim.table.startswith("trends-")]
    assert len({claim.name for claim in claims}) >= 40
    against = set()
    for claim in claims:
        printed = [(cell, cell.value) for cell in claim.cells if cell.value is not None and not cell.bound]
        measured = {make_key(cell.table, cell.label, cell.heading): MeasuredCell(value) for cell, value in printed}
        found = judge_claim(claim, measured)
        assert (found.verdict == "not measured") == (len(printed) < len(claim.cells)), claim
        if found.verdict == "does not hold":
            against.add((claim.name, claim.quantity))
    assert against == AGAINST


def test_the_headlines_are_there():
    printed = {(claim.name, claim.quantity): claim.printed for claim in load_claims() if claim.printed is not None}
    assert printed["stair-retrieval", "text-to-image coco/test R@1"] == 4.9
    assert printed["stair-retrieval", "image-to-text coco/test R@1"] == 4.3
    assert printed["fdt-zero-shot-145m", "zero-shot zero-shot-9 top-1"] == 5.0
    assert printed["fdt-rsum", "captions flickr30k/test rsum"] == 33.4
    assert list(printed.values()).count(7.6) == 1


def test_the_command_prints_claims(tmp_path, monkeypatch):
    code, text, _ = call("claims", "--rows", "stair-retrieval", "--output", tmp_path)
    assert code == 0
    assert re.search(r"stair-retrieval +stair-table2 .*STAIR ahead of CLIP +\+4\.9 +– +– +– +not measured \(", text), (
        text
    )
    found = json.loads(call("claims", "--format", "json", "--output", tmp_path)[1])
    assert len(found) == len(load_claims()) and found[0]["claim"] == load_claims()[0].name
    facts = ("fdt-section4-3", "CLIP+FDT", "model additional parameters", "model additional parameters", "%")
    cell = ReproducedCell(*facts, 6, 0, 6.4, 0.4, "agrees", "")
    monkeypatch.setattr("lexvl_plugins.papers.command.reproduce_rows", lambda rows, place: [[cell]])
    code, text, said = call("fdt-section4-3", "--record", tmp_path / "r.json", "--output", tmp_path)
    assert code == 0 and re.search(r"fdt-cost .*at most 6.5: CLIP\+FDT .* paper +holds ", text), said
    assert "fdt-cost" not in call("fdt-section4-3", "--format", "csv", "--output", tmp_path)[1]
    text = call("claims", "--rows", "fdt-cost", "--record", tmp_path / "r.json", "--output", tmp_path)[1]
    assert re.search(r" paper +holds ", text), "from the record"


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["claims", "stair-table2"], "give the word alone"),
        (["claims", "--all"], "give the word alone"),
        (["claims", "--rows", "VDR k=*"], "--rows 'VDR k=.' matches no claim; claims: "),
        (["claims", "--strict"], "leave out --results, --strict and --agreeing"),
        (["claims", "--record", "none.json"], "--record none.json: no such record"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, message):
    code, _, said = call(*arguments)
    assert code == 2 and re.search(message.replace("--", "-{2}"), said), said


TRENDS = """\
paper: this project
tables:
  t:
    title: two small models
    tolerance: 5
    columns: [text-to-image demo/test R@1]
    rows: {ours: 20, theirs: 10}
    systems:
      ours: {encoder: stair, trained_on: demo/val, recipe: stair-small.yaml, seeds: 3}
      theirs: {encoder: vdr-crossmodal, trained_on: demo/val, recipe: vdr-crossmodal-small.yaml, seeds: 3}
claims:
  ahead:
    says: ours is ahead
    where: here
    relation: ahead
    rows: [ours, theirs]
    tables: {trends-t: text-to-image demo/test R@1}
"""


def test_seeds_are_trained_measured_and_recorded(tmp_path, monkeypatch):
    """Each seed has its own training; the cell is their mean, the record has them, and a claim pairs them."""
    (tmp_path / "trends.yaml").write_text(TRENDS)
    tables = {table.name: table for table in read_tables(tmp_path / "trends.yaml")}
    claims = list(read_claims(tmp_path / "trends.yaml", tables))
    monkeypatch.setattr("lexvl_plugins.papers.command.load_published_tables", lambda: tables)
    monkeypatch.setattr("lexvl_plugins.papers.command.load_claims", lambda: claims)
    trained = []

    def train(recipe, output, data_dir, device, overwrite, cache):
        trained.append((recipe.model.kind, recipe.seed, output.name))

    def measure(part, place):
        value = {"stair": 0.2, "vdr-crossmodal": 0.1}[part.system.encoder] + (part.seed - 12345) / 100
        return Finding({"R@1": value}, 0.001, model=f"digest {part.seed}")

    monkeypatch.setattr("lexvl_plugins.train.loop.train", train)
    monkeypatch.setattr("lexvl_plugins.train.reproduction.read_validated", lambda part, place: {})
    monkeypatch.setattr("lexvl_plugins.papers.retrieval.measure_retrieval", measure)
    monkeypatch.setattr("lexvl_plugins.papers.prepared.find_problem", lambda ref: "")
    record = tmp_path / "record.json"
    code, text, said = call("trends-t", "--output", tmp_path / "out", "--record", record, "--agreeing")
    assert code == 0, said
    assert [seed for _, seed, _ in trained] == 2 * [12345, 12346, 12347] and len({name for *_, name in trained}) == 6
    assert trained[1][2].startswith("stair-small.") and trained[1][2].endswith(".seed-12346")
    assert re.search(
        r"trends-ahead .*ours ahead of theirs +– +\+10.0 +\+10.0 to \+10.0 \(3 seeds\) +small +holds", text
    ), text
    cells = read_record(record)
    assert cells["trends-t | ours | text-to-image demo/test R@1"].seeds == [20, 21, 22]
    assert cells["trends-t | ours | text-to-image demo/test R@1"].measured == 21
    [judged] = judge_record(claims, cells, Workplace(tmp_path / "none"))
    assert (judged.over, judged.verdict, judged.scale) == ("3 seeds", "holds", "small")
    # Weights of the user's are one model: no seeds, no pairs.
    given = Workplace(tmp_path / "out", checkpoints={"ours": "x"})
    [row] = list_rows(tables["trends-t"], "ours")
    monkeypatch.setattr(
        "lexvl_plugins.papers.retrieval.measure_retrieval", lambda part, place: Finding({"R@1": 0.5}, 0)
    )
    [[cell]] = reproduce_rows([row], given)
    assert cell.measured == 50 and cell.seeds == () and len(trained) == 6
    assert judge_cells(claims, [cell], given) == []


def test_tables_of_seeds_name_rows_that_exist():
    """Claims about trends that are there are about their rows; `read_claims` has checked them."""
    tables = load_published_tables()
    named = {claim.table for claim in load_claims() if claim.table.startswith("trends-")}
    present = {name for name in tables if name.startswith("trends-")}
    assert not present or named <= present
