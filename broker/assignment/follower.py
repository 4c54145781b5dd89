"""Keeps a broker's partitions equal to what the cluster's view assigns to this process.

Two things decide what is ours: the catalog (which partitions there are, and their configs) and the view (who is to own
each).  They are watched apart, so either may be ahead: an assignment of a topic that is not known yet counts as soon as
it is, and a topic whose partitions are not assigned yet waits for that.  A change costs what it names: the partitions
of a ``ViewChange``, those of a topic, and for a changed default of the cluster the topics that it changes.

More than ``COST_PER_STEP`` partitions are handled in several turns of the loop.  Each turn goes by what catalog and
view show then, so it does not matter what has changed since the first.

With a view that assigns everything to this process (``meta.cluster.one_view``) this is what a single node does.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Protocol

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.config import LogConfig
from bmq.broker.log_config import log_config
from bmq.broker.partition.release import ReleaseNote
from bmq.core.aio.steps import run_in_steps
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, Topic, TopicChange
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.topic_configs import effective
from bmq.storage.layout import PartitionPath

_log = logging.getLogger(__name__)


COST_OF_TOPIC = 20
COST_PER_STEP = 2_000
"""Work between two turns of the loop, in partitions: 5 us each, and 50 us for a topic, whose configs are looked at."""


_DONE = object()


class Successors(Protocol):
    """Who tells new owners what has been let go of (``broker.assignment.handover``)."""

    def has(self, key: PartitionKey) -> bool:
        """Whether there is somebody else who is to own it now."""

    def tell(self, key: PartitionKey, handed: ReleaseNote) -> None: ...


class _Held:
    """A topic of which partitions are assigned here."""

    __slots__ = ("config", "partitions", "topic")

    def __init__(self, topic: Topic, config: LogConfig) -> None:
        self.topic = topic
        self.config = config
        self.partitions: set[int] = set()


class AssignmentFollower:
    """``start`` once catalog and view show what there is; ``close`` before either is closed.

    ``successors`` is None where there are no other brokers.
    """

    def __init__(
        self,
        assigned: AssignedPartitions,
        catalog: Catalog,
        view: ClusterView,
        config: NodeConfig,
        successors: Successors | None = None,
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
        self._rest: deque[Generator[None, None, None]] = deque()  # of large topics, what is not done yet
        self._working: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<AssignmentFollower topics={len(self._held)} partitions={len(self)}>"

    def __len__(self) -> int:
        return sum(len(held.partitions) for held in self._held.values())

    @property
    def has_partitions(self) -> bool:
        """Whether anything is assigned here, of topics that are known and not refused."""
        return bool(self._held)

    @property
    def refused(self) -> Mapping[str, str]:
        """The topics of which nothing is opened here, since their configs are wrong, with the reasons."""
        topics = ((self._catalog.by_id(topic_id), why) for topic_id, why in self._refused.items())
        return {topic.name: why for topic, why in topics if topic is not None}

    async def start(self) -> None:
        """Take everything that is assigned here, in turns of the loop."""
        self._catalog.subscribe(self._topic_changed)
        self._catalog.subscribe_configs(self._configs_changed)
        self._forget = self._view.subscribe(self._view_changed)
        await run_in_steps(self._look_at_all(list(self._catalog.topics.values())))

    def close(self) -> None:
        """Follow no more; what is assigned stays so, for ``AssignedPartitions.close``."""
        self._is_closed = True
        for task in (self._reconfiguring, self._working):
            if task is not None:
                task.cancel()
        if self._forget is not None:
            self._forget()

    def reconfigure(self, config: NodeConfig) -> None:
        """With another node id other settings of the catalog hold."""
        self._config = config
        self._configs_changed()

    # ------------------------------------------------------------------------------------------------ what has changed

    def _view_changed(self, change: ViewChange) -> None:
        members = self._view.members
        self._assigned.members_gone([name for name in change.members if name not in members])
        for key in change.partitions:
            topic = self._catalog.by_id(key.topic_id)
            if topic is not None and key.partition < topic.partitions:
                self._look(topic, (key.partition,))

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
            self._work(self._reconfigure(held, after), after)
        known = before.partitions if before is not None and after.topic_id not in self._refused else 0
        self._work(self._look_at_topic(after, known), after)

    def _configs_changed(self) -> None:
        """The cluster's defaults reach every topic that does not override them."""
        self._are_configs_stale = True
        if self._reconfiguring is None and not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._reconfigure_held(), name="configs of topics")
            self._reconfiguring = task

    async def _reconfigure_held(self) -> None:
        """In steps: thousands of topics take longer than clients should wait, and all brokers do it at once."""
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

    def _work(self, steps: Generator[None, None, None], topic: Topic) -> None:
        """Do the first step of work on a topic now, the others in later turns of the loop."""
        if next(steps, _DONE) is _DONE:
            return
        self._rest.append(_logged(steps, topic))
        if self._working is None and not self._is_closed:
            self._working = asyncio.get_running_loop().create_task(self._work_off(), name="large topics")

    async def _work_off(self) -> None:
        """One step of each in turn: a topic does not wait until a larger one is done."""
        try:
            while self._rest:
                await asyncio.sleep(0)
                steps = self._rest.popleft()
                if next(steps, _DONE) is not _DONE:
                    self._rest.append(steps)
        finally:
            self._working = None

    def _look_at_all(self, topics: Iterable[Topic]) -> Generator[None, None, None]:
        done = 0
        for topic in topics:
            yield from self._look_at_topic(topic)
            done += topic.partitions % COST_PER_STEP + COST_OF_TOPIC
            if done >= COST_PER_STEP:
                done = 0
                yield

    def _look_at_topic(self, topic: Topic, first: int = 0) -> Generator[None, None, None]:
        """Yields only between two steps: a small topic is looked at in one."""
        for start in range(first, topic.partitions, COST_PER_STEP):
            if start != first:
                yield
            current = self._catalog.by_id(topic.topic_id)
            if current is None or self._is_closed:
                return
            self._look(current, range(start, min(start + COST_PER_STEP, topic.partitions, current.partitions)))

    # --------------------------------------------------------------------------------------------------- what is done

    def _look(self, topic: Topic, partitions: range | tuple[int, ...]) -> None:
        """Take what is ours by now, let go of what is not."""
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
                self._let_go(key)
        if held is not None and not held.partitions:
            self._held.pop(topic.topic_id, None)

    def _let_go(self, key: PartitionKey) -> None:
        successors = self._successors
        task = self._assigned.withdraw(key, has_successor=successors is not None and successors.has(key))
        if successors is not None:
            task.add_done_callback(lambda done: self._gone(key, done))

    def _gone(self, key: PartitionKey, task: asyncio.Task[ReleaseNote | None]) -> None:
        """One that failed was told of as the bug that it is; its new owner's patience ends by itself."""
        if task.cancelled() or task.exception() is not None:
            return
        handed = task.result()
        if handed is not None:
            assert self._successors is not None
            self._successors.tell(key, handed)

    def _delete(self, topic: Topic) -> None:
        """Also of partitions that went elsewhere before: nothing is kept for their new owners any more."""
        self._held.pop(topic.topic_id, None)
        self._refused.pop(topic.topic_id, None)
        self._work(self._delete_all(topic), topic)

    def _delete_all(self, topic: Topic) -> Generator[None, None, None]:
        for partition in range(topic.partitions):
            if partition and partition % COST_PER_STEP == 0:
                yield
            self._assigned.delete(PartitionKey(topic.topic_id, partition))

    def _reconfigure(self, held: _Held, topic: Topic) -> Generator[None, None, None]:
        """Yields only between two steps.  Partitions that come meanwhile have the config from the start."""
        held.topic = topic
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
        """Return what the topic's partitions follow; None, said in the log once, when a config is wrong.

        Such a topic's partitions go on with what they had, and are not opened without: a default in the place of a
        wrong ``retention.ms`` might delete what was to be kept.

        A broker has an id of its own towards Kafka clients only if it is a proxy too; its own configs are that
        proxy's."""
        catalog, node = self._catalog, self._config.node_id
        layers = catalog.broker_configs(None), catalog.broker_configs(node) if node >= 0 else {}
        try:
            values = effective(topic.configs, self._config, *layers)
            config = log_config(values, topic.replication_factor, is_internal=topic.is_internal)
        except ValueError as error:
            if self._refused.get(topic.topic_id) != str(error):
                self._refused[topic.topic_id] = str(error)
                held = "go on with the configs before" if topic.topic_id in self._held else "are not opened"
                text = "a topic has a wrong config, its partitions %s"
                _log.error(text, held, extra=fields(topic=topic.name, error=error))
            return None
        self._refused.pop(topic.topic_id, None)
        return config


def _logged(steps: Generator[None, None, None], topic: Topic) -> Generator[None, None, None]:
    """Take these steps; one that fails is logged and ends them, so that work on other topics goes on."""
    try:
        yield from steps
    except Exception:  # noqa: BLE001  # a bug in one topic must not stop the others
        _log.exception(
            "bug: some partitions of the topic may not be opened, or follow old configs", extra=fields(topic=topic.name)
        )


def _path(topic: Topic, partition: int) -> PartitionPath:
    return PartitionPath(topic.name, str(topic.topic_id), partition)
