"""Reads of erasure-coded files, through hdfs-native where it is installed.

BMQ's own files are replicated: HDFS cannot flush others.  An administrator may have coded closed ones, by ``distcp``
into a folder with a policy.  Such a file has stripes over many datanodes, and the reader computes lost cells from
the others: a library does the reads.

The asynchronous client of the library may stop a process for good.  Threads of the library need the interpreter's lock
to call the event loop.  Meanwhile the loop's thread holds the lock, and waits for the library.  The blocking client
gives the lock up before it waits, so threads of this process do the reads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import StorageUnavailable, Unsupported
from bmq.storage.hdfs import digest_md5
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.handshake import TRANSFER_PROTECTION
from bmq.storage.hdfs.principals import own_principal
from bmq.storage.hdfs.security import AUTHENTICATION, HdfsSecurity
from bmq.storage.hdfs.timed_threads import NoOutcome, TimedThreads
from bmq.storage.hdfs.zones import needs_own_login

if TYPE_CHECKING:
    from hdfs_native import Client

THREADS = 4
"""Reads at the same time; further reads wait."""
THREADS_MAX = 20
"""Most threads with the threads whose reads do not end: the library has no time-out for reads."""
_SERVICE = "bmq"  # the name service of the NameNodes, within the library's configuration


@dataclass(slots=True, eq=False)
class _SharedClient:
    """The library's client of many reads, once a read has made it.

    The library has no call that closes a client: a client ends with the last reference to it.
    """

    making: threading.Lock = field(default_factory=threading.Lock)
    client: Client | None = None


class ErasureCodedReader:
    """The reader of one root's erasure-coded files.  The library is imported at the first read."""

    def __init__(
        self,
        address: HdfsAddress,
        security: HdfsSecurity,
        login: HdfsLogin,
        timeout_s: float,
        *,
        has_token_alone: bool = False,
    ) -> None:
        """``timeout_s`` bounds a read.  ``has_token_alone``: this process has a token, which the library cannot get."""
        self._address = address
        self._security = security
        self._login = login
        self._timeout_s = timeout_s
        self._has_token_alone = has_token_alone
        self._threads = TimedThreads("hdfs-coded", usable=THREADS, most=THREADS_MAX, on_overdue=self._forget_client)
        self._shared = _SharedClient()

    def close(self) -> None:
        """End the threads after their present reads, without waiting.  Reads raise StorageUnavailable.  Idempotent."""
        self._threads.close()
        self._forget_client()

    async def read(self, path: str, policy: str, position: int, length: int) -> bytes:
        """Return the bytes of a closed file with ``policy``, at most up to its end.

        Raises Unsupported without the library or with a token alone, and StorageUnavailable if a read fails or takes
        too long.
        """
        if self._has_token_alone:
            raise Unsupported(needs_own_login(path, policy))
        try:
            return await self._threads.run(partial(self._read, path, policy, position, length), self._timeout_s)
        except (StorageUnavailable, Unsupported):
            raise
        except NoOutcome as error:
            raise StorageUnavailable(f"read {path}, erasure-coded by {policy}: {error}") from None
        except Exception as error:  # the library has no class of its own: RuntimeError, OSError, others of Rust's
            reason = str(error) or type(error).__name__
            raise StorageUnavailable(
                f"read {path}, erasure-coded by {policy}, through hdfs-native: {reason}"
            ) from error

    def _forget_client(self) -> None:
        """Have the next read connect again: the present connection, or its making, may hang.

        A client whose making ends later serves the reads that wait for it.  It replaces no newer client.
        """
        self._shared = _SharedClient()

    def _read(self, path: str, policy: str, position: int, length: int) -> bytes:
        shared = self._shared
        with shared.making:
            if shared.client is None:
                shared.client = self._connect(path, policy)
            client = shared.client
        reader = client.read(path)
        length = min(length, len(reader) - position)
        return bytes(reader.read_range(position, length)) if length > 0 else b""

    def _connect(self, path: str, policy: str) -> Client:
        try:
            import hdfs_native
        except ImportError as error:
            raise Unsupported(
                f"{path} is erasure-coded by {policy}, and hdfs-native is not installed ({error})."
                " Install it: pip install 'hdfs-native>=0.14'. Or replicate the file: hdfs dfs -cp into a folder with"
                " hdfs ec -setPolicy -replicate"
            ) from error
        login: dict[str, str | None] = {}
        if self._security.is_kerberos:
            principal = own_principal(self._login.principal) or None
            login = {"kerberos_principal": principal, "kerberos_keytab": self._login.keytab or None}
        try:
            return hdfs_native.Client(f"hdfs://{_SERVICE}", client_config(self._address, self._security), **login)
        except Exception as error:  # as above
            raise StorageUnavailable(f"{path} is erasure-coded by {policy}: hdfs-native: {error}") from error


def client_config(address: HdfsAddress, security: HdfsSecurity) -> dict[str, str]:
    """Return the library's configuration: the NameNodes as a name service, and the protection."""
    names = [f"nn{number}" for number in range(len(address.namenodes))]
    config = {"dfs.nameservices": _SERVICE, f"dfs.ha.namenodes.{_SERVICE}": ",".join(names)}
    for name, (host, port) in zip(names, address.namenodes, strict=True):
        shown = f"[{host}]" if ":" in host else host
        config[f"dfs.namenode.rpc-address.{_SERVICE}.{name}"] = f"{shown}:{port}"
    if address.use_datanode_hostname:
        config["dfs.client.use.datanode.hostname"] = "true"
    if security.is_kerberos:
        config[AUTHENTICATION] = "kerberos"
    if security.transfer_levels:
        config[TRANSFER_PROTECTION] = ",".join(digest_md5.LEVELS[level] for level in security.transfer_levels)
    return config
