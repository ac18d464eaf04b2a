"""`Encoder.save_pretrained` and `push_to_hub`: the files of a checkpoint in one folder, which loads with equal vectors.

    FOLDER/...                the checkpoint's own files, unchanged, and its other parts in folders of their names
    FOLDER/lexvl.json         the encoder and its options (`checkpoints/find.py`)
    FOLDER/README.md          the model card
    FOLDER/modules.json ...   of a lexical encoder: sentence-transformers' SparseEncoder loads the folder too

A plain masked LM becomes the network and pooling of sentence-transformers. Other lexical encoders become one module of
this package, `lexvl_plugins.exchange.sharing.sparse_encoder.LexicalModule`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import (
    CONFIGURATIONS,
    TOKENIZER_FILES,
    Checkpoint,
    combine_digests,
    find_checkpoint,
    find_parts,
    is_shard_name,
    list_model_files,
    list_names,
)
from lexvl_anserini.encoders.checkpoints.sentence_layout import (
    ABOUT_FILE,
    MODULES_FILE,
    POOLING_FOLDER,
    read_modules,
    write_limits,
    write_modules,
    write_sparse_encoder,
    write_splade_pooling,
)
from lexvl_anserini.encoders.loading import SAVED, read_saved
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, UsageError
from lexvl_anserini.ground.files import atomic_write, new_folder, write_json
from lexvl_anserini.ground.manifest import PLACES
from lexvl_anserini.ground.records import Measurement
from lexvl_plugins.exchange.sharing.committing import HubPlace, commit_folder
from lexvl_plugins.exchange.sharing.model_card import ModelCardFacts, model_card

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

README = "README.md"
OWN_MODULE = "lexvl_plugins.exchange.sharing.sparse_encoder.LexicalModule"
# The folder of weights that `modules.json` beside it does not describe.
WEIGHTS_FOLDER = "model"
# Files beside a published checkpoint about its making.
RECORDS = ("log.jsonl",)
# Beside the files of a tokenizer.
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "merges.txt")


def save_encoder(model: Encoder, folder: Path, facts: ModelCardFacts, overwrite: bool = False) -> Path:
    """Writes an encoder into a new folder, whole or not at all; returns the folder.

    Raises:
        UsageError: the encoder has no checkpoint.
        CheckpointError: its checkpoint changed since it was loaded.
        ArtefactError: the folder is not empty and `overwrite` is False, or the disk is full.
    """
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtefactError(f"{folder}: not empty; name another folder, or overwrite it (overwrite=True)")
    checkpoint = checkpoint_of(model)
    with new_folder(folder) as part:
        write_encoder(model, checkpoint, part)
        text = model_card(model, weights_of(checkpoint), facts, loads_in_sentence_transformers(part))
        with atomic_write(part / README) as out:
            out.write(text.encode())
    return folder


def checkpoint_of(model: Encoder) -> Checkpoint:
    """The checkpoint of an encoder, if it is still what the encoder was loaded from."""
    if model.checkpoint is None:
        raise UsageError(f"encoder {model.name!r} was loaded from no checkpoint; there is nothing to save")
    checkpoint = find_checkpoint(model.checkpoint)
    if combine_digests(checkpoint, find_parts(model.options)) != model.checkpoint_digest:
        raise CheckpointError(f"{model.checkpoint}: changed since the encoder was loaded; load it again")
    return checkpoint


def weights_of(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, or that which a saved folder holds."""
    saved = read_saved(checkpoint)
    return checkpoint if saved is None else saved[1]


def write_encoder(model: Encoder, checkpoint: Checkpoint, folder: Path) -> None:
    """Copies checkpoint and parts into a folder, and describes them for `load_encoder` and for SparseEncoder."""
    base = weights_of(checkpoint)
    options = {key: value for key, value in model.options.items() if key not in PLACES}
    described = base.file is None and (base.folder / MODULES_FILE).is_file() and not described_here(base.folder)
    lexical, plain = model.kind == "impact", is_plain_splade(model, base)
    own_module = lexical and not plain and not (described and not options)
    # Its loader reads `modules.json`, which here describes the encoder and not the weights.
    apart = WEIGHTS_FOLDER if own_module and model.name == "splade" else ""
    copy_checkpoint(base, folder / apart)
    write_json(
        folder / SAVED,
        {
            "encoder": model.name,
            "options": options,
            "places": copied_places(model, checkpoint, folder),
            "folder": apart,
            "file": base.file.name if base.file else None,
        },
    )
    if plain:
        write_splade(model, folder)
    elif own_module:
        write_sparse_encoder(folder, None)
        write_modules({"": OWN_MODULE}, folder)


def described_here(folder: Path) -> bool:
    """Whether `modules.json` of a folder is one that `write_encoder` wrote."""
    return (folder / SAVED).is_file() and (
        [part.kind for part in read_modules(folder)] == [OWN_MODULE] or (folder / POOLING_FOLDER).is_dir()
    )


def copy_checkpoint(base: Checkpoint, folder: Path) -> None:
    """Copies the files that a checkpoint is loaded from, and the tokenizer beside a published VDR checkpoint."""
    if base.file is not None:
        beside = (*CONFIGURATIONS, *TOKENIZER_FILES, *TOKENIZER_SETTINGS)
        names = {path.name for pattern in beside for path in base.folder.glob(pattern) if path.is_file()}
        copy_files(base.folder, sorted({*names, base.file.name}), folder)
    else:
        ours = {SAVED, MODULES_FILE, ABOUT_FILE} if described_here(base.folder) else set()
        records = [name for name in RECORDS if (base.folder / name).is_file()]
        names = set(list_model_files(list_names(base.folder))) - ours
        copy_files(base.folder, [*sorted(names), *records], folder)
    for name in companions_beside(base):
        source = base.folder.parent / name
        copy_files(source, list_model_files(list_names(source), weights=False), folder / name)


def companions_beside(base: Checkpoint) -> list[str]:
    """Folders beside a checkpoint that its `model_id` names, with a tokenizer and a configuration."""
    if not (base.folder / "config.json").is_file():
        return []
    sides = (side for side in base.config().values() if isinstance(side, dict))
    named = {side["model_id"] for side in sides if isinstance(side.get("model_id"), str)}
    plain = (name for name in sorted(named) if name and "/" not in name and name not in (".", ".."))
    return [name for name in plain if (base.folder.parent / name).is_dir() and not (base.folder / name).exists()]


def copied_places(model: Encoder, checkpoint: Checkpoint, folder: Path) -> dict[str, str]:
    """Copies the other parts of an encoder; returns their names for `lexvl.json`."""
    saved = read_saved(checkpoint)
    stored = {**asdict(saved[0]), **saved[0].options} if saved is not None else {}
    places = {key: name for key in PLACES if (name := model.options.get(key) or stored.get(key))}
    for key, name in places.items():
        if name in PACKAGED:
            continue
        part = find_checkpoint(name, key.endswith("_checkpoint"))
        target = folder / key
        if part.file is not None:
            copy_files(part.folder, [part.file.name], target)
            places[key] = f"{key}/{part.file.name}"
        else:
            copy_files(part.folder, list_model_files(list_names(part.folder), part.weights), target)
            places[key] = key
    return places


def copy_files(source: Path, names: Sequence[str], folder: Path) -> None:
    """Copies files by their names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)


def is_plain_splade(model: Encoder, base: Checkpoint) -> bool:
    """Whether one masked LM of transformers, read alike on both sides, has all that the encoder computes."""
    from lexvl_anserini.encoders.parts.backbones import is_causal_lm
    from lexvl_anserini.encoders.parts.pooling import log1p_relu, masked_last
    from lexvl_anserini.encoders.parts.sparsify import Sparsifier

    if model.name != "splade" or base.file is not None or (base.folder / MODULES_FILE).is_file():
        return False
    # A run of naver's trainers has folders; a network of transformers has all at the root.
    files = list_model_files(list_names(base.folder))
    if any("/" in name for name in files) or not any(map(is_shard_name, files)):
        return False
    if is_causal_lm(base.config().get("architectures")):
        return False  # sentence-transformers reads masked LMs alone
    if any(model.options.get(key) for key in PLACES):
        return False
    readings = []
    for side in (model.query, model.document):
        composition, reader = getattr(side, "composition", None), getattr(side, "reader", None)
        if composition is None or reader is None:
            return False  # a bag of tokens
        same = (composition.sparsifier, composition.pooling, reader.max_length)
        # A written folder has no other rule of the sparsifier than `topk`.
        plain = composition.sparsifier == Sparsifier(composition.sparsifier.topk)
        plain &= composition.pooling is not masked_last
        readings.append((*same, plain and composition.activation is log1p_relu))
    document: Any = model.document
    size = len(document.vocabulary)
    return bool(readings[0] == readings[1] and readings[0][-1] and size == base.config().get("vocab_size"))


def write_splade(model: Encoder, folder: Path) -> None:
    """Describes a masked LM as network and pooling of sentence-transformers."""
    from lexvl_anserini.encoders.parts.pooling import POOLINGS

    side: Any = model.document
    strategy = next(name for name, pool in POOLINGS.items() if pool is side.composition.pooling)
    write_sparse_encoder(folder, model.options.get("topk"))
    write_limits(folder, side.reader.max_length)
    write_splade_pooling(folder / POOLING_FOLDER, len(side.vocabulary), strategy)
    types = "sentence_transformers.sparse_encoder.models"
    write_modules({"": f"{types}.MLMTransformer", POOLING_FOLDER: f"{types}.SpladePooling"}, folder)


def loads_in_sentence_transformers(folder: Path) -> str | None:
    """The class of sentence-transformers that loads a written folder, with arguments; None if none does."""
    if not (folder / MODULES_FILE).is_file():
        return None
    if [part.kind for part in read_modules(folder)] == [OWN_MODULE]:
        return 'SparseEncoder("{}", trust_remote_code=True)'
    sparse = (folder / ABOUT_FILE).is_file() and '"SparseEncoder"' in (folder / ABOUT_FILE).read_text()
    return 'SparseEncoder("{}")' if sparse else 'SentenceTransformer("{}")'


def push_encoder(
    model: Encoder,
    facts: ModelCardFacts,
    repo_id: str,
    private: bool | None,
    token: str | None,
    message: str | None,
    branch: str | None,
    overwrite: bool,
) -> str:
    """As `Encoder.push_to_hub`: the files replace those that an earlier push wrote."""
    hub = HubPlace(repo_id, "model", SAVED, "push_to_hub", "overwrite=True", private, token, branch, overwrite)
    hub.check()
    with TemporaryDirectory(prefix="lexvl-push-") as home:
        folder = save_encoder(model, Path(home) / "model", facts)
        return commit_folder(folder, hub, message or "Add an encoder of lexvl-anserini")


def save_pretrained(
    encoder: Encoder,
    folder: Path | str,
    licence: str | None = None,
    language: str | Sequence[str] = "en",
    measures: Sequence[Measurement] = (),
    overwrite: bool = False,
) -> Path:
    """Writes the encoder into a folder that `load_encoder` loads with equal vectors, with a model card.

    The checkpoint's files are copied as they are. Options that differ from the defaults stay with the folder;
    sentence-transformers' SparseEncoder loads lexical encoders from it too.

    Args:
        folder: new or empty; it appears whole or not at all.
        licence: of these weights, an id of the hub such as apache-2.0; None for unknown.
        language: of the texts, as codes.
        measures: values over whole datasets, for the card.
        overwrite: replace what is in the folder.

    Returns:
        The folder.

    Raises:
        UsageError: the encoder has no checkpoint, or metadata of the card that is not valid.
        CheckpointError: its checkpoint changed since it was loaded.
        ArtefactError: the folder is not empty, or the disk is full.
    """
    facts = ModelCardFacts(licence, language, measures)
    return save_encoder(encoder, Path(folder), facts, overwrite)


def push_to_hub(
    encoder: Encoder,
    repo_id: str,
    licence: str | None = None,
    language: str | Sequence[str] = "en",
    measures: Sequence[Measurement] = (),
    private: bool | None = None,
    token: str | None = None,
    message: str | None = None,
    branch: str | None = None,
    overwrite: bool = False,
) -> str:
    """Writes what `save_pretrained` writes into a model of the Hugging Face hub, in one commit; returns its URL.

    Args:
        repo_id: `owner/name`; created if it is not there.
        licence, language, measures: as for `save_pretrained`.
        private: of a new model; default as the owner's settings.
        token: default that of `hf auth login`, or HF_TOKEN.
        message: of the commit.
        branch: an existing one; default main.
        overwrite: replace files that no `push_to_hub` wrote.

    Raises:
        UsageError: not a name of a model; also as `save_pretrained`.
        LexvlError: no token or one without the right to write, other files in the model, or a hub that cannot be
            reached; nothing is committed then.
    """
    facts = ModelCardFacts(licence, language, measures, repo_id)
    return push_encoder(encoder, facts, repo_id, private, token, message, branch, overwrite)
