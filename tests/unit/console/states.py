"""A process as the console sees it, with a topic and a group in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

from bmq.console.history import HistoryFacts, HistorySample, MissingFacts
from bmq.console.lag_history import LagHistoryFacts, LagSampleFacts
from bmq.console.listing import Order, Page, cut
from bmq.console.operations import (
    NAMED_MAX,
    DrainFacts,
    LogLevelFacts,
    LogLevelsFacts,
    MovedFacts,
    MoveFacts,
    NotLoadedFacts,
    ProcessFacts,
    RateFacts,
    RoundFacts,
    StatusFacts,
    SwappedFacts,
)
from bmq.console.state import (
    GROUP_COLUMNS,
    TRANSACTION_COLUMNS,
    CleaningFacts,
    ClusterFacts,
    CommittedFacts,
    ConsoleState,
    Gauges,
    GroupDetails,
    GroupFacts,
    GroupsFacts,
    MarkerWaitFacts,
    OpenTransactionFacts,
    OpenTransactionsFacts,
    RootFacts,
    SegmentsFacts,
    SpaceFacts,
    StorageFacts,
    TopicDetails,
    TopicFacts,
    TopicSizes,
    TransactionDetails,
    TransactionFacts,
    TransactionFilter,
    TransactionsFacts,
)
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import PortCounters, RequestCounters
from bmq.core.security.session import Session
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import FetchedPartition
from bmq.meta.catalog import Topic

TOPIC = TopicFacts(
    name="orders",
    topic_id="4b2d3c1e-0000-4000-8000-000000000001",
    partitions=2,
    replication_factor=3,
    is_internal=False,
    configs=MappingProxyType({"retention.ms": "1000"}),  # any Mapping will do
    rates=None,
)
LISTED = Topic(
    name=TOPIC["name"], topic_id=UUID(TOPIC["topic_id"]), partitions=2, replication_factor=3, configs=TOPIC["configs"]
)
RATES = RateFacts(records_in=2.5, bytes_in=1000.0, bytes_out=0.0)
CLEANED = CleaningFacts(
    reason="below_ratio",
    why="its dirty ratio is not above min.cleanable.dirty.ratio",
    dirty_percent=12.5,
    cleaned_ms=1_700_000_000_000,
    bytes_before=1_000,
    bytes_after=400,
)
GROUP = GroupFacts(group_id="billing", state="Stable", protocol_type="consumer", members=1)
BUSY_GROUP = "loading"
TRANSACTION = TransactionFacts(
    transactional_id="billing",
    state="PrepareCommit",
    producer_id=7,
    producer_epoch=2,
    timeout_ms=60_000,
    started_ms=1_700_000_000_000 - 90_000,
)
"""It has the id of ``GROUP``: one example of a path's ``{id}`` does for both."""
BROKEN_TOPIC = "broken"
NOW_MS = 1_700_000_000_000


PROCESS = ProcessFacts(
    incarnation="broker-<1>",
    roles=["broker", "controller"],
    node_id=-1,
    kafka="",
    internal="127.0.0.1:9093",
    http="127.0.0.1:9080",
    zone="a",
    version="0.1.0",
    protocols=[1, 1],
    formats=1,
    features={"transaction.version": [0, 2]},
    is_draining=True,
    is_leader=True,
    partitions=7,
    shards=3,
    load_share=1.25,
    bytes_per_s=1000,
    requests_per_s=None,
    unreachable_for=0,
    rates=None,
    storage_trouble="storage acknowledges nothing: No space left on device",
)


REPAIRED = {
    "topic": "orders",
    "partition": 1,
    "offline_reason": "/topics/orders/x.log: shorter than its checkpoint: storage lost flushed bytes",
    "owner": "",
    "choice": "skip",
    "is_done": False,
    "log_start": 0,
    "end_offset": 6,
    "lost_offsets": 3,
    "segments": [
        {
            "segment": "x",
            "file": "/topics/orders/x.log",
            "bytes": 400,
            "base_offset": 0,
            "end_offset": 6,
            "is_changed": True,
            "lacks_index": False,
            "gaps": [{"first": 3, "last": 5, "position": 400, "why": "the file ends before"}],
            "notes": [],
        }
    ],
    "transactions": [
        {
            "producer_id": 7,
            "producer_epoch": 2,
            "first_offset": 1,
            "lost": [{"first": 3, "last": 5}],
            "dropped": ["a marker at offset 4"],
            "is_open": True,
            "marker": None,
            "marker_offset": None,
            "is_marker_written": False,
        }
    ],
    "set_aside": [],
    "notes": ["the journal of b is not read"],
}


MOVE = MoveFacts({"topic": "orders", "partition": 0, "from": "a", "to": "b", "why": "asked"})


CLEANING_ROUND: RoundFacts = {
    "topic_id": "00000000-0000-0000-0000-000000000007",
    "partition": 1,
    "start": 0,
    "first_dirty": 10,
    "end": 90,
    "now_ms": NOW_MS,
    "swap_until_ms": NOW_MS + 172_800_000,
    "delete_retention_ms": 86_400_000,
    "segment_bytes": 1 << 30,
    "index_interval_bytes": 65_536,
    "clean_bytes": 100,
    "dirty_bytes": 800,
    "hold_ms": 600_000,
    "aborted": "",
    "producers": "",
}


class FakeOperations:
    """Operations that record each request in ``asked``; ``fails`` is raised by the next one."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.fails = fails

    def members(self) -> Sequence[ProcessFacts]:
        return [PROCESS]

    async def status(self, named_max: int = NAMED_MAX) -> StatusFacts:
        self.named_max = named_max
        return {
            "cluster": "bmq",
            "cluster_id": "abc",
            "asked": PROCESS["incarnation"],
            "leader": PROCESS["incarnation"],
            "is_from_leader": True,
            "topics": 1,
            "partitions": 7,
            "unassigned": 0,
            "unassigned_shards": 0,
            "store_trouble": "",
            "features": [
                {
                    "feature": "transaction.version",
                    "level": 1,
                    "intended": 2,
                    "is_held": False,
                    "lowest": 0,
                    "highest": 2,
                }
            ],
            "features_epoch": 1,
            "is_balancing": False,
            "members": [PROCESS],
            "shards": [{"kind": "groups", "shard": 0, "coordinator": PROCESS["incarnation"]}],
            "shards_not_loaded": [
                {"kind": "groups", "shard": 0, "coordinator": PROCESS["incarnation"], "why": "it ends at 566"}
            ],
            "quarantined": [{"what": "/bmq/catalog/topics/x", "why": "it is of format 2"}],
            "quarantined_total": 1,
            "partitions_not_served": [
                {"topic": "orders", "partition": 1, "broker": PROCESS["incarnation"], "why": "offline: it ends at 566"}
            ],
            "partitions_not_served_total": 1,
            "rates": RATES,
            "silent": ["broker-2"],
            "moves_under_way": [MOVE],
            "past_moves": [
                {**MOVE, "ended_ms": NOW_MS, "took_ms": 120},
                {**MOVE, "ended_ms": NOW_MS - 1, "took_ms": None},
            ],
        }

    async def drain(self, member: str) -> DrainFacts:
        self._ask("drain", member)
        return {"member": PROCESS["incarnation"], "partitions": 7, "shards": 3}

    async def balance(self) -> int:
        self._ask("balance")
        return 4

    async def repair(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        self._ask("repair", *wanted.values())
        return REPAIRED

    async def begin_cleaning(self, topic: str, partition: int, job: str) -> RoundFacts:
        self._ask("begin_cleaning", topic, partition, job)
        return CLEANING_ROUND

    async def swap_cleaned(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: Sequence[Mapping[str, Any]],
    ) -> SwappedFacts:
        self._ask("swap_cleaned", topic, partition, job, end, swap_until_ms, *groups)
        return {"swapped": len(groups), "expired": 0, "stopped": None}

    async def end_cleaning(self, topic: str, partition: int, job: str) -> None:
        self._ask("end_cleaning", topic, partition, job)

    async def move(self, topic: str, partition: int, member: str) -> MovedFacts:
        self._ask("move", topic, partition, member)
        return {"topic": topic, "partition": partition, "member": PROCESS["incarnation"]}

    async def log_levels(self, member: str) -> LogLevelsFacts:
        self._ask("log_levels", member)
        return {
            "member": PROCESS["incarnation"],
            "loggers": [
                {"logger": "root", "level": "INFO", "is_set": True},
                {"logger": "bmq.broker", "level": "INFO", "is_set": False},
            ],
        }

    async def set_log_level(self, member: str, logger: str, level: str) -> LogLevelFacts:
        self._ask("set_log_level", member, logger, level)
        return {"member": PROCESS["incarnation"], "logger": logger, "level": level, "is_set": True}

    def _ask(self, *what: object) -> None:
        if self.fails is not None:
            raise self.fails
        self.asked.append(what)


class FakeRequests:
    """Kafka's answers for `TOPIC`: offsets 5 to 9 and no records; `fails` is the error code of each."""

    def of(self, session: Session, host: str) -> FakeRequests:
        self.session = session
        return self

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[tuple[ApiKey, Any]] = []
        self.fails = fails

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        self.sent.append((key, message))
        match key:
            case ApiKey.LIST_OFFSETS:
                return list_offsets_response(message, lambda _, part: (self.fails, 5 if part.timestamp == -2 else 9))
            case ApiKey.DESCRIBE_CONFIGS:
                return _configs(message, self.fails)
        raise AssertionError(f"no fake answers {key!r}")

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        return FetchedPartition(partition, 0, 9, 9, 5)

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        return 9


def list_offsets_response(message: Any, end_of: Callable[[str, Any], tuple[int, int]]) -> Any:
    """Return the response to a ListOffsets; `end_of` returns the error code and the offset of a topic's partition."""
    Topic = m.ListOffsetsResponse.ListOffsetsTopicResponse

    def described(name: str, part: Any) -> Any:
        code, offset = end_of(name, part)
        return Topic.ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code, offset=offset)

    return m.ListOffsetsResponse(
        topics=[
            Topic(name=topic.name, partitions=[described(topic.name, part) for part in topic.partitions])
            for topic in message.topics
        ]
    )


def _configs(message: Any, code: int) -> Any:
    Result = m.DescribeConfigsResponse.DescribeConfigsResult
    Config = Result.DescribeConfigsResourceResult
    config = Config(
        name="retention.ms", value="1000", read_only=False, config_source=1, is_sensitive=False, config_type=5,
        documentation="How long",
        synonyms=[Config.DescribeConfigsSynonym(name="log.retention.ms", value="7", source=5)],
    )  # fmt: skip
    (resource,) = message.resources
    result = Result(error_code=code, resource_type=2, resource_name=resource.resource_name, configs=[config])
    return m.DescribeConfigsResponse(results=[result])


async def _count() -> None:
    """Count nothing: the numbers are given."""


def state(
    counted: RequestCounters | None = None,
    gauges: Gauges | None = None,
    operations: FakeOperations | None = None,
    requests: FakeRequests | None = None,
    port: PortCounters | None = None,
) -> ConsoleState:
    return ConsoleState(
        client_requests=counted or RequestCounters(),
        client_port=port or PortCounters(),
        is_alive=lambda: (True, ""),
        is_ready=lambda: (True, ""),
        is_open=lambda: True,
        count=_count,
        gauges=lambda: gauges or Gauges(),
        cluster=_cluster,
        topics=lambda: [LISTED],
        topic_rates=_rates,
        topic=_topic,
        find_topic=lambda name: TOPIC.copy() if name == TOPIC["name"] else None,
        segments=_segments,
        storage=_storage,
        topic_sizes=_topic_sizes,
        groups=_groups,
        group=_group,
        committed=_committed,
        transactions=_transactions,
        transaction=_transaction,
        marker_waits=_marker_waits,
        open_transactions=_open_transactions,
        history=_history,
        group_lag=_group_lag,
        operations=operations or FakeOperations(),
        kafka=requests or FakeRequests(),
        now_ms=lambda: NOW_MS,
        pick=lambda count: count - 1,
    )


def _cluster() -> ClusterFacts:
    return {
        "cluster_id": "abc<def>",
        "version": "0.1.0",
        "node_id": 0,
        "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": 9092, "rack": None}],
        "topics": 1,
        "partitions": 2,
        "partitions_by_state": {"WRITE": 1, "RECOVER": 1},
        "connections": 7,
    }


async def _rates(names: Sequence[str]) -> Mapping[str, RateFacts | None]:
    return dict.fromkeys(names, RATES)


async def _history(after_ms: int) -> HistoryFacts:
    sample = HistorySample(
        time_ms=NOW_MS,
        processes=1,
        records_in_per_s=10.0,
        bytes_in_per_s=1000.0,
        bytes_out_per_s=0.0,
        produces_per_s=2.0,
        fetches_per_s=1.0,
        errors_per_s=0.0,
        connections=7,
        produce_p50_ms=1.5,
        produce_p99_ms=None,
        flush_p50_ms=None,
        flush_p99_ms=None,
    )
    samples = [each for each in (sample,) if each["time_ms"] > after_ms]
    missing = [MissingFacts(member="broker-2", why="it did not answer within 2 s")]
    return HistoryFacts(interval_ms=5_000, kept_ms=3_600_000, samples=samples, missing=missing)


async def _segments(topic: str, partition: int, page: Page) -> SegmentsFacts:
    block = {"position": 0, "bytes": 400, "nodes": ["dn0:9866", "dn1:9866"]}
    segment = {
        "segment": "00000000000000000005-00000003-0000", "base_offset": 5, "end_offset": None, "epoch": 3,
        "bytes": 400, "modified_ms": NOW_MS, "is_closed": False, "blocks": [block],
    }  # fmt: skip
    unknown = {**segment, "blocks": None, "end_offset": 5}
    return cast(
        SegmentsFacts,
        {"topic": topic, "partition": partition, "segments": [unknown, segment], "next": None, "error": ""},
    )


async def _topic(name: str, after: int, limit: int) -> TopicDetails | None:
    if name == BROKEN_TOPIC:
        raise ZeroDivisionError("a fault of ours")
    if name != TOPIC["name"]:
        return None
    details = {
        "topic": TOPIC,
        "partitions": [
            {
                "partition": 0,
                "owner": "broker-1",
                "state": "WRITE",
                "why": "",
                "epoch": 3,
                "log_start": 5,
                "high_watermark": 9,
                "bytes": 400,
                "rates": RATES,
                "cleaning": CLEANED,
            },
            {
                "partition": 1,
                "owner": "broker-1",
                "state": "RECOVER",
                "why": "being taken over",
                "epoch": 4,
                "log_start": None,
                "high_watermark": None,
                "bytes": None,
                "rates": None,
                "cleaning": {
                    "reason": "unknown",
                    "why": "its owner does not respond",
                    "dirty_percent": None,
                    "cleaned_ms": None,
                    "bytes_before": None,
                    "bytes_after": None,
                },
            },
        ][after + 1 :],
        "next": None,
    }
    return cast(TopicDetails, details)


async def _group_lag(group_id: str, after_ms: int) -> LagHistoryFacts:
    samples = [LagSampleFacts(time_ms=NOW_MS, lag=2)] if after_ms < NOW_MS else []
    return LagHistoryFacts(group_id=group_id, interval_ms=15_000, samples=samples, error="")


async def _storage() -> StorageFacts:
    space = SpaceFacts(capacity_bytes=1000, used_bytes=250, remaining_bytes=750)
    usage = RootFacts(bytes=200, bytes_quota=None, names=7, names_quota=1_000)
    return StorageFacts(
        root="hdfs://namenode/bmq", datanodes=4, space=space, usage=usage, is_in_safe_mode=False, missing_blocks=0,
        error="",
    )  # fmt: skip


async def _topic_sizes() -> TopicSizes:
    return TopicSizes({TOPIC["name"]: 400}, partitions_unknown=1, silent=["broker-2"])


async def _groups(
    search: str, order: Order, page: Page, is_visible: Callable[[str], bool] | None = None
) -> GroupsFacts:
    missing = NotLoadedFacts(kind="groups", shard=7, coordinator="coordinator-1", why="storage is full")
    columns = {name: itemgetter(name) for name in GROUP_COLUMNS}
    groups, following = cut(
        [GROUP] if search in GROUP["group_id"] and (is_visible is None or is_visible(GROUP["group_id"])) else [],
        columns,
        order,
        page,
    )
    return GroupsFacts(groups=groups, total=len(groups), next=following, shards_not_loaded=[missing])


async def _transactions(
    wanted: TransactionFilter, order: Order, page: Page, is_visible: Callable[[str], bool] | None = None
) -> TransactionsFacts:
    missing = NotLoadedFacts(kind="transactions", shard=3, coordinator="", why="NOT_COORDINATOR")
    columns = {name: itemgetter(name) for name in TRANSACTION_COLUMNS}
    is_in = is_visible is None or is_visible(TRANSACTION["transactional_id"])
    is_in = is_in and (not wanted.producer_ids or TRANSACTION["producer_id"] in wanted.producer_ids)
    shown, following = cut([TRANSACTION] if is_in else [], columns, order, page)
    return TransactionsFacts(transactions=shown, total=len(shown), next=following, shards_not_loaded=[missing])


async def _transaction(transactional_id: str) -> TransactionDetails | None:
    if transactional_id == BUSY_GROUP:
        raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being read")
    if transactional_id != TRANSACTION["transactional_id"]:
        return None
    partitions = [("orders", 1), ("__consumer_offsets", 3), ("orders", 0)]
    errors = {("orders", 0): "NOT_LEADER_OR_FOLLOWER"}
    return TransactionDetails(
        transaction=TRANSACTION, shard=4, coordinator="coordinator-1", partitions=partitions, marker_errors=errors
    )


async def _marker_waits(partitions: Sequence[tuple[str, int]]) -> Sequence[MarkerWaitFacts]:
    return [MarkerWaitFacts(topic=topic, partition=n, process="broker-1", why="") for topic, n in partitions]


async def _open_transactions(topic: str, partition: int) -> OpenTransactionsFacts:
    known, hanging = (
        OpenTransactionFacts(
            producer_id=number, producer_epoch=2, coordinator_epoch=-1, start_offset=number, last_timestamp_ms=NOW_MS
        )
        for number in (7, 8)
    )
    return OpenTransactionsFacts(log_start=5, last_stable_offset=7, high_watermark=9, transactions=[known, hanging])


async def _committed(group_id: str) -> Sequence[CommittedFacts]:
    return (await _details(group_id))["offsets"]


async def _group(group_id: str) -> GroupDetails | None:
    if group_id == BUSY_GROUP:
        raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being read")
    return await _details(group_id) if group_id == GROUP["group_id"] else None


async def _details(group_id: str) -> GroupDetails:
    return {
        "group": GROUP,
        "protocol": "range",
        "members": [
            {
                "member_id": "m-1",
                "group_instance_id": None,
                "client_id": "c",
                "client_host": "127.0.0.1",
                "assignment": {"orders": [0, 1]},
            }
        ],
        "offsets": [{"topic": "orders", "partition": 0, "offset": 7, "metadata": ""}],
    }
