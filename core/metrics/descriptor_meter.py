"""Shortage of file descriptors: found by a try each second, and logged when it begins and when it ends.

The loop does not report it: uvloop accepts the connections that come then and closes them at once, without a callback.
Calls that fail because of it raise errors that name storage or a member, not this process.

    enough ──(a try failed, here or elsewhere)──> short ──(none failed for ``QUIET_S``)──> enough
            ``BEGUN``                                    ``Over``
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from bmq.core.descriptors import FAILURES, DescriptorFailures
from bmq.core.logging.fields import fields

TRY_S = 1.0
"""Seconds between tries.  A try opens and closes a socket, which takes 5 us."""
QUIET_S = 5.0
"""Seconds without a failed try that end a shortage: descriptors come and go, and it is one shortage."""
_FOLDER = "/dev/fd"
"""A folder with an entry for each open descriptor of the process that lists it (Linux, macOS)."""
_log = logging.getLogger(__name__)


class Begun(Enum):
    """The beginning of a shortage."""

    BEGUN = "begun"


class Over(NamedTuple):
    """The end of a shortage: how long it took, and how many tries failed in it."""

    lasted_s: float
    failures: int


class DescriptorShortage:
    """The state machine of the module's drawing.  Pure: ``now`` is in seconds, and never goes back."""

    def __init__(self) -> None:
        self._is_short = False
        self._since = self._failed_at = 0.0
        self._failures = 0

    def tried(self, failures: int, now: float) -> Begun | Over | None:
        """Count the tries that failed since the last call.  Return the change, if there is one."""
        if failures:
            self._failed_at = now
            self._failures += failures
            if self._is_short:
                return None
            self._is_short, self._since, self._failures = True, now, failures
            return Begun.BEGUN
        if not self._is_short or now - self._failed_at < QUIET_S:
            return None
        self._is_short = False
        return Over(now - self._since, self._failures)


class DescriptorMeter:
    """A meter that tries between ``start`` and ``stop``, on the running loop.

    ``is_out`` is the result of the last try, ``failures`` the total of this process
    (``core.descriptors.DescriptorFailures``).
    """

    def __init__(self, failures: DescriptorFailures = FAILURES, open_one: Callable[[], None] | None = None) -> None:
        """``open_one`` raises OSError if no descriptor is left."""
        self.is_out = False
        self._failures = failures
        self._open_one = open_one or _open_one
        self._seen = failures.total
        self._shortage = DescriptorShortage()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<DescriptorMeter is_out={self.is_out} failures={self.failures}>"

    @property
    def failures(self) -> int:
        return self._failures.total

    def start(self) -> None:
        """Begin to try, once in ``TRY_S`` seconds."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TRY_S, self._try, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _try(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TRY_S, self._try, loop)
        try:
            self._open_one()
            self.is_out = False
        except OSError as error:
            self.is_out = self._failures.note(error)
            if not self.is_out:
                raise
        total = self._failures.total
        failures, self._seen = total - self._seen, total
        match self._shortage.tried(failures, loop.time()):
            case Begun.BEGUN:
                _log.error(
                    "no file descriptor is left of %d: new connections are closed as they come, files and other"
                    " processes cannot be opened or reached; raise LimitNOFILE (ulimit -n), or lower max.connections"
                    " and open_pipelines_max",
                    _limit(),
                    extra=fields(error=self._failures.last),
                )
            case Over(lasted_s, failed):
                _log.info(
                    "file descriptors are left again after %.0f s, %s of %d are open: %d files or connections were"
                    " not opened, besides connections that were closed as they came",
                    lasted_s,
                    _open_count(),
                    _limit(),
                    failed,
                )


def _open_one() -> None:
    socket.socket(socket.AF_UNIX).close()


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open_count() -> str:
    """Return the number of open descriptors, "some" if it is not available (listing takes a descriptor, too)."""
    try:
        return str(len(os.listdir(_FOLDER)) - 1)
    except OSError:
        return "some"
