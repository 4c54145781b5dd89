"""The check before a process joins: processes that keep it out, and processes that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.core.config import ConfigError
from bmq.core.net.request import Client, CloseConnection, Response
from bmq.core.rpc.peers import Peers
from bmq.core.rpc.server import Admission, InternalEndpoint
from bmq.core.security.shared_secret import NO_SECRET, SharedSecret
from bmq.meta.cluster.member import Address, Member
from bmq.server.secret_check import TIMEOUT_S, TRIES, check_secret
from tests.unit.core.rpc.world import World

RIGHT = SharedSecret((b"the right secret",))
WRONG = SharedSecret((b"the wrong secret",))
OPEN = SharedSecret(RIGHT.keys, is_required=False)
LIVING = Member(incarnation="b-1", roles=frozenset({"broker"}), internal=Address(host="b", port=9093))
DEAD = Member(incarnation="d-1", roles=frozenset({"broker"}), internal=Address(host="d", port=9093))
STARTING = Member(incarnation="s-1", roles=frozenset({"broker"}))


async def check(own: SharedSecret, theirs: SharedSecret, members: Sequence[Member] = (STARTING, DEAD, LIVING)) -> None:
    async with World(secret=theirs) as world:
        world.endpoint._admit = lambda incarnation: Admission(refusal=f"{incarnation} is not a member")
        asking = Peers("n-1", "test", secret=own)
        await check_secret(asking, members)
        await asking.close()


@pytest.mark.parametrize(
    ("own", "theirs"), [(RIGHT, RIGHT), (NO_SECRET, NO_SECRET), (OPEN, NO_SECRET), (NO_SECRET, OPEN)]
)
async def test_a_process_joins_members_that_accept_it_although_they_do_not_know_it_yet(
    own: SharedSecret, theirs: SharedSecret
) -> None:
    await check(own, theirs)


@pytest.mark.parametrize(("own", "theirs"), [(WRONG, RIGHT), (NO_SECRET, RIGHT), (RIGHT, NO_SECRET)])
async def test_a_process_without_their_secret_does_not_join(own: SharedSecret, theirs: SharedSecret) -> None:
    with pytest.raises(ConfigError, match="this process and a member do not accept each other: b-1 at b:9093"):
        await check(own, theirs)


async def test_a_member_that_closes_each_connection_without_a_word_keeps_a_process_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TLS at the other side shows in no other way to a process without it."""

    def close(self: InternalEndpoint, frame: memoryview, client: Client) -> Response:
        raise CloseConnection("plain bytes at a TLS port")

    monkeypatch.setattr(InternalEndpoint, "__call__", close)
    async with World() as world:
        asking = Peers("n-1", "test")
        with pytest.raises(ConfigError, match="one of both may speak TLS"):
            await check_secret(asking, [LIVING])
        assert len(world.network.attempts) == TRIES
        await asking.close()


async def test_members_that_do_not_answer_keep_nobody_out_and_take_a_second() -> None:
    loop = asyncio.get_running_loop()
    async with World(secret=RIGHT) as world:
        world.network.stop("b")
        began = loop.time()
        asking = Peers("n-1", "test", secret=WRONG)
        await check_secret(asking, [LIVING, DEAD])
        await check_secret(asking, [])
        assert loop.time() - began == pytest.approx(TIMEOUT_S, abs=0.1)
        await asking.close()
        world.network.resume("b")
