"""Owner, group and mode of files and folders, as an operator asks for them.  Pure, but for the count of refusals."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)

OWNER_BITS = 0o700
"""Bits that every mode has: the owner writes the files."""
_NOT_EXECUTABLE = 0o666


@dataclass(frozen=True, slots=True)
class Access:
    """Rights on a topic's files: empty, or None for the mode, leaves to storage what a new file gets.

    ``mode`` is a folder's: its files have it without x.  On HDFS a new file or folder has its parent's group, so
    ``group`` is given to folders there, and to files that have another one; on a local root each file gets it.
    """

    owner: str = ""
    group: str = ""
    mode: int | None = None

    @property
    def is_given(self) -> bool:
        """True if anything is asked for."""
        return self != NO_ACCESS

    def of_file(self) -> Access:
        """Return the same for a file: its mode has no x."""
        return self if self.mode is None else replace(self, mode=self.mode & _NOT_EXECUTABLE)

    def is_met(self, owner: str, group: str, mode: int) -> bool:
        """Return whether an entry of the namespace has all that is asked for."""
        return self.owner in ("", owner) and self.group in ("", group) and self.mode in (None, mode)

    def missing(self, owner: str, group: str, mode: int) -> Access:
        """Return that part of it which an entry of the namespace lacks: storage may refuse the rest for no reason."""
        return Access(
            owner="" if self.owner == owner else self.owner,
            group="" if self.group == group else self.group,
            mode=None if self.mode == mode else self.mode,
        )

    def __str__(self) -> str:
        mode = "as storage has it" if self.mode is None else f"{self.mode:o}"
        return f"owner {self.owner or 'as storage has it'}, group {self.group or 'as storage has it'}, mode {mode}"


NO_ACCESS = Access()


class AccessRefusals:
    """The files that were created and could not be given their owner or group.  Any thread may use it."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<AccessRefusals {self.total}>"

    def note(self, path: str, error: BaseException) -> None:
        """Count and log one.  The file goes on being written: a reader's right must not stop producers."""
        with self._lock:
            self.total += 1
        _log.warning(
            "a new file keeps its owner and group, since storage refused those of its topic: their users cannot read"
            " it; see storage.owner and storage.group",
            extra=fields(path=path, error=error),
        )


REFUSALS = AccessRefusals()
"""This process's refusals."""
