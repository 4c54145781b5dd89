"""The admin APIs through the wire in every version: Kafka's answers and errors, and the request's time honoured."""

from __future__ import annotations

import asyncio
import io
import logging
import uuid
from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.logging.limit import BURST
from bmq.core.model import PartitionKey
from bmq.core.wire.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListPartitionReassignmentsRequest,
)
from bmq.endpoint.api import Api
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.acl_operations import CLUSTER_OPERATIONS
from bmq.proxy.handlers import (
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    init_producer_id,
    list_partition_reassignments,
)
from tests.unit.proxy.handlers.admin_serving import AdminServing, Spread, serving

CREATE, DELETE, GROW = create_topics.APIS[0], delete_topics.APIS[0], create_partitions.APIS[0]
DESCRIBE, (ALTER, INCREMENT) = describe_configs.APIS[0], alter_configs.APIS
CLUSTER, PARTITIONS, PRODUCER = describe_cluster.APIS[0], describe_topic_partitions.APIS[0], init_producer_id.APIS[0]
ELECT, REASSIGN = elect_leaders.APIS[0], alter_partition_reassignments.APIS[0]
REASSIGNMENTS = list_partition_reassignments.APIS[0]
TOPIC, BROKER = 2, 4


def versions(api: Api[Any]) -> range:
    return range(api.min_version, api.max_version + 1)


def codes(results: Any) -> list[tuple[str, int]]:
    return [(result.name, result.error_code) for result in results]


# ----------------------------------------------------------------------------------------------------- CreateTopics


def new(name: str, partitions: int = 1, factor: int = 1, *, configs: Any = (), assignments: Any = ()) -> Any:
    Creatable = CreateTopicsRequest.CreatableTopic
    return Creatable(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            Creatable.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in assignments
        ],
        configs=[Creatable.CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )


def create(*topics: Any, timeout_ms: int = 100, validate_only: bool = False) -> Any:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)


@pytest.mark.parametrize("version", versions(CREATE))
async def test_create_topics(version: int) -> None:
    async with serving() as w:
        asked = create(
            new("t", 3, configs=[("retention.ms", "5")]),
            new("twice"), new("twice"), new("a b"), new("none", 0),
            new("wrong", configs=[("retention.ms", "x")]), new("null", configs=[("retention.ms", None)]),
            new("default", -1, -1), new("manual", -1, -1, assignments=[(0, [0]), (1, [0])]),
            new("double", -1, -1, assignments=[(0, [0]), (0, [0])]),
        )  # fmt: skip
        found = (await w.ask(CREATE, version, asked)).topics
        assert codes(found) == [
            ("t", 0), ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION), ("none", ErrorCode.INVALID_PARTITIONS),
            ("wrong", ErrorCode.INVALID_CONFIG), ("null", ErrorCode.INVALID_CONFIG), ("default", 0),
            ("manual", 0), ("double", ErrorCode.INVALID_REPLICA_ASSIGNMENT), ("twice", ErrorCode.INVALID_REQUEST),
        ]  # fmt: skip
        assert set(w.catalog.topics) == {"t", "default", "manual"}
        assert w.catalog.topics["manual"].partitions == 2
        assert found[0].error_message is None
        assert "Topic name is invalid" in found[1].error_message
        if version >= 5:
            assert (found[0].num_partitions, found[0].replication_factor) == (3, 1)
            configs = {config.name: config for config in found[0].configs}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
            assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("604800000", 5)
            assert found[1].num_partitions == -1
        if version >= 7:
            assert found[0].topic_id == w.catalog.topics["t"].topic_id
        again = await w.ask(CREATE, version, create(new("t")))
        assert codes(again.topics) == [("t", ErrorCode.TOPIC_ALREADY_EXISTS)]


async def test_create_topics_answers_when_the_partitions_take_records() -> None:
    async with serving() as w:
        loop = asyncio.get_running_loop()

        async def open_later() -> None:
            await asyncio.sleep(2)
            topic = w.catalog.topics["t"]
            for partition in range(topic.partitions):
                w.owners.epochs[PartitionKey(topic.topic_id, partition)] = 1

        opening = asyncio.create_task(open_later())
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("t", 4), timeout_ms=30_000))).topics) == [("t", 0)]
        assert 2 <= loop.time() - began < 2.5
        await opening
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("u", 4), timeout_ms=30_000))).topics) == [("u", 0)]
        assert 4.9 < loop.time() - began < 5.5, "a topic that exists is not waited for without end"
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("v", 4), timeout_ms=500))).topics) == [("v", 0)]
        assert loop.time() - began < 0.7, "nor longer than the client waits"


async def test_a_request_ends_with_its_time() -> None:
    async with serving() as w:
        loop = asyncio.get_running_loop()
        await w.admin.create_topic("t")
        w.kv.pause()
        began = loop.time()
        late = ErrorCode.REQUEST_TIMED_OUT
        found = await w.ask(CREATE, 7, create(new("u"), new("t"), timeout_ms=700))
        assert codes(found.topics) == [("u", late), ("t", ErrorCode.TOPIC_ALREADY_EXISTS)]
        found = await w.ask(DELETE, 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=700))
        assert codes(found.responses) == [("t", late)]
        found = await w.ask(GROW, 3, grow(("t", 3, None), timeout_ms=700))
        assert codes(found.results) == [("t", late)]
        assert loop.time() - began == pytest.approx(2.1, abs=0.1)
        w.kv.resume()


async def test_validate_only_creates_nothing() -> None:
    async with serving() as w:
        asked = create(new("t", 3), new("a b"), validate_only=True, timeout_ms=10_000)
        found = (await w.ask(CREATE, 7, asked)).topics
        assert codes(found) == [("t", 0), ("a b", 17)]
        assert found[0].num_partitions == 3
        assert w.catalog.topics == {}
        assert w.owners.waited == []


# ---------------------------------------------------------------------------------- DeleteTopics, CreatePartitions


def delete(version: int, *names: str, ids: tuple[uuid.UUID, ...] = ()) -> Any:
    if version < 6:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000)
    state = DeleteTopicsRequest.DeleteTopicState
    topics = [state(name=name, topic_id=None) for name in names] + [state(name=None, topic_id=each) for each in ids]
    return DeleteTopicsRequest(topics=topics, timeout_ms=1000)


@pytest.mark.parametrize("version", versions(DELETE))
async def test_delete_topics(version: int) -> None:
    async with serving() as w:
        made = await w.admin.create_topic("t")
        await w.admin.create_topic("twice")
        await w.admin.ensure_topic("__consumer_offsets")
        asked = delete(version, "t", "none", "twice", "twice", "__consumer_offsets")
        found = (await w.ask(DELETE, version, asked)).responses
        assert codes(found) == [
            ("t", 0), ("none", 3), ("twice", ErrorCode.INVALID_REQUEST),
            ("__consumer_offsets", ErrorCode.INVALID_REQUEST),
        ]  # fmt: skip
        assert set(w.catalog.topics) == {"twice", "__consumer_offsets"}
        if version >= 6:
            assert found[0].topic_id == made.topic_id
    async with serving(config=NodeConfig(delete_topic_enable=False)) as w:
        await w.admin.create_topic("t")
        wanted = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert codes((await w.ask(DELETE, version, delete(version, "t"))).responses) == [("t", wanted)]


async def test_delete_topics_by_id() -> None:
    async with serving() as w:
        one, two = await w.admin.create_topic("one"), await w.admin.create_topic("two")
        unknown = uuid.uuid4()
        found = (await w.ask(DELETE, 6, delete(6, "two", ids=(one.topic_id, unknown, two.topic_id)))).responses
        assert [(r.name, r.topic_id, r.error_code) for r in found] == [
            ("two", None, ErrorCode.INVALID_REQUEST),  # named twice, by name and by id
            ("one", one.topic_id, 0),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            ("two", two.topic_id, 0),
        ]
        state = DeleteTopicsRequest.DeleteTopicState
        odd = [state(name="x", topic_id=unknown), state(name=None, topic_id=None)]
        found = (await w.ask(DELETE, 6, DeleteTopicsRequest(topics=odd, timeout_ms=1000))).responses
        assert [r.error_code for r in found] == [ErrorCode.INVALID_REQUEST] * 2


def grow(*topics: tuple[str, int, Any], timeout_ms: int = 1000, validate_only: bool = False) -> Any:
    Topic = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(
        topics=[
            Topic(
                name=name,
                count=count,
                assignments=lists and [Topic.CreatePartitionsAssignment(broker_ids=nodes) for nodes in lists],
            )
            for name, count, lists in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


@pytest.mark.parametrize("version", versions(GROW))
async def test_create_partitions(version: int) -> None:
    async with serving() as w:
        for name in ("t", "same", "twice", "manual", "bad"):
            await w.admin.create_topic(name, 2, 1)
        asked = grow(
            ("t", 5, None), ("same", 2, None), ("none", 3, None), ("twice", 3, None), ("twice", 4, None),
            ("manual", 3, [[0]]), ("bad", 3, [[0], [0]]),
        )  # fmt: skip
        found = (await w.ask(GROW, version, asked)).results
        assert codes(found) == [
            ("t", 0), ("same", ErrorCode.INVALID_PARTITIONS), ("none", 3), ("twice", ErrorCode.INVALID_REQUEST),
            ("manual", 0), ("bad", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ]  # fmt: skip
        assert {t.name: t.partitions for t in w.catalog.topics.values()} == {
            "t": 5, "same": 2, "twice": 2, "manual": 3, "bad": 2,
        }  # fmt: skip
        assert codes((await w.ask(GROW, version, grow(("t", 9, None), validate_only=True))).results) == [("t", 0)]
        assert w.catalog.topics["t"].partitions == 5


# --------------------------------------------------------------------------------------------------------- configs


def describe(*resources: tuple[int, str, Any], synonyms: bool = False, documentation: bool = False) -> Any:
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            Resource(resource_type=kind, resource_name=name, configuration_keys=k) for kind, name, k in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_describe_configs(version: int) -> None:
    async with serving(config=NodeConfig(node_id=7, log_retention_ms=99)) as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})
        await w.admin.alter_broker_configs(None, {"log.segment.bytes": "2000000"})
        asked = describe(
            (TOPIC, "t", None), (TOPIC, "t", ["segment.ms"]), (BROKER, "7", None), (BROKER, "", None),
            (TOPIC, "none", None), (TOPIC, "a b", None), (BROKER, "8", None), (BROKER, "x", None), (16, "7", None),
            synonyms=True, documentation=version >= 3,
        )  # fmt: skip
        found = (await w.ask(DESCRIBE, version, asked)).results
        assert [(r.resource_type, r.resource_name, r.error_code) for r in found] == [
            (TOPIC, "t", 0), (TOPIC, "t", 0), (BROKER, "7", 0), (BROKER, "", 0), (TOPIC, "none", 3),
            (TOPIC, "a b", 17), (BROKER, "8", 42), (BROKER, "x", 42), (16, "7", 42),
        ]  # fmt: skip
        configs = {config.name: config for config in found[0].configs}
        assert [c.name for c in found[1].configs] == ["segment.ms"]
        values = {name: (configs[name].value, configs[name].config_source) for name in configs}
        assert values["segment.ms"] == ("8", 1)
        assert values["segment.bytes"] == ("2000000", 3)
        assert values["retention.ms"] == ("99", 4)
        assert values["retention.bytes"] == ("-1", 5)
        assert [(s.name, s.value, s.source) for s in configs["segment.ms"].synonyms] == [
            ("segment.ms", "8", 1), ("log.roll.ms", "604800000", 5),
        ]  # fmt: skip
        if version >= 3:
            assert configs["segment.ms"].config_type == 5
            assert "closed" in configs["segment.ms"].documentation
        node = {config.name: config for config in found[2].configs}
        assert node["num.partitions"].read_only
        assert not node["log.retention.ms"].read_only
        assert (node["log.retention.ms"].value, node["log.segment.bytes"].value) == ("99", "2000000")
        assert [(c.name, c.value, c.config_source) for c in found[3].configs] == [("log.segment.bytes", "2000000", 3)]
        found = (await w.ask(DESCRIBE, version, describe((TOPIC, "t", ["segment.ms"])))).results
        assert found[0].configs[0].synonyms == []
        assert not found[0].configs[0].documentation


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_no_client_is_told_a_secret(version: int) -> None:
    secret = "S3cret"
    config = NodeConfig(node_id=7, meta=f"etcd://bmq:{secret}@h:2379", root=f"hdfs://bmq:{secret}@nn:8020/a")

    async with serving(config=config) as w:
        await w.admin.create_topic("t")
        asked = describe((BROKER, "7", None), (TOPIC, "t", None), (BROKER, "", None), synonyms=True)
        answer = await w.ask(DESCRIBE, version, asked)
        assert secret not in repr(answer)
        node = {config.name: config for config in answer.results[0].configs}
        meta = node["meta"]
        assert (meta.value, meta.is_sensitive, meta.config_source) == (None, True, 4)
        assert [synonym.value for synonym in meta.synonyms] == [None, None]
        if version >= 3:
            assert meta.config_type == 9  # PASSWORD
        assert (node["root"].value, node["root"].is_sensitive) == ("hdfs://***@nn:8020/a", False)
        assert [config.name for config in node.values() if config.is_sensitive] == ["meta", "schema_registry_url"]
        log_dirs = await w.ask(describe_log_dirs.APIS[0], 4, DescribeLogDirsRequest(topics=None))
        assert secret not in repr(log_dirs)


def alter(request: Any, *resources: tuple[int, str, Any], validate_only: bool = False) -> Any:
    """Configs are ``(name, value)``, or ``(name, operation, value)``."""
    Resource = request.AlterConfigsResource
    fields = ("name", "value") if request is AlterConfigsRequest else ("name", "config_operation", "value")
    return request(
        resources=[
            Resource(
                resource_type=kind,
                resource_name=name,
                configs=[Resource.AlterableConfig(**dict(zip(fields, config, strict=True))) for config in configs],
            )
            for kind, name, configs in resources
        ],
        validate_only=validate_only,
    )


def altered(response: Any) -> list[tuple[int, str, int]]:
    return [(r.resource_type, r.resource_name, r.error_code) for r in response.responses]


@pytest.mark.parametrize("version", versions(ALTER))
async def test_alter_configs_sets_the_whole(version: int) -> None:
    async with serving(config=NodeConfig(node_id=7)) as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})
        asked = alter(
            AlterConfigsRequest,
            (TOPIC, "t", [("retention.ms", "5")]), (TOPIC, "none", []), (TOPIC, "", []),
            (BROKER, "", [("log.retention.ms", "6")]), (BROKER, "7", [("num.partitions", "3")]), (BROKER, "9", []),
            (32, "group", []),
        )  # fmt: skip
        assert altered(await w.ask(ALTER, version, asked)) == [
            (TOPIC, "t", 0), (TOPIC, "none", 3), (TOPIC, "", 42), (BROKER, "", 0), (BROKER, "7", 42),
            (BROKER, "9", 42), (32, "group", 42),
        ]  # fmt: skip
        assert w.catalog.topics["t"].configs == {"retention.ms": "5"}
        assert w.catalog.broker_configs(None) == {"log.retention.ms": "6"}
        for configs in ([("retention.ms", None)], [("retention.ms", "1"), ("retention.ms", "2")]):
            found = await w.ask(ALTER, version, alter(AlterConfigsRequest, (TOPIC, "t", configs)))
            assert altered(found) == [(TOPIC, "t", 42)]
        twice = alter(AlterConfigsRequest, (TOPIC, "t", []), (TOPIC, "t", []))
        assert altered(await w.ask(ALTER, version, twice)) == [(TOPIC, "t", 42)] * 2
        only = alter(AlterConfigsRequest, (TOPIC, "t", []), validate_only=True)
        assert altered(await w.ask(ALTER, version, only)) == [(TOPIC, "t", 0)]
        assert w.catalog.topics["t"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("version", versions(INCREMENT))
async def test_incremental_alter_configs(version: int) -> None:
    async with serving() as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})

        async def ask(*configs: tuple[str, int, str | None]) -> int:
            found = await w.ask(INCREMENT, version, alter(IncrementalAlterConfigsRequest, (TOPIC, "t", configs)))
            code: int = found.responses[0].error_code
            return code

        assert await ask(("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")) == 0
        assert w.catalog.topics["t"].configs == {
            "segment.ms": "8", "retention.ms": "5", "cleanup.policy": "delete,compact",
        }  # fmt: skip
        assert await ask(("segment.ms", 1, None), ("cleanup.policy", 3, "delete")) == 0
        assert w.catalog.topics["t"].configs == {"retention.ms": "5", "cleanup.policy": "compact"}
        assert await ask(("retention.ms", 9, "5")) == ErrorCode.INVALID_REQUEST
        assert await ask(("retention.ms", 0, None)) == ErrorCode.INVALID_REQUEST
        assert await ask(("retention.ms", 2, "5")) == ErrorCode.INVALID_CONFIG
        assert await ask(("nonsense", 0, "5")) == ErrorCode.INVALID_CONFIG
        assert await ask(("retention.ms", 0, "6"), ("nonsense", 0, "5")) == ErrorCode.INVALID_CONFIG
        assert w.catalog.topics["t"].configs["retention.ms"] == "5", "all of a resource's changes or none"


# ------------------------------------------------------------------------- DescribeCluster, DescribeTopicPartitions


@pytest.mark.parametrize("version", versions(CLUSTER))
async def test_describe_cluster(version: int) -> None:
    spread = Spread([ProxyAddress(4, "a", 1, "x"), ProxyAddress(5, "b", 2)])
    async with serving(proxies=spread) as w:
        found = await w.ask(CLUSTER, version, DescribeClusterRequest(include_cluster_authorized_operations=True))
        assert (found.error_code, found.cluster_id, found.controller_id) == (0, w.catalog.cluster_id, 4)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in found.brokers] == [
            (4, "a", 1, "x"),
            (5, "b", 2, None),
        ]
        assert found.authorized_operations == set(CLUSTER_OPERATIONS)
        found = await w.ask(CLUSTER, version, DescribeClusterRequest(include_cluster_authorized_operations=False))
        assert found.authorized_operations is None
        if version >= 1:
            for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
                asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=kind)
                assert (await w.ask(CLUSTER, version, asked)).error_code == code


@pytest.mark.parametrize("version", versions(ELECT))
async def test_elect_leaders_finds_nothing_to_elect(version: int) -> None:
    async with serving() as w:
        await w.ask(CREATE, 7, create(new("t", 2)))
        Asked = ElectLeadersRequest.TopicPartitions
        asked = [Asked(topic="t", partitions=[0, 2]), Asked(topic="gone", partitions=[0])]
        found = await w.ask(ELECT, version, ElectLeadersRequest(election_type=0, topic_partitions=asked))
        assert [
            (each.topic, [(one.partition_id, one.error_code) for one in each.partition_result])
            for each in found.replica_election_results
        ] == [
            ("t", [(0, ErrorCode.ELECTION_NOT_NEEDED), (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
            ("gone", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ]
        found = await w.ask(ELECT, version, ElectLeadersRequest(election_type=0, topic_partitions=None))
        assert [len(each.partition_result) for each in found.replica_election_results] == [2]


@pytest.mark.parametrize("version", versions(REASSIGN))
@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [4], ErrorCode.NONE),
        (0, [5], ErrorCode.POLICY_VIOLATION),
        (0, [4, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (1, [4], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_there_is_nothing_to_reassign(
    version: int, partition: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    spread = Spread([ProxyAddress(4, "a", 1), ProxyAddress(5, "b", 2)])
    async with serving(proxies=spread) as w:
        await w.ask(CREATE, 7, create(new("t", 1)))
        Asked = AlterPartitionReassignmentsRequest.ReassignableTopic
        one = Asked.ReassignablePartition(partition_index=partition, replicas=replicas)
        asked = AlterPartitionReassignmentsRequest(topics=[Asked(name="t", partitions=[one])])
        found = await w.ask(REASSIGN, version, asked)
        assert [each.error_code for each in found.responses[0].partitions] == [code]
        found = await w.ask(REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(topics=None))
        assert (found.error_code, found.topics) == (0, [])


def partitions_of(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    Request = DescribeTopicPartitionsRequest
    at = cursor and Request.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return Request(
        topics=[Request.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=at
    )


def pages(found: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    topics = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in found.topics]
    cursor = found.next_cursor
    return topics, cursor and (cursor.topic_name, cursor.partition_index)


async def test_describe_topic_partitions_in_pages() -> None:
    async with serving() as w:
        made = await w.admin.create_topic("b", 3)
        await w.admin.create_topic("a", 2)
        await w.admin.create_topic("c", 1)
        w.owners.epochs[PartitionKey(made.topic_id, 1)] = 9

        async def ask(*names: str, **fields: Any) -> Any:
            return pages(await w.ask(PARTITIONS, 0, partitions_of(*names, **fields)))

        everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
        assert await ask() == (everything, None)
        assert await ask("c", "a", "none", "x y") == (
            [("a", 0, [0, 1]), ("c", 0, [0]), ("none", 3, []), ("x y", 17, [])], None,
        )  # fmt: skip
        assert await ask(limit=2) == ([("a", 0, [0, 1])], ("b", 0))
        assert await ask(limit=3) == ([("a", 0, [0, 1]), ("b", 0, [0])], ("b", 1))
        assert await ask(limit=0) == ([("a", 0, [0])], ("a", 1))
        assert await ask(limit=2, cursor=("b", 1)) == ([("b", 0, [1, 2])], ("c", 0))
        assert await ask(cursor=("b", 99)) == ([("b", 0, []), ("c", 0, [0])], None)
        assert await ask(cursor=("bb", 5)) == ([("c", 0, [0])], None), "a topic that is gone"
        assert await ask("a", "b", cursor=("c", 0)) == ([("a", 42, []), ("b", 42, [])], None)
        assert await ask("a", cursor=("a", -1)) == ([("a", 42, [])], None)
        found = (await w.ask(PARTITIONS, 0, partitions_of("b"))).topics[0]
        assert found.topic_id == made.topic_id
        assert [(p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in found.partitions] == [
            (0, -1, [0], [0])
        ] * 3, "no epoch, of an open partition neither"
        assert found.partitions[0].eligible_leader_replicas == []
        cursor, seen = None, []
        while True:
            topics, cursor = await ask(limit=1, cursor=cursor)
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert seen == [(name, index) for name, _, indexes in everything for index in indexes]


async def test_an_answer_never_has_more_partitions_than_kafkas() -> None:
    async with serving() as w:
        await w.admin.create_topic("t", 5_000)
        topics, cursor = pages(await w.ask(PARTITIONS, 0, partitions_of("t", limit=1_000_000)))
        assert (len(topics[0][2]), cursor) == (2_000, ("t", 2_000))


# -------------------------------------------------------------------------------------------------- InitProducerId


async def init(
    w: AdminServing, version: int, transactional_id: str | None = None, **given: int
) -> tuple[int, int, int]:
    asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000, **given)
    found = await w.ask(PRODUCER, version, asked)
    return found.error_code, found.producer_id, found.producer_epoch


@pytest.mark.parametrize("version", versions(PRODUCER))
async def test_init_producer_id(version: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as w:
        assert [await init(w, version) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
        with caplog.at_level(logging.WARNING):
            fatal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert await init(w, version, "tx") == (fatal, -1, -1)
        assert "they are not supported" in caplog.text
        if version >= 3:
            assert await init(w, version, producer_id=1, producer_epoch=4) == (0, 3, 0)
            invalid = (ErrorCode.INVALID_REQUEST, -1, -1)
            assert await init(w, version, producer_id=1, producer_epoch=-1) == invalid
            assert await init(w, version, producer_id=-1, producer_epoch=0) == invalid


async def test_init_producer_id_does_not_let_clients_fill_the_log(server_log: io.StringIO) -> None:
    async with serving() as w:
        for _ in range(1_000):
            await init(w, 4, "x" * 30_000)
    written = server_log.getvalue()
    assert "asks for transactions" in written
    assert len(written.splitlines()) <= BURST
    assert len(written) < BURST * 500


async def test_init_producer_id_without_a_store_is_tried_again() -> None:
    async with serving() as w:
        w.store.stop()
        code, *_ = await init(w, 5)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ErrorCode(code).is_retriable
        w.store.start(asyncio.get_running_loop().time())
        assert await init(w, 5) == (0, 0, 0)


# -------------------------------------------------------------------------------------------------- DescribeLogDirs


async def test_the_first_look_at_sizes_waits_for_those_that_open_and_not_for_others() -> None:
    async with serving() as w:
        topic = await w.admin.create_topic("t", 50)
        keys = [PartitionKey(topic.topic_id, number) for number in range(40)]
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, w.owners.epochs.update, dict.fromkeys(keys, 1))
        began = loop.time()
        (result,) = (await w.ask(describe_log_dirs.APIS[0], 4, DescribeLogDirsRequest(topics=None))).results
        assert loop.time() - began < 2
        (found,) = result.topics
        assert {part.partition_index: part.partition_size for part in found.partitions} == dict.fromkeys(range(40), 101)
