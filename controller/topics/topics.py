"""Changes of topics and configs: creation, deletion, partitions and configs, by the leader.

A change is decided on the values in the store and committed by comparing their revisions.  So it can neither overwrite
a value that it was not decided on, nor be done twice (rule 7; KafScale #162 wrote a stale snapshot back over a newer
one).  If another writer was first, it is decided again.  An unknown outcome is settled before the response
(``meta.settled_commit``).  Nothing is written if nothing changes: looking a topic up a million times costs the store
nothing (KafScale #151).

All methods raise RequestError with Kafka's code: those of ``topic_rules``, INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION,
TOPIC_ALREADY_EXISTS, POLICY_VIOLATION past a principal's bound (``bounds``), and REQUEST_TIMED_OUT if the store does
not answer: Kafka's admin clients show its text.

Departure from Kafka: Kafka lets anyone delete an internal topic, which loses every group or every transaction, or add
partitions to it, which separates groups and transactional ids from their records.  Both are refused here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bmq.controller.kv_commit import CONFLICTS_MAX, Guard, contested, deposed, is_deposed
from bmq.controller.topics import internal_topics
from bmq.controller.topics.access_checks import AccessChecks
from bmq.controller.topics.bounds import More, PrincipalBounds
from bmq.controller.topics.deletion import DeletedTopic, deleted_key, encode_deleted
from bmq.controller.topics.files import Publisher
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.meta import broker_configs, topic_configs, topic_rules
from bmq.meta.catalog import (
    Catalog,
    Topic,
    broker_configs_key,
    decode_configs,
    decode_topic,
    encode_configs,
    encode_topic,
    topic_key,
)
from bmq.meta.config_changes import Changes, apply
from bmq.meta.kv import Commit, Compare, Delete, Entry, KeyValue, KvError, Put
from bmq.meta.security.client_quotas import Bounds, NoBounds
from bmq.meta.settled_commit import commit_settled, refused
from bmq.storage.access_files import AccessFiles
from bmq.storage.cluster_files import StoredTopics

T = TypeVar("T")
_log = logging.getLogger(__name__)

VIEW_S = 5.0
"""Time that a change waits until this process's catalog shows it.  The catalog is a message behind the store."""
REPLICAS_MAX = 32_767
"""Largest replication factor where storage has no bound: Kafka's type for it is int16."""


class TopicAdmin:
    """Administration of topics and configs, at the metadata store.

    ``publish``: the topics' files on storage.  ``replicas_max`` returns how many datanodes are alive; None: any
    replication factor is allowed.  ``nodes`` returns the node ids that an assignment may name.  ``guard`` returns
    comparisons that every commit contains as well.
    """

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        catalog: Catalog,
        config: NodeConfig,
        publish: StoredTopics,
        clock: Clock,
        *,
        guard: Guard,
        replicas_max: Callable[[], Awaitable[int]] | None = None,
        nodes: Callable[[], Collection[int]] | None = None,
        has_node_configs: bool = True,
        access_files: AccessFiles | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """``has_node_configs``: see ``KvCatalog``.  ``access_files``: storage, for topics' owner, group and mode.

        ``bounds``: the bounds on the topics and partitions of principals.
        """
        self._bounds = PrincipalBounds(kv, cluster, catalog, bounds or NoBounds())
        self._access = AccessChecks(catalog, config, access_files)
        self._has_node_configs = has_node_configs
        self._kv = kv
        self._cluster = cluster
        self._catalog = catalog
        self.config = config
        self._files = publish
        self._publisher = Publisher(publish, catalog, self._access.access)
        self._clock = clock
        self._replicas_max = replicas_max
        self._guard = guard
        self._nodes = nodes or (lambda: (config.node_id,))

    def renumber(self, config: NodeConfig) -> None:
        """Adopt the settings with a new node id, after the process has joined its cluster again."""
        self.config = config

    async def start(self) -> None:
        """Begin to write the topics' files that are owed to storage.  Call it after the catalog's ``start``."""
        self._publisher.start()

    async def close(self) -> None:
        """Stop writing topics' files."""
        await self._publisher.close()

    # ------------------------------------------------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        *,
        validate_only: bool = False,
        assignments: Mapping[int, Sequence[int]] | None = None,
        topic_id: uuid.UUID | None = None,
        principal: str = "",
    ) -> Topic:
        """Create a topic, and return it once the catalog shows it.  -1 takes the default.

        The topic counts for ``principal``, as ``User:alice``, or for nobody.

        With ``topic_id``, made by the caller, the request may be repeated when a response was lost: an existing topic
        with this id is the result.  Raises RequestError TOPIC_ALREADY_EXISTS for another topic of this name.
        """
        topic_rules.check_new_name(name, self._catalog.topics)
        existing = self._catalog.topics.get(name)
        if existing is not None:
            if existing.topic_id == topic_id:
                return existing
            raise _already_there(name)
        if assignments:
            if replication_factor != -1 or partitions != -1:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but numPartitions or replicationFactor was not -1.",
                )
            partitions, replication_factor = topic_rules.check_assignments(assignments, self._nodes())
        topic = await self._new_topic(name, partitions, replication_factor, configs or {}, principal)
        self._bounds.check(topic, More(1, topic.partitions))
        await self._access.check(topic, {})
        if validate_only:
            return topic
        if topic_id is not None:
            topic = replace(topic, topic_id=topic_id)
        made, existing = await self._create(topic)
        if existing is not None and existing.topic_id != topic_id:
            raise _already_there(name)
        if existing is not None:
            await self._shown(existing.revision)
        return existing or made

    async def ensure_topic(self, name: str, principal: str = "") -> Topic:
        """Return the topic, and create it with the defaults if it does not exist.  Concurrent calls create only one.

        A new topic counts for ``principal``.
        """
        topic = self._catalog.topics.get(name)
        if topic is not None:
            return topic
        topic_rules.check_new_name(name, self._catalog.topics)
        wanted = await self._new_topic(name, -1, -1, {}, principal)
        self._bounds.check(wanted, More(1, wanted.partitions))
        made, existing = await self._create(wanted)
        if existing is not None:
            await self._shown(existing.revision)
        return existing or made

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> int:
        """Delete the topic, and return the revision of the store from which on it does not exist.

        Its files are removed later (``deletion``).  Raises RequestError UNKNOWN_TOPIC_OR_PARTITION,
        TOPIC_DELETION_DISABLED, INVALID_REQUEST for an internal topic, and UNKNOWN_TOPIC_ID if the topic of this name
        has another id than ``topic_id``.
        """
        if not self.config.delete_topic_enable:
            raise RequestError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        if internal := internal_topics.BY_NAME.get(name):
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"{name} is internal: deleting it would lose {internal.holds}."
            )
        for _ in range(CONFLICTS_MAX):
            topic = await self._read_topic(name)
            if topic is None:
                raise _unknown(name)
            if topic_id not in (None, topic.topic_id):
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id}.")
            revision = await self._delete(topic)
            if revision is not None:
                await self._withdraw(topic)
                await self._shown(revision)
                return revision
        raise contested(f"topic {name}")

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Add partitions, so that the topic has ``count`` in all, and return the topic.

        Raises RequestError INVALID_PARTITIONS if that is not an increase.
        """

        def decide(topic: Topic) -> Topic:
            if topic.is_internal:
                raise RequestError(ErrorCode.INVALID_PARTITIONS, f"{name} is internal: its partitions are fixed.")
            if count == topic.partitions:
                raise RequestError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
            if count < topic.partitions:
                raise RequestError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} currently has {topic.partitions} partition(s); {count} would not be an"
                    " increase.",
                )
            topic_rules.check_partitions(count)
            added = count - topic.partitions
            if assignments is not None:
                if len(assignments) != added:
                    raise RequestError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s)"
                        " were specified.",
                    )
                topic_rules.check_replicas(assignments, self._nodes(), topic.replication_factor)
            return replace(topic, partitions=count)

        return await self._change_topic(name, decide, validate_only)

    # ----------------------------------------------------------------------------------------------------- configs

    async def alter_topic_configs(self, name: str, changes: Changes, *, validate_only: bool = False) -> Topic:
        """Change the topic's configs, and return the topic.

        Raises RequestError INVALID_CONFIG if the result would not be valid.
        """

        def default_list(config: str) -> str | None:
            return topic_configs.default_list(config, self.config, self._catalog.broker_configs(None))

        def decide(topic: Topic) -> Topic:
            return replace(topic, configs=_valid_topic_configs(name, apply(topic.configs, changes, default_list)))

        return await self._change_topic(name, decide, validate_only)

    async def alter_broker_configs(self, node_id: int | None, changes: Changes, *, validate_only: bool = False) -> int:
        """Change one node's dynamic configs, or the cluster's defaults (None), and return the revision of the result.

        Raises RequestError INVALID_REQUEST for a wrong config, as Kafka does (KAFKA-13609).
        """

        def default_list(config: str) -> str | None:
            return broker_configs.default_list(config, self.config, self._catalog.broker_configs(None))

        key = broker_configs_key(self._cluster, node_id)
        for _ in range(CONFLICTS_MAX):
            entry = await self._get(key)
            current = _readable(decode_configs, entry) if entry else {}
            wanted = apply(current, changes, default_list)
            try:
                wanted = broker_configs.validate(wanted)
            except ValueError as error:
                raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None
            if node_id is not None and not self._has_node_configs and not wanted.items() <= current.items():
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"{', '.join(sorted(wanted))} cannot be set for broker {node_id} alone: it is a default of topics,"
                    " whose partitions any broker of the cluster may own. Set it for all (kafka-configs --entity-type"
                    " brokers --entity-default), or for a topic.",
                )
            await self._access.check_defaults(wanted, current)
            if validate_only or wanted == current:
                return entry.revision if entry else 0
            revision = await self._put(key, entry.revision if entry else 0, encode_configs(wanted))
            if revision is not None:
                await self._shown(revision)
                return revision
        raise contested("this node's configs" if node_id is not None else "the brokers' configs")

    # ----------------------------------------------------------------------------------------------------- private

    async def _new_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
        principal: str,
    ) -> Topic:
        default_partitions, default_factor = self.config.num_partitions, self.config.default_replication_factor
        replicas_max = await self._replicas_max() if self._replicas_max else REPLICAS_MAX
        if replicas_max == 1:
            default_factor = 1  # a folder; with a few datanodes missing, HDFS makes up for it when they are back
        internal = internal_topics.BY_NAME.get(name)
        if internal:
            default_partitions = internal.partitions(self.config)
            if partitions not in (-1, default_partitions):
                raise RequestError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{name} is internal: it has {default_partitions} partitions ({internal.setting}).",
                )
        partitions = default_partitions if partitions == -1 else partitions
        if replication_factor == -1:
            replication_factor = default_factor
        else:
            topic_rules.check_replication_factor(replication_factor, replicas_max)
        topic_rules.check_partitions(partitions)
        if internal:
            configs = {**internal.configs(self.config, min(replication_factor, replicas_max)), **configs}
        return Topic(
            name=name,
            topic_id=uuid.uuid4(),
            partitions=partitions,
            replication_factor=replication_factor,
            configs=_valid_topic_configs(name, configs),
            principal="" if internal else principal,
        )

    async def _create(self, topic: Topic) -> tuple[Topic, Topic | None]:
        """Return (the created topic, None), or (its argument, the topic that existed)."""
        key, value = topic_key(self._cluster, topic.name), encode_topic(topic)
        tomb = deleted_key(self._cluster, topic.topic_id)
        await self._access.prepare(topic)
        with self._publisher.owing(topic.name):
            compares, more = [Compare(key, 0), Compare(tomb, 0)], More(1, topic.partitions)
            try:
                commit, _ = await self._put_bounded(topic, more, compares, Put(key, value))
            except RequestError as error:
                if error.code is ErrorCode.POLICY_VIOLATION:
                    await self._access.withdraw(topic)
                raise
            revision = commit.revision
            if not commit.succeeded:
                found, buried = commit.current[key], commit.current[tomb]
                if buried is not None:  # an earlier try created it, and it was deleted since: ids are not used twice
                    await self._shown(buried.revision)
                    return replace(topic, revision=buried.revision), None
                if found is None:
                    raise deposed()
                if found.value != value:  # the id is of this request alone: another value is another topic
                    existing = _readable_topic(topic.name, found)
                    if existing.topic_id != topic.topic_id:
                        await self._access.withdraw(topic)
                    return topic, existing
                revision = found.revision
            topic = replace(topic, revision=revision)
            _log.info(
                "created topic %s of %d partition(s)", topic.topic_id, topic.partitions, extra=fields(topic=topic.name)
            )
            await self._publisher.publish(topic)
        await self._shown(revision)
        return topic, None

    async def _delete(self, topic: Topic) -> int | None:
        """Delete the topic, and return the revision of that; None if another writer has changed it."""
        key, tomb = topic_key(self._cluster, topic.name), deleted_key(self._cluster, topic.topic_id)
        value = encode_deleted(self._deleted(topic))
        compares = [Compare(key, topic.revision), Compare(tomb, 0)]
        commit, may_be_ours = await self._settle(compares, [Delete(key), Put(tomb, value)])
        if commit.succeeded:
            _log.info("deleted topic %s", topic.topic_id, extra=fields(topic=topic.name))
            return commit.revision
        buried = commit.current[tomb]
        if may_be_ours and buried is not None and buried.value == value:
            return buried.revision
        return None

    def _deleted(self, topic: Topic) -> DeletedTopic:
        node = self.config.node_id
        values = topic_configs.effective(
            topic.configs,
            self.config,
            self._catalog.broker_configs(None),
            self._catalog.broker_configs(node),
            is_internal=topic.is_internal,
        )
        return DeletedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            revision=topic.revision,
            deleted_at_ms=self._clock.now_ms(),
            delay_ms=int(values["file.delete.delay.ms"]),
        )

    async def _withdraw(self, topic: Topic) -> None:
        """Remove the topic's file at once, so that no reader plans to read it; if storage fails, the cleaner does."""
        try:
            await self._files.withdraw(topic.name, topic.revision)
        except RequestError as error:
            _log.info(
                "a topic is deleted, its file on storage is removed later",
                extra=fields(topic=topic.name, error=error.message),
            )

    async def _change_topic(self, name: str, decide: Callable[[Topic], Topic], validate_only: bool) -> Topic:
        for _ in range(CONFLICTS_MAX):
            topic = await self._read_topic(name)
            if topic is None:
                raise _unknown(name)
            wanted = decide(topic)
            more = More(0, wanted.partitions - topic.partitions)
            self._bounds.check(wanted, more)
            await self._access.check(wanted, topic.configs)
            if validate_only or wanted == topic:
                return wanted
            with self._publisher.owing(name):
                revision = await self._put_topic(wanted, more)
                if revision is None:
                    continue
                wanted = replace(wanted, revision=revision)
                await self._publisher.publish(wanted)
            await self._shown(revision)
            return wanted
        raise contested(f"topic {name}")

    async def _put_topic(self, topic: Topic, more: More) -> int | None:
        """Write a topic if its record is still at the topic's revision; ``more`` is what it adds, of no topic or some.

        Return the new revision, or None if another writer was first.
        """
        key, value = topic_key(self._cluster, topic.name), encode_topic(topic)
        if not more.partitions:
            return await self._put(key, topic.revision, value)
        done = await self._put_bounded(topic, more, [Compare(key, topic.revision)], Put(key, value))
        return _revision_of(done, key, value)

    async def _put(self, key: str, revision: int, value: bytes) -> int | None:
        """Write ``value`` if the key is still at ``revision``.  Returns the new revision, or None if it is not."""
        return _revision_of(await self._settle([Compare(key, revision)], [Put(key, value)]), key, value)

    async def _put_bounded(
        self, topic: Topic, more: More, compares: Sequence[Compare], put: Put
    ) -> tuple[Commit, bool]:
        """Write a topic that adds ``more`` within its principal's bounds; the result is that of ``_settle``."""
        may_be_ours = False

        async def attempt(others: Sequence[Compare], writes: Sequence[Put]) -> Commit:
            nonlocal may_be_ours
            commit, may_be_ours = await self._settle([*compares, *others], [put, *writes])
            return commit

        return await self._bounds.commit(topic, more, put.key, put.value, attempt), may_be_ours

    async def _settle(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> tuple[Commit, bool]:
        guard = self._guard()
        try:
            settled = await commit_settled(self._kv, [*guard, *compares], writes)
        except KvError as error:
            raise refused(error) from error
        if is_deposed(guard, settled.commit) and not settled.may_be_ours:
            raise deposed()
        return settled

    async def _get(self, key: str) -> Entry | None:
        try:
            return await self._kv.get(key)
        except KvError as error:
            raise refused(error) from error

    async def _read_topic(self, name: str) -> Topic | None:
        entry = await self._get(topic_key(self._cluster, name))
        return None if entry is None else _readable_topic(name, entry)

    async def _shown(self, revision: int) -> None:
        """Wait until this process's catalog shows a change that is done, so that the client's next request finds it."""
        try:
            async with asyncio.timeout(VIEW_S):
                await self._catalog.wait_revision(revision)
        except (TimeoutError, KvError) as error:
            raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "done, but not seen here yet") from error


def _revision_of(settled: tuple[Commit, bool], key: str, value: bytes) -> int | None:
    """Return the revision of a write of one key; None if another writer was first."""
    commit, may_be_ours = settled
    if commit.succeeded:
        return commit.revision
    found = commit.current[key]
    return found.revision if may_be_ours and found is not None and found.value == value else None


def _valid_topic_configs(name: str, configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the topic's configs in their canonical form.  Raises RequestError INVALID_CONFIG if they are not valid.

    An internal topic keeps the last record of each key for ever, so retention must not delete any.
    """
    try:
        valid = topic_configs.validate(configs)
    except ValueError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from None
    internal = internal_topics.BY_NAME.get(name)
    if internal and valid.get("cleanup.policy") != "compact":
        raise RequestError(
            ErrorCode.INVALID_CONFIG,
            f"{name} is internal: its cleanup.policy must be compact, since retention would delete {internal.holds}."
            " Leave cleanup.policy=compact among its configs.",
        )
    return valid


def _readable_topic(name: str, entry: Entry) -> Topic:
    return _readable(lambda found: decode_topic(name, found), entry)


def _readable(decode: Callable[[Entry], T], entry: Entry) -> T:
    try:
        return decode(entry)
    except FormatError as error:
        raise RequestError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"this version cannot read what is there: {error}"
        ) from error


def _already_there(name: str) -> RequestError:
    return RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _unknown(name: str) -> RequestError:
    return RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
