"""A folder as one commit of a repository of the hub, and the errors of the hub as one line.

huggingface_hub's own upload of a folder commits in several steps; here all large files are uploaded before the one
commit that names them and its parent: of two that push at once, one gets an error.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.checkpoints.find import list_names
from lexvl_anserini.ground.errors import LexvlError, UsageError, describe_error

log = logging.getLogger(__name__)
# What the hub itself puts into a new repository.
HUB_FILES = frozenset({".gitattributes"})
REMEDIES = {
    401: "the token is not valid; run `hf auth login`",
    403: "the token may not write there; make one that may, or name a model of your own",
    412: "someone else pushed meanwhile; push again",
}


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
