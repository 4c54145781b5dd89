"""Kafka's own command-line tools, as an operator uses them: what they print and the codes they end with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import new_name
from tests.services.kafka_tools import TOOL_TIMEOUT_S, ToolOutput, run_tool, tool_command

pytestmark = pytest.mark.clients

BMQ = str(Path(sys.executable).with_name("bmq"))
PARTITIONS = 3
RECORDS = 2_000
RECORD_BYTES = 100
VERIFIED = 500
STOP_TIMEOUT_S = 30.0

Tool = Callable[..., ToolOutput]


@pytest.fixture
def tool(endpoint: Endpoint) -> Tool:
    """Return a function that runs a tool on this endpoint."""

    def run(name: str, *arguments: str, stdin: str | None = None, codes: tuple[int, ...] = (0,)) -> ToolOutput:
        return run_tool(name, "--bootstrap-server", endpoint.bootstrap, *arguments, stdin=stdin, codes=codes)

    return run


@pytest.fixture
def topic(tool: Tool) -> str:
    name = new_name("tools")
    tool("TopicCommand", "--create", "--topic", name, "--partitions", str(PARTITIONS))
    return name


def offsets(tool: Tool, topic: str, *arguments: str) -> dict[int, int]:
    """Return the offsets of kafka-get-offsets' lines, `topic:partition:offset`."""
    lines = tool("GetOffsetShell", "--topic", topic, *arguments).lines
    return {int(partition): int(offset) for partition, offset in (line.split(":")[1:] for line in lines)}


def produce(tool: Tool, topic: str, count: int) -> list[str]:
    """Produce lines without keys through the console producer, and return them."""
    lines = [f"line {number}" for number in range(count)]
    tool("ConsoleProducer", "--topic", topic, stdin="".join(f"{line}\n" for line in lines))
    return lines


def test_topics(tool: Tool) -> None:
    """Create with a config, list, describe, more partitions, delete; the second creation fails."""
    name = new_name("topics")
    create = ("--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=60000")
    assert f"Created topic {name}." in tool("TopicCommand", *create).stdout
    again = tool("TopicCommand", *create, codes=(1,))
    assert "TopicExistsException" in again.stderr
    assert name in tool("TopicCommand", "--list").lines
    described = tool("TopicCommand", "--describe", "--topic", name).stdout
    assert "PartitionCount: 2" in described
    assert "retention.ms=60000" in described
    assert (
        len(re.findall(rf"Topic: {name}\tPartition: \d+\tLeader: \d+\tReplicas: [\d,]+\tIsr: [\d,]+", described)) == 2
    )
    tool("TopicCommand", "--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in tool("TopicCommand", "--describe", "--topic", name).stdout
    fewer = tool("TopicCommand", "--alter", "--topic", name, "--partitions", "3", codes=(1,))
    assert "InvalidPartitionsException" in fewer.stderr
    tool("TopicCommand", "--delete", "--topic", name)
    assert name not in tool("TopicCommand", "--list").lines


def test_topic_configs(tool: Tool, topic: str) -> None:
    """Set, describe, delete, and refuse what Kafka refuses."""
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("ConfigCommand", "--alter", *entity, "--add-config", "retention.ms=123456,max.message.bytes=2000000")
    described = tool("ConfigCommand", "--describe", *entity).stdout
    assert "retention.ms=123456" in described
    assert "max.message.bytes=2000000" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=123456" in described
    tool("ConfigCommand", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tool("ConfigCommand", "--describe", *entity).stdout
    everything = tool("ConfigCommand", "--describe", "--all", *entity).stdout
    assert "retention.ms=604800000" in everything
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in everything
    refused = tool("ConfigCommand", "--alter", *entity, "--add-config", "retention.ms=soon", codes=(1,))
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr


def test_broker_configs(tool: Tool, topic: str) -> None:
    """The node's settings are described; one that may change at run time is set and taken back."""
    described = tool("TopicCommand", "--describe", "--topic", topic).stdout
    found = re.search(r"Leader: (\d+)", described)
    assert found is not None
    entity = ("--entity-type", "brokers", "--entity-name", found[1])
    everything = tool("ConfigCommand", "--describe", "--all", *entity).stdout
    assert "group.initial.rebalance.delay.ms=0" in everything
    assert "message.max.bytes=1048588" in everything
    tool("ConfigCommand", "--alter", *entity, "--add-config", "message.max.bytes=2097164")
    assert "message.max.bytes=2097164" in tool("ConfigCommand", "--describe", *entity).stdout
    tool("ConfigCommand", "--alter", *entity, "--delete-config", "message.max.bytes")
    assert "message.max.bytes" not in tool("ConfigCommand", "--describe", *entity).stdout


def test_console(tool: Tool, topic: str) -> None:
    """Keys and values through console producer and consumer, from the beginning; a group goes on where it stopped."""
    pairs = [f"key-{number % 7}\tvalue {number}" for number in range(50)]
    parse = ("--reader-property", "parse.key=true", "--compression-codec", "zstd")
    tool("ConsoleProducer", "--topic", topic, *parse, stdin="".join(f"{pair}\n" for pair in pairs))
    show = ("--topic", topic, "--from-beginning", "--formatter-property", "print.key=true")
    assert sorted(tool("ConsoleConsumer", *show, "--max-messages", "50").lines) == sorted(pairs)
    group = ("--group", new_name("group"))
    first = tool("ConsoleConsumer", *show, *group, "--max-messages", "20").lines
    rest = tool("ConsoleConsumer", *show, *group, "--max-messages", "30").lines
    assert sorted([*first, *rest]) == sorted(pairs)


def test_groups(tool: Tool, topic: str) -> None:
    """List, describe, lag, reset of offsets, delete."""
    lines = produce(tool, topic, 30)
    group = new_name("group")
    consume = ("--topic", topic, "--from-beginning", "--group", group)
    assert sorted(tool("ConsoleConsumer", *consume, "--max-messages", "30").lines) == sorted(lines)
    assert group in tool("ConsumerGroupCommand", "--list").lines
    described = tool("ConsumerGroupCommand", "--describe", "--group", group).stdout
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert rows
    assert {row[1] for row in rows} == {topic}
    assert sum(int(row[3]) for row in rows) == 30
    assert all(row[5] == "0" for row in rows), "lag"
    assert "Empty" in tool("ConsumerGroupCommand", "--describe", "--group", group, "--state").stdout
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    tool("ConsumerGroupCommand", *reset, "--to-earliest", "--execute")
    assert sorted(tool("ConsoleConsumer", *consume, "--max-messages", "30").lines) == sorted(lines)
    tool("ConsumerGroupCommand", *reset, "--shift-by", "-1", "--execute")
    described = tool("ConsumerGroupCommand", "--describe", "--group", group).stdout
    used = sum(end > 0 for end in offsets(tool, topic).values())
    assert sum(int(line.split()[5]) for line in described.splitlines() if line.startswith(group)) == used
    assert "successful" in tool("ConsumerGroupCommand", "--delete", "--group", group).stdout
    assert group not in tool("ConsumerGroupCommand", "--list").lines


def test_offsets_and_delete_records(tool: Tool, topic: str, tmp_path: Path) -> None:
    """Earliest, latest and by time; earliest moves when records are deleted."""
    produce(tool, topic, 20)
    assert offsets(tool, topic, "--time", "earliest") == dict.fromkeys(range(PARTITIONS), 0)
    latest = offsets(tool, topic)
    assert sum(latest.values()) == 20
    assert offsets(tool, topic, "--time", "0") == {partition: 0 for partition, end in latest.items() if end}
    partition = max(latest, key=lambda each: latest[each])
    plan = {"partitions": [{"topic": topic, "partition": partition, "offset": 2}], "version": 1}
    file = tmp_path / "delete.json"
    file.write_text(json.dumps(plan))
    assert "low_watermark: 2" in tool("DeleteRecordsCommand", "--offset-json-file", str(file)).stdout
    assert offsets(tool, topic, "--time", "earliest")[partition] == 2


def test_cluster(endpoint: Endpoint, tool: Tool, topic: str) -> None:
    """Api versions, cluster id, log directories."""
    versions = tool("BrokerApiVersionsCommand").stdout
    assert re.search(r"Produce\(0\): \d+ to \d+ \[usable: \d+\]", versions)
    assert re.search(r"JoinGroup\(11\): \d+ to \d+ \[usable: \d+\]", versions)
    cluster = run_tool("ClusterTool", "cluster-id", "--bootstrap-server", endpoint.bootstrap)
    assert re.search(r"Cluster ID: \S+", cluster.stdout)
    produce(tool, topic, 5)
    logs = json.loads(tool("LogDirsCommand", "--describe", "--topic-list", topic).lines[-1])
    partitions = [each for broker in logs["brokers"] for folder in broker["logDirs"] for each in folder["partitions"]]
    assert {each["partition"] for each in partitions} == {f"{topic}-{number}" for number in range(PARTITIONS)}
    assert sum(each["size"] for each in partitions) > 0


def test_features(endpoint: Endpoint, tool: Tool) -> None:
    """Describe lists BMQ's own feature, and transactions at level 2. An upgrade beyond is refused, without effect."""
    described = tool("FeatureCommand", "describe").lines
    features = {line.split()[1]: line for line in described if line.startswith("Feature:")}
    assert features.keys() == {"compaction.version", "transaction.version"}
    assert "SupportedMaxVersion: 1" in features["compaction.version"]
    assert "FinalizedVersionLevel: 1" in features["compaction.version"]
    feature = features["transaction.version"]
    assert "SupportedMaxVersion: 2" in feature
    assert "FinalizedVersionLevel: 2" in feature
    refused = tool("FeatureCommand", "upgrade", "--feature", "transaction.version=3", codes=(1,))
    assert "Could not upgrade transaction.version to 3." in refused.stdout
    assert "The controller only supports versions 0 to 2." in refused.stdout
    assert tool("FeatureCommand", "describe").lines == described


def finalized(tool: Tool) -> int:
    """Return the level of transactions that is in force."""
    (line,) = [line for line in tool("FeatureCommand", "describe").lines if "transaction.version" in line.split()]
    return int(line.partition("FinalizedVersionLevel: ")[2].split()[0])


def test_a_feature_is_lowered_and_raised(endpoint: Endpoint, tool: Tool) -> None:
    """Level 1 of transactions is safe to go back to, level 0 is not."""
    try:
        lowered = tool("FeatureCommand", "downgrade", "--feature", "transaction.version=1")
        assert "transaction.version was downgraded to 1." in lowered.stdout
        assert finalized(tool) == 1
        refused = tool("FeatureCommand", "downgrade", "--feature", "transaction.version=0", codes=(1,))
        assert "The downgrade from 1 is not safe, and is refused" in refused.stdout
    finally:
        raised = tool("FeatureCommand", "upgrade", "--feature", "transaction.version=2")
    assert "transaction.version was upgraded to 2." in raised.stdout
    assert finalized(tool) == 2


UNKNOWN = "The controller does not support this feature."
UNSAFE = "is not safe, and is refused: what was written at the present version would be misread."


@pytest.mark.parametrize(
    ("command", "reasons"),
    [
        ("upgrade --feature transaction.version=3 --dry-run", ["Can not upgrade transaction.version to 3."]),
        ("upgrade --feature nonsense=1", ["Could not upgrade nonsense to 1.", UNKNOWN]),
        ("disable --feature transaction.version", ["Could not disable transaction.version.", UNSAFE]),
        ("downgrade --feature transaction.version=0 --unsafe", ["Could not downgrade transaction.version", UNSAFE]),
        ("upgrade --release-version 4.3-IV0", ["metadata.version to 30.", UNKNOWN, "7 out of 7 operation(s) failed."]),
        ("downgrade --metadata 4.0-IV3 --dry-run", ["Can not downgrade metadata.version to 25.", UNKNOWN]),
        ("upgrade --feature transaction.version=two", ["unable to parse two as a short."]),
        # Neither of two changes is made if the cluster refuses the other one.
        (
            "downgrade --feature transaction.version=1 --feature compaction.version=0",
            ["Could not downgrade transaction.version to 1.", UNSAFE, "2 out of 2 operation(s) failed."],
        ),
    ],
)
def test_a_refused_change_of_features_says_why(
    endpoint: Endpoint, tool: Tool, command: str, reasons: list[str]
) -> None:
    refused = tool("FeatureCommand", *command.split(), codes=(1,))
    for reason in reasons:
        assert reason in refused.stdout + refused.stderr
    assert own_levels(endpoint) == {"compaction.version": 1, "transaction.version": 2}


def test_a_dry_run_changes_no_feature(endpoint: Endpoint, tool: Tool) -> None:
    dry = tool("FeatureCommand", "downgrade", "--feature", "transaction.version=1", "--dry-run")
    assert dry.lines == ["transaction.version can be downgraded to 1."]
    assert finalized(tool) == 2
    same = tool("FeatureCommand", "upgrade", "--feature", "transaction.version=2", "--dry-run")
    assert same.lines == ["transaction.version can be upgraded to 2."]


def test_tables_of_features(tool: Tool) -> None:
    """The tool has these tables itself; they know the feature that BMQ shares with Kafka."""
    assert "transaction.version=2" in tool("FeatureCommand", "version-mapping").lines
    needed = tool("FeatureCommand", "feature-dependencies", "--feature", "transaction.version=2")
    assert needed.lines == ["transaction.version=2 has no dependencies."]


def own_levels(endpoint: Endpoint, *arguments: str) -> dict[str, int]:
    """Return the levels that `bmq cluster features` prints, by feature."""
    command = [BMQ, "cluster", "features", "--json", "--bootstrap-server", endpoint.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True)
    return {each["feature"]: each["level"] for each in map(json.loads, done.stdout.splitlines())}


def test_own_command_sets_features(endpoint: Endpoint, tool: Tool) -> None:
    """`bmq cluster features` changes what kafka-features.sh shows; a dry run changes nothing."""
    assert own_levels(endpoint, "--downgrade", "transaction.version=1", "--dry-run") == {"transaction.version": 1}
    assert own_levels(endpoint)["transaction.version"] == 2
    try:
        own_levels(endpoint, "--downgrade", "transaction.version=1")
        assert finalized(tool) == 1
    finally:
        own_levels(endpoint, "--upgrade", "transaction.version=2")
    assert own_levels(endpoint)["transaction.version"] == 2


def test_performance(endpoint: Endpoint, tool: Tool, topic: str) -> None:
    """The producer and the consumer that benchmarks use: every record is acknowledged and consumed."""
    sent = run_tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES),
        "--throughput", "-1", "--command-property", f"bootstrap.servers={endpoint.bootstrap}", "acks=all",
        "compression.type=lz4",
    )  # fmt: skip
    assert re.search(rf"^{RECORDS} records sent, .* p?\d.* 99th", sent.stdout, re.MULTILINE)
    assert sum(offsets(tool, topic).values()) == RECORDS
    read = tool("ConsumerPerformance", "--topic", topic, "--num-records", str(RECORDS), "--timeout", "20000")
    header, row = (line.split(", ") for line in read.lines[-2:])
    assert int(dict(zip(header, row, strict=True))["data.consumed.in.nMsg"]) == RECORDS


def test_verifiable(endpoint: Endpoint, tool: Tool, topic: str) -> None:
    """Kafka's system-test pair: what the producer was acknowledged the consumer reports and commits."""
    written = tool("VerifiableProducer", "--topic", topic, "--max-messages", str(VERIFIED), "--acks", "-1")
    events = [json.loads(line) for line in written.lines]
    acknowledged = [event for event in events if event["name"] == "producer_send_success"]
    assert len({event["value"] for event in acknowledged}) == VERIFIED
    arguments = (
        "--bootstrap-server", endpoint.bootstrap, "--topic", topic, "--group-id", new_name("group"),
        "--max-messages", str(VERIFIED), "--reset-policy", "earliest",
    )  # fmt: skip
    # The consumer runs until it is stopped, also after the last message.
    consumer = subprocess.Popen(
        tool_command("VerifiableConsumer", *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    consumed, committed = 0, dict[int, int]()
    too_late = threading.Timer(TOOL_TIMEOUT_S, consumer.kill)  # its output ends then, and the last assertion fails
    too_late.start()
    with consumer:
        try:
            assert consumer.stdout is not None
            for line in consumer.stdout:
                event = json.loads(line)
                if event["name"] == "records_consumed":
                    consumed += event["count"]
                if event["name"] == "offsets_committed":
                    assert event["success"]
                    committed |= {each["partition"]: each["offset"] for each in event["offsets"]}
                if consumed >= VERIFIED and sum(committed.values()) >= VERIFIED:
                    break
            consumer.terminate()
            consumer.communicate(timeout=STOP_TIMEOUT_S)
        finally:
            too_late.cancel()
            consumer.kill()
    assert (consumed, sum(committed.values())) == (VERIFIED, VERIFIED)
