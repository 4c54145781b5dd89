"""The writing of responses: how they are joined, and when their memory is given back."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

from bmq.core.net.request import NO_RESPONSE, Response
from bmq.core.net.response_writer import JOIN_MAX, WRITE_MAX, ResponseWriter


class FakeTransport(asyncio.WriteTransport):
    """A transport that notes its calls: a write is bytes, a vector write a list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes | list[bytes]] = []

    def write(self, data: Any) -> None:
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.calls.append([bytes(each) for each in list_of_data])


class World:
    def __init__(self) -> None:
        self.writer, self.transport = ResponseWriter(), FakeTransport()
        self.released: list[int] = []

    def response(self, size: int, pieces: int = 1) -> Response:
        return Response([bytes(size)] * pieces, lambda: self.released.append(size))


def framed(size: int) -> bytes:
    return struct.pack(">i", size) + bytes(size)


def test_small_responses_go_out_in_one_write() -> None:
    world = World()
    assert not world.writer.add(world.response(5, pieces=2))
    assert not world.writer.add(world.response(7))
    world.writer.write(world.transport)
    assert world.transport.calls == [framed(10) + framed(7)]
    world.writer.write(world.transport)
    assert len(world.transport.calls) == 1


def test_the_pieces_of_a_large_response_are_not_joined() -> None:
    world = World()
    assert not world.writer.add(world.response(3))
    assert world.writer.add(world.response(WRITE_MAX // 2, pieces=2))
    world.writer.write(world.transport)
    half = bytes(WRITE_MAX // 2)
    assert world.transport.calls == [[framed(3), struct.pack(">i", WRITE_MAX), half, half]]


def test_a_response_behind_a_large_one_starts_a_count_of_its_own() -> None:
    world = World()
    assert world.writer.add(world.response(WRITE_MAX))
    world.writer.write(world.transport)
    assert not world.writer.add(world.response(JOIN_MAX))


def test_memory_is_given_back_once_the_kernel_has_taken_the_response() -> None:
    world = World()
    world.writer.add(world.response(1))
    world.writer.write(world.transport)
    assert world.released == []
    world.writer.add(world.response(2))
    world.writer.taken()
    assert world.released == [1], "the other is not written"
    world.writer.write(world.transport)
    world.writer.taken()
    assert world.released == [1, 2]


def test_memory_is_given_back_once() -> None:
    """A release may end the connection, and the end gives back all that is left."""
    world = World()

    def end() -> None:
        world.released.append(1)
        world.writer.taken()

    world.writer.add(Response((b"1",), end))
    world.writer.add(world.response(2))
    world.writer.write(world.transport)
    world.writer.taken()
    assert sorted(world.released) == [1, 2]


def test_an_empty_frame_is_sent_and_no_response_is_not() -> None:
    world = World()
    world.writer.add(NO_RESPONSE)
    world.writer.write(world.transport)
    assert world.transport.calls == []
    world.writer.add(Response((b"",)))
    world.writer.write(world.transport)
    assert world.transport.calls == [framed(0)]


def test_nothing_is_written_for_a_client_that_has_gone() -> None:
    world = World()
    world.writer.add(world.response(1))
    world.writer.write(world.transport)
    world.writer.add(world.response(2))
    world.writer.drop()
    assert world.released == [2], "the kernel may not have taken the first"
    assert not world.writer.add(world.response(WRITE_MAX))
    assert world.released == [2, WRITE_MAX]
    world.writer.write(world.transport)
    assert len(world.transport.calls) == 1
