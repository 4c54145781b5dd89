"""The identity at the beginning of an RPC connection: a trusted name, a Kerberos log-in, or a token."""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bmq.core.extras import how_to_install
from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs import digest_md5
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.digest_md5 import CipherDemanded, DigestFailed, DigestMd5, LevelDemanded
from bmq.storage.hdfs.principals import ServerPrincipal, own_principal
from bmq.storage.hdfs.reverse_names import ReverseNames
from bmq.storage.hdfs.sasl import (
    AUTHENTICATION,
    KERBEROS,
    RPC_PROTECTION,
    SIMPLE,
    TOKEN,
    UNPROTECTED,
    LoginFailed,
    Negotiation,
    Protection,
    no_common_level,
)
from bmq.storage.hdfs.security import HdfsSecurity

if TYPE_CHECKING:
    from bmq.storage.hdfs.kerberos import KerberosLogin

PROXY_USER = "HADOOP_PROXY_USER"
AUTH_SIMPLE = 0
AUTH_SASL = 0xDF  # -33 as a signed byte (SaslRpcServer.AuthMethod)


class SaslClient(Protocol):
    """The client's side of a SASL mechanism, for one connection."""

    @property
    def is_complete(self) -> bool:
        """True once the mechanism expects no further challenge."""

    @property
    def protection(self) -> Protection:
        """The protection that both sides have agreed on, once the mechanism is complete."""

    async def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge, which is empty if the client begins.  Raises LoginFailed."""


class SaslLogin(Protocol):
    """The log-in at servers of one kind, for any number of connections."""

    async def names(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        """Return the names of the server's address in ``peer``, if ``client`` compares them.

        Raises TimeoutError if DNS is silent for ``timeout_s``.
        """

    async def refresh(self) -> None:
        """Take in credentials that others have replaced.  Called before each log-in."""

    def negotiate(self, server: str) -> Negotiation:
        """Return the machine of a log-in at ``server``, which is the name for errors."""

    def client(self, method: str, host: str, names: Collection[str], service: str, server_id: str) -> SaslClient:
        """Return the client's side of ``method`` towards the server that was reached as ``host``.

        ``names`` are the other names of its address.  Raises LoginFailed if the server is another one.
        """


class Authenticator(Protocol):
    """The identity of an RPC connection."""

    @property
    def auth_byte(self) -> int:
        """The seventh byte of the connection (Hadoop's AuthProtocol)."""

    @property
    def levels(self) -> Sequence[str]:
        """The levels of protection to choose from, the best liked first (``hadoop.rpc.protection``)."""

    def effective_user(self, method: str) -> str:
        """Return the user of every call after a log-in by ``method``; empty for the user of the log-in."""

    @property
    def login(self) -> SaslLogin | None:
        """The log-in that follows the preamble, None for none."""

    async def has_another(self) -> bool:
        """Return whether the next log-in uses other credentials, after the server has refused the token of the last."""

    def note_refusal(self) -> None:
        """Note that a server has refused a log-in.  A keytab then gives new tickets, in the background."""

    def close(self) -> None:
        """End what the identity holds.  Idempotent."""


@dataclass(frozen=True, slots=True)
class SimpleAuthenticator:
    """Simple authentication: the server trusts the name."""

    user: str
    auth_byte: int = AUTH_SIMPLE
    login: None = None
    levels: Sequence[str] = (AUTHENTICATION,)

    def effective_user(self, method: str) -> str:
        """Return the name."""
        return self.user

    async def has_another(self) -> bool:
        """Return False: a name is not refused."""
        return False

    def note_refusal(self) -> None:
        """Do nothing: a name is not refused."""

    def close(self) -> None:
        """Do nothing: a name holds nothing."""

    @classmethod
    def for_user(cls, name: str = "") -> SimpleAuthenticator:
        """Return the identity ``name``, else HADOOP_USER_NAME, else the operating system's user: Hadoop's order.

        Raises StorageError if that user has no name, as in a container with a user id of its own.
        """
        name = name or os.environ.get("HADOOP_USER_NAME", "")
        if name:
            return cls(name)
        try:
            return cls(getpass.getuser())
        except (KeyError, OSError):  # KeyError before Python 3.13, OSError since
            raise StorageError(
                f"the user id {os.getuid()} has no name here: set HADOOP_USER_NAME to the HDFS user"
            ) from None


class KerberosAuthenticator:
    """Kerberos: the server knows the user by a ticket, and proves that it is the server of the configuration."""

    auth_byte = AUTH_SASL

    def __init__(
        self,
        kerberos: KerberosLogin,
        server: ServerPrincipal,
        levels: Sequence[str] = (AUTHENTICATION,),
        *,
        is_fallback_allowed: bool = False,
    ) -> None:
        self.levels = levels
        self._kerberos = kerberos
        self._server = server
        self._is_fallback_allowed = is_fallback_allowed
        self._names = ReverseNames()

    def __str__(self) -> str:
        return str(self._kerberos)

    def __repr__(self) -> str:
        return f"KerberosAuthenticator({self._kerberos}, {self._server})"

    @property
    def login(self) -> KerberosAuthenticator:
        """The identity itself, which is the log-in too."""
        return self

    async def names(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        """Return the name of the server's address if the server's principal has its own name in it."""
        return await self._names.look_up(peer, timeout_s) if self._server.has_own_host else ()

    async def refresh(self) -> None:
        """Do nothing: the ticket is looked at when the mechanism begins."""

    def negotiate(self, server: str) -> Negotiation:
        """Return the machine of a log-in at ``server``."""
        return Negotiation(server, (KERBEROS,), is_fallback_allowed=self._is_fallback_allowed)

    def client(self, method: str, host: str, names: Collection[str], service: str, server_id: str) -> SaslClient:
        """Return the GSSAPI client.  Raises LoginFailed if the server offers another principal than configured."""
        assert method == KERBEROS
        return self._kerberos.client(self._server.check(host, names, service, server_id), self.levels)

    def effective_user(self, method: str) -> str:
        """Return nothing: the ticket names the user.  Only an open server, after the fall-back, needs a name."""
        return SimpleAuthenticator.for_user().user if method == SIMPLE else ""

    async def has_another(self) -> bool:
        """Return False: no token is used."""
        return False

    def note_refusal(self) -> None:
        """Have the ticket replaced: the server may have new keys."""
        self._kerberos.replace_ticket()

    def close(self) -> None:
        """End the threads of the log-in and of the look-ups."""
        self._kerberos.close()
        self._names.close()


class TokenAuthenticator:
    """The owner of a token, who proves it by the token's password.

    A datanode takes a block token, and then serves calls for this block only.
    """

    auth_byte = AUTH_SASL

    def __init__(self, token: pb.Token, levels: Sequence[str] = (AUTHENTICATION,)) -> None:
        self.levels = levels
        self._token = token

    def __str__(self) -> str:
        return f"the owner of a token of kind {self._token.kind}"

    def __repr__(self) -> str:
        return f"TokenAuthenticator({self._token.kind})"

    @property
    def login(self) -> TokenAuthenticator:
        """The identity itself, which is the log-in too."""
        return self

    async def names(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        """Return nothing: a token is for whoever knows its password."""
        return ()

    async def refresh(self) -> None:
        """Do nothing: the token never changes."""

    def negotiate(self, server: str) -> Negotiation:
        """Return the machine of a log-in at ``server``."""
        return Negotiation(server, (TOKEN,))

    def client(self, method: str, host: str, names: Collection[str], service: str, server_id: str) -> SaslClient:
        """Return the DIGEST-MD5 client.  Only a server that knows the token's password passes its check."""
        assert method == TOKEN
        qops = [qop for level in self.levels for qop, name in digest_md5.LEVELS.items() if name == level]
        digest = DigestMd5.by_token(self._token, f"{service}/{server_id}", levels=qops)
        return _TokenClient(host, digest, self.levels)

    def effective_user(self, method: str) -> str:
        """Return nothing: the token names the user."""
        return ""

    async def has_another(self) -> bool:
        """Return False: the owner of a block token gets another token from the NameNode."""
        return False

    def note_refusal(self) -> None:
        """Do nothing: the owner of a block token gets another token from the NameNode."""

    def close(self) -> None:
        """Do nothing: a token holds nothing."""


class _TokenClient:
    """The client's side of a log-in by token."""

    def __init__(self, server: str, digest: DigestMd5, levels: Sequence[str]) -> None:
        self._server = server
        self._digest = digest
        self._levels = levels

    @property
    def is_complete(self) -> bool:
        return self._digest.is_complete

    @property
    def protection(self) -> Protection:
        if not self._digest.is_complete:
            return UNPROTECTED
        return Protection(digest_md5.LEVELS[self._digest.qop], self._digest.layer)

    async def evaluate(self, challenge: bytes) -> bytes | None:
        try:
            return self._digest.evaluate(challenge)
        except LevelDemanded as error:
            raise no_common_level(self._server, error.levels.replace(", ", ","), self._levels) from error
        except CipherDemanded as error:
            raise LoginFailed(
                f"{self._server} offers {RPC_PROTECTION}=privacy with the ciphers {error.ciphers}, of which this"
                " machine's OpenSSL has none",
                Unsupported,
            ) from error
        except DigestFailed as error:
            raise LoginFailed(f"{self._server} does not speak DIGEST-MD5: {error}", StorageUnavailable) from error


def refuse_proxy_user() -> None:
    """Raise ValueError if HADOOP_PROXY_USER names a user, for whom Hadoop's own client would act.

    BMQ acts for no user but its own.  If the variable were ignored, files would have another owner than expected.
    """
    if user := os.environ.get(PROXY_USER, ""):
        raise ValueError(f"{PROXY_USER}={user} is set, and this client acts for no user but its own: unset it")


def make_authenticator(
    security: HdfsSecurity, login: HdfsLogin, user: str = "", hosts: Collection[str] = ()
) -> Authenticator:
    """Return the identity by which this process calls the NameNodes.

    ``user`` is that of simple authentication.  ``hosts`` has the NameNodes: a keytab's tickets are fetched for all of
    them, also for a standby that is not called yet.  Raises ValueError for a contradiction between settings,
    StorageError if there is no user, Unsupported without Kerberos's library.
    """
    if not security.is_kerberos:
        if login.keytab or login.principal:
            name = "hdfs_keytab" if login.keytab else "hdfs_principal"
            raise ValueError(
                f"{name} is set, but hadoop.security.authentication is not kerberos in"
                f" {security.source or 'any configuration of Hadoop'}: set hadoop_conf_dir to the secure cluster's"
            )
        return SimpleAuthenticator.for_user(user)
    server = ServerPrincipal(security.namenode_principal, security.namenode_principal_pattern, security.source)
    try:
        from bmq.storage.hdfs.kerberos import KerberosLogin
    except (ImportError, OSError) as error:
        raise Unsupported(
            f"{security.source}: hadoop.security.authentication=kerberos needs the package gssapi and Kerberos's"
            f" library ({error}): {how_to_install('kerberos')}"
        ) from None
    kerberos = KerberosLogin(own_principal(login.principal), login.keytab)
    for principal in server.of_hosts(hosts):
        kerberos.note_server(principal)
    return KerberosAuthenticator(
        kerberos, server, security.rpc_levels, is_fallback_allowed=security.is_fallback_allowed
    )
