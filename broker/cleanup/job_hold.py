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
    ``is_settled``: the drafts of former owners are settled for the round.
    ``swapping``: the end offset of the group whose swap began last, with its bytes before and after; None once they are
    counted.  A swap whose request fails may take effect all the same.
    """

    job: str
    until_ms: int
    bytes_before: int | None = None
    bytes_after: int | None = None
    has_rights: bool = False
    is_settled: bool = False
    swapping: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """Count the bytes of a new round."""
        self.bytes_before = self.bytes_after = 0
        self.swapping = None

    def count(self, end_offset: int) -> tuple[int, int]:
        """Count a group that was swapped, unless it is counted; return the bytes before and after that were added."""
        if self.swapping is None or self.swapping[0] != end_offset:
            return 0, 0
        _, bytes_before, bytes_after = self.swapping
        self.swapping = None
        if self.bytes_before is not None and self.bytes_after is not None:
            self.bytes_before += bytes_before
            self.bytes_after += bytes_after
        return bytes_before, bytes_after
