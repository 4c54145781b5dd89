"""The check of the log-in to a secure HDFS, step by step, for an operator.

=================  ==================================================================================
step               shows
=================  ==================================================================================
krb5.conf          the file is there, the library reads it, and it names the realm's KDCs
clock              by how much the KDC's clock differs
keytab             the principal's entries with their key version numbers; without a keytab nothing
ticket             the KDC gives a ticket, and for how long
token              in place of the four above: the delegation token of HADOOP_TOKEN_FILE_LOCATION, and its end
NameNode h:p       the log-in succeeds, and the level of ``hadoop.rpc.protection``
rights             this process's user, and whether the user may write to the root
datanode h:p       the handshake succeeds, and its level and cipher
=================  ==================================================================================

The steps before the NameNodes show the credentials, and depend on the way of the log-in (``way_of``).  After a
failed step the steps behind it are not checked.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TypeVar

from bmq.core.extras import how_to_install
from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CannotLogIn, NotAllowed, StorageError, Unsupported
from bmq.storage.hdfs.auth import Authenticator
from bmq.storage.hdfs.delegation_token import HadoopToken
from bmq.storage.hdfs.errors import RemoteError
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.keytab_file import KEYTAB_BYTES_MAX, KeytabEntry, parse_keytab
from bmq.storage.hdfs.krb5_conf import Krb5Conf, Krb5ConfError, ask_clock, read_conf
from bmq.storage.hdfs.login import ClusterLogin, find_login
from bmq.storage.hdfs.principals import own_principal
from bmq.storage.hdfs.rpc import NAMENODE_PROTOCOL, RpcConnection, RpcConnectionLost
from bmq.storage.hdfs.sasl import LoginFailed
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.health import FAILED, NOT_CHECKED, OK, LoginStep

SKEW_MOST_S = 300.0
"""Kerberos's usual bound of the difference between two clocks (``clockskew``)."""
T = TypeVar("T")
Check = Callable[[], Awaitable[bool]]
"""A step, or some: whether the next one can be checked."""


class LoginWay(Enum):
    """A proof of this process's identity to a secure HDFS."""

    KEYTAB = "keytab"
    TOKEN = "token"
    TICKET_CACHE = "ticket cache"


def way_of(login: HdfsLogin, token: HadoopToken | None) -> LoginWay:
    """Return the way of the log-in, by which the doctor chooses the steps of the credentials.  Pure."""
    if login.keytab:
        return LoginWay.KEYTAB
    return LoginWay.TICKET_CACHE if token is None else LoginWay.TOKEN


_ASK_CONF = (
    "ask the Kerberos administrator for the realm's krb5.conf; KRB5_CONFIG names another file than /etc/krb5.conf"
)
_ASK_CLOCK = "run an NTP client (chrony) here and on the KDC: Kerberos allows 5 minutes"
_ASK_KDC = "ask the Kerberos administrator whether the KDC is up, and whether this machine may reach its port 88 (TCP)"
_ASK_PRINCIPAL = (
    "ask the Kerberos administrator whether the principal exists, is not locked, and has the keytab's key version"
    " number (kadmin: getprinc PRINCIPAL)"
)
_ASK_TICKET = "run kinit as this process's user, or give hdfs_keytab and hdfs_principal"
_ASK_TOKEN = "fetch another token with a ticket: hdfs fetchdt --renewer USER FILE (docs/operations/hdfs.md)"
_ASK_ROOT = "choose another root (docs/operations/hdfs.md)"
_ASK_RIGHTS = (
    "ask the Hadoop administrator to run, as an HDFS superuser: hdfs dfs -mkdir -p ROOT; hdfs dfs -chown USER ROOT;"
    " hdfs dfs -chmod 750 ROOT"
)
_ASK_SITE = (
    "ask the Hadoop administrator for core-site.xml and hdfs-site.xml of this cluster: above all"
    " dfs.namenode.kerberos.principal and hadoop.rpc.protection. The NameNode's log has the reason of a refusal"
)


def rights_remedy(error: StorageError | TimeoutError) -> str:
    """Return the remedy for an error of the root: for missing rights, or for a root of no use (a zone).  Pure."""
    is_of_root = isinstance(error, Unsupported) and not isinstance(error, NotAllowed)
    return _ASK_ROOT if is_of_root else _ASK_RIGHTS


class LoginCheck:
    """The check of one root.  ``run`` it once."""

    def __init__(self, url: str, conf_folder: str, login: HdfsLogin, timeout_s: float) -> None:
        """Take the root's settings as ``HdfsFileSystem.open``; each step is bounded by ``timeout_s``."""
        self._url = url
        self._conf_folder = conf_folder
        self._login = login
        self._timeout_s = timeout_s
        self._steps: list[LoginStep] = []

    async def run(self) -> list[LoginStep]:
        """Return the steps; none for a root without Kerberos.  Raises ValueError for settings of no cluster."""
        try:
            found = await find_login(self._url, conf_folder=self._conf_folder, login=self._login)
        except CannotLogIn as error:
            self._failed("token", str(error), _ASK_TOKEN)
            return self._steps
        if not found.security.is_kerberos and found.token is None:
            return []
        principal = own_principal(self._login.principal)
        credentials: dict[LoginWay, list[tuple[str, Check]]] = {
            LoginWay.KEYTAB: [
                ("krb5.conf, clock", lambda: self._check_realm(principal)),
                ("keytab", lambda: self._check_keytab(principal)),
                ("ticket", lambda: self._check_ticket(_ASK_PRINCIPAL)),
            ],
            LoginWay.TOKEN: [("token", lambda: self._check_token(found.token))],
            LoginWay.TICKET_CACHE: [
                ("krb5.conf, clock", lambda: self._check_realm(principal)),
                ("keytab", self._name_cache),
                ("ticket", lambda: self._check_ticket(_ASK_TICKET)),
            ],
        }
        checks: list[tuple[str, Check]] = [
            *credentials[way_of(self._login, found.token)],
            ("NameNodes", lambda: self._check_namenodes(found)),
            ("rights, datanodes", self._check_files),
        ]
        is_open = True
        for name, check in checks:
            if is_open:
                is_open = await check()
            else:
                self._steps += [LoginStep(each, NOT_CHECKED, "an earlier step failed") for each in name.split(", ")]
        return self._steps

    # ---- the steps: each returns whether the next one can be checked

    async def _check_realm(self, principal: str) -> bool:
        name, _, realm = principal.partition("@")
        try:
            conf = await asyncio.to_thread(read_conf, realm)
        except Krb5ConfError as error:
            return self._failed("krb5.conf", str(error), _ASK_CONF)
        realm = realm or conf.realm
        if not realm:
            return self._failed(
                "krb5.conf", f"{conf.paths} has no default_realm, and hdfs_principal no realm", _ASK_CONF
            )
        kdcs = ", ".join(conf.kdcs) or "those that DNS names (_kerberos._udp)"
        self._passed("krb5.conf", f"{conf.paths}: realm {realm}, KDCs {kdcs}")
        await self._check_clock(conf, name or "bmq", realm)
        return True  # a ticket cache needs no KDC

    async def _check_clock(self, conf: Krb5Conf, name: str, realm: str) -> None:
        try:
            difference = await asyncio.to_thread(ask_clock, conf, name, realm, self._timeout_s)
        except OSError as error:
            self._failed("clock", str(error), _ASK_KDC)
        except ValueError as error:
            self._steps.append(LoginStep("clock", NOT_CHECKED, str(error)))
        else:
            if abs(difference.ahead_s) > SKEW_MOST_S:
                self._failed("clock", difference.text, _ASK_CLOCK)
            else:
                self._passed("clock", difference.text)

    async def _name_cache(self) -> bool:
        cache = os.environ.get("KRB5CCNAME", "that krb5.conf names")
        self._steps.append(LoginStep("keytab", NOT_CHECKED, f"hdfs_keytab is not set: the ticket cache is {cache}"))
        return True

    async def _check_keytab(self, principal: str) -> bool:
        path = self._login.keytab
        remedy = (
            f"ask the Kerberos administrator for a keytab of {principal or 'the principal'} (kadmin: ktadd -k FILE)"
        )
        try:
            entries = await asyncio.to_thread(_read_keytab, path)
        except (OSError, ValueError) as error:
            return self._failed("keytab", f"{path}: {error}", f"{remedy}, which this user can read")
        found = _of_principal(entries, principal)
        if not found:
            names = ", ".join(dict.fromkeys(entry.principal for entry in entries)) or "no principal"
            return self._failed("keytab", f"{path} has {names}, and not {principal or 'one'}", remedy)
        newest = max(entry.number for entry in found)
        kinds = ", ".join(entry.encryption for entry in found if entry.number == newest)
        self._passed("keytab", f"{path}: {found[0].principal}, key version number {newest}, {kinds}")
        return True

    async def _check_ticket(self, remedy: str) -> bool:
        try:
            from bmq.storage.hdfs.kerberos import KerberosLogin
            from bmq.storage.hdfs.keytab_tickets import life_s
        except (ImportError, OSError) as error:
            return self._failed("ticket", f"Kerberos's library is not here: {error}", how_to_install("kerberos"))
        kerberos = KerberosLogin(own_principal(self._login.principal), self._login.keytab)

        def acquire() -> tuple[str, float]:
            credentials = kerberos.credentials()
            return str(credentials.name), life_s(credentials)

        try:
            name, left_s = await self._bounded(kerberos.run(acquire))
        except LoginFailed as error:
            return self._failed("ticket", str(error), remedy)
        except TimeoutError:
            return self._failed("ticket", f"no answer of the KDC within {self._timeout_s:g} s", _ASK_KDC)
        finally:
            kerberos.close()
        self._passed("ticket", f"of {name}, for another {left_s:.0f} s")
        return True

    async def _check_token(self, token: HadoopToken | None) -> bool:
        assert token is not None  # by ``way_of``
        end = datetime.fromtimestamp(token.ends_ms / 1000, UTC).isoformat(timespec="seconds")
        if not token.ends_ms:  # of a later version: the NameNode judges it
            self._passed("token", str(token))
        elif token.ends_ms < time.time() * 1000:
            return self._failed("token", f"{token} ended at {end}", _ASK_TOKEN)
        else:
            self._passed("token", f"{token} ends at {end}, even if it is renewed")
        return True

    async def _check_namenodes(self, found: ClusterLogin) -> bool:
        """Log in at each NameNode, whether or not another NameNode is down."""
        settings = HdfsSettings()
        settings = replace(settings, login_timeout_s=min(settings.login_timeout_s, self._timeout_s))
        has_any = False
        for host, port in found.address.namenodes:
            subject = f"NameNode {host}:{port}"
            try:
                identity = found.make_identity()
            except (StorageError, ValueError) as error:
                return self._failed(subject, str(error), _ASK_SITE)
            try:
                level = await _log_in(host, port, identity, settings)
            except LoginFailed as error:
                self._failed(subject, str(error), _ASK_SITE)
            except (RpcConnectionLost, RemoteError) as error:
                remedy = "is it up, and may this machine reach its port (dfs.namenode.rpc-address)?"
                self._failed(subject, str(error), remedy)
            else:
                has_any = True
                text = f"hadoop.rpc.protection={level}" if level else "it is not secure: the fall-back was used"
                self._passed(subject, text)
            finally:
                identity.close()
        return has_any

    async def _check_files(self) -> bool:
        holder = f"doctor-{uuid.uuid4().hex}"
        try:
            fs = await self._bounded(
                HdfsFileSystem.open(self._url, holder=holder, conf_folder=self._conf_folder, login=self._login)
            )
        except (StorageError, TimeoutError) as error:
            text = str(error) or f"no answer within {self._timeout_s:g} s"
            return self._failed("rights", text, _ASK_SITE)
        try:
            if not await self._check_rights(fs):
                self._steps.append(LoginStep("datanodes", NOT_CHECKED, "a block needs a file, which may not be made"))
                return False
            self._steps += await fs.check_datanodes(f"/.{holder}", self._timeout_s)
        except StorageError as error:
            return self._failed("datanodes", str(error), "are datanodes up (hdfs dfsadmin -report), and is there room?")
        finally:
            await fs.close()
        return True

    async def _check_rights(self, fs: HdfsFileSystem) -> bool:
        try:
            user = await self._bounded(fs.user())
            root = await self._bounded(fs.status("/"))
        except (StorageError, TimeoutError) as error:
            text = str(error) or f"no answer within {self._timeout_s:g} s"
            return self._failed("rights", text, rights_remedy(error))
        owner = f"{root.owner}:{root.group} {root.mode:o}"
        self._passed("rights", f"the HDFS user {user} may write to {fs.url}, which is of {owner}")
        return True

    # ---- within

    def _passed(self, name: str, what: str) -> None:
        self._steps.append(LoginStep(name, OK, what))

    def _failed(self, name: str, what: str, remedy: str) -> bool:
        self._steps.append(LoginStep(name, FAILED, what, remedy))
        return False

    async def _bounded(self, work: Awaitable[T]) -> T:
        return await asyncio.wait_for(work, self._timeout_s)


async def _log_in(host: str, port: int, identity: Authenticator, settings: HdfsSettings) -> str:
    """Return the protection of calls at one NameNode.  Raises LoginFailed, RpcConnectionLost or RemoteError."""
    connection = await RpcConnection.connect(
        host,
        port,
        protocol=NAMENODE_PROTOCOL,
        authenticator=identity,
        client_id=uuid.uuid4().bytes,
        timeout_s=settings.connect_timeout_s,
        login_timeout_s=settings.login_timeout_s,
    )
    connection.close()
    return connection.level


def _read_keytab(path: str) -> list[KeytabEntry]:
    """Return the entries of a keytab.  Raises OSError or ValueError, whose text does not name the file."""
    try:
        with Path(path).open("rb") as file:
            return parse_keytab(file.read(KEYTAB_BYTES_MAX))
    except OSError as error:
        raise OSError(error.strerror or str(error)) from error


def _of_principal(entries: list[KeytabEntry], principal: str) -> list[KeytabEntry]:
    """Return the entries of ``principal``, with or without its realm; else of the first one."""
    wanted = principal or (entries[0].principal if entries else "")
    return [entry for entry in entries if wanted in (entry.principal, entry.principal.rpartition("@")[0])]
