"""The policy for images that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import DataError, UsageError

ON_ERROR = ("fail", "skip")  # the policies for images that cannot be read, see `OnError`


# The reasons are data too: skipped.jsonl stores the texts of the errors below, so that their wording stays.
class Skipped(NamedTuple):
    """An image that could not be read: its position from 0, its reference, and what is wrong with it."""

    position: int
    reference: str
    reason: str


class UnreadableImage(DataError):
    """An image cannot be read, and the policy is to fail."""


@dataclass
class OnError:
    """The policy for images that cannot be read: "fail" raises at the first, "skip" lists them by their positions."""

    policy: str = "fail"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.policy not in ON_ERROR:
            raise UsageError(f"on_error {self.policy!r}: expected fail or skip")

    def fresh(self) -> OnError:
        """The same policy with an empty list, for one call: positions count from its first image."""
        return OnError(self.policy)

    def unreadable(self, position: int, reference: Any, problem: DataError) -> None:
        """Raises the problem, or lists the image."""
        if self.policy == "fail":
            raise UnreadableImage(str(problem)) from problem
        self.skipped.append(Skipped(position, str(reference), str(problem)))


FAIL = OnError("fail")  # the policy where none is given; all callers share it: it raises, and lists nothing
