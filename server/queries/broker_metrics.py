"""Numbers of a broker that ``/metrics`` shows: its partitions, its open segments, its waits for storage."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.broker.broker import Broker
from bmq.broker.log_sizes import LogSizes
from bmq.console.state import Own, OwnHistogram, OwnMetric
from bmq.core.records.walk import WALKER
from bmq.server.queries.cleaning_metrics import cleaning_metrics
from bmq.server.queries.counts import Counts
from bmq.server.roles.broker import BrokerRole


def broker_metrics(role: BrokerRole, counts: Counts, sizes: LogSizes | None) -> Sequence[Own]:
    """Return the numbers of one broker; ``counts`` and ``sizes`` are as of the last count."""
    broker = role.broker
    return (
        OwnMetric("alarms", "Conditions reported to the operator, see the log", broker.reports_total, True),
        OwnMetric(
            "partitions_not_served",
            "Partitions assigned here that cannot be served: OFFLINE, or opening them failed",
            counts.not_served.total,
        ),
        OwnMetric(
            "unverified_batches",
            "Batches that wait until the coordinators of their transactions know of the partition",
            broker.context.state.unverified,
        ),
        OwnMetric("open_pipelines", "Segments that are open for writing", broker.open_pipelines),
        OwnMetric(
            "waiting_for_place",
            "Partitions that wait for others' segments to be closed, since no more may be open",
            broker.waiting_for_place,
        ),
        OwnMetric(
            "longest_wait_for_place_seconds",
            "How long the partition has waited that waits longest for others' segments to be closed",
            broker.longest_wait_for_place_s,
        ),
        OwnMetric(
            "open_pipelines_limit",
            "Segments that may be open now: open_pipelines_max, or what storage has had room for",
            broker.open_pipelines_limit,
        ),
        OwnMetric(
            "under_min_isr",
            "Partitions that storage gives fewer datanodes than min.insync.replicas asks for",
            broker.under_min_isr,
        ),
        OwnMetric(
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions that storage gives fewer datanodes than min.insync.replicas asks for",
            broker.under_min_isr,
        ),
        OwnMetric(
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions whose open segment is written to fewer datanodes than its replication asks for",
            broker.under_replicated,
        ),
        OwnMetric(
            "record_check_compiled",
            "1: produced records are checked by compiled code; 0: in Python, which is slow",
            int(WALKER.is_compiled),
        ),
        OwnMetric(
            "waiting_for_store",
            "Partitions that wait for the metadata store, and not for storage",
            broker.waiting_for_store,
        ),
        OwnMetric(
            "storage_stalled",
            "1: storage acknowledges nothing that this broker writes",
            int(bool(broker.storage_trouble)),
        ),
        *_log_sizes(sizes),
        *cleaning_metrics(broker.janitor.cleaning, counts.cleaning),
        OwnMetric("unflushed_bytes", "Bytes accepted and not yet acknowledged by storage", broker.unflushed_bytes),
        OwnMetric("unflushed_bytes_limit", "Most unflushed bytes", broker.config.buffer_bytes_total),
        OwnMetric("partitions_handed_over", "Partitions that left this process", broker.moved_total, True),
        *_broker_times(broker),
    )


def _log_sizes(sizes: LogSizes | None) -> Sequence[Own]:
    if sizes is None:
        return ()
    text = "Partitions owned here whose bytes on storage are not counted yet"
    return (OwnMetric("log_size_unknown", text, sizes.partitions_unknown),)


def _broker_times(broker: Broker) -> Sequence[Own]:
    return (
        OwnHistogram(
            "checkpoint_flush_seconds",
            "Seconds that a flush of checkpoints to the journal took",
            {"": broker.journal.flush_ms},
        ),
        OwnHistogram(
            "takeover_seconds",
            "Seconds from the beginning of a takeover until the partition accepts batches",
            {"": broker.context.takeover_ms},
        ),
    )
