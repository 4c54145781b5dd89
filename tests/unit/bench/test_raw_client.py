"""The client of a few bytes: what it reads of responses, and how it tries again."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from bench import raw_client
from bench.raw_client import NotAcknowledged, addresses_of, first_ack, leader_of, produce, produce_frame

TOPIC = "t"


def framed(body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), 1) + body


def metadata(leader: int, port: int = 9) -> bytes:
    node = struct.pack(">ih1sih", 7, 1, b"h", port, -1).replace(b"\0\1h", b"\0\x09127.0.0.1")
    partition = struct.pack(">hiiiiii", 0, 0, leader, 1, 7, 1, 7)
    topic = struct.pack(">hh1sb", 0, 1, TOPIC.encode(), 0) + struct.pack(">i", 1) + partition
    return framed(struct.pack(">i", 1) + node + struct.pack(">ii", 7, 1) + topic)


def produced(error: int, offset: int) -> bytes:
    return framed(struct.pack(">ih1siihqqi", 1, 1, TOPIC.encode(), 1, 0, error, offset, -1, 0))


def exchange(response: bytes, ask: Callable[[socket.socket], object]) -> object:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(response)
        return ask(client)


def test_the_leader_is_read_with_its_address() -> None:
    found = exchange(metadata(7, 9092), lambda client: leader_of(client, TOPIC))
    assert found == raw_client.Leader(7, ("127.0.0.1", 9092))


def test_a_partition_without_a_leader_is_not_acknowledged() -> None:
    with pytest.raises(NotAcknowledged, match="no leader"):
        exchange(metadata(-1), lambda client: leader_of(client, TOPIC))


def test_a_produce_returns_the_offset_and_an_error_is_not_an_acknowledgement() -> None:
    frame = produce_frame(TOPIC, b"value")
    assert exchange(produced(0, 41), lambda client: produce(client, frame)) == 41
    with pytest.raises(NotAcknowledged, match="error 6"):
        exchange(produced(6, -1), lambda client: produce(client, frame))


def test_addresses_are_read_from_a_list() -> None:
    assert addresses_of("a:1,b:22") == [("a", 1), ("b", 22)]


def test_attempts_go_on_until_one_is_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as refusing:
        port = listener.getsockname()[1]
        closed = refusing.getsockname()[1]
        refusing.close()
        script = [metadata(-1), metadata(7, port), produced(6, -1), metadata(7, port), produced(0, 1)]

        def serve() -> None:
            for response in script:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        begun = time.monotonic()
        addresses = [("127.0.0.1", closed), ("127.0.0.1", port)]
        at = first_ack(addresses, TOPIC, produce_frame(TOPIC, b"v"), timeout_s=10)
        thread.join()
    assert at - begun >= 2 * raw_client.RETRY_S


def test_a_server_that_never_acknowledges_ends_in_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(TimeoutError, match="ConnectionRefused"):
        first_ack([address], TOPIC, b"", timeout_s=0.05)
