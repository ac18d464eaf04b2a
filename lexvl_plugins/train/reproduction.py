"""Rows whose weights this project trains when it measures them: families of encoders, by a recipe of a few minutes.

OUTPUT/training/<row>/     the run, with its checkpoint `model`
OUTPUT/training/cache/     what frozen networks make of the data, which rows share
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lexvl_anserini.ground.installed import shipped_folder

from lexvl_eval.reproduction.prepared import corpus_of, trained_model, weights_of
from lexvl_eval.reproduction.published import PublishedSystem
from lexvl_eval.reproduction.retrieval import measure_retrieval
from lexvl_eval.reproduction.rows import Finding, RowPart, Workplace

if TYPE_CHECKING:
    from lexvl_plugins.train.recipe import Recipe


def measure_trained(part: RowPart, place: Workplace) -> Finding:
    """Trains the weights of a part, unless the user gives some, then runs its line; finds what is finished.

    Raises:
        ArtefactError: the folder has the training of another recipe or of other data.
        MissingExtra: a package or a network that the recipe names is not installed.
    """
    assert part.system is not None and part.system.trained_on, "`way_of` looked"
    weights, model = weights_of(part, part.system, place), trained_model(part, place)
    if weights is not None and weights.reference == str(model):
        from lexvl_plugins.train.loop import train

        recipe, cache = recipe_of(part, part.system, place), model.parent.with_name("cache")
        train(recipe, model.parent, place.data_dir, place.device, place.overwrite, cache=cache)
    return measure_retrieval(part, place)


def recipe_of(part: RowPart, system: PublishedSystem, place: Workplace) -> Recipe:
    """The recipe of a row, with its changes, over the corpus that the row trains on."""
    from lexvl_plugins.train.recipe import changes_of, read_recipe

    name, *options = shlex.split(system.recipe)
    settings = (option.partition("=") for option in options if option != "--set")
    corpus = corpus_of(part._replace(data=system.trained_on), place)
    changes = changes_of({key: value for key, _, value in settings})
    return read_recipe(
        shipped_folder("recipes") / name, changes | {"data.corpus": corpus.name, "data.split": corpus.split}
    )
