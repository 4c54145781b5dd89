"""The whole HDFS in memory: one NameNode, N datanodes, and the chance that moves them.

Processes reach it through ``MemoryFileSystem``.  What a test does to it directly (kill a datanode, restart the
NameNode) happens at once; what ``Faults`` does is drawn from the one ``Random`` given, so a seed replays exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

from bmq.storage.filesystem import (
    BlockPlace,
    CreateOptions,
    FileStatus,
    Lease,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.memory.faults import Faults, Range
from bmq.storage.memory.namespace import Datanode, File, Folder, Namespace, NodeState, Replica
from bmq.storage.paths import check_concat

if TYPE_CHECKING:
    from bmq.storage.memory.appender import MemoryAppender

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000  # wall time of loop time 0, so that modification times look like such and replay


class Opened:
    """What a writer was granted, as of when it was granted: a fence may come before the answer does."""

    __slots__ = ("file", "generation", "position", "replicas", "told")

    def __init__(self, file: File) -> None:
        self.file = file
        self.generation = file.generation
        self.position = len(file.data)
        self.replicas = tuple(file.replicas)
        self.told = file.told


class Fence:
    """What a fence knows between its steps: its own generation, and the replicas that stopped for it."""

    __slots__ = ("file", "length", "stamp", "stopped")

    def __init__(self, file: File) -> None:
        self.file = file
        self.length: int | None = None if file.is_open else file.length  # final, once known
        self.stamp = file.stamp
        self.stopped: list[Replica] = []


class MemoryStorage:
    """The servers.  ``faults`` may be replaced at any time; ``is_full`` makes every disk full."""

    def __init__(
        self,
        rng: Random | None = None,
        faults: Faults | None = None,
        *,
        datanodes: int | Sequence[str] = 4,
        page: int = 1000,
    ) -> None:
        names = [f"dn{n}" for n in range(datanodes)] if isinstance(datanodes, int) else list(datanodes)
        self.rng = rng or Random(0)
        self.faults = faults or Faults()
        self.page = page  # names per listing call
        self.datanodes = {name: Datanode(name) for name in names}
        self.namespace = Namespace()
        self.is_full = False
        self.appenders: dict[MemoryAppender, None] = {}  # open, in order of opening
        self.incarnation = 1  # NameNode starts
        self._namenode_up_at = 0.0
        self._writable_at = 0.0  # end of safe mode

    # Chance and time

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def draw(self, between: Range) -> float:
        """Seconds; costs no random number when there is nothing to draw, so that unit tests stay plain."""
        return self.rng.uniform(*between) if between[1] > 0 else 0.0

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.now() * 1000)

    # What tests do to it

    def kill_datanode(self, name: str) -> None:
        """kill -9: its connections break; its disk keeps what it has until ``start_datanode``.  Open replicas wait for
        recovery from then on."""
        node = self.datanodes[name]
        node.state = NodeState.DEAD
        for file in self.namespace.files.values():
            for replica in file.replicas if file.is_open else ():
                replica.is_waiting |= replica.node is node
        for appender in self._writers(node):
            appender.node_died(node)

    def start_datanode(self, name: str) -> None:
        self.datanodes[name].state = NodeState.UP

    def stop_datanode(self, name: str) -> None:
        """SIGSTOP: what waits for it waits."""
        assert self.datanodes[name].is_up, f"{self.datanodes[name]} cannot be stopped"
        self.datanodes[name].state = NodeState.STOPPED

    def resume_datanode(self, name: str) -> None:
        node = self.datanodes[name]
        assert node.state is NodeState.STOPPED, f"{node} was not stopped"
        node.state = NodeState.UP
        for appender in self._writers(node):
            appender.advance()

    def slow_datanode(self, name: str, delay_s: float) -> None:
        """Every pipeline through it takes ``delay_s`` more to answer; 0 heals."""
        self.datanodes[name].delay_s = delay_s

    def restart_namenode(self, down_s: float, *, safe_mode_s: float = 0.0) -> None:
        """Gone for ``down_s``, then read-only for ``safe_mode_s``; pipelines go on, lengths never told are lost."""
        self.incarnation += 1
        self._namenode_up_at = self.now() + down_s
        self._writable_at = self._namenode_up_at + safe_mode_s

    def lose_power(self, *, is_partial: bool) -> None:
        """All datanodes at once, and the NameNode: what was never synced is gone, or any part of it (``is_partial``).

        Names and the NameNode's edits are on its disk.  The caller ends the clients' processes.
        """
        for file in self.namespace.files.values():
            kept = self.rng.randint(file.synced, max(file.synced, len(file.data))) if is_partial else file.synced
            del file.data[kept:]
            for replica in file.replicas:
                replica.length = min(replica.length, kept)
            if file.is_open:
                file.length = min(file.length, kept)
        self.restart_namenode(0.0)

    def open_files(self) -> dict[str, str]:
        """Path to holder."""
        files = self.namespace.files.values()
        return {self.namespace.path_of(file): file.holder for file in files if file.holder is not None}

    def _writers(self, node: Datanode) -> list[MemoryAppender]:
        return [appender for appender in self.appenders if any(r.node is node for r in appender.replicas)]

    # The NameNode's side of a call

    def wait_s(self, *, writes: bool) -> float:
        """Seconds until the NameNode takes such a call."""
        return max(0.0, (self._writable_at if writes else self._namenode_up_at) - self.now())

    def serve(self, operation: Callable[[], T]) -> T:
        """One call, arrived at a NameNode that is up: the operation, or what chance makes of it."""
        if self.chance(self.faults.namenode_dies):
            self.restart_namenode(self.draw(self.faults.namenode_down_s))
            raise StorageUnavailable("the NameNode went down")
        if self.chance(self.faults.unavailable):
            raise StorageUnavailable("the NameNode is busy")
        answer = operation()
        if self.chance(self.faults.lost_answer):
            raise StorageUnavailable("the answer was lost")
        return answer

    def create(self, path: str, holder: str, options: CreateOptions) -> Opened:
        if self.is_full or self.chance(self.faults.out_of_space):
            raise OutOfSpace(f"{path}: no datanode has room")
        fails = self.chance(self.faults.create_fails)
        if fails and self.chance(0.5):
            raise StorageUnavailable(f"{path}: no pipeline")
        file = self.namespace.create(path, holder=holder, incarnation=self.incarnation, now_ms=self.now_ms())
        file.block_bytes = options.block_bytes
        file.replication = options.replication
        nodes = self._choose(options)
        if fails or not nodes:
            suspects = [node.name for node in nodes[:1]]
            raise PipelineFailed(f"{path} is made, but has no pipeline", suspects)  # and stays open: ours to fence
        file.replicas = [Replica(node, file.generation, 0) for node in nodes]
        return Opened(file)

    def append(self, path: str, holder: str) -> Opened:
        file = self.namespace.file(path)
        if file.is_open:
            raise LeaseLost(f"{path} is open by {file.holder}")
        if self.is_full:
            raise OutOfSpace(f"{path}: no datanode has room")
        if not file.reachable or self.chance(self.faults.create_fails):
            raise PipelineFailed(f"{path}: no pipeline", [replica.node.name for replica in file.replicas[:1]])
        file.holder = holder
        file.stamp += 1
        file.generation = file.stamp
        file.replicas = file.reachable
        for replica in file.replicas:
            replica.generation = file.generation
        return Opened(file)

    def complete(self, file: File, generation: int) -> int:
        """Close after the last acknowledgement; only the writer that the NameNode knows may."""
        if file.is_deleted or file.generation != generation or not file.is_open:
            raise LeaseLost(f"{file.name} is not yours to close")
        self._settle(file, len(file.data))
        return file.length

    def tell_length(self, file: File, generation: int, length: int) -> None:
        """ClientProtocol.fsync after the first flush: from now on a restart cannot make the block empty."""
        if file.is_deleted or file.generation != generation or not file.is_open:
            raise LeaseLost(f"{file.name} is no longer yours")
        file.length = length
        file.told = True

    def status(self, path: str) -> FileStatus:
        inode = self.namespace.find(path)
        if inode is None:
            raise NoSuchFile(path)
        return self.namespace.status(inode)

    def block_places(self, path: str) -> list[BlockPlace]:
        """One block a file, on the nodes that answer."""
        inode = self.namespace.find(path)
        if not isinstance(inode, File):
            raise NoSuchFile(path)
        if not inode.replicas:
            return []
        return [BlockPlace(0, inode.length, tuple(replica.node.name for replica in inode.reachable))]

    def copies(self, path: str) -> int:
        """Count the replicas that can be read.  The NameNode then makes one more of a closed file that has too few."""
        file = self.namespace.file(path)
        copies = len(file.reachable)
        if copies and not file.is_open and copies < file.replication:
            holders = [replica.node for replica in file.replicas]
            free = [node for node in self.datanodes.values() if node.is_up and node not in holders]
            file.replicas += [Replica(node, file.generation, file.length) for node in free[:1]]
        return copies

    def list_page(self, path: str, after: str) -> list[FileStatus]:
        folder = self.namespace.find(path)
        if not isinstance(folder, Folder):
            return []
        return [self.namespace.status(child, path) for child in folder.after(after, self.page)]

    def replace(self, source: str, target: str) -> None:
        old = self.namespace.find(target)
        if old is not None and self.namespace.find(source) is old:
            return
        if isinstance(old, Folder):
            raise StorageError(f"{target} is a folder")
        if old is not None:
            self._closed(target)
            self.namespace.file(source)
            self.namespace.remove(old)
        self.namespace.move(source, target)

    def delete(self, path: str, *, recursive: bool) -> bool:
        """An open file's writer goes on being acknowledged: HDFS's datanodes do not ask the NameNode."""
        inode = self.namespace.find(path)
        if inode is None:
            return False
        if inode is self.namespace.root or (isinstance(inode, Folder) and inode.names and not recursive):
            raise StorageError(f"{path} is not empty")
        self.namespace.remove(inode)
        return True

    def concat(self, target: str, sources: Sequence[str]) -> None:
        check_concat(target, sources)
        joined, parts = self._closed(target), [self._closed(source) for source in sources]
        if any(part.block_bytes > joined.block_bytes for part in parts):
            raise StorageError(f"{target} has smaller blocks than what is to be appended to it")
        for part in parts:
            if joined.synced == len(joined.data):
                joined.synced += part.synced
            joined.data += part.data
            self.namespace.remove(part)
        joined.is_joined = True
        self._settle(joined, len(joined.data))  # replicas stay the target's: the model keeps no block list

    def _closed(self, path: str) -> File:
        file = self.namespace.file(path)
        if file.is_open:
            raise LeaseLost(f"{path} is open by {file.holder}")
        return file

    def _settle(self, file: File, length: int) -> None:
        file.settle(length)
        file.modified_ms = self.now_ms()

    def _choose(self, options: CreateOptions) -> list[Datanode]:
        """Fewer than asked rather than an excluded one; an excluded one rather than none."""
        up = [node for node in self.datanodes.values() if node.is_up]
        wanted = [node for node in up if node.name not in options.exclude] or up
        return self.rng.sample(wanted, min(options.replication, len(wanted)))

    # Fencing, step by step: see DESIGN, same-holder takeover

    def begin_fence(self, lease: Lease) -> Fence:
        """A new generation for the file, if it is open at all."""
        file = self._leased(lease)
        if file.is_open:
            file.stamp += 1
        return Fence(file)

    @staticmethod
    def stop_writer(fence: Fence, replica: Replica, *, recovery: bool) -> None:
        """On one datanode: the old writer is cut off there, hence everywhere, since an ack needs all.  One that waits
        for recovery takes part in nothing else."""
        if replica.node.is_up and replica.generation < fence.stamp and (recovery or not replica.is_waiting):
            replica.generation = fence.stamp
            fence.stopped.append(replica)

    def commit_fence(self, fence: Fence, *, recovery: bool, sync: bool) -> int | None:
        """The linearisation point: the final length.  None when nobody stopped, or another fence overtook this one.

        Each replica of the pipeline has every acknowledged byte, so the length of any of them is right.
        """
        file = fence.file
        if file.is_deleted:
            raise NoSuchFile(f"{file.name} was deleted")
        survivors = [replica for replica in fence.stopped if replica.generation == fence.stamp]
        overtaken = file.generation >= fence.stamp or not file.is_open
        if overtaken or (file.replicas and not survivors):
            return None
        lengths = [replica.length for replica in survivors] or [0]
        length = min(lengths) if recovery else max(lengths)
        if recovery and not file.told and file.incarnation != self.incarnation:
            length = 0  # a restarted NameNode takes a block that it never heard a length of for an empty one
        file.generation = fence.stamp
        file.replicas = survivors
        self._settle(file, length)
        if sync:
            file.synced = length
        return length

    def _leased(self, lease: Lease) -> File:
        if lease.file_id:
            file = self.namespace.files.get(lease.file_id)
            if file is None:
                raise NoSuchFile(f"{lease.paths}, id {lease.file_id}")
            return file
        for path in lease.paths:
            inode = self.namespace.find(path)
            if isinstance(inode, File):
                return inode
        raise NoSuchFile(f"{lease.paths}")
