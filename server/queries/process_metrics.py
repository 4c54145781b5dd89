"""Numbers of a process that ``/metrics`` shows, whatever its roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bmq.console.state import Own, OwnHistogram, OwnMetric
from bmq.core.metrics.counters import ProcessCounters
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.core.security.tls import ServerTls
from bmq.meta.maintenance import CallTimes
from bmq.server.queries.login_metrics import login_metrics
from bmq.storage.access import REFUSALS
from bmq.storage.block_cache import BlockCache
from bmq.storage.logins import LOGINS
from bmq.storage.overdue_calls import OVERDUE_CALLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """The parts of a process that are measured, whatever its roles."""

    counters: ProcessCounters
    quarantined: Callable[[], Mapping[str, str]]
    """Returns the reason by key or topic that the process cannot use."""
    certificates: Mapping[str, ServerTls]
    """The TLS of the listeners that have it, by their names."""
    pool: BlockCache
    cache_bytes: int
    """Bytes that caches and responses may take together."""
    store_times: CallTimes | None
    """Counts and times of the calls to the metadata store; None if it runs in this process."""
    meter: LoopMeter | None
    """The meter of the event loop; None under a simulation's clock."""
    descriptors: DescriptorMeter | None
    """The meter of file descriptors; None under a simulation's clock."""


def process_metrics(parts: ProcessParts) -> Sequence[Own]:
    """Return the numbers of one process."""
    unusable = "Keys of the metadata store and topics that this process cannot use, see the log"
    given_up = "Times that all clients' connections were closed: this process stood still, or lost its membership"
    refused = "New files that storage did not give the owner or group of their topic, see the log"
    overdue = "Calls of a storage library past their time-outs; a call holds a thread"
    return (
        OwnMetric("clients_given_up", given_up, parts.counters.clients_given_up, True),
        OwnMetric("quarantined", unusable, len(parts.quarantined())),
        *_certificates(parts.certificates),
        OwnMetric("storage_access_refused", refused, REFUSALS.total, True),
        OwnMetric("storage_calls_overdue", overdue, OVERDUE_CALLS.number),
        *login_metrics(LOGINS),
        *(_etcd_calls(parts.store_times) if parts.store_times is not None else ()),
        *_reads(parts.pool, parts.cache_bytes),
        *(_loop(parts.meter) if parts.meter is not None else ()),
        *(_descriptors(parts.descriptors) if parts.descriptors is not None else ()),
    )


def _certificates(certificates: Mapping[str, ServerTls]) -> Sequence[Own]:
    text = "Seconds until the certificate of a TLS listener expires"
    return [
        OwnMetric("certificate_expires_in_seconds", text, each.expires_in_s, False, "listener", name)
        for name, each in certificates.items()
    ]


def _etcd_calls(store: CallTimes) -> Sequence[Own]:
    return (
        OwnHistogram(
            "etcd_call_seconds",
            "Seconds that a call to etcd took, with its further attempts",
            store.calls_ms,
            "call",
        ),
        OwnMetric("etcd_calls_failed", "Calls that no etcd member responded to in time", store.calls_failed, True),
    )


def _reads(pool: BlockCache, budget: int) -> Sequence[Own]:
    return (
        OwnMetric("block_cache_bytes", "Bytes of blocks read from storage that are kept", pool.cached_bytes),
        OwnMetric("cache_budget_bytes", "Bytes that caches and responses may take together", budget),
        OwnMetric("block_cache_hits", "Blocks found in the block cache", pool.hits, True),
        OwnMetric("block_cache_hit_bytes", "Bytes of these blocks", pool.hit_bytes, True),
        OwnMetric("storage_reads", "Reads from storage", pool.reads, True),
        OwnMetric("storage_read_bytes", "Bytes read from storage", pool.read_bytes, True),
    )


def _loop(meter: LoopMeter) -> Sequence[Own]:
    return (
        OwnHistogram("loop_delay_seconds", "Seconds that a timer of the event loop was late", {"": meter.delay_ms}),
        OwnMetric(
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent",
            "Share of the last minute in which the event loop's thread had nothing to do, 0 to 1",
            meter.idle,
        ),
    )


def _descriptors(meter: DescriptorMeter) -> Sequence[Own]:
    text = "Files and connections not opened, and failed tries once a second, because no file descriptor was left"
    return (OwnMetric("descriptor_failures", text, meter.failures, True),)
