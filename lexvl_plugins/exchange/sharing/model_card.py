"""The model card of a saved encoder: metadata that the hub checks, and what its files and its author say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.cards import CARDS, PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Measurement

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from lexvl_anserini.encoders.encoder import Encoder

# Networks that packages install, as the hub knows them.
ON_HUB: Mapping[str, str] = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
RECIPE = "training.json"
LANGUAGE = "en"


@dataclass(frozen=True)
class ModelCardFacts:
    """What only the author knows.

    licence   an id of the hub (apache-2.0, cc-by-nc-sa-4.0, other ...); None for "unknown"
    language  codes of the texts' languages
    measures  values over whole datasets, as `lexvl score` computes them
    repo_id   where the card will be; None for a folder
    """

    licence: str | None = None
    language: str | Sequence[str] = LANGUAGE
    measures: Sequence[Measurement] = ()
    repo_id: str | None = None


def model_card(model: Encoder, checkpoint: Checkpoint, facts: ModelCardFacts, loader: str | None) -> str:
    """README.md of a saved encoder.

    Args:
        model: the encoder.
        checkpoint: its files, of which recipe, base networks and the card of the original are read.
        facts: of the author.
        loader: of sentence-transformers, with a place for the name; None if it cannot load the folder.

    Raises:
        UsageError: metadata that the hub would refuse.
    """
    from huggingface_hub import ModelCard, ModelCardData

    name = facts.repo_id or "FOLDER"
    recipe, bases = recipe_of(checkpoint), base_networks(model, checkpoint)
    try:
        data = ModelCardData(
            language=facts.language if isinstance(facts.language, str) else list(facts.language),
            license=facts.licence or "unknown",
            library_name="lexvl-anserini",
            pipeline_tag="feature-extraction",
            tags=["lexvl", model.name, *(["sparse-encoder", "learned-sparse"] if model.kind == "impact" else [])]
            + (["sentence-transformers"] if loader else []),
            base_model=[ON_HUB.get(base, base) for base in bases if base in ON_HUB or "/" in base] or None,
            model_name=(facts.repo_id or model.name).rpartition("/")[2],
            eval_results=[result_of(measurement, model) for measurement in facts.measures] or None,
        )
        text = "\n\n".join(sections(model, checkpoint, facts, loader, recipe, bases))
        content = f"---\n{data.to_yaml()}\n---\n\n{text}"
        return str(ModelCard(content + "\n"))
    except ValueError as error:
        raise UsageError(f"the model card of {name}: {str(error).splitlines()[0]}") from error


def sections(
    model: Encoder,
    checkpoint: Checkpoint,
    facts: ModelCardFacts,
    loader: str | None,
    recipe: Mapping[str, Any],
    bases: Sequence[str],
) -> Iterator[str]:
    """The parts of the card after its metadata."""
    card = CARDS[model.name]
    name = facts.repo_id or "FOLDER"
    yield f"# {name.rpartition('/')[2] if facts.repo_id else model.name}"
    equation = (import_module(card.loader.partition(":")[0]).__doc__ or "").strip().partition("\n")[0]
    yield f"{equation}\n\n{table(model, facts, recipe, bases)}"
    yield f"## Use\n\n```python\n{usage(model, name)}\n```"
    if loader:
        yield (
            "With sentence-transformers"
            + (" (`pip install lexvl-anserini`; the class is the package's own):" if "trust" in loader else ":")
            + f"\n\n```python\nfrom sentence_transformers import {loader.partition('(')[0]}\n\n"
            f"model = {loader.format(name)}\n```"
        )
    if facts.measures:
        rows = [f"| {value.dataset} | {value.measure} | {value.value:.4f} |" for value in facts.measures]
        yield "## Measured\n\n| dataset | measure | value |\n|---|---|---|\n" + "\n".join(rows)
    if original := own_card(checkpoint):
        yield f"## The checkpoint's own card\n\n{original}"


def table(model: Encoder, facts: ModelCardFacts, recipe: Mapping[str, Any], bases: Sequence[str]) -> str:
    """Family, networks, data, recipe, licence."""
    card = CARDS[model.name]
    settings = recipe.get("recipe") or {}
    data = settings.get("data") or {}
    rows = {
        "Encoder": f"`{model.name}` of lexvl-anserini, {model.kind}; {card.paper}",
        "Options": ", ".join(f"`{key}={value}`" for key, value in model.options.items()) or "none",
        "Base networks": ", ".join(f"`{base}`" for base in bases) or "none besides these weights",
        "Recipe": f"`{settings['name']}`, in `{RECIPE}`" if settings.get("name") else "unknown",
        "Trained on": " ".join(str(data[key]) for key in ("corpus", "split") if data.get(key)) or "unknown",
        "Licence": facts.licence or f"unknown; of the family's published weights: {card.licence}",
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def usage(model: Encoder, name: str) -> str:
    """Lines that load and use the encoder."""
    lines = ["from lexvl_anserini import load_encoder", "", f'model = load_encoder("{model.name}", "{name}")']
    first = "a.jpg" if _reads_images(model) else "a ship in the moonlight"
    lines.append(f'vectors = model.encode_query(["{first}"])')
    return "\n".join([*lines, "print(model.decode(vectors, top_k=8))"] if model.kind == "impact" else lines)


def result_of(measurement: Measurement, model: Encoder) -> EvalResult:
    """A measured value as the hub stores it."""
    from huggingface_hub import EvalResult

    if measurement.query_id != "all":
        raise UsageError(
            f"{measurement.measure} of query {measurement.query_id!r}; a model card has values over all queries"
        )
    return EvalResult(
        task_type="image-text-retrieval" if CARDS[model.name].reads_images else "text-retrieval",
        dataset_type=measurement.dataset,
        dataset_name=measurement.dataset,
        metric_type=measurement.measure.lower().replace("@", "_at_"),
        metric_name=measurement.measure,
        metric_value=round(float(measurement.value), 6),
    )


def recipe_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """`training.json` of `lexvl train`; empty if there is none."""
    path = checkpoint.folder / RECIPE
    return read_json(path, "record of a training", CheckpointError) if path.is_file() else {}


def base_networks(model: Encoder, checkpoint: Checkpoint) -> list[str]:
    """The networks that it was trained over: named by its configuration or its recipe."""
    config = checkpoint.config() if checkpoint.file is None and (checkpoint.folder / "config.json").is_file() else {}
    sides = [side for side in config.values() if isinstance(side, Mapping)]
    named = [(side.get("backbone") or {}).get("checkpoint") for side in sides]
    trained = (recipe_of(checkpoint).get("recipe") or {}).get("model") or {}
    named += [side.get("checkpoint") for side in trained.values() if isinstance(side, Mapping)]
    named += [model.checkpoint if model.checkpoint in PACKAGED and not named else None]
    return list(dict.fromkeys(name for name in named if isinstance(name, str)))


def own_card(checkpoint: Checkpoint) -> str:
    """The text of the card that the original has, without metadata and with headings one level down."""
    path = checkpoint.folder / "README.md"
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("---\n"):
        text = text[4:].partition("\n---\n")[2]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.strip().splitlines())


def _reads_images(model: Encoder) -> bool:
    from lexvl_anserini.encoders.encoder import reads_images

    return reads_images(model.query)
