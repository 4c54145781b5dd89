"""A watch's place in etcd's history, over any number of streams."""

from __future__ import annotations

import pytest

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.cursor import Cancelled, WatchCursor
from bmq.meta.kv import Compacted, Entry, Event


def put(key: str, revision: int) -> pb.Event:
    return pb.Event(kv=pb.KeyValue(key=key.encode(), value=b"v", mod_revision=revision))


def delete(key: str, revision: int) -> pb.Event:
    return pb.Event(type=1, kv=pb.KeyValue(key=key.encode(), mod_revision=revision))


def respond(*events: pb.Event, revision: int = 0, fragment: bool = False) -> pb.WatchResponse:
    return pb.WatchResponse(events=events, header=pb.Header(revision=revision), fragment=fragment)


def is_put(key: str, revision: int) -> Event:
    return Event(key, Entry(key, b"v", revision), revision)


def start(cursor: WatchCursor) -> int:
    return cursor.create().create.start_revision


def test_each_revision_is_a_list() -> None:
    cursor = WatchCursor("", 1)
    found = cursor.take(respond(put("a", 2), put("b", 2), delete("a", 4), revision=9))
    assert found == [[is_put("a", 2), is_put("b", 2)], [Event("a", None, 4)]]
    assert cursor.seen == 4  # not 9: what this prefix has between may still come


def test_a_new_stream_begins_with_the_last_revision_seen_which_is_dropped() -> None:
    cursor = WatchCursor("k", 7)
    assert start(cursor) == 7
    assert cursor.take(respond(put("k", 7), put("k", 8))) == [[is_put("k", 8)]]
    assert start(cursor) == 8
    assert cursor.take(respond(put("k", 8))) == []
    assert cursor.take(respond(put("k", 8), put("k", 9))) == [[is_put("k", 9)]]


def test_the_beginning_is_not_from_now_on() -> None:
    assert start(WatchCursor("", 0)) == 1


def test_fragments_are_put_together_and_forgotten_with_their_stream() -> None:
    cursor = WatchCursor("", 1)
    assert cursor.take(respond(put("a", 2), put("a", 3), fragment=True)) == []
    assert start(cursor) == 1  # the stream broke: revision 3 was not whole
    assert cursor.take(respond(put("a", 2), put("a", 3), fragment=True)) == []
    assert cursor.take(respond(put("b", 3), fragment=True)) == []
    assert cursor.take(respond(put("c", 3))) == [[is_put("a", 2)], [is_put("a", 3), is_put("b", 3), is_put("c", 3)]]
    assert cursor.seen == 3


def test_progress_moves_a_quiet_watch_and_nothing_moves_it_back() -> None:
    cursor = WatchCursor("", 5)
    assert cursor.take(respond(revision=30)) == []
    assert start(cursor) == 30
    assert cursor.take(respond(revision=20)) == []  # a member that is behind
    assert start(cursor) == 30


def test_that_it_was_created_says_nothing_of_how_far_it_is() -> None:
    cursor = WatchCursor("", 5)
    assert cursor.take(pb.WatchResponse(created=True, header=pb.Header(revision=30))) == []
    assert cursor.seen == 5


def test_the_end_of_a_watch_has_a_reason() -> None:
    with pytest.raises(Compacted) as compacted:
        WatchCursor("", 1).take(pb.WatchResponse(canceled=True, compact_revision=12))
    assert compacted.value.revision == 12
    with pytest.raises(Cancelled, match="permission denied"):
        WatchCursor("", 1).take(pb.WatchResponse(created=True, canceled=True, cancel_reason="permission denied"))


@pytest.mark.parametrize(
    ("prefix", "low", "end"),
    [("", b"\0", b"\xff"), ("a/", b"a/", b"a0"), ("\U0010ffff", b"\xf4\x8f\xbf\xbf", b"\xf4\x8f\xbf\xc0")],
)
def test_a_prefix_is_a_range(prefix: str, low: bytes, end: bytes) -> None:
    create = WatchCursor(prefix, 1).create().create
    assert (create.key, create.range_end) == (low, end)
