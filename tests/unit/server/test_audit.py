"""The audit log of a whole process: every denial, every administrative act, and nothing else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bmq.core.audit.event import AuditEvent
from bmq.core.clock import SystemClock
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client
from bmq.core.options import ConfigError
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible
from bmq.proxy.audit.acts import ACTS
from bmq.server.audit import open_audit
from bmq.server.node import Node
from tests.harness.audit import HeldAudit
from tests.harness.fakes import FakeClient
from tests.harness.waiting import until
from tests.unit.server.rights_table import CASES, TOPIC, Op, create_acls, fetch, metadata, offset_commit, produce
from tests.unit.server.test_rights import ADMIN, ALICE, CONFIG, acl, ask, give, running, with_topic

pytestmark = pytest.mark.loops("asyncio")
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_CLUSTER}
"""APIs that refuse nobody: they leave out what one may not see."""


class HeldLog(HeldAudit):
    """An audit log as a node starts and closes it."""

    def start(self) -> None:
        self.events = []

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def audited(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[tuple[Node, HeldLog]]:
    log = HeldLog()
    monkeypatch.setattr("bmq.server.roles.proxy.open_audit", lambda *_, **__: log)
    async with running(replace(CONFIG, **settings)) as node:
        await ask(node, ADMIN, 8, offset_commit("t"))
        log.events.clear()
        yield node, log


def taken(log: HeldLog) -> list[AuditEvent]:
    found, log.events = log.events, []
    return found


@pytest.mark.slow
async def test_every_refusal_of_every_api_is_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        for key, case in CASES.items():
            await with_topic(node)
            await give(node)
            taken(log)
            await ask(node, ALICE, case.version, case.request())
            events = taken(log)
            found = [(each.kind.value, each.act, each.outcome.value) for each in events]
            assert found == [("denial", key.name, "denied")] * len(events), key.name
            assert bool(events) is (key not in FILTERED), key.name
            needed = {right for some in case.rights for right in some} | case.others
            asked = {(each.operation, each.resource_type) for each in events}
            assert asked <= {(operation.name, kind.name) for operation, kind in needed}, key.name


@pytest.mark.slow
async def test_what_is_allowed_is_in_the_log_if_it_is_administrative(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        for key, case in CASES.items():
            await with_topic(node)
            taken(log)
            await ask(node, ADMIN, case.version, case.request())
            events = taken(log)
            assert bool(events) is (key in ACTS), key.name
            for each in events:
                assert (each.kind.value, each.act, str(each.session.principal)) == ("act", key.name, "User:admin")
                assert each.resource, key.name
            if key is ApiKey.DELETE_GROUPS:
                await ask(node, ADMIN, 8, offset_commit("t"))


@pytest.mark.slow
async def test_produce_and_fetch_write_nothing_but_their_denials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        await give(node, acl(Op.WRITE, TOPIC))
        taken(log)
        await ask(node, ALICE, 9, produce("t"))
        assert taken(log) == []
        await ask(node, ALICE, 12, fetch("t"))
        assert log.entries() == [("denial", "FETCH", "denied", "t")]


@pytest.mark.slow
async def test_a_topic_that_a_metadata_request_makes_is_an_act(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        await ask(node, ADMIN, 9, metadata("made", "t"))
        assert log.entries() == [("act", "METADATA", "allowed", "made")]


@pytest.mark.slow
async def test_an_act_that_fails_has_the_error_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        Topic = m.CreateTopicsRequest.CreatableTopic
        made = Topic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        await ask(node, ADMIN, 7, m.CreateTopicsRequest(topics=[made], timeout_ms=1_000, validate_only=False))
        (event,) = log.events
        assert (event.outcome.value, event.error, event.resource) == ("failed", "TOPIC_ALREADY_EXISTS", "t")


@pytest.mark.slow
async def test_an_acl_is_told_and_a_config_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    async with audited(monkeypatch) as (node, log):
        await ask(node, ADMIN, 3, create_acls(name="orders-", resource_pattern_type=4))
        (event,) = taken(log)
        assert event.changed == {
            "acl_resource_type": "TOPIC", "acl_resource": "orders-", "acl_principal": "User:bob", "acl_host": "*",
            "acl_operation": "READ", "acl_permission": "ALLOW",
        }  # fmt: skip
        assert (event.operation, event.resource_type, event.pattern) == ("ALTER", "CLUSTER", "PREFIXED")
        Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource
        config = Resource.AlterableConfig(name="retention.ms", value="424242", config_operation=0)
        resource = Resource(resource_type=2, resource_name="t", configs=[config])
        await ask(node, ADMIN, 1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        (event,) = taken(log)
        assert event.changed == {"configs": ["retention.ms"]}
        assert "424242" not in str(event)


@pytest.mark.slow
async def test_a_client_that_leaves_before_the_response_is_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """An act may be done all the same: nobody deletes a topic without a line by closing the connection at once."""
    async with audited(monkeypatch) as (node, log):
        for key in ACTS:
            if key not in CASES:
                continue
            case = CASES[key]
            await with_topic(node)
            taken(log)
            head = struct.pack(">hhih", key, case.version, 1, -1) + (b"\0" if is_flexible(key, case.version) else b"")
            client = FakeClient()
            client.session = ADMIN
            frame = memoryview(bytearray(head + bytes(case.request().encode(version=case.version))))
            response = node.proxy.endpoint(frame, cast(Client, client))
            if isinstance(response, Awaitable):
                task = asyncio.ensure_future(response)
                task.cancel()
                await asyncio.wait((task,))
            events = taken(log)
            assert events, key.name
            assert all(each.resource for each in events), key.name
            if isinstance(response, Awaitable) and task.cancelled():
                assert {each.outcome.value for each in events} == {"unknown"}, key.name


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("topic:", "names no topic"),
        ("topic:__consumer_offsets", "internal topic"),
        ("hdfs://namenode/audit", "is a URL"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        replace(CONFIG, audit_log=place).validate()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    config = replace(CONFIG, audit_log=str(tmp_path))
    unused = cast(Any, None)
    with pytest.raises(ConfigError, match=r"audit_log=.*cannot be opened for writing: Is a directory"):
        open_audit(config, SystemClock(), "m", node=lambda: 0, find=unused, requests=unused)


@pytest.mark.slow
async def test_lines_are_produced_into_a_topic_and_not_about_themselves() -> None:
    async with running(replace(CONFIG, audit_log="topic:audit")) as node:
        assert node.proxy.audit_log is not None
        await ask(node, ALICE, 12, fetch("secret"))
        log = node.proxy.audit_log
        await until(lambda: log.is_failing)  # there is no such topic yet
        await node.admin.create_topic("audit", 3, 1, {})
        await until(lambda: not log.waiting)
        written = log.written
        assert written >= 1
        await asyncio.sleep(0.3)
        assert (log.written, log.waiting) == (written, 0), "the audit's own produces are no events"
        code = (await ask(node, ADMIN, 12, fetch("audit"))).responses[0].partitions[0].error_code
        assert code == ErrorCode.NONE
