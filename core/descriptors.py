"""File descriptors of this process: how many there may be, and what may use them.

A client connection takes one descriptor, and so does a segment open for writing (a socket to its first datanode, or a
file of a local folder).  Reads from storage, other processes, HTTP and the metadata store take the rest.  A process
that has none left cannot accept, read or even close properly, so the first two are bounded below the limit.
"""

from __future__ import annotations

import errno
import resource
import threading

LIMIT_MOST = 1 << 20
"""The limit assumed where the hard limit is unbounded."""
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers of a process, and of a machine, without a descriptor left."""


class DescriptorFailures:
    """The files and connections that could not be opened for want of a descriptor.  Any thread may use it."""

    def __init__(self) -> None:
        self.total = 0
        self.last = ""
        """The system's text of the last failure."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<DescriptorFailures {self.total} {self.last}>"

    def note(self, error: BaseException) -> bool:
        """Count ``error`` if its reason is that no descriptor was left.  Return whether it is."""
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_DESCRIPTORS:
            return False
        with self._lock:
            self.total += 1
            self.last = error.strerror or str(error)
        return True


FAILURES = DescriptorFailures()
"""This process's failures, noted where an error of opening something is translated."""


def raise_limit() -> int:
    """Raise the soft limit (1,024 with most shells and units) to the hard one.  Return the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MOST if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return LIMIT_MOST if soft == resource.RLIM_INFINITY else soft


def shares(limit: int) -> tuple[int, int]:
    """Return how many client connections and how many open segments ``limit`` descriptors allow.

    Half of them, and a quarter; a quarter is kept for everything else.
    """
    return max(1, limit // 2), max(1, limit // 4)
