"""The socket of a client's connection: its names and its options."""

from __future__ import annotations

import socket


def names_of(peer: object) -> tuple[str, str]:
    """Return (host, host:port) of a transport's peer name; IPv6 hosts in brackets before a port."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return "unknown", "unknown"
    host, port = peer[0], peer[1]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune(sock: socket.socket | None) -> None:
    """Set the options of a TCP socket: small responses go out at once, and a peer without power is noticed."""
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # The kernel sizes the buffers: a fixed size would switch its tuning off.
