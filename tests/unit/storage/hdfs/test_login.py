"""Log-ins of RPC connections against a small server that speaks SASL, and the identity that the settings choose."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CannotLogIn, NotAllowed, StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import AUTH_SASL, SimpleAuthenticator, make_authenticator
from bmq.storage.hdfs.data_transfer import delimited
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.sasl import (
    AUTHENTICATION,
    MESSAGE_BYTES_MAX,
    UNPROTECTED,
    LoginFailed,
    Negotiation,
    Protection,
)
from bmq.storage.hdfs.security import HdfsSecurity
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.logins import DNS, SILENT, StorageLogins
from tests.harness.waiting import until
from tests.unit.storage.hdfs.fakes import SETTINGS, STANDBY, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

State = pb.RpcSasl
OFFER = pb.RpcSasl.Auth(method="KERBEROS", mechanism="GSSAPI", protocol="nn", server_id="nn1")
SIMPLE = pb.RpcSasl.Auth(method="SIMPLE", mechanism="")
PATIENT = replace(SETTINGS, call_timeout_s=30.0, call_deadline_s=60.0)
IMPATIENT = replace(SETTINGS, login_timeout_s=0.2, call_deadline_s=0.6)
Script = list[pb.RpcSasl | bytes | str | None]
"""For each message of the client a message, bytes of the connection, an exception's class, or None for silence."""


@dataclass
class Password:
    """A mechanism: the client says a word, the server has another, the client says the last one."""

    is_fallback_allowed: bool = False
    auth_byte: int = AUTH_SASL
    is_dns_silent: bool = False
    is_complete: bool = False
    heard: list[bytes] = field(default_factory=list)
    servers: list[tuple[str, tuple[str, ...], str, str]] = field(default_factory=list)
    hang: bool = False
    protection: Protection = UNPROTECTED
    refusals: int = 0
    levels: tuple[str, ...] = (AUTHENTICATION,)

    @property
    def login(self) -> Password:
        return self

    def effective_user(self, method: str) -> str:
        return "alice" if method == "SIMPLE" else ""

    def negotiate(self, server: str) -> Negotiation:
        return Negotiation(server, ("KERBEROS",), is_fallback_allowed=self.is_fallback_allowed)

    def client(self, method: str, host: str, names: Collection[str], service: str, server_id: str) -> Password:
        self.servers.append((host, tuple(names), service, server_id))
        self.is_complete = False
        return self

    async def names(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        if self.is_dns_silent:
            await asyncio.get_running_loop().create_future()
        return (f"name of {peer[0]}",)

    async def evaluate(self, challenge: bytes) -> bytes | None:
        if self.hang:
            await asyncio.get_running_loop().create_future()
        self.heard.append(challenge)
        self.is_complete = bool(challenge)
        return b"last" if challenge else b"first"

    async def refresh(self) -> None:
        pass

    async def has_another(self) -> bool:
        return False

    def note_refusal(self) -> None:
        self.refusals += 1

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return "alice"


@dataclass
class SecureServer:
    """A server that plays ``script``, a step for each message, then accepts the context and responds to calls."""

    script: Script
    messages: list[pb.RpcSasl] = field(default_factory=list)
    contexts: list[pb.ConnectionContext] = field(default_factory=list)
    error: str = ""
    """The exception's class that answers each call."""
    is_silent: bool = False
    """True for a server that responds to no call."""
    fatal: str = ""
    """The exception's class that ends each connection after its log-in."""
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await reader.readexactly(7) == b"hrpc\x09\x00\xdf"
            for step in self.script:
                header, message = await read_frame(reader)
                assert pb.RpcRequestHeader.FromString(header).call_id == -33
                self.messages.append(pb.RpcSasl.FromString(message))
                send(writer, step)
            while True:
                header, *rest = await read_frame(reader)
                call_id = pb.RpcRequestHeader.FromString(header).call_id
                if call_id == -33:
                    self.messages.append(pb.RpcSasl.FromString(rest[0]))
                elif call_id < 0:
                    self.contexts.append(pb.ConnectionContext.FromString(rest[0]))
                    if self.fatal:
                        end(writer, call_id, self.fatal)
                        return
                elif self.is_silent:
                    continue
                elif self.error:
                    response = pb.RpcResponseHeader(
                        call_id=call_id, status=pb.RpcResponseHeader.ERROR, exception_class=self.error, error_message=""
                    )
                    write_frame(writer, delimited(response))
                else:
                    response = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS)
                    write_frame(writer, delimited(response) + delimited(pb.BoolResponse(result=True)))


def write_frame(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(struct.pack(">I", len(body)) + body)


def end(writer: asyncio.StreamWriter, call_id: int, error: str) -> None:
    """End a connection by an exception, as a server does whose service authorization fails (Server.java)."""
    status = pb.RpcResponseHeader.FATAL
    name, _, text = error.partition(": ")
    response = pb.RpcResponseHeader(
        call_id=call_id & 0xFFFFFFFF, status=status, exception_class=name, error_message=text
    )
    write_frame(writer, delimited(response))
    writer.close()


def send(writer: asyncio.StreamWriter, step: pb.RpcSasl | bytes | str | None) -> None:
    response = pb.RpcResponseHeader(call_id=-33 & 0xFFFFFFFF, status=pb.RpcResponseHeader.SUCCESS)
    match step:
        case pb.RpcSasl():
            write_frame(writer, delimited(response) + delimited(step))
        case bytes():
            writer.write(step)
        case str():
            response.status = pb.RpcResponseHeader.FATAL
            response.exception_class, _, response.error_message = step.partition(": ")
            write_frame(writer, delimited(response))


@contextlib.asynccontextmanager
async def secure(
    *scripts: Script, identity: Password, settings: HdfsSettings = PATIENT
) -> AsyncIterator[tuple[NameNode, list[SecureServer]]]:
    servers = [SecureServer(script) for script in scripts]
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for server in servers:
            listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            stack.push_async_callback(server.close)
            stack.callback(listening.close)
            addresses.append(("127.0.0.1", int(listening.sockets[0].getsockname()[1])))
        client = NameNode(addresses, settings, identity)
        stack.push_async_callback(client.close)
        yield client, servers


NEGOTIATE = pb.RpcSasl(state=State.NEGOTIATE, auths=[OFFER])
WHOLE: Script = [
    NEGOTIATE, pb.RpcSasl(state=State.CHALLENGE, token=b"word"), pb.RpcSasl(state=State.SUCCESS),
]  # fmt: skip


async def test_a_connection_logs_in_and_leaves_the_user_to_the_ticket() -> None:
    identity = Password()
    async with secure(WHOLE, identity=identity) as (client, (server,)):
        assert all(await asyncio.gather(*(client.is_file_closed(f"/{n}") for n in range(20))))
    assert server.connections == 1
    assert [message.state for message in server.messages] == [State.NEGOTIATE, State.INITIATE, State.RESPONSE]
    assert [message.token for message in server.messages] == [b"", b"first", b"last"]
    assert not server.contexts[0].HasField("user")
    (host, names, service, server_id) = identity.servers[0]
    assert (host, service, server_id) == ("127.0.0.1", "nn", "nn1")
    assert names == ("name of 127.0.0.1",)


@pytest.mark.parametrize(
    "script",
    [[pb.RpcSasl(state=State.SUCCESS)], [pb.RpcSasl(state=State.NEGOTIATE, auths=[SIMPLE])]],
)
async def test_an_open_server_gets_a_name_only_if_the_fall_back_is_allowed(
    script: Script,
) -> None:
    async with secure(script, identity=Password()) as (client, (server,)):
        with pytest.raises(NotAllowed, match="fallback-to-simple-auth-allowed"):
            await client.is_file_closed("/x")
        assert (server.contexts, server.connections) == ([], 1), "no context, no call, no second attempt"
    async with secure(script, identity=Password(is_fallback_allowed=True)) as (client, (server,)):
        assert await client.is_file_closed("/x")
        assert server.contexts[0].user.effective_user == "alice"


async def test_a_refused_log_in_is_told_at_once_after_each_namenode_was_tried() -> None:
    refusal = "org.apache.hadoop.security.AccessControlException: GSS initiate failed\n\tat x.y"
    async with secure([NEGOTIATE, refusal], [NEGOTIATE, refusal], identity=Password()) as (client, servers):
        with pytest.raises(
            NotAllowed, match=r"refuses the log-in by alice: .*GSS initiate failed \(the NameNode's log"
        ):
            await client.is_file_closed("/x")
    assert [server.connections for server in servers] == [1, 1]


REFUSAL = "org.apache.hadoop.security.AccessControlException: GSS initiate failed"


@pytest.mark.parametrize("refusal", [REFUSAL, pb.RpcSasl(state=State.SUCCESS)], ids=["refused", "an open server"])
async def test_a_log_in_that_is_refused_after_a_good_one_may_be_tried_again(refusal: pb.RpcSasl | str) -> None:
    """Lose the response to a call: the NameNode may have done it, and a refused log-in at another one is no refusal."""
    settings = replace(SETTINGS, call_deadline_s=0.5)
    refused: Script = [refusal] if isinstance(refusal, pb.RpcSasl) else [NEGOTIATE, refusal]
    identity = Password()
    async with secure(WHOLE, refused, identity=identity, settings=settings) as (client, (first, second)):
        assert await client.is_file_closed("/x")
        first.script = refused
        await first.close()
        with pytest.raises(CannotLogIn, match="/x") as caught:
            await client.is_file_closed("/x")
        assert isinstance(caught.value, StorageUnavailable), "retriable"
        assert second.connections > 1
        assert (identity.refusals > 1) == isinstance(refusal, str), "a new ticket makes no server secure"


async def test_a_passing_refusal_of_a_log_in_is_not_seen() -> None:
    identity = Password()
    async with secure(WHOLE, identity=identity) as (client, (server,)):
        assert await client.is_file_closed("/x")
        server.script = [NEGOTIATE, REFUSAL]
        await server.close()
        call = asyncio.create_task(client.is_file_closed("/x"))
        await until(lambda: identity.refusals > 0)
        server.script = WHOLE
        assert await call


UNAUTHORIZED = "org.apache.hadoop.security.authorize.AuthorizationException: User alice is not authorized for protocol"


async def test_a_connection_that_is_ended_after_the_log_in_refuses_no_call() -> None:
    """Lose the response to a call: another NameNode, which lets the user in no further, knows nothing of the call."""
    settings = replace(SETTINGS, call_deadline_s=0.5)
    async with secure(WHOLE, WHOLE, identity=Password(), settings=settings) as (client, (first, second)):
        assert await client.is_file_closed("/x")
        first.script, second.fatal = [NEGOTIATE, REFUSAL], UNAUTHORIZED
        await first.close()
        with pytest.raises(CannotLogIn, match="concat /x") as caught:
            await client.concat("/x", ["/y"])
        assert isinstance(caught.value, StorageUnavailable), "retriable"
        assert second.connections > 1
        second.fatal = ""
        await client.concat("/x", ["/y"])


async def test_a_first_call_whose_response_was_lost_is_refused_by_no_other_namenode() -> None:
    settings = replace(SETTINGS, call_deadline_s=0.5)
    async with secure(WHOLE, WHOLE, identity=Password(), settings=settings) as (client, (first, second)):
        first.is_silent, second.fatal = True, UNAUTHORIZED
        with pytest.raises(StorageUnavailable, match="concat /x"):
            await client.concat("/x", ["/y"])
        assert second.connections > 0


async def test_a_failed_service_authorization_ends_the_start_after_each_namenode_was_tried() -> None:
    async with secure(WHOLE, WHOLE, identity=Password()) as (client, servers):
        for server in servers:
            server.fatal = UNAUTHORIZED
        with pytest.raises(NotAllowed, match=r"alice is not authorized .*security\.client\.protocol\.acl"):
            await client.is_file_closed("/x")
    assert [server.connections for server in servers] == [1, 1]


async def test_a_log_in_at_a_standby_makes_no_refusal_retriable() -> None:
    """The start of a process ends with one line: nothing was served yet."""
    async with secure(WHOLE, [NEGOTIATE, REFUSAL], identity=Password()) as (client, (standby, active)):
        standby.error = STANDBY
        with pytest.raises(NotAllowed, match="refuses the log-in"):
            await client.is_file_closed("/x")
        assert (standby.connections, active.connections) == (1, 1)


async def test_a_standby_that_refuses_a_log_in_is_left_for_the_active_one() -> None:
    async with secure([NEGOTIATE, STANDBY], WHOLE, identity=Password()) as (client, servers):
        assert await client.is_file_closed("/x")
    assert [server.connections for server in servers] == [1, 1]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (struct.pack(">I", (1 << 31) - 1), "a frame of 2147483647 bytes"),
        (struct.pack(">I", MESSAGE_BYTES_MAX + 1), f"a frame of {MESSAGE_BYTES_MAX + 1} bytes"),
        (struct.pack(">I", 3) + b"\xff\xff\xff", "does not speak Hadoop RPC"),
        (struct.pack(">I", 5) + b"\x04\x08\x05\x10\x00", "a response to call 5 in the middle of a log-in"),
    ],
)
async def test_bytes_that_are_no_log_in_end_the_connection(bad: bytes, said: str) -> None:
    async with secure([bad], identity=Password(), settings=IMPATIENT) as (client, _):
        with pytest.raises(StorageUnavailable, match=said):
            await client.is_file_closed("/x")


async def test_a_refusal_that_is_not_utf_8_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """The library of protocol buffers returns such a string as bytes."""
    header = pb.RpcResponseHeader(call_id=-33 & 0xFFFFFFFF, status=pb.RpcResponseHeader.FATAL)
    header.exception_class, header.error_message = "a.SaslException", "????"
    body = delimited(header).replace(b"????", b"\xff\xfe\xfd\xfc")
    async with secure([struct.pack(">I", len(body)) + body], identity=Password(), settings=IMPATIENT) as (client, _):
        with pytest.raises(NotAllowed, match="refuses the log-in by alice: SaslException: \ufffd\ufffd\ufffd\ufffd"):
            await client.is_file_closed("/x")
    assert not caplog.records


async def test_a_server_that_is_silent_during_a_log_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = StorageLogins()
    monkeypatch.setattr("bmq.storage.hdfs.namenode.LOGINS", logins)
    async with secure([None], identity=Password(), settings=IMPATIENT) as (client, _):
        with pytest.raises(StorageUnavailable, match=r"no log-in at 127\.0\.0\.1:\d+ within 0\.2 s"):
            await client.is_file_closed("/x")
    assert {reason for reason, count in logins.failures.items() if count} == {SILENT}, "nobody has refused it"


async def test_a_namenode_that_is_silent_during_a_log_in_is_left_for_another_one() -> None:
    """A stopped NameNode accepts connections: the log-in's bound, which is the KDC's too, would be too long for it."""
    settings = replace(PATIENT, call_timeout_s=0.2, login_timeout_s=1e6)
    async with secure([None], WHOLE, identity=Password(), settings=settings) as (client, (silent, active)):
        async with asyncio.timeout(60):
            assert await client.is_file_closed("/x")
    assert (silent.connections, active.connections) == (1, 1)


async def test_a_silent_namenode_is_left_also_if_the_call_that_logs_in_is_given_up() -> None:
    """Callers have time-outs of their own, as short as they like: the next call begins at another NameNode."""
    async with secure([None], WHOLE, identity=Password(), settings=PATIENT) as (client, (silent, active)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.is_file_closed("/x")
        assert await client.is_file_closed("/x")
    assert (silent.connections, active.connections) == (1, 1)


async def test_a_kdc_that_is_silent_is_not_told_as_a_silent_namenode() -> None:
    async with secure(WHOLE, identity=Password(hang=True), settings=IMPATIENT) as (client, (server,)):
        with pytest.raises(CannotLogIn, match=r"cannot log in as alice: no response of the KDC within 0\.2 s"):
            await client.is_file_closed("/x")
    assert server.connections > 1, "it is tried again until the call's deadline"


async def test_a_silent_dns_is_not_taken_for_a_silent_kdc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the NameNode's address is looked up, since its principal has the name."""
    logins = StorageLogins()
    monkeypatch.setattr("bmq.storage.hdfs.namenode.LOGINS", logins)

    async with secure(WHOLE, identity=Password(is_dns_silent=True), settings=IMPATIENT) as (client, _):
        with pytest.raises(
            CannotLogIn, match=r"cannot log in as alice: no name of 127\.0\.0\.1 within 0\.2 s \(reverse DNS\)"
        ):
            await client.is_file_closed("/x")
    assert {reason for reason, count in logins.failures.items() if count} == {DNS}


async def test_a_server_that_closes_during_a_log_in_is_a_lost_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = NameNode([server.sockets[0].getsockname()[:2]], IMPATIENT, Password())
    with pytest.raises(StorageUnavailable, match="closed"):
        await client.is_file_closed("/x")
    await client.close()
    server.close()
    await server.wait_closed()


def test_a_keytab_for_an_open_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hdfs_keytab is set, but .* not kerberos in any configuration"):
        make_authenticator(HdfsSecurity(), HdfsLogin(keytab="/k"))
    with pytest.raises(ValueError, match=r"hdfs_principal is set, but .* not kerberos in /conf: set"):
        make_authenticator(HdfsSecurity(source="/conf"), HdfsLogin(principal="bmq@R"))
    assert isinstance(make_authenticator(HdfsSecurity(), HdfsLogin(), "alice"), SimpleAuthenticator)


def test_kerberos_without_its_library_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bmq.storage.hdfs.kerberos", None)
    security = HdfsSecurity(source="/conf", is_kerberos=True, namenode_principal="nn/_HOST@R")
    with pytest.raises(Unsupported, match=r"/conf: .*needs the package gssapi .*-m pip install .*gssapi"):
        make_authenticator(security, HdfsLogin())


def test_errors_of_a_log_in_are_storage_errors() -> None:
    assert issubclass(LoginFailed("x").kind, StorageError)
