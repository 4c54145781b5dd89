"""The audit log of one process, from its settings: where its lines go, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from bmq.console.kafka import Requests
from bmq.console.records_api import partition_of
from bmq.console.state import OwnMetric
from bmq.core.audit.event import Priority
from bmq.core.audit.file import AuditFile
from bmq.core.audit.log import AuditLog, NotWritten, Sink
from bmq.core.audit.place import topic_of
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import RequestError
from bmq.core.options import ConfigError
from bmq.core.records.batch import Record, build_batch
from bmq.meta.catalog import Topic


class AuditTopic:
    """The topic that lines are produced into: a record a line, with the process's node id as its key."""

    def __init__(
        self,
        name: str,
        find: Callable[[str], Topic | None],
        requests: Requests,
        key: Callable[[], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        """``find`` returns a topic, ``requests`` sends what neither ACLs, quotas nor the audit log look at."""
        self._name = name
        self._find = find
        self._requests = requests
        self._key = key
        self._now_ms = now_ms

    def __repr__(self) -> str:
        return f"<AuditTopic {self._name}>"

    async def write(self, lines: Sequence[bytes]) -> None:
        """Produce the lines as one batch.  Raises NotWritten."""
        topic = self._find(self._name)
        if topic is None:
            raise NotWritten(f"there is no topic {self._name!r}; create it")
        key = self._key()
        records = [Record(key=key, value=line.removesuffix(b"\n")) for line in lines]
        batch = build_batch(records, base_timestamp=self._now_ms())
        try:
            partition = partition_of(key, topic.partitions)
            await self._requests.produce(UUID(str(topic.topic_id)), partition, memoryview(batch))
        except RequestError as error:
            raise NotWritten(f"topic {self._name!r}: {error.code.name} {error}") from None

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def open_audit(
    config: NodeConfig,
    clock: Clock,
    member: str,
    *,
    node: Callable[[], int],
    find: Callable[[str], Topic | None],
    requests: Requests,
) -> AuditLog | None:
    """Return the audit log; None if the process has none.  Raises ConfigError if its file cannot be opened.

    ``node`` returns the process's node id; the others are those of ``AuditTopic``.
    """
    place = config.audit_log
    if not place:
        return None
    sink: Sink
    if name := topic_of(place):
        sink = AuditTopic(name, find, requests, lambda: str(node()).encode(), clock.now_ms)
    else:
        try:
            sink = AuditFile(place)
        except OSError as error:
            raise ConfigError(f"audit_log={place!r}: cannot be opened for writing: {error.strerror}") from error
    return AuditLog(sink, config.audit_lines_per_s, clock, node, member)


class _Nothing:
    """The numbers of a process without an audit log."""

    written = waiting = failures = 0
    is_failing = False
    left_out: Mapping[str, int] = dict.fromkeys((each.name.lower() for each in Priority), 0)


_NONE = _Nothing()


def audit_metrics(log: AuditLog | _Nothing | None) -> Sequence[OwnMetric]:
    """Return the numbers of the audit log, for ``/metrics``; all are 0 without one."""
    if log is None:
        log = _NONE
    left_out = "Audit lines that found no room, and are in no log, by priority"
    return (
        OwnMetric("audit_lines", "Audit lines written", log.written, True),
        *(
            OwnMetric("audit_lines_left_out", left_out, count, True, "priority", priority)
            for priority, count in log.left_out.items()
        ),
        OwnMetric("audit_lines_waiting", "Audit lines that wait to be written", log.waiting),
        OwnMetric("audit_write_failures", "Writes of audit lines that failed and are tried again", log.failures, True),
        OwnMetric("audit_is_failing", "1: the last write of audit lines has failed", int(log.is_failing)),
    )
