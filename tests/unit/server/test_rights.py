"""The rights that each API asks for, against a whole process: a table of API, operations and outcome.

For each API: without ACLs the client gets Kafka's error, with the rights of the table none, and with all of them but
one the error again.  The table has the same operations as `Api.needs`, from which docs/security.md is drawn.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import kafka.protocol.consumer
import kafka.protocol.producer
import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client, Response
from bmq.core.records.batch import Record, build_batch
from bmq.core.security.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.security.principal import user
from bmq.core.security.session import Session
from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.response_errors import error_codes
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.scopes import ProxyScopes
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.scopes import change, make_endpoint
from tests.harness.single_node import single_node
from tests.harness.waiting import until
from tests.unit.server.rights_table import (
    CASES,
    CLUSTER,
    CLUSTER_FAILED,
    FAILED,
    GROUP,
    GROUP_FAILED,
    NAMED,
    NAMES,
    OF_THEIR_OWN,
    TOPIC,
    TOPIC_FAILED,
    Op,
    acl_filter,
    configs,
    create_acls,
    create_topics,
    delete_topics,
    describe_topics,
    fetch,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    response_class,
)

pytestmark = pytest.mark.loops("asyncio")

ALICE = Session(principal=user("alice"))
ADMIN = Session(principal=user("admin"))
CONFIG = NodeConfig(
    authorizer_class_name=STANDARD_AUTHORIZER,
    super_users="User:admin",
    auto_create_topics_enable=True,
    group_initial_rebalance_delay_ms=0,
    offsets_topic_num_partitions=1,
)
EVERY_ACL = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, Op.ANY, AclPermission.ANY)


async def ask(node: Node, session: Session, version: int, message: Any) -> Any:
    """Return the response to a client with this session."""
    key = message.API_KEY
    head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if is_flexible(key, version) else b"")
    client = FakeClient()
    client.session = session
    frame = memoryview(bytearray(head + bytes(message.encode(version=version))))
    response = node.proxy.endpoint(frame, cast(Client, client))
    if isinstance(response, Awaitable):
        response = await asyncio.wait_for(response, 60)
    assert isinstance(response, Response)
    data = b"".join(map(bytes, response.buffers))
    if response.release is not None:
        response.release()
    return response_class(message).decode(data[5 if response_is_flexible(key, version) else 4 :], version=version)


@asynccontextmanager
async def running(config: NodeConfig = CONFIG) -> AsyncIterator[Node]:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(config, fs, kv) as node:
        node.is_at({"PLAINTEXT": Address(host="here", port=9092)})
        await node.start()
        for name in ("t", "secret"):
            await node.admin.create_topic(name, 1, 1, {})
        yield node


def acl(
    operation: AclOperation, kind: ResourceType, name: str = "", permission: AclPermission = AclPermission.ALLOW
) -> Acl:
    return Acl(kind, PatternType.LITERAL, name or NAMES[kind], "User:alice", "*", operation, permission)


async def give(node: Node, *acls: Acl) -> None:
    """Replace all ACLs."""
    assert node.security.acls is not None
    await node.security.acls.delete(EVERY_ACL)
    await node.security.acls.create(acls)


async def with_topic(node: Node) -> None:
    """Make the topic that a case deletes, if it is gone."""
    if "gone" not in node.catalog.topics:
        await node.admin.create_topic("gone", 1, 1, {})


def test_every_api_says_what_rights_it_asks_for() -> None:
    undecided = [api.key.name for api in ALL_APIS if api.needs is None]
    assert undecided == [], "give Api.needs, or NOTHING_NEEDED"


def test_the_table_has_every_api_with_its_operations() -> None:
    needed = {api.key: {(need.operation, need.resource_type) for need in api.needs or ()} for api in ALL_APIS}
    tested = {key: {right for some in case.rights for right in some} | case.others for key, case in CASES.items()}
    assert tested == {key: needs for key, needs in needed.items() if needs and key in CASES}
    assert {key for key, needs in needed.items() if needs} - OF_THEIR_OWN == set(CASES)


async def refused(node: Node, session: Session, key: ApiKey) -> set[int]:
    """Return the authorisation errors in the response to the case's request."""
    case = CASES[key]
    response = await ask(node, session, case.version, case.request())
    return set(case.errors(response)) & FAILED


@pytest.mark.slow
async def test_the_table_of_rights() -> None:
    async with running() as node:
        wrong = []
        await ask(node, ADMIN, 8, offset_commit("t"))
        for key, case in CASES.items():
            names = {**NAMES, **NAMED.get(key, {})}
            await with_topic(node)
            await give(node)
            if (found := await refused(node, ALICE, key)) != case.refused:
                wrong.append(f"{key.name} without ACLs: {found}, not {case.refused}")
            for rights in case.rights:
                acls = [acl(operation, kind, names[kind]) for operation, kind in rights]
                for number in range(len(acls)):
                    await give(node, *acls[:number], *acls[number + 1 :])
                    if not await refused(node, ALICE, key):
                        wrong.append(f"{key.name} is not refused without {acls[number].operation.name}")
                await give(node, *acls)
                if found := await refused(node, ALICE, key):
                    wrong.append(f"{key.name} with {rights}: {found}")
                await with_topic(node)
                if key is ApiKey.DELETE_GROUPS:
                    await ask(node, ADMIN, 8, offset_commit("t"))
            await give(node)
            if found := await refused(node, ADMIN, key):
                wrong.append(f"{key.name} of a super user: {found}")
            if key is ApiKey.DELETE_GROUPS:
                await ask(node, ADMIN, 8, offset_commit("t"))
        assert wrong == []


# -------------------------------------------------------------------------------------- what the table does not show


@pytest.mark.slow
async def test_without_an_authorizer_everything_is_allowed_and_there_are_no_acls() -> None:
    async with running(NodeConfig(offsets_topic_num_partitions=1)) as node:
        assert node.proxy.endpoint.scopes.caller.authorizer is ALLOW_ALL
        for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
            case = CASES[key]
            codes = set(error_codes(await ask(node, ALICE, case.version, case.request())))
            assert ErrorCode.SECURITY_DISABLED in codes
            assert not codes & FAILED
        described = await ask(node, ALICE, 9, metadata("t", include_topic_authorized_operations=True))
        assert described.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}


@pytest.mark.slow
async def test_topics_that_one_may_not_describe_look_like_ones_that_do_not_exist() -> None:
    async with running() as node:
        await give(node, acl(Op.READ, TOPIC))
        for version in (4, 9, 12):
            listed = await ask(node, ALICE, version, metadata())
            assert [topic.name for topic in listed.topics] == ["t"]
        for options in ({}, {"allow_auto_topic_creation": False}):
            named = await ask(node, ALICE, 12, metadata("t", "secret", "missing", **options))
            assert {topic.name: topic.error_code for topic in named.topics} == {
                "t": 0, "secret": TOPIC_FAILED, "missing": TOPIC_FAILED,
            }  # fmt: skip
            assert not any(topic.topic_id for topic in named.topics if topic.error_code)
        assert "missing" not in node.catalog.topics
        listed = await ask(node, ALICE, 0, describe_topics())
        assert [topic.name for topic in listed.topics] == ["t"]
        named = await ask(node, ALICE, 0, describe_topics("missing", "secret", "t"))
        assert [(topic.name, topic.error_code) for topic in named.topics] == [
            ("t", 0), ("missing", TOPIC_FAILED), ("secret", TOPIC_FAILED),
        ]  # fmt: skip
        secret = node.catalog.topics["secret"].topic_id
        Topic = m.MetadataRequest.MetadataRequestTopic
        by_id = await ask(node, ALICE, 12, m.MetadataRequest(topics=[Topic(topic_id=secret, name=None)]))
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in by_id.topics] == [
            (None, secret, TOPIC_FAILED)
        ]
        fetched = await ask(node, ALICE, 12, fetch("secret"))
        missing = await ask(node, ALICE, 12, fetch("missing"))
        assert set(error_codes(fetched)) == set(error_codes(missing)) == {0, TOPIC_FAILED}


@pytest.mark.slow
async def test_a_topic_is_created_by_metadata_only_with_the_right_to_create_it() -> None:
    async with running() as node:
        await give(node, acl(Op.DESCRIBE, TOPIC, "new"))
        found = await ask(node, ALICE, 9, metadata("new"))
        assert [topic.error_code for topic in found.topics] == [TOPIC_FAILED]
        assert "new" not in node.catalog.topics
        await give(node, acl(Op.CREATE, TOPIC, "new"))
        found = await ask(node, ALICE, 9, metadata("new"))
        assert [topic.error_code for topic in found.topics] == [TOPIC_FAILED], "it may not be described"
        assert "new" not in node.catalog.topics
        await give(node, acl(Op.DESCRIBE, TOPIC, "new"), acl(Op.CREATE, TOPIC, "new"))
        found = await ask(node, ALICE, 9, metadata("new"))
        assert [topic.error_code for topic in found.topics] == [0]
        await give(node, acl(Op.DESCRIBE, TOPIC, "other"), acl(Op.CREATE, CLUSTER))
        found = await ask(node, ALICE, 9, metadata("other"))
        assert [topic.error_code for topic in found.topics] == [0]


@pytest.mark.slow
async def test_authorized_operations_are_those_of_the_client() -> None:
    async with running() as node:
        await ask(node, ADMIN, 8, offset_commit("t"))
        await give(node, acl(Op.WRITE, TOPIC), acl(Op.ALL, GROUP), acl(Op.DELETE, GROUP, "", AclPermission.DENY))
        asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        for names in ((), ("t",)):
            found = await ask(node, ALICE, 9, metadata(*names, **asked))
            assert [topic.authorized_operations for topic in found.topics] == [{Op.WRITE, Op.DESCRIBE}]
            assert found.authorized_operations == set()
        described = await ask(
            node, ALICE, 5, m.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)
        )
        assert {each.group_id: (each.error_code, each.authorized_operations) for each in described.groups} == {
            "g": (0, {Op.READ, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS}),
            "h": (GROUP_FAILED, None),
        }
        topics = await ask(node, ALICE, 0, describe_topics("t"))
        assert topics.topics[0].topic_authorized_operations == 1 << Op.WRITE | 1 << Op.DESCRIBE
        await give(node, acl(Op.ALTER, CLUSTER), acl(Op.CREATE, CLUSTER))
        cluster = await ask(node, ALICE, 1, CASES[ApiKey.DESCRIBE_CLUSTER].request())
        assert cluster.authorized_operations == {Op.ALTER, Op.CREATE, Op.DESCRIBE}
        found = await ask(node, ALICE, 9, metadata("t", **asked))
        assert found.authorized_operations == {Op.ALTER, Op.CREATE, Op.DESCRIBE}


@pytest.mark.slow
async def test_a_topic_that_does_not_exist_has_authorized_operations_as_in_kafka() -> None:
    async with running() as node:
        await give(node, acl(Op.DESCRIBE, TOPIC, "none"), acl(Op.READ, TOPIC, "none"))
        asked = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
        request = metadata("none", "hidden", **asked)
        found = {each.name: each for each in (await ask(node, ALICE, 9, request)).topics}
        assert found["none"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found["none"].authorized_operations == {Op.DESCRIBE, Op.READ}
        assert (found["hidden"].error_code, found["hidden"].authorized_operations) == (TOPIC_FAILED, None)


@pytest.mark.slow
async def test_offsets_of_hidden_topics_are_hidden() -> None:
    async with running() as node:
        await ask(node, ADMIN, 8, offset_commit("t", "secret"))
        await give(node, acl(Op.READ, GROUP), acl(Op.DELETE, GROUP), acl(Op.READ, TOPIC))
        committed = await ask(node, ALICE, 8, offset_commit("secret", "t", "missing"))
        codes = {topic.name: [each.error_code for each in topic.partitions] for topic in committed.topics}
        assert codes == {"t": [0], "secret": [TOPIC_FAILED], "missing": [TOPIC_FAILED]}
        (group,) = (await ask(node, ALICE, 8, offset_fetch())).groups
        assert [topic.name for topic in group.topics] == ["t"]
        found = await ask(node, ALICE, 8, offset_fetch("secret", "t", groups=("g", "h")))
        seen = {
            group.group_id: (
                group.error_code,
                {topic.name: [(p.committed_offset, p.error_code) for p in topic.partitions] for topic in group.topics},
            )
            for group in found.groups
        }
        assert seen == {
            "g": (0, {"t": [(1, 0)], "secret": [(-1, TOPIC_FAILED)]}),
            "h": (GROUP_FAILED, {}),
        }
        Topic = m.OffsetFetchRequest.OffsetFetchRequestTopic
        single = m.OffsetFetchRequest(
            group_id="g", topics=[Topic(name="secret", partition_indexes=[0])], require_stable=False
        )
        for version in (1, 7):
            found = await ask(node, ALICE, version, single)
            assert [[each.error_code for each in topic.partitions] for topic in found.topics] == [[TOPIC_FAILED]]
        found = await ask(node, ALICE, 7, m.OffsetFetchRequest(group_id="g", topics=None, require_stable=False))
        assert [topic.name for topic in found.topics] == ["t"]
        deleted = await ask(node, ALICE, 0, offset_delete("secret", "t"))
        codes = {topic.name: [each.error_code for each in topic.partitions] for topic in deleted.topics}
        assert (deleted.error_code, codes) == (0, {"t": [0], "secret": [TOPIC_FAILED]})
        await give(node)
        for version in (1, 7):
            found = await ask(node, ALICE, version, single)
            assert GROUP_FAILED in set(error_codes(found))


@pytest.mark.slow
async def test_deleting_topics_tells_their_names_only_to_those_who_may_describe_them() -> None:
    async with running() as node:
        secret = node.catalog.topics["secret"].topic_id
        for acls, name in (((), None), ((acl(Op.DESCRIBE, TOPIC, "secret"),), "secret")):
            await give(node, *acls)
            found = await ask(node, ALICE, 6, delete_topics(ids=[secret]))
            assert [(each.name, each.topic_id, each.error_code) for each in found.responses] == [
                (name, secret, TOPIC_FAILED)
            ]
        await give(node, acl(Op.DELETE, TOPIC, "missing"))
        found = await ask(node, ALICE, 6, delete_topics("missing", "absent", "secret"))
        assert {each.name: each.error_code for each in found.responses} == {
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "absent": TOPIC_FAILED, "secret": TOPIC_FAILED,
        }  # fmt: skip
        assert "secret" in node.catalog.topics


@pytest.mark.slow
async def test_configs_of_a_created_topic_are_shown_to_those_who_may_see_them() -> None:
    async with running() as node:
        await give(node, acl(Op.CREATE, TOPIC, "new"))
        (made,) = (await ask(node, ALICE, 7, create_topics("new"))).topics
        assert (made.error_code, made.topic_config_error_code, made.num_partitions) == (0, TOPIC_FAILED, -1)
        assert not made.configs
        await give(node, acl(Op.CREATE, TOPIC, "new"), acl(Op.ALTER_CONFIGS, TOPIC, "new"))
        (made,) = (await ask(node, ALICE, 7, create_topics("new"))).topics
        assert (made.error_code, made.topic_config_error_code, made.num_partitions) == (0, 0, 1)
        assert made.configs


@pytest.mark.slow
async def test_who_reads_a_topics_files_is_changed_with_the_clusters_right_alone() -> None:
    opened, kept = {"storage.mode": "755"}, {"storage.mode": "700", "retention.ms": "1000"}
    topic = (2, "t")
    async with running() as node:
        await node.admin.alter_topic_configs("t", {"storage.mode": "700"})
        await until(lambda: node.catalog.topics["t"].configs.get("storage.mode") == "700")
        await node.admin.alter_broker_configs(None, {"log.storage.mode": "700"})
        await until(lambda: node.catalog.broker_configs(None).get("log.storage.mode") == "700")
        own = (acl(Op.ALTER_CONFIGS, TOPIC), acl(Op.CREATE, TOPIC, "new"), acl(Op.ALTER_CONFIGS, CLUSTER))
        requests = [
            (1, configs(m.IncrementalAlterConfigsRequest, topic, values=opened)),
            (2, configs(m.AlterConfigsRequest, topic, values=opened)),
            (2, configs(m.AlterConfigsRequest, topic)),  # the new set leaves storage.mode out
            *((7, create_topics("new", values={f"storage.{each}": "700"})) for each in ("owner", "group", "mode")),
            (1, configs(m.IncrementalAlterConfigsRequest, (4, ""), values={"log.storage.mode": "755"})),
            (2, configs(m.AlterConfigsRequest, (4, ""), values={"log.storage.mode": "755"})),
            (2, configs(m.AlterConfigsRequest, (4, ""))),  # as above, of the brokers' defaults
        ]
        for version, request in requests:
            await give(node, *own)
            assert await errors_of(node, version, request) == {CLUSTER_FAILED}
            await give(node, *own, acl(Op.ALTER, CLUSTER))
            assert CLUSTER_FAILED not in await errors_of(node, version, request)
        await give(node, *own)
        assert await errors_of(node, 1, configs(m.IncrementalAlterConfigsRequest, topic)) == {0}
        assert await errors_of(node, 2, configs(m.AlterConfigsRequest, topic, values=kept)) == {0}


async def errors_of(node: Node, version: int, request: Any) -> set[int]:
    """Return the codes of the resources or topics of a response to Alice."""
    response = await ask(node, ALICE, version, request)
    return {each.error_code for each in getattr(response, "responses", None) or response.topics}


@pytest.mark.slow
async def test_a_fetch_as_a_follower_needs_the_clusters_right() -> None:
    async with running() as node:
        await give(node, acl(Op.READ, TOPIC))
        assert TOPIC_FAILED in set(error_codes(await ask(node, ALICE, 12, fetch("t", replica_id=1))))
        await give(node, acl(Op.CLUSTER_ACTION, CLUSTER))
        codes = set(error_codes(await ask(node, ALICE, 12, fetch("t", replica_id=1))))
        assert codes == {0, ErrorCode.NOT_LEADER_OR_FOLLOWER}


@pytest.mark.slow
async def test_several_groups_of_one_request_have_their_own_rights() -> None:
    async with running() as node:
        for group in ("g", "h"):
            await ask(node, ADMIN, 8, offset_commit("t", group=group))
        await give(node, acl(Op.DESCRIBE, GROUP), acl(Op.DELETE, GROUP))
        found = await ask(node, ALICE, 4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["h", "g"]))
        assert [(each.key, each.error_code) for each in found.coordinators] == [("h", GROUP_FAILED), ("g", 0)]
        listed = await ask(node, ALICE, 4, m.ListGroupsRequest(states_filter=[]))
        assert [each.group_id for each in listed.groups] == ["g"]
        deleted = await ask(node, ALICE, 2, m.DeleteGroupsRequest(groups_names=["h", "g"]))
        assert [(each.group_id, each.error_code) for each in deleted.results] == [("h", GROUP_FAILED), ("g", 0)]


@pytest.mark.slow
async def test_acls_are_made_found_and_deleted_by_requests() -> None:
    async with running() as node:
        for number in range(2):
            made = await ask(node, ADMIN, 3, create_acls(name=f"x{number}"))
            assert [(each.error_code, each.error_message) for each in made.results] == [(0, None)]
        prefix = await ask(node, ADMIN, 3, create_acls(name="x", resource_pattern_type=4, operation=8))
        assert [each.error_code for each in prefix.results] == [0]
        asked = acl_filter(m.DescribeAclsRequest, resource_name_filter="x1", pattern_type_filter=2)
        described = await ask(node, ADMIN, 3, asked)
        assert [(each.resource_name, each.pattern_type, each.acls[0].operation) for each in described.resources] == [
            ("x1", 3, 3), ("x", 4, 8),
        ]  # fmt: skip
        Filter = m.DeleteAclsRequest.DeleteAclsFilter
        filters = [acl_filter(Filter, operation=8), acl_filter(Filter, operation=99), acl_filter(Filter)]
        deleted = await ask(node, ADMIN, 3, m.DeleteAclsRequest(filters=filters))
        assert [(each.error_code, len(each.matching_acls)) for each in deleted.filter_results] == [
            (0, 1), (ErrorCode.INVALID_REQUEST, 0), (0, 2),
        ]  # fmt: skip
        assert node.security.acls is not None
        assert len(node.security.acls) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 4, "name": "x"},
        {"name": ""},
        {"kind": 1},
        {"kind": 99},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"principal": "bob"},
    ],
)
async def test_wrong_acls_are_refused(wrong: dict[str, Any]) -> None:
    async with running() as node:
        made = await ask(node, ADMIN, 3, create_acls(**wrong))
        assert [each.error_code for each in made.results] == [ErrorCode.INVALID_REQUEST]
        assert node.security.acls is not None
        assert len(node.security.acls) == 0


class Counting:
    """An authorizer that counts its questions."""

    is_on = True

    def __init__(self) -> None:
        self.asked: list[tuple[AclOperation, str]] = []

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        self.asked.append((operation, name))
        return True

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        raise NotImplementedError


@pytest.mark.slow
async def test_a_request_asks_once_a_partition_at_most() -> None:
    async with running() as node:
        counting = Counting()
        scopes = change(cast(ProxyScopes, node.proxy.endpoint.scopes), authorizer=counting)
        node.proxy.endpoint = make_endpoint(scopes, node.proxy.endpoint.apis)
        Topic = kafka.protocol.producer.ProduceRequest.TopicProduceData
        batch = bytes(build_batch([Record(value=b"v")]))
        for count in (1, 3):
            one = produce("t")
            one.topic_data = [
                Topic(name="t", partition_data=[Topic.PartitionProduceData(index=0, records=batch)])
                for _ in range(count)
            ]
            await ask(node, ALICE, 9, one)
            assert counting.asked == [(Op.WRITE, "t")] * count
            counting.asked.clear()
        parked = fetch("t")
        parked.topics[0].partitions[0].fetch_offset = 4
        parked.max_wait_ms = 10_000
        waiting = asyncio.create_task(ask(node, ALICE, 12, parked))
        await until(lambda: bool(node.proxy.fetch_service.parked))
        await ask(node, ADMIN, 9, produce("t"))
        fetched = await waiting
        assert fetched.responses[0].partitions[0].records
        assert [each for each in counting.asked if each[0] is Op.READ] == [(Op.READ, "t")], "woken, it asks no more"


@pytest.mark.slow
async def test_a_right_that_is_taken_away_counts_from_the_next_fetch_of_a_session_on() -> None:
    async with running() as node:
        await give(node, acl(Op.READ, TOPIC))
        await ask(node, ADMIN, 9, produce("t"))
        first = fetch("t")
        first.session_epoch = 0
        opened = await ask(node, ALICE, 12, first)
        assert opened.responses[0].partitions[0].records
        again = fetch("t")
        again.topics, again.session_id, again.session_epoch = [], opened.session_id, 1
        assert (await ask(node, ALICE, 12, again)).responses[0].partitions[0].records
        await give(node)
        again.session_epoch = 2
        denied = (await ask(node, ALICE, 12, again)).responses[0].partitions[0]
        assert (denied.error_code, denied.records or b"") == (TOPIC_FAILED, b"")
        await give(node, acl(Op.READ, TOPIC))
        again.session_epoch = 3
        assert (await ask(node, ALICE, 12, again)).responses[0].partitions[0].records


def test_needs_are_rows_of_operations_that_the_resource_has() -> None:
    for api in cast("tuple[Api[Any], ...]", ALL_APIS):
        for need in api.needs or ():
            assert need.operation > AclOperation.ALL
            assert need.resource_type > ResourceType.ANY
