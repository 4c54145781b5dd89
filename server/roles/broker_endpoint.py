"""A broker's internal port: Kafka's Produce and Fetch for the partitions of this process, and the internal APIs.

Requests go through the same handlers as on the clients' port, with other scopes.  The differences:

* Only local owners serve.  A request for a partition that is not assigned to this process is refused at once with
  NOT_LEADER_OR_FOLLOWER: one of the two views is behind.  A request for a partition that is being opened is held, since
  this process knows when it is open: refused, the records would cross the network again.  A topic that
  the catalog does not show yet gets UNKNOWN_TOPIC_ID, which the caller retries too.
* Nothing is created: neither API ever creates a topic.  Produce to an internal topic is refused as for clients;
  coordinators write their topics by ShardAppend.  Fetch from it is allowed, as for clients.
* Parts carry transactional ids, on which the proxy has checked the client's rights. A client's tag does not count.
* Requests are not counted, so that a process that is proxy and broker counts its clients' requests once.  The traffic
  of each partition is counted for the controller (``broker.traffic``).
* Fetch sessions are separate too: a proxy has one session, which may have many partitions, and it is never evicted for
  a client's.
* The limits ``held_produce_ms`` and ``queued.max.request.bytes`` apply here as well; a proxy that keeps to its credit
  reaches neither.
"""

from __future__ import annotations

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.internal_api import BrokerApi
from bmq.broker.markers_api import MarkersApi
from bmq.broker.shard_log_api import CheckOwnership, ShardLogApi
from bmq.broker.shard_log_fence import ShardFence
from bmq.broker.traffic import TrafficCounters
from bmq.core.clock import Clock
from bmq.core.metrics.counters import UnreadCounters
from bmq.core.rpc.server import InternalEndpoint
from bmq.endpoint.api import Api
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.fetch import handler as fetch
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.produce import handler as produce
from bmq.endpoint.response_budget import ResponseBudget
from bmq.endpoint.scopes import AnyScopes, Caller, ListenerView, ProcessServices
from bmq.meta.catalog import Catalog

INTERNAL_APIS: tuple[Api[AnyScopes], ...] = (*produce.APIS, *fetch.APIS)


def internal_endpoint(
    view: ListenerView,
    clock: Clock,
    catalog: Catalog,
    assigned: AssignedPartitions,
    load: TrafficCounters,
    fetches: FetchContext,
) -> Endpoint:
    """Return the dispatch of Kafka's requests on the internal port, for ``InternalEndpoint.register_kafka``.

    Owners must notify ``fetches``, which the ``FetchService`` of the same process's clients shares.
    """
    config = view.config
    process = ProcessServices(
        clock=clock,
        catalog=catalog,
        owners=assigned,
        fetch_service=FetchService(
            config,
            catalog,
            assigned,
            fetches,
            clock,
            served=load.read,
            owner_patience_s=0.0,  # the calling proxy or coordinator finds the next owner itself
        ),
        responses=ResponseBudget(config.queued_max_request_bytes),
    )
    return Endpoint(process, view, Caller(metrics=UnreadCounters(), is_process=True), INTERNAL_APIS)


def register_broker(
    endpoint: InternalEndpoint,
    assigned: AssignedPartitions,
    load: TrafficCounters,
    open_files: OpenFileLimit,
    fence: ShardFence,
    check: CheckOwnership | None = None,
) -> None:
    """Register the internal APIs of a broker."""
    BrokerApi(assigned, load, open_files).register(endpoint)
    ShardLogApi(assigned, fence, check).register(endpoint)
    MarkersApi(assigned).register(endpoint)
