"""Group commit for partition records: reads and writes of many partitions share calls to the store.

A broker that takes thousands of partitions over, or opens as many segments, reads and writes a record for each.
Written alone, a record costs a sync of etcd's disks, and its call costs more processor time than the record.  So
requests that arrive while the allowed number of calls is under way go out together in the next call.  A call alone is
sent at once, as ``meta.ownership`` sends it.

The writes of a group stay independent, though the store does all of a commit or nothing.  If one's compare fails, the
answer shows the records of all: writes whose compare held go out again without those whose did not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import FormatError
from bmq.meta.kv import COMMIT_BYTES_MAX, Compare, Entry, KeyValue, KvError, Put
from bmq.meta.ownership import PartitionRecord, Stored, WriteRefused, decode, encode

GROUP_MAX = 64
"""Records of one call; half of ``COMMIT_OPERATIONS_MAX``, past which a response is late for its first record."""
GROUP_BYTES_MAX = COMMIT_BYTES_MAX // 2
"""Bytes of the keys and values of one call, a larger record alone excepted."""
GROUPS_IN_FLIGHT = 4
"""Calls under way at once, and as many of the other kind: with fewer a slow one holds up all partitions, with more the
groups are small."""
R = TypeVar("R")


class _Request(Generic[R]):
    """A read (``value`` is empty), or a write of ``value`` over ``revision``, and the future of its result."""

    __slots__ = ("future", "key", "revision", "value")

    def __init__(self, key: str, value: bytes, revision: int) -> None:
        self.key = key
        self.value = value
        self.revision = revision
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def size(self) -> int:
        return 2 * len(self.key.encode()) + len(self.value)

    def done(self, result: R) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


_Read = _Request[tuple[PartitionRecord, int]]
_Write = _Request[Stored | WriteRefused]


class _Line(Generic[R]):
    """The requests of one kind that wait, and the calls under way for it."""

    def __init__(self, call: Callable[[list[_Request[R]]], Coroutine[Any, Any, None]]) -> None:
        self._call = call
        self._waiting: deque[_Request[R]] = deque()
        self._tasks = OwnedTasks()
        self._is_armed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, request: _Request[R]) -> R:
        """Queue a request, and return its result."""
        self._waiting.append(request)
        self._arm()
        return await request.future

    def again(self, requests: Sequence[_Request[R]]) -> None:
        """Queue requests once more, before all that came later."""
        self._waiting.extendleft(reversed(requests))
        self._arm()

    async def close(self) -> None:
        """Cancel the calls under way, and what waits."""
        for request in self._waiting:
            request.future.cancel()
        self._waiting.clear()
        await self._tasks.close()

    def _arm(self) -> None:
        """Send in the next turn of the loop: until then others may come that go into the same group."""
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_armed = False
        while len(self._tasks) < GROUPS_IN_FLIGHT and (group := self._take()):
            task = self._tasks.start(self._perform(group), "partition records")
            task.add_done_callback(lambda _: self._arm() if self._waiting else None)

    async def _perform(self, group: list[_Request[R]]) -> None:
        try:
            await self._call(group)
        except asyncio.CancelledError:
            for request in group:
                request.future.cancel()
            raise
        except Exception as error:
            for request in group:
                request.failed(error)
            if not isinstance(error, KvError):
                raise

    def _take(self) -> list[_Request[R]]:
        """Take the next group, without requests whose caller is gone; a key is at most once in it."""
        group: list[_Request[R]] = []
        keys: set[str] = set()
        size = 0
        while self._waiting and len(group) < GROUP_MAX:
            request = self._waiting[0]
            if not request.future.done():
                if request.key in keys or (group and size + request.size > GROUP_BYTES_MAX):
                    break
                keys.add(request.key)
                size += request.size
                group.append(request)
            self._waiting.popleft()
        return group


class RecordGroups:
    """The reads and writes of partition records of one broker; ``close`` it when its partitions are closed."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self._reads: _Line[tuple[PartitionRecord, int]] = _Line(self._read)
        self._writes: _Line[Stored | WriteRefused] = _Line(self._write)

    def __repr__(self) -> str:
        return f"<RecordGroups reads={len(self._reads)} writes={len(self._writes)}>"

    async def read(self, key: str) -> tuple[PartitionRecord, int]:
        """Return what ``ownership.read`` returns, and raise what it raises: no answer is older than this call."""
        return await self._reads.ask(_Read(key, b"", 0))

    async def store(self, key: str, record: PartitionRecord, revision: int) -> Stored | WriteRefused:
        """Return what ``ownership.store`` returns, and raise what it raises."""
        return await self._writes.ask(_Write(key, encode(record), revision))

    async def close(self) -> None:
        """Cancel what is under way.  A write's outcome is then unknown, as after any cancelled call."""
        await self._reads.close()
        await self._writes.close()

    async def _read(self, group: list[_Read]) -> None:
        found: dict[str, Entry | None]
        if len(group) == 1:
            found = {group[0].key: await self._kv.get(group[0].key)}
        else:  # a commit without writes whose compares fail shows the keys; one whose hold shows that none exists
            found = dict((await self._kv.commit([Compare(request.key, 0) for request in group], [])).current)
        for request in group:
            entry = found.get(request.key)
            try:
                request.done((PartitionRecord(), 0) if entry is None else (decode(entry.value), entry.revision))
            except FormatError as error:
                request.failed(error)

    async def _write(self, group: list[_Write]) -> None:
        done = await self._kv.commit(
            [Compare(request.key, request.revision) for request in group],
            [Put(request.key, request.value) for request in group],
        )
        if done.succeeded:
            for request in group:
                request.done(Stored(done.revision))
            return
        innocent = []
        for request in group:
            found = done.current[request.key]
            if request.revision == (0 if found is None else found.revision):
                innocent.append(request)
            elif found is not None and found.value == request.value:
                request.done(Stored(found.revision))  # by an earlier commit, whose outcome was unknown
            else:
                _refuse(request, found)
        assert len(innocent) < len(group), "a commit is refused because a compare failed"
        self._writes.again(innocent)


def _refuse(request: _Write, found: Entry | None) -> None:
    if found is None:
        request.done(WriteRefused(PartitionRecord(), 0))
        return
    try:
        request.done(WriteRefused(decode(found.value), found.revision))
    except FormatError as error:
        request.failed(error)
