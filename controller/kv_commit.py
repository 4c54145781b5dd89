"""A commit whose outcome is known, and what a client is told when the store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Commit, Compare, KeyValue, KvError, KvUnavailable, KvUnknown, Write, holds

SETTLE_ATTEMPTS = 8
"""Tries to learn what became of a commit, about 6 s in all; clients give an admin call 30 to 60 s."""
SETTLE_S = 0.05
SETTLE_MAX_S = 2.0
CONFLICTS_MAX = 20
"""How often a change is decided anew because somebody else wrote first."""

Guard = Callable[[], Sequence[Compare]]
"""What each commit compares besides its own keys, asked just before: the election key, for a leader.  NOT_CONTROLLER
when there is nothing to compare because this process does not lead."""


def unguarded() -> Sequence[Compare]:
    """With one process there is nobody to be fenced from."""
    return ()


class Settled(NamedTuple):
    """``may_be_ours``: an earlier try had an unknown outcome, so a refusal may be by this very commit, done then."""

    commit: Commit
    may_be_ours: bool


async def commit_settled(kv: KeyValue, compares: Sequence[Compare], writes: Sequence[Write]) -> Settled:
    """Commit; after KvUnknown again, with the same compares, until the outcome is known (head of ``meta.kv``).

    KvUnavailable when certainly nothing was done; KvUnknown when the store stays silent.
    """
    doubt: KvUnknown | None = None
    for attempt in range(SETTLE_ATTEMPTS):
        try:
            return Settled(await kv.commit(compares, writes), doubt is not None)
        except KvUnknown as error:
            doubt = error
        except KvUnavailable:
            if doubt is None:
                raise
        await asyncio.sleep(min(SETTLE_S * 2**attempt, SETTLE_MAX_S))
    assert doubt is not None, "every try failed, the first one with an unknown outcome"
    raise doubt


def is_deposed(guard: Sequence[Compare], commit: Commit) -> bool:
    """Whether it was refused because somebody else leads."""
    return not commit.succeeded and not all(holds(compare, commit.current[compare.key]) for compare in guard)


def deposed() -> RequestError:
    return RequestError(ErrorCode.NOT_CONTROLLER, "this process does not lead any more: nothing was done")


def refused(error: KvError) -> RequestError:
    """The store's failure as a client is told it: retriable, and clear about whether anything may have been done."""
    if isinstance(error, KvUnknown):
        text = "the metadata store does not answer: whether this was done is not known, look before doing it again"
    else:
        text = "the metadata store cannot be reached: nothing was done"
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{text} ({error})")


def contested(what: str) -> RequestError:
    return RequestError(
        ErrorCode.REQUEST_TIMED_OUT, f"{what} is being changed by others all the time: nothing was done"
    )
