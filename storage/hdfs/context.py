"""The state that the parts of this package share for one root: connections, timer, lease, and their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.tasks import OwnedTasks
from bmq.storage.filesystem import PipelineFailed, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import Authenticator
from bmq.storage.hdfs.bad_replicas import BadReplicas
from bmq.storage.hdfs.data_connections import DataConnections
from bmq.storage.hdfs.datanode import Datanodes, ReplicaFailed, SuspectNodes, node_name
from bmq.storage.hdfs.handshake import (
    OPEN_TRANSFER,
    Handshake,
    HandshakeFailed,
    KeyRefused,
    TransferSecurity,
    encrypted_handshake,
)
from bmq.storage.hdfs.lease_renewer import LeaseRenewer
from bmq.storage.hdfs.lengths import LengthReporter
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.pipeline_timer import PipelineClock
from bmq.storage.hdfs.refusing_nodes import RefusingNodes
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.transfer_encryption import TransferEncryption

_COMPLETE_PAUSE_S = Backoff(0.002, 0.4)
_CIPHER_THREADS = 2

T = TypeVar("T")


def _cipher_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_CIPHER_THREADS, thread_name_prefix="hdfs-cipher")


@dataclass(slots=True)
class HdfsClient:
    """The shared state of one ``HdfsFileSystem``.

    ``cipher_threads`` are begun with the first large piece of a protected connection.
    """

    settings: HdfsSettings
    holder: str
    namenode: NameNode
    datanodes: Datanodes
    suspects: SuspectNodes
    refusing: RefusingNodes
    leases: LeaseRenewer
    lengths: LengthReporter
    clock: PipelineClock
    tasks: OwnedTasks
    opening: asyncio.Semaphore
    bad_replicas: BadReplicas
    threads: ThreadPoolExecutor
    data_connections: DataConnections
    encryption: TransferEncryption
    transfer: TransferSecurity = OPEN_TRANSFER
    cipher_threads: ThreadPoolExecutor = field(default_factory=_cipher_threads)

    @classmethod
    def build(
        cls,
        namenodes: tuple[tuple[str, int], ...],
        holder: str,
        settings: HdfsSettings,
        authenticator: Authenticator,
        transfer: TransferSecurity = OPEN_TRANSFER,
    ) -> HdfsClient:
        """Make the client, within a running loop.  It does not connect yet."""
        namenode = NameNode(namenodes, settings, authenticator)
        datanodes = Datanodes(settings, authenticator)
        tasks = OwnedTasks()

        async def find_silent(pipeline: Pipeline) -> None:
            pipeline.suspects = tuple(await datanodes.silent(pipeline.members))

        def on_late(pipeline: Pipeline) -> None:
            tasks.start(find_silent(pipeline), "probe a late pipeline")

        return cls(
            settings=settings,
            holder=holder,
            namenode=namenode,
            datanodes=datanodes,
            suspects=SuspectNodes(settings.suspect_s),
            refusing=RefusingNodes(settings.full_node_s),
            leases=LeaseRenewer(namenode, holder, settings.lease_renewal_s),
            lengths=LengthReporter(settings.length_report_s),
            clock=PipelineClock(settings, on_late),
            tasks=tasks,
            opening=asyncio.Semaphore(settings.opens_max),
            bad_replicas=BadReplicas(namenode, tasks.start),
            threads=ThreadPoolExecutor(settings.read_threads_max, thread_name_prefix="hdfs-read"),
            data_connections=DataConnections(),
            encryption=TransferEncryption(namenode.encrypts_data, namenode.data_encryption_key),
            transfer=transfer,
        )

    async def close(self) -> None:
        """Abort the open pipelines, whose files must be fenced, and end tasks, threads and connections."""
        self.clock.close()
        await self.lengths.close()
        await self.tasks.close()
        await self.encryption.close()
        await self.leases.close()
        self.datanodes.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.cipher_threads.shutdown(wait=False, cancel_futures=True)
        self.data_connections.close()
        await self.namenode.close()
        await asyncio.sleep(0)  # sockets are closed at the loop's next turn

    def suspect(self, names: tuple[str, ...] | list[str] | set[str]) -> None:
        """Note that these nodes failed now."""
        self.suspects.suspect(names, asyncio.get_running_loop().time())

    def suspected(self) -> set[str]:
        """Return the names of the nodes that failed lately."""
        return self.suspects.suspected(asyncio.get_running_loop().time())

    @property
    def are_most_silent(self) -> bool:
        """True if more than half of the known datanodes did not respond when they were last probed."""
        return 2 * len(self.datanodes.silent_lately()) > len(self.suspects.known())

    async def handshakes(self, node: pb.NodeId, token: pb.Token) -> Callable[[], Handshake | None]:
        """Return a maker of handshakes for new connections to a datanode, as the owner of a block's token.

        Any thread may call it.  It makes None for a connection without a handshake.  Raises a StorageError if the
        NameNode gives no data encryption key.
        """
        name = node_name(node)
        self.encryption.note_use()
        keys = self.encryption.keys
        if keys is None:
            return partial(self.transfer.handshake, name, node.data_port, token)
        return partial(encrypted_handshake, name, await keys.current(), keys.forget)

    async def have_key(self) -> None:
        """Return once the data encryption key is there that ``handshakes`` may need.  Raises as ``handshakes``."""

        async def have() -> None:
            if (keys := self.encryption.keys) is not None:
                await keys.current()

        await with_another_key(self, have)

    async def complete(self, path: str, holder: str, file_id: int, last: pb.Block | None) -> None:
        """Close the file in the namespace, and return once a datanode has reported the last block.

        Raises LeaseLost if another holder has the file, StorageUnavailable after ``complete_timeout_s``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.complete_timeout_s
        tries = 0
        while not await self.namenode.complete(path, holder, file_id, last):
            tries += 1
            pause_s = _COMPLETE_PAUSE_S.pause(tries)
            if loop.time() + pause_s > deadline:
                raise StorageUnavailable(f"complete {path}: no datanode has reported its last block")
            await asyncio.sleep(pause_s)


async def with_another_key(client: HdfsClient, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``attempt``, a connection to a datanode, or of a second attempt with another protection.

    A datanode that does not know the data encryption key is tried with a new key, as by Hadoop's clients
    (InvalidEncryptionKeyException).  The second reason is a NameNode that has switched ``dfs.encrypt.data.transfer``
    since the last question (``TransferEncryption``).  A refused block token may mean such a switch too: with privacy on
    both sides, the datanode finds no password for a user of the former kind.

    Raises as ``attempt``.  Raises StorageUnavailable with the demand's text if the NameNode gives no key, since it
    denies the configuration's demand of encryption.
    """
    keys = client.encryption.keys
    try:
        return await attempt()
    except SetupTimedOut:
        raise  # a datanode ends a connection of the wrong kind at once
    except (PipelineFailed, ReplicaFailed, HandshakeFailed, StorageUnavailable) as error:
        is_unknown_key = isinstance(error, KeyRefused) or isinstance(error.__cause__, KeyRefused)
        if not is_unknown_key and not await client.encryption.has_changed(keys):
            if isinstance(error, StorageUnavailable) and (refusal := client.encryption.refusal):
                raise StorageUnavailable(refusal) from error  # the NameNode has no key for a demand that it denies
            raise
    return await attempt()
