"""Numbers of a cluster's member that ``/metrics`` shows: its membership, and the cluster as it sees it."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.console.state import Own, OwnMetric
from bmq.server.cluster_member import ClusterMember


def member_metrics(joined: ClusterMember, *, is_leader: bool) -> Sequence[Own]:
    """Return the numbers of one member."""
    view = joined.view
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
    )
