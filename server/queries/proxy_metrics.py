"""Numbers of a proxy that ``/metrics`` shows: the audit log, quotas, ways to other processes, and clients' requests."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.console.state import Own, OwnHistogram, OwnMetric
from bmq.core.metrics.counters import Histogram
from bmq.proxy.quotas.request_quotas import RequestQuotas
from bmq.server.audit import audit_metrics
from bmq.server.queries.quota_metrics import quota_metrics
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.proxy import ProxyRole


def proxy_metrics(role: ProxyRole, broker: BrokerRole | None, quotas: RequestQuotas | None) -> Sequence[Own]:
    """Return the numbers of one proxy, with the stages of produced batches in the ``broker`` of the same process.

    ``quotas`` is None in a process that clients do not reach.
    """
    remote, fetches = role.remote_owners, role.fetch_service
    return (
        *audit_metrics(role.audit_log),
        *(quota_metrics(quotas, quotas.now()) if quotas is not None else ()),
        OwnMetric(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Incremental fetch sessions",
            len(fetches.sessions),
        ),
        OwnMetric("fetches_parked", "Fetches that wait for records", len(fetches.parked)),
        OwnMetric("ways_relayed", "Connections through other proxies to brokers not reached directly", remote.relayed),
        OwnMetric(
            "produces_kept",
            "Parts of produce requests that wait for a partition that is moving or full",
            role.services.produce_queue.parts,
        ),
        OwnMetric("partitions_followed", "Partitions of other processes that are read here", remote.followed),
        OwnMetric("tail_cache_bytes", "Bytes that the tail cache holds", fetches.tails.used),
        OwnMetric(
            "fetch_response_bytes_held",
            "Bytes of fetch responses that are being made or sent",
            fetches.budget.response_bytes,
        ),
        OwnMetric(
            "fetch_responses_waiting",
            "Fetches that wait for memory for their response",
            fetches.budget.waiting,
        ),
        *_stages(role, broker),
    )


def _stages(role: ProxyRole, broker: BrokerRole | None) -> Sequence[Own]:
    produce: dict[str, Histogram] = {"route": role.remote_owners.route_ms}
    if broker is not None:
        context = broker.broker.context
        produce |= {"queue": context.queue_ms, "flush": context.flush_ms}
    fetch = {"wait": role.fetch_service.wait_ms, "read": role.fetch_service.read_ms}
    return (
        OwnHistogram("produce_stage_seconds", "Seconds that produced batches spent in a stage", produce, "stage"),
        OwnHistogram("fetch_stage_seconds", "Seconds that fetches spent in a stage", fetch, "stage"),
    )
