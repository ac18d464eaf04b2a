"""Folders of sentence-transformers: what they ask its loader to import and to pass on, checked before it reads them.

`modules.json` and the files of its modules name Python classes and arguments of other loaders. The library imports the
classes of its own package without asking; this module permits those that models consist of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.encoders.checkpoints.find import refuse_special, resolve_inside
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import atomic_write, read_json, read_json_value, write_json

MODULES_FILE = "modules.json"
ABOUT_FILE = "config_sentence_transformers.json"
# The module after the network of a SPLADE folder.
POOLING_FOLDER = "1_SpladePooling"
ROUTER = "Router"
# Modules that are a model of transformers, in a folder of its own.
BACKBONES = ("Transformer", "MLMTransformer", "CLIPModel")
MODULES = (*BACKBONES, ROUTER, "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "StaticEmbedding")
SPARSE_MODULES = ("SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder")
OLDER_MODULES = ("WeightedLayerPooling", "CNN", "LSTM", "BoW", "WordEmbeddings", "WordWeights")

# Arguments of transformers that a folder may give; others choose code, files and kernels.
PASSED_ON = ("dtype", "torch_dtype", "add_pooling_layer", "do_lower_case", "max_length", "model_max_length")
ARGUMENTS = re.compile(r"(model|tokenizer|processor|config)_(args|kwargs)")
# Modules whose description names a class: of an activation, of a tokenizer for word vectors.
CLASSES = {
    "Dense": ("activation_function", re.compile(r"torch\.nn\.modules\.(activation|linear)\.\w+")),
    "WordEmbeddings": (
        "tokenizer_class",
        re.compile(r"sentence_transformers\.[\w.]+\.(Whitespace|Word|Phrase)Tokenizer"),
    ),
}


class SentenceModule(NamedTuple):
    """A module of a folder: its class's dotted name, and its files."""

    kind: str
    folder: Path

    @property
    def name(self) -> str:
        """The name of its class, which is the same in 5.x and 6.x."""
        return get_class_name(self.kind)


def read_modules(folder: Path) -> list[SentenceModule]:
    """The modules of `modules.json`, in order."""
    path = folder / "modules.json"
    modules = read_json_value(path, "list of modules", list, CheckpointError)
    if not all(isinstance(m, dict) and type(m.get("type")) is type(m.get("path")) is str for m in modules):
        raise CheckpointError(f"{path}: not a list of modules with type and path")
    return [SentenceModule(m["type"], resolve_inside(folder, m["path"], str(path))) for m in modules]


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says of its model, such as its kind and its prompts; empty without such a file."""
    path = folder / ABOUT_FILE
    return read_json(path, "model description", CheckpointError) if path.is_file() else {}


def get_class_name(path: str) -> str:
    """The last part of a dotted class path."""
    return path.rsplit(".", 1)[-1]


def check_modules(folder: Path) -> Iterator[SentenceModule]:
    """Checks all that a folder asks sentence-transformers for; returns its models of transformers."""
    for path in folder.rglob("*"):
        refuse_special(path)
    parts = read_modules(folder)
    check_types([part.kind for part in parts], folder / MODULES_FILE)
    for part in parts:
        yield from check_part(part)


def check_part(part: SentenceModule) -> Iterator[SentenceModule]:
    """Checks one module, and the modules of a router; returns the models of transformers among them."""
    if part.name in BACKBONES:
        for path in sorted(part.folder.glob("sentence_*_config.json")):
            check_arguments(read_json(path, "module", CheckpointError), path)
        yield part
        return
    # A router's older description has the other name.
    for path in filter(Path.is_file, (part.folder / name for name in ("config.json", "router_config.json"))):
        description = read_json(path, "module", CheckpointError)
        key, pattern = CLASSES.get(part.name, ("", re.compile("")))
        if key in description and not (isinstance(description[key], str) and pattern.fullmatch(description[key])):
            raise CheckpointError(f"{path}: {key} {description[key]!r:.80} is not a class that {part.name} uses")
        types = description.get("types") if part.name == ROUTER else None
        if types and not isinstance(types, Mapping):
            raise CheckpointError(f"{path}: types is not a mapping of folders to classes")
        check_types((types or {}).values(), path)
        for name, kind in (types or {}).items():
            yield from check_part(SentenceModule(kind, resolve_inside(part.folder, name, str(path))))


def check_types(types: Iterable[Any], path: Path) -> None:
    """Checks the classes of modules."""
    for kind in types:
        in_package = isinstance(kind, str) and re.fullmatch(r"sentence_transformers(\.\w+)+", kind)
        if not in_package or get_class_name(kind) not in (*MODULES, *OLDER_MODULES, *SPARSE_MODULES):
            known = f"one of sentence_transformers ({', '.join(MODULES)})"
            raise CheckpointError(f"{path}: a module {kind!r:.80}, expected {known}; code of a checkpoint is never run")


def check_arguments(description: Mapping[str, Any], path: Path) -> None:
    """Checks what a module passes on to transformers."""
    for key, value in description.items():
        if not ARGUMENTS.fullmatch(key) or not value:
            continue
        unknown = sorted(value.keys() - set(PASSED_ON)) if isinstance(value, Mapping) else [str(value)]
        if unknown:
            raise CheckpointError(f"{path}: {key} asks for {unknown[0]!r:.80}, which a checkpoint may not choose")


def write_modules(types: Mapping[str, str], folder: Path) -> None:
    """`modules.json` from the class of each module by its path."""
    import orjson

    modules = enumerate(types.items())
    listed = [{"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in modules]
    with atomic_write(folder / MODULES_FILE) as out:
        out.write(orjson.dumps(listed, option=orjson.OPT_INDENT_2))


def write_sparse_encoder(folder: Path, topk: int | None) -> None:
    """The description of a SparseEncoder that keeps `topk` dimensions; None keeps all."""
    description: dict[str, Any] = {"model_type": "SparseEncoder", "similarity_fn_name": "dot", "prompts": {}}
    write_json(folder / ABOUT_FILE, {**description, "max_active_dims": topk})


def write_splade_pooling(folder: Path, size: int, strategy: str = "max") -> None:
    """The description of a pooling of log(1 + relu(logit)) over `size` dimensions, in a new folder."""
    folder.mkdir()
    description = {"pooling_strategy": strategy, "activation_function": "relu", "word_embedding_dimension": size}
    write_json(folder / "config.json", description)


def write_limits(folder: Path, max_length: int) -> None:
    """How many tokens a network reads."""
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
