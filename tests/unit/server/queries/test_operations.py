"""Operators' commands: to the leader, and to the member that is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from bmq.console.operations import NotPossible
from bmq.controller.admin.client import RemoteAdmin
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.levels import LogLevels
from bmq.core.rpc.messages.member import LogLevelsRequest, LogLevelsResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member
from bmq.meta.kv_memory import MemoryStore
from bmq.server.queries.job_rounds import JobRounds
from bmq.server.queries.operations import Operations
from tests.unit.server.queries.joined import Ask
from tests.unit.server.queries.seen_cluster import Leader, View, status_of
from tests.unit.server.queries.test_repairs import repairs_of


def operations_of(leader: Leader, ask: Ask | None = None) -> Operations:
    """Return the commands of a process that sends log levels with ``ask``."""
    status = status_of(View(), leader)
    if ask is not None:
        status.joined.peers.ask = ask  # type: ignore[method-assign,assignment]
    rounds = JobRounds(status.joined, status.catalog)
    return Operations(status.joined, cast(RemoteAdmin, leader), LogLevels(), status, rounds, repairs_of(MemoryStore()))


async def test_drains_and_moves_are_sent_to_the_leader_by_incarnation() -> None:
    leader = Leader()
    operations = operations_of(leader)
    assert await operations.drain("10.0.0.1:2") == {"member": "broker-1b", "partitions": 1, "shards": 0}
    moved = await operations.move("orders", 3, "broker-1a")
    assert moved == {"topic": "orders", "partition": 3, "member": "broker-1a"}
    assert await operations.balance() == 3
    assert leader.asked == [("drain", "broker-1b"), ("move", "orders", 3, "broker-1a")]


@pytest.mark.parametrize(
    ("named", "status", "error"), [("nobody", 404, "unknown_member"), ("broker-1", 409, "ambiguous_member")]
)
async def test_a_drain_of_an_unknown_or_ambiguous_member_is_refused(named: str, status: int, error: str) -> None:
    leader = Leader()
    with pytest.raises(NotPossible) as refused:
        await operations_of(leader).drain(named)
    assert (refused.value.status, refused.value.error, leader.asked) == (status, error, [])


class LogPeers:
    """Processes that answer LogLevels as `respond` does."""

    def __init__(self, respond: Callable[[LogLevelsRequest], LogLevelsResponse]) -> None:
        self.respond = respond
        self.asked: list[tuple[str, object]] = []

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        assert isinstance(message, LogLevelsRequest)
        self.asked.append((member.incarnation, message))
        return self.respond(message)


def with_log_peers(peers: LogPeers) -> Operations:
    return operations_of(Leader(), peers.ask)


async def test_log_levels_are_read_and_set_at_the_named_member() -> None:
    peers = LogPeers(lambda _: LogLevelsResponse(levels=((20, "root"), (10, "bmq.broker")), own=((20, "root"),)))
    response = await with_log_peers(peers).log_levels("10.0.0.1:2")
    assert response == {
        "member": "broker-1b",
        "loggers": [
            {"logger": "root", "level": "INFO", "is_set": True},
            {"logger": "bmq.broker", "level": "DEBUG", "is_set": False},
        ],
    }
    peers.respond = lambda request: LogLevelsResponse(levels=((30, request.logger),), own=((30, request.logger),))
    set_to = await with_log_peers(peers).set_log_level("broker-1b", "bmq.core", "warn")
    assert set_to == {"member": "broker-1b", "logger": "bmq.core", "level": "WARNING", "is_set": True}
    assert peers.asked == [
        ("broker-1b", LogLevelsRequest()),
        ("broker-1b", LogLevelsRequest("bmq.core", "warn")),
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PeerLost("it stands still", was_sent=True), ErrorCode.BROKER_NOT_AVAILABLE),
        (TimeoutError(), ErrorCode.BROKER_NOT_AVAILABLE),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "API 10021"), ErrorCode.UNSUPPORTED_VERSION),
        (RequestError(ErrorCode.INVALID_CONFIG, "there is no logger"), ErrorCode.INVALID_CONFIG),
    ],
)
async def test_an_error_of_the_member_is_raised_for_its_log_level(error: Exception, code: ErrorCode) -> None:
    def fail(_: LogLevelsRequest) -> LogLevelsResponse:
        raise error

    with pytest.raises(RequestError) as refused:
        await with_log_peers(LogPeers(fail)).set_log_level("broker-1b", "bmq", "debug")
    assert refused.value.code is code
    assert refused.value.message
