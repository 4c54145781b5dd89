"""The reference loop: it serves what it says, and its client counts responses however they are cut."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import reference_loop
from tests.harness.waiting import until


def respond(server: socket.socket, request_bytes: int, parts: Sequence[bytes]) -> threading.Thread:
    """Receive so many bytes, then send the parts one by one, and close."""

    def run() -> None:
        with server:
            while len(server.recv(request_bytes, socket.MSG_PEEK | socket.MSG_WAITALL)) < request_bytes:
                pass
            server.recv(request_bytes, socket.MSG_WAITALL)
            for part in parts:
                server.sendall(part)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 1000])
def test_responses_are_counted_however_they_are_cut(size: int) -> None:
    frame = reference_loop.append_frame(b"x")
    sent = b"".join(struct.pack(">I", length) + bytes(length) for length in (4, 0, 9))
    client, server = socket.socketpair()
    with client:
        client.settimeout(10)
        thread = respond(server, 3 * len(frame), [sent[at : at + size] for at in range(0, len(sent), size)])
        assert reference_loop.pipelined(client, frame, count=3, window=3) > 0
        thread.join()


def test_a_connection_that_ends_early_is_an_error() -> None:
    frame = reference_loop.append_frame(b"x")
    client, server = socket.socketpair()
    with client:
        client.settimeout(10)
        thread = respond(server, 2 * len(frame), [struct.pack(">I", 0)])
        with pytest.raises(ConnectionError, match="1 of 2"):
            reference_loop.pipelined(client, frame, count=2, window=2)
        thread.join()


@pytest.mark.loops("asyncio")
async def test_the_server_appends_reads_and_truncates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serving = asyncio.create_task(reference_loop.serve(str(tmp_path / "log")))
    try:
        printed: list[str] = []

        def is_ready() -> bool:
            printed.extend(capsys.readouterr().out.split())
            return len(printed) == 2

        await until(is_ready)
        reader, writer = await asyncio.open_connection(reference_loop.HOST, int(printed[1]))

        async def ask(frame: bytes) -> bytes:
            writer.write(frame)
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            return await reader.readexactly(size)

        assert await ask(reference_loop.append_frame(b"hello")) == struct.pack(">I", zlib.crc32(b"hello"))
        await ask(reference_loop.append_frame(b" you"))
        assert await ask(reference_loop.read_frame(3, 4)) == b"lo y"
        assert (tmp_path / "log").read_bytes() == b"hello you"
        assert await ask(reference_loop.truncate_frame()) == b""
        assert (tmp_path / "log").read_bytes() == b""
        writer.close()
        await writer.wait_closed()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
