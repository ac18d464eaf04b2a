"""Which encoder is meant: by default for a corpus, by direction, or by the manifest of an artefact."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.records import Manifest
from lexvl_anserini.registry import ENCODERS, resolve

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# The encoder when none is named: of pictures, of texts.
DEFAULT_IMAGE_ENCODER = "vdr-crossmodal"
DEFAULT_ENCODER = "vdr"

# The checkpoint of an encoder on a corpus when none is named; elsewhere the loader's own default.
DEMO_CHECKPOINTS: Mapping[str, str] = {"vdr-crossmodal": "demo-vdr", "dense-crossmodal": "demo-dense", "vdr": "minilm"}
# Photos that the embedded models are tried on where none is named. They have seen drawings only, and are said to.
TRIED_ON = frozenset({"flickr8k"})


def default_encoder(corpus: str, direction: str, encoder: str | None = None) -> tuple[str, str | None]:
    """Encoder and checkpoint of a corpus where the user names none, or names only the encoder."""
    named = encoder or (DEFAULT_ENCODER if direction == "text-to-text" else DEFAULT_IMAGE_ENCODER)
    family = corpus.split("/")[0]
    embedded = family == "demo" or (family in TRIED_ON and direction != "text-to-text")
    return named, DEMO_CHECKPOINTS.get(named) if embedded else None


def natural_direction(encoder: str | None, direction: str | None) -> str | None:
    """An encoder that reads texts only asks a corpus of captioned images for its captions, unless told otherwise."""
    return direction or (None if encoder is None or direction_option(encoder, "any") else "text-to-text")


def direction_option(encoder: str, direction: str) -> dict[str, str]:
    """`{"direction": ...}` for encoders that have that option (one side reads images), else nothing."""
    takes = "direction" in inspect.signature(resolve("encoder", encoder, ENCODERS)).parameters
    return {"direction": direction} if takes else {}


def length_options(
    encoder: str, direction: str, max_length: int | None = None, query_max_length: int | None = None
) -> dict[str, int]:
    """The options by which an encoder is told the tokens it reads per document and per query.

    An encoder with one limit for all its texts has one option, which is meant by `max_length`; where texts only ask,
    by `query_max_length` too.

    Raises:
        UsageError: it has one limit, and the two lengths differ or documents were not meant.
    """
    told = {"max_length": max_length, "query_max_length": query_max_length}
    lengths = {key: length for key, length in told.items() if length is not None}
    takes = inspect.signature(resolve("encoder", encoder, ENCODERS)).parameters
    only = next((key for key in ("text_max_length", "max_length") if key in takes), None)
    if not lengths or only is None or "query_max_length" in takes:
        return lengths
    texts_only_ask = "direction" in takes and direction == "text-to-image"
    if len(set(lengths.values())) > 1 or (max_length is None and not texts_only_ask):
        raise UsageError(f"encoder {encoder!r} reads all texts to one length; give it by --max-length alone")
    return {only: next(iter(lengths.values()))}


def load_encoder_of(
    manifest: Manifest,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> Encoder:
    """Loads the encoder that made an artefact.

    Args:
        manifest: of shards or of an index.
        checkpoint: where the same checkpoint lies now, if it moved.
        tokenizer: the same for its tokenizer.
        device: auto, cpu, cuda, ...
        settings: options of the query side that replace those of the making, for example `query_topk`.

    Raises:
        ArtefactError: the checkpoint or its vocabulary is not the one that made the artefact.
    """
    from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
    from lexvl_anserini.encoders.loading import digest_of, load_encoder, other_parts

    about = manifest.encoder
    options = {**(about.get("options") or {}), **(settings or {})}
    tokenizer = tokenizer or options.pop("tokenizer", None)
    options.pop("tokenizer", None)
    backbone_config = options.pop("backbone_config", None)
    model = load_encoder(
        about["name"], checkpoint or about.get("checkpoint"), tokenizer, backbone_config, device, **options
    )
    found = model.checkpoint_digest
    if "backbone_checkpoint" in options and "backbone_checkpoint" not in (about.get("options") or {}):
        # Vectors were read from the corpus; now texts and pictures are to be encoded, by a part the index knows not.
        named = {"tokenizer": tokenizer, "backbone_config": backbone_config, **options, "backbone_checkpoint": None}
        found = digest_of(find_checkpoint(model.checkpoint) if model.checkpoint else None, other_parts(named))
    if found != about.get("checkpoint_digest"):
        raise ArtefactError(
            f"checkpoint {model.checkpoint} has digest {str(found)[:16]}, the index was made with "
            f"{str(about.get('checkpoint_digest'))[:16]}; name that checkpoint with --checkpoint or encode again"
        )
    vocabulary = manifest.vocabulary.get("digest")  # none where only the encoder is asked for, not its index
    if model.kind == "impact" and vocabulary and model.query.vocabulary.digest != vocabulary:
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {model.query.vocabulary.digest[:16]}, the index was made with "
            f"{vocabulary[:16]}; encode again or name the right checkpoint and tokenizer"
        )
    return model
