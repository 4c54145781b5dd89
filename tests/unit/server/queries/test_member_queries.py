"""One request to several processes at once: which are asked, how many together, and those without a response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedRequest
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, PROXY, Member
from bmq.server.queries.member_queries import PARALLEL, RESPONSE_S, ask_members, others_with
from tests.harness.waiting import now
from tests.unit.server.queries.joined import joined, member


def test_other_processes_with_the_role_and_an_address_are_asked() -> None:
    members = (
        member("own", BROKER),
        member("a", BROKER, PROXY),
        member("b", PROXY),
        member("starting", BROKER, port=0),
        member("c", BROKER),
    )
    assert [each.incarnation for each in others_with(joined(*members), BROKER)] == ["a", "c"]


@pytest.mark.parametrize(
    "error",
    [PeerLost("cut", was_sent=True), RequestError(ErrorCode.UNSUPPORTED_VERSION, "earlier"), TimeoutError()],
    ids=["lost", "earlier version", "time-out"],
)
async def test_a_process_without_a_response_is_left_out(error: Exception) -> None:
    async def ask(asked: Member, request: object, timeout_s: float) -> str:
        assert timeout_s == RESPONSE_S
        if asked.incarnation == "a":
            raise error
        return f"of {asked.incarnation}"

    members = [member(name, BROKER) for name in ("a", "b", "c")]
    found: Any = await ask_members(joined(*members, ask=ask), members, ShardsNotLoadedRequest())
    assert found == {"b": "of b", "c": "of c"}


async def test_an_unexpected_error_is_raised() -> None:
    async def ask(*_: object) -> None:
        raise ZeroDivisionError

    members = [member("a", BROKER)]
    with pytest.raises(ZeroDivisionError):
        await ask_members(joined(*members, ask=ask), members, ShardsNotLoadedRequest())


async def test_requests_at_the_same_time_are_bounded() -> None:
    running, most = 0, 0

    async def ask(*_: object) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return "response"

    members = [member(f"m{number}", BROKER) for number in range(2 * PARALLEL + 1)]
    assert len(await ask_members(joined(*members, ask=ask), members, ShardsNotLoadedRequest())) == len(members)
    assert (most, now()) == (PARALLEL, 3)
