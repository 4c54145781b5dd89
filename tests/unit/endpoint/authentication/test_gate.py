"""The authentication gate on connections in memory and in virtual time: what clients send, and what they get."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import struct
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.sasl import SaslAuthenticateRequest as RawAuthenticate
from kafka.protocol.sasl import SaslAuthenticateResponse as RawAuthenticated
from kafka.protocol.sasl import SaslHandshakeRequest as RawHandshake
from kafka.protocol.sasl import SaslHandshakeResponse as RawHandshaken

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.logging.limit import BURST
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.admission import NO_BOUNDS, ConnectionBounds
from bmq.core.net.listener import ClientConnection, Listener
from bmq.core.net.newcomers import KEPT_S
from bmq.core.net.request import Client
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.principal import user
from bmq.core.wire.messages import HeartbeatResponse
from bmq.core.wire.produce import expects_response
from bmq.endpoint.authentication import mechanism as api
from bmq.endpoint.authentication.gate import AUTHENTICATION_S, AuthenticationGate, GateSettings
from bmq.endpoint.authentication.plain import PlainSaslMechanism
from bmq.endpoint.large_requests import INLINE_BYTES
from tests.harness.audit import HeldAudit
from tests.harness.loop import run
from tests.unit.core.net.world import Peer, turn
from tests.unit.endpoint.endpoints import endpoint, heartbeat, versions

DELAY_S = 0.1
RECEIVE_MAX = 4096
ALICE = b"\0alice\0secret"


class Slow(api.Stateless):
    """A mechanism that asks once, and takes a second for each token."""

    name = "SLOW"

    def __init__(self) -> None:
        self.begun = self.disposed = self.cancelled = 0
        self.expires_at_ms: int | None = None

    def create_server(self, context: AuthenticationContext) -> SlowServer:
        assert context.host == "10.0.0.1"
        self.begun += 1
        return SlowServer(self)


class SlowServer:
    def __init__(self, mechanism: Slow) -> None:
        self._mechanism = mechanism
        self._tokens = 0

    async def evaluate(self, token: bytes) -> AuthenticationResult:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self._mechanism.cancelled += 1
            raise
        self._tokens += 1
        if token == b"bug":
            raise KeyError(token)
        if self._tokens == 1:
            return Challenge(b"who?")
        if token != b"bob":
            return AuthenticationFailure("not bob")
        return Authenticated(user("bob"), b"welcome", self._mechanism.expires_at_ms)

    def dispose(self) -> None:
        self._mechanism.disposed += 1


class World:
    """A listener with a gate, and clients that speak Kafka's protocol."""

    def __init__(self, reauth_ms: int = 0, bounds: ConnectionBounds = NO_BOUNDS, **config: Any) -> None:
        self.metrics = PortCounters()
        self.audit = HeldAudit()
        self.slow = Slow()
        self.principals: list[str] = []
        inner = endpoint(self._beat)
        self.listener = Listener(inner, NodeConfig(**config), self.metrics, bounds=bounds, audit=self.audit)
        self.gate = AuthenticationGate(
            inner,
            GateSettings(
                listener="OUTSIDE", protocol="SASL_PLAINTEXT", receive_max=RECEIVE_MAX, delay_s=DELAY_S,
                reauth_ms={"PLAIN": reauth_ms, "SLOW": 0},
            ),
            {"PLAIN": PlainSaslMechanism({"alice": "secret", "carol": "secret"}), "SLOW": self.slow},
            LoopClock(),
            self.metrics,
            self.audit,
        )  # fmt: skip

    def _beat(self, scopes: Any, request: Any, message: Any) -> HeartbeatResponse:
        session = request.client.session
        assert (session.listener, session.protocol) == ("OUTSIDE", "SASL_PLAINTEXT")
        self.principals.append(str(session.principal))
        return HeartbeatResponse(throttle_time_ms=0, error_code=0)

    def client(self) -> Speaker:
        kind: Any = partial(ClientConnection, dispatch=self.gate, on_open=self.gate.opened)
        return Speaker(Peer(self.listener, kind=kind))

    def entries(self) -> list[tuple[str, str, str, str]]:
        """Return act, outcome, mechanism and reason of the log-ins in the audit log."""
        events = self.audit.events
        assert all((each.kind.value, each.address) == ("login", "10.0.0.1") for each in events) or not events
        return [(each.act, each.outcome.value, each.session.mechanism, each.reason) for each in events]

    def counted(self) -> dict[tuple[str, str], int]:
        assert {listener for _, listener, _ in self.metrics.authentications} <= {"OUTSIDE"}
        return {(outcome, mechanism): n for (outcome, _, mechanism), n in self.metrics.authentications.items() if n}


class Speaker:
    """A client of Kafka's protocol."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @property
    def connection(self) -> ClientConnection:
        return self.peer.connection

    def send(self, data: bytes) -> None:
        self.peer.send(struct.pack(">i", len(data)) + data)

    def take(self) -> bytes:
        """Return the next response, which must have come."""
        (size,) = struct.unpack_from(">i", self.peer.received)
        body = bytes(self.peer.received[4 : 4 + size])
        assert len(body) == size
        del self.peer.received[: 4 + size]
        return body

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        message = RawHandshake(mechanism=mechanism)
        message.with_header(correlation_id=3, client_id="tester")
        self.send(message.encode(version=version, header=True))
        return RawHandshaken.decode(self.take(), version=version, header=True) if self.peer.received else None

    def token(self, token: bytes, version: int = 2) -> Any:
        message = RawAuthenticate(auth_bytes=token)
        message.with_header(correlation_id=4, client_id="tester")
        self.send(message.encode(version=version, header=True))
        return self.authenticated(version) if self.peer.received else None

    def authenticated(self, version: int = 2) -> Any:
        return RawAuthenticated.decode(self.take(), version=version, header=True)

    def beats(self) -> bool:
        """Return whether a request of the endpoint has a response."""
        self.send(bytes(heartbeat()))
        return bool(self.peer.received) and bool(self.take())


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("asks", [None, 0, 3, 4])
async def test_a_client_that_shows_who_it_is_gets_in(asks: int | None, version: int) -> None:
    world = World()
    client = world.client()
    if asks is not None:
        client.send(bytes(versions(asks)))
        assert client.take()[4:6] == b"\0\0"
    shaken = client.handshake()
    assert (shaken.error_code, shaken.mechanisms) == (ErrorCode.NONE, ["PLAIN", "SLOW"])
    reply = client.token(ALICE, version)
    assert (reply.error_code, reply.auth_bytes) == (ErrorCode.NONE, b"")
    assert client.beats()
    assert world.principals == ["User:alice"]
    assert client.connection.session.mechanism == "PLAIN"
    assert world.counted()["successful_authentication", "PLAIN"] == 1
    assert ("successful_authentication_no_reauth", "PLAIN") in world.counted() or version
    assert world.entries() == [("LOGIN", "allowed", "PLAIN", "")]
    assert str(world.audit.events[0].session.principal) == "User:alice"
    client.peer.leave()


class OneEach:
    """One connection for each principal."""

    def __init__(self) -> None:
        self.live: set[str] = set()

    def admit(self, connection: Client) -> str:
        principal = str(connection.session.principal)
        if principal in self.live:
            return f"{principal} has one"
        self.live.add(principal)
        connection.on_close(lambda: self.live.remove(principal))
        return ""


async def test_a_log_in_past_the_users_bound_is_closed_after_it_and_counts_for_nobody() -> None:
    bounds = OneEach()
    world = World(bounds=bounds)
    first, second, other = world.client(), world.client(), world.client()
    assert bounds.live == set(), "nobody before a log-in"
    for client, token in ((first, ALICE), (second, ALICE), (other, b"\0carol\0secret")):
        client.handshake()
        assert client.token(token).error_code == ErrorCode.NONE
    assert not second.beats()
    assert first.beats()
    assert other.beats()
    await asyncio.sleep(1.1)
    assert second.peer.is_gone
    assert bounds.live == {"User:alice", "User:carol"}
    assert world.metrics.user_connections_refused == 1
    assert ("LOGIN", "denied", "PLAIN", "User:alice has one") in world.entries()
    first.peer.leave()
    again = world.client()
    again.handshake()
    again.token(ALICE)
    assert again.beats()
    again.peer.leave()
    other.peer.leave()


async def test_a_re_authentication_counts_no_connection() -> None:
    bounds = OneEach()
    world = World(reauth_ms=10_000, bounds=bounds)
    client = world.client()
    for _ in range(2):
        client.handshake()
        assert client.token(ALICE).error_code == ErrorCode.NONE
    assert client.beats()
    assert world.metrics.user_connections_refused == 0
    client.peer.leave()


async def test_a_client_logs_in_while_strangers_hold_all_connections() -> None:
    """A log-in takes two seconds, and new strangers come all the time."""
    world = World(max_connections=5)
    clock = asyncio.get_running_loop().time
    kept, strangers = world.client(), [world.client() for _ in range(4)]
    kept.handshake()
    assert kept.token(ALICE).error_code == ErrorCode.NONE
    assert world.listener._newcomers.kept_s < KEPT_S, "its log-in was quick"
    for _ in range(3):
        began = clock()
        client = world.client()
        while client.peer.connection.is_closed:
            strangers.append(world.client())
            await asyncio.sleep(0.5)
            client = world.client()
        client.handshake()
        for _ in range(20):
            strangers.append(world.client())
            await asyncio.sleep(0.1)
        assert client.token(b"\0carol\0secret").error_code == ErrorCode.NONE
        assert client.beats()
        assert clock() - began < AUTHENTICATION_S, "sooner than by the end of the strangers' time"
        client.peer.leave()
    assert kept.beats(), "its session keeps its place"
    await turn()
    assert sum(not each.peer.is_gone for each in strangers) == len(world.listener.connections) - 1
    world.listener.close()
    await turn()
    assert not len(world.listener._newcomers)


async def test_raw_tokens_follow_an_old_handshake() -> None:
    world = World()
    client = world.client()
    assert client.handshake(version=0).error_code == ErrorCode.NONE
    client.send(ALICE)
    assert client.take() == b""
    assert client.beats()
    slow = world.client()
    slow.handshake("SLOW", version=0)
    slow.send(b"")  # a token of no bytes, shorter than any request
    await asyncio.sleep(1.1)
    assert slow.take() == b"who?"
    slow.send(b"bob")
    await asyncio.sleep(1.1)
    assert slow.take() == b"welcome"
    assert slow.beats()
    assert world.principals == ["User:alice", "User:bob"]
    wrong = world.client()
    wrong.handshake(version=0)
    wrong.send(b"\0alice\0wrong")
    await asyncio.sleep(DELAY_S * 2)
    assert wrong.peer.is_gone
    assert not wrong.peer.received
    for each in (client, slow):
        each.peer.leave()


@pytest.mark.parametrize("size", range(8))
async def test_a_frame_without_a_header_behind_the_last_raw_token_is_no_bug(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    client = world.client()
    client.handshake(version=0)
    with caplog.at_level(logging.WARNING):
        client.peer.send(struct.pack(">i", len(ALICE)) + ALICE + struct.pack(">i", size) + bytes(size))
    assert client.take() == b""
    assert client.peer.is_gone
    assert [line.message for line in caplog.records] == ["closing a connection: its request is invalid"]


async def test_tokens_that_look_like_a_produce_without_a_response_end_with_their_connections() -> None:
    """Their bytes are given back, so no log-in under way is closed for them."""
    world = World()
    world.listener.login_budget.limit = 16 * RECEIVE_MAX
    innocent = [world.client() for _ in range(10)]
    for client in innocent:
        client.handshake("SLOW")
        client.token(b"hello")
    token = struct.pack(">hhihhhi", 0, 3, 1, -1, -1, 0, 1_000).ljust(RECEIVE_MAX, b"x")
    assert not expects_response(memoryview(token))
    strangers = [world.client() for _ in range(40)]
    for client in strangers:
        client.handshake("SLOW", version=0)
        client.send(token)
        client.peer.leave()
    await turn()
    assert [client.peer.is_gone for client in innocent] == [False] * 10
    assert world.slow.cancelled == len(strangers)
    assert world.metrics.request_bytes_held < RECEIVE_MAX * 2, "of the innocent alone"
    await asyncio.sleep(1.1)
    for client in innocent:
        assert client.authenticated().auth_bytes == b"who?"
        client.peer.leave()
    assert world.metrics.request_bytes_held == 0


async def test_versions_that_are_not_served_may_be_asked_again() -> None:
    world = World()
    client = world.client()
    for attempt in (b"\0\x12\0\x09" + versions(4)[4:], versions(3, name="no good"), versions(4)):
        client.send(bytes(attempt))
        assert client.take()
    assert client.handshake().error_code == ErrorCode.NONE
    client.peer.leave()


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0nobody\0secret", b"\0" * 9, b"\xff"])
async def test_a_failure_waits_has_its_text_and_ends_the_connection(token: bytes) -> None:
    world = World()
    client = world.client()
    client.handshake()
    assert client.token(token) is None
    await asyncio.sleep(DELAY_S * 0.9)
    assert not client.peer.received
    await asyncio.sleep(DELAY_S * 0.2)
    reply = client.authenticated()
    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "secret" not in reply.error_message
    if token[:2] in (b"\0a", b"\0n"):
        assert reply.error_message == "Authentication failed: Invalid username or password"
    assert client.peer.is_gone
    assert world.counted() == {("failed_authentication", "PLAIN"): 1}
    ((act, outcome, mechanism, reason),) = world.entries()
    assert (act, outcome, mechanism) == ("LOGIN", "denied", "PLAIN")
    assert reason.startswith("PLAIN: ")
    assert "secret" not in reason
    assert world.metrics.connections_malformed == 0
    assert not world.gate._connections


async def test_a_client_that_does_not_read_why_it_failed_is_closed_in_time() -> None:
    world = World()
    client = world.client()
    client.handshake()
    client.peer.room = 10
    client.token(b"\0alice\0wrong")
    await asyncio.sleep(AUTHENTICATION_S - 1)
    assert not client.peer.is_gone
    await asyncio.sleep(3)
    assert client.peer.is_gone
    assert world.counted() == {("failed_authentication", "PLAIN"): 1}
    assert len(world.entries()) == 1
    assert not world.gate._connections


async def test_what_follows_a_failed_token_is_never_served(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    client = world.client()
    client.handshake()
    client.token(b"\0alice\0wrong")
    client.token(ALICE)
    client.send(bytes(heartbeat()))
    await asyncio.sleep(DELAY_S * 2)
    assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not client.peer.received
    assert client.peer.is_gone
    assert not world.principals


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    world = World()
    client = world.client()
    client.handshake("GSSAPI")
    await asyncio.sleep(DELAY_S * 1.1)
    reply = RawHandshaken.decode(client.take(), version=1, header=True)
    assert (reply.error_code, reply.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN", "SLOW"])
    assert client.peer.is_gone
    assert world.counted() == {("failed_authentication", ""): 1}
    assert world.entries() == [("LOGIN", "denied", "", "the mechanism 'GSSAPI' is not enabled")]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (bytes(heartbeat()), "API 12 before authentication"),
        (b"\0\x00\0\x0c\0\0\0\1\xff\xff\0", "API 0 before"),
        (b"\0\x24\0\x02\0\0\0\1\xff\xff\0\0", "malformed|SaslAuthenticate"),
        (b"\0\x11\0\x09\0\0\0\1\xff\xff\0\0", "SASL_HANDSHAKE version 9"),
        (b"\0\x11\0\x01\0\0\0\1\xff\xff\x7f\xff", "malformed"),
        (b"\0\x11\0\x01\0\0\0\1\x7f\xff", "malformed"),
        (b"\0\x7b\0\x01\0\0\0\1\xff\xff", "API 123 before"),
        (b"\xff" * 40, "API -1 before"),
    ],
)
async def test_any_other_request_closes_the_connection(
    frame: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    client = world.client()
    with caplog.at_level(logging.WARNING):
        client.send(frame)
    assert client.peer.is_gone
    assert not client.peer.received
    (line,) = caplog.records
    assert re.search(why, str(line.__dict__["bmq_fields"]["error"]))
    assert world.counted() == {("failed_authentication", ""): 1}
    assert [(act, outcome) for act, outcome, _, _ in world.entries()] == [("LOGIN", "denied")]
    await turn()
    assert not world.gate._connections


async def test_frames_are_small_until_a_session_stands() -> None:
    world = World()
    client = world.client()
    client.peer.send(struct.pack(">i", RECEIVE_MAX + 1) + b"\0\x12")
    assert client.peer.is_gone
    client = world.client()
    client.handshake()
    client.token(ALICE)
    client.peer.send(struct.pack(">i", RECEIVE_MAX + 1) + b"\0\x12")
    assert not client.peer.is_gone
    client.peer.leave()


async def test_only_a_few_bytes_wait_while_a_mechanism_works() -> None:
    world = World()
    client = world.client()
    client.handshake("SLOW")
    client.token(b"x")
    for _ in range(100):
        client.send(b"\0\x12" + bytes(1000))
    assert client.peer.is_paused
    assert len(client.peer.unread) > 90_000
    client.peer.leave()
    await turn()
    assert world.metrics.request_bytes_held == 0
    assert world.slow.cancelled == 1


@pytest.mark.parametrize("begun", ["nothing", "handshake", "token"])
async def test_a_connection_must_authenticate_in_time(begun: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    client = world.client()
    if begun != "nothing":
        client.handshake("SLOW")
    if begun == "token":
        await asyncio.sleep(AUTHENTICATION_S - 0.5)
        client.token(b"x")
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(AUTHENTICATION_S + 2)
    assert client.peer.is_gone
    assert world.slow.begun == world.slow.disposed
    assert "not authenticated" in caplog.text
    assert [reason for *_, reason in world.entries()] == ["it did not authenticate in time"]


async def test_a_session_without_end_stays() -> None:
    world = World()
    client = world.client()
    client.handshake()
    assert client.token(ALICE).session_lifetime_ms == 0
    await asyncio.sleep(AUTHENTICATION_S * 3)
    assert client.beats()
    client.peer.leave()


async def test_a_produce_while_a_mechanism_works_closes_the_connection() -> None:
    world = World()
    client = world.client()
    client.handshake("SLOW")
    client.token(b"x")
    client.send(b"\0\x00\0\x0c\0\0\0\1\xff\xff\0")
    assert client.peer.is_gone
    await turn()
    assert world.slow.cancelled == world.slow.disposed == 1
    assert not world.gate._connections


async def test_slow_mechanisms_are_awaited_and_freed() -> None:
    world = World()
    client = world.client()
    client.handshake("SLOW")
    client.token(b"hello")
    await asyncio.sleep(1.1)
    assert client.authenticated().auth_bytes == b"who?"
    client.token(b"bob")
    await asyncio.sleep(1.1)
    assert client.authenticated().auth_bytes == b"welcome"
    assert client.beats()
    assert world.principals == ["User:bob"]
    assert world.slow.begun == world.slow.disposed == 1
    other = world.client()
    other.handshake("SLOW")
    other.token(b"hello")
    await asyncio.sleep(1.1)
    other.authenticated()
    other.token(b"eve")
    await asyncio.sleep(1 + DELAY_S * 2)
    text = other.authenticated().error_message
    assert text == "Authentication failed during authentication due to invalid credentials with SASL mechanism SLOW"
    assert other.peer.is_gone
    assert world.slow.begun == world.slow.disposed == 2
    client.peer.leave()


async def test_a_bug_of_a_mechanism_closes_the_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    client, other = world.client(), world.client()
    client.handshake("SLOW")
    with caplog.at_level(logging.ERROR):
        client.token(b"bug")
        await asyncio.sleep(1.1)
    assert client.peer.is_gone
    assert "request failed" in caplog.text
    other.handshake()
    other.token(ALICE)
    assert other.beats()
    other.peer.leave()


# ------------------------------------------------------------------------------------------------ re-authentication


async def test_a_session_is_renewed_in_time() -> None:
    world = World(reauth_ms=10_000)
    client = world.client()
    client.handshake()
    assert client.token(ALICE).session_lifetime_ms == 10_000
    for _ in range(3):
        await asyncio.sleep(9)
        assert client.beats()
        assert client.handshake().error_code == ErrorCode.NONE
        assert client.token(ALICE).session_lifetime_ms == 10_000
    assert client.beats()
    assert world.counted() == {
        ("successful_authentication", "PLAIN"): 1,
        ("successful_reauthentication", "PLAIN"): 3,
    }
    assert [act for act, *_ in world.entries()] == ["LOGIN", *["REAUTHENTICATION"] * 3]
    client.peer.leave()


async def test_a_session_that_is_over_lets_nothing_but_a_handshake_through() -> None:
    world = World(reauth_ms=10_000)
    late, later = world.client(), world.client()
    for client in (late, later):
        client.handshake()
        client.token(ALICE)
    await asyncio.sleep(11)
    assert late.handshake().error_code == ErrorCode.NONE
    assert late.token(ALICE).error_code == ErrorCode.NONE
    assert late.beats()
    assert not later.beats()
    assert later.peer.is_gone
    assert world.counted()["expired_connections_killed_count", "PLAIN"] == 1
    assert world.entries()[-1][:2] == ("REAUTHENTICATION", "denied")
    late.peer.leave()


@pytest.mark.parametrize("wrong", [b"\0carol\0secret", b"\0alice\0wrong"])
async def test_another_principal_or_password_ends_the_connection(wrong: bytes) -> None:
    world = World(reauth_ms=10_000)
    client = world.client()
    client.handshake()
    client.token(ALICE)
    await asyncio.sleep(2)
    client.handshake()
    client.token(wrong)
    await asyncio.sleep(DELAY_S * 2)
    assert client.authenticated().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.peer.is_gone
    assert world.counted()["failed_reauthentication", "PLAIN"] == 1
    assert [(act, outcome) for act, outcome, _, _ in world.entries()] == [
        ("LOGIN", "allowed"), ("REAUTHENTICATION", "denied"),
    ]  # fmt: skip
    assert str(world.audit.events[-1].session.principal) == "User:alice", "who it was before"


async def test_nothing_else_comes_while_a_client_authenticates_again() -> None:
    world = World(reauth_ms=10_000)
    client = world.client()
    client.handshake()
    client.token(ALICE)
    client.handshake()
    assert not client.beats()
    assert client.peer.is_gone


async def test_an_authentication_again_must_end_in_time() -> None:
    world = World(reauth_ms=1_000_000)
    client = world.client()
    client.handshake()
    client.token(ALICE)
    await asyncio.sleep(100)
    client.handshake()
    await asyncio.sleep(AUTHENTICATION_S + 2)
    assert client.peer.is_gone


# ---------------------------------------------------------------------------------------------------- many and any


@pytest.mark.slow
async def test_thousands_of_failures_leave_nothing_and_a_few_lines(server_log: io.StringIO) -> None:
    """Each failure is counted, held for the delay, and forgotten; its lines are bounded by the log's limits."""
    world = World()
    for _ in range(3_000):
        client = world.client()
        client.handshake()
        client.token(b"\0alice\0wrong")
    assert len(world.gate._connections) == 3_000
    await asyncio.sleep(DELAY_S * 2)
    assert world.counted() == {("failed_authentication", "PLAIN"): 3_000}
    assert not world.gate._connections
    assert not len(world.gate.deadlines)
    assert world.metrics.request_bytes_held == 0
    assert 1 <= server_log.getvalue().count("authentication failed") <= BURST


FRAMES = st.one_of(
    st.binary(max_size=50),
    st.sampled_from([bytes(versions(3)), bytes(heartbeat()), ALICE, b"\0alice\0wrong"]),
    st.builds(
        lambda key, version, body: struct.pack(">hhih", key, version, 1, -1) + body,
        st.sampled_from([0, 17, 18, 36]), st.integers(-1, 4), st.binary(max_size=30),
    ),
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None)
@given(frames=st.lists(FRAMES, max_size=8), version=st.sampled_from([None, 0, 1]))
def test_no_bytes_reach_the_endpoint_without_a_session(frames: list[bytes], version: int | None) -> None:
    """Random and almost right requests: the endpoint serves them to the one who has shown the password."""

    async def play() -> None:
        world = World()
        client = world.client()
        if version is not None:
            client.handshake(version=version)
        for frame in frames:
            if not client.peer.is_gone:
                client.send(frame)
            await turn()
        await asyncio.sleep(DELAY_S * 2)
        assert set(world.principals) <= {"User:alice"}
        if world.principals:
            assert ALICE in frames or any(ALICE in frame for frame in frames)
        client.peer.leave()

    run(play())


async def test_a_large_request_of_nobody_gets_no_turn_among_those_of_clients(caplog: pytest.LogCaptureFixture) -> None:
    """Large requests share a thread and memory, which an ApiVersions before a log-in would take."""
    world = World()
    client = world.client()
    client.connection.limit_frames(64 << 10, "sasl.server.max.receive.size", 8)
    client.send(bytes(versions(3, "n" * (INLINE_BYTES + 1))))
    assert not client.peer.received
    await turn()
    assert client.peer.is_gone
    assert "an ApiVersions request of" in caplog.text
