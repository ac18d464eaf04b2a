"""Checkpoints: a folder, a weight file, a packaged model or a hub id -> files on disk and their digest.

The names of a folder's files say which belong to a model: weights, configuration, tokenizer. The cache of the hub:

    CACHE/models--owner--name/blobs/DIGEST            a file, by the digest that the listing gives
    CACHE/models--owner--name/snapshots/COMMIT/NAME   a link to it
    CACHE/models--owner--name/refs/REVISION           the commit that the name of a revision meant last

`huggingface_hub.snapshot_download` downloads; names come from the listing, and every file is compared with its digest.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from glob import escape
from hashlib import file_digest, sha1, sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, MissingExtra, describe_error, refuse_pointer
from lexvl_anserini.ground.files import atomic_write, compute_sha256, disk_errors, exclusive, read_json
from lexvl_anserini.ground.machine import expand_path, find_package
from lexvl_anserini.ground.manifest import PLACES

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# A branch, a tag or a commit; also a part of a path.
REVISION = re.compile(r"(?!.*(\.\.|//))\w[\w.+/-]*(?<![/.])")
MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
# By the length of a digest: the hub gives git's SHA-1 of a small file and the SHA-256 of a large one.
KINDS = {40: "git SHA-1", 64: "SHA-256"}
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Bytes of one part of a name, and of a name, that every file system and cache folder has room for.
LONGEST_PART, LONGEST_NAME = 255, 1000

SAFE_SUFFIX = ".safetensors"
SAFE_WEIGHTS = f"*{SAFE_SUFFIX}"
TORCH_WEIGHTS = "pytorch_model*.bin"
# The weights that naver's SPLADE trainer writes into the folder `model/` of a run.
NAVER_WEIGHTS = "model.tar"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".cp", ".tar")
WEIGHT_SUFFIXES = (SAFE_SUFFIX, *TORCH_SUFFIXES)

# Files of trainers beside the weights of a model.
LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*|random_states.*)\.\w+")

# LAVIS' description of the text encoder, which its package has, and maybe the folder of the weights.
TEXT_DESCRIPTIONS = "*med_config*.json"
# The prompt of a model that reads images and texts together. It counts only beside such a model's processor: other
# encoders do not read it.
CHAT_TEMPLATE, PROCESSOR = "chat_template.jinja", "processor_config.json"
# Sparse heads beside the weights of a network: BGE-M3's, and UEmbed's with the number of its tokens of end.
SPARSE_HEADS = frozenset({"sparse_linear.pt", "sparse_weights.pt", "sparse_info.json"})
# Files that count beside a weight file that the user names.
CONFIGURATIONS = ("config.json", "config.yaml", TEXT_DESCRIPTIONS)

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")

# Configurations and tokenizers, as transformers, sentence-transformers and our trainers name them. Whatever else lies
# beside a model is a note of somebody: it is not loaded, not digested and not published.
SMALL_FILES = frozenset(
    (
        *(*TOKENIZER_FILES, "tokenizer.model", "spm.model", "sentencepiece.model", "bpe.codes", "merges.txt"),
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "bpe_simple_vocab_16e6.txt"),
        *("config.json", "config.yaml", "generation_config.json", "adapter_config.json", "open_clip_config.json"),
        *("preprocessor_config.json", "video_preprocessor_config.json", PROCESSOR, "chat_template.json"),
        *("model.safetensors.index.json", "pytorch_model.bin.index.json", "modules.json", "router_config.json"),
        *("config_sentence_transformers.json", "data_config.json", "idf.json", "query_token_weights.txt"),
        *(f"sentence_{kind}_config.json" for kind in ("albert", "bert", "camembert", "distilbert", "roberta")),
        *(f"sentence_{kind}_config.json" for kind in ("xlm-roberta", "xlnet")),
        *(f"{kind}_config.json" for kind in ("cnn", "lstm", "wordembedding", "whitespacetokenizer", "phrasetokenizer")),
        *("lexvl.json", "training.json", "terms.txt", "classes.json", "export.json"),
    )
)


def has_tokenizer(folder: Path) -> bool:
    """True if a folder holds the files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def is_shard_name(name: str) -> bool:
    """True for the names of weights that transformers saves, in one file or in several."""
    return any(PurePosixPath(name).match(pattern) for pattern in (SAFE_WEIGHTS, TORCH_WEIGHTS))


def choose_weights(names: Iterable[str]) -> list[str]:
    """A folder's weight files, sorted: safetensors, else `pytorch_model*.bin`, else torch files but trainers'."""
    paths = [path for path in sorted(map(PurePosixPath, names), key=str) if not path.name.startswith(".")]
    kinds = (
        [path for path in paths if path.suffix.lower() == SAFE_SUFFIX],
        [path for path in paths if path.match(TORCH_WEIGHTS)],
        [path for path in paths if path.suffix.lower() in TORCH_SUFFIXES and not LEFTOVERS.fullmatch(path.name)],
    )
    return [str(path) for path in next(filter(None, kinds), [])]


def list_model_files(names: Iterable[str], weights: bool = True, older: bool = False) -> list[str]:
    """The files of a folder that a model is loaded from, sorted; `older`: with its notes, as 0.3.0 and before had it.

    In subfolders only weights of the usual names count.
    """
    paths = [path for path in map(PurePosixPath, sorted(set(names))) if not re.search(r"/\.(?!\./)", f"/{path}")]
    small = {str(path) for path in paths if path.name in SMALL_FILES or path.match(TEXT_DESCRIPTIONS)}
    small |= {str(path) for path in paths if older and path.suffix in (".json", ".yaml", ".txt", ".model")}
    large = SPARSE_HEADS & {str(path) for path in paths if weights and not older}
    small |= {CHAT_TEMPLATE} & {str(path) for path in paths if PROCESSOR in small or "sparse_info.json" in large}
    for folder in {path.parent for path in paths} if weights else ():
        for name in choose_weights(str(path) for path in paths if path.parent == folder):
            if folder == PurePosixPath() or is_shard_name(name) or PurePosixPath(name).name == NAVER_WEIGHTS:
                large |= {name}
    return sorted(small | large)


def resolve_inside(folder: Path, name: str, where: str) -> Path:
    """The path of a file or folder of a checkpoint that another of its files, `where`, names."""
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise CheckpointError(f"{where}: names {name!r:.80}, expected a name inside {folder}")
    return refuse_special(folder / name)


def refuse_special(path: Path) -> Path:
    """Returns the path of a file, a folder or nothing; refuses a pipe and a device."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckpointError(f"{path}: neither a file nor a folder; a pipe or a device may have no end")
    return path


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    reference: str  # as the user named it; of a hub id with its revision (`id@sha`), of a folder the absolute path
    folder: Path
    weights: bool = True  # False if only the configuration or the tokenizer is used
    file: Path | None = None  # the weight file, if the user named one instead of a folder

    @property
    def path(self) -> Path:
        """The path for `read_weights`: the weight file that the user named, else the folder."""
        return self.file or self.folder

    def digest(self, older: bool = False) -> str:
        """SHA-256 (hex) of names and contents of the files that vectors depend on; `older` as in `list_model_files`."""
        if self.file is None:
            names = list_model_files(list_names(self.folder), self.weights, older)
        else:
            beside = (path for pattern in CONFIGURATIONS for path in sorted(self.folder.glob(pattern)))
            names = [*(path.name for path in beside if path.is_file()), self.file.name]
        digest = sha256()
        for name in names:
            digest.update(f"{name}\0{compute_content_sha256(self.folder / name)}\n".encode())
        return digest.hexdigest()

    def config(self) -> dict[str, Any]:
        """The folder's config.json, else its config.yaml."""
        yaml_file = self.folder / "config.yaml"
        if not (self.folder / "config.json").is_file() and yaml_file.is_file():
            return read_yaml(yaml_file)
        return read_json(self.folder / "config.json", "model configuration", CheckpointError)


def read_yaml(path: Path) -> dict[str, Any]:
    """A checkpoint's YAML file."""
    from lexvl_anserini.data.yaml_files import read_mapping  # it imports pydantic

    return read_mapping(path, CheckpointError)


def find_checkpoint(reference: str, weights: bool = True) -> Checkpoint:
    """A packaged name (`minilm`), a local folder, a weight file, or a hub id with an optional `@revision`."""
    if reference in PACKAGED:
        packaged = PACKAGED[reference]
        folder = find_package(packaged.module)
        if folder is None:
            raise MissingExtra(f"the checkpoint {reference!r}", packaged.extra)
        return Checkpoint(reference, folder / packaged.folder, weights)
    path = expand_path(reference)
    if path.is_dir():
        for file in list_model_files(list_names(path), weights):
            refuse_pointer(refuse_special(path / file), error=CheckpointError)
        return Checkpoint(str(path.resolve()), path, weights)
    if path.exists():
        # A checkpoint by itself (Lightning, LAVIS, FDT); without `weights`, any file.
        if weights and path.suffix.lower() not in WEIGHT_SUFFIXES:
            known = ", ".join(f"*{suffix}" for suffix in WEIGHT_SUFFIXES)
            raise CheckpointError(f"{path}: not a weight file ({known}); name it, or the folder that holds it")
        refuse_pointer(path, error=CheckpointError)
        described = weights and (path.parent / "config.json").is_file()
        if described and any(is_shard_name(file.name) for file in path.parent.iterdir()):
            raise CheckpointError(f"{path}: a file; name the folder that holds config.json and the weights")
        return Checkpoint(str(path.resolve()), path.parent, weights, path)
    name, at, revision = reference.partition("@")
    if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
        raise CheckpointError(f"{reference}: no such folder, and not a hub id either (owner/name, owner/name@revision)")
    # Only a few old models of the hub have no owner, and none has a name like these.
    if "/" not in name and (near := get_close_matches(name, PACKAGED, n=1, cutoff=0.75)):
        what = f"{reference}: no such folder and no packaged checkpoint"
        raise CheckpointError(f"{what}; did you mean {near[0]!r}? A model of the hub is owner/name")
    return _find_on_hub(name, revision or None, weights)


def find_parts(options: Mapping[str, Any]) -> dict[str, Checkpoint]:
    """The checkpoints that an encoder is loaded from besides its own, by the options that name them."""
    return {key: find_checkpoint(options[key], key.endswith("_checkpoint")) for key in PLACES if options.get(key)}


def combine_digests(checkpoint: Checkpoint | None, others: Mapping[str, Checkpoint], older: bool = False) -> str | None:
    """The digest of everything that an encoder was loaded from; None if it was loaded from no file."""
    digests = [part.digest(older) for part in (checkpoint, *others.values()) if part is not None]
    return digests[0] if len(digests) == 1 else sha256("\n".join(digests).encode()).hexdigest() if digests else None


def list_names(folder: Path) -> Iterator[str]:
    """The names of all that a folder and its subfolders have, relative to it, but folders and dangling links."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.exists() and not path.is_dir())


def compute_content_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes; a process reads a file that does not change once."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    return compute_sha256(path)


class HubFile(NamedTuple):
    """A file in the hub's listing, and the digest of its bytes (see `KINDS`)."""

    name: str
    digest: str


class Listing(NamedTuple):
    """The files of a model that are wanted, at one commit."""

    commit: str
    files: list[HubFile]


def _find_on_hub(name: str, revision: str | None, weights: bool) -> Checkpoint:
    """Downloads a model from the hub, or takes it from the local cache, and notes the revision; checks every digest."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{name}@{revision}" if revision else name
    remedy = f"download {name} where the hub can be reached and pass its folder"
    listing, folder = None, None
    try:
        listing = _read_listing(name, revision, weights)
        folder = _download(name, revision, listing, weights)
    except LexvlError:
        raise
    except GatedRepoError as error:
        terms = "accept its terms there and set HF_TOKEN"
        raise CheckpointError(f"{where}: gated on the hub; {terms}, or {remedy}") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        what = "not on the hub (private models need HF_TOKEN), and no such folder here"
        raise CheckpointError(f"{where}: {what}") from error
    except Exception as error:  # any error of the HTTP stack
        reason = describe_error(error)
        log.debug("hub: %s", error)
        folder = find_cached(name, revision)
        if listing is not None and not (folder and all((folder / file.name).is_file() for file in listing.files)):
            what = f"the download broke off ({reason}); run again to continue it, or {remedy}"
            raise CheckpointError(f"{where}: {what}") from error
        if folder is None or not list_model_files(list_names(folder), weights):
            what = f"cannot be had from the hub ({reason}) nor from its cache; {remedy}"
            raise CheckpointError(f"{where}: {what}") from error
        log.info("%s: the hub cannot be reached (%s); using its cache", where, reason)
    reference = f"{name}@{folder.name}"
    for file in list_model_files(list_names(folder), weights):
        blob = (folder / file).resolve()
        if (folder / file).is_symlink() and DIGEST.fullmatch(blob.name):
            _check_file(reference, folder, file, blob.name)
    return Checkpoint(reference, folder, weights)


def _read_listing(name: str, revision: str | None, weights: bool) -> Listing:
    """Asks the hub which files a model has, and which bytes."""
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    if not COMMIT.fullmatch(str(info.sha)):
        raise CheckpointError(f"{name}: the hub answers with commit {str(info.sha)!r:.80}, expected 40 hex digits")
    if COMMIT.fullmatch(revision or "") and info.sha != revision:
        raise CheckpointError(f"{name}@{revision}: the hub answers with another commit, {info.sha}; refused")
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    if odd := next((file for file in siblings if list_model_files([file], weights) and not is_safe_name(file)), None):
        raise CheckpointError(f"{name}: the hub lists the file {odd!r:.80}, no name inside a folder; refused")
    names = list_model_files(siblings, weights)
    if inner := next((file for file in names if any(map(set(names).__contains__, _folders(file)))), None):
        raise CheckpointError(f"{name}: the hub lists {inner!r:.80} inside of a file; refused")
    if not names:
        raise CheckpointError(f"{name}: the hub lists no file of a model (weights, configuration, tokenizer)")
    return Listing(str(info.sha), [read_hub_file(name, siblings[file]) for file in names])


def is_safe_name(name: Any) -> bool:
    """True for the name of a file in a folder or its subfolders, on any file system and in any git."""
    if not isinstance(name, str) or "\\" in name or not name.isprintable() or len(os.fsencode(name)) > LONGEST_NAME:
        return False
    parts = name.split("/")
    return not any(part.lower() in ("", ".", "..", ".git") or len(part.encode()) > LONGEST_PART for part in parts)


def _folders(name: str) -> list[str]:
    """The folders that a file is in: "a/b/c" is in "a" and "a/b"."""
    return [name[: place.start()] for place in re.finditer("/", name)]


def read_hub_file(model: str, sibling: Any) -> HubFile:
    """One file of the listing."""
    size, digest = (sibling.lfs.size, sibling.lfs.sha256) if sibling.lfs else (sibling.size, sibling.blob_id)
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        what = f"the hub's listing has no size and digest of {sibling.rfilename} to check its bytes by"
        raise CheckpointError(f"{model}: {what}; download it elsewhere and pass its folder")
    return HubFile(sibling.rfilename, digest)


def _get_storage(name: str) -> Path:
    """The folder of a model in the cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")


def _download(name: str, revision: str | None, listing: Listing, weights: bool) -> Path:
    """The folder of a model's snapshot in the cache, after downloading what it lacks."""
    from huggingface_hub import snapshot_download

    storage = _get_storage(name)
    snapshot = storage / "snapshots" / listing.commit
    with disk_errors(storage), exclusive(storage / "blobs", wait=True):
        remove_others(snapshot, {file.name for file in listing.files}, weights)
        if not all((snapshot / file.name).is_file() for file in listing.files):
            patterns = [escape(file.name) for file in listing.files]
            snapshot_download(name, revision=listing.commit, allow_patterns=patterns)
        for file in listing.files:
            _check_file(f"{name}@{listing.commit}", snapshot, file.name, file.digest)
        reference = storage / "refs" / (revision or MAIN)
        if revision != listing.commit and not (reference.is_file() and reference.read_text() == listing.commit):
            with atomic_write(reference) as out:
                out.write(listing.commit.encode())
    return snapshot


def _check_file(reference: str, snapshot: Path, name: str, expected: str) -> None:
    """Compares a file of a snapshot with its digest; removes a damaged file."""
    digest = compute_digest_like(expected, snapshot / name)
    if digest != expected:
        remove_blob(snapshot / name)
        digests = f"{KINDS[len(expected)]} {digest[:16]}, the hub says {expected[:16]}"
        raise CheckpointError(
            f"{reference}: {name} arrived damaged ({digests}) and was removed; run again to download it"
        )


def remove_blob(path: Path) -> None:
    """Removes a file of a snapshot, with the blob of the cache that it links to."""
    blob = path.resolve()
    path.unlink()
    if DIGEST.fullmatch(blob.name) and blob.parent.name == "blobs":
        blob.unlink(missing_ok=True)


def remove_others(snapshot: Path, listed: Collection[str], weights: bool) -> None:
    """Removes links that the listing does not have, as another server's listing of the same commit leaves them.

    Weights in another form than the listed ones are other programs'.
    """
    folders = {folder for name in listed for folder in _folders(name)}
    paths = sorted(snapshot.rglob("*"), reverse=True)
    names = {path.relative_to(snapshot).as_posix() for path in paths if path.is_symlink() or path.is_file()}
    blocking = {name for name in names if name in folders or any(map(listed.__contains__, _folders(name)))}
    for name in (blocking | set(list_model_files(names.union(listed), weights))) & names - set(listed):
        if not (snapshot / name).is_symlink():
            raise CheckpointError(f"{snapshot / name}: not in the hub's listing of this model; move the file away")
        (snapshot / name).unlink()
    for path in paths:  # what is in a folder comes before it
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def find_cached(name: str, revision: str | None) -> Path | None:
    """The snapshot of a revision in the cache, without the hub; None if there is none."""
    storage, commit = _get_storage(name), revision or ""
    if not COMMIT.fullmatch(commit):
        reference = storage / "refs" / (revision or MAIN)
        commit = reference.read_text(errors="replace").strip() if reference.is_file() else ""
    snapshot = storage / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def compute_digest_like(digest: str, path: Path) -> str:
    """The digest of a file, of the kind of another digest; git's SHA-1 counts the file's size too."""
    if len(digest) != len(sha1().hexdigest()):
        return compute_content_sha256(path)
    header = sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as source:
        return file_digest(source, lambda: header).hexdigest()
