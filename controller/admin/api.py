"""Interfaces of administration, wherever the leader is; ``controller.admin.client`` implements them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from bmq.controller.admin.messages import ClusterStatusResponse
from bmq.core.features import FeatureUpdate
from bmq.meta.catalog import Topic
from bmq.meta.config_changes import Changes


class Admin(Protocol):
    """Changes of topics, configs and levels of features.  Proxies import this module alone.

    Every method returns when this process's catalog shows the result, and raises RequestError with Kafka's code.  A
    change that ends with an error was not done.  Only the text of REQUEST_TIMED_OUT says whether the outcome is known.
    With ``validate_only`` a change is checked and not done.
    """

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        *,
        validate_only: bool = False,
        assignments: Mapping[int, Sequence[int]] | None = None,
        principal: str = "",
    ) -> Topic:
        """Create a topic and return it.  -1 takes the default.

        ``principal``: as ``User:alice``, whom the topic counts for; "" for nobody.

        ``assignments``: node ids of the replicas, by partition.  Raises RequestError TOPIC_ALREADY_EXISTS if there is
        one of this name.
        """

    async def ensure_topic(self, name: str, principal: str = "") -> Topic:
        """Return the topic, and create it with the defaults, for ``principal``, if it does not exist."""

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> int:
        """Delete the topic, if it has this id, and return the revision of the store from which on it does not exist."""

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Add partitions, so that the topic has ``count`` in all, and return the topic."""

    async def alter_topic_configs(self, name: str, changes: Changes, *, validate_only: bool = False) -> Topic:
        """Change the topic's configs and return the topic."""

    async def alter_broker_configs(self, node_id: int | None, changes: Changes, *, validate_only: bool = False) -> int:
        """Change one node's configs, or the cluster's defaults (None), and return the revision of the result."""

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set the levels of features, all or none, and return once they are in force.

        Raises RequestError INVALID_UPDATE_VERSION for the first refused update, FEATURE_UPDATE_FAILED if a process
        without the level registered meanwhile.
        """


class ClusterAdmin(Protocol):
    """Operators' requests about the cluster itself.  All methods raise RequestError."""

    async def drain(self, incarnation: str) -> None:
        """Have a member hand over its partitions and shards, and end."""

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        """Assign one partition to a broker.  Balancing may move it again after a while."""

    async def balance(self) -> int:
        """Balance the brokers now, also below the difference that begins it.  Returns the number of first moves."""

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set the levels of features; see ``Admin``."""

    async def status(self) -> ClusterStatusResponse:
        """Return members, leader, load and assignment."""
