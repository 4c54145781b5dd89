"""A leader's commits: their comparison of the election key, and the errors for changes that were overtaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Commit, Compare, holds

CONFLICTS_MAX = 20
"""Times that a change is decided again because another writer was first."""

Guard = Callable[[], Sequence[Compare]]
"""Called just before each commit.  Returns the comparisons that it must contain besides those of its own keys: of the
election key, for a leader.  Raises RequestError NOT_CONTROLLER if this process does not lead."""


def is_deposed(guard: Sequence[Compare], commit: Commit) -> bool:
    """Return whether the commit was refused because another process leads: a comparison of ``guard`` failed."""
    return not commit.succeeded and not all(holds(compare, commit.current[compare.key]) for compare in guard)


def deposed() -> RequestError:
    """Return the error for a change that was refused because another process leads."""
    return RequestError(ErrorCode.NOT_CONTROLLER, "this process does not lead any more: nothing was done")


def contested(what: str) -> RequestError:
    """Return the error for a change that other writers have overtaken ``CONFLICTS_MAX`` times."""
    return RequestError(
        ErrorCode.REQUEST_TIMED_OUT, f"{what} is being changed by others all the time: nothing was done, try again"
    )
