"""The log-in to an HDFS, the same for every role and tool: which NameNodes, how protected, and as whom.

The identity is the first of these:

1. the ``StorageToken`` of the caller: executors of Spark have nothing else;
2. the keytab of the settings (``hdfs_keytab``);
3. the delegation token for these NameNodes in the files of ``HADOOP_TOKEN_FILE_LOCATION``;
4. the ticket cache, if Hadoop's configuration has Kerberos;
5. the name of simple authentication.

The order is Hadoop's.  Its log-in by keytab reads no token file (UserGroupInformation.loginUserFromKeytab), its log-in
by ticket cache does (createLoginUser), and its servers offer log-ins by token before Kerberos.  As there, a token is
used even if the configuration has no Kerberos (ipc.Client).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from bmq.core.descriptors import FAILURES
from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.core.urls import split_url, without_userinfo
from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import Authenticator, make_authenticator, refuse_proxy_user
from bmq.storage.hdfs.delegation_token import (
    HDFS_DELEGATION_TOKEN,
    LOGICAL,
    HadoopToken,
    StorageToken,
    TokenGrant,
)
from bmq.storage.hdfs.name_service import logical_names, read_config, resolve
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.security import HdfsSecurity, read_security
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.token_file import FileState, Tokens, file_states, read_token_files, token_files
from bmq.storage.hdfs.token_login import DelegatedAuthenticator, FileToken, GivenToken, choose_token, no_token_for
from bmq.storage.hdfs.umask import DEFAULT_UMASK, read_umask

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    """The NameNodes of a root, their protection, and the identity towards them.

    ``names`` are the name services of these NameNodes.  ``make_identity`` makes an identity, which its user closes.
    ``token`` is the delegation token of the identity, None for an identity of another kind.  ``umask`` is the
    configuration's, for new files of this process.
    """

    address: HdfsAddress
    security: HdfsSecurity
    names: tuple[str, ...]
    make_identity: Callable[[], Authenticator]
    token: HadoopToken | None = None
    umask: int = DEFAULT_UMASK


async def find_login(
    url: str,
    *,
    conf_folder: str = "",
    login: HdfsLogin = NO_HDFS_LOGIN,
    token: StorageToken | None = None,
    user: str = "",
) -> ClusterLogin:
    """Return the log-in to the HDFS of ``url``, by Hadoop's configuration and the environment.

    ``user`` is that of simple authentication.  Raises ValueError for a malformed URL or configuration, a token of
    another cluster, or a HADOOP_PROXY_USER.  Raises CannotLogIn for a token file that is missing or damaged.
    """
    if token is not None:
        return _by_given_token(url, token)
    refuse_proxy_user()
    config = read_config(conf_folder)
    address = resolve(url, config)
    security = read_security(config)
    names = logical_names(address, config)

    def make_own() -> Authenticator:
        return make_authenticator(security, login, user, [host for host, _ in address.namenodes])

    found = ClusterLogin(address, security, names, make_own, umask=read_umask(config))
    if not login.keytab and (paths := token_files()):
        return await _by_token_file(paths, found)
    return found


def _by_given_token(url: str, token: StorageToken) -> ClusterLogin:
    """Return the log-in by a token whose NameNodes replace those of ``url``: no configuration is needed."""
    parts = split_url(url)
    if parts.netloc not in (split_url(token.root).netloc, token.namenodes):
        raise ValueError(
            f"{without_userinfo(url)!r} is another HDFS than {without_userinfo(token.root)!r}, whose token is given"
        )
    address = HdfsAddress.parse(parts._replace(netloc=token.namenodes).geturl())
    if address.use_datanode_hostname is None:
        address = replace(address, use_datanode_hostname=token.use_datanode_hostname)

    def make_identity() -> Authenticator:
        return DelegatedAuthenticator(GivenToken(token.token), token.security.rpc_levels)

    return ClusterLogin(address, token.security, (), make_identity, token.token, token.umask)


async def _by_token_file(paths: tuple[str, ...], own: ClusterLogin) -> ClusterLogin:
    """Return the log-in by the files' token for these NameNodes; ``own``, without a token, if the files have none."""
    states, tokens = await asyncio.to_thread(_read_with_states, paths)
    if not any(token.kind == HDFS_DELEGATION_TOKEN for token in tokens.values()):
        return own
    services = await token_services(own.address, own.names)
    token = choose_token(tokens, services)
    if token is None:
        _log.info("%s: the log-in needs another way", no_token_for(services, tokens))
        return own
    security = own.security

    def make_identity() -> Authenticator:
        return DelegatedAuthenticator(
            FileToken(paths, services, token, states),
            security.rpc_levels,
            own.make_identity if security.is_kerberos else None,
            is_fallback_allowed=security.is_fallback_allowed,
        )

    return replace(own, make_identity=make_identity, token=token)


def _read_with_states(paths: tuple[str, ...]) -> tuple[tuple[FileState, ...], Tokens]:
    """Return the tokens of these files, and the files' states before: a later change is noticed."""
    return file_states(paths), read_token_files(paths)


async def token_services(address: HdfsAddress, names: tuple[str, ...]) -> list[str]:
    """Return the services of tokens for these NameNodes: name services first, then addresses, then hosts.

    Hadoop writes addresses, or hosts if hadoop.security.token.service.use_ip is false (SecurityUtil).
    """
    addresses = [f"{ip}:{port}" for host, port in address.namenodes for ip in await _addresses_of(host, port)]
    hosts = [f"{host.lower()}:{port}" for host, port in address.namenodes]
    return list(dict.fromkeys([*(f"{LOGICAL}{name}" for name in names), *addresses, *hosts]))


async def _addresses_of(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:  # the connection says it better than a token that is not found
        FAILURES.note(error)
        return []
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def fetch_token(
    url: str, renewer: str = "", *, conf_folder: str = "", login: HdfsLogin = NO_HDFS_LOGIN
) -> StorageToken | None:
    """Return a token by which another process reads and writes as this process's user; None on an open HDFS.

    See ``bmq.storage.open.fetch_storage_token``.
    """
    found = await find_login(url, conf_folder=conf_folder, login=login)
    identity = found.make_identity()
    client = NameNode(found.address.namenodes, HdfsSettings(), identity)
    try:
        token = await _own_token(client, identity)
        if token is None and identity.login is not None:
            token = await client.delegation_token(renewer, await _service(found))
    finally:
        await client.close()
    return None if token is None else _storage_token(url, found, token)


async def grant_token(
    url: str, owner: str = "", *, conf_folder: str = "", login: HdfsLogin = NO_HDFS_LOGIN
) -> TokenGrant | None:
    """Return a token as ``fetch_token``, with its life.

    The NameNode shows a token's life only to the token's renewer, so the renewer is ``owner``, this process's user.
    If it is empty, a first token shows the user, and is cancelled.  (Spark's HadoopFSDelegationTokenProvider learns the
    life by a renewal too.)
    """
    found = await find_login(url, conf_folder=conf_folder, login=login)
    identity = found.make_identity()
    client = NameNode(found.address.namenodes, HdfsSettings(), identity)
    try:
        own = await _own_token(client, identity)
        if own is not None:
            return TokenGrant(_storage_token(url, found, own), None)
        if identity.login is None:
            return None
        service = await _service(found)
        token = await client.delegation_token(owner, service)
        if token is not None and not owner:
            nameless, owner = token, token.content.owner
            token = await client.delegation_token(owner, service)
            await client.cancel_delegation_token(nameless)
        if token is None:
            return None
        ends_ms = await client.renew_delegation_token(token)
        return TokenGrant(_storage_token(url, found, token), (ends_ms - token.content.issued_ms) / 1000)
    finally:
        await client.close()


async def _own_token(client: NameNode, identity: Authenticator) -> HadoopToken | None:
    """Return the token by which this process has logged in: a NameNode gives tokens to users of Kerberos alone."""
    if not isinstance(identity, DelegatedAuthenticator):
        return None
    await client.server_defaults()  # a refused token shows here, not in the process that is to use it
    return identity.token if identity.is_by_token else None


async def _service(found: ClusterLogin) -> str:
    return (await token_services(found.address, found.names))[0]


def _storage_token(url: str, found: ClusterLogin, token: HadoopToken) -> StorageToken:
    return StorageToken(
        root=url,
        namenodes=split_url(str(found.address)).netloc,
        token=token,
        security=found.security,
        use_datanode_hostname=found.address.use_datanode_hostname,
        umask=found.umask,
    )


async def renew_token(token: StorageToken, *, conf_folder: str = "", login: HdfsLogin = NO_HDFS_LOGIN) -> int:
    """Renew a token as this process's user, and return until when it is valid, in milliseconds since 1970."""
    client = await _client(token, conf_folder, login)
    try:
        return await client.renew_delegation_token(token.token)
    finally:
        await client.close()


async def cancel_token(token: StorageToken, *, conf_folder: str = "", login: HdfsLogin = NO_HDFS_LOGIN) -> None:
    """Cancel a token as this process's user."""
    client = await _client(token, conf_folder, login)
    try:
        await client.cancel_delegation_token(token.token)
    finally:
        await client.close()


async def _client(token: StorageToken, conf_folder: str, login: HdfsLogin) -> NameNode:
    found = await find_login(token.root, conf_folder=conf_folder, login=login)
    if split_url(str(found.address)).netloc != token.namenodes:
        raise Unsupported(f"{without_userinfo(token.root)!r} has other NameNodes here than where the token was fetched")
    return NameNode(found.address.namenodes, HdfsSettings(), found.make_identity())
