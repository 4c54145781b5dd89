"""The log-in to a NameNode by Kerberos, on a real secure HDFS: Java's client first, then BMQ's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.storage.filesystem import NotAllowed
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.hdfs.auth import KerberosAuthenticator, SimpleAuthenticator, make_authenticator
from bmq.storage.hdfs.name_service import read_config, resolve
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.principals import ServerPrincipal
from bmq.storage.hdfs.sasl import LoginFailed
from bmq.storage.hdfs.security import read_security
from bmq.storage.hdfs.settings import HdfsSettings
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import write_conf
from tests.services.hdfs_security import SERVER_HOST
from tests.services.hdfs_tools import ToolFailed, hdfs_tool
from tests.services.kdc import REALM, Kdc
from tests.services.processes import free_ports, wait_for

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")
import gssapi
from gssapi.raw.misc import GSSError

from bmq.storage.hdfs.kerberos import KerberosLogin
from bmq.storage.hdfs.keytab_tickets import REPLACE_S, KeytabTickets, life_s, used

pytestmark = pytest.mark.loops("asyncio")


@pytest.fixture(scope="module")
def tickets(secure_hdfs: HdfsCluster) -> str:
    """Return the credentials cache of the user alice."""
    assert secure_hdfs.security is not None
    return secure_hdfs.security.kdc.log_in(f"alice@{REALM}")


@pytest.fixture(scope="module")
def words(secure_hdfs: HdfsCluster, tickets: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a file that Java's client has written."""
    source = tmp_path_factory.mktemp("words") / "words"
    source.write_text("twelve\nwords\n")
    hdfs_tool(secure_hdfs, "dfs", "-put", str(source), "/words", tickets=tickets)
    return "/words"


def test_javas_client_writes_and_reads_with_a_ticket_and_not_without_one(
    secure_hdfs: HdfsCluster, tickets: str, words: str, tmp_path: Path
) -> None:
    assert hdfs_tool(secure_hdfs, "dfs", "-cat", words, tickets=tickets) == ["twelve", "words"]
    with pytest.raises(ToolFailed, match="AccessControlException"):
        hdfs_tool(secure_hdfs, "dfs", "-cat", words, tickets=f"FILE:{tmp_path}/none")


@contextlib.asynccontextmanager
async def namenode(secure_hdfs: HdfsCluster, login: HdfsLogin = NO_HDFS_LOGIN) -> AsyncIterator[NameNode]:
    """Yield a client of the cluster's NameNode, by the configuration that its clients have."""
    config = read_config(str(secure_hdfs.conf_folder))
    address = resolve(f"{secure_hdfs.root}/", config)
    identity = make_authenticator(read_security(config), login)
    client = NameNode(address.namenodes, HdfsSettings(), identity)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def kdc(secure_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """Return the cluster's realm, which this process uses too; it has no tickets."""
    assert secure_hdfs.security is not None
    realm = secure_hdfs.security.kdc
    monkeypatch.setenv("KRB5_CONFIG", realm.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{realm.folder}/none")
    return realm


async def use_the_namespace(client: NameNode, user: str, words: str) -> None:
    folder = f"/by-{user}"
    await client.mkdirs(f"{folder}/a")
    await client.rename(f"{folder}/a", f"{folder}/b", overwrite=False)
    listing = await client.listing(folder, b"")
    assert listing is not None
    assert [entry.path for entry in listing.entries] == [b"b"]
    info = await client.file_info(f"{folder}/b")
    assert info is not None
    assert info.owner == user, "the user is the ticket's, and no name of this process"
    assert await client.delete(folder, recursive=True)
    assert await client.file_info(folder) is None
    blocks = (await client.block_locations(words)).blocks
    assert [len(block.nodes) for block in blocks] == [3]
    assert blocks[0].token.kind == "HDFS_BLOCK_TOKEN"
    assert blocks[0].token.identifier


async def test_a_keytab_logs_in_and_its_user_owns_what_it_makes(
    secure_hdfs: HdfsCluster, kdc: Kdc, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    before = dict(os.environ)
    keytab = str(kdc.add_service(f"bmq/{SERVER_HOST}@{REALM}"))
    async with namenode(secure_hdfs, HdfsLogin(keytab, f"bmq/{SERVER_HOST}@{REALM}")) as client:
        await use_the_namespace(client, "bmq", words)
    async with namenode(secure_hdfs, HdfsLogin(keytab)) as client:
        await use_the_namespace(client, "bmq", words)
    assert dict(os.environ) == before, "a listener's Kerberos in the same process reads the environment"


async def test_a_ticket_cache_logs_in(
    secure_hdfs: HdfsCluster, kdc: Kdc, tickets: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", tickets)
    async with namenode(secure_hdfs) as client:
        await use_the_namespace(client, "alice", words)
        assert not await client.is_in_safe_mode()


@pytest.mark.parametrize("host", [SERVER_HOST, SERVER_HOST.upper()])
async def test_a_namenode_that_the_url_spells_otherwise_is_logged_in_at_by_kerberos_too(
    secure_hdfs: HdfsCluster, kdc: Kdc, tickets: str, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The configuration names it by its address.  Simple authentication must not take Kerberos's place."""
    monkeypatch.setenv("KRB5CCNAME", tickets)
    assert "127.0.0.1" in secure_hdfs.root
    root = secure_hdfs.root.replace("127.0.0.1", host)
    fs = await HdfsFileSystem.open(f"{root}/", holder="h", conf_folder=str(secure_hdfs.conf_folder))
    try:
        assert (await fs.status("/")).is_dir
    finally:
        await fs.close()


async def test_many_log_ins_at_once(secure_hdfs: HdfsCluster, kdc: Kdc) -> None:
    login = HdfsLogin(str(kdc.add_service(f"many@{REALM}")))

    async def ask() -> bool:
        async with namenode(secure_hdfs, login) as client:
            return await client.file_info("/") is not None

    assert all(await asyncio.gather(*(ask() for _ in range(20))))


async def test_a_client_without_kerberos_is_refused_with_what_to_set(secure_hdfs: HdfsCluster) -> None:
    client = NameNode(secure_hdfs.namenode_addresses, HdfsSettings(), SimpleAuthenticator("alice"))
    with pytest.raises(NotAllowed, match=r"demands Kerberos: then hadoop_conf_dir must have its configuration"):
        await client.server_defaults()
    await client.close()


async def test_a_namenode_of_another_principal_is_not_logged_in_at(secure_hdfs: HdfsCluster, kdc: Kdc) -> None:
    login = HdfsLogin(str(kdc.add_service(f"strict@{REALM}")))
    kerberos = KerberosLogin("", login.keytab)
    identity = KerberosAuthenticator(kerberos, ServerPrincipal(f"nn/other.example.org@{REALM}", "", "conf"))
    client = NameNode(secure_hdfs.namenode_addresses, HdfsSettings(), identity)
    with pytest.raises(NotAllowed, match=rf"has the principal 'nn/localhost@{REALM}'; conf has .*other\.example\.org"):
        await client.server_defaults()
    await client.close()


@dataclass
class ShortTickets:
    """A realm whose tickets live for 30 s, the keytab of a user, and his login by a clock of the test."""

    kdc: Kdc
    keytab: Path
    login: KerberosLogin
    now: float = 0.0

    @property
    def tickets(self) -> KeytabTickets:
        assert self.login._tickets is not None
        return self.login._tickets

    def renewed(self) -> gssapi.Credentials:
        """Return the credentials after the renewal that is under way."""
        assert self.tickets._renewal is not None
        self.tickets._renewal.result(timeout=60)
        return self.login.credentials()

    def has_cache(self, name: str) -> bool:
        try:
            used(gssapi.Credentials(usage="initiate", store={"ccache": name}))
        except gssapi.exceptions.MissingCredentialsError:
            return False
        return True


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortTickets]:
    with Kdc(max_life="30s") as kdc:
        monkeypatch.setenv("KRB5_CONFIG", kdc.environment["KRB5_CONFIG"])
        keytab = kdc.add_service(f"short@{REALM}")
        made = ShortTickets(kdc, keytab, KerberosLogin(f"short@{REALM}", str(keytab), clock=lambda: made.now))
        yield made
        made.login.close()


def test_a_keytabs_ticket_is_renewed_before_it_ends_and_outlives_the_kdc(short: ShortTickets) -> None:
    first = short.login.credentials()
    assert 0 < first.lifetime <= 30
    short.now = 0.8 * 30
    assert short.login.credentials() is first, "a log-in does not wait for the renewal"
    second = short.renewed()
    assert second is not first
    short.kdc.process.kill()
    short.now += 0.8 * 30
    assert short.login.credentials() is second
    assert short.renewed() is second, "the KDC is away, and the ticket has not ended"


def test_a_log_in_does_not_wait_for_a_kdc_that_is_silent(short: ShortTickets) -> None:
    """The library waits for such a KDC for most of a minute, and for a ticket that has ended so do log-ins."""
    first = short.login.credentials()
    short.kdc.process.pause()
    try:
        for _ in range(3):
            short.now += 0.8 * 30
            assert short.login.credentials() is first
        assert short.tickets._renewal is not None
        assert not short.tickets._renewal.done()
    finally:
        short.kdc.process.resume()
    assert short.renewed() is not first


def test_replaced_tickets_leave_memory(short: ShortTickets) -> None:
    caches = []
    for _ in range(4):
        short.login.credentials()
        short.renewed()
        assert short.tickets._held is not None
        caches.append(short.tickets._held.cache)
        short.now += 0.8 * 30
    assert len(set(caches)) == 4
    assert [short.has_cache(name) for name in caches] == [False, False, True, True], "a log-in may use the former one"
    short.login.close()
    assert not any(short.has_cache(name) for name in caches)


def test_a_renewal_brings_the_servers_ticket_too(short: ShortTickets) -> None:
    """The KDC ends after a renewal: the next log-in at the NameNode needs no KDC."""
    server = f"nn/{SERVER_HOST}@{REALM}"
    short.kdc.add_service(server)
    short.login.note_server(server)
    first = short.login.credentials()
    short.now = 0.8 * 30
    short.login.credentials()
    second = short.renewed()
    assert second is not first
    short.kdc.process.kill()
    context = gssapi.SecurityContext(
        name=gssapi.Name(server, gssapi.NameType.kerberos_principal), creds=short.login.credentials(), usage="initiate"
    )
    assert context.step()


def test_a_server_that_the_kdc_does_not_know_any_more_is_forgotten(short: ShortTickets) -> None:
    server = f"nn/{SERVER_HOST}@{REALM}"
    short.kdc.add_service(server)
    for each in (f"nn/gone@{REALM}", server):
        short.login.note_server(each)
    first = short.login.credentials()
    short.now = 0.8 * 30
    short.login.credentials()
    assert short.renewed() is not first
    assert list(short.tickets._servers) == [server]


def test_a_server_with_another_key_takes_a_replaced_ticket(short: ShortTickets) -> None:
    """Give the NameNode a new keytab, without its old keys, and restart it: the ticket in the cache has the old key."""
    server = f"nn/{SERVER_HOST}@{REALM}"
    name = gssapi.Name(server, gssapi.NameType.kerberos_principal)
    keytab = short.kdc.add_service(server)

    def log_in() -> None:
        store: dict[bytes | str, bytes | str] = {"keytab": f"FILE:{keytab}", "rcache": "none:"}
        own = gssapi.Credentials(name=name, usage="accept", store=store)
        accepting = gssapi.SecurityContext(creds=own, usage="accept")
        accepting.step(gssapi.SecurityContext(name=name, creds=short.login.credentials(), usage="initiate").step())
        assert accepting.complete  # raises the error of the step

    log_in()
    keytab.unlink()
    short.kdc.change_key(server, keytab)
    for _ in range(2):
        with pytest.raises(GSSError):
            log_in()
    short.now = REPLACE_S
    short.login.replace_ticket()
    short.tickets._thread.submit(lambda: None).result(timeout=60)
    log_in()


def test_a_keytab_is_rotated_without_a_restart(short: ShortTickets) -> None:
    """The KDC has the new key before the file: the former ticket is used meanwhile."""
    first = short.login.credentials()
    old = short.keytab.read_bytes()
    short.kdc.change_key(f"short@{REALM}", short.keytab)
    new = short.keytab.read_bytes()
    short.keytab.write_bytes(old)
    short.now = 0.8 * 30
    assert short.login.credentials() is first
    assert short.renewed() is first
    short.keytab.write_bytes(new)
    short.now += 0.8 * 30
    short.login.credentials()
    assert short.renewed() is not first


@pytest.mark.parametrize("how", ["removed", "unreadable", "another's"])
def test_a_ticket_is_used_to_its_end_whatever_becomes_of_the_keytab(short: ShortTickets, how: str) -> None:
    other = short.kdc.add_service(f"other@{REALM}")
    first = short.login.credentials()
    if how == "removed":
        short.keytab.unlink()
    elif how == "unreadable":
        short.keytab.unlink()
        short.keytab.mkdir()
    else:
        short.keytab.write_bytes(other.read_bytes())
    short.now = 0.8 * 30
    assert short.login.credentials() is first
    assert short.renewed() is first


async def test_a_kdc_that_is_away_when_the_ticket_has_ended_is_told_as_such(short: ShortTickets) -> None:
    short.login.credentials()
    short.kdc.process.kill()
    wait_for(lambda: not life_s(short.login._tickets._held.credentials), "the end of a ticket", timeout_s=60)  # type: ignore[union-attr]
    with pytest.raises(LoginFailed, match=r"\(no KDC responds; no Kerberos log-in since ") as failed:
        await short.login.run(short.login.credentials)
    assert not failed.value.is_final


async def test_a_kdc_that_is_away_is_told_as_such_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Kdc() as kdc:
        monkeypatch.setenv("KRB5_CONFIG", kdc.environment["KRB5_CONFIG"])
        login = KerberosLogin(f"early@{REALM}", str(kdc.add_service(f"early@{REALM}")))
        kdc.process.kill()
        with pytest.raises(
            LoginFailed, match=rf"as early@{REALM} of the keytab .* \(no KDC responds; no Kerberos log-in since .*\)"
        ) as failed:
            await login.run(login.credentials)
        assert not failed.value.is_final
        kdc.start()
        assert (await login.run(login.credentials)).lifetime
        login.close()


def serve(secure_hdfs: HdfsCluster, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `bmq serve` on the secure HDFS to its end."""
    port, internal, http = free_ports(3)
    command = [
        str(Path(sys.executable).with_name("bmq")), "serve", "--root", f"{secure_hdfs.root}/bmq", "--meta", "memory:",
        "--hadoop-conf-dir", str(secure_hdfs.conf_folder), "--listen", f"127.0.0.1:{port}",
        "--internal", f"127.0.0.1:{internal}", "--http", f"127.0.0.1:{http}", *arguments,
    ]  # fmt: skip
    names = {name: value for name, value in os.environ.items() if not name.startswith(("HADOOP", "BMQ_"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**names, **environment}
    )


def expired(kdc: Kdc) -> str:
    """Return a ticket cache whose ticket is over."""
    cache = kdc.log_in(f"late@{REALM}", life="2s")

    def is_over() -> bool:
        return subprocess.run(["klist", "-s", cache], check=False).returncode != 0

    wait_for(is_over, "the end of a ticket", timeout_s=30)
    return cache


def test_a_server_that_cannot_log_in_ends_before_it_binds_a_port(
    secure_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path
) -> None:
    keytab = str(kdc.add_service(f"right@{REALM}"))
    stale = tmp_path / "stale.keytab"
    stale.write_bytes(Path(keytab).read_bytes())
    kdc.change_key(f"right@{REALM}", Path(keytab))
    open_conf = tmp_path / "open"
    write_conf(open_conf, {"fs.defaultFS": secure_hdfs.root})
    unknown = tmp_path / "unknown"
    write_conf(unknown, {**secure_hdfs.client_settings, "hadoop.rpc.protection": "secret"})
    higher = tmp_path / "higher"
    write_conf(higher, {**secure_hdfs.client_settings, "hadoop.rpc.protection": "privacy,integrity"})
    private = tmp_path / "private"
    write_conf(private, {**secure_hdfs.client_settings, "dfs.data.transfer.protection": "privacy"})
    encrypted = tmp_path / "encrypted"
    write_conf(encrypted, {**secure_hdfs.client_settings, "dfs.encrypt.data.transfer": "true"})
    other = tmp_path / "other"
    write_conf(other, {**secure_hdfs.client_settings, "dfs.namenode.kerberos.principal": f"nn/elsewhere@{REALM}"})
    cases: list[tuple[dict[str, str], str]] = [
        ({"BMQ_HDFS_KEYTAB": "/no/such.keytab"}, "the keytab /no/such.keytab does not exist"),
        ({"BMQ_HDFS_KEYTAB": str(tmp_path)}, "is no keytab"),
        (
            {"BMQ_HDFS_KEYTAB": keytab, "BMQ_HDFS_PRINCIPAL": f"wrong@{REALM}"},
            f"cannot log in to Kerberos as wrong@{REALM} of the keytab {keytab}: ",
        ),
        ({"BMQ_HDFS_KEYTAB": str(stale)}, f"of the keytab {stale}: "),
        ({}, f"the ticket cache FILE:{kdc.folder}/none: "),
        ({"KRB5CCNAME": expired(kdc)}, "expired"),
        ({"BMQ_HADOOP_CONF_DIR": str(unknown)}, f"{unknown}: hadoop.rpc.protection=secret is none of authentication,"),
        (
            {"BMQ_HADOOP_CONF_DIR": str(higher), "BMQ_HDFS_KEYTAB": keytab},
            "offers hadoop.rpc.protection=authentication; this client has hadoop.rpc.protection=privacy,integrity",
        ),
        (
            {"BMQ_HADOOP_CONF_DIR": str(open_conf), "BMQ_HDFS_KEYTAB": keytab},
            f"hdfs_keytab is set, but hadoop.security.authentication is not kerberos in {open_conf}",
        ),
        ({"BMQ_HADOOP_CONF_DIR": str(other), "BMQ_HDFS_KEYTAB": keytab}, "has the principal 'nn/localhost@"),
        (
            {"BMQ_HADOOP_CONF_DIR": str(private), "BMQ_HDFS_KEYTAB": keytab},
            "demands dfs.data.transfer.protection=authentication; this client has dfs.data.transfer.protection=privacy",
        ),
        (
            {"BMQ_HADOOP_CONF_DIR": str(encrypted), "BMQ_HDFS_KEYTAB": keytab},
            f"the NameNode has dfs.encrypt.data.transfer=false, and {encrypted} has true",
        ),
    ]
    for environment, said in cases:
        conf = environment.pop("BMQ_HADOOP_CONF_DIR", str(secure_hdfs.conf_folder))
        done = serve(secure_hdfs, "--hadoop-conf-dir", conf, **environment)
        errors = done.stderr.splitlines()
        assert (done.returncode, said in errors[-1]) == (1, True), (environment, done.stderr[-3000:])
        assert "listening" not in done.stderr
        assert "Traceback" not in done.stderr
