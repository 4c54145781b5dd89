"""Numbers of the cluster's leader that ``/metrics`` shows: its term, its upkeep, and the room of store and storage."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.console.state import Own, OwnMetric, StorageFacts
from bmq.server.roles.controller import ControllerRole


def leader_metrics(role: ControllerRole, room: StorageFacts | None) -> Sequence[Own]:
    """Return the numbers of a leader; none of a controller that does not lead.

    ``room`` are the facts of storage that were read last; None before the first.
    """
    return (
        *_term(role),
        *_deleted_topics(role),
        *_access_walks(role),
        *_etcd_database(role),
        *(_storage_room(room) if role.is_leader and room is not None else ()),
    )


def _term(role: ControllerRole) -> Sequence[Own]:
    term = role.controller.leading
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
            for cause, count in term.watch.declared_dead.items()
        ),
        *(
            OwnMetric("moves", moves, count, True, "why", why.name.lower())
            for why, count in term.pending_moves.moves.items()
        ),
        OwnMetric("moves_pending", "Moves whose source has not handed over yet", len(term.pending_moves)),
    )


def _deleted_topics(role: ControllerRole) -> Sequence[Own]:
    """Return the numbers of the process that removes deleted topics from storage."""
    cleaner = role.cleaner
    if cleaner is None:
        return ()
    return (
        OwnMetric("deleted_topics", "Deleted topics that are not removed from storage yet", cleaner.waiting),
        OwnMetric("deleted_topics_failing", "Deleted topics that could not be removed, see the log", cleaner.failing),
    )


def _access_walks(role: ControllerRole) -> Sequence[Own]:
    """Return the numbers of the walks that give files the owner, group and mode of their topics."""
    walks = role.access_walks
    if walks is None:
        return ()
    return (
        OwnMetric("topics_access_under_way", "Topics whose files get another owner, group or mode", walks.under_way),
        OwnMetric("topics_access_failing", "Those of them that storage refuses, see the log", walks.failing),
    )


def _etcd_database(role: ControllerRole) -> Sequence[Own]:
    """Return the numbers of etcd's status, which the leader reads."""
    upkeep = role.store_upkeep
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


def _storage_room(room: StorageFacts) -> Sequence[Own]:
    """Return the room of storage; 0 where storage does not report a number."""
    space, usage = room["space"], room["usage"]
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
