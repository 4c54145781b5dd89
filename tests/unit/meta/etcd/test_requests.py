"""etcd's messages for each operation of the store, and the operation's result from the response."""

from __future__ import annotations

import pytest

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd import requests
from bmq.meta.kv import Commit, Compare, Delete, Entry, Put


def found(key: str, value: bytes = b"v", revision: int = 5, lease: int = 0) -> pb.KeyValue:
    return pb.KeyValue(key=key.encode(), value=value, mod_revision=revision, lease=lease)


def test_a_page_begins_behind_the_last_key_and_ends_with_the_prefix() -> None:
    first = requests.page("a/", "", 10)
    assert first is not None
    assert (first.key, first.range_end, first.limit) == (b"a/", b"a0", 10)
    following = requests.page("a/", "a/x", 10)
    assert following is not None
    assert (following.key, following.range_end) == (b"a/x\0", b"a0")


def test_a_page_behind_a_key_before_the_prefix_begins_with_the_prefix() -> None:
    page = requests.page("b/", "a/x", 10)
    assert page is not None
    assert page.key == b"b/"


@pytest.mark.parametrize("after", ["a0", "b", "\U0010ffff"])
def test_there_is_no_page_behind_the_prefix(after: str) -> None:
    assert requests.page("a/", after, 10) is None


def test_all_keys_are_a_page_of_the_empty_prefix() -> None:
    page = requests.page("", "", 1)
    assert page is not None
    assert (page.key, page.range_end) == (b"\0", b"\xff")


def test_a_commit_compares_last_writes_and_reads_each_compared_key_once_if_it_fails() -> None:
    compares = [Compare("a", 3), Compare("b", 0), Compare("a", 3)]
    sent = requests.commit(compares, [Put("a", b"1", 7), Delete("c")])
    assert [(each.key, each.mod_revision) for each in sent.compare] == [(b"a", 3), (b"b", 0), (b"a", 3)]
    put, delete = sent.success
    assert (put.put.key, put.put.value, put.put.lease) == (b"a", b"1", 7)
    assert delete.delete.key == b"c"
    assert [each.range.key for each in sent.failure] == [b"a", b"b"]


def test_a_commit_that_succeeded_has_its_revision_and_no_entries() -> None:
    response = pb.TxnResponse(header=pb.Header(revision=9), succeeded=True)
    assert requests.commit_result([Compare("a", 3)], response) == Commit(True, 9, {})


def test_a_commit_that_failed_has_the_present_state_of_each_compared_key() -> None:
    response = pb.TxnResponse(
        header=pb.Header(revision=9),
        succeeded=False,
        responses=[
            pb.OperationResult(range=pb.RangeResponse(kvs=[found("a", lease=7)])),
            pb.OperationResult(range=pb.RangeResponse()),
        ],
    )
    result = requests.commit_result([Compare("a", 3), Compare("b", 1), Compare("a", 3)], response)
    assert result == Commit(False, 9, {"a": Entry("a", b"v", 5, 7), "b": None})


@pytest.mark.parametrize(("ttl_s", "asked"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (10.0, 10)])
def test_a_lease_is_of_whole_seconds_and_never_shorter_than_asked_for(ttl_s: float, asked: int) -> None:
    assert requests.grant(ttl_s).ttl_s == asked
