"""The cluster's topics and configs: a watched view of the ``KeyValue`` store, in every process.

Keys, under ``/<cluster>/``::

    id                             the cluster id, 22 characters of base64, written once
    root                           the root that the cluster is served from (``meta.root``)
    catalog/topics/<name>          a topic: JSON, see ``Topic``
    catalog/configs/broker/<id>    dynamic broker configs of one node; <id> is empty for the cluster's defaults
    owned/<lane>                   the last creation by a principal with a bound (``controller.topics.bounds``)
    deleted/<topic id>             a deleted topic whose partitions and files are still to be removed
    producer-ids                   the next block of producer ids (``meta.producer_ids``)
    history                        samples of the revision of etcd (``controller.store_upkeep``)

The view's keys are under one prefix, so that a single watch gives them in the store's order. Partitions' records are
not under the prefix: they change with every segment.

The view is behind the store by a message, never ahead; a process that has changed something waits for its revision. It
is for reading. A change is decided on the store's contents, and compares their revision (``controller.topics.topics``),
so a view that lags can never be written back (KafScale #162).
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import FormatError, RequestError
from bmq.meta.kv import Changes, Compare, Entry, Event, KeyValue, Put
from bmq.meta.prefix_watch import PrefixWatcher, patiently
from bmq.meta.topic_rules import PARTITIONS_MAX, check_name

_log = logging.getLogger(__name__)

FORMAT = 1
REPLICATION_MAX = (1 << 15) - 1
"""Kafka's replication factor is an int16."""
NODE_DIGITS_MAX = 10
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the store has it.  ``configs`` are the overrides only, under Kafka's names, as texts."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    """The store's revision of its last change: the number in ``topic-<revision>.json``."""
    principal: str = ""
    """Principal that created the topic, as ``User:alice``: the topic counts towards its bounds.

    "" counts for nobody: the cluster's own topics, and those whose record an earlier version has written."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Owned(NamedTuple):
    """Numbers of a principal's topics, which it created, and of all their partitions."""

    topics: int = 0
    partitions: int = 0


_NOTHING = Owned()


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's change.  ``before`` is None for a new topic, ``after`` for a deleted one.

    A topic deleted and created again under its name is two changes.
    """

    before: Topic | None
    after: Topic | None


class Catalog(Protocol):
    """The view of topics and configs.  All of it is in memory; reading it costs no call."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def version(self) -> int:
        """Number of changes seen; what was encoded from the view is valid while it stays the same."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics by name, in no order."""

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id; None if there is none."""

    def owned_by(self, principal: str) -> Owned:
        """Return what a principal owns."""

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        """Return the dynamic configs of one node, or (None) the cluster's defaults."""

    def subscribe(self, call: Callable[[TopicChange], None]) -> None:
        """Call ``call`` for every change from now on, in order, from the loop."""

    def subscribe_configs(self, call: Callable[[], None]) -> None:
        """Call ``call`` when a dynamic broker config has changed."""

    async def wait_revision(self, revision: int) -> None:
        """Wait until the view shows everything up to ``revision``, that of a change to a topic or a config."""

    async def refresh(self, name: str) -> Topic | None:
        """Read a topic from the store, and wait until the view shows it as well.

        Return None if there is no topic of the name.  Raises KvError if the store does not answer, FormatError if what
        it has cannot be read.
        """


# ------------------------------------------------------------------------------------------------- keys and records


def cluster_id_key(cluster: str) -> str:
    return f"/{cluster}/id"


async def find_cluster_id(kv: KeyValue, cluster: str) -> str:
    """Return the cluster's id, created by the first process to start.

    The compare lets one try succeed, a late one of the same process included.  Raises KvError, and FormatError if the
    store's id cannot be decoded.
    """
    key = cluster_id_key(cluster)
    entry = await kv.get(key)
    if entry is None:
        fresh = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")
        done = await kv.commit([Compare(key, 0)], [Put(key, fresh)])
        if done.succeeded:
            return fresh.decode("ascii")
        entry = done.current[key]
        assert entry is not None, "the compare with a missing key failed"
    try:
        return entry.value.decode("ascii")
    except UnicodeDecodeError:
        raise FormatError(f"{key} is not a cluster id: {entry.value[:80]!r}") from None


def catalog_prefix(cluster: str) -> str:
    return f"/{cluster}/catalog/"


def topic_key(cluster: str, name: str) -> str:
    return f"{catalog_prefix(cluster)}topics/{name}"


def broker_configs_key(cluster: str, node_id: int | None) -> str:
    return f"{catalog_prefix(cluster)}configs/broker/{'' if node_id is None else node_id}"


def encode_topic(topic: Topic) -> bytes:
    """Return the topic as JSON.  Equal topics have equal bytes, by which a process recognises its own commit."""
    return _encode(
        {
            "id": str(topic.topic_id),
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(sorted(topic.configs.items())),
            **({"principal": topic.principal} if topic.principal else {}),
        }
    )


def decode_topic(name: str, entry: Entry) -> Topic:
    """Return the topic in ``entry``.  Raises FormatError if it is not a topic, or one of a later format."""
    raw = _decode(entry)
    try:
        check_name(name)
        return Topic(
            name=name,
            topic_id=uuid.UUID(raw["id"]),
            partitions=_whole(raw["partitions"], "partitions", PARTITIONS_MAX),
            replication_factor=_whole(raw["replication_factor"], "replication_factor", REPLICATION_MAX),
            configs=_texts(raw["configs"]),
            revision=entry.revision,
            principal=_text(raw.get("principal", ""), "principal"),
        )
    except (RequestError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{entry.key} is not a topic: {entry.value[:80]!r} ({error})") from error


def _whole(value: object, name: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{name} is not a whole number from 1 to {most}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("configs are not texts by name")
    return value


def node_of_configs(key: str, rest: str) -> int | None:
    """Return the node of a key of configs, None for the cluster's defaults; ``rest`` of it follows ``configs/``.

    Raises FormatError if it does not name a node.
    """
    node = rest.removeprefix("broker/")
    if not node:
        return None
    if not (node.isascii() and node.isdigit() and len(node) <= NODE_DIGITS_MAX):
        raise FormatError(f"{key} does not name a node")
    return int(node)


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _encode({"configs": dict(sorted(configs.items()))})


def decode_configs(entry: Entry) -> dict[str, str]:
    """Return the configs in ``entry``.  Raises FormatError if it does not hold them, or is of a later format."""
    try:
        return _texts(_decode(entry).get("configs"))
    except ValueError as error:
        raise FormatError(f"{entry.key} does not hold configs: {entry.value[:80]!r} ({error})") from error


def _encode(fields: dict[str, object]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def _decode(entry: Entry) -> dict[str, Any]:
    try:
        raw = json.loads(entry.value)
        number = raw["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is not a record: {entry.value[:80]!r} ({error})") from error
    if number != FORMAT:
        raise FormatError(f"{entry.key} is of format {number}: this version reads {FORMAT}")
    return dict(raw)


# --------------------------------------------------------------------------------------------------------- the view


class KvCatalog:
    """``Catalog`` over a store.  ``start`` returns when the view is complete; it then follows until ``close``.

    Subscribers added before ``start`` are called for every topic, as for a new one.  They are called in the order of
    the changes and must not raise: an exception stops the view and is raised by ``close`` and ``wait_revision``.
    """

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        on_failed: Callable[[str], None] = no_op,
        *,
        has_node_configs: bool = True,
    ) -> None:
        """``on_failed``: see ``meta.prefix_watch``.

        ``has_node_configs``: whether a node may have dynamic configs of its own.  They are defaults of topics, so where
        any of several brokers may own a partition only the cluster's hold.
        """
        self._has_node_configs = has_node_configs
        self._kv = kv
        self._cluster = cluster
        self._prefix = catalog_prefix(cluster)
        self._cluster_id = ""
        self._version = 0
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._owned: dict[str, Owned] = {}
        self._configs: dict[int | None, dict[str, str]] = {}
        self._subscribers: list[Callable[[TopicChange], None]] = []
        self._config_subscribers: list[Callable[[], None]] = []
        self._following = PrefixWatcher(kv, self._prefix, self._apply_all, what="catalog", on_failed=on_failed)

    def __repr__(self) -> str:
        seen = self._following.seen
        return f"KvCatalog({self._cluster_id}, version={self._version}, topics={len(self._topics)}, seen={seen})"

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def version(self) -> int:
        return self._version

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self._topics

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def owned_by(self, principal: str) -> Owned:
        return self._owned.get(principal, _NOTHING)

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        return self._configs.get(node_id, {}) if node_id is None or self._has_node_configs else {}

    def subscribe(self, call: Callable[[TopicChange], None]) -> None:
        self._subscribers.append(call)

    def subscribe_configs(self, call: Callable[[], None]) -> None:
        self._config_subscribers.append(call)

    async def wait_revision(self, revision: int) -> None:
        await self._following.wait_revision(revision)

    async def refresh(self, name: str) -> Topic | None:
        entry = await self._kv.get(topic_key(self._cluster, name))
        if entry is None:
            return None
        topic = decode_topic(name, entry)
        await self.wait_revision(entry.revision)
        return topic

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Keys that this version cannot read, with the reasons: their topics and configs are not served."""
        return self._following.unreadable

    async def start(self) -> None:
        """Start following.  Returns when the view is complete.

        Raises KvError if the store does not answer, FormatError if its cluster id cannot be read.
        """
        self._cluster_id = await patiently(lambda: find_cluster_id(self._kv, self._cluster))
        await self._following.start()

    async def close(self) -> None:
        """Stop following.  Idempotent."""
        await self._following.close()

    def _apply_all(self, changes: Changes) -> None:
        for event in changes:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        kind, _, rest = event.key.removeprefix(self._prefix).partition("/")
        try:
            if kind == "topics":
                self._change_topic(rest, decode_topic(rest, event.entry) if event.entry else None)
            elif kind == "configs":
                self._change_configs(
                    node_of_configs(event.key, rest), decode_configs(event.entry) if event.entry else {}
                )
        except FormatError as error:
            if event.entry is not None:
                self._following.keep(event.key, str(error))

    def _change_topic(self, name: str, after: Topic | None) -> None:
        before = self._topics.get(name)
        if before is not None and after is not None and before.topic_id != after.topic_id:
            self._change_topic(name, None)  # deleted and created again between two listings
            before = None
        if before is None and after is not None and after.topic_id in self._by_id:
            other = self._by_id[after.topic_id].name
            raise FormatError(f"topic {name} has the id of topic {other}, {after.topic_id}: its key was copied")
        if before is None and after is None:
            return
        if before is not None:
            del self._topics[name]
            del self._by_id[before.topic_id]
            self._count(before.principal, -1, -before.partitions)
        if after is not None:
            self._topics[name] = after
            self._by_id[after.topic_id] = after
            self._count(after.principal, 1, after.partitions)
        self._version += 1
        for call in self._subscribers:
            call(TopicChange(before, after))

    def _count(self, principal: str, topics: int, partitions: int) -> None:
        if not principal:
            return
        before = self._owned.get(principal, _NOTHING)
        after = Owned(before.topics + topics, before.partitions + partitions)
        if after == _NOTHING:
            del self._owned[principal]
        else:
            self._owned[principal] = after

    def _change_configs(self, node: int | None, configs: dict[str, str]) -> None:
        self._configs[node] = configs
        self._version += 1
        for call in self._config_subscribers:
            call()
