"""Members in a group's value in ``__consumer_offsets``, and their quick decoders.

``records`` has the format.  The decoders read the values of Kafka and BMQ.  For any other value they return None: the
general decoder of ``records`` reads it, or reports the fault.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
MEMBER_NUMBERS = struct.Struct(">iii")  # rebalance and session time-out, bytes of the subscription
TIMEOUTS = struct.Struct(">ii")  # rebalance and session time-out


class StoredMember(NamedTuple):
    """A member of a stored generation.  Time-outs in ms; ``subscription`` is its metadata of the chosen protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


def decode_members(data: bytes, at: int, count: int) -> tuple[StoredMember, ...] | None:
    """Return ``count`` members of version 3 from byte ``at`` on; None if a member is malformed.

    No field costs a call: there may be 10,000 members.
    """
    members = []
    length_at, numbers_at, size_at = _I16.unpack_from, MEMBER_NUMBERS.unpack_from, _I32.unpack_from
    try:
        for _ in range(count):
            begin, (id_size,) = at + 2, length_at(data, at)
            at = begin + id_size
            member_id = data[begin:at].decode()
            begin, (instance_size,) = at + 2, length_at(data, at)
            at = begin + max(instance_size, 0)
            instance_id = None if instance_size == -1 else data[begin:at].decode()
            begin, (client_size,) = at + 2, length_at(data, at)
            at = begin + client_size
            client_id = data[begin:at].decode()
            begin, (host_size,) = at + 2, length_at(data, at)
            at = begin + host_size
            client_host = data[begin:at].decode()
            rebalance_ms, session_ms, size = numbers_at(data, at)
            begin = at + MEMBER_NUMBERS.size
            at = begin + size
            subscription = data[begin:at]
            begin, (assigned_size,) = at + _I32.size, size_at(data, at)
            at = begin + assigned_size
            if instance_size < -1 or min(id_size, client_size, host_size, size, assigned_size) < 0:
                return None
            if rebalance_ms == -1:
                rebalance_ms = session_ms
            members.append(
                StoredMember(
                    member_id,
                    instance_id,
                    client_id,
                    client_host,
                    rebalance_ms,
                    session_ms,
                    subscription,
                    data[begin:at],
                )
            )
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(members) if at <= len(data) else None


def decode_compact_members(data: bytes, at: int, count: int) -> tuple[tuple[StoredMember, ...], int] | None:
    """Return ``count`` members of version 4 from byte ``at`` on, and the position behind them; None if one is unusual.

    A member is unusual if it is malformed, or has tagged fields or a part of 2 MB and more.
    """
    members = []
    timeouts_at = TIMEOUTS.unpack_from
    try:
        for _ in range(count):
            begin, at = _span(data, at)
            member_id = data[begin:at].decode()
            is_static = data[at] != 0  # null is a length of 0
            begin, at = _span(data, at) if is_static else (at, at + 1)
            instance_id = data[begin:at].decode() if is_static else None
            begin, at = _span(data, at)
            client_id = data[begin:at].decode()
            begin, at = _span(data, at)
            client_host = data[begin:at].decode()
            rebalance_ms, session_ms = timeouts_at(data, at)
            begin, at = _span(data, at + TIMEOUTS.size)
            subscription = data[begin:at]
            begin, at = _span(data, at)
            assignment = data[begin:at]
            if data[at] != 0:
                return None  # tagged fields
            at += 1
            if rebalance_ms == -1:
                rebalance_ms = session_ms
            members.append(
                StoredMember(
                    member_id,
                    instance_id,
                    client_id,
                    client_host,
                    rebalance_ms,
                    session_ms,
                    subscription,
                    assignment,
                )
            )
    except (struct.error, IndexError, UnicodeDecodeError, _Unusual):
        return None
    return tuple(members), at


class _Unusual(Exception):
    """A length that ``decode_compact_members`` does not read."""


def _span(data: bytes, at: int) -> tuple[int, int]:
    """Return where the compact bytes at ``at`` begin and end.  Raises _Unusual if they are null, or 2 MB and more."""
    length = data[at]
    at += 1
    shift = 7
    while length >> shift:  # the last byte's top bit is set: more of the length follows
        if shift == 21:
            raise _Unusual
        length = (length & ((1 << shift) - 1)) | data[at] << shift
        at += 1
        shift += 7
    if not length:
        raise _Unusual
    return at, at + length - 1
