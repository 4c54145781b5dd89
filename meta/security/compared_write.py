"""One compared write of a record, with a known outcome: for records that any proxy may write."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bmq.core.aio.backoff import Backoff
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, KvUnavailable, KvUnknown, Put

ATTEMPTS = 8
"""Tries to find out the outcome, about 6 s in all."""
PAUSE_S = Backoff(0.05, 2.0)


class Written(NamedTuple):
    """The outcome of a write.  A view that shows `revision` shows it, or the write of another that was first."""

    is_done: bool
    revision: int


async def write_compared(kv: KeyValue, key: str, value: bytes | None, revision: int) -> Written:
    """Write `value` if the key is still at `revision`; None deletes it.

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


def _refused(error: KvError) -> RequestError:
    if isinstance(error, KvUnknown):
        text = "the metadata store does not answer: whether this was done is not known, check before doing it again"
    else:
        text = "the metadata store cannot be reached: nothing was done"
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{text} ({error})")
