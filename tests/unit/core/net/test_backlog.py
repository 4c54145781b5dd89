"""The backlog of a listening socket is closed as far as the process can accept, and never fails its caller."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from bmq.core.net.backlog import close_backlog


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_connections_that_wait_are_closed(listening: socket.socket) -> None:
    waiting = [socket.create_connection(listening.getsockname()) for _ in range(3)]
    assert close_backlog(listening) == 3
    assert close_backlog(listening) == 0
    for each in waiting:
        with each:
            assert each.recv(1) == b""


class Failing:
    """A listening socket of a process that has no descriptor left, as after the close of all connections."""

    def __init__(self, *, in_dup: bool, code: int) -> None:
        self.error = OSError(code, "")
        self.in_dup = in_dup

    def dup(self) -> Any:
        if self.in_dup:
            raise self.error
        return self

    def accept(self) -> Any:
        raise self.error

    def close(self) -> None:
        pass

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("in_dup", [True, False])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_process_without_descriptors_closes_none(code: int, in_dup: bool) -> None:
    assert close_backlog(Failing(in_dup=in_dup, code=code)) == 0
