"""The systems of the papers' rows: a name of weights is one model, and a model that nobody publishes has a recipe."""

from pathlib import Path

import pytest

from lexvl_plugins.papers.prepared import Workplace, is_without_weights, list_rows
from lexvl_plugins.papers.published import PublishedSystem, load_published_tables
from lexvl_plugins.papers.tables import make_plan

TABLES = load_published_tables()
ROWS = [row for table in TABLES.values() for row in list_rows(table)]
# Rows whose weights nobody publishes, or not under a name.
OWN = [
    (row, row.system)
    for row in ROWS
    if row.system
    and row.system.encoder
    and not (row.system.checkpoint or row.system.checkpoints or row.system.trained_on)
    and not is_without_weights(row.system)
]


def name_of(label: str, system: PublishedSystem) -> str:
    return system.weights or label


def test_weights_of_ones_own_have_a_recipe_or_a_reason() -> None:
    without = [(row.table.name, row.label) for row, system in OWN if not (system.recipe or system.origin)]
    assert without == []


def test_a_name_is_one_model_and_a_recipe_one_name() -> None:
    """A run that keeps the checkpoint of each stage gives several models; what has an `origin` may need no recipe."""
    models: dict[str, set[tuple[str, str]]] = {}
    names: dict[str, set[str]] = {}
    for row, system in OWN:
        models.setdefault(name_of(row.label, system), set()).add((system.encoder, system.recipe))
        if system.recipe and not system.origin and "--keep-every" not in system.recipe:
            names.setdefault(system.recipe, set()).add(name_of(row.label, system))
    assert {name: own for name, own in models.items() if len(own) > 1} == {}
    assert {recipe: own for recipe, own in names.items() if len(own) > 1} == {}


# The cells of the baselines that the papers' authors trained for the comparison; FDT's tables 2 to 4 and its released
# checkpoint are 35 of them.
TWINS = {"stair": (88, {"clip-twin"}), "fdt": (73 + 35, {"clip", "clip-twin"})}


@pytest.mark.parametrize("paper", TWINS)
def test_the_authors_clip_is_measured_wherever_a_table_has_it(paper: str) -> None:
    cells = [cell for name, table in TABLES.items() if name.startswith(f"{paper}-") for cell in table.cells]
    twins = [cell for cell in cells if cell.label.startswith("CLIP") and not cell.label.endswith(("FDT", "OpenAI"))]
    systems = [cell.system for cell in twins if "FDT" not in cell.label]
    assert (len(systems), {system.encoder for system in systems if system}) == TWINS[paper]
    assert all(system and "clip-" in system.recipe for system in systems)


def test_the_plan_names_recipes(tmp_path: Path) -> None:
    plans = [make_plan(TABLES[name], Workplace(tmp_path)) for name in ("stair-table2", "fdt-table6")]
    needs = {need.name: need for plan in plans for need in plan.needs}
    assert "lexvl train --recipe clip-stair-paper; --checkpoint 'CLIP'=FOLDER names yours" in needs["CLIP"].origin
    assert "lexvl train --recipe stair-paper;" in needs["STAIR"].origin
    assert "lexvl train --recipe fdt-clip-swin-paper;" in needs["CLIP-Swin-B"].origin
    assert "--recipe fdt-paper --set model.image.patch_size=16;" in needs["CLIP-ViT-B/16+FDT"].origin
    assert "CLIP+FDT 15M" in needs and "CLIP-ViT-B/32+FDT" not in needs
