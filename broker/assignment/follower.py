"""Keeps a broker's partitions equal to those that the cluster's view assigns to this process.

Two sources decide on a broker's partitions: the catalog has the partitions that exist and their configs, the view has
their owners.  Catalog and view are watched separately, so either may be ahead.  The assignment of an unknown topic
counts as soon as the topic is known; a topic without an assignment waits for its assignment.  The cost of a change
grows with its size: the partitions of a ``ViewChange``, the partitions of a topic, or the topics that a changed default
of the cluster affects.

More than ``COST_PER_STEP`` partitions are handled in several turns of the loop, also the partitions of many changes in
one turn.  Each turn follows what catalog and view show then, so changes since the first turn do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.assignment.handover import HandoverNotifier
from bmq.broker.config import LogConfig, log_config
from bmq.broker.partition.release import ReleaseNote
from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.subscribers import no_op
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, Topic, TopicChange
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.topic_configs import effective
from bmq.storage.layout import PartitionPath

_log = logging.getLogger(__name__)


COST_OF_TOPIC = 20
COST_PER_STEP = 1_000
"""Work in one turn of the loop, in partitions: 5 to 15 us each, and 50 us for a topic, whose configs are compared."""


_DONE = object()


class _Held:
    """A topic of which partitions are assigned here."""

    __slots__ = ("config", "partitions", "topic")

    def __init__(self, topic: Topic, config: LogConfig) -> None:
        self.topic = topic
        self.config = config
        self.partitions: set[int] = set()


class AssignmentFollower:
    """The follower of one broker's assignment, which calls ``AssignedPartitions``.

    ``start`` it once catalog and view are complete, ``close`` it before either is closed.
    """

    def __init__(
        self,
        assigned: AssignedPartitions,
        catalog: Catalog,
        view: ClusterView,
        config: NodeConfig,
        successors: HandoverNotifier,
    ) -> None:
        self._assigned = assigned
        self._catalog = catalog
        self._view = view
        self._config = config
        self._successors = successors
        self._held: dict[uuid.UUID, _Held] = {}
        self._refused: dict[uuid.UUID, str] = {}
        self._is_closed = False
        self._are_configs_stale = False
        self._reconfiguring: asyncio.Task[None] | None = None
        self._rest: deque[tuple[int, Generator[None, None, None]]] = deque()
        """Remaining steps of changes, each with the cost of a step at most."""
        self._spent = 0  # in this turn
        self._working: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] = no_op

    def __repr__(self) -> str:
        return f"<AssignmentFollower topics={len(self._held)} partitions={len(self)}>"

    def __len__(self) -> int:
        return sum(len(held.partitions) for held in self._held.values())

    @property
    def has_partitions(self) -> bool:
        """True if any partition is assigned here, of topics that are known and not refused."""
        return bool(self._held)

    @property
    def refused(self) -> Mapping[str, str]:
        """The topics whose configs are wrong, by name, with the reasons.

        Their partitions are not opened here, or keep their earlier configs.
        """
        topics = ((self._catalog.by_id(topic_id), why) for topic_id, why in self._refused.items())
        return {topic.name: why for topic, why in topics if topic is not None}

    async def start(self) -> None:
        """Take everything that is assigned here, in turns of the loop."""
        self._catalog.subscribe(self._topic_changed)
        self._catalog.subscribe_configs(self._configs_changed)
        self._forget = self._view.subscribe(self._view_changed)
        await run_in_steps(self._look_at_all(list(self._catalog.topics.values())))

    def close(self) -> None:
        """Stop following.  Assigned partitions stay so; ``AssignedPartitions.close`` ends them."""
        self._is_closed = True
        for task in (self._reconfiguring, self._working):
            if task is not None:
                task.cancel()
        self._forget()

    def reconfigure(self, config: NodeConfig) -> None:
        """Apply another config of the node: with another node id, other broker configs in the catalog hold."""
        self._config = config
        self._configs_changed()

    # ------------------------------------------------------------------------------------------------ what has changed

    def _view_changed(self, change: ViewChange) -> None:
        members = self._view.members
        self._assigned.members_gone([name for name in change.members if name not in members])
        if change.partitions:
            self._work(self._look_at_keys(change.partitions), len(change.partitions))

    def _topic_changed(self, change: TopicChange) -> None:
        if self._is_closed:
            return
        before, after = change.before, change.after
        if before is not None and (after is None or after.topic_id != before.topic_id):
            self._delete(before)
            before = None
        if after is None:
            return
        held = self._held.get(after.topic_id)
        if held is not None:
            self._work(self._reconfigure(held, after), COST_OF_TOPIC + len(held.partitions), after)
        known = before.partitions if before is not None and after.topic_id not in self._refused else 0
        if known < after.partitions:
            self._work(self._look_at_topic(after, known), COST_OF_TOPIC + after.partitions - known, after)

    def _configs_changed(self) -> None:
        """Compute all topics' configs again: a changed default applies to every topic that does not override it."""
        self._are_configs_stale = True
        if self._reconfiguring is None and not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._reconfigure_held(), name="configs of topics")
            self._reconfiguring = task

    async def _reconfigure_held(self) -> None:
        """Reconfigure all topics, in steps.

        Thousands of topics take longer than clients should wait, and all brokers do it at the same time.
        """
        try:
            while self._are_configs_stale:
                self._are_configs_stale = False
                await run_in_steps(self._reconfigure_all())
        finally:
            self._reconfiguring = None

    def _reconfigure_all(self) -> Generator[None, None, None]:
        done = 0
        for topic_id in [*self._held, *self._refused]:
            held, topic = self._held.get(topic_id), self._catalog.by_id(topic_id)
            if held is not None:
                yield from _logged(self._reconfigure(held, held.topic), held.topic)
                done += len(held.partitions) % COST_PER_STEP
            elif topic is not None:
                yield from _logged(self._look_at_topic(topic), topic)
                done += topic.partitions % COST_PER_STEP
            done += COST_OF_TOPIC
            if done >= COST_PER_STEP:
                done = 0
                yield

    # ------------------------------------------------------------------------------------------------------- in steps

    def _work(self, steps: Generator[None, None, None], cost: int, topic: Topic | None = None) -> None:
        """Do the first step of work now if this turn of the loop has room, and the others in later turns.

        ``cost``: that of all steps.  ``topic``: the topic that a log line names.
        """
        cost = min(cost, COST_PER_STEP)
        if self._has_room(cost) and next(steps, _DONE) is _DONE:
            return
        self._rest.append((cost, _logged(steps, topic)))
        if self._working is None and not self._is_closed:
            self._working = asyncio.get_running_loop().create_task(self._work_off(), name="large changes")

    def _has_room(self, cost: int) -> bool:
        """Return whether this turn has room for a step, and take it."""
        if self._spent and self._spent + cost > COST_PER_STEP:
            return False
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._turn_ended)
        self._spent += max(cost, 1)
        return True

    def _turn_ended(self) -> None:
        self._spent = 0

    async def _work_off(self) -> None:
        """Do one step of every change in turn: no topic waits until a larger topic is done."""
        try:
            while self._rest:
                await asyncio.sleep(0)
                while self._rest and self._has_room(self._rest[0][0]):
                    cost, steps = self._rest.popleft()
                    if next(steps, _DONE) is not _DONE:
                        self._rest.append((cost, steps))
        finally:
            self._working = None

    def _look_at_keys(self, keys: Collection[PartitionKey]) -> Generator[None, None, None]:
        """Compare these partitions with the view.  Yields between steps."""
        for number, key in enumerate(keys):
            if number and number % COST_PER_STEP == 0:
                yield
            topic = self._catalog.by_id(key.topic_id)
            if topic is not None and key.partition < topic.partitions and not self._is_closed:
                self._look(topic, (key.partition,))

    def _look_at_all(self, topics: Iterable[Topic]) -> Generator[None, None, None]:
        done = 0
        for topic in topics:
            yield from self._look_at_topic(topic)
            done += topic.partitions % COST_PER_STEP + COST_OF_TOPIC
            if done >= COST_PER_STEP:
                done = 0
                yield

    def _look_at_topic(self, topic: Topic, first: int = 0) -> Generator[None, None, None]:
        """Compare a topic's partitions from ``first`` on with the view.  Yields between steps of large topics."""
        for start in range(first, topic.partitions, COST_PER_STEP):
            if start != first:
                yield
            current = self._catalog.by_id(topic.topic_id)
            if current is None or self._is_closed:
                return
            self._look(current, range(start, min(start + COST_PER_STEP, topic.partitions, current.partitions)))

    # --------------------------------------------------------------------------------------------------- what is done

    def _look(self, topic: Topic, partitions: range | tuple[int, ...]) -> None:
        """Take the partitions that are now assigned to this process, and release the others."""
        held, own = self._held.get(topic.topic_id), self._view.own
        for partition in partitions:
            key = PartitionKey(topic.topic_id, partition)
            is_held = held is not None and partition in held.partitions
            if self._view.owner_of(key) == own:
                if is_held:
                    continue
                if held is None:
                    config = self._log_config(topic)
                    if config is None:
                        return
                    held = self._held[topic.topic_id] = _Held(topic, config)
                held.partitions.add(partition)
                self._assigned.assign(_path(topic, partition), key, held.config)
            elif is_held:
                assert held is not None
                held.partitions.discard(partition)
                self._withdraw(key)
        if held is not None and not held.partitions:
            self._held.pop(topic.topic_id, None)

    def _withdraw(self, key: PartitionKey) -> None:
        task = self._assigned.withdraw(key, has_successor=self._successors.has(key))
        task.add_done_callback(lambda done: self._on_withdrawn(key, done))

    def _on_withdrawn(self, key: PartitionKey, task: asyncio.Task[ReleaseNote | None]) -> None:
        """Notify the new owner, unless the hand-over failed.

        A failure was reported as a bug, and the new owner takes the partition after ``handover_wait_ms``.
        """
        if task.cancelled() or task.exception() is not None:
            return
        release_note = task.result()
        if release_note is not None:
            self._successors.notify(key, release_note)

    def _delete(self, topic: Topic) -> None:
        """Give the topic's partitions up, and forget the notes kept for new owners of its former partitions."""
        self._held.pop(topic.topic_id, None)
        self._refused.pop(topic.topic_id, None)
        self._work(self._delete_all(topic), topic.partitions, topic)

    def _delete_all(self, topic: Topic) -> Generator[None, None, None]:
        for partition in range(topic.partitions):
            if partition and partition % COST_PER_STEP == 0:
                yield
            self._assigned.delete(PartitionKey(topic.topic_id, partition))

    def _reconfigure(self, held: _Held, topic: Topic) -> Generator[None, None, None]:
        """Apply the topic's present config to its partitions.  Yields between steps.

        Partitions assigned meanwhile have the config from the start.  The work may begin later than the change:
        the topic may have changed again, or be deleted.
        """
        current = self._catalog.by_id(topic.topic_id)
        if current is None or self._is_closed or self._held.get(topic.topic_id) is not held:
            return
        held.topic = topic = current
        config = self._log_config(topic)
        if config is None or config == held.config:
            return
        held.config = config
        for done, partition in enumerate(list(held.partitions)):
            if done and done % COST_PER_STEP == 0:
                yield
                if self._is_closed or self._held.get(topic.topic_id) is not held or held.config is not config:
                    return
            if partition in held.partitions:
                self._assigned.assign(_path(topic, partition), PartitionKey(topic.topic_id, partition), config)

    def _log_config(self, topic: Topic) -> LogConfig | None:
        """Return the config of the topic's partitions; None, logged once, if one of its configs is wrong.

        Partitions of a topic with a wrong config keep the config that they had.  Without a config they are not opened:
        a default in place of a wrong ``retention.ms`` might delete records that must be kept.

        A broker has a node id of its own towards Kafka clients only if it is a proxy too; its broker configs are that
        proxy's.
        """
        catalog, node = self._catalog, self._config.node_id
        layers = catalog.broker_configs(None), catalog.broker_configs(node) if node >= 0 else {}
        try:
            values = effective(topic.configs, self._config, *layers, is_internal=topic.is_internal)
            config = log_config(values, topic.replication_factor, is_internal=topic.is_internal)
        except ValueError as error:
            if self._refused.get(topic.topic_id) != str(error):
                self._refused[topic.topic_id] = str(error)
                held = "keep their earlier configs" if topic.topic_id in self._held else "are not opened"
                text = "a topic has a wrong config, its partitions %s"
                _log.error(text, held, extra=fields(topic=topic.name, error=error))
            return None
        self._refused.pop(topic.topic_id, None)
        return config


def _logged(steps: Generator[None, None, None], topic: Topic | None) -> Generator[None, None, None]:
    """Run these steps.  A step that fails is logged and ends them, so that work on other topics goes on."""
    try:
        yield from steps
    except Exception:  # noqa: BLE001  # a bug in one topic must not stop the others
        named = fields(topic=topic.name) if topic is not None else fields()
        _log.exception("bug: some partitions of the topic may not be opened, or follow old configs", extra=named)


def _path(topic: Topic, partition: int) -> PartitionPath:
    return PartitionPath(topic.name, str(topic.topic_id), partition)
