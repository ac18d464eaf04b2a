"""`save_pretrained` and `push_to_hub`: the files of a checkpoint in one folder, which loads with equal vectors.

    FOLDER/...                the checkpoint's own files, unchanged, and its other parts in folders of their names
    FOLDER/lexvl.json         the encoder and its options (`checkpoints/find.py`)
    FOLDER/README.md          the model card
    FOLDER/modules.json ...   of a lexical encoder: sentence-transformers' SparseEncoder loads the folder too

A plain masked LM becomes sentence-transformers' own modules; other lexical encoders `sparse_encoder.LexicalModule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lexvl_anserini.encoders.cards import CARDS, PACKAGED
from lexvl_anserini.encoders.checkpoints import find
from lexvl_anserini.encoders.checkpoints import sentence_layout as layout
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import SAVED, read_saved
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, UsageError
from lexvl_anserini.ground.files import atomic_write, new_folder, write_json
from lexvl_anserini.ground.manifest import PLACES
from lexvl_anserini.ground.records import Measurement
from lexvl_plugins.exchange.sharing.pushing import HubPlace, ModelCardFacts, build_card, copy_files

OWN_MODULE = "lexvl_plugins.exchange.sharing.sparse_encoder.LexicalModule"
# The folder of weights that `modules.json` beside it does not describe.
WEIGHTS_FOLDER = "model"
# Files beside a published checkpoint about its making.
RECORDS = ("log.jsonl",)
# Beside the files of a tokenizer.
TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "merges.txt")


def save_pretrained(
    encoder: Encoder,
    folder: Path | str,
    licence: str | None = None,
    language: str | Sequence[str] = "en",
    measures: Sequence[Measurement] = (),
    overwrite: bool = False,
) -> Path:
    """Writes the encoder into a folder that `load_encoder` loads with equal vectors, with a card; returns the folder.

    The checkpoint's files are copied as they are. Options that differ from the defaults stay with the folder;
    sentence-transformers' SparseEncoder loads lexical encoders from it too.

    Args:
        encoder: with a checkpoint, which has not changed since it was loaded.
        folder: new or empty; it appears whole or not at all.
        licence: of these weights, an id of the hub such as apache-2.0; None for unknown.
        language: of the texts, as codes.
        measures: values over whole datasets, for the card.
        overwrite: replace what is in the folder.
    """
    return _save(encoder, Path(folder), ModelCardFacts(licence, language, measures), overwrite)


def push_to_hub(
    encoder: Encoder,
    repo_id: str,
    licence: str | None = None,
    language: str | Sequence[str] = "en",
    measures: Sequence[Measurement] = (),
    private: bool | None = None,
    token: str | None = None,
    message: str = "Add an encoder of lexvl-anserini",
    branch: str | None = None,
    overwrite: bool = False,
) -> str:
    """Writes what `save_pretrained` writes into a model of the Hugging Face hub, in one commit; returns its URL.

    The files replace those that an earlier push wrote. After an error, nothing is committed.

    Args:
        encoder, licence, language, measures: as for `save_pretrained`.
        repo_id: `owner/name`; created if it is not there.
        private: of a new model; default as the owner's settings.
        token: default that of `hf auth login`, or HF_TOKEN.
        message: of the commit.
        branch: an existing one; default main.
        overwrite: replace files that no `push_to_hub` wrote.
    """
    hub = HubPlace(repo_id, "model", SAVED, "push_to_hub", "overwrite=True", private, token, branch, overwrite)
    hub.check()
    with TemporaryDirectory(prefix="lexvl-push-") as home:
        facts = ModelCardFacts(licence, language, measures, repo_id)
        return hub.commit(_save(encoder, Path(home) / "model", facts), message)


def _save(model: Encoder, folder: Path, facts: ModelCardFacts, overwrite: bool = False) -> Path:
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtefactError(f"{folder}: not empty; name another folder, or overwrite it (overwrite=True)")
    with new_folder(folder) as part:
        base = write_encoder(model, part)
        text = build_card(model, base, facts, _find_loader(part))
        with atomic_write(part / "README.md") as out:
            out.write(text.encode())
    return folder


def write_encoder(model: Encoder, folder: Path) -> find.Checkpoint:
    """Copies a checkpoint and parts into a folder, for `load_encoder` and SparseEncoder; returns the checkpoint."""
    if model.checkpoint is None:
        raise UsageError(f"encoder {model.name!r} was loaded from no checkpoint; there is nothing to save")
    checkpoint = find.find_checkpoint(model.checkpoint)
    if find.combine_digests(checkpoint, find.find_parts(model.options)) != model.checkpoint_digest:
        raise CheckpointError(f"{model.checkpoint}: changed since the encoder was loaded; load it again")
    saved = read_saved(checkpoint)
    base, places = checkpoint, dict[str, str]()
    if saved:
        spec, base = saved
        stored = {**asdict(spec), **spec.options}
        places = {key: stored[key] for key in PLACES if stored.get(key)}
    places |= {key: model.options[key] for key in PLACES if model.options.get(key)}
    options = {key: value for key, value in model.options.items() if key not in PLACES}
    ours = base.file is None and _is_ours(base.folder)
    described = base.file is None and not ours and (base.folder / layout.MODULES_FILE).is_file()
    plain = _is_plain_splade(model, base)
    own_module = model.kind == "impact" and not plain and not (described and not options)
    # Their loaders read `modules.json`, which here describes the encoder and not the weights.
    apart = WEIGHTS_FOLDER if own_module and CARDS[model.name].modules else ""
    _copy_weights(base, folder / apart, ours)
    facts = {"encoder": model.name, "options": options, "places": _copy_places(places, folder)}
    write_json(folder / SAVED, {**facts, "folder": apart, "file": base.file.name if base.file else None})
    if plain:
        _describe_splade(model, folder)
    elif own_module:
        layout.write_sparse_encoder(folder, None)
        layout.write_modules({"": OWN_MODULE}, folder)
    return base


def _is_ours(folder: Path) -> bool:
    """Whether `modules.json` of a folder is one that `write_encoder` wrote."""
    return (folder / SAVED).is_file() and (
        [part.kind for part in layout.read_modules(folder)] == [OWN_MODULE] or (folder / layout.POOLING_FOLDER).is_dir()
    )


def _copy_weights(base: find.Checkpoint, folder: Path, ours: bool) -> None:
    """Copies the files that a checkpoint is loaded from, and what its configuration names beside it."""
    if base.file is not None:
        beside = (*find.CONFIGURATIONS, *find.TOKENIZER_FILES, *TOKENIZER_SETTINGS)
        names = {path.name for pattern in beside for path in base.folder.glob(pattern) if path.is_file()}
        names.add(base.file.name)
    else:
        names = set(find.list_model_files(find.list_names(base.folder)))
        names -= {SAVED, layout.MODULES_FILE, layout.ABOUT_FILE} if ours else set()
        names |= {name for name in RECORDS if (base.folder / name).is_file()}
    copy_files(base.folder, names, folder)
    if not (base.folder / "config.json").is_file():
        return
    # The sides of a published VDR checkpoint name a folder beside it by `model_id`: a tokenizer and a configuration.
    sides = [side for side in base.config().values() if isinstance(side, dict)]
    for name in {side["model_id"] for side in sides if isinstance(side.get("model_id"), str)} - {"", ".", ".."}:
        source = base.folder.parent / name
        if "/" not in name and source.is_dir() and not (base.folder / name).exists():
            copy_files(source, find.list_model_files(find.list_names(source), weights=False), folder / name)


def _copy_places(places: dict[str, str], folder: Path) -> dict[str, str]:
    """Copies the other parts of an encoder; returns their names for `lexvl.json`."""
    for key, name in places.items():
        if name in PACKAGED:
            continue
        part = find.find_checkpoint(name, key.endswith("_checkpoint"))
        names = [part.file.name] if part.file else find.list_model_files(find.list_names(part.folder), part.weights)
        copy_files(part.folder, names, folder / key)
        places[key] = f"{key}/{part.file.name}" if part.file else key
    return places


def _is_plain_splade(model: Encoder, base: find.Checkpoint) -> bool:
    """Whether one masked LM of transformers, read alike on both sides, has all that the encoder computes."""
    from lexvl_anserini.encoders.parts.backbones import is_causal_lm
    from lexvl_anserini.encoders.parts.sparsify import Sparsifier
    from lexvl_anserini.encoders.parts.towers import log1p_relu, pool_last

    if model.name != "splade" or base.file is not None or (base.folder / layout.MODULES_FILE).is_file():
        return False
    # A run of naver's trainers has folders; a network of transformers has all at the root.
    files = find.list_model_files(find.list_names(base.folder))
    if any("/" in name for name in files) or not any(map(find.is_shard_name, files)):
        return False
    # sentence-transformers reads masked LMs alone.
    if is_causal_lm(base.config().get("architectures")) or any(model.options.get(key) for key in PLACES):
        return False
    sides: list[Any] = [model.query, model.document]
    if any(getattr(side, name, None) is None for side in sides for name in ("composition", "reader")):
        return False  # a bag of tokens
    parts = [(side.composition.sparsifier, side.composition.pooling, side.reader.max_length) for side in sides]
    sparsifier, pooling, _ = parts[0]
    # A written folder has no other rule of the sparsifier than `topk`.
    plain = sparsifier == Sparsifier(sparsifier.topk) and pooling is not pool_last and parts[0] == parts[1]
    plain = plain and all(side.composition.activation is log1p_relu for side in sides)
    return bool(plain and len(sides[1].vocabulary) == base.config().get("vocab_size"))


def _describe_splade(model: Encoder, folder: Path) -> None:
    """Describes a masked LM as network and pooling of sentence-transformers."""
    from lexvl_anserini.encoders.parts.towers import POOLINGS

    side: Any = model.document
    strategy = next(name for name, pool in POOLINGS.items() if pool is side.composition.pooling)
    layout.write_sparse_encoder(folder, model.options.get("topk"))
    layout.write_limits(folder, side.reader.max_length)
    layout.write_splade_pooling(folder / layout.POOLING_FOLDER, len(side.vocabulary), strategy)
    types = "sentence_transformers.sparse_encoder.models"
    layout.write_modules({"": f"{types}.MLMTransformer", layout.POOLING_FOLDER: f"{types}.SpladePooling"}, folder)


def _find_loader(folder: Path) -> str | None:
    """Finds the class of sentence-transformers that loads a written folder, with arguments; None if none does."""
    if not (folder / layout.MODULES_FILE).is_file():
        return None
    if [part.kind for part in layout.read_modules(folder)] == [OWN_MODULE]:
        return 'SparseEncoder("{}", trust_remote_code=True)'
    sparse = (folder / layout.ABOUT_FILE).is_file() and '"SparseEncoder"' in (folder / layout.ABOUT_FILE).read_text()
    return 'SparseEncoder("{}")' if sparse else 'SentenceTransformer("{}")'
