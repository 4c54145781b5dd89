"""Kept connections to datanodes (storage/hdfs/data_connections.py): which are used again, and for how long."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from bmq.storage.hdfs.data_connections import KEPT_MAX, KEPT_S, DataConnections

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


@pytest.fixture
def connections() -> Iterator[DataConnections]:
    found = DataConnections()
    with contextlib.closing(found):
        yield found


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def pair(stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    return ours, theirs


def test_the_connection_used_last_is_used_again(connections: DataConnections) -> None:
    with contextlib.ExitStack() as stack:
        first, second, other = (pair(stack)[0] for _ in range(3))
        connections.keep(HERE, first)
        connections.keep(HERE, second)
        connections.keep(THERE, other)
        assert [connections.take(HERE) for _ in range(3)] == [second, first, None]
        assert connections.take(THERE) is other


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "bytes that nobody asked for"])
def test_a_connection_on_which_something_came_is_not_used_again(connections: DataConnections, is_closed: bool) -> None:
    with contextlib.ExitStack() as stack:
        good, bad = pair(stack)[0], pair(stack)
        connections.keep(HERE, good)
        connections.keep(HERE, bad[0])
        if is_closed:
            bad[1].close()
        else:
            bad[1].send(b"x")
        assert connections.take(HERE) is good
        assert bad[0].fileno() == -1, "it is closed"


def test_an_idle_connection_is_closed_before_the_datanode_does_it(
    connections: DataConnections, now: list[float]
) -> None:
    with contextlib.ExitStack() as stack:
        first, second = pair(stack)[0], pair(stack)[0]
        connections.keep(HERE, first)
        now[0] += KEPT_S
        connections.keep(HERE, second)
        now[0] += 0.1
        assert [connections.take(HERE), connections.take(HERE)] == [second, None]
        assert first.fileno() == -1


def test_the_number_of_idle_connections_is_bounded(connections: DataConnections) -> None:
    with contextlib.ExitStack() as stack:
        ours = [pair(stack)[0] for _ in range(KEPT_MAX + 1)]
        for each in ours:
            connections.keep(HERE, each)
        assert len(connections) == KEPT_MAX
        assert [each.fileno() == -1 for each in ours] == [True] + [False] * KEPT_MAX


def test_none_is_kept_after_the_close(connections: DataConnections) -> None:
    with contextlib.ExitStack() as stack:
        before, after = pair(stack)[0], pair(stack)[0]
        connections.keep(HERE, before)
        connections.close()
        connections.keep(HERE, after)
        assert (before.fileno(), after.fileno()) == (-1, -1)
        assert connections.take(HERE) is None


def test_a_request_does_not_wait_for_the_acknowledgement_of_what_was_sent_before(connections: DataConnections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = connections.connect(listener.getsockname(), 5.0)
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
