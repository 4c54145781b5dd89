"""The version, cipher suite and key exchange that a server chose, read from its answer on the wire.

The client is the one that is measured, librdkafka, which does not tell them: its connection is made through a forwarder
that keeps the first bytes of the server.  A ServerHello is not encrypted (RFC 8446, 4.1.3)::

    record   u8 22 | u16 version | u16 length | handshake messages
    message  u8 2 | u24 length | u16 version | 32 B random | u8 length, session | u16 suite | u8 0 | extensions
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from bench.raw_client import Address
from bench.raw_client import connect as connect_plain

KEPT_BYTES = 4096
"""Bytes of the server that are kept: a ServerHello has some hundred."""
CHUNK_BYTES = 1 << 16
POLL_S = 0.1
SUITES = {0x1301: "TLS_AES_128_GCM_SHA256", 0x1302: "TLS_AES_256_GCM_SHA384", 0x1303: "TLS_CHACHA20_POLY1305_SHA256"}
"""The suites of TLS 1.3."""
VERSIONS = {0x0303: "TLSv1.2", 0x0304: "TLSv1.3"}
GROUPS = {23: "secp256r1", 24: "secp384r1", 25: "secp521r1", 29: "x25519", 30: "x448", 4588: "X25519MLKEM768"}
_HANDSHAKE, _SERVER_HELLO = 22, 2
_SUPPORTED_VERSIONS, _KEY_SHARE = 43, 51
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another key exchange: the next one counts."""


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The choice of a server, in the names of RFC 8446, or numbers where it has none."""

    version: str
    suite: str
    group: str

    def __str__(self) -> str:
        return f"{self.version}, {self.suite}, {self.group}"


def server_hello(data: bytes) -> Negotiated:
    """Return what the server chose; ``data`` is what it sent first.  Raises ValueError if that is no ServerHello."""
    for body in _records(data):
        if body[:1] != bytes([_SERVER_HELLO]) or len(body) < 4:
            raise ValueError("the server sent no ServerHello first")
        message = body[4 : 4 + int.from_bytes(body[1:4])]
        random, at = message[2:34], 35 + message[34]
        if random == _RETRY:
            continue
        extensions = _extensions(message[at + 5 :])
        version = int.from_bytes(extensions.get(_SUPPORTED_VERSIONS, message[:2]))
        suite, group = int.from_bytes(message[at : at + 2]), int.from_bytes(extensions.get(_KEY_SHARE, b"")[:2])
        return Negotiated(
            VERSIONS.get(version, hex(version)), SUITES.get(suite, hex(suite)), GROUPS.get(group, str(group))
        )
    raise ValueError(f"no ServerHello in {len(data)} bytes")


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the handshake records' content; others, which a ServerHello may follow, are left out."""
    at = 0
    while at + 5 <= len(data):
        size = int.from_bytes(data[at + 3 : at + 5])
        if data[at] == _HANDSHAKE:
            yield data[at + 5 : at + 5 + size]
        at += 5 + size


def _extensions(data: bytes) -> Mapping[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        kind, size = int.from_bytes(data[at : at + 2]), int.from_bytes(data[at + 2 : at + 4])
        found[kind] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return found


class Tap:
    """A forwarder of connections to one address, which keeps what the server sent first on the first of them."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(POLL_S)
        self._ended = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._pumping: list[threading.Thread] = []
        self._first = bytearray()
        self._has_first = False

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in (self._accepting, *self._pumping):
            thread.join()
        self._server.close()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    @property
    def first(self) -> bytes:
        """The first bytes of the server on the first connection."""
        return bytes(self._first)

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                theirs, _ = self._server.accept()
                ours = connect_plain(self._target, timeout_s=POLL_S)
                theirs.settimeout(POLL_S)
                kept = None if self._has_first else self._first
                self._has_first = True
                for pair in ((theirs, ours, None), (ours, theirs, kept)):
                    self._pumping.append(threading.Thread(target=self._pump, args=pair, daemon=True))
                    self._pumping[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):  # an end of either side is the end of both
            while not self._ended.is_set():
                try:
                    data = source.recv(CHUNK_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    break
                if kept is not None and len(kept) < KEPT_BYTES:
                    kept += data
                sink.sendall(data)
        source.close()
        sink.close()
