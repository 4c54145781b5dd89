"""Admin acts, wherever the controller is: in this process (``TopicAdmin``) or at the leader (``RemoteAdmin``)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bmq.meta.catalog import Topic
from bmq.meta.config_changes import Changes


class Admin(Protocol):
    """Every method returns when this process's catalog shows the result, and raises RequestError with Kafka's code.

    What is answered with an error was not done, but for REQUEST_TIMED_OUT, whose text says whether that is known.
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
    ) -> Topic:
        """The new topic.  -1 takes the default.  TOPIC_ALREADY_EXISTS."""

    async def ensure_topic(self, name: str) -> Topic:
        """The topic, made with the defaults when it is not there."""

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> int:
        """The revision under which it is gone."""

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """The topic with ``count`` partitions in all."""

    async def alter_topic_configs(self, name: str, changes: Changes, *, validate_only: bool = False) -> Topic: ...

    async def alter_broker_configs(self, node_id: int | None, changes: Changes, *, validate_only: bool = False) -> int:
        """One node's, or (None) the cluster's defaults.  The revision of what is there."""


class ClusterAdmin(Protocol):
    """Acts on the cluster itself, for its operators."""

    async def drain(self, incarnation: str) -> None:
        """Have a member give up what it has, and end."""

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        """Assign one partition to a broker.  Balance may move it again when its time comes."""

    async def balance(self) -> int:
        """Even the brokers out now, below what would begin it by itself; the moves that this begins with."""

    async def status(self) -> dict[str, Any]:
        """Members, leader, load and what is assigned, for people and as JSON."""
