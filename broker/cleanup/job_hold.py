"""The hold of a job on a partition whose log it cleans: in the memory of the partition's owner only."""

from __future__ import annotations

from dataclasses import dataclass

HOLD_MS = 600_000
"""Time of a hold after each request of its job: a dead job stops local rounds no longer."""


@dataclass(slots=True, kw_only=True)
class JobHold:
    """A hold until ``until_ms`` of the monotonic clock: no round and no merge of this process begins there.

    ``bytes_before`` and ``bytes_after`` are of the sources and results of the groups that were swapped; None if an
    owner before may have swapped some.  ``has_rights``: this process may rename files out of the job's folder.
    """

    job: str
    until_ms: int
    bytes_before: int | None = None
    bytes_after: int | None = None
    has_rights: bool = False

    def begin(self) -> None:
        """Count the bytes of a new round."""
        self.bytes_before = self.bytes_after = 0

    def add(self, bytes_before: int, bytes_after: int) -> None:
        """Count a group that was swapped."""
        if self.bytes_before is not None and self.bytes_after is not None:
            self.bytes_before += bytes_before
            self.bytes_after += bytes_after
