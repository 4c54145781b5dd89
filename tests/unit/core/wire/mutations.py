"""Frames that are nearly Kafka requests, by seed."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable

from bmq.core.wire.header import is_flexible
from tests.unit.core.wire import oracle

HOSTILE = (
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x00\x0f\x42\x40",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80\x01",
    b"\xc0\x80",  # no UTF-8
)


def sample_frames(seed: int, each: int) -> list[bytes]:
    """Return ``each`` valid frames of every advertised version of every API, without their size field."""
    rng = random.Random(seed)
    frames = []
    for api in (*oracle.SERVED, *oracle.HAND_WRITTEN):
        for version in oracle.versions(api):
            for _ in range(each):
                frames.append(sample_frame(rng, api, version))
    return frames


def sample_frame(rng: random.Random, api: str, version: int) -> bytes:
    key = oracle.api_key(api)
    out = io.BytesIO()
    out.write(struct.pack(">hhi", key, version, rng.getrandbits(31)))
    client_id = rng.choice((None, b"", b"rdkafka"))
    out.write(struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id)
    if is_flexible(key, version):
        out.write(b"\0")
    out.write(oracle.kio_bytes(api + "Request", version, oracle.sample(rng, api + "Request", version)))
    return out.getvalue()


def mutate(rng: random.Random, frames: list[bytes]) -> bytearray:
    """Return one of ``frames``, spoilt in one to four places."""
    data = bytearray(rng.choice(frames))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_WAYS)(rng, data, frames)
    return data


def _flip_bit(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    value = rng.choice(HOSTILE)
    start = rng.randrange(len(data) + 1)
    data[start : start + len(value)] = value


def _insert(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.choice((rng.choice(HOSTILE), rng.randbytes(rng.randrange(20))))


def _cut_out(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(1, 9)]


def _cut_short(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _splice(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    other = rng.choice(frames)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def _other_version(rng: random.Random, data: bytearray, frames: list[bytes]) -> None:
    data[2:4] = struct.pack(">h", rng.randrange(-1, 20))


_WAYS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip_bit,
    _flip_bit,
    _overwrite,
    _insert,
    _cut_out,
    _cut_short,
    _splice,
    _other_version,
)
