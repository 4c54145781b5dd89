"""Numbers of a ``Node`` that ``/metrics`` shows beside the request counters: storage, cluster, store and process."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.broker.broker import Broker
from bmq.console.state import Own as OneOwn
from bmq.console.state import OwnHistogram, OwnMetric, OwnSeries
from bmq.coordinator.transaction_shard.manager import TransactionShards
from bmq.core.metrics.counters import Histogram
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.core.records.walk import WALKER
from bmq.meta.cluster.member import PROXY
from bmq.server.audit import audit_metrics
from bmq.server.node import Node
from bmq.server.queries.cleaning_metrics import cleaning_metrics
from bmq.server.queries.login_metrics import login_metrics
from bmq.server.queries.quota_metrics import quota_metrics
from bmq.server.queries.transaction_metrics import transaction_metrics
from bmq.storage.access import REFUSALS
from bmq.storage.logins import LOGINS

Own = Sequence[OneOwn]


class OwnMetrics:
    """Reader of one process's numbers.  All are counted already, so a scrape costs microseconds of the event loop.

    ``meter`` measures the event loop, ``descriptors`` the process; both are None under a simulation's clock.
    """

    def __init__(self, node: Node, meter: LoopMeter | None = None, descriptors: DescriptorMeter | None = None) -> None:
        self._node = node
        self._meter = meter
        self._descriptors = descriptors

    def read(self) -> Own:
        """Return the numbers as they are now, and start the next collection of those that are collected.

        The numbers of ``Counts`` are as old as the last count: the caller awaits ``Counts.count`` before.
        """
        node = self._node
        text = "Keys of the metadata store and topics that this process cannot use, see the log"
        node.collected.request()
        return (
            *self._of_broker(),
            *self._of_coordinator(),
            *self._of_group_lag(),
            OwnMetric("quarantined", text, len(node.quarantined())),
            *self._of_certificates(),
            *audit_metrics(node.proxy.audit_log),
            *self._of_quotas(),
            *self._of_cluster(),
            *self._of_leader(),
            *self._of_deleted_topics(),
            *self._of_access(),
            *login_metrics(LOGINS),
            *self._of_etcd_database(),
            *self._of_storage_room(),
            *self._of_etcd_calls(),
            *self._of_reads(),
            *self._of_stages(),
            *self._of_loop(),
            *self._of_descriptors(),
        )

    def _of_broker(self) -> Own:
        role = self._node.broker
        if role is None:
            return ()
        broker, counts = role.broker, self._node.collected.counts
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
            *self._of_log_sizes(),
            *cleaning_metrics(broker.janitor.cleaning, counts.cleaning),
            OwnMetric("unflushed_bytes", "Bytes accepted and not yet acknowledged by storage", broker.unflushed_bytes),
            OwnMetric("unflushed_bytes_limit", "Most unflushed bytes", broker.config.buffer_bytes_total),
            OwnMetric("partitions_handed_over", "Partitions that left this process", broker.moved_total, True),
            *_broker_times(broker),
        )

    def _of_log_sizes(self) -> Own:
        sizes = self._node.collected.log_sizes
        if sizes is None:
            return ()
        text = "Partitions owned here whose bytes on storage are not counted yet"
        return (OwnMetric("log_size_unknown", text, sizes.partitions_unknown),)

    def _of_certificates(self) -> Own:
        text = "Seconds until the certificate of a TLS listener expires"
        return [
            OwnMetric("certificate_expires_in_seconds", text, each.expires_in_s, False, "listener", name)
            for name, each in self._node.certificates.items()
        ]

    def _of_quotas(self) -> Own:
        if PROXY not in self._node.config.roles:
            return ()
        quotas = self._node.security.quotas
        return tuple(quota_metrics(quotas, quotas.now()))

    def _of_coordinator(self) -> Own:
        role = self._node.coordinator
        if role is None:
            return ()
        coordinator = role.coordinator
        text = "Shards that this process cannot load: their groups or transactions are not served"
        unverified = "Offset commits that wait until the coordinators of their transactions know of them"
        pending = "How long the oldest transaction has had pending offsets in a group's shard, whose log it keeps"
        shards, oldest_s = role.transaction_shards, self._node.collected.counts.oldest_transaction_s
        refused = "Requests that would have created a group past max_groups of their user"
        return [
            OwnMetric("user_groups_refused", refused, coordinator.groups_refused, True),
            OwnMetric("unverified_offset_commits", unverified, coordinator.commits_unverified),
            OwnMetric("oldest_pending_offsets_age_seconds", pending, coordinator.oldest_pending_s),
            *(transaction_metrics(shards, oldest_s) if isinstance(shards, TransactionShards) else ()),
            *(
                OwnMetric("shards_not_loaded", text, count, False, "reason", reason)
                for reason, count in role.shards_not_loaded_by_reason().items()
            ),
        ]

    def _of_group_lag(self) -> Own:
        """Return the lag of the groups that this process coordinates."""
        lag = self._node.collected.group_lag
        if lag is None:
            return ()
        pairs, report = ("consumergroup", "topic"), lag.report
        return (
            OwnSeries(
                "kafka_consumergroup_lag_sum",
                "Records between a group's committed offsets and the high watermarks, in all partitions of a topic",
                pairs,
                [((each.group, each.topic), each.lag) for each in report.pairs],
            ),
            OwnSeries(
                "kafka_consumergroup_current_offset_sum",
                "Sum of a group's committed offsets in all partitions of a topic",
                pairs,
                [((each.group, each.topic), each.offset_sum) for each in report.pairs],
            ),
            OwnSeries(
                "kafka_consumergroup_lag",
                "Records between a group's committed offset and the high watermark",
                (*pairs, "partition"),
                [((each.group, each.topic, str(each.partition)), each.lag) for each in report.partitions],
            ),
            OwnMetric(
                "group_lag_unknown",
                "Partitions with committed offsets whose high watermark no broker has reported",
                report.partitions_unknown,
            ),
        )

    def _of_deleted_topics(self) -> Own:
        """Return the numbers of the process that removes deleted topics from storage."""
        role = self._node.controller
        cleaner = role.cleaner if role is not None else None
        if cleaner is None:
            return ()
        return (
            OwnMetric("deleted_topics", "Deleted topics that are not removed from storage yet", cleaner.waiting),
            OwnMetric(
                "deleted_topics_failing", "Deleted topics that could not be removed, see the log", cleaner.failing
            ),
        )

    def _of_access(self) -> Own:
        """Return how far files have the owner, group and mode of their topics: the leader's walks, and own refusals."""
        text = "New files that storage did not give the owner or group of their topic, see the log"
        refused = OwnMetric("storage_access_refused", text, REFUSALS.total, True)
        role = self._node.controller
        walks = role.access_walks if role is not None else None
        if walks is None:
            return (refused,)
        return (
            refused,
            OwnMetric(
                "topics_access_under_way", "Topics whose files get another owner, group or mode", walks.under_way
            ),
            OwnMetric("topics_access_failing", "Those of them that storage refuses, see the log", walks.failing),
        )

    def _of_etcd_database(self) -> Own:
        """Return the numbers of the leader, which reads etcd's status."""
        role = self._node.controller
        upkeep = role.store_upkeep if role is not None else None
        if upkeep is None or upkeep.status is None:
            return ()
        status = upkeep.status
        return (
            OwnMetric("etcd_database_bytes", "Size of etcd's database", status.bytes),
            OwnMetric("etcd_database_bytes_in_use", "The same without what defragmenting frees", status.bytes_in_use),
            OwnMetric("etcd_quota_bytes", "Size past which etcd takes no writes; 0: not known", status.quota_bytes),
            OwnMetric("etcd_is_full", "Whether etcd takes no writes, since its database is full", status.is_full),
            OwnMetric("etcd_compacted_revision", "Revision of this leader's last compaction", upkeep.history.compacted),
        )

    def _of_storage_room(self) -> Own:
        """Return the room of storage, of the leader; 0 where storage does not report a number."""
        role, known = self._node.controller, self._node.storage_room.known
        if role is None or not role.is_leader or known is None:
            return ()
        space, usage = known["space"], known["usage"]
        return (
            OwnMetric(
                "storage_capacity_bytes", "Size of the whole storage; 0: not known",
                space["capacity_bytes"] if space else 0,
            ),
            OwnMetric(
                "storage_remaining_bytes", "Free bytes of the whole storage, for all replicas together; 0: not known",
                space["remaining_bytes"] if space else 0,
            ),
            OwnMetric(
                "root_bytes", "Bytes of the root's files, of all replicas; 0: not known", usage["bytes"] if usage else 0
            ),
            OwnMetric(
                "root_quota_bytes", "Space quota of the root; 0: none", (usage["bytes_quota"] or 0) if usage else 0
            ),
            OwnMetric("root_names", "Files and folders of the root; 0: not known", usage["names"] if usage else 0),
            OwnMetric(
                "root_quota_names", "Name quota of the root; 0: none", (usage["names_quota"] or 0) if usage else 0
            ),
        )  # fmt: skip

    def _of_etcd_calls(self) -> Own:
        store = self._node.store_times
        if store is None:
            return ()
        return (
            OwnHistogram(
                "etcd_call_seconds",
                "Seconds that a call to etcd took, with its further attempts",
                store.calls_ms,
                "call",
            ),
            OwnMetric("etcd_calls_failed", "Calls that no etcd member responded to in time", store.calls_failed, True),
        )

    def _of_cluster(self) -> Own:
        """Return the numbers of a cluster's member."""
        node = self._node
        joined, remote, view = node.joined, node.proxy.remote_owners, node.view
        is_leader = node.controller is not None and node.controller.is_leader
        return (
            OwnMetric(
                "kafka_controller_kafkacontroller_activecontrollercount", "Whether this process leads", int(is_leader)
            ),
            OwnMetric("cluster_members", "Processes of the cluster", len(view.members)),
            OwnMetric("cluster_has_leader", "Whether a controller is known to lead", view.controller is not None),
            OwnMetric("is_leader", "Whether this process leads the cluster", is_leader),
            *(
                OwnMetric("feature_level", "Level of a feature in force", view.levels.of(name), False, "feature", name)
                for name in sorted(joined.features.ranges.keys() | view.levels.levels.keys())
            ),
            OwnMetric("is_member", "Whether the metadata store knows this process", joined.membership.is_member),
            OwnMetric(
                "lease_age_seconds",
                "Seconds since the metadata store renewed this process's lease",
                joined.membership.lease_age_s,
            ),
            OwnMetric("assigned_partitions", "Partitions that this process is to own", view.owned_count(view.own)),
            OwnMetric("peers_connected", "Processes that this one has a connection to", joined.peers.connected),
            OwnMetric(
                "ways_relayed", "Connections through other proxies to brokers not reached directly", remote.relayed
            ),
            OwnMetric(
                "produces_kept",
                "Parts of produce requests that wait for a partition that is moving or full",
                node.held_produces,
            ),
            OwnMetric("partitions_followed", "Partitions of other processes that are read here", remote.followed),
        )

    def _of_leader(self) -> Own:
        role = self._node.controller
        term = role.controller.leading if role is not None else None
        if term is None:
            return ()
        dead = "Members that this leader has declared dead"
        moves = "Partitions and shards that this leader has given an owner"
        partitions, shards = term.without_owner()
        return (
            OwnMetric("partitions_without_owner", "Partitions that no live broker is to own", partitions),
            OwnMetric("shards_without_owner", "Coordinators' shards that no live coordinator is to serve", shards),
            *(
                OwnMetric("members_declared_dead", dead, count, True, "cause", cause)
                for cause, count in term.failures.declared_dead.items()
            ),
            *(
                OwnMetric("moves", moves, count, True, "why", why.name.lower())
                for why, count in term.pending_moves.moves.items()
            ),
            OwnMetric("moves_pending", "Moves whose source has not handed over yet", len(term.pending_moves)),
        )

    def _of_reads(self) -> Own:
        node = self._node
        pool, budget = node.pool, node.config.cache_bytes
        return (
            OwnMetric("tail_cache_bytes", "Bytes that the tail cache holds", node.proxy.fetch_service.tails.used),
            OwnMetric("block_cache_bytes", "Bytes of blocks read from storage that are kept", pool.cached_bytes),
            OwnMetric(
                "fetch_response_bytes_held",
                "Bytes of fetch responses that are being made or sent",
                node.proxy.fetch_service.budget.response_bytes,
            ),
            OwnMetric(
                "fetch_responses_waiting",
                "Fetches that wait for memory for their response",
                node.proxy.fetch_service.budget.waiting,
            ),
            OwnMetric("cache_budget_bytes", "Bytes that caches and responses may take together", budget),
            OwnMetric("block_cache_hits", "Blocks found in the block cache", pool.hits, True),
            OwnMetric("block_cache_hit_bytes", "Bytes of these blocks", pool.hit_bytes, True),
            OwnMetric("storage_reads", "Reads from storage", pool.reads, True),
            OwnMetric("storage_read_bytes", "Bytes read from storage", pool.read_bytes, True),
        )

    def _of_stages(self) -> Own:
        node = self._node
        produce: dict[str, Histogram] = {"route": node.proxy.remote_owners.route_ms}
        if node.broker is not None:
            context = node.broker.broker.context
            produce |= {"queue": context.queue_ms, "flush": context.flush_ms}
        fetch = {"wait": node.proxy.fetch_service.wait_ms, "read": node.proxy.fetch_service.read_ms}
        return (
            OwnHistogram("produce_stage_seconds", "Seconds that produced batches spent in a stage", produce, "stage"),
            OwnHistogram("fetch_stage_seconds", "Seconds that fetches spent in a stage", fetch, "stage"),
        )

    def _of_loop(self) -> Own:
        meter = self._meter
        if meter is None:
            return ()
        return (
            OwnHistogram("loop_delay_seconds", "Seconds that a timer of the event loop was late", {"": meter.delay_ms}),
            OwnMetric(
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent",
                "Share of the last minute in which the event loop's thread had nothing to do, 0 to 1",
                meter.idle,
            ),
        )

    def _of_descriptors(self) -> Own:
        meter = self._descriptors
        if meter is None:
            return ()
        text = "Files and connections not opened, and failed tries once a second, because no file descriptor was left"
        return (OwnMetric("descriptor_failures", text, meter.failures, True),)


def _broker_times(broker: Broker) -> Own:
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
