"""`Encoder.push_to_hub`: a saved encoder becomes one commit of a model of the Hugging Face hub.

huggingface_hub's own upload of a folder commits in several steps; here all large files are uploaded before the one
commit that names them, so that a model on the hub is the older one or the new one. The commit names its parent: of two
that push at once, one gets an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lexvl_anserini.doors.sharing.model_card import ModelCardFacts
from lexvl_anserini.doors.sharing.saving import save_encoder
from lexvl_anserini.encoders.checkpoints.hub import names_in
from lexvl_anserini.encoders.checkpoints.saved import SAVED
from lexvl_anserini.ground.errors import LexvlError, UsageError, reason_of

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

# What the hub itself puts into a new model.
OF_THE_HUB = frozenset({".gitattributes"})


@dataclass(frozen=True)
class Upload:
    """Where an encoder is pushed; `Encoder.push_to_hub` explains the fields."""

    repo_id: str
    private: bool | None = None
    token: str | None = None
    message: str | None = None
    branch: str | None = None
    overwrite: bool = False


def push_encoder(model: Encoder, facts: ModelCardFacts, upload: Upload) -> str:
    """Saves an encoder in a temporary folder and commits it; returns the URL of the commit."""
    from huggingface_hub import get_token

    check_name(upload.repo_id)
    if not (upload.token or get_token()):
        raise LexvlError(
            f"{upload.repo_id}: no token of the hub; run `hf auth login`, set HF_TOKEN, or pass token=... (of a token "
            "that may write)"
        )
    with TemporaryDirectory(prefix="lexvl-push-") as home:
        folder = save_encoder(model, Path(home) / "model", facts)
        return push_folder(folder, upload)


def check_name(repo_id: str) -> None:
    """Raises UsageError if a name is not `owner/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(
            f"{repo_id!r:.80}: not a name on the hub (owner/name); {str(error).splitlines()[0]}"
        ) from error
    if "/" not in repo_id:
        raise UsageError(f"{repo_id!r}: lacks its owner; expected owner/name")


def push_folder(folder: Path, upload: Upload) -> str:
    """Commits the files of a folder that `save_encoder` wrote, in place of those that an earlier push wrote."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(token=upload.token)
    with hub_errors(upload.repo_id):
        api.create_repo(upload.repo_id, private=upload.private, exist_ok=True)
        about = api.model_info(upload.repo_id, revision=upload.branch)
        there = {sibling.rfilename for sibling in about.siblings or ()} - OF_THE_HUB
        if there and SAVED not in there and not upload.overwrite:
            raise LexvlError(
                f"{upload.repo_id}: holds {len(there)} files that push_to_hub did not write, such as {min(there)!r}; "
                "name another model, or replace them (overwrite=True)"
            )
        names = sorted(names_in(folder))
        operations: list[Any] = [CommitOperationAdd(name, folder / name) for name in names]
        operations += [CommitOperationDelete(name) for name in sorted(there - set(names))]
        done = api.create_commit(
            upload.repo_id,
            operations,
            commit_message=upload.message or "Add an encoder of lexvl-anserini",
            revision=upload.branch,
            parent_commit=about.sha,
        )
    log.info("%s: %d files committed", upload.repo_id, len(names))
    return str(done.commit_url)


@contextmanager
def hub_errors(repo_id: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into one line; nothing is committed when one occurs."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except LexvlError:
        raise
    except RevisionNotFoundError as error:
        raise LexvlError(f"{repo_id}: has no such branch; create it on the hub first") from error
    except RepositoryNotFoundError as error:
        raise LexvlError(
            f"{repo_id}: not found with this token; it is another owner's private model, or the token may not read it"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        remedies = {
            401: "the token is not valid; run `hf auth login`",
            403: "the token may not write there; make one that may, or name a model of your own",
            412: "someone else pushed meanwhile; push again",
        }
        why = remedies.get(status or 0) or reason_of(error)
        raise LexvlError(f"{repo_id}: the hub refuses ({status}): {why}; nothing was committed") from error
    except Exception as error:  # any error of the HTTP stack
        cause = error.__cause__ or error
        raise LexvlError(
            f"{repo_id}: the upload broke off ({reason_of(cause)}); nothing was committed, push again"
        ) from error
