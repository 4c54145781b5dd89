"""FindCoordinator: the proxy of a group's shard, once the shard is loaded, and key types that are not served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.messages import FindCoordinatorRequest
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import find_coordinator
from tests.harness.fakes import request_of
from tests.harness.scopes import make_scopes

GROUP, TRANSACTION, SHARE = 0, 1, 2
PROXIES = [ProxyAddress(1, "a", 9092), ProxyAddress(2, "b", 9093)]


class FakeCoordinator:
    """Groups are named by their shard: "3-x" is of shard 3.  Shard 9 does not load."""

    def __init__(self) -> None:
        self.waited_for: list[str] = []

    def shard_of(self, group: str) -> int:
        return int(group.split("-")[0])

    async def ready(self, group: str) -> None:
        self.waited_for.append(group)
        if self.shard_of(group) == 9:
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is loading")


async def ask(version: int, *keys: str, kind: int = GROUP, coordinator: FakeCoordinator | None = None) -> Any:
    proxies = SimpleNamespace(addresses=PROXIES, coordinator_of=lambda shard: {5: 77}.get(shard, 1 + shard % 2))
    scopes = make_scopes(coordinator=coordinator or FakeCoordinator(), proxies=proxies)
    message = FindCoordinatorRequest(key=keys[0] if keys else "", key_type=kind, coordinator_keys=list(keys))
    return await find_coordinator.handle(scopes, request_of(version=version), message)


@pytest.mark.parametrize("version", range(4))
async def test_the_coordinator_of_a_group_is_the_proxy_of_its_shard(version: int) -> None:
    found = await ask(version, "3-x")
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 2, "b", 9093)


@pytest.mark.parametrize("version", [4, 6])
async def test_each_of_several_keys_has_its_coordinator_once_in_their_order(version: int) -> None:
    found = await ask(version, "3-x", "2-y", "3-x", "9-z")
    assert [(each.key, ErrorCode(each.error_code), each.node_id) for each in found.coordinators] == [
        ("3-x", ErrorCode.NONE, 2),
        ("2-y", ErrorCode.NONE, 1),
        ("9-z", ErrorCode.COORDINATOR_NOT_AVAILABLE, -1),
    ]


async def test_groups_of_a_shard_are_waited_for_together() -> None:
    coordinator = FakeCoordinator()
    found = await ask(4, *(f"{number % 2}-{number}" for number in range(100)), coordinator=coordinator)
    assert len(found.coordinators) == 100
    assert {coordinator.shard_of(each) for each in coordinator.waited_for} == {0, 1}
    assert len(coordinator.waited_for) == 2


async def test_a_shard_that_does_not_load_in_time_has_a_retriable_error() -> None:
    found = await ask(3, "9-x")
    assert ErrorCode(found.error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found.error_message == "the shard is loading"


async def test_a_coordinator_that_is_not_among_the_proxies_has_a_retriable_error() -> None:
    found = await ask(3, "5-x")
    assert ErrorCode(found.error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (found.node_id, found.host, found.port) == (-1, "", -1)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(TRANSACTION, ErrorCode.COORDINATOR_NOT_AVAILABLE), (SHARE, ErrorCode.INVALID_REQUEST)],
)
async def test_keys_of_transactions_wait_for_the_level_and_share_groups_are_refused(kind: int, code: ErrorCode) -> None:
    coordinator = FakeCoordinator()
    assert ErrorCode((await ask(3, "x", kind=kind, coordinator=coordinator)).error_code) is code
    found = await ask(6, "x", "y", kind=kind, coordinator=coordinator)
    assert [(each.key, ErrorCode(each.error_code)) for each in found.coordinators] == [("x", code), ("y", code)]
    assert coordinator.waited_for == []


async def test_version_0_has_groups_alone() -> None:
    assert (await ask(0, "3-x", kind=TRANSACTION)).node_id == 2


async def test_a_topic_that_gets_another_number_of_shards_meanwhile_is_searched_again() -> None:
    """The setting of this process may differ from the shards of the topic that another process creates."""

    class Growing(FakeCoordinator):
        def shard_of(self, group: str) -> int:
            return super().shard_of(group) % (2 if not self.waited_for else 100)

    coordinator = Growing()
    found = await ask(4, "2-x", "3-y", coordinator=coordinator)
    assert [each.node_id for each in found.coordinators] == [1, 2]
    assert sorted(coordinator.waited_for) == ["2-x", "2-x", "3-y", "3-y"]
