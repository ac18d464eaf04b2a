"""What a folder of sentence-transformers asks to run, and whether the user consented: `$LEXVL_TRUST_REMOTE_CODE`.

Consent is a variable of the environment and no option, because options are also data: the manifest of an index or a
saved encoder has them, and a stranger may have written it. It names what may run, a folder or a hub id with its commit,
several of them separated by colons. Without it the folder is checked before anything reads it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.checkpoints.find import (
    DIGEST,
    SMALL_FILES,
    Checkpoint,
    choose_weights,
    compute_content_sha256,
    compute_digest_like,
    has_tokenizer,
    list_model_files,
    list_names,
    refuse_special,
    remove_blob,
    resolve_inside,
)
from lexvl_anserini.encoders.checkpoints.sentence_layout import (
    BACKBONES,
    MODULES_FILE,
    ROUTER,
    SentenceModule,
    check_modules,
    read_modules,
)
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.ground.errors import CheckpointError, describe_error
from lexvl_anserini.ground.files import read_json

log = logging.getLogger(__name__)

CONSENT = "LEXVL_TRUST_REMOTE_CODE"
# What of a repository is downloaded for its code; weights come with the checkpoint.
FILES_OF_CODE = ("*.py", "*.json", "*.txt", "*.jinja", "*.model")
# How a network attends, by names of transformers; others name a kernel on the hub, which is compiled code.
ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flex_attention")
# Methods of a network that a description may name.
METHODS = ("forward", "get_text_features", "get_image_features")


def has_consent(reference: str) -> bool:
    """Whether the user lets a checkpoint, by its reference in manifests, run its code."""
    return reference in os.environ.get(CONSENT, "").split(os.pathsep)


def ask_consent(checkpoint: Checkpoint, what: str) -> CheckpointError:
    """The error for code without consent."""
    remedy = f"read it, then set {CONSENT}={checkpoint.reference}"
    return CheckpointError(f"{checkpoint.reference}: {what}, which runs only with your consent; {remedy}")


def list_chains(folder: Path) -> dict[str, list[SentenceModule]]:
    """The modules of a folder by route; a folder without a router has the one route "", and may have no modules."""
    if not (folder / MODULES_FILE).is_file():
        return {"": []}
    modules = read_modules(folder)
    if not modules or modules[0].name != ROUTER:
        return {"": modules}
    path = modules[0].folder / "router_config.json"
    path = path if path.is_file() else path.with_name("config.json")
    router = read_json(path, "router description", CheckpointError)
    types, routes = router.get("types"), router.get("structure")
    if not isinstance(types, Mapping) or not isinstance(routes, Mapping):
        raise CheckpointError(f"{path}: no types and structure of a router")
    chains = {}
    for route, names in routes.items():
        if not isinstance(names, list) or not all(isinstance(types.get(name), str) for name in names):
            raise CheckpointError(f"{path}: route {route!r:.80} has {names!r:.80}, expected names of types")
        parts = [SentenceModule(types[name], resolve_inside(path.parent, name, str(path))) for name in names]
        chains[route] = [*parts, *modules[1:]]
    return chains


def describe_chains(chains: Mapping[str, list[SentenceModule]]) -> str:
    """The classes of all modules in order, as manifests note them."""
    routes = (f"{route}: {', '.join(part.name for part in chain)}" for route, chain in sorted(chains.items()))
    return "; ".join(routes).removeprefix(": ")


def is_of_library(part: SentenceModule) -> bool:
    """Whether the class of a module is one of sentence-transformers."""
    return part.kind.startswith("sentence_transformers.")


def find_code(folder: Path) -> list[str]:
    """The classes that a folder names and no installed library has, sorted."""
    from transformers import CONFIG_MAPPING

    parts = {part for chain in list_chains(folder).values() for part in chain}
    named = {part.kind for part in parts if not is_of_library(part)}
    for path, content in read_descriptions(folder):
        if path.name == "config.json" and "model_type" in content and content["model_type"] not in CONFIG_MAPPING:
            named |= list_auto_classes(content)
    return sorted(named)


def read_descriptions(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The configurations of a folder and of its modules."""
    parts = (part.folder for chain in list_chains(folder).values() for part in chain)
    for place in sorted({folder, *parts}):
        for name in sorted(name for name in SMALL_FILES if name.endswith("config.json")):
            if (place / name).is_file():
                yield place / name, read_json(place / name, "description", CheckpointError)


def list_auto_classes(content: Mapping[str, Any]) -> set[str]:
    """The classes of code that a configuration names; of another repository as `owner/name--module.Class`."""
    return set(map(str, list_leaves(content.get("auto_map"))))


def list_leaves(value: Any) -> Iterator[Any]:
    """The values in nested lists and objects of JSON."""
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from list_leaves(inner)
    elif value is not None:
        yield value


def fetch_code(checkpoint: Checkpoint) -> str:
    """Downloads the files of code of a hub id, says in one line that they run, and returns their digest.

    The digest is of everything in the folder that is no part of a model's own files.
    """
    folder = checkpoint.folder
    name, _, commit = checkpoint.reference.rpartition("@")
    if folder.name == commit:  # a snapshot of the hub's cache
        from huggingface_hub import snapshot_download

        try:
            snapshot_download(name, revision=commit, allow_patterns=list(FILES_OF_CODE))
        except Exception as error:
            raise CheckpointError(f"{checkpoint.reference}: its code is not here ({describe_error(error)})") from error
        for path in folder.rglob("*"):
            blob = path.resolve().name
            if path.is_symlink() and DIGEST.fullmatch(blob) and compute_digest_like(blob, path) != blob:
                remove_blob(path)
                raise CheckpointError(f"{checkpoint.reference}: {path.name} is damaged and was removed; run again")
    named = {*find_code(folder)}.union(*(list_auto_classes(content) for _, content in read_descriptions(folder)))
    if foreign := sorted(item for item in named if "--" in item):
        remedy = "copy its files into a folder with this model, and take the name before -- out of auto_map"
        raise CheckpointError(f"{checkpoint.reference}: {foreign[0]} is code of another repository; {remedy}")
    names = list(list_names(folder))
    digest, own = sha256(), set(list_model_files(names))
    for file in sorted(name for name in names if name not in own and not name.endswith(".md") and name[0] != "."):
        digest.update(f"{file}\0{compute_content_sha256(refuse_special(folder / file))}\n".encode())
    log.warning("%s: runs its code (digest %s), as %s says", checkpoint.reference, digest.hexdigest()[:16], CONSENT)
    return digest.hexdigest()


def check_without_consent(checkpoint: Checkpoint) -> None:
    """Refuses a folder that would run, import or read anything else than the networks of installed libraries."""
    folder = checkpoint.folder
    if code := find_code(folder):
        raise ask_consent(checkpoint, f"its files name code ({', '.join(code)[:200]})")
    alone = SentenceModule("sentence_transformers.MLMTransformer", folder)
    for part in check_modules(folder) if (folder / MODULES_FILE).is_file() else [alone]:
        check_backbone(part)
    for part in (part for chain in list_chains(folder).values() for part in chain if part.name not in BACKBONES):
        path = part.folder / "config.json"
        described = part.name == "SparseStaticEmbedding" and path.is_file()
        if described and "path" in read_json(path, "static embedding", CheckpointError):
            raise CheckpointError(f"{path}: path names another file of weights; load it with --encoder splade")
        if part.folder.is_dir() and choose_weights(file.name for file in part.folder.iterdir()):
            read_weights(part.folder)  # refuses a pickle that runs code
        check_tokenizer(part.folder)


def check_backbone(part: SentenceModule) -> None:
    """Checks one network of transformers: its description, its weights, which must fit, and its tokenizer."""
    from sentence_transformers.base.modules.transformer import TRANSFORMER_TASK_TO_AUTO_MODEL

    from lexvl_anserini.encoders.parts.backbones import (
        BESIDE_HEAD,
        UNUSED_HEADS,
        complain_of_report,
        from_pretrained,
    )

    path = part.folder / "sentence_bert_config.json"
    description = read_json(path, "module", CheckpointError) if path.is_file() else {}
    if "tokenizer_name_or_path" in description:
        raise CheckpointError(f"{path}: names another tokenizer, which a checkpoint may not choose")
    for entry in (description.get("modality_config") or {}).values():
        if not isinstance(entry, Mapping) or entry.get("method") not in METHODS:
            raise CheckpointError(f"{path}: modality_config has {entry!r:.80}, expected a method of {METHODS}")
    config = part.folder / "config.json"
    if config.is_file() and (kernels := list_kernels(read_json(config, "model configuration", CheckpointError))):
        raise CheckpointError(f"{config}: attention by {kernels[0]!r:.80}, which a checkpoint may not choose")
    masked = part.name == "MLMTransformer"
    task = description.get("transformer_task", "fill-mask" if masked else "feature-extraction")
    auto = TRANSFORMER_TASK_TO_AUTO_MODEL.get(task)
    if auto is None:
        raise CheckpointError(f"{path}: transformer_task {task!r:.80}, expected fill-mask or feature-extraction")
    # The library would give random weights to what is missing.
    _, info = from_pretrained(auto, part.folder)
    missing = [key for key in info["missing_keys"] if "pooler." not in key]
    unused = BESIDE_HEAD if task == "fill-mask" else UNUSED_HEADS
    complain_of_report(str(part.folder), info, missing, unused)
    check_tokenizer(part.folder)


def list_kernels(config: Any) -> list[Any]:
    """The implementations of attention and experts, at any depth of a configuration, that are not transformers'."""
    kernels = []
    for key, value in config.items() if isinstance(config, Mapping) else ():
        kernels += [value] if key.endswith("_implementation") and value not in ATTENTION else list_kernels(value)
    return kernels


def check_tokenizer(folder: Path) -> None:
    """Reads the tokenizer of a folder that has one, which fails for one that is damaged or makes texts too long."""
    from lexvl_anserini.encoders.parts.tokens import load_tokenizer

    if has_tokenizer(folder):
        load_tokenizer(folder)
