"""One compared write of a record, with a known outcome, and the wait for it: for records that any proxy may write."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bmq.core.aio.backoff import Backoff
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, KvUnavailable, KvUnknown, Put
from bmq.meta.prefix_watch import PrefixWatcher

ATTEMPTS = 8
"""Tries to find out the outcome, about 6 s in all."""
PAUSE_S = Backoff(0.05, 2.0)
VIEW_S = 10.0
"""Time that a writer waits until its process's view shows what it has written."""


class Written(NamedTuple):
    """The outcome of a write.  A view that shows ``revision`` shows it, or the write of another that was first."""

    is_done: bool
    revision: int


async def write_compared(kv: KeyValue, key: str, value: bytes | None, revision: int) -> Written:
    """Write ``value`` if the key is still at ``revision``; None deletes it.

    Raises RequestError REQUEST_TIMED_OUT, which clients retry, if the store does not answer; its text says whether the
    write may be done.
    """
    write = Delete(key) if value is None else Put(key, value)
    doubt: KvUnknown | None = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done = await kv.commit([Compare(key, revision)], [write])
        except KvUnknown as error:
            doubt = error
        except KvUnavailable as error:
            if doubt is None:
                raise _refused(error) from None
        except KvError as error:
            raise _refused(error) from None
        else:
            if done.succeeded:
                return Written(True, done.revision)
            found = done.current[key]
            is_there = (None if found is None else found.value) == value
            return Written(doubt is not None and is_there, done.revision)  # an earlier try may have done it
        await asyncio.sleep(PAUSE_S.pause(attempt))
    assert doubt is not None
    raise _refused(doubt)


async def wait_shown(view: PrefixWatcher, revision: int) -> None:
    """Wait until a view shows everything up to ``revision``.

    Raises RequestError REQUEST_TIMED_OUT if it does not for ``VIEW_S``, or is being closed.
    """
    try:
        async with asyncio.timeout(VIEW_S):
            await view.wait_revision(revision)
    except (TimeoutError, KvUnavailable) as error:
        text = "whether this is in force at every proxy is not known, look before doing it again"
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store does not answer: {text}") from error


def _refused(error: KvError) -> RequestError:
    if isinstance(error, KvUnknown):
        text = "the metadata store does not answer: whether this was done is not known, check before doing it again"
    else:
        text = "the metadata store cannot be reached: nothing was done"
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{text} ({error})")
