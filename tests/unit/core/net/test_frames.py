"""Frames (core/net/frames.py): the same from any pieces, memory of their own, and never more memory than was sent."""

from __future__ import annotations

import random
import struct

import pytest

from bmq.core.net.frames import SHARED_BYTES, STEP_BYTES, FrameReader
from tests.harness.seeds import seeds


def reader(size_max: int = 100 << 20) -> FrameReader:
    return FrameReader(memoryview(bytearray(SHARED_BYTES)), size_max)


def feed(frames: FrameReader, data: bytes, rng: random.Random | None = None) -> list[memoryview]:
    """Hand ``data`` over in pieces (whole buffers without ``rng``); what became of it."""
    made, pos = [], 0
    while pos < len(data) and not frames.error:
        buffer = frames.buffer()
        most = min(len(buffer), len(data) - pos)
        count = most if rng is None else min(most, rng.choice((1, 2, 3, 7, 100, 5000, 1 << 20)))
        buffer[:count] = data[pos : pos + count]
        made += frames.received(count)
        pos += count
    return made


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("seed", seeds(20, 600))
def test_any_pieces_give_the_same_frames(seed: int) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice((8, 9, 60, 4000, 17_000, 70_000, 200_000))) for _ in range(rng.randint(1, 9))]
    if seed % 10 == 0:
        bodies.append(rng.randbytes(3 * STEP_BYTES + 5))
    frames = reader()
    made = feed(frames, b"".join(map(framed, bodies)), rng if seed % 3 else None)
    assert [bytes(each) for each in made] == bodies
    assert not frames.is_partial
    assert frames.partial_bytes == 0
    assert len({id(each.obj) for each in made}) == len(made)
    assert not any(each.readonly or len(each.obj) != len(each) for each in made)  # type: ignore[arg-type]


def test_byte_by_byte() -> None:
    frames = reader()
    made = [each for byte in framed(b"12345678") + framed(b"abcdefghi") for each in feed(frames, bytes([byte]))]
    assert [bytes(each) for each in made] == [b"12345678", b"abcdefghi"]


def test_a_claimed_size_costs_nothing_until_it_is_sent() -> None:
    frames = reader()
    feed(frames, struct.pack(">i", 100 << 20))
    assert frames.is_partial
    assert frames.partial_bytes == 0
    sent = 0
    for piece in (1, 100, 10_000, 200_000, 3 << 20, 20 << 20):
        feed(frames, bytes(piece))
        sent += piece
        frames.buffer()
        assert frames.partial_bytes <= sent + (STEP_BYTES if sent >= 4096 else 64 << 10)


def test_what_was_handed_out_may_be_referred_to_still() -> None:
    """uvloop and the simulation keep the buffer until they ask for the next one."""
    frames, kept, left = reader(), [], 3 * STEP_BYTES
    kept.append(frames.buffer())
    kept[-1][:4] = struct.pack(">i", left)
    made = frames.received(4)
    while not made:
        kept.append(frames.buffer())
        made = frames.received(len(kept[-1]))
    assert len(made[0]) == left


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 7, 1025, (1 << 31) - 1])
@pytest.mark.parametrize("pieces", [False, True])
def test_sizes_that_are_none(size: int, pieces: bool) -> None:
    frames = reader(1024)
    made = feed(frames, framed(b"12345678") + struct.pack(">i", size) + b"....", random.Random(1) if pieces else None)
    assert [bytes(each) for each in made] == [b"12345678"]
    assert f"a request of {size} bytes" in frames.error


@pytest.mark.parametrize("size", [8, 1024])
def test_sizes_that_just_fit(size: int) -> None:
    frames = reader(1024)
    assert len(feed(frames, framed(bytes(size)))[0]) == size
    assert not frames.error


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST /v1 HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\n", "HTTP"),
        (bytes.fromhex("16030100f8010000f40303"), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "PROXY"),
        (b"\xff\xff\xff\xff", "ffffffff"),
    ],
)
def test_garbage_is_named(data: bytes, what: str) -> None:
    frames = reader()
    assert feed(frames, data) == []
    assert what in frames.error
