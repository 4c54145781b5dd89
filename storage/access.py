"""The count of files that could not be given the owner or group which their topic asks for."""

from __future__ import annotations

import logging
import threading

from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)


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
