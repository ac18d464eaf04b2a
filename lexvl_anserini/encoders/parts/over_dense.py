"""Heads over a dense pair, as training writes them for D2S and Joint: the folder names the pair and the terms.

config.json has `backbone` (`checkpoint`, a packaged name or a folder in the checkpoint itself, and `digest`) and
`terms`, the file with the terms that are dimensions.
"""

from __future__ import annotations

from typing import Any

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.filenames import inside
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.parts.pretrained import check_digest, named_backbone
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.vocabulary import Vocabulary


def over_dense(checkpoint: Checkpoint, **of_reference: Any) -> tuple[Checkpoint, Vocabulary] | None:
    """The dense pair of a checkpoint and its terms; None for a checkpoint of the reference.

    Args:
        checkpoint: of D2S or Joint.
        of_reference: options that only a checkpoint of the reference has; None where the user gave none.

    Raises:
        CheckpointError: another dense pair than the one that the head was trained over.
        UsageError: an option of the reference.
    """
    if checkpoint.file is not None or not (checkpoint.folder / "config.json").is_file():
        return None
    config = checkpoint.config()
    if "backbone" not in config:
        return None
    if given := [name for name, value in of_reference.items() if value is not None]:
        raise UsageError(f"{', '.join(given)}: {checkpoint.reference} names its own dense pair")
    name, digest = named_backbone(checkpoint, config)
    if name in PACKAGED:
        pair = find_checkpoint(name)
    else:
        folder = inside(checkpoint.folder, name, "config.json")
        pair = Checkpoint(str(folder), folder)
    check_digest(checkpoint, name, digest, pair.digest())
    path = inside(checkpoint.folder, str(config.get("terms")), f"{checkpoint.folder}/config.json")
    return pair, Vocabulary.read(path)
