"""A broker's side of the internal port: Kafka's Produce and Fetch over what this process owns, and the private APIs.

The same handlers answer as on the clients' port, with other services.  What differs inside:

* Only local owners are asked: a partition that is not assigned here is refused at once (NOT_LEADER_OR_FOLLOWER, the
  caller's view or ours is a moment old), one that is being opened is held.  A topic that our catalog does not show yet
  is UNKNOWN_TOPIC_ID, which passes too.
* Nothing is created: neither API ever makes a topic.  Producing to an internal topic by Produce stays refused;
  coordinators write ``__consumer_offsets`` by ShardAppend.  Fetching it is allowed, as for anybody.
* Metrics are apart, so that a process that is proxy and broker counts what its clients do once.  What a partition is
  used for is counted for the controller (``broker.traffic``).
* Fetch sessions are apart too: one a proxy, which may hold many partitions, is never evicted for a client's.
* The limits of ``held_produce_ms`` and ``queued.max.request.bytes`` hold here as well: a proxy that keeps to its credit
  meets neither.
"""

from __future__ import annotations

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.internal_api import BrokerApi, Registry
from bmq.broker.shard_log_api import CheckOwnership, ShardLogApi
from bmq.broker.shard_log_fence import ShardFence
from bmq.broker.traffic import TrafficCounters
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import Metrics
from bmq.endpoint.api import Api, Services
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.fetch import handler as fetch
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.produce import handler as produce
from bmq.meta.catalog import Catalog
from bmq.storage.block_cache import BlockCache

INTERNAL_APIS: tuple[Api[Services], ...] = (*produce.APIS, *fetch.APIS)


def internal_services(
    config: NodeConfig,
    clock: Clock,
    catalog: Catalog,
    assigned: AssignedPartitions,
    load: TrafficCounters,
    *,
    pool: BlockCache,
    beside: FetchService | None,
) -> Services:
    """``beside`` is the reading of the same process's clients, which owners tell what they flush; None when there are
    none: then they tell ``services.reading``."""
    metrics = Metrics()
    return Services(
        config=config,
        clock=clock,
        metrics=metrics,
        catalog=catalog,
        owners=assigned,
        reading=FetchService(
            config,
            catalog,
            assigned,
            pool,
            clock,
            metrics,
            beside=beside,
            served=load.read,
            owner_patience_s=0.0,  # a proxy or a coordinator that asks here looks for the next owner itself
        ),
    )


def internal_dispatch(services: Services) -> Endpoint:
    """To be passed to ``InternalEndpoint.register_kafka``."""
    return Endpoint(services, INTERNAL_APIS)


def register_broker(
    endpoint: Registry,
    assigned: AssignedPartitions,
    load: TrafficCounters,
    places: OpenFileLimit,
    fence: ShardFence,
    check: CheckOwnership | None = None,
) -> None:
    """The private APIs that a broker answers."""
    BrokerApi(assigned, load, places).register(endpoint)
    ShardLogApi(assigned, fence, check).register(endpoint)
