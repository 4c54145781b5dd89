"""Keys of the facts that every process watches, under a single prefix: a single watch gives them in their order.

No other key is there: a partition's record changes with every segment, and is its owner's alone.
"""

from __future__ import annotations

import uuid

from bmq.meta.shard_kinds import ShardKind


def cluster_prefix(cluster: str) -> str:
    return f"/{cluster}/cluster/"


def members_prefix(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}members/"


def member_key(cluster: str, incarnation: str) -> str:
    return f"{members_prefix(cluster)}{incarnation}"


def controller_key(cluster: str) -> str:
    """Return the key whose value is the incarnation of the controller's leader."""
    return f"{cluster_prefix(cluster)}controller"


def assignment_prefix(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}assignment/"


def assignment_key(cluster: str, topic_id: uuid.UUID, chunk: int) -> str:
    return f"{assignment_prefix(cluster)}{topic_id}/{chunk:04d}"


def shards_key(cluster: str, kind: ShardKind) -> str:
    """Return the key whose value has the owners of all shards of a kind."""
    return f"{cluster_prefix(cluster)}{kind.key}"


def features_key(cluster: str) -> str:
    """Return the key of the levels of features (``meta.cluster.levels``)."""
    return f"{cluster_prefix(cluster)}features"


def node_ids_prefix(cluster: str) -> str:
    return f"/{cluster}/ids/"


def node_id_key(cluster: str, node_id: int) -> str:
    """Return the key whose value is the incarnation of the proxy with this id for Kafka clients.

    No process watches it.
    """
    return f"{node_ids_prefix(cluster)}{node_id}"
