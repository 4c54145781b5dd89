"""The assignment's keys: what is written is read again, and other bytes are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.meta.cluster.assignment import (
    CHUNK,
    AssignmentChunk,
    decode_chunk,
    decode_shards,
    encode_chunk,
    encode_shards,
)
from bmq.meta.cluster.view import ShardOwner

pytestmark = pytest.mark.slow


names = st.sampled_from(["", "a", "b", "c"])


@given(st.lists(names, max_size=30))
def test_a_chunk_is_read_as_it_was_written(owners: list[str]) -> None:
    assert decode_chunk(encode_chunk(AssignmentChunk(tuple(owners)))) == AssignmentChunk(tuple(owners))


def test_a_full_chunk_is_a_small_fraction_of_a_commit() -> None:
    owners = tuple(f"broker-{number % 100:04d}-0123456789abcdef" for number in range(CHUNK))
    assert len(encode_chunk(AssignmentChunk(owners))) < 10_000


@given(st.dictionaries(st.integers(0, 99), st.tuples(names, st.integers(0, 2**40)), max_size=20))
def test_shards_are_read_as_they_were_written(shards: dict[int, tuple[str, int]]) -> None:
    wanted = {shard: ShardOwner(*owner) for shard, owner in shards.items()}
    assert decode_shards(encode_shards(wanted)) == wanted


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"format":2}', b'{"format":1}', b'{"format":1,"names":["a"],"owners":[1]}']
)
@pytest.mark.parametrize("decode", [decode_chunk, decode_shards])
def test_bytes_that_are_not_an_assignment_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


@pytest.mark.parametrize(
    "text",
    [
        '{"format":1,"names":["a"],"owners":[-2]}', '{"format":1,"names":["a"],"owners":["a"]}',
        '{"format":1,"names":["a"],"owners":[0.0]}', '{"format":1,"names":[7],"owners":[0]}',
        '{"format":1,"names":["a"],"owners":0}', '{"format":2,"names":[],"owners":[]}', "[" * 100_000,
    ],
    ids=["below nobody", "name", "not whole", "not a name", "not a list", "later format", "deep"],
)  # fmt: skip
def test_a_chunk_with_owners_that_are_not_numbers_of_its_names_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        decode_chunk(text.encode())


def test_a_chunk_holds_at_most_1000_partitions() -> None:
    assert len(decode_chunk(encode_chunk(AssignmentChunk(("",) * CHUNK))).owners) == CHUNK
    with pytest.raises(FormatError):
        decode_chunk(encode_chunk(AssignmentChunk(("",) * (CHUNK + 1))))


@pytest.mark.parametrize(
    "shard", ['[-1,"a",1]', '[true,"a",1]', "[0,7,1]", '[0,"a",-1]', '[0,"a",9223372036854775808]', '[0,"a"]']
)
def test_a_shard_without_a_number_and_an_owner_is_refused(shard: str) -> None:
    with pytest.raises(FormatError):
        decode_shards(f'{{"format":1,"shards":[{shard}]}}'.encode())
