"""The log-in by delegation token: which token is chosen, what replaces a refused token, and what is shown of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CannotLogIn, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs import token_login
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import Authenticator, SimpleAuthenticator
from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, HadoopToken, StorageToken
from bmq.storage.hdfs.login import find_login, token_services
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.security import HdfsSecurity
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.token_file import FILE_BYTES_MAX, FILES_MAX, FileState, file_states, read_token_files
from bmq.storage.hdfs.token_login import DelegatedAuthenticator, FileToken, GivenToken, choose_token
from bmq.storage.logins import StorageLogins
from bmq.storage.open import fetch_storage_token
from tests.harness.waiting import until
from tests.services.hdfs_config import write_conf
from tests.unit.storage.hdfs.test_login import NEGOTIATE, PATIENT, WHOLE, Password, Script, SecureServer
from tests.unit.storage.hdfs.token_files import IDENTIFIER, PASSWORD, PROTOBUF, WRITABLE

pytestmark = pytest.mark.loops("asyncio")

State = pb.RpcSasl
OFFERS = pb.RpcSasl(
    state=State.NEGOTIATE,
    auths=[
        pb.RpcSasl.Auth(
            method="TOKEN",
            mechanism="DIGEST-MD5",
            protocol="",
            server_id="default",
            challenge=b'realm="default",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess',
        ),
        pb.RpcSasl.Auth(method="KERBEROS", mechanism="GSSAPI", protocol="nn", server_id="nn1"),
    ],
)
GONE = (
    "org.apache.hadoop.security.token.SecretManager$InvalidToken: token (HDFS_DELEGATION_TOKEN token 300 for alice"
    " with renewer yarn) can't be found in cache"
)
STANDBY = "org.apache.hadoop.ipc.StandbyException: not here"
TOKEN = HadoopToken(HDFS_DELEGATION_TOKEN, "ha-hdfs:nameservice", IDENTIFIER, PASSWORD)
PROPERTIES = {
    "hadoop.security.authentication": "kerberos",
    "dfs.namenode.kerberos.principal": "nn/_HOST@EXAMPLE.ORG",
    "dfs.nameservices": "nameservice",
    "dfs.ha.namenodes.nameservice": "a,b",
    "dfs.namenode.rpc-address.nameservice.a": "127.0.0.1:8020",
    "dfs.namenode.rpc-address.nameservice.b": "localhost:8021",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a token file that the environment names, beside a configuration of an HA pair with Kerberos."""
    path = tmp_path / "tokens"
    path.write_bytes(WRITABLE)
    write_conf(tmp_path / "conf", PROPERTIES)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))
    return path


def test_what_is_shown_of_a_token_has_neither_its_password_nor_its_identifier() -> None:
    whole = StorageToken(root="hdfs://ns/a", namenodes="nn1:8020", token=TOKEN, security=HdfsSecurity())
    identity = DelegatedAuthenticator(GivenToken(TOKEN))
    shown = f"{TOKEN!r} {TOKEN} {whole!r} {whole} {identity!r} {identity} {GivenToken(TOKEN)!r}"
    for secret in (IDENTIFIER, PASSWORD):
        assert repr(secret)[2:-1][:8] not in shown
        assert secret.hex()[:8] not in shown
    assert str(whole) == "the delegation token 300 of alice by spark for nn1:8020"
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert str(replace(TOKEN, identifier=b"x")) == "a delegation token with an identifier that this client cannot read"
    assert str(replace(TOKEN, kind="RM_DELEGATION_TOKEN")) == "a token of kind RM_DELEGATION_TOKEN"


def test_the_content_of_an_identifier_is_what_hadoop_has_written() -> None:
    content = TOKEN.content
    assert (content.owner, content.renewer, content.real_user) == ("alice", "yarn", "spark")
    assert (content.issued_ms, content.ends_ms) == (1790000000123, 1790604800123)
    assert (content.sequence_number, content.master_key_id) == (300, -7)


@pytest.mark.parametrize("data", [WRITABLE, PROTOBUF], ids=["writable", "protobuf"])
def test_a_file_that_hadoop_has_written_has_its_tokens(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(data)
    tokens = read_token_files((str(path),))
    assert set(tokens) == {"alias one", "127.0.0.1:8020", "rm"}
    assert tokens["alias one"] == TOKEN
    assert tokens["127.0.0.1:8020"].content.owner == "Jürgen"
    assert tokens["rm"].kind == "RM_DELEGATION_TOKEN"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "does not begin with HDTS and a version"),
        (b"<configuration/>", "does not begin with HDTS and a version"),
        (b"HDTS\x02", "it has version 2; this client reads 0 and 1"),
        (WRITABLE[:-1], "it ends within a field"),
        (WRITABLE + b"x", "1 bytes behind the end"),
        (b"HDTS\x00\x8c\x7f\xff\xff\xff", "2147483647 tokens, at most 10000 are taken"),
        (PROTOBUF[:-1], r"\d+ bytes are announced, and \d+ follow"),
        (b"HDTS\x01\x02\xff\xff", "its protocol buffer is damaged"),
        (b"HDTS\x01\x02\x0a\x00", "a token lacks one of its fields"),
    ],
)
def test_a_hostile_file_is_an_error_that_names_it(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(data)
    with pytest.raises(CannotLogIn, match=rf"^{path}, of HADOOP_TOKEN_FILE_LOCATION, is not a file of .*{said}"):
        read_token_files((str(path),))


def test_files_that_cannot_be_read_are_errors_that_name_them(tmp_path: Path) -> None:
    with pytest.raises(CannotLogIn, match=rf"{tmp_path}/none, of HADOOP_TOKEN_FILE_LOCATION, does not exist"):
        read_token_files((f"{tmp_path}/none",))
    with pytest.raises(CannotLogIn, match="is not a file"):
        read_token_files((str(tmp_path),))
    with (tmp_path / "long").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(CannotLogIn, match=f"is longer than {FILE_BYTES_MAX} bytes"):
        read_token_files((f"{tmp_path}/long",))


def test_of_several_tokens_a_name_services_is_first_and_then_the_last_to_end() -> None:
    other = replace(TOKEN, service="10.0.0.1:8020")
    broken = replace(other, identifier=b"?")
    foreign = replace(TOKEN, kind="RM_DELEGATION_TOKEN")
    tokens = {"a": foreign, "b": broken, "c": other, "d": TOKEN}
    assert choose_token(tokens, {"10.0.0.1:8020", "ha-hdfs:nameservice"}) == TOKEN
    assert choose_token(tokens, {"10.0.0.1:8020"}) == other
    assert choose_token(tokens, {"10.0.0.2:8020"}) is None


async def test_a_token_of_a_name_service_or_of_an_address_serves_its_namenodes(file: Path) -> None:
    for url in ("hdfs://nameservice/a", "hdfs://localhost:8021/a"):
        found = await find_login(url)
        assert str(found.make_identity()) == f"the delegation token 300 of alice by spark in {file}"
    address = HdfsAddress.parse("hdfs://LOCALHOST:8020/")
    services = await token_services(address, ())
    assert {"127.0.0.1:8020", "localhost:8020"} <= set(services)


async def test_a_token_without_any_configuration_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR")
    found = await find_login("hdfs://127.0.0.1:8020/a")
    assert str(found.make_identity()).startswith("the delegation token 1 of Jürgen in ")
    assert isinstance((await find_login("hdfs://127.0.0.1:9/a")).make_identity(), SimpleAuthenticator)


async def test_with_a_keytab_no_file_is_read(file: Path) -> None:
    await asyncio.to_thread(file.write_bytes, b"garbage")
    with pytest.raises(CannotLogIn, match="is not a file of Hadoop's credentials"):
        await find_login("hdfs://nameservice/a")
    await find_login("hdfs://nameservice/a", login=HdfsLogin(keytab="/keytab"))


async def test_too_many_files_and_a_missing_one_are_errors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", f"{file}, {file}.none")
    with pytest.raises(CannotLogIn, match=rf"{file}\.none, of HADOOP_TOKEN_FILE_LOCATION, does not exist"):
        await find_login("hdfs://nameservice/a")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", ",".join(f"/{n}" for n in range(FILES_MAX + 1)))
    with pytest.raises(CannotLogIn, match=f"names {FILES_MAX + 1} files"):
        await find_login("hdfs://nameservice/a")


async def test_a_file_without_a_token_for_these_namenodes_leaves_the_log_in_to_others(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with caplog.at_level(logging.INFO):
        found = await find_login("hdfs://127.0.0.1:9999/a")
    assert isinstance(found.make_identity(), SimpleAuthenticator)
    assert "has no delegation token for 127.0.0.1:9999, only for 127.0.0.1:8020, ha-hdfs:nameservice" in caplog.text


async def test_a_given_token_has_the_namenodes_and_is_for_no_other_hdfs() -> None:
    security = HdfsSecurity(is_kerberos=True, rpc_levels=("privacy",))
    token = StorageToken(root="hdfs://ns/a", namenodes="nn1:8020,nn2:8021", token=TOKEN, security=security)
    found = await find_login("hdfs://ns/a/b", token=token)
    assert found.address.namenodes == (("nn1", 8020), ("nn2", 8021))
    assert (found.address.root, found.security) == ("/a/b", security)
    assert found.make_identity().levels == ("privacy",)
    assert (await find_login("hdfs://nn1:8020,nn2:8021/c", token=token)).address.root == "/c"
    with pytest.raises(ValueError, match=r"'hdfs://other/a' is another HDFS than 'hdfs://ns/a', whose token is given"):
        await find_login("hdfs://other/a", token=token)


async def test_a_given_token_needs_nothing_of_the_environment(file: Path) -> None:
    """An executor may run where another process has a token file and a configuration: it uses neither."""
    await asyncio.to_thread(file.write_bytes, b"garbage")
    await asyncio.to_thread((file.parent / "conf" / "core-site.xml").write_text, "garbage")
    token = StorageToken(root="hdfs://ns/a", namenodes="nn1:8020", token=TOKEN, security=HdfsSecurity(is_kerberos=True))
    found = await find_login("hdfs://ns/a", token=token)
    identity = found.make_identity()
    assert isinstance(identity, DelegatedAuthenticator)
    assert identity.token == TOKEN
    assert not await identity.has_another(), "nothing takes the place of a refused token"


async def test_an_open_root_needs_no_token() -> None:
    assert await fetch_storage_token("file:///a") is None
    assert await fetch_storage_token("hdfs://127.0.0.1:9/a") is None


@contextlib.asynccontextmanager
async def namenodes(
    *scripts: list[Script], identity: Authenticator, settings: HdfsSettings = PATIENT
) -> AsyncIterator[tuple[NameNode, list[list[SecureServer]]]]:
    """Yield a client of servers, each of which plays its scripts in turn, a connection each."""
    async with contextlib.AsyncExitStack() as stack:
        addresses, servers = [], []
        for plays in scripts:
            played = [SecureServer(play) for play in plays]
            turn = iter(played)

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn=turn) -> None:  # type: ignore[no-untyped-def]
                await next(turn).serve(reader, writer)

            listening = await asyncio.start_server(serve, "127.0.0.1", 0)
            for server in played:
                stack.push_async_callback(server.close)
            stack.callback(listening.close)
            addresses.append(("127.0.0.1", int(listening.sockets[0].getsockname()[1])))
            servers.append(played)
        client = NameNode(addresses, settings, identity)
        stack.push_async_callback(client.close)
        yield client, servers


async def test_a_refused_token_is_an_error_at_once_that_says_what_to_do() -> None:
    identity = DelegatedAuthenticator(GivenToken(TOKEN))
    async with namenodes([[OFFERS, GONE]], identity=identity) as (client, _):
        with pytest.raises(
            CannotLogIn,
            match=r"isFileClosed /x: the log-in by the delegation token 300 of alice by spark: InvalidToken: .*"
            r"can't be found in cache \(the delegation token has expired or was cancelled: fetch another",
        ):
            await client.is_file_closed("/x")


async def test_a_standby_is_left_for_the_namenode_that_refuses_the_token() -> None:
    identity = DelegatedAuthenticator(GivenToken(TOKEN))
    async with namenodes([[OFFERS, STANDBY]], [[OFFERS, GONE]], identity=identity) as (client, _):
        with pytest.raises(CannotLogIn, match="can't be found in cache"):
            await client.is_file_closed("/x")


async def test_an_observer_that_does_not_know_a_new_token_yet_is_left_for_the_active_namenode() -> None:
    """An observer is behind the active NameNode, and refuses the token as if it had ended."""
    scripts: list[list[Script]] = [[[NEGOTIATE, GONE]], [[NEGOTIATE, STANDBY]], [WHOLE]]
    async with namenodes(*scripts, identity=Password()) as (client, _):
        assert await client.is_file_closed("/x")


@pytest.mark.slow
async def test_an_observers_refusal_is_not_final_while_a_namenode_does_not_respond() -> None:
    lost: Script = [b"\xff\xff\xff\xff"]
    scripts: list[list[Script]] = [[[NEGOTIATE, GONE]] * 3, [lost, lost, WHOLE]]
    async with namenodes(*scripts, identity=Password()) as (client, _):
        assert await client.is_file_closed("/x")


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
async def test_a_token_that_has_ended_is_the_error_also_beside_a_dead_namenode(dead: int) -> None:
    """The text says what to do, in whatever order the NameNodes are called last."""
    lost: Script = [b"\xff\xff\xff\xff"]
    settings = replace(PATIENT, call_deadline_s=0.3)
    scripts: list[list[Script]] = [[lost] * 100, [lost] * 100]
    scripts[1 - dead] = [[NEGOTIATE, GONE]] * 100
    async with namenodes(*scripts, identity=Password(), settings=settings) as (client, _):
        with pytest.raises(CannotLogIn, match=r"can't be found in cache \(the delegation token has expired"):
            await client.is_file_closed("/x")


async def test_kerberos_beside_a_refused_token_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    kerberos = Password()
    identity = DelegatedAuthenticator(GivenToken(TOKEN), make_kerberos=lambda: kerberos)
    async with namenodes([[OFFERS, GONE], WHOLE], identity=identity, settings=PATIENT) as (client, ((first, second),)):
        assert await client.is_file_closed("/x")
    assert [message.auths[0].method for message in first.messages[1:]] == ["TOKEN"]
    assert [message.auths[0].method for message in second.messages[1:2]] == ["KERBEROS"]
    assert "HDFS refuses the delegation token 300 of alice by spark: the log-in by alice is used" in caplog.text


async def test_without_the_library_of_kerberos_the_error_is_the_tokens(caplog: pytest.LogCaptureFixture) -> None:
    def make_kerberos() -> Authenticator:
        raise Unsupported("needs pip install 'bmq[kerberos]'")

    identity = DelegatedAuthenticator(GivenToken(TOKEN), make_kerberos=make_kerberos)
    async with namenodes([[OFFERS, GONE]], identity=identity) as (client, _):
        with pytest.raises(CannotLogIn, match="can't be found in cache"):
            await client.is_file_closed("/x")
    assert "Kerberos cannot take the place of a refused token" in caplog.text


def put(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def read_from(file: Path, *services: str, wait_s: float = 60.0) -> FileToken:
    paths = (str(file),)
    return FileToken(paths, services, TOKEN, file_states(paths), wait_s=wait_s)


async def test_another_token_in_the_file_is_used_after_a_refusal(file: Path) -> None:
    identity = DelegatedAuthenticator(read_from(file, "127.0.0.1:8020", "ha-hdfs:nameservice"))
    identity.negotiate("nn1:8020")
    replaced = file.with_name("new")
    replaced.write_bytes(WRITABLE.replace(b"\x13ha-hdfs:nameservice", b"\x0fha-hdfs:another"))
    os.replace(replaced, file)
    assert await identity.has_another()
    identity.negotiate("nn1:8020")
    assert str(identity) == f"the delegation token 1 of Jürgen in {file}"
    assert not await identity.has_another(), "the NameNode has refused this one, too"


async def test_the_tokens_end_is_a_metric(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logins = StorageLogins(lambda: 0.0)
    monkeypatch.setattr(token_login, "LOGINS", logins)
    tokens = read_from(file, "ha-hdfs:nameservice")
    assert logins.token_left_s == TOKEN.ends_ms / 1000 > 0
    logins.token_ends(None)
    put(file, WRITABLE + b" ")
    await tokens.refresh()
    assert logins.token_left_s == tokens.current().ends_ms / 1000 > 0


async def test_a_file_that_is_damaged_or_gone_later_leaves_the_former_token(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = read_from(file, "ha-hdfs:nameservice")

    async def current() -> HadoopToken:
        await tokens.refresh()
        return tokens.current()

    put(file, b"garbage")
    assert await current() == TOKEN
    os.unlink(file)
    assert await current() == TOKEN
    assert len(caplog.records) == 2
    put(file, PROTOBUF)
    assert await current() == TOKEN
    assert len(caplog.records) == 2


async def test_a_file_that_changes_before_the_identity_is_made_is_read_at_the_first_log_in(file: Path) -> None:
    found = await find_login("hdfs://nameservice/a")
    put(file, PROTOBUF.replace(b"alice", b"carol"))
    identity = found.make_identity()
    assert isinstance(identity, DelegatedAuthenticator)
    await identity.refresh()
    assert "the delegation token 300 of carol" in str(identity)


async def test_a_token_file_on_a_silent_disk_stops_neither_the_loop_nor_the_log_in(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hang the disk of the token file: log-ins share one thread, and go on with the token that they have."""
    threads: list[int] = []
    may_go_on = threading.Event()

    def states(paths: tuple[str, ...]) -> tuple[FileState, ...]:
        threads.append(threading.get_ident())
        assert may_go_on.wait(10)
        return file_states(paths)

    tokens = read_from(file, "ha-hdfs:nameservice", wait_s=0.01)
    put(file, PROTOBUF.replace(b"alice", b"carol"))
    monkeypatch.setattr(token_login, "file_states", states)
    await asyncio.gather(*(tokens.refresh() for _ in range(10)))
    assert tokens.current() == TOKEN
    assert "no response of a token file's disk" in caplog.text
    may_go_on.set()
    assert tokens._reading is not None
    await tokens._reading
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert "of carol" in str(tokens.current()), "the disk has responded later"
    await tokens.refresh()
    assert len(threads) == 2


def reading_threads() -> int:
    return sum(thread.name == "hdfs-token-file" and thread.is_alive() for thread in threading.enumerate())


async def test_a_closed_identity_leaves_no_thread(file: Path) -> None:
    """Open and close identities, as the console does for the state of the NameNodes and doctor for each of them."""
    before = reading_threads()
    for _ in range(20):
        identity = DelegatedAuthenticator(read_from(file, "ha-hdfs:nameservice"))
        await identity.refresh()
        identity.close()
        identity.close()
    await until(lambda: reading_threads() <= before, 20.0)


async def test_a_log_in_that_outlives_its_identity_goes_on_with_the_token(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Close the identity while the disk of the token file is silent, and during the next refresh."""
    is_reading, may_go_on = threading.Event(), threading.Event()

    def states(paths: tuple[str, ...]) -> tuple[FileState, ...]:
        is_reading.set()
        assert may_go_on.wait(10)
        return ()

    before = reading_threads()
    tokens = read_from(file, "ha-hdfs:nameservice")
    monkeypatch.setattr(token_login, "file_states", states)
    identity = DelegatedAuthenticator(tokens, make_kerberos=lambda: pytest.fail("nobody would close it"))
    refreshing = asyncio.create_task(identity.has_another())
    await until(is_reading.is_set)
    identity.close()
    assert not await refreshing
    await identity.refresh()
    assert identity.token == TOKEN
    may_go_on.set()
    await until(lambda: reading_threads() <= before, 20.0)
