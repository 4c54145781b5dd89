"""The way from a root's URL to its file system.  An adapter is imported only when a URL has its scheme."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.core.urls import normal_url, scheme_of, split_url, without_userinfo
from bmq.storage.filesystem import FileSystem, NoSuchFile, NotAllowed, RootLock, Unsupported
from bmq.storage.health import LoginStep, NameNodeState
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken, TokenGrant

SCHEMES = "file:///dir, hdfs://host[:port]/dir, hdfs://nameservice/dir, webhdfs://host:port/dir, memory:[name]"
WRITABLE_SCHEMES = "file:///dir, hdfs://host[:port][,host[:port]]/dir, hdfs://nameservice/dir"
"""The schemes in which a server can keep its data."""

# Memory roots of one process that share a name share their files while any of them is in use: tests run all roles so.
_memories: WeakValueDictionary[str, MemoryStorage] = WeakValueDictionary()


async def open_filesystem(
    url: str,
    *,
    holder: str,
    must_exist: bool = False,
    hadoop_conf_dir: str = "",
    hdfs_login: HdfsLogin = NO_HDFS_LOGIN,
    token: StorageToken | None = None,
    lock: RootLock = RootLock.NONE,
) -> FileSystem:
    """Open the root at ``url`` for the process whose lease name is ``holder`` (unique per process start).

    A local folder is made unless it ``must_exist``, which readers demand.  ``hadoop_conf_dir`` is the folder of
    Hadoop's configuration files, with the name services and the cluster's protection; if empty, the environment's
    HADOOP_CONF_DIR is used.  ``hdfs_login`` is the identity for Kerberos;
    ``token``, of ``fetch_storage_token``, replaces it and the configuration.
    ``lock`` is the lock of a local root, held until the file system is closed; on HDFS there is none, since its roots
    are shared by design, and its fences hold between all machines.

    Raises Unsupported for a URL that names no root, and NoSuchFile for a missing folder that must exist. Raises the
    adapter's error if the root cannot be opened.
    """
    url = normal_url(url)
    scheme, separator, rest = url.partition(":")
    match scheme if separator else "":
        case "file":
            from bmq.storage.local.filesystem import LocalFileSystem

            return LocalFileSystem(_local_path(url, must_exist=must_exist), holder, lock=lock)
        case "memory":
            return MemoryFileSystem(_memory(rest), holder)
        case "hdfs":
            from bmq.storage.hdfs.filesystem import HdfsFileSystem

            return await HdfsFileSystem.open(
                url, holder=holder, conf_folder=hadoop_conf_dir, login=hdfs_login, token=token
            )
        case "webhdfs":
            from bmq.storage.hdfs.webhdfs import WebHdfsFileSystem

            return await WebHdfsFileSystem.open(url, holder=holder, conf_folder=hadoop_conf_dir)
        case _:
            raise Unsupported(unknown_root(url, SCHEMES))


def resolved_url(url: str, *, hadoop_conf_dir: str = "") -> str:
    """Return an equivalent URL for a process without Hadoop's configuration: name services become addresses.

    Raises ValueError if the configuration does not define the URL's name service.
    """
    url = normal_url(url)
    if scheme_of(url) != "hdfs":
        return url
    from bmq.storage.hdfs.name_service import read_config, resolve

    return str(resolve(url, read_config(hadoop_conf_dir)))


async def namenode_states(
    url: str, hadoop_conf_dir: str, timeout_s: float, *, hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> Sequence[NameNodeState]:
    """Return the state of each NameNode of a root on HDFS; empty for any other root.

    Each NameNode has ``timeout_s`` to respond.  Raises ValueError if the configuration does not say which they are.
    """
    url = normal_url(url)
    if scheme_of(url) != "hdfs":
        return ()
    from bmq.storage.hdfs.health import ask_namenodes
    from bmq.storage.hdfs.login import find_login

    found = await find_login(url, conf_folder=hadoop_conf_dir, login=hdfs_login)
    return await ask_namenodes(found.address, timeout_s, found.make_identity)


async def fetch_storage_token(
    url: str, renewer: str = "", *, hadoop_conf_dir: str = "", hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> StorageToken | None:
    """Return a delegation token by which ``open_filesystem`` opens this root elsewhere, as this process's user.

    Return None for a root without Kerberos.  The token may be pickled.  ``renewer`` is the user that may renew it,
    empty for nobody.  A process whose own log-in is by a token gets this token and its renewer: the NameNode gives new
    tokens to users of Kerberos only.

    Raises ValueError and StorageError as ``open_filesystem``.
    """
    url = normal_url(url)
    if scheme_of(url) != "hdfs":
        return None
    from bmq.storage.hdfs.login import fetch_token

    return await fetch_token(url, renewer, conf_folder=hadoop_conf_dir, login=hdfs_login)


async def grant_storage_token(
    url: str, owner: str = "", *, hadoop_conf_dir: str = "", hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> TokenGrant | None:
    """Return a token as ``fetch_storage_token``, with the seconds until its renewal is due.

    ``owner`` is the owner of a former token of this process; if it is empty, two calls more find the name.
    """
    url = normal_url(url)
    if scheme_of(url) != "hdfs":
        return None
    from bmq.storage.hdfs.login import grant_token

    return await grant_token(url, owner, conf_folder=hadoop_conf_dir, login=hdfs_login)


async def renew_storage_token(
    token: StorageToken, *, hadoop_conf_dir: str = "", hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> int:
    """Renew a token, and return until when it is valid, in milliseconds since 1970.

    Raises CannotLogIn if the token has expired or was cancelled, and NotAllowed unless this process is its renewer.
    """
    from bmq.storage.hdfs.login import renew_token

    return await renew_token(token, conf_folder=hadoop_conf_dir, login=hdfs_login)


async def cancel_storage_token(
    token: StorageToken, *, hadoop_conf_dir: str = "", hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> None:
    """Make a token invalid; connections that have logged in by it stay open.  Raises as ``renew_storage_token``."""
    from bmq.storage.hdfs.login import cancel_token

    await cancel_token(token, conf_folder=hadoop_conf_dir, login=hdfs_login)


async def login_steps(
    url: str, hadoop_conf_dir: str, timeout_s: float, *, hdfs_login: HdfsLogin = NO_HDFS_LOGIN
) -> Sequence[LoginStep]:
    """Return the steps of the log-in to a root on an HDFS with Kerberos, each checked; empty for any other root.

    Raises ValueError as ``open_filesystem``.
    """
    url = normal_url(url)
    if scheme_of(url) != "hdfs":
        return ()
    from bmq.storage.hdfs.login_check import LoginCheck

    return await LoginCheck(url, hadoop_conf_dir, hdfs_login, timeout_s).run()


def unknown_root(url: str, schemes: str) -> str:
    """Return the text of an error: ``url`` has none of ``schemes``.  For a path, suggest the URL that it may mean."""
    problem = f"unknown root {without_userinfo(url)!r}"
    if not scheme_of(url):
        return f"{problem}: for a local folder give file://{quote(os.path.abspath(url))}"
    if scheme_of(url) == "viewfs":
        return f"{problem}: viewfs is a mount table of Hadoop's clients: give the hdfs:// URL behind the mount point"
    return f"{problem}: use one of {schemes}"


def _local_path(url: str, *, must_exist: bool = False) -> str:
    parts = split_url(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise Unsupported(f"{without_userinfo(url)!r}: a local root is file:/// and an absolute path")
    if parts.query or parts.fragment:
        raise Unsupported(f"{without_userinfo(url)!r}: write ? and # in a path as %3F and %23")
    path = unquote(parts.path)
    if must_exist:
        try:
            is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        except PermissionError as error:
            raise NotAllowed(f"{error.strerror}: {path}") from error
        except OSError:
            is_folder = False
        if not is_folder:
            raise NoSuchFile(f"there is no folder {path}")
    return path


def _memory(name: str) -> MemoryStorage:
    storage = _memories.get(name) if name else None
    if storage is None:
        storage = MemoryStorage()
        if name:
            _memories[name] = storage
    return storage
