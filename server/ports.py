"""The ports of one process, whose connections are closed after a standstill or a lost membership."""

from __future__ import annotations

from typing import Protocol


class Port(Protocol):
    """A port with connections."""

    def give_clients_up(self) -> int:
        """Close all connections, and go on listening; return their number."""

    def close_departed(self) -> int:
        """Close the connections whose other side has closed them; return their number."""


class Ports:
    """The ports of one process.  ``Sockets`` adds each port once; a ``Node`` closes connections of all ports."""

    def __init__(self) -> None:
        self._clients: list[Port] = []
        self._all: list[Port] = []

    def __repr__(self) -> str:
        return f"<Ports {len(self._all)}, of clients {len(self._clients)}>"

    def add(self, port: Port, *, has_clients: bool = True) -> None:
        """Add a port; only the connections of a port with clients are given up."""
        self._all.append(port)
        if has_clients:
            self._clients.append(port)

    def give_clients_up(self) -> int:
        """Close the connections of all clients, of Kafka and of the HTTP API; return their number."""
        return sum(port.give_clients_up() for port in self._clients)

    def close_departed(self) -> int:
        """Close the connections whose other side has closed them, of all ports; return their number."""
        return sum(port.close_departed() for port in self._all)
