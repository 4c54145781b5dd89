"""One compared write of a record, with a known outcome, and the wait for it: for records that any proxy may write."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, KvUnavailable, Put
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.settled_commit import commit_settled, refused

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
    try:
        done, may_be_ours = await commit_settled(kv, [Compare(key, revision)], [write])
    except KvError as error:
        raise refused(error) from None
    if done.succeeded:
        return Written(True, done.revision)
    found = done.current[key]
    is_there = (None if found is None else found.value) == value
    return Written(may_be_ours and is_there, done.revision)  # an earlier try may have done it


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
