"""Published numbers: what the reader makes of a file and what it refuses; and checks of the transcription itself."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_plugins.papers import published
from lexvl_plugins.papers.prepared import Finding, is_file_name
from lexvl_plugins.papers.published import (
    TASKS,
    PublishedSystem,
    Quantity,
    find_expected_folder,
    list_parts,
    load_published_tables,
    parse_quantity,
    read_tables,
)
from lexvl_plugins.papers.sources import FILES, MEANS, STATUSES, UNITS
from lexvl_plugins.papers.tables import SCALES, WAYS, reproduce_cell

PAPER = """\
paper: A et al., B, C 2024
tables:
  table1:
    title: two models
    protocol: test images
    columns:
      - text-to-image coco/test [R@1, R@5]
      - model parameters
    rows:
      VDR K=32: 15.8 35.70 -
      CLIP†: 10 - 151.3
    source: a survey
    units: {model parameters: M}
    statuses: {CLIP†: secondary, CLIP† | model parameters: derived}
    notes: {CLIP†: of another paper, "CLIP† | model parameters": both towers}
    systems:
      VDR K=32: {encoder: vdr-crossmodal, checkpoint: vsearch/vdr-cross-modal, options: {topk: 32}}
  figure2:
    title: a drawing
    missing: it prints no numbers
"""


def read(tmp_path, text=PAPER):
    path = tmp_path / "paper.yaml"
    path.write_text(text, encoding="utf-8")
    return {table.name: table for table in read_tables(path)}


def test_a_table_becomes_cells(tmp_path):
    tables = read(tmp_path)
    assert list(tables) == ["paper-table1", "paper-figure2"]
    table = tables["paper-table1"]
    assert (table.paper, table.title, table.protocol) == ("A et al., B, C 2024", "two models", "test images")
    assert [(c.row, c.column, c.value, c.decimals, c.unit, c.status, c.note) for c in table.cells] == [
        ("VDR K=32", "text-to-image coco/test R@1", 15.8, 1, "%", "printed", ""),
        ("VDR K=32", "text-to-image coco/test R@5", 35.7, 2, "%", "printed", ""),
        ("CLIP†", "text-to-image coco/test R@1", 10.0, 0, "%", "secondary", "of another paper"),
        ("CLIP†", "model parameters", 151.3, 1, "M", "derived", "both towers; of another paper"),
    ]
    assert [cell.source for cell in table.cells] == ["", "", "a survey", "a survey"]
    first, *_, last = table.cells
    assert first.quantity == Quantity("text-to-image", "coco/test", "R@1")
    assert first.system == PublishedSystem("vdr-crossmodal", "vsearch/vdr-cross-modal", {"topk": "32"})
    assert (first.heading, last.heading) == ("text-to-image coco/test R@1", "model parameters")
    assert last.quantity == Quantity("model", "", "parameters")
    assert last.system is None
    assert tables["paper-figure2"].cells == ()
    assert tables["paper-figure2"].missing == "it prints no numbers"


def test_rows_may_name_quantities_or_list_terms(tmp_path):
    text = """\
paper: A
tables:
  t:
    title: a table
    rows_are: quantities
    columns: [query length, "VDR [32, 64]"]
    rows:
      text-to-text beir/nq/test nDCG@10: "- 45.8 46.4"
    systems:
      VDR 64: {encoder: vdr, options: {query_topk: 64}}
"""
    cells = read(tmp_path, text)["paper-t"].cells
    assert [(c.label, c.value) for c in cells] == [("VDR 32", 45.8), ("VDR 64", 46.4)]
    assert {c.heading for c in cells} == {"text-to-text beir/nq/test nDCG@10"}
    assert {c.quantity for c in cells} == {Quantity("text-to-text", "beir/nq/test", "nDCG@10")}
    assert [c.system and c.system.options["query_topk"] for c in cells] == [None, "64"]
    # Terms are cells too.
    text = 'paper: A\ntables: {t: {title: terms, unit: "1", terms: {image 1: "dog 1.5, ##gy 0.70, 77 1"}}}'
    cells = read(tmp_path, text)["paper-t"].cells
    expected = [("weight dog", 1.5, 1), ("weight ##gy", 0.7, 2), ("weight 77", 1.0, 0)]
    assert [(str(c.quantity), c.value, c.decimals) for c in cells] == expected and cells[0].label == "image 1"


# What is wrong -> a text of PAPER, what stands there instead, and the error.
TRAINED = "checkpoint: vsearch/vdr-cross-modal, options: {topk: 32}"
BAD = {
    "unknown key": ("    title: two", "    titel: two", "tables.table1.titel: unknown key"),
    "a row twice": ("CLIP†: 10 - 151.3", "VDR K=32: 1 2 3", "is there twice .* line 11"),
    "a column twice": ("[R@1, R@5]", "[R@1, R@1]", "two values for one cell"),
    "too few values": ("15.8 35.70 -", "15.8 35.70", "2 values, expected 3"),
    "too many values": ("15.8 35.70 -", "15.8 35.70 - 4", "4 values, expected 3"),
    "no number": ("35.70", "35,70", "'35,70' is no number"),
    "nan": ("35.70", "nan", "'nan' is no number"),
    "unknown status": ("secondary,", "seen,", "statuses.CLIP†: unknown status 'seen'"),
    "unknown unit": ("parameters: M}", "parameters: m}", "unknown unit 'm'"),
    "unknown task": ("- text-to-im", "- text-im", "unknown task 'text-image'; did you mean"),
    "unknown corpus": ("coco/test", "cocoa/test", "unknown corpus 'cocoa'"),
    "unknown split": ("coco/test", "coco/tset", "unknown split 'tset'"),
    "unknown measure": ("R@5]", "MRR@0]", "measure 'MRR@0' needs a cut"),
    "no measure": ("model parameters\n", "model\n", "'model' names no measure"),
    "unknown rows": ("protocol: test", "rows_are: test", "expected .systems. or .quantities."),
    "note of no cell": ("{CLIP†: of", "{CLIP: of", "notes has 'CLIP', .* did you mean 'CLIP†"),
    "note of a dash": ("{CLIP†: of", "{CLIP† | text-to-image coco/test R@5: of", "has 'CLIP† .*R@5', which is no"),
    "system of no row": ("      VDR K=32: {", "      VDR: {", "systems has 'VDR', which is no cell's"),
    "unknown checkpoint": ("vsearch/v", "v", "unknown checkpoint 'vdr-cross-modal'"),
    "no reason": ("missing: it prints", "protocol: it prints", "say in `missing` why"),
    "no tolerance": ("    source: a", "    tolerance: 0\n    source: a", "expected a number above 0"),
    "no source": ("    source: a survey\n", "", "is secondary; name its `source`"),
    "neither encoder nor suite": (f"{{encoder: vdr-crossmodal, {TRAINED}}}", "{item: a}", "an encoder or a suite"),
    "both": ("options: {topk: 32}", "suite: {documents: 9, system: ours}", "an encoder or a suite"),
    "trained and published": ("options: {topk: 32}", "trained_on: demo/val, recipe: a.yaml", "and no checkpoint"),
    "another option": (TRAINED, "trained_on: demo/val, recipe: a.yaml --hours 2", "options `--set KEY=VALUE`"),
    "trained on nothing": (TRAINED, "trained_on: dmeo/val, recipe: a.yaml --set seed=1", "unknown corpus 'dmeo'"),
    "not YAML": ("tables:", "tables: [", "paper.yaml: not YAML"),
}


@pytest.mark.parametrize("right,wrong,message", BAD.values(), ids=BAD)
def test_a_mistake_is_one_line(tmp_path, right, wrong, message):
    assert right in PAPER
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, PAPER.replace(right, wrong, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "terms,message",
    [
        *(('"dog 1.5, dog 1.4"', "two values"), ("dog", "expected a term"), ("dog much", "'much' is no number")),
        ("dog 1}, columns: [model size], rows: {a: 1", "both rows and terms; make two tables"),
    ],
)
def test_terms_have_one_weight_each_and_no_rows(tmp_path, terms, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, f"paper: A\ntables: {{t: {{title: t, terms: {{image 1: {terms}}}}}}}")


NUMBERS = st.decimals(-1000, 1000, places=2) | st.integers(0, 10**6) | st.none()


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=1, max_size=6))
def test_any_numbers_come_back(tmp_path, rows):
    """Rectangular tables come back cell by cell; the first row of another length is refused by its name."""
    lines = [f'      row {n}: "{" ".join("-" if x is None else str(x) for x in row)}"' for n, row in enumerate(rows)]
    columns = ", ".join(f"column {n}" for n in range(len(rows[0])))
    head = ["paper: A", "tables:", "  t:", "    title: t", "    missing: some", f"    columns: ['model [{columns}]']"]
    text = "\n".join([*head, "    rows:", *lines])
    uneven = [n for n, row in enumerate(rows) if len(row) != len(rows[0])]
    if uneven:
        with pytest.raises(DataError, match=rf"\(tables: t\): row {uneven[0]}: .*, expected {len(rows[0])}, one per"):
            read(tmp_path, text)
        return
    cells = {(c.row, c.column): c for c in read(tmp_path, text)["paper-t"].cells}
    given = {
        (f"row {r}", f"model column {c}"): x for r, row in enumerate(rows) for c, x in enumerate(row) if x is not None
    }
    assert {key: cell.value for key, cell in cells.items()} == {key: float(x) for key, x in given.items()}
    assert all(cell.decimals == len(str(given[key]).partition(".")[2]) for key, cell in cells.items())


def test_a_quantity_is_its_text():
    for text in ("text-to-text beir-12 nDCG@10", "image-to-text coco/test R@5", "captions coco/test rsum", "speed a"):
        assert str(parse_quantity(text)) == text
    for text in ("", "text-to-text", "text-to-text beir/nq/test R@1", "words imagenet R@1", "speed"):
        with pytest.raises(UsageError):
            parse_quantity(text)


# From here on: the files of the project.

TABLES = load_published_tables()
CELLS = [cell for table in TABLES.values() for cell in table.cells]

# Tables that have an entry, if only one that says what is missing.
PROMISED = {
    "vdr": ["figure1", "table1", "table2", "table3", "table4", "table5", "figure2", "appendix-g", "appendix-h"],
    "stair": [*(f"table{n}" for n in range(1, 12)), *(f"figure{n}" for n in range(4, 9))],
    "fdt": [*(f"table{n}" for n in range(2, 9)), "section4-4"],
    "joint": ["table1", "table2", "table3"],
    "d2s": ["retrieval"],
    "lexlip": ["large-scale"],
    "limit": ["table4", "table5"],
    "prf": ["interpolation"],
}


def test_every_table_has_an_entry():
    assert {f"{paper}-{table}" for paper, tables in PROMISED.items() for table in tables} <= TABLES.keys()
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in TABLES)
    names = [table.name for path in find_expected_folder().glob("*.yaml") for table in read_tables(path)]
    assert sorted(names) == sorted(TABLES), "two tables have one name"


def test_no_cell_has_two_values():
    by_place = defaultdict(list)
    by_meaning = defaultdict(list)
    for cell in CELLS:
        by_place[cell.table, cell.row, cell.column].append(cell.value)
        by_meaning[cell.table, cell.label, cell.quantity].append(cell.value)
    lengths = ("query length", "document length")  # of VDR's table 4: they describe the data set, not a system
    assert [key for key, values in by_place.items() if len(values) > 1] == []
    assert [key for key, values in by_meaning.items() if len(values) > 1 and key[1] not in lengths] == []


def test_values_are_in_their_range():
    for cell in CELLS:
        assert cell.unit in UNITS and cell.status in STATUSES, cell
        most = {"%": 600 if cell.quantity.measure == "rsum" else 100, "1": 30}.get(cell.unit, 10**6)
        assert cell.value is None or 0 <= cell.value <= most, cell
    assert all(1 < cell.value < 200 for cell in CELLS if cell.quantity.task == "model" and cell.unit == "M")


def deeper(measure):
    """`R@5` as ("R", 5); None for a measure that does not grow with its depth."""
    shape = re.fullmatch(r"(R@|Recall@|top-)(\d+)", measure)
    return shape and (shape[1], int(shape[2]))


def test_a_deeper_look_finds_no_less():
    """R@1 <= R@5 <= R@10, top-1 <= top-5 and so on, in every row of every table."""
    found = defaultdict(dict)
    for cell in CELLS:
        if cell.value is not None and (depth := deeper(cell.quantity.measure)):
            found[cell.table, cell.label, *cell.quantity[:2], depth[0]][depth[1]] = cell.value
    several = {key: [value for _, value in sorted(values.items())] for key, values in found.items() if len(values) > 1}
    assert len(several) > 150
    assert {key: values for key, values in several.items() if values != sorted(values)} == {}


# (table, system) -> the difference between the printed mean and that of the printed parts, where it is above half of
# the mean's last digit. The parts are rounded too: twelve of them can be 0.05 too small.
ROUNDED = {("svdr-msmarco", "parametric"): 0.0584}


def test_means_are_means_of_their_parts():
    """Where a table prints the parts too."""
    values = {(cell.table, cell.label, cell.quantity): cell for cell in CELLS}
    checked = 0
    for (table, label, quantity), cell in values.items():
        parts = [values.get((table, label, quantity._replace(data=part))) for part in MEANS.get(quantity.data, ())]
        if parts and all(parts):
            checked += 1
            mean = sum(part.value for part in parts) / len(parts)
            assert abs(mean - cell.value) <= ROUNDED.get((table, label), 0.0501), (cell, mean)
    assert checked == 2 + 7 + 2 + 6 + 7


# Names of one system in several tables of a paper.
SAME = {
    **dict.fromkeys(("CLIP 15M", "CLIP-ViT-B/32"), "CLIP"),
    **dict.fromkeys(("CLIP+FDT 15M", "CLIP-ViT-B/32+FDT", "FDT 16384", "CLIP+FDT sparsemax"), "CLIP+FDT"),
}


def test_a_number_that_is_printed_twice_is_the_same():
    """Within a paper, by system and quantity; other papers print other numbers for the same baselines."""
    found = defaultdict(set)
    times = defaultdict(int)
    for cell in CELLS:
        paper = cell.table.partition("-")[0]
        if paper in ("fdt", "stair", "limit") and cell.quantity.data and cell.table not in ("fdt-cc3m", "limit-table3"):
            key = (paper, SAME.get(cell.label, cell.label), cell.quantity)
            found[key].add(cell.value)
            times[key] += 1
    assert {key: values for key, values in found.items() if len(values) > 1} == {}
    assert sum(count > 1 for count in times.values()) > 70


def describe_measuring(cell):
    """How this project measures a cell: model, weights, options, and what it re-ranks or trains."""
    system, quantity = cell.system, cell.quantity
    weights = (system.find_checkpoint_name(quantity.data), system.trained_on, system.recipe)
    return system.encoder, *weights, sorted(choose_options(cell).items()), system.rerank, system.protocol


def test_a_printed_number_has_one_protocol():
    """In whichever tables of a paper it stands, of a second source too, one measurement is compared with it."""
    found = defaultdict(list)
    for cell in CELLS:
        if cell.system and cell.value is not None:
            found[TABLES[cell.table].paper, cell.label, cell.quantity].append(cell)
    several, apart = [cells for cells in found.values() if len(cells) > 1], []
    for cells in several:
        first, *others = (cell.value * 100 / SCALES.get(cell.unit, 1) for cell in cells)
        same = [c for c, v in zip(cells[1:], others, strict=True) if abs(v - first) < 0.51 * 10 ** -min(c.decimals, 1)]
        same += [c for c in cells[1:] if c.status == "reproduced"]
        apart += [c for c in same if describe_measuring(c) != describe_measuring(cells[0])]
    assert len(several) > 60 and apart == []
    reproduced = [cell for cell in CELLS if cell.status == "reproduced"]
    assert {(c.label, c.value) for c in reproduced} == {("V-SPLADE Quality", 49.618), ("V-SPLADE Efficient", 46.552)}
    assert all(found[TABLES[c.table].paper, c.label, c.quantity] != [c] for c in reproduced), "none to reproduce"


def test_one_measurement_is_compared_with_both_sources():
    finding, verdicts = Finding({"nDCG@5": 0.4955}, 0.003), {}
    for cell in CELLS:
        if cell.label == "V-SPLADE Quality" and cell.quantity.data == "vidore-2":
            row = reproduce_cell(cell, [finding] * len(list_parts(cell.quantity)))
            verdicts[cell.table] = (round(row[8], 3), row[9])
    assert verdicts == {
        "v-splade-readme": (-0.004, "differs"),
        "v-splade-mteb": (-0.068, "agrees"),
        "v-splade-card": (-0.35, "differs"),
    }


# Notes of cells that this project measures, each read: the number is a measure of the row's system all the same.
COMPARABLE = {
    "the source does not say whether captions have a prompt",
    "these are BEIR's numbers of a DPR that was not trained on MS MARCO",
    "as printed; the two values look transposed, since no untrained model is better on MS MARCO than VDR 1",
    "a query keeps only its own tokens",
    "the paper does not say whether weights are normalised on both sides",
    "printed; equal to 1024",
    "as the text has it; the vocabulary has ##ennial",
    "nineteen terms, as the text has them",
    "as the text has it; the colon may belong to a character that it lost",
    "as the text has it, above a larger weight; the two may be exchanged",
    "the text says that those of 1e-3 and more are below the 512 dimensions of CLIP",
}


def test_every_note_is_read():
    """A new note is either of a comparable number, and listed above, or its cell is `uncompared`."""
    measured = [c for c in CELLS if c.system and c.quantity.task in WAYS and c.quantity.task != "model"]
    assert {c.note for c in measured if c.note and not c.uncompared} <= COMPARABLE
    assert {(c.table, c.label, str(c.quantity)) for c in CELLS if c.uncompared and c.system} == {
        ("vdr-figure1", "DPR", "text-to-text beir/msmarco/dev MRR@10"),
        ("fdt-section4-4", "CLIP+FDT", "completeness coco/train sentence pairs"),
        ("fdt-section4-4", "CLIP+FDT", "completeness coco/train complete sentence first"),
        ("fdt-section4-3", "CLIP+FDT", "speed additional training time"),
        ("fdt-section4-3", "CLIP+FDT", "speed lost throughput"),
        *((c.table, c.label, str(c.quantity)) for c in CELLS if c.system and c.quantity.task == "vqa"),
        ("joint-table3", "complete", "text-to-image flickr30k/test R@1"),
        ("stair-table1", "CLIP", "model text parameters"),
        *(("stair-table1", model, "model image parameters") for model in ("STAIR", "CLIP")),
        *(
            ("stair-table9", model, measure)
            for model in ("STAIR", "CLIP")
            for measure in ("latency coco-1m queries per second", *(f"text-to-image coco-1m R@{k}" for k in (10, 25)))
        ),
        *(
            ("v-splade-page", "V-SPLADE Quality", f"weight v-splade-page \u0120{term}")
            for term in ("dog", "dogs", "puppy", "Records", "Bennett")
        ),
    }
    for cell in CELLS:
        if cell.uncompared:
            finding = Finding({cell.quantity.measure: cell.value / SCALES.get(cell.unit, 1)}, 0.003)  # as printed
            assert reproduce_cell(cell, [finding])[9:11] == ("not compared", cell.uncompared)
        elif cell.note and cell.value is not None and cell.quantity.task in WAYS:
            finding = Finding({part.measure: 600.0 for part in list_parts(cell.quantity)}, 0.003)
            reason = "; ".join(filter(None, (cell.note, cell.source and f"source: {cell.source}")))
            assert reproduce_cell(cell, [finding] * len(list_parts(cell.quantity)))[9:11] == ("differs", reason)


def test_a_file_name_is_one_model():
    """A published checkpoint is one file of one model: systems that differ in it have different names."""
    names = {(c.system.encoder, c.system.find_checkpoint_name(c.quantity.data)) for c in CELLS if c.system}
    files = {name for _, name in names if is_file_name(name)}
    assert files <= FILES.keys() and "checkpoint_best.ckpt" not in files
    trained_on = {"coco": "coco/test", "flickr30k": "flickr30k/test"}
    for cell in (cell for cell in CELLS if cell.system and cell.system.encoder == "joint"):
        if name := cell.system.find_checkpoint_name(cell.quantity.data):
            assert cell.quantity.data in ("", trained_on[name.partition("/")[0].rpartition("-")[2]]), cell


def test_captions_have_the_prompt_of_the_protocol():
    cells = [cell for cell in CELLS if "a photo of" in cell.protocol and cell.system]
    prompted = [cell for cell in cells if cell.quantity.task in ("text-to-image", "image-to-text")]
    assert prompted and all(cell.system.options.get("prompt") == "a photo of " for cell in prompted)


def choose_options(cell):
    """The options by which a cell is measured: a prompt is for captions, as classes have their own."""
    captions = cell.quantity.task in ("text-to-image", "image-to-text", "captions", "sparsity")
    return {name: value for name, value in cell.system.options.items() if captions or name != "prompt"}


def test_a_number_that_is_printed_twice_is_measured_in_one_way():
    """Within a paper, by system, quantity and printed value: the same encoder and options."""
    ways = defaultdict(set)
    tables = defaultdict(set)
    for cell in CELLS:
        if cell.system and cell.quantity.data and cell.value is not None:
            paper = cell.table.partition("-")[0]
            name = cell.system.weights or cell.label
            key = (paper, SAME.get(name, name), cell.quantity, cell.value)
            ways[key].add((cell.system.encoder, tuple(sorted(choose_options(cell).items()))))
            tables[key].add(cell.table)
    assert {key: found for key, found in ways.items() if len(found) > 1} == {}
    assert sum(len(found) > 1 for found in tables.values()) > 10


def test_the_list_of_tasks_is_complete():
    rows = re.findall(r"^    ((?:\S+, )*\S+)  ", published.__doc__.partition("rows of `TASKS`:")[2] + " ", re.MULTILINE)
    listed = [task for row in rows for task in row.split(", ")]
    assert sorted(listed) == sorted(TASKS)


def test_doubtful_numbers_stay_as_printed_with_a_note():
    doubtful = {(c.table, c.label, c.quantity.data): c.value for c in CELLS if c.note or c.uncompared}
    assert [doubtful["vdr-table3", "BERTlex 0", data] for data in ("beir-12", "beir/msmarco/dev")] == [20.1, 28.9]
    assert doubtful["joint-table3", "complete", "flickr30k/test"] == 71.4
    captions = {(c.table, c.label): c.value for c in CELLS if str(c.quantity) == "text-to-image coco/test R@1"}
    assert [captions["vdr-table2", name] for name in ("FILIP†", "DeCLIP†")] == [13.72, 16.59]
    assert [captions["fdt-table4", name] for name in ("FILIP", "DeCLIP")] == [16.2, 19.6]


def test_systems_have_options_that_their_encoders_take():
    systems = {cell.table: cell.system for cell in CELLS if cell.system and cell.system.options}
    for name in {system.encoder for system in systems.values()}:
        known = {option.name for option in list_options(name)}
        for cell in CELLS:
            if cell.system and cell.system.encoder == name:
                assert cell.system.options.keys() <= known, cell
                assert "direction" not in cell.system.options, "the task has the direction"
    assert {cell.system.encoder for cell in CELLS if cell.system and not cell.system.suite} <= CARDS.keys()


PAPERS = {"vdr": "vdr_appendix.txt", "stair": "stair.txt", "fdt": "fdt.txt"}

# Rows that the text of the paper does not have in one line: turned tables, lines of two rows, numbers cut in two.
NOT_IN_A_LINE = {
    "vdr-table1": ("text-to-text", "cross-modal"),
    "stair-table3": ("STAIR", "CLIP"),
    "stair-table5": ("STAIR", "CLIP"),
    "stair-table6": ("CLIP of OpenAI", "CLIP 32K", "CLIP", "STAIR"),
    "stair-table7b": ("CLIP", "STAIR single-stage", "STAIR"),
    "stair-table10": ("STAIR image",),
    "fdt-table2": ("CLIP+FDT", "DeCLIP+FDT"),
}


@pytest.mark.shared
@pytest.mark.parametrize("paper,file", PAPERS.items(), ids=PAPERS)
def test_rows_are_in_the_text_of_the_paper(shared: Path, paper, file):
    """The numbers of a row end a line of the paper's text, in the same order."""
    text = re.sub(r"\([^()]*[↑†][^()]*\)", " ", (shared / "papers" / file).read_text(encoding="utf-8"))
    lines = [[float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", line)] for line in text.splitlines()]
    rows = defaultdict(list)
    for cell in CELLS:
        if cell.table.startswith(f"{paper}-table") and cell.quantity.task != "weight":
            rows[cell.table, cell.row].append(cell.value)
    found = {key for key, row in rows.items() if any(row == line[-len(row) :] for line in lines)}
    known = {(table, row) for table, names in NOT_IN_A_LINE.items() if table.startswith(paper) for row in names}
    assert rows.keys() - found == known
