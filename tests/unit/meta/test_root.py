"""The record of the root that a cluster is served from: the first process writes it, the others read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from bmq.core.errors import FormatError
from bmq.meta.kv import Commit, Compare, Entry, KvUnknown, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.root import RootRecord, bind_root, decode_root, encode_root, read_root, root_key

FIRST, SECOND = RootRecord(root_id="r-1", url="hdfs://nn/a"), RootRecord(root_id="r-2", url="hdfs://nn/b")


class FaultyCommit(MemoryKeyValue):
    """A client whose faults end with its first commit."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        try:
            return await super().commit(compares, writes)
        finally:
            self.faults = KvFaults()


async def test_the_first_process_writes_the_root_and_the_others_get_it() -> None:
    kv = MemoryKeyValue(MemoryStore())
    assert await read_root(kv, "c") is None
    assert await bind_root(kv, "c", FIRST) == FIRST
    assert await bind_root(kv, "c", SECOND) == FIRST
    assert await read_root(kv, "c") == FIRST
    assert await read_root(kv, "other") is None


async def test_a_root_whose_commit_was_done_though_its_response_was_lost_is_read_back() -> None:
    kv = FaultyCommit(MemoryStore(), random=Random(1), faults=KvFaults(unknown_applied=1.0))
    assert await bind_root(kv, "c", FIRST) == FIRST


async def test_an_unknown_commit_that_was_not_done_is_raised_and_may_be_repeated() -> None:
    kv = FaultyCommit(MemoryStore(), random=Random(1), faults=KvFaults(unknown_lost=1.0))
    with pytest.raises(KvUnknown):
        await bind_root(kv, "c", FIRST)
    assert await bind_root(kv, "c", FIRST) == FIRST


@pytest.mark.parametrize(
    "value",
    [
        b"", b"\xff", b"[]", b"[" * 100_000, b'{"format":3,"root_id":"r","url":"u"}', b'{"format":1,"root_id":"r"}',
        b'{"format":1,"root_id":"","url":"u"}', b'{"format":1,"root_id":7,"url":"u"}',
        b'{"format":1,"root_id":"r","url":null}',
    ],
    ids=["empty", "not UTF-8", "list", "deep", "later format", "no url", "empty id", "number", "url is null"],
)  # fmt: skip
async def test_a_value_that_is_not_a_root_is_a_format_error_and_is_not_replaced(value: bytes) -> None:
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(root_key("c"), value)])
    for work in (read_root(kv, "c"), bind_root(kv, "c", FIRST)):
        with pytest.raises(FormatError, match="/c/root"):
            await work
    found = await kv.get(root_key("c"))
    assert found is not None
    assert found.value == value


def test_a_root_is_read_as_it_was_written() -> None:
    for record in (FIRST, replace(FIRST, has_levels=True)):
        assert decode_root(Entry("k", encode_root(record), 1)) == record


def test_a_cluster_without_levels_has_a_record_that_earlier_versions_read() -> None:
    assert encode_root(FIRST) == b'{"format":1,"root_id":"r-1","url":"hdfs://nn/a"}'
