"""Options: what is taken, what is refused and what the refusal says."""

from __future__ import annotations

import uuid

import pytest

from bmq.spark.options import (
    EARLIEST,
    LATEST,
    OPTIONS,
    ByOffset,
    ByTimestamp,
    Edge,
    OptionError,
    ReadOptions,
    Subscription,
)

BASE = {"root": "file:///r", "topic": "t"}


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({**BASE, **options})


def test_defaults() -> None:
    options = parse()
    assert (options.root, options.subscription, options.topics) == ("file:///r", Subscription.TOPICS, ("t",))
    assert (options.starting, options.ending) == (Edge(EARLIEST), Edge(LATEST))
    assert options.committed
    assert options.fail_on_data_loss
    assert (options.permissive, options.to_visible_end) == (False, False)
    assert options.max_partition_bytes == 128 << 20


def test_names_have_no_case() -> None:
    """Spark hands them over as they were written, or in small letters."""
    options = ReadOptions.parse({"ROOT": "file:///r", "subscribepattern": "a.*", "FAILonDATAloss": "False"})
    assert (options.subscription, options.pattern, options.fail_on_data_loss) == (Subscription.PATTERN, "a.*", False)


def test_subscribe_takes_several() -> None:
    options = ReadOptions.parse({"root": "file:///r", "subscribe": "b, a,,b"})
    assert options.topics == ("b", "a")


def test_assign_takes_partitions_of_several_topics() -> None:
    options = ReadOptions.parse({"root": "file:///r", "assign": '{"b": [3, 0, 3], "a": [1]}'})
    assert (options.subscription, options.topics) == (Subscription.PARTITIONS, ("b", "a"))
    assert options.assigned == {"b": {0, 3}, "a": {1}}
    topic_id = uuid.uuid4()
    assert parse(topicId=str(topic_id)).topic_id == topic_id


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "EARLIEST"}, Edge(EARLIEST)),
        ({"startingOffsets": '{"t":{"0":23,"1":-2}}'}, ByOffset({"t": {0: 23, 1: EARLIEST}})),
        ({"startingTimestamp": "5"}, ByTimestamp(everywhere=5)),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, ByTimestamp(timestamps={"t": {0: 5}})),
        (  # the order of Spark's Kafka source
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t":{"0":6}}', "startingOffsets": "earliest"},
            ByTimestamp(everywhere=5),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":6}}', "startingOffsets": "earliest"},
            ByTimestamp(timestamps={"t": {0: 6}}),
        ),
    ],
)  # fmt: skip
def test_starting(given: dict[str, str], expected: object) -> None:
    assert parse(**given).starting == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("1", 1), ("64k", 65_536), ("128MB", 128 << 20), (" 2 g ", 2 << 30), ("77b", 77)]
)
def test_bytes(value: str, expected: int) -> None:
    assert parse(maxPartitionBytes=value).max_partition_bytes == expected


@pytest.mark.parametrize("name", ["isolationLevel", "kafka.isolation.level", "isolation.level"])
def test_the_isolation_level_has_kafkas_names_too(name: str) -> None:
    given = {"root": "file:///r", "topic": "t"}
    assert ReadOptions.parse(given).committed
    assert not ReadOptions.parse({**given, name: "read_uncommitted"}).committed
    assert not ReadOptions.parse_stream({**given, name: "READ_UNCOMMITTED"}).committed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topicc": "t"}, "'topicc': unknown option; did you mean topic\\? The options"),
        ({"startingoffset": "latest"}, "'startingoffset': unknown option; did you mean startingOffsets\\? The options"),
        ({"colour": "red"}, "'colour': unknown option\\. The options"),
        ({"kafka.bootstrap.servers": "h:1"}, "no broker is used"),
        ({"kafka.isolation.level": "none"}, "isolationLevel='none'"),
        (
            {"kafka.isolation.level": "read_committed", "isolationLevel": "read_uncommitted"},
            "isolationLevel is given twice: 'read_committed', and 'read_uncommitted' as isolationLevel",
        ),
        ({"path": "/x"}, "load\\(\\) without a path"),
        ({"subscribe": "u"}, "exactly one of topic, subscribe, subscribePattern, assign; there is topic, subscribe"),
        ({"topicId": "7"}, "topicId='7' is not of the form 0000"),
        ({"startingOffsets": "latest"}, "startingOffsets may not be latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets may not be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets may not be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets may not be earliest"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "t-0 cannot have offset -3"),
        ({"startingOffsets": '{"t":{"0":"5"}}'}, "is not of the form"),
        ({"startingOffsets": "[1]"}, "is not of the form"),
        ({"startingOffsets": "soon"}, "is not of the form"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "expected error or latest"),
        ({"failOnDataLoss": "maybe"}, "expected true or false"),
        ({"includeHeaders": "1"}, "expected false or true"),
        ({"isolationLevel": "serializable"}, "read_committed or read_uncommitted"),
        ({"consistency": "strong"}, "committed or latest"),
        ({"consistency": "latest", "isolationLevel": "read_committed"}, "cannot be kept"),
        ({"mode": "DROPMALFORMED"}, "FAILFAST or PERMISSIVE"),
        ({"maxPartitionBytes": "0"}, "expected bytes"),
        ({"maxPartitionBytes": "1.5g"}, "expected bytes"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"minPartitions": "-1"}, "at least 1"),
    ],
)
def test_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "t"}, "'root' is missing"),
        ({"root": "file:///r"}, "exactly one of .* there is none"),
        ({"root": "file:///r", "subscribe": " , "}, "names no topic"),
        ({"root": "file:///r", "subscribePattern": "a("}, "not a regular expression"),
        ({"root": "file:///r", "subscribePattern": ""}, "names no topic"),
        ({"root": "file:///r", "assign": "t"}, "assign='t' is not of the form"),
        ({"root": "file:///r", "assign": '["t"]'}, "is not of the form"),
        ({"root": "file:///r", "assign": '{"t": 1}'}, "is not of the form"),
        ({"root": "file:///r", "assign": '{"t": ["1"]}'}, "is not of the form"),
        ({"root": "file:///r", "assign": "{}"}, "at least one partition"),
        ({"root": "file:///r", "assign": '{"t": []}'}, "at least one partition"),
        ({"root": "file:///r", "assign": '{"t": [-1]}'}, "from 0 up"),
        ({"root": "file:///r", "subscribe": "t,u", "topicId": str(uuid.UUID(int=7))}, "the id of one topic"),
        ({"root": "file:///r", "subscribePattern": "t", "topicId": str(uuid.UUID(int=7))}, "the id of one topic"),
    ],
)
def test_incomplete(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ReadOptions.parse(given)


def test_an_unknown_option_is_told_all_there_are() -> None:
    with pytest.raises(OptionError) as error:
        parse(speed="fast")
    assert all(name in str(error.value) for name in OPTIONS)


def test_latest_consistency_is_uncommitted() -> None:
    options = parse(consistency="latest")
    assert options.to_visible_end
    assert not options.committed


def test_options_of_streams_are_ignored_as_by_sparks_kafka_source() -> None:
    assert parse(maxOffsetsPerTrigger="5") == parse()
