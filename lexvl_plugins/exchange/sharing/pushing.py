"""What a push to the hub is: a card with metadata that the hub checks, one commit, and its errors as one line.

huggingface_hub's own upload of a folder commits in several steps; here all large files are uploaded before the one
commit that names them and its parent: of two that push at once, one gets an error.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.cards import CARDS, PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, list_names
from lexvl_anserini.encoders.encoder import Encoder, reads_images
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError, describe_error
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Measurement

log = logging.getLogger(__name__)
# What the hub itself puts into a new repository.
HUB_FILES = frozenset({".gitattributes"})
REMEDIES = {
    401: "the token is not valid; run `hf auth login`",
    403: "the token may not write there; make one that may, or name a model of your own",
    412: "someone else pushed meanwhile; push again",
}
# Networks that packages install, as the hub knows them.
ON_HUB: Mapping[str, str] = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
RECIPE = "training.json"


@dataclass(frozen=True)
class HubPlace:
    """A repository to commit to, where `writer` leaves the file `mark`; `replace_by` names the option `overwrite`."""

    repo_id: str
    repo_type: str
    mark: str
    writer: str
    replace_by: str
    private: bool | None = None
    token: str | None = None
    branch: str | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses a name that is none of the hub, and a hub without a token."""
        from huggingface_hub import get_token

        check_name(self.repo_id)
        if not (self.token or get_token()):
            raise LexvlError(f"{self.repo_id}: no token of the hub; run `hf auth login`, or set HF_TOKEN")

    def commit(self, folder: Path, message: str) -> str:
        """Commits the files of a folder, which replace those of an earlier commit; returns the commit's URL."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api: Any = HfApi(token=self.token)
        kind = {"repo_type": self.repo_type}
        with hub_errors(self.repo_id, "upload", "nothing was committed, push again"):
            api.create_repo(self.repo_id, private=self.private, exist_ok=True, **kind)
            info = api.repo_info(self.repo_id, revision=self.branch, **kind)
            there = {sibling.rfilename for sibling in info.siblings or ()} - HUB_FILES
            if there and self.mark not in there and not self.overwrite:
                raise LexvlError(describe_strangers(self.repo_id, there, self.writer, self.replace_by))
            names = sorted(list_names(folder))
            operations: list[Any] = [CommitOperationAdd(name, folder / name) for name in names]
            operations += [CommitOperationDelete(name) for name in sorted(there - set(names))]
            where = {**kind, "revision": self.branch, "parent_commit": info.sha}
            commit = api.create_commit(self.repo_id, operations, commit_message=message, **where)
        log.info("%s: %d files committed", self.repo_id, len(names))
        return str(commit.commit_url)


def describe_strangers(place: Any, names: Collection[str], writer: str, remedy: str) -> str:
    """Describes a place that holds files of others."""
    strange = f"{len(names)} files that {writer} did not write, such as {min(names)!r}"
    return f"{place}: holds {strange}; name another place, or replace them ({remedy})"


def copy_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """Copies files by their names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)


def check_name(repo_id: str) -> None:
    """Refuses a name that is not `owner/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(f"{repo_id!r:.80}: no name on the hub (owner/name); {str(error).splitlines()[0]}") from error
    if "/" not in repo_id:
        raise UsageError(f"{repo_id!r}: lacks its owner; expected owner/name")


@contextmanager
def hub_errors(repo_id: str, step: str, outcome: str) -> Iterator[None]:
    """Turns errors of huggingface_hub in an upload or a download into one line that ends with the outcome."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except LexvlError:
        raise
    except RevisionNotFoundError as error:
        raise LexvlError(f"{repo_id}: has no such branch; create it on the hub first") from error
    except RepositoryNotFoundError as error:
        raise LexvlError(f"{repo_id}: not found with this token, which may not read another owner's") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        why = REMEDIES.get(status) or describe_error(error)
        raise LexvlError(f"{repo_id}: the hub refuses ({status}): {why}; {outcome.partition(',')[0]}") from error
    except Exception as error:  # any error of the HTTP stack
        reason = describe_error(error.__cause__ or error)
        raise LexvlError(f"{repo_id}: the {step} broke off ({reason}); {outcome}") from error


@dataclass(frozen=True)
class ModelCardFacts:
    """What only the author knows: a licence as an id of the hub, or None; languages; measures; the card's place."""

    licence: str | None = None
    language: str | Sequence[str] = "en"
    measures: Sequence[Measurement] = ()
    repo_id: str | None = None


def build_card(model: Encoder, checkpoint: Checkpoint, facts: ModelCardFacts, loader: str | None) -> str:
    """Writes README.md of a saved encoder; `loader` of sentence-transformers has a place for the name."""
    from huggingface_hub import ModelCard, ModelCardData

    path = checkpoint.folder / RECIPE
    recipe = read_json(path, "record of a training", CheckpointError).get("recipe") or {} if path.is_file() else {}
    # The networks that it was trained over are named by its configuration or its recipe.
    config = checkpoint.config() if checkpoint.file is None and (checkpoint.folder / "config.json").is_file() else {}
    named = [(side.get("backbone") or {}).get("checkpoint") for side in config.values() if isinstance(side, Mapping)]
    trained = (recipe.get("model") or {}).values()
    named += [side.get("checkpoint") for side in trained if isinstance(side, Mapping)]
    named += [model.checkpoint if model.checkpoint in PACKAGED and not named else None]
    bases = list(dict.fromkeys(name for name in named if isinstance(name, str)))
    tags = ["lexvl", model.name, *(["sparse-encoder", "learned-sparse"] if model.kind == "impact" else [])]
    try:
        data = ModelCardData(
            language=facts.language if isinstance(facts.language, str) else list(facts.language),
            license=facts.licence or "unknown",
            library_name="lexvl-anserini",
            pipeline_tag="feature-extraction",
            tags=[*tags, *(["sentence-transformers"] if loader else [])],
            base_model=[ON_HUB.get(base, base) for base in bases if base in ON_HUB or "/" in base] or None,
            model_name=(facts.repo_id or model.name).rpartition("/")[2],
            eval_results=[_make_result(measurement, model) for measurement in facts.measures] or None,
        )
        text = "\n\n".join(_write_sections(model, checkpoint, facts, loader, recipe, bases))
        return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n"))
    except ValueError as error:
        raise UsageError(f"the model card of {facts.repo_id or 'FOLDER'}: {str(error).splitlines()[0]}") from error


def _write_sections(
    model: Encoder,
    checkpoint: Checkpoint,
    facts: ModelCardFacts,
    loader: str | None,
    recipe: Mapping[str, Any],
    bases: Sequence[str],
) -> Iterator[str]:
    """Yields the parts of the card after its metadata."""
    card, name = CARDS[model.name], facts.repo_id or "FOLDER"
    data = recipe.get("data") or {}
    yield f"# {(facts.repo_id or model.name).rpartition('/')[2]}"
    equation = (import_module(card.loader.partition(":")[0]).__doc__ or "").strip().partition("\n")[0]
    rows = {
        "Encoder": f"`{model.name}` of lexvl-anserini, {model.kind}; {card.paper}",
        "Options": ", ".join(f"`{key}={value}`" for key, value in model.options.items()) or "none",
        "Base networks": ", ".join(f"`{base}`" for base in bases) or "none besides these weights",
        "Recipe": f"`{recipe['name']}`, in `{RECIPE}`" if recipe.get("name") else "unknown",
        "Trained on": " ".join(str(data[key]) for key in ("corpus", "split") if data.get(key)) or "unknown",
        "Licence": facts.licence or f"unknown; of the family's published weights: {card.licence}",
    }
    yield f"{equation}\n\n{draw_table(rows)}"
    lines = ["from lexvl_anserini import load_encoder", "", f'model = load_encoder("{model.name}", "{name}")']
    first = "a.jpg" if reads_images(model.query) else "a ship in the moonlight"
    lines.append(f'vectors = model.encode_query(["{first}"])')
    if model.kind == "impact":
        lines.append("print(model.decode(vectors, top_k=8))")
    yield "## Use\n\n```python\n{}\n```".format("\n".join(lines))
    if loader:
        own = " (`pip install lexvl-anserini`; the class is the package's own)" if "trust" in loader else ""
        lines = [f"from sentence_transformers import {loader.partition('(')[0]}", "", f"model = {loader.format(name)}"]
        yield "With sentence-transformers{}:\n\n```python\n{}\n```".format(own, "\n".join(lines))
    if facts.measures:
        yield draw_measures(facts.measures)
    if original := _read_original(checkpoint):
        yield f"## The checkpoint's own card\n\n{original}"


def draw_table(rows: Mapping[str, Any]) -> str:
    """Draws a table of names and values."""
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def draw_measures(measures: Sequence[Measurement]) -> str:
    """Draws the section of measured values."""
    rows = "\n".join(f"| {value.dataset} | {value.measure} | {value.value:.4f} |" for value in measures)
    return f"## Measured\n\n| dataset | measure | value |\n|---|---|---|\n{rows}"


def _make_result(measurement: Measurement, model: Encoder) -> Any:
    """Converts a measured value to the form in which the hub stores it."""
    from huggingface_hub import EvalResult

    if measurement.query_id != "all":
        what = f"{measurement.measure} of query {measurement.query_id!r}"
        raise UsageError(f"{what}; a model card has values over all queries")
    return EvalResult(
        task_type="image-text-retrieval" if CARDS[model.name].reads_images else "text-retrieval",
        dataset_type=measurement.dataset,
        dataset_name=measurement.dataset,
        metric_type=measurement.measure.lower().replace("@", "_at_"),
        metric_name=measurement.measure,
        metric_value=round(float(measurement.value), 6),
    )


def _read_original(checkpoint: Checkpoint) -> str:
    """Reads the text of the card that the original has, without metadata and with headings one level down."""
    path = checkpoint.folder / "README.md"
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("---\n"):
        text = text[4:].partition("\n---\n")[2]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.strip().splitlines())
