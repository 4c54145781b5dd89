"""The messages of the internal APIs, which the processes of a cluster use beside Kafka's Produce and Fetch.

``docs/design/cluster.md`` lists the APIs, with the sides that send and serve them.  Every response begins with
``error``; where it is not NONE the other fields mean nothing, except ``message``, which has the reason.  Encoding:
``core.rpc.message_fields``.

Every API has version 0.  A field that is added later is a tagged one, or comes with another version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from bmq.core.errors import ErrorCode
from bmq.core.rpc.message_fields import (
    Bool,
    Bytes,
    Code,
    Fixed,
    Id,
    Int16,
    Int32,
    Int64,
    Int64s,
    Loads,
    Message,
    NotServedPartitions,
    Numbers,
    OwnerAnswers,
    PartitionQuestions,
    Partitions,
    Pieces,
    Range,
    Reasons,
    Releases,
    Slice,
    Text,
    TopicSizes,
    Traffics,
    UnregisteredCaller,
)

_ERROR = struct.Struct(">h")


def leading_error(body: memoryview) -> ErrorCode:
    """Return the error of a response that cannot be parsed further; NONE if it has none, or an unknown one."""
    try:
        return ErrorCode(_ERROR.unpack_from(body)[0])
    except (struct.error, ValueError):
        return ErrorCode.NONE


class InternalKey(IntEnum):
    """API keys of the internal protocol: above all of Kafka's."""

    HELLO = 10000
    PING = 10001
    ASK = 10002
    PRODUCERS = 10003
    LIVE_SEGMENT = 10004
    SHARD_OPEN = 10005
    SHARD_APPEND = 10006
    FORWARD = 10007
    ADMIN = 10008
    REPORT = 10009
    HANDED_OVER = 10010
    LOAD = 10011
    LEAVE = 10012
    RELAY = 10013
    SHARDS_NOT_LOADED = 10014
    SHARD_CONFIRM = 10015
    OPEN_FILES = 10016
    HIGH_WATERMARKS = 10017
    ASK_PARTITIONS = 10018
    PARTITIONS_NOT_SERVED = 10019
    TRAFFIC = 10020
    LOG_LEVELS = 10021
    HISTORY = 10022
    GROUP_LAG = 10023
    LOG_SIZES = 10024


class Question(IntEnum):
    """A question to a partition's owner; the methods of ``endpoint.partitions.Owner`` say what the answers are.

    ``ENDS`` with the argument ``ENDS_SETTLED`` is answered once everything that was acknowledged before is flushed; an
    earlier version does not wait.  ``CONFIRM_END`` is answered like that, once the owner has read its ownership in the
    store after the question arrived: an owner that was fenced, and has not been notified, has a wrong end.
    """

    ENDS = 0
    END_OF_EPOCH = 1
    MAX_TIMESTAMP = 2
    TIMESTAMP = 3
    DELETE_BEFORE = 4
    LOG_BYTES = 5
    CONFIRM_END = 6


ENDS_SETTLED = 1
ASKED_TOGETHER = frozenset(
    {Question.ENDS, Question.END_OF_EPOCH, Question.MAX_TIMESTAMP, Question.TIMESTAMP, Question.LOG_BYTES}
)
"""Questions that AskPartitions may carry: those that change nothing, and may be given up and asked again."""
QUESTIONS_MAX = 1_000
"""Questions in one AskPartitions: at 10 to 20 us a question some milliseconds of each side."""

Asked = Annotated[Question, Fixed("b", Question)]


@dataclass(frozen=True, slots=True)
class HelloRequest(Message):
    """The first request on every connection.

    ``to_incarnation`` is the process that the caller expects; "" accepts any.
    """

    protocols: Range
    cluster: Text
    from_incarnation: Text
    to_incarnation: Text


@dataclass(frozen=True, slots=True)
class HelloResponse(Message):
    """``protocol`` is the version that both sides speak, ``incarnation`` the responding process.

    ``unregistered``: the finding that led to a refusal, if the store has no member key of the caller.
    """

    error: Code
    message: Text = ""
    protocol: Int16 = -1
    incarnation: Text = ""
    unregistered: UnregisteredCaller = None


@dataclass(frozen=True, slots=True)
class PingRequest(Message):
    """A request for a sign of life."""


@dataclass(frozen=True, slots=True)
class PingResponse(Message):
    """``is_serving``: the process is neither starting nor leaving."""

    error: Code = ErrorCode.NONE
    is_serving: Bool = False


@dataclass(frozen=True, slots=True)
class AskRequest(Message):
    """``argument`` is an offset, a timestamp or an epoch, as the question needs; 0 if it needs none."""

    topic_id: Id
    partition: Int32
    question: Asked
    argument: Int64 = 0


@dataclass(frozen=True, slots=True)
class AskResponse(Message):
    """``values`` are the question's answers, as many as it has."""

    error: Code
    message: Text = ""
    values: Int64s = ()


@dataclass(frozen=True, slots=True)
class AskPartitionsRequest(Message):
    """Questions about partitions of one owner, at most ``QUESTIONS_MAX``, all of them ``ASKED_TOGETHER``.

    ``wait_ms``: a question without an answer within this time is answered as such, so that it holds up nothing else.
    """

    wait_ms: Int32
    questions: PartitionQuestions = ()


@dataclass(frozen=True, slots=True)
class AskPartitionsResponse(Message):
    """One answer for each question, in their order."""

    error: Code
    message: Text = ""
    answers: OwnerAnswers = ()


@dataclass(frozen=True, slots=True)
class ProducersRequest(Message):
    """A request for the partition's producer states."""

    topic_id: Id
    partition: Int32


@dataclass(frozen=True, slots=True)
class ProducersResponse(Message):
    """``states`` as ``storage.checkpoint`` encodes producer states."""

    error: Code
    message: Text = ""
    states: Bytes = b""


@dataclass(frozen=True, slots=True)
class LiveSegmentRequest(Message):
    """A request for the open segment and its index.

    The caller already has the first ``entries_known`` index entries of the segment named; base -1: it has none.
    """

    topic_id: Id
    partition: Int32
    base: Int64 = -1
    segment_epoch: Int32 = -1
    n: Int32 = -1
    entries_known: Int32 = 0


@dataclass(frozen=True, slots=True)
class LiveSegmentResponse(Message):
    """``base`` -1: no segment is open.  ``entries`` are those of its index from ``first_entry`` on.

    ``position`` and ``end_offset`` are where its flushed bytes end.
    """

    error: Code
    message: Text = ""
    epoch: Int32 = -1
    base: Int64 = -1
    segment_epoch: Int32 = -1
    n: Int32 = -1
    position: Int64 = -1
    end_offset: Int64 = -1
    first_entry: Int32 = 0
    entries: Bytes = b""


@dataclass(frozen=True, slots=True)
class ShardOpenRequest(Message):
    """An order to a shard's log: from now on it accepts batches with ``ownership`` or a larger number only."""

    topic_id: Id
    partition: Int32
    ownership: Int64


@dataclass(frozen=True, slots=True)
class ShardOpenResponse(Message):
    """``epoch`` is the partition's, which appends must carry."""

    error: Code
    message: Text = ""
    epoch: Int32 = -1
    log_start: Int64 = -1
    high_watermark: Int64 = -1
    max_batch_bytes: Int32 = 0


@dataclass(frozen=True, slots=True)
class ShardAppendRequest(Message):
    """One batch for a shard's log.  ``records`` are read as a slice of the request, and may be written into."""

    topic_id: Id
    partition: Int32
    epoch: Int32
    ownership: Int64
    records: Slice


@dataclass(frozen=True, slots=True)
class ShardConfirmRequest(Message):
    """The question whether a batch of this ownership would be accepted if it came now on this connection."""

    topic_id: Id
    partition: Int32
    epoch: Int32
    ownership: Int64


@dataclass(frozen=True, slots=True)
class ShardConfirmResponse(Message):
    """NONE: the batch would be accepted, as far as the broker's own state shows."""

    error: Code = ErrorCode.NONE
    message: Text = ""


@dataclass(frozen=True, slots=True)
class ShardAppendResponse(Message):
    """The response to an append, sent when the batch is flushed."""

    error: Code
    message: Text = ""
    base_offset: Int64 = -1
    log_start: Int64 = -1
    high_watermark: Int64 = -1


@dataclass(frozen=True, slots=True)
class ForwardRequest(Message):
    """A client's request for a group, as it came.  ``ownerships`` are pairs (shard, expected ownership number)."""

    client_host: Text
    client_id: Text
    api_key: Int16
    api_version: Int16
    ownerships: Numbers
    body: Slice


@dataclass(frozen=True, slots=True)
class ForwardResponse(Message):
    """``body`` is the response's, in the request's version."""

    error: Code
    message: Text = ""
    body: Slice = b""


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """The response to an API that this process does not serve."""

    error: Code
    message: Text = ""


@dataclass(frozen=True, slots=True)
class AdminRequest(Message):
    """One change of topics, configs or assignment; ``arguments`` are JSON."""

    method: Text
    arguments: Bytes


@dataclass(frozen=True, slots=True)
class AdminResponse(Message):
    """``result`` is JSON."""

    error: Code
    message: Text = ""
    result: Bytes = b""


@dataclass(frozen=True, slots=True)
class ReportRequest(Message):
    """A report that the sender's connection to ``incarnation`` broke, or could not be made."""

    incarnation: Text
    why: Text


@dataclass(frozen=True, slots=True)
class ReportResponse(Message):
    """The receipt of a report."""

    error: Code = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class HandedOverRequest(Message):
    """Partitions that the sender has flushed, closed and released.

    ``releases``, as many, spare the successor reading from the store and storage; an earlier version sends none.
    """

    partitions: Partitions
    releases: Releases = ()


@dataclass(frozen=True, slots=True)
class HandedOverResponse(Message):
    """The receipt of a hand-over."""

    error: Code = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class LoadRequest(Message):
    """A request for the partitions' load since this caller's last request."""


@dataclass(frozen=True, slots=True)
class LoadResponse(Message):
    """The load of the partitions with traffic; ``cpu_ms`` is the CPU time of the process in the same period."""

    error: Code = ErrorCode.NONE
    partitions: Loads = ()
    cpu_ms: Int64 = 0


@dataclass(frozen=True, slots=True)
class OpenFilesRequest(Message):
    """A request for the number of segment files that are open, and wanted.

    ``limit``: the member's share of the files that storage has room for, in force for ``limit_ms``; -1: none is sent,
    and an earlier one stays in force for its time.
    """

    limit: Int32 = -1
    limit_ms: Int32 = 0


@dataclass(frozen=True, slots=True)
class OpenFilesResponse(Message):
    """Segment files of one broker, see ``controller.file_shares.OpenFileReport``.

    ``waiting`` includes those that are just being opened; ``refused`` counts from the start of the process.
    """

    error: Code = ErrorCode.NONE
    held: Int32 = 0
    closing: Int32 = 0
    waiting: Int32 = 0
    refused: Int64 = 0
    limit_max: Int32 = 0


@dataclass(frozen=True, slots=True)
class HighWatermarksRequest(Message):
    """A request for the high watermarks of these partitions."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class HighWatermarksResponse(Message):
    """A number for each partition, in the order of the request: its high watermark, or -1 if it is not open here."""

    error: Code = ErrorCode.NONE
    watermarks: Int64s = ()


@dataclass(frozen=True, slots=True)
class LeaveRequest(Message):
    """An order to drain, and then to end."""


@dataclass(frozen=True, slots=True)
class LeaveResponse(Message):
    """The receipt: the process has begun to drain."""

    error: Code = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ShardsNotLoadedRequest(Message):
    """A request for the shards that the coordinator cannot load."""


@dataclass(frozen=True, slots=True)
class ShardsNotLoadedResponse(Message):
    """Shards that should be loaded by now and are not, each with the reason."""

    error: Code = ErrorCode.NONE
    shards: Reasons = ()


@dataclass(frozen=True, slots=True)
class PartitionsNotServedRequest(Message):
    """A request for the partitions that the broker should serve and cannot."""


@dataclass(frozen=True, slots=True)
class PartitionsNotServedResponse(Message):
    """`total` partitions that are OFFLINE or could not be opened; the first of them with the reasons.

    `storage_trouble`: why storage acknowledges nothing; empty while it does.
    """

    error: Code = ErrorCode.NONE
    storage_trouble: Text = ""
    total: Int32 = 0
    partitions: NotServedPartitions = ()


@dataclass(frozen=True, slots=True)
class TrafficRequest(Message):
    """A request for what clients moved of these partitions.  Partition -1 is a whole topic."""

    partitions: Partitions = ()


@dataclass(frozen=True, slots=True)
class TrafficResponse(Message):
    """The last window of `window_ms`: in total, and of the requested partitions that had traffic.

    `window_ms` is 0 in the first seconds of a process.
    """

    error: Code = ErrorCode.NONE
    window_ms: Int32 = 0
    records_in: Int64 = 0
    bytes_in: Int64 = 0
    bytes_out: Int64 = 0
    partitions: Traffics = ()


@dataclass(frozen=True, slots=True)
class LogLevelsRequest(Message):
    """An order to set `logger` to `level` ("" changes nothing), and a request for the levels then in force.

    Those of all loggers, or of `logger` if it is given.
    """

    logger: Text = ""
    level: Text = ""


@dataclass(frozen=True, slots=True)
class LogLevelsResponse(Message):
    """Loggers with the number of the level in force (Python's: 10 is DEBUG); `own`: those with one of their own.

    INVALID_CONFIG: there is no such logger or level.
    """

    error: Code = ErrorCode.NONE
    message: Text = ""
    levels: Reasons = ()
    own: Reasons = ()


@dataclass(frozen=True, slots=True)
class HistoryRequest(Message):
    """A request for the samples of the member's recent past that end later than ``after_ms`` of the time of day."""

    after_ms: Int64


@dataclass(frozen=True, slots=True)
class HistoryResponse(Message):
    """Rows of ``console.history``, in its ``layout``; those of another layout cannot be read."""

    error: Code = ErrorCode.NONE
    layout: Int16 = 0
    rows: Bytes = b""


@dataclass(frozen=True, slots=True)
class GroupLagRequest(Message):
    """A request for the samples of a group's lag that are newer than ``after_ms`` of the time of day."""

    group_id: Text
    after_ms: Int64


@dataclass(frozen=True, slots=True)
class GroupLagResponse(Message):
    """Samples of ``console.lag_history``; ``is_counted`` False: the process is set to count none."""

    error: Code = ErrorCode.NONE
    is_counted: Bool = False
    rows: Bytes = b""


@dataclass(frozen=True, slots=True)
class LogSizesRequest(Message):
    """A request for the bytes on storage of the partitions that a broker serves; the broker then counts them again."""


@dataclass(frozen=True, slots=True)
class LogSizesResponse(Message):
    """Bytes by topic, of the largest topics, as they were counted last; ``partitions_unknown`` are not counted yet."""

    error: Code = ErrorCode.NONE
    partitions_unknown: Int32 = 0
    topics: TopicSizes = ()


@dataclass(frozen=True, slots=True)
class RelayRequest(Message):
    """A request to pass ``body`` on to ``to``, with ``api_key``.

    The first of a connection is a Ping, which connects it.
    """

    to: Text
    api_key: Int16
    api_version: Int16
    body: Pieces


@dataclass(frozen=True, slots=True)
class RelayResponse(Message):
    """``body`` is the response of ``to``, unread.

    ``error``: there is none, and this connection passes on nothing more; ``was_sent`` then says whether the request may
    have reached ``to`` all the same.
    """

    error: Code
    message: Text = ""
    was_sent: Bool = False
    body: Slice = b""


RESPONSES: dict[int, type[Message]] = {
    InternalKey.HELLO: HelloResponse,
    InternalKey.PING: PingResponse,
    InternalKey.ASK: AskResponse,
    InternalKey.PRODUCERS: ProducersResponse,
    InternalKey.LIVE_SEGMENT: LiveSegmentResponse,
    InternalKey.SHARD_OPEN: ShardOpenResponse,
    InternalKey.SHARD_APPEND: ShardAppendResponse,
    InternalKey.FORWARD: ForwardResponse,
    InternalKey.ADMIN: AdminResponse,
    InternalKey.REPORT: ReportResponse,
    InternalKey.HANDED_OVER: HandedOverResponse,
    InternalKey.LOAD: LoadResponse,
    InternalKey.LEAVE: LeaveResponse,
    InternalKey.RELAY: RelayResponse,
    InternalKey.SHARDS_NOT_LOADED: ShardsNotLoadedResponse,
    InternalKey.SHARD_CONFIRM: ShardConfirmResponse,
    InternalKey.OPEN_FILES: OpenFilesResponse,
    InternalKey.HIGH_WATERMARKS: HighWatermarksResponse,
    InternalKey.ASK_PARTITIONS: AskPartitionsResponse,
    InternalKey.PARTITIONS_NOT_SERVED: PartitionsNotServedResponse,
    InternalKey.TRAFFIC: TrafficResponse,
    InternalKey.LOG_LEVELS: LogLevelsResponse,
    InternalKey.HISTORY: HistoryResponse,
    InternalKey.GROUP_LAG: GroupLagResponse,
    InternalKey.LOG_SIZES: LogSizesResponse,
}
