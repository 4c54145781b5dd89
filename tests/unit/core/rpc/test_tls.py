"""Mutual TLS between processes, over loopback sockets on both loops, with and without the cluster's secret.

TLS and a secret are independent: a connection stands if and only if both sides agree on both.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener
from bmq.core.net.strangers import Strangers
from bmq.core.rpc.messages.member import PingResponse
from bmq.core.rpc.peers import ClosedAtOnce, ConnectionKind, Evidence, NotAccepted, PeerLost, Peers
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.security.internal_tls import InternalTls
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.security.shared_secret import NO_SECRET, SharedSecret
from bmq.server.certificates import open_internal_tls
from tests.harness.waiting import until
from tests.unit.core.rpc.world import ECHO, EchoRequest, EchoResponse, FakeMember, Host, echo

pytestmark = pytest.mark.loops("asyncio", "uvloop")
MB = 1 << 20
RIGHT, WRONG = SharedSecret((b"the right secret",)), SharedSecret((b"the wrong secret",))


class Authorities:
    """The cluster's authority and another one, each with a certificate and key in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.own, self.other = trustme.CA(), trustme.CA()

    def config(
        self, *, issuer: str = "own", trusts: str = "own", names: str = "", host: str = "pod", required: bool = True
    ) -> NodeConfig:
        """Return settings with a new certificate of `issuer` for `host`."""
        keystore, truststore = self._folder / f"{issuer}-{host}.pem", self._folder / f"{trusts}-ca.pem"
        keystore.write_bytes(getattr(self, issuer).issue_cert(host).private_key_and_cert_chain_pem.bytes())
        getattr(self, trusts).cert_pem.write_to_path(truststore)
        return NodeConfig(
            internal_ssl_keystore_location=str(keystore), internal_ssl_truststore_location=str(truststore),
            internal_ssl_endpoint_identification_algorithm=names, internal_ssl_required=required,
        )  # fmt: skip

    def tls(self, **how: Any) -> InternalTls:
        tls = open_internal_tls(self.config(**how))
        assert tls is not None
        return tls


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    return Authorities(tmp_path)


@asynccontextmanager
async def connected(
    caller: tuple[InternalTls | None, SharedSecret], callee: tuple[InternalTls | None, SharedSecret]
) -> AsyncIterator[tuple[Peers, FakeMember]]:
    strangers = Strangers()
    endpoint = InternalEndpoint(
        "b-1", "test", LoopClock(), is_serving=lambda: True, secret=callee[1], on_known=strangers.known
    )

    def respond(body: memoryview, call: object) -> list[bytes | bytearray | memoryview]:
        return EchoResponse(ErrorCode.NONE, "", "x" * (len(EchoRequest.decode(body).padding) // 2)).encode()

    endpoint.register(EchoRequest, respond)
    listener = Listener(endpoint, NodeConfig(), PortCounters(), in_order=False, strangers=strangers)
    tls = callee[0]
    session = ANONYMOUS_SESSION if tls is None else Session(listener=tls.name, protocol="SSL")
    plain = None if tls is None or tls.is_required else ANONYMOUS_SESSION
    port = await listener.start("127.0.0.1", 0, session=session, tls=tls, plain_session=plain)
    peers = Peers("a-1", "test", secret=caller[1], tls=caller[0])
    try:
        yield peers, FakeMember(internal=Host("127.0.0.1", port), has_tls=tls is not None)
    finally:
        await peers.close()
        listener.close()
        await until(lambda: not listener.connections)


async def ping(peers: Peers, member: FakeMember) -> PingResponse:
    return await peers.probe(member, 5)


SECRETS = {"none": NO_SECRET, "right": RIGHT, "wrong": WRONG}
TLS = ("none", "right", "wrong")


@pytest.mark.slow
@pytest.mark.parametrize(("callers_tls", "callees_tls"), list(itertools.product(TLS, TLS)))
async def test_tls_and_secret_must_both_agree(callers_tls: str, callees_tls: str, authorities: Authorities) -> None:
    made = {
        "none": None,
        "right": authorities.tls(),
        "wrong": authorities.tls(issuer="other", trusts="other", host="alien"),
    }
    for callers_secret, callees_secret in itertools.product(SECRETS, SECRETS):
        caller = (made[callers_tls], SECRETS[callers_secret])
        callee = (made[callees_tls], SECRETS[callees_secret])
        async with connected(caller, callee) as (peers, member):
            if callers_tls == callees_tls and callers_secret == callees_secret:
                assert (await ping(peers, member)).is_serving
                continue
            with pytest.raises(PeerLost) as refused:
                await ping(peers, member)
            if callers_tls == callees_tls or "none" not in (callers_tls, callees_tls):
                assert isinstance(refused.value, NotAccepted)
                assert refused.value.evidence is Evidence.LIFE
            else:
                assert isinstance(refused.value, NotAccepted | ClosedAtOnce)


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["none", "right"])
@pytest.mark.parametrize(
    ("callers_tls", "callees_tls", "protocol"),
    [
        ("none", "optional", "PLAINTEXT"), ("optional", "none", "PLAINTEXT"), ("optional", "optional", "SSL"),
        ("optional", "required", "SSL"), ("required", "optional", "SSL"), ("wrong", "optional", ""),
        ("none", "required", ""), ("required", "none", ""),
    ],
)  # fmt: skip
async def test_processes_with_and_without_tls_talk_while_it_is_not_required(
    callers_tls: str, callees_tls: str, protocol: str, secret: str, authorities: Authorities
) -> None:
    """Restart a cluster process by process, first with TLS that is not required, then with TLS that is."""
    made = {
        "none": None, "optional": authorities.tls(required=False), "required": authorities.tls(),
        "wrong": authorities.tls(issuer="other", trusts="other", host="alien", required=False),
    }  # fmt: skip
    sides = (made[callers_tls], SECRETS[secret]), (made[callees_tls], SECRETS[secret])
    async with connected(*sides) as (peers, member):
        if protocol:
            assert (await ping(peers, member)).is_serving
            peer = await peers.reach(member, ConnectionKind.CONTROL, 5)
            assert peer._transport is not None
            assert (peer._transport.get_extra_info("ssl_object") is not None) is (protocol == "SSL")
        else:
            with pytest.raises(PeerLost):
                await ping(peers, member)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("caller", "callee"),
    [({"issuer": "other"}, {}), ({}, {"issuer": "other"})],
    ids=["the caller's certificate", "the callee's certificate"],
)
async def test_each_side_shows_a_certificate_of_the_clusters_authority(
    caller: dict[str, str], callee: dict[str, str], authorities: Authorities
) -> None:
    sides = (authorities.tls(**caller, host="a"), NO_SECRET), (authorities.tls(**callee, host="b"), NO_SECRET)
    async with connected(*sides) as (peers, member):
        with pytest.raises(NotAccepted):
            await ping(peers, member)


@pytest.mark.slow
async def test_names_are_checked_only_where_that_is_asked_for(authorities: Authorities) -> None:
    callee = (authorities.tls(host="pod"), NO_SECRET)
    async with connected((authorities.tls(names="https"), NO_SECRET), callee) as (peers, member):
        with pytest.raises(NotAccepted, match="IP address mismatch"):
            await ping(peers, member)
    async with connected((authorities.tls(), NO_SECRET), callee) as (peers, member):
        assert (await ping(peers, member)).is_serving
    callee = (authorities.tls(host="127.0.0.1"), NO_SECRET)
    async with connected((authorities.tls(names="https"), NO_SECRET), callee) as (peers, member):
        assert (await ping(peers, member)).is_serving


@pytest.mark.slow
async def test_large_and_many_calls_pass_and_none_gets_stuck(authorities: Authorities) -> None:
    """A loop's TLS blocks a writer at its bound: with a bound of nothing a connection would stand still for ever."""
    tls = authorities.tls()
    async with connected((tls, RIGHT), (tls, RIGHT)) as (peers, member):
        peer = await peers.reach(member, ConnectionKind.PRODUCE, 5)
        sizes = [0, 10, 5 * MB, 1, 200_000, 3 * MB, 7] * 6
        calls = [peer.call(ECHO, 0, echo("1", size)) for size in sizes]
        for size, body in zip(sizes, await asyncio.wait_for(asyncio.gather(*calls), 60), strict=True):
            assert len(EchoResponse.decode(body).result) == size // 2
        for _ in range(50):
            assert EchoResponse.decode(await asyncio.wait_for(peer.call(ECHO, 0, echo("1")), 5)).result == ""


@pytest.mark.slow
async def test_new_connections_get_a_replaced_certificate(authorities: Authorities) -> None:
    tls = authorities.tls(host="a")
    async with connected((tls, NO_SECRET), (tls, NO_SECRET)) as (peers, member):
        first = await peers.reach(member, ConnectionKind.CONTROL, 5)
        before = tls.callers_context, tls.context
        assert not tls.reload()
        authorities.config(host="a")  # writes the files again
        assert tls.reload()
        assert tls.callers_context is not before[0]
        assert tls.context is not before[1]
        assert (await ping(peers, member)).is_serving
        assert first.is_up
