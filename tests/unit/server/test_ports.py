"""Connections that a process closes: of which ports."""

from __future__ import annotations

from bmq.server.ports import Ports


class FakePort:
    """A port with some connections, of which some were closed by their other side."""

    def __init__(self, connections: int, departed: int) -> None:
        self._connections = connections
        self._departed = departed

    def give_clients_up(self) -> int:
        return self._connections

    def close_departed(self) -> int:
        return self._departed


def test_clients_are_given_up_and_other_processes_are_not() -> None:
    ports = Ports()
    assert (ports.give_clients_up(), ports.close_departed()) == (0, 0), "no port is open"
    ports.add(FakePort(1, 10))
    ports.add(FakePort(2, 20))
    ports.add(FakePort(4, 40), has_clients=False)
    assert (ports.give_clients_up(), ports.close_departed()) == (3, 70)
