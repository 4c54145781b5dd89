"""Commits whose outcome is known, and the error that a client is sent when the store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from bmq.core.aio.backoff import Backoff
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Commit, Compare, KeyValue, KvError, KvUnavailable, KvUnknown, Write

SETTLE_ATTEMPTS = 8
"""Tries to find out a commit's outcome, about 6 s in all; clients give an admin call 30 to 60 s."""
SETTLE_S = Backoff(0.05, 2.0)

T = TypeVar("T")


class Settled(NamedTuple):
    """The outcome of a commit.

    ``may_be_ours``: an earlier try had an unknown outcome.  If the earlier try succeeded, this try is refused.
    """

    commit: Commit
    may_be_ours: bool


async def commit_settled(kv: KeyValue, compares: Sequence[Compare], writes: Sequence[Write]) -> Settled:
    """Commit, and after KvUnknown commit again with the same compares until the outcome is known (head of ``meta.kv``).

    Raises KvUnavailable if certainly nothing was written, KvUnknown if the store does not answer in all
    ``SETTLE_ATTEMPTS``.
    """
    return Settled(*await settle(lambda: kv.commit(compares, writes)))


async def settle(call: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
    """Call ``call``, one compared commit, as ``commit_settled`` commits.  Raises KvError as ``commit_settled`` does.

    Returns the result, and whether an earlier call had an unknown outcome.
    """
    doubt: KvUnknown | None = None
    for attempt in range(1, SETTLE_ATTEMPTS + 1):
        try:
            return await call(), doubt is not None
        except KvUnknown as error:
            doubt = error
        except KvUnavailable:
            if doubt is None:
                raise
        await asyncio.sleep(SETTLE_S.pause(attempt))
    assert doubt is not None, "every try failed, the first one with an unknown outcome"
    raise doubt


def refused(error: KvError) -> RequestError:
    """Return the error that a client is sent for a failure of the store.

    It is retriable, and says whether the change may have been done.
    """
    if isinstance(error, KvUnknown):
        text = "the metadata store does not answer: whether this was done is not known, check before doing it again"
    else:
        text = "the metadata store cannot be reached: nothing was done"
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{text} ({error})")
