"""Messages that proxies serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Bool, Id, Int16, Int32, Int64, Partitions, Pieces, Row, Rows, Slice, Text


class PartitionTraffic(NamedTuple):
    """The traffic of one partition in a window; of a whole topic if ``partition`` is -1."""

    topic_id: Id
    partition: Int32
    records_in: Int64
    bytes_in: Int64
    bytes_out: Int64


Traffics = Annotated[tuple[PartitionTraffic, ...], Rows(Row.of(PartitionTraffic))]


@dataclass(frozen=True, slots=True)
class RelayResponse(InternalResponse):
    """``body`` is the response of ``to``, unread.

    ``error``: there is none, and this connection passes on nothing more; ``was_sent`` then says whether the request may
    have reached ``to`` all the same.
    """

    message: Text = ""
    was_sent: Bool = False
    body: Slice = b""


@dataclass(frozen=True, slots=True)
class RelayRequest(InternalRequest[RelayResponse]):
    """A request to pass ``body`` on to ``to``, with ``api_key``.

    The first of a connection is a Ping, which connects it.
    """

    KEY = InternalKey.RELAY

    to: Text
    api_key: Int16
    api_version: Int16
    body: Pieces


@dataclass(frozen=True, slots=True)
class TrafficResponse(InternalResponse):
    """The last window of ``window_ms``: in total, and of the requested partitions that had traffic.

    ``window_ms`` is 0 in the first seconds of a process.
    """

    window_ms: Int32 = 0
    records_in: Int64 = 0
    bytes_in: Int64 = 0
    bytes_out: Int64 = 0
    partitions: Traffics = ()


@dataclass(frozen=True, slots=True)
class TrafficRequest(InternalRequest[TrafficResponse]):
    """A request for what clients moved of these partitions.  Partition -1 is a whole topic."""

    KEY = InternalKey.TRAFFIC

    partitions: Partitions = ()
