"""Numbers of a coordinator that ``/metrics`` shows: its shards, its transactions, and the lag of its groups."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.console.state import Own, OwnMetric, OwnSeries
from bmq.coordinator.offsets.lag import LagReport
from bmq.server.queries.transaction_metrics import transaction_metrics
from bmq.server.roles.coordinator import CoordinatorRole


def coordinator_metrics(role: CoordinatorRole, oldest_transaction_s: float) -> Sequence[Own]:
    """Return the numbers of one coordinator's shards; ``oldest_transaction_s`` is as of the last count."""
    coordinator = role.coordinator
    text = "Shards that this process cannot load: their groups or transactions are not served"
    unverified = "Offset commits that wait until the coordinators of their transactions know of them"
    pending = "How long the oldest transaction has had pending offsets in a group's shard, whose log it keeps"
    refused = "Requests that would have created a group past max_groups of their user"
    return (
        OwnMetric("user_groups_refused", refused, coordinator.groups_refused, True),
        OwnMetric("unverified_offset_commits", unverified, coordinator.commits_unverified),
        OwnMetric("oldest_pending_offsets_age_seconds", pending, coordinator.oldest_pending_s),
        *transaction_metrics(role.transactions.shards, oldest_transaction_s),
        *(
            OwnMetric("shards_not_loaded", text, count, False, "reason", reason)
            for reason, count in role.shards_not_loaded_by_reason().items()
        ),
    )


def lag_metrics(report: LagReport) -> Sequence[Own]:
    """Return the lag of one coordinator's groups, under the names of kafka_exporter where it has one."""
    pairs = ("consumergroup", "topic")
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
        OwnSeries(
            "group_lag_max",
            "The largest lag of a group in one partition of a topic",
            pairs,
            [((each.group, each.topic), each.lag_max) for each in report.pairs],
        ),
        OwnMetric(
            "group_lag_unknown",
            "Partitions with committed offsets whose high watermark no broker has reported",
            report.partitions_unknown,
        ),
    )
