"""The ``FileSystem`` of HDFS.

All of it runs on asyncio, except large reads, which threads do.  See docs/design/hdfs-client.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.storage.filesystem import (
    Appender,
    BlockPlace,
    CreateOptions,
    FileStatus,
    Lease,
    NoSuchFile,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.fresh_memory import allocate, cut, fill
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.block_allocation import append_file, create_file
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread, read_block_into, visible_length
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.delegation_token import StorageToken
from bmq.storage.hdfs.erasure_coded import ErasureCodedReader
from bmq.storage.hdfs.fencing import fence
from bmq.storage.hdfs.handshake import TransferSecurity
from bmq.storage.hdfs.health import read_health
from bmq.storage.hdfs.known_files import KnownFile, KnownFiles
from bmq.storage.hdfs.login import find_login
from bmq.storage.hdfs.namenode import IN_SERVICE
from bmq.storage.hdfs.own_user import own_user
from bmq.storage.hdfs.security import ENCRYPTION
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.transfer_check import check_datanodes
from bmq.storage.hdfs.zones import policy_name, refuse_zone
from bmq.storage.health import LoginStep, StorageHealth

T = TypeVar("T")

READ_AGAIN_S = 0.1
"""The wait before a read that all replicas refused is repeated: a datanode renames a replica within milliseconds."""
REFUSED_WITHIN_S = 1.0
"""The time within which a failed read counts as refused. A read that failed later waited for datanodes that do not
respond."""
_DEFAULTS = CreateOptions()


class HdfsFileSystem:
    """The ``FileSystem`` of a root on HDFS (``bmq.storage.filesystem``).

    Make it with ``open``, within the loop that is to use it.
    """

    def __init__(
        self, address: HdfsAddress, client: HdfsClient, known_files: KnownFiles, coded: ErasureCodedReader
    ) -> None:
        self._address = address
        self._client = client
        self._known_files = known_files
        self._coded = coded

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        holder: str,
        settings: HdfsSettings | None = None,
        conf_folder: str = "",
        login: HdfsLogin = NO_HDFS_LOGIN,
        token: StorageToken | None = None,
    ) -> HdfsFileSystem:
        """Open the root at ``hdfs://nn1:port,nn2:port/folder``.

        ``holder`` is unique per process start: takeover depends on it.  ``conf_folder`` has Hadoop's configuration, for
        a URL with a name service or without any NameNode, and for the cluster's protection; if empty, HADOOP_CONF_DIR
        is used.  ``login`` is the identity at a cluster with Kerberos; a ``token`` replaces it and the configuration.

        The NameNode is asked for its defaults, so that errors show at once.  Raises StorageUnavailable if no NameNode
        responds, CannotLogIn without a ticket, and NotAllowed if the log-in is refused.  Raises Unsupported if the
        configuration demands encrypted data transfer and the NameNode does not have it, and ValueError for a malformed
        URL or a protection that is not built.
        """
        settings = settings or HdfsSettings()
        settings.validate()
        found = await find_login(url, conf_folder=conf_folder, login=login, token=token, user=settings.user)
        address, security = found.address, found.security
        settings = replace(
            settings,
            use_datanode_hostname=settings.use_datanode_hostname or bool(address.use_datanode_hostname),
            umask=found.umask,
        )
        authenticator = found.make_identity()
        transfer = TransferSecurity(security.transfer_levels)
        client = HdfsClient.build(address.namenodes, holder, settings, authenticator, transfer)
        try:
            await client.encryption.begin(
                f"{address}: the NameNode has {ENCRYPTION}=false, and {security.source} has true: nothing is sent"
                " without encryption"
                if security.is_transfer_encrypted
                else ""
            )
            coded = ErasureCodedReader(
                address, security, login, settings.call_deadline_s, has_token_alone=token is not None
            )
            return cls(address, client, KnownFiles(settings), coded)
        except BaseException:
            await client.close()
            raise

    def __repr__(self) -> str:
        return f"HdfsFileSystem({self._address}, holder={self.holder})"

    @property
    def url(self) -> str:
        return str(self._address)

    @property
    def holder(self) -> str:
        return self._client.holder

    async def close(self) -> None:
        """End lease renewal, connections and tasks; open files must then be fenced."""
        self._coded.close()
        await self._client.close()

    # ---- writing

    async def create(self, path: str, options: CreateOptions = _DEFAULTS) -> Appender:
        full = self._address.full_path(path)
        self._known_files.forget(full)
        async with self._client.opening:
            return await create_file(self._client, full, path, options)

    async def append(self, path: str, options: CreateOptions = _DEFAULTS) -> Appender:
        full = self._address.full_path(path)
        self._known_files.forget(full)
        async with self._client.opening:
            return await append_file(self._client, full, path, options)

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        """Fence as ``FileSystem.fence``.  A file that another process has closed is taken to be on disk."""
        paths = [self._address.full_path(path) for path in lease.paths]
        for full in paths:
            self._known_files.forget(full)
        fenced = await fence(self._client, paths, lease.holder, lease.file_id, sync=sync)
        if not fenced.is_synced and fenced.length:
            await self._sync_closed(lease)
        return fenced.length

    async def _sync_closed(self, lease: Lease) -> None:
        """Put a file on disk that a recovery of the lease has closed: datanodes do not sync it then."""
        for path in lease.paths:
            full = self._address.full_path(path)
            info = await self._client.namenode.file_info(full)
            if info is not None and lease.file_id in (0, info.file_id):
                appender = await self.append(path)
                try:
                    await appender.flush(sync=True)
                    await appender.close()
                except BaseException:
                    appender.abort()
                    raise
                return
        raise NoSuchFile(f"fence: none of {', '.join(lease.paths)} is the file {lease.file_id}")

    async def user(self) -> str:
        return await own_user(self._client.namenode, self._address.full_path("/"))

    async def check_datanodes(self, path: str, timeout_s: float) -> Sequence[LoginStep]:
        """Return a step for each datanode's handshake, by a new file ``path`` (``transfer_check``)."""
        return await check_datanodes(self._client, self._address.full_path(path), timeout_s)

    async def probe(self, node: str) -> bool:
        """Return whether the datanode's IPC responds within ``probe_timeout_s``; False for a node never seen."""
        known = self._client.suspects.resolve([node])
        if not known:
            return False
        if await self._client.datanodes.silent([known[0].id]):
            self._client.suspect([node])  # files opened from now on avoid it
            return False
        self._client.suspects.clear([node])
        return True

    async def replicas_max(self) -> int:
        """Return the number of live datanodes in service, as the NameNode has it.

        The NameNode counts a dead datanode for another 10.5 minutes, and does not count one that has yet to register
        after the NameNode's own restart.
        """
        return sum(node.admin_state == IN_SERVICE for node in await self._client.namenode.live_datanodes())

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        locations = await self._client.namenode.block_locations(self._address.full_path(path))
        return [
            BlockPlace(block.offset, block.block.length, tuple(node_name(node.id) for node in block.nodes))
            for block in _blocks(locations)
        ]

    async def copies(self, path: str) -> int:
        """Count copies as ``FileSystem.copies``; 0 for a file without a block.

        The NameNode names the nodes of each block, and these are probed, since the NameNode detects a dead node only
        after 10.5 minutes.  The nodes of a corrupt block, which it names too, do not count.
        """
        blocks = _blocks(await self._reported_locations(self._address.full_path(path)))
        if not blocks:
            return 0
        copies = [{} if block.corrupt else {node_name(node.id): node.id for node in block.nodes} for block in blocks]
        nodes = {name: node for held in copies for name, node in held.items()}
        silent = set(await self._client.datanodes.silent(list(nodes.values())))
        return min(len(held.keys() - silent) for held in copies)

    async def health(self) -> StorageHealth:
        return await read_health(self._client.namenode, self._address.root or "/")

    # ---- reading

    async def read(self, path: str, position: int, length: int) -> bytes:
        if length <= 0:
            return b""
        return await self._read_located(
            path, position, length, lambda full, file: self._read_blocks(full, file, position, length), len
        )

    async def read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[memoryview]:
        """Read as ``bmq.storage.filesystem.read_parts``: 256 KB and more by a thread, which fills all parts."""
        length = sum(lengths)
        if length < self._client.settings.thread_read_min_bytes:
            return _split(memoryview(await self.read(path, position, length)), lengths)
        parts = [allocate(length) for length in lengths]
        filled = await self._read_located(
            path, position, length, lambda full, file: self._fill(full, file, position, parts), lambda count: count
        )
        return fill(parts, filled)

    async def _read_located(
        self,
        path: str,
        position: int,
        length: int,
        read: Callable[[str, KnownFile], Awaitable[T]],
        size_of: Callable[[T], int],
    ) -> T:
        """Return the result of ``read`` by the locations that are kept; if these fail, by those of the NameNode."""
        full = self._address.full_path(path)
        known = self._known_files.get(full, position + length, asyncio.get_running_loop().time())
        short: tuple[KnownFile, T] | None = None
        if known is not None:
            try:
                result = await read(full, known)
            except StorageError:  # blocks may have moved: their locations are requested below
                self._known_files.forget(full)
            else:
                if known.open_block is None or size_of(result) == length:
                    return result
                self._known_files.forget(full)
                short = known, result
        return await _again_if_refused(lambda: self._read_now(full, position, length, read, short))

    async def _read_now(
        self,
        full: str,
        position: int,
        length: int,
        read: Callable[[str, KnownFile], Awaitable[T]],
        short: tuple[KnownFile, T] | None,
    ) -> T:
        """Read by the block locations that the NameNode has now, and keep them for a large file.

        ``short`` has fewer bytes of an open file than wanted, and the locations of this read. It is the result unless
        the file was closed, or got another block.
        """
        now = asyncio.get_running_loop().time
        file = KnownFile(await self._reported_locations(full, position, length))
        if short is not None and file.has_open_block_of(short[0]):
            self._known_files.remember(full, short[0], now())
            return short[1]
        if self._known_files.is_worth_it(file.locations):
            everything = await self._client.namenode.block_locations(full)
            if self._known_files.is_worth_it(everything):
                file = KnownFile(everything)
                self._known_files.remember(full, file, now())
        try:
            result = await read(full, file)
        except StorageError:
            self._known_files.forget(full)
            raise
        if self._known_files.is_open_worth_it(file):
            self._known_files.remember(full, file, now())
        return result

    async def read_into(self, path: str, position: int, out: memoryview) -> int:
        """Read many bytes into a buffer: see ``bmq.storage.filesystem.read_into``."""
        full = self._address.full_path(path)

        async def read() -> int:
            locations = await self._reported_locations(full, position, len(out))
            return await self._fill(full, KnownFile(locations), position, [out])

        return await _again_if_refused(read)

    async def _fill(self, full: str, file: KnownFile, position: int, parts: Sequence[memoryview]) -> int:
        """Fill ``parts``, and return how many bytes were read."""
        filled = 0
        if policy := _policy(full, file):
            data = memoryview(await self._read_coded(full, policy, position, sum(map(len, parts))))
            for place in cut(parts, 0, len(data)):
                place[:] = data[filled : filled + len(place)]
                filled += len(place)
            return filled
        for located, start, stop, is_open in _stretches(file, position, position + sum(map(len, parts))):
            places = cut(parts, start - position, stop - position)
            offset, shown = start - located.offset, file.shown
            filled += await read_block_into(self._client, located, offset, places, is_open=is_open, shown=shown)
        return filled

    async def status(self, path: str) -> FileStatus:
        full = self._address.full_path(path)
        info = await self._client.namenode.file_info(full)
        if info is None:
            raise NoSuchFile(f"status {full}: no such file")
        return _status(path, info)

    async def visible_length(self, path: str) -> int:
        full = self._address.full_path(path)
        locations = await self._reported_locations(full)
        last = KnownFile(locations).open_block
        if last is None:
            return locations.file_length
        return last.offset + await visible_length(self._client, last)

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        full = self._address.full_path(path)
        start_after = after.encode()
        while (page := await self._client.namenode.listing(full, start_after)) is not None:
            for info in page.entries:
                if info.path:  # the listing of a file has one entry, the file itself, without a name
                    yield _status(f"{path.rstrip('/')}/{info.path.decode()}", info)
            if not page.remaining or not page.entries:
                return
            start_after = page.entries[-1].path

    # ---- the namespace

    async def rename(self, source: str, target: str) -> None:
        await self._rename(source, target, overwrite=False)

    async def replace(self, source: str, target: str) -> None:
        await self._rename(source, target, overwrite=True)

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        full = self._address.full_path(path)
        self._known_files.forget_all_under(full)
        return await self._client.namenode.delete(full, recursive=recursive)

    async def make_folder(self, path: str, access: Access = NO_ACCESS) -> None:
        await self._client.namenode.mkdirs(self._address.full_path(path), access.mode)

    async def set_access(self, path: str, access: Access) -> bool:
        full, namenode = self._address.full_path(path), self._client.namenode
        if access.owner or access.group:
            await namenode.set_owner(full, access.owner, access.group)
        if access.mode is not None:
            await namenode.set_permission(full, access.mode)
        return True

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        full_target = self._address.full_path(target)
        full_sources = [self._address.full_path(source) for source in sources]
        for full in (full_target, *full_sources):
            self._known_files.forget(full)
        if full_sources:
            await self._client.namenode.concat(full_target, full_sources)

    # ---- within

    async def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        full_source, full_target = self._address.full_path(source), self._address.full_path(target)
        self._known_files.forget_all_under(full_source)
        self._known_files.forget_all_under(full_target)
        try:
            await self._client.namenode.rename(full_source, full_target, overwrite=overwrite)
        except NoSuchFile:
            # Either there is no source, or the target's folder is missing: HDFS makes no parents for a rename.
            if await self._client.namenode.file_info(full_source) is None:
                raise
            await self._client.namenode.mkdirs(full_target.rpartition("/")[0] or "/")
            await self._client.namenode.rename(full_source, full_target, overwrite=overwrite)

    async def _reported_locations(self, full: str, position: int = 0, length: int = 1 << 62) -> pb.LocatedBlocks:
        """Return the blocks of [position, position + length) of a file; wait for the nodes of an open block.

        A NameNode that has just started or become active has the block from its edit log, and its nodes only once a
        datanode has reported it.  HDFS's own client waits, too (DFSInputStream.openInfo).  After ``report_timeout_s``
        the block is returned without nodes.
        """
        loop, settings, asked = asyncio.get_running_loop(), self._client.settings, 0
        until = loop.time() + settings.report_timeout_s
        while True:
            locations = await self._client.namenode.block_locations(full, position, length)
            block = KnownFile(locations).open_block
            if block is None or block.nodes or position + length <= block.offset or loop.time() >= until:
                return locations
            asked += 1
            await asyncio.sleep(settings.backoff_s.half_random(asked))

    async def _read_blocks(self, full: str, file: KnownFile, position: int, length: int) -> bytes:
        if policy := _policy(full, file):
            return await self._read_coded(full, policy, position, length)
        parts = []
        for located, start, stop, is_open in _stretches(file, position, position + length):
            is_large = stop - start >= self._client.settings.thread_read_min_bytes
            read = read_block_by_thread if is_large else read_block
            offset, shown = start - located.offset, file.shown
            parts.append(await read(self._client, located, offset, stop - start, is_open=is_open, shown=shown))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_coded(self, full: str, policy: str, position: int, length: int) -> bytes:
        """Read through hdfs-native, unless the NameNode denies the demand of encryption: the library obeys it alone."""
        await self._client.encryption.refuse_denied()
        return await self._coded.read(full, policy, position, length)


def _policy(full: str, file: KnownFile) -> str:
    """Return the erasure-coding policy of a file, empty if it is replicated.  Raises Unsupported if it is encrypted."""
    refuse_zone(full, file.locations)
    return policy_name(file.locations)


def _split(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Return consecutive parts of ``data``, the last ones shorter if it ends before."""
    ends = itertools.accumulate(lengths)
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]


async def _again_if_refused(read: Callable[[], Awaitable[T]]) -> T:
    """Read, and if all replicas refuse at once, read again with new block locations.

    A datanode has no file at the replica's place for a moment while it finalizes or moves it ("No data exists for
    block").  And just after a file was closed the NameNode may have a single replica only.  HDFS's own client requests
    the locations again, too (DFSInputStream.refetchLocations).  A read that failed slowly, since datanodes do not
    respond, is not repeated.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await read()
    except StorageUnavailable:
        if loop.time() - began > REFUSED_WITHIN_S:
            raise
    await asyncio.sleep(READ_AGAIN_S)
    return await read()


def _stretches(file: KnownFile, position: int, end: int) -> Iterator[tuple[pb.LocatedBlock, int, int, bool]]:
    """Give (block, start, stop, whether it is open) of each part of [position, end), as positions in the file.

    An open block comes last, and may show fewer bytes than its part.
    """
    open_block = file.open_block
    for located in file.locations.blocks:
        if open_block is not None and located.block.id == open_block.block.id:
            continue
        start, stop = max(position, located.offset), min(end, located.offset + located.block.length)
        if start < stop:
            yield located, start, stop, False
    if open_block is not None and end > open_block.offset:
        yield open_block, max(position, open_block.offset), end, True


def _blocks(locations: pb.LocatedBlocks) -> list[pb.LocatedBlock]:
    """Return all blocks of a file in order, the one that is being written too."""
    blocks = {located.block.id: located for located in locations.blocks}
    open_block = KnownFile(locations).open_block
    if open_block is not None:
        blocks.setdefault(open_block.block.id, open_block)
    return list(blocks.values())


def _status(path: str, info: pb.FileInfo) -> FileStatus:
    return FileStatus(
        path=path,
        length=info.length,
        is_dir=info.kind == pb.FileInfo.DIRECTORY,
        modified_ms=info.modification_time,
        file_id=info.file_id,
        block_bytes=info.block_size,
        owner=info.owner,
        group=info.group,
        mode=info.permission.mode & 0o777,
        coding=policy_name(info),
    )
