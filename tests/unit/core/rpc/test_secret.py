"""The cluster's secret on internal connections: who is let in, what both logs say, and what a stranger can do.

The proofs themselves are tested in tests/unit/core/security/test_shared_secret.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Buffer
from bmq.core.net.strangers import HELLO_BYTES_MAX, STRANGER_S, STRANGERS_MAX
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse, PingRequest, Unregistered
from bmq.core.rpc.peer import NotAccepted, PeerSettings
from bmq.core.rpc.peers import ConnectionKind, Evidence, PeerLost, Peers
from bmq.core.rpc.server import Admission
from bmq.core.security.shared_secret import NO_SECRET, NONCE_BYTES, NOT_SHOWN, SharedSecret
from tests.harness.log_text import lines
from tests.unit.core.rpc.world import ECHO, PORT, B, FakeMember, World, ask, echo, up

RIGHT = SharedSecret((b"the right secret",))
WRONG = SharedSecret((b"the wrong secret",))
OLD = SharedSecret((b"the old one of it",))
BOTH = SharedSecret((*RIGHT.keys, *OLD.keys))
OPEN = SharedSecret(RIGHT.keys, is_required=False)
ASKS = "the other process asks for its cluster's secret, which this one has not"
LACKS = "this process does not have the secret of the other one's cluster"


@pytest.mark.parametrize(
    ("caller", "callee"),
    [(NO_SECRET, NO_SECRET), (RIGHT, RIGHT), (OLD, BOTH), (BOTH, RIGHT), (OPEN, NO_SECRET), (NO_SECRET, OPEN)],
    ids=["neither", "same", "old", "first of two", "not required, none", "none, not required"],
)
async def test_processes_that_agree_talk_on_every_kind_of_connection(
    caller: SharedSecret, callee: SharedSecret, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(PeerSettings(), secret=callee, callers_secret=caller) as world:
        for kind in ConnectionKind:
            peer = await up(world, kind)
            assert bytes(await peer.call(ECHO, 0, echo("1", 4 * HELLO_BYTES_MAX)))
        assert (await world.peers.probe(B, 1)).is_serving
        assert len(world.strangers) == 0
        await asyncio.sleep(3 * STRANGER_S)
        assert await ask(world, "2") == "2"
    assert "secret" not in "".join(lines(caplog))


@pytest.mark.parametrize(
    ("caller", "callee", "why", "logged"),
    [
        (WRONG, RIGHT, LACKS, NOT_SHOWN),
        (OLD, RIGHT, LACKS, NOT_SHOWN),
        (NO_SECRET, RIGHT, ASKS, NOT_SHOWN),
        (SharedSecret(WRONG.keys, is_required=False), RIGHT, LACKS, NOT_SHOWN),
        (RIGHT, SharedSecret(WRONG.keys, is_required=False), LACKS, NOT_SHOWN),
        (RIGHT, NO_SECRET, NOT_SHOWN, ""),
    ],
    ids=["wrong", "old", "none", "wrong, not required", "not required, wrong", "the other has none"],
)
async def test_processes_that_do_not_agree_refuse_each_other_and_both_logs_say_why(
    caller: SharedSecret, callee: SharedSecret, why: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(PeerSettings(), secret=callee, callers_secret=caller) as world:
        with pytest.raises(NotAccepted) as caught:
            await world.peers.probe(B, 1)
        assert why in str(caught.value)
        assert caught.value.evidence is Evidence.LIFE, "it is not declared dead"
        with pytest.raises(PeerLost):
            await world.peers.reach(B, ConnectionKind.CONTROL, 1)
        assert world.begun == []
        texts = lines(caplog)
        assert any(text.startswith("no connection to a member (control)") and why in text for text in texts)
        asked = [text for text in texts if text.startswith("a process is refused on the internal port")]
        if logged:
            assert asked[0].endswith(f' connection=a:1 member=a-1 error="{logged}"')
        else:
            assert not asked
        assert not any(each.decode() in text for each in (*caller.keys, *callee.keys) for text in texts)


async def test_a_process_that_proves_itself_with_another_ones_name_is_not_that_one() -> None:
    """Evidence of a death comes from names, with and without a secret."""
    async with World(PeerSettings(), secret=RIGHT, callers_secret=RIGHT) as world:
        with pytest.raises(PeerLost, match="is not here any more") as caught:
            await world.peers.probe(FakeMember("b-0"), 1)
        assert caught.value.evidence is Evidence.REPLACED


class Stranger(asyncio.Protocol):
    """A raw connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._buffer = memoryview(bytearray(1 << 16))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]


async def connect() -> tuple[asyncio.Transport, Stranger]:
    loop = asyncio.get_running_loop()
    return await loop.create_connection(Stranger, "b", PORT)


def framed(body: Sequence[Buffer], key: int = InternalKey.HELLO, version: int = 0) -> bytes:
    frame = (
        key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + b"\0" + b"".join(body)
    )  # fmt: skip
    return len(frame).to_bytes(4, "big") + frame


HELLO = HelloRequest((1, 1), "test", "a-1", "b-1", bytes(NONCE_BYTES))


def first_response(stranger: Stranger) -> HelloResponse:
    size = int.from_bytes(stranger.received[:4], "big")
    return HelloResponse.decode(memoryview(bytes(stranger.received[9 : 4 + size])))


@pytest.mark.parametrize("key", [0, 1, InternalKey.PING, InternalKey.LEAVE, InternalKey.DELETE_TOPIC])
async def test_nothing_is_served_between_the_challenge_and_the_proof(key: int) -> None:
    async with World(PeerSettings(), secret=RIGHT) as world:
        transport, stranger = await connect()
        transport.write(framed(HELLO.encode()))
        await asyncio.sleep(0.1)
        response = first_response(stranger)
        assert (response.error, len(response.nonce)) == (ErrorCode.SASL_AUTHENTICATION_FAILED, NONCE_BYTES)
        seen = len(stranger.received)
        transport.write(framed(PingRequest().encode(), key))
        await asyncio.sleep(0.1)
        assert transport.is_closing()
        assert len(stranger.received) == seen
        assert world.metrics.connections_malformed == 1


async def test_a_second_try_on_one_connection_closes_it() -> None:
    async with World(PeerSettings(), secret=RIGHT):
        transport, _ = await connect()
        transport.write(framed(HELLO.encode()))
        await asyncio.sleep(0.1)
        for _ in range(2):
            assert not transport.is_closing()
            transport.write(framed(HelloRequest((1, 1), "test", "a-1", "b-1", HELLO.nonce, bytes(32)).encode()))
            await asyncio.sleep(0.1)
        assert transport.is_closing()


@pytest.mark.parametrize(
    ("callee", "is_believed"), [(RIGHT, True), (NO_SECRET, False)], ids=["a member", "somebody at its address"]
)
async def test_only_a_process_with_the_secret_can_say_that_another_has_lost_its_membership(
    callee: SharedSecret, is_believed: bool
) -> None:
    async with World(PeerSettings(), secret=callee, callers_secret=RIGHT) as world:
        found = Unregistered(7, frozenset({"broker"}))
        notified: list[Unregistered] = []
        world.peers.subscribe_unregistered(notified.append)
        world.endpoint._admit = lambda incarnation: Admission(refusal="gone", unregistered=found)
        with pytest.raises(PeerLost, match="refuses: CLUSTER_AUTHORIZATION_FAILED" if is_believed else NOT_SHOWN):
            await world.peers.greet(B, 1)
        assert notified == ([found] if is_believed else [])


async def test_the_store_is_not_read_for_a_process_without_the_secret() -> None:
    async with World(PeerSettings(), secret=RIGHT) as world:

        def admit(incarnation: str) -> object:
            raise AssertionError("a stranger caused a read of the store")

        world.endpoint._admit = admit  # type: ignore[assignment]
        with pytest.raises(PeerLost, match="refuses"):
            await world.peers.probe(B, 1)


@pytest.mark.slow
async def test_a_stranger_has_little_time_few_bytes_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    async with World(PeerSettings(), secret=RIGHT, callers_secret=RIGHT) as world:
        silent, _ = await connect()
        half, _ = await connect()
        half.write(framed(HELLO.encode())[:20])
        asked, _ = await connect()
        asked.write(framed(HELLO.encode()))
        large, _ = await connect()
        large.write((HELLO_BYTES_MAX + 1).to_bytes(4, "big") + bytes(8))
        await asyncio.sleep(0.1)
        assert large.is_closing()
        await asyncio.sleep(STRANGER_S - 0.2)
        assert not any(each.is_closing() for each in (silent, half, asked))
        await asyncio.sleep(0.3)
        assert all(each.is_closing() for each in (silent, half, asked))
        assert "more than what a process may send before it is accepted (16384)" in "".join(lines(caplog))
        crowd = [await connect() for _ in range(STRANGERS_MAX + 50)]
        assert await ask(world, "1") == "1", "a process of the cluster is let in beside them"
        assert len(world.strangers) == STRANGERS_MAX - 1, "it took the place of the oldest, and has left it"
        for transport, _ in crowd:
            transport.close()


async def test_a_response_of_a_stranger_is_bounded_too() -> None:
    """A Hello's response has a few hundred bytes, and whoever listens at a member's address may not be that member."""
    async with World(PeerSettings(), callers_secret=RIGHT) as world:
        world.endpoint._hello = lambda body, version, client: [bytes(HELLO_BYTES_MAX)]  # type: ignore[method-assign]
        with pytest.raises(PeerLost, match=r"bytes that are not a response: .* more than what a process may send"):
            await world.peers.probe(B, 1)


@pytest.mark.slow
async def test_bytes_before_the_proof_close_the_connection_or_are_refused_and_never_fail() -> None:
    dice = random.Random(7)
    whole = framed(HELLO.encode())
    async with World(PeerSettings(), secret=RIGHT, callers_secret=RIGHT) as world:
        for _ in range(300):
            transport, stranger = await connect()
            data = bytearray(whole)
            for _ in range(dice.randrange(1, 6)):
                data[dice.randrange(4, len(data))] = dice.randrange(256)
            cut = dice.choice((len(data), len(data), dice.randrange(len(data))))
            for _ in range(dice.randrange(1, 3)):
                transport.write(bytes(data[:cut]))
            await asyncio.sleep(0.01)
            if stranger.received and first_response(stranger).error is ErrorCode.NONE:
                raise AssertionError(f"accepted: {bytes(data)!r}")
            transport.close()
        assert await ask(world, "1") == "1"
        assert world.begun == ["1"]


@pytest.mark.slow
async def test_a_storm_of_reconnections_lets_everybody_in() -> None:
    """A process that was away: 100 others connect with all kinds at once, each proves, and nobody has to wait long."""
    async with World(PeerSettings(), secret=RIGHT) as world:
        callers = [Peers(f"a-{number}", "test", secret=RIGHT) for number in range(100)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for peers in callers:
                for kind in ConnectionKind:
                    group.create_task(peers.reach(B, kind, 5))
        assert loop.time() - began < 0.1
        assert len(world.strangers) == 0
        world.network.cut()
        await asyncio.sleep(0.01)
        async with asyncio.TaskGroup() as group:
            for peers in callers:
                for kind in ConnectionKind:
                    group.create_task(peers.reach(B, kind, 5))
        assert len(world.strangers) == 0
        for peers in callers:
            await peers.close()
