"""Requests of other processes at a controller: carried out by the leader, refused by others with its name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bmq.controller.admin.messages import AlterBrokerConfigsRequest, AlterTopicConfigsRequest, ClusterStatusRequest
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client
from bmq.core.rpc.messages.controller import ReportRequest, ReportResponse
from bmq.core.rpc.server import InternalCall
from bmq.meta.config_changes import ConfigChange, Operation
from tests.unit.controller.admin.remote import proxied, refused, remote
from tests.unit.controller.world import world

CALL = InternalCall(0, cast(Client, None), "proxy", 1, 0.0, "proxy")


async def test_a_controller_that_does_not_lead_names_the_leader() -> None:
    async with proxied("c1", "c2") as (w, one):
        leader = w.led_by()
        other = next(each for each in w.standbys if each is not leader)
        hint = await refused(
            one.peers.ask(one.view.members[other.name], ClusterStatusRequest(), 1.0),
            ErrorCode.NOT_CONTROLLER,
        )
        assert hint == leader.name


async def test_a_report_reaches_the_leader() -> None:
    async with proxied("c1") as (w, one):
        service = one.peers.services["c1"]
        await w.kill("b")
        body = memoryview(b"".join(ReportRequest("b", "reset").encode()))
        response = ReportResponse.decode(memoryview(b"".join(service.report(body, CALL))))
        assert response.error is ErrorCode.NONE
        await w.until(lambda: "b" not in set(w.owners(w.standbys[0]).values()))
        await w.led_by().controller.close()
        response = ReportResponse.decode(memoryview(b"".join(service.report(body, CALL))))
        assert response.error is ErrorCode.NOT_CONTROLLER


SET = ConfigChange("log.retention.ms", Operation.SET, "5")


DELETE = ConfigChange("log.retention.ms", Operation.DELETE, None)


@pytest.mark.parametrize(
    "asked",
    [
        AlterBrokerConfigsRequest(-2, False, (SET,), False),
        AlterBrokerConfigsRequest(-1, True, (SET, DELETE), False),
        AlterBrokerConfigsRequest(-1, True, (SET._replace(value=None),), False),
        AlterTopicConfigsRequest("t", True, (DELETE,), False),
    ],
)
async def test_a_request_that_no_client_sends_is_refused_before_anything_is_done(asked: Any) -> None:
    """A value of that kind in the store would stop every process that reads it."""

    async with world("a", controllers=["c1"]) as w, remote(w) as one:
        before = await w.standbys[0].kv.revision()
        await refused(one.peers.services["c1"].act(asked), ErrorCode.INVALID_REQUEST)
        async for entry in w.standbys[0].kv.list("/c/catalog/"):
            assert entry.revision <= before
