"""The options of ``spark.read.format("bmq")``: names, meanings and checks.  Pure.

Names and meanings are those of Spark's Kafka source wherever it has them; ``OPTIONS`` is the list that errors show.
``OffsetLimit`` is where a read begins or ends, before the partitions have been read.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bmq.core.options import meant

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for the beginning and the end of a partition, in JSON."""

OPTIONS = {
    "root": "the cluster's root: hdfs://, webhdfs:// or file://",
    "topic": "the topic; or",
    "subscribe": "topics, separated by commas; or",
    "subscribePattern": "a regular expression that whole topic names match; or",
    "assign": 'partitions of topics, as JSON: {"topic": [0, 1]}',
    "topicId": "the id that the one topic must have, as `bmq topic describe` shows it",
    "startingOffsets": 'earliest (default), or JSON: {"topic": {"0": 23, "1": -2}}, -2 for earliest',
    "endingOffsets": 'latest (default), or JSON: {"topic": {"0": 50, "1": -1}}, -1 for latest',
    "startingTimestamp": "milliseconds: from the first record not older, in each partition",
    "endingTimestamp": "milliseconds: up to the first record not older, in each partition",
    "startingOffsetsByTimestamp": 'JSON: {"topic": {"0": 1700000000000}}, as startingTimestamp by partition',
    "endingOffsetsByTimestamp": "JSON, as endingTimestamp by partition",
    "startingOffsetsByTimestampStrategy": "error (default) or latest: what to do when no record is that young",
    "failOnDataLoss": "true (default): fail if selected records are gone; false: warn and continue",
    "includeHeaders": "true: a column headers; default false",
    "isolationLevel": "read_committed (default) or read_uncommitted; also as kafka.isolation.level",
    "consistency": "committed (default), or latest: also what was written after the last checkpoint",
    "mode": "FAILFAST (default): corrupt data fails the read; PERMISSIVE: it is skipped and counted",
    "maxPartitionBytes": "bytes of log to an input partition, default 128m",
    "minPartitions": "at least so many input partitions, as far as the data can be cut",
}
_BY_FOLDED = {name.casefold(): name for name in OPTIONS} | {
    "kafka.isolation.level": "isolationLevel",  # as Spark's Kafka source passes it to its consumer
    "isolation.level": "isolationLevel",
}
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
"""Options of streaming queries: a batch ignores them, as Spark's Kafka source does.  See
``bmq.spark.streaming.rate_limits``."""

_SUBSCRIPTIONS = ("topic", "subscribe", "subscribePattern", "assign")
_HINTS = {
    "kafka.bootstrap.servers": "no broker is used here: name the storage by root",
    "path": "use root, and load() without a path",
}
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_BYTES = re.compile(r"\s*(\d+)\s*([a-zA-Z]*)\s*", re.ASCII)


class OptionError(ValueError):
    """An option that is unknown or has an invalid value; the text names it and what is expected."""


class Subscription(Enum):
    """The kinds of selection of topics and partitions."""

    TOPICS = "these topics"
    PATTERN = "topics whose whole name matches"
    PARTITIONS = "these partitions of topics"


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of the log: ``EARLIEST`` or ``LATEST``."""

    offset: int


@dataclass(frozen=True, slots=True)
class ByOffset:
    """An offset for each partition, which may be ``EARLIEST`` or ``LATEST``."""

    offsets: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class ByTimestamp:
    """The first record that is not older than a timestamp (milliseconds since 1970), in each partition.

    ``everywhere`` applies to all partitions if ``timestamps`` is None.
    """

    everywhere: int = 0
    timestamps: Mapping[str, Mapping[int, int]] | None = None

    def of(self, topic: str, partition: int) -> int:
        """Return the partition's timestamp."""
        return self.everywhere if self.timestamps is None else self.timestamps[topic][partition]


OffsetLimit = Edge | ByOffset | ByTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed and checked options of one read."""

    root: str
    subscription: Subscription
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Partitions by topic, for ``Subscription.PARTITIONS`` alone."""
    topic_id: uuid.UUID | None = None
    """Id of the only topic, if another topic of the same name must not be read."""
    starting: OffsetLimit = field(default_factory=lambda: Edge(EARLIEST))
    ending: OffsetLimit = field(default_factory=lambda: Edge(LATEST))
    start_at_latest_if_none: bool = False
    fail_on_data_loss: bool = True
    committed: bool = True
    to_visible_end: bool = False
    permissive: bool = False
    max_partition_bytes: int = 128 << 20
    min_partitions: int = 1

    @property
    def begins_at_latest(self) -> bool:
        """True if the place where the read begins changes with time, even when storage loses nothing."""
        match self.starting:
            case Edge(offset=offset):
                return offset == LATEST
            case ByOffset(offsets=offsets):
                return any(LATEST in partitions.values() for partitions in offsets.values())
            case ByTimestamp():
                return self.start_at_latest_if_none

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Return the options of a batch query.  Raises OptionError if one of them is unknown, invalid, or useless in a
        batch."""
        options = known(given)
        starting = _limit(options, "starting", Edge(EARLIEST))
        ending = _limit(options, "ending", Edge(LATEST))
        _refuse_edge(starting, LATEST, "startingOffsets may not be latest in a batch: nothing would be read")
        _refuse_edge(ending, EARLIEST, "endingOffsets may not be earliest in a batch: nothing would be read")
        return cls._of(options, starting, ending)

    @classmethod
    def parse_stream(cls, given: Mapping[str, str]) -> ReadOptions:
        """Return the options of a streaming query, which begins at the latest offsets by default.

        Raises OptionError if one of them is unknown, invalid, or useless in a stream.
        """
        options = known(given)
        for name in options:
            if name.startswith("ending"):
                raise OptionError(f"{name} has no meaning in a streaming query, which does not end")
        if _choice(options, "consistency", "committed", "latest") == "latest":
            raise OptionError("consistency=latest reads records that may still be lost: not in a streaming query")
        return cls._of(options, _limit(options, "starting", Edge(LATEST)), Edge(LATEST))

    @classmethod
    def _of(cls, options: Mapping[str, str], starting: OffsetLimit, ending: OffsetLimit) -> ReadOptions:
        _flag(options, "includeHeaders", default=False)  # checked even if the user gives a schema
        subscription, topics, pattern, assigned = _subscription(options)
        to_visible_end = _choice(options, "consistency", "committed", "latest") == "latest"
        committed = _choice(options, "isolationLevel", "read_committed", "read_uncommitted") == "read_committed"
        if to_visible_end and committed and "isolationLevel" in options:
            raise OptionError(
                "consistency=latest reads past the last checkpoint, and so records of aborted transactions:"
                " isolationLevel=read_committed cannot be kept with it"
            )
        return cls(
            root=_root(options),
            subscription=subscription,
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            topic_id=_topic_id(options, topics),
            starting=starting,
            ending=ending,
            start_at_latest_if_none=_choice(options, "startingOffsetsByTimestampStrategy", "error", "latest")
            == "latest",
            fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
            committed=committed and not to_visible_end,
            to_visible_end=to_visible_end,
            permissive=_choice(options, "mode", "FAILFAST", "PERMISSIVE") == "PERMISSIVE",
            max_partition_bytes=byte_count(options, "maxPartitionBytes", 128 << 20),
            min_partitions=positive(options, "minPartitions", 1),
        )


def wants_headers(given: Mapping[str, str]) -> bool:
    """Return ``includeHeaders``, the only option that is read before Spark says whether a query is a batch or
    streams."""
    return _flag(known(given), "includeHeaders", default=False)


def known(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their right names, without those of streaming alone.

    Raises OptionError, with the list of all options, if one is unknown.
    """
    ignored = {name.casefold() for name in STREAM_OPTIONS}
    found: dict[str, str] = {}
    for name, value in given.items():
        right = _BY_FOLDED.get(name.casefold())
        if right is not None:
            if found.get(right, value).strip().casefold() != value.strip().casefold():
                raise OptionError(f"{right} is given twice: {found[right]!r}, and {value!r} as {name}")
            found[right] = value
        elif name.casefold() not in ignored:
            hint = _HINTS.get(name.casefold()) or f"unknown option{meant(name, OPTIONS)}"
            end = "" if hint.endswith("?") else "."
            names = "\n".join(f"  {name}: {text}" for name, text in OPTIONS.items())
            raise OptionError(f"option {name!r}: {hint}{end} The options of bmq:\n{names}")
    return found


def _root(options: Mapping[str, str]) -> str:
    root = options.get("root", "").strip()
    if not root:
        raise OptionError(f"option 'root' is missing: {OPTIONS['root']}")
    return root


def _subscription(
    options: Mapping[str, str],
) -> tuple[Subscription, tuple[str, ...], str, dict[str, frozenset[int]]]:
    given = [name for name in _SUBSCRIPTIONS if name in options]
    if len(given) != 1:
        raise OptionError(f"give exactly one of {', '.join(_SUBSCRIPTIONS)}; there is {', '.join(given) or 'none'}")
    value = options[given[0]].strip()
    if given[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"subscribePattern={value!r} is not a regular expression: {error}") from error
        if value:
            return Subscription.PATTERN, (), value, {}
    if given[0] == "assign":
        assigned = _assigned(value)
        return Subscription.PARTITIONS, tuple(assigned), "", assigned
    topics = [value] if given[0] == "topic" else [name.strip() for name in value.split(",")]
    topics = list(dict.fromkeys(name for name in topics if name))
    if not topics:
        raise OptionError(f"option {given[0]!r} names no topic")
    return Subscription.TOPICS, tuple(topics), "", {}


def _assigned(text: str) -> dict[str, frozenset[int]]:
    example = '{"topic": [0, 1]}'
    try:
        raw: Any = json.loads(text)
        assigned = {str(topic): frozenset(_integer(number) for number in numbers) for topic, numbers in raw.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(f"assign={text!r} is not of the form {example}") from error
    if not assigned or not all(numbers and min(numbers) >= 0 for numbers in assigned.values()):
        raise OptionError(
            f"assign={text!r}: expected at least one partition, from 0 up, of each topic, as in {example}"
        )
    return assigned


def _topic_id(options: Mapping[str, str], topics: Sequence[str]) -> uuid.UUID | None:
    text = options.get("topicId", "").strip()
    if not text:
        return None
    if len(topics) != 1:
        raise OptionError("topicId is the id of one topic: name that one alone, by topic, subscribe or assign")
    try:
        return uuid.UUID(text)
    except ValueError:
        raise OptionError(f"topicId={text!r} is not of the form {uuid.UUID(int=0)}") from None


def _limit(options: Mapping[str, str], which: str, default: Edge) -> OffsetLimit:
    """Return where a read begins or ends (``which``: "starting" or "ending").

    As in Spark's Kafka source, a timestamp for all partitions wins over timestamps by partition, and these win over
    offsets.
    """
    everywhere, by_timestamp = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    by_offset = f"{which}Offsets"
    if everywhere in options:
        return ByTimestamp(everywhere=_milliseconds(everywhere, options[everywhere].strip()))
    if by_timestamp in options:
        parsed = _by_partition(by_timestamp, options[by_timestamp])
        for partitions in parsed.values():
            for value in partitions.values():
                _milliseconds(by_timestamp, str(value))
        return ByTimestamp(timestamps=parsed)
    text = options.get(by_offset, "").strip()
    match text.casefold():
        case "":
            return default
        case "earliest":
            return Edge(EARLIEST)
        case "latest":
            return Edge(LATEST)
    parsed = _by_partition(by_offset, text)
    for topic, partitions in parsed.items():
        for partition, offset in partitions.items():
            if offset < EARLIEST:
                raise OptionError(f"{by_offset}: {topic}-{partition} cannot have offset {offset}")
    return ByOffset(parsed)


def _refuse_edge(limit: OffsetLimit, edge: int, text: str) -> None:
    match limit:
        case Edge(offset=offset) if offset == edge:
            raise OptionError(text)
        case ByOffset(offsets=offsets) if any(edge in partitions.values() for partitions in offsets.values()):
            raise OptionError(text)


def _by_partition(name: str, text: str) -> dict[str, dict[int, int]]:
    example = '{"topic": {"0": 23, "1": -2}}'
    try:
        raw: Any = json.loads(text)
        return {
            str(topic): {int(partition): _integer(number) for partition, number in partitions.items()}
            for topic, partitions in raw.items()
        }
    except (ValueError, AttributeError) as error:
        raise OptionError(f"{name}={text!r} is not of the form {example}") from error


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def _milliseconds(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise OptionError(f"{name}={text!r}: expected milliseconds since 1970, as in 1700000000000")
    return int(text)


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    """Return the option's value, one of ``choices``; the first one is the default."""
    value = options.get(name, choices[0]).strip()
    for choice in choices:
        if choice.casefold() == value.casefold():
            return choice
    raise OptionError(f"{name}={value!r}: expected {' or '.join(choices)}")


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(options, name, *(("true", "false") if default else ("false", "true"))) == "true"


def positive(options: Mapping[str, str], name: str, default: int) -> int:
    """Return the option's value, a number of at least 1.  Raises OptionError if it is not one."""
    value = options.get(name, str(default)).strip()
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise OptionError(f"{name}={value!r}: expected a number of at least 1")
    return int(value)


def byte_count(options: Mapping[str, str], name: str, default: int) -> int:
    """Return the option's value in bytes, given with or without a unit.  Raises OptionError if it is not a size."""
    value = options.get(name, str(default))
    found = size_of(value)
    if found is None:
        raise OptionError(f"{name}={value!r}: expected bytes, as in 134217728 or 128m")
    return found


def size_of(text: str) -> int | None:
    """Return the bytes that ``text`` names, such as "128m"; None unless it is a size of at least 1."""
    match = _BYTES.fullmatch(text)
    unit = _UNITS.get(match[2].casefold()) if match is not None else None
    return int(match[1]) * unit or None if match is not None and unit is not None else None
