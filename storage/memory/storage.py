"""A whole HDFS in memory: one NameNode, N datanodes, and random faults.

Processes reach it through ``MemoryFileSystem``.  The faults that a test makes directly (kill a datanode, restart the
NameNode) happen at once.  The faults of ``Faults`` are drawn from the given ``Random``, so a seed replays exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

from bmq.core.file_access import Access
from bmq.storage.access import REFUSALS
from bmq.storage.filesystem import (
    Appender,
    BlockPlace,
    CreateOptions,
    FileStatus,
    Lease,
    LeaseLost,
    NoSuchFile,
    NotAllowed,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unjoinable,
)
from bmq.storage.memory.faults import Faults, Range
from bmq.storage.memory.namespace import Datanode, File, Folder, Namespace, NodeState, Replica
from bmq.storage.paths import check_concat, split

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000  # wall time of loop time 0, so that modification times are plausible and replay


class OpenWriter(Appender, Protocol):
    """The writer of an open file, as its datanodes and its process see it, too.

    The class is ``MemoryAppender``; its module imports this module.
    """

    @property
    def process(self) -> object: ...

    @property
    def replicas(self) -> Sequence[Replica]: ...

    def node_died(self, node: Datanode) -> None: ...

    def process_died(self) -> None: ...

    def process_resumed(self) -> None: ...

    def advance(self) -> None: ...


class Opened:
    """The file as it was when a writer was granted it: a fence may come before the response arrives."""

    __slots__ = ("file", "generation", "has_length", "position", "replicas")

    def __init__(self, file: File) -> None:
        self.file = file
        self.generation = file.generation
        self.position = len(file.data)
        self.replicas = tuple(file.replicas)
        self.has_length = file.has_length


class Fence:
    """The state of a fence between its steps: its own generation, and the replicas that stopped for it.

    ``length`` is the final length if the file was closed already, else None.
    """

    __slots__ = ("file", "length", "stamp", "stopped")

    def __init__(self, file: File) -> None:
        self.file = file
        self.length: int | None = None if file.is_open else file.length
        self.stamp = file.stamp
        self.stopped: list[Replica] = []


class MemoryStorage:
    """The servers of the memory HDFS.

    ``datanodes`` is their number, or their names; ``page`` is the number of names in a response to a listing.
    ``faults`` may be replaced at any time; ``is_full`` makes every disk full.
    """

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
        self.page = page
        self.datanodes = {name: Datanode(name) for name in names}
        self.namespace = Namespace()
        self.is_full = False
        self.refused_names: frozenset[str] = frozenset()
        """Users and groups that files cannot be given to."""
        self.appenders: dict[OpenWriter, None] = {}  # open, in order of opening
        self.incarnation = 1  # NameNode starts
        self._stalled_until = 0.0
        self._namenode_up_at = 0.0
        self._writable_at = 0.0  # end of safe mode

    # Chance and time

    def chance(self, probability: float) -> bool:
        """Return True with this probability.  At 0 no random number is drawn."""
        return probability > 0 and self.rng.random() < probability

    def draw(self, between: Range) -> float:
        """Return a number of seconds in the range.

        At (0, 0) no random number is drawn, so that unit tests without faults need no seed.
        """
        return self.rng.uniform(*between) if between[1] > 0 else 0.0

    @staticmethod
    def now() -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        """Return the wall time in milliseconds, which follows the loop's time."""
        return EPOCH_MS + int(self.now() * 1000)

    # Faults that tests make

    def kill_datanode(self, name: str) -> None:
        """Kill a datanode (``kill -9``): its connections break, and its disk keeps its bytes until ``start_datanode``.

        Its open replicas wait for recovery from then on.
        """
        node = self.datanodes[name]
        node.state = NodeState.DEAD
        for file in self.namespace.files.values():
            for replica in file.replicas if file.is_open else ():
                replica.is_waiting |= replica.node is node
        for appender in self._writers(node):
            appender.node_died(node)

    def start_datanode(self, name: str) -> None:
        """Start a killed datanode again."""
        self.datanodes[name].state = NodeState.UP

    def stop_datanode(self, name: str) -> None:
        """Stop a datanode (SIGSTOP): calls and flushes that need it wait until ``resume_datanode``."""
        assert self.datanodes[name].is_up, f"{self.datanodes[name]} cannot be stopped"
        self.datanodes[name].state = NodeState.STOPPED

    def resume_datanode(self, name: str) -> None:
        """Continue a stopped datanode (SIGCONT)."""
        node = self.datanodes[name]
        assert node.state is NodeState.STOPPED, f"{node} was not stopped"
        node.state = NodeState.UP
        for appender in self._writers(node):
            appender.advance()

    def slow_datanode(self, name: str, delay_s: float) -> None:
        """Delay the acknowledgements of every pipeline through a datanode by ``delay_s``; 0 ends that."""
        self.datanodes[name].delay_s = delay_s

    def restart_namenode(self, down_s: float, *, safe_mode_s: float = 0.0) -> None:
        """Restart the NameNode: it is down for ``down_s``, then in safe mode (read-only) for ``safe_mode_s``.

        Pipelines go on; the lengths of open blocks that were never sent to the NameNode are lost.
        """
        self.incarnation += 1
        self._namenode_up_at = self.now() + down_s
        self._writable_at = self._namenode_up_at + safe_mode_s

    def stall_namenode(self, seconds: float) -> None:
        """Stop the NameNode for so long (a pause of its garbage collector): calls wait, nothing is lost."""
        self._stalled_until = self.now() + seconds

    def lose_power(self, *, is_partial: bool) -> None:
        """End the power of all datanodes and the NameNode: bytes never synced are lost.

        ``is_partial``: a random part of them is lost.  Names and the NameNode's edits are on its disk.  The caller ends
        the clients' processes.
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
        """Return the open files, from path to holder."""
        files = self.namespace.files.values()
        return {self.namespace.path_of(file): file.holder for file in files if file.holder is not None}

    def _writers(self, node: Datanode) -> list[OpenWriter]:
        return [appender for appender in self.appenders if any(r.node is node for r in appender.replicas)]

    # The NameNode's side of a call

    @property
    def stalled_s(self) -> float:
        """Seconds until a stalled NameNode takes the calls that wait, 0 if it is not stalled."""
        return max(0.0, self._stalled_until - self.now())

    def wait_s(self, *, writes: bool) -> float:
        """Return the seconds until the NameNode accepts a call, 0 if it does now; ``writes``: the call is a write."""
        return max(0.0, (self._writable_at if writes else self._namenode_up_at) - self.now())

    def serve(self, operation: Callable[[], T]) -> T:
        """Perform a call that has arrived at a running NameNode, and return its result.

        Raises StorageUnavailable by the faults' chance, also after the operation was done (``lost_answer``).
        """
        if self.chance(self.faults.namenode_dies):
            self.restart_namenode(self.draw(self.faults.namenode_down_s))
            raise StorageUnavailable("the NameNode went down")
        if self.chance(self.faults.unavailable):
            raise StorageUnavailable("the NameNode is busy")
        response = operation()
        if self.chance(self.faults.lost_answer):
            raise StorageUnavailable("the response was lost")
        return response

    def create(self, path: str, holder: str, options: CreateOptions) -> Opened:
        """Create an open file with a pipeline.

        Raises PipelineFailed if the pipeline fails: the empty file stays open then, and its holder must fence it.
        """
        if self.is_full or self.chance(self.faults.out_of_space):
            raise OutOfSpace(f"{path}: no datanode has room")
        fails = self.chance(self.faults.create_fails)
        if fails and self.chance(0.5):
            raise StorageUnavailable(f"{path}: no pipeline")
        file = self.namespace.create(path, holder=holder, incarnation=self.incarnation, now_ms=self.now_ms())
        file.block_bytes = options.block_bytes
        file.replication = options.replication
        if options.access.is_given:
            self.give_new(file, options.access)
        nodes = self._choose(options)
        if fails or not nodes:
            suspects = [node.name for node in nodes[:1]]
            raise PipelineFailed(f"{path} is created, but has no pipeline", suspects)
        file.replicas = [Replica(node, file.generation, 0) for node in nodes]
        return Opened(file)

    def append(self, path: str, holder: str) -> Opened:
        """Open a closed file again, with a new generation, on its reachable replicas."""
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
        """Close a file after its last acknowledgement, and return its length.

        Raises LeaseLost unless ``generation`` is the writer's that the NameNode accepts.
        """
        if file.is_deleted or file.generation != generation or not file.is_open:
            raise LeaseLost(f"{file.name} is fenced, closed or deleted: its writer cannot close it")
        self._settle(file, len(file.data))
        return file.length

    def store_length(self, file: File, generation: int, length: int) -> None:
        """Store an open block's length (``ClientProtocol.fsync``, which the writer calls after the first flush).

        From now on a restart of the NameNode cannot make the block empty.  Raises LeaseLost as ``complete``.
        """
        if file.is_deleted or file.generation != generation or not file.is_open:
            raise LeaseLost(f"{file.name} is fenced, closed or deleted: its writer cannot set its length")
        file.length = length
        file.has_length = True

    def status(self, path: str) -> FileStatus:
        """Return the namespace's entry for ``path``.  Raises NoSuchFile if there is none."""
        inode = self.namespace.find(path)
        if inode is None:
            raise NoSuchFile(path)
        return self.namespace.status(inode)

    def block_places(self, path: str) -> list[BlockPlace]:
        """Return the file's block, one a file, with the nodes that can be read; empty without replicas."""
        inode = self.namespace.find(path)
        if not isinstance(inode, File):
            raise NoSuchFile(path)
        if not inode.replicas:
            return []
        return [BlockPlace(0, inode.length, tuple(replica.node.name for replica in inode.reachable))]

    def copies(self, path: str) -> int:
        """Count the readable replicas; then the NameNode makes another one, if a closed file has too few."""
        file = self.namespace.file(path)
        copies = len(file.reachable)
        if copies and not file.is_open and copies < file.replication:
            holders = [replica.node for replica in file.replicas]
            free = [node for node in self.datanodes.values() if node.is_up and node not in holders]
            file.replicas += [Replica(node, file.generation, file.length) for node in free[:1]]
        return copies

    def list_page(self, path: str, after: str) -> list[FileStatus]:
        """Return the first ``page`` children with names greater than ``after``; none for a missing folder."""
        folder = self.namespace.find(path)
        if not isinstance(folder, Folder):
            return []
        return [self.namespace.status(child, path) for child in folder.after(after, self.page)]

    def make_folder(self, path: str, access: Access) -> None:
        """Make a folder and its parents, unless they are there."""
        self.namespace.make_folders(path, split(path), now_ms=self.now_ms(), mode=access.mode)

    def set_access(self, path: str, access: Access) -> bool:
        """Give a file or folder what is asked for, as HDFS: raises NotAllowed for those in ``refused_names``."""
        inode = self.namespace.find(path)
        if inode is None:
            raise NoSuchFile(path)
        if refused := {access.owner, access.group} & self.refused_names:
            raise NotAllowed(f"{path}: may not set {', '.join(sorted(refused))}")
        inode.owner = access.owner or inode.owner
        inode.group = access.group or inode.group
        inode.mode = inode.mode if access.mode is None else access.mode
        return True

    def give_new(self, file: File, access: Access) -> None:
        """Give a new file its mode, and its owner if this user may; its group is the folder's."""
        file.mode = file.mode if access.mode is None else access.mode & 0o666
        if access.owner in self.refused_names:
            REFUSALS.note(file.name, NotAllowed(f"may not set {access.owner}"))
        else:
            file.owner = access.owner or file.owner

    def replace(self, source: str, target: str) -> None:
        """Rename, overwriting a closed ``target``.  Raises LeaseLost if it is open, StorageError if it is a folder."""
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
        """Remove a file or folder, and return False if there is none.

        The writer of an open file is still acknowledged: HDFS's datanodes do not ask the NameNode.
        """
        inode = self.namespace.find(path)
        if inode is None:
            return False
        if inode is self.namespace.root or (isinstance(inode, Folder) and inode.names and not recursive):
            raise StorageError(f"{path} is not empty")
        self.namespace.remove(inode)
        return True

    def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        """Join closed files.  Raises Unjoinable if the target's blocks are smaller than a source's, as HDFS does."""
        check_concat(target, sources)
        joined, parts = self._closed(target), [self._closed(source) for source in sources]
        if target_bytes not in (None, len(joined.data)):
            raise LeaseLost(f"{target} is {len(joined.data)} bytes long, not {target_bytes}")
        if any(part.block_bytes > joined.block_bytes for part in parts):
            raise Unjoinable(f"{target} has smaller blocks than a file that is to be appended to it")
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
        """Choose the nodes of a pipeline: none that is excluded, unless only such nodes are up."""
        up = [node for node in self.datanodes.values() if node.is_up]
        wanted = [node for node in up if node.name not in options.exclude] or up
        return self.rng.sample(wanted, min(options.replication, len(wanted)))

    # Fencing, step by step, as in storage/hdfs/fencing.py

    def begin_fence(self, lease: Lease) -> Fence:
        """Begin a fence: a file that is open gets a new generation."""
        file = self._leased(lease)
        if file.is_open:
            file.stamp += 1
        return Fence(file)

    @staticmethod
    def stop_writer(fence: Fence, replica: Replica, *, recovery: bool) -> None:
        """Stop the old writer on one datanode, hence everywhere, since an acknowledgement needs all datanodes.

        A replica that waits for recovery takes part only in a recovery.
        """
        if replica.node.is_up and replica.generation < fence.stamp and (recovery or not replica.is_waiting):
            replica.generation = fence.stamp
            fence.stopped.append(replica)

    def commit_fence(self, fence: Fence, *, recovery: bool, sync: bool) -> int | None:
        """Close the file, and return its final length: the linearisation point of the fence.

        The result is None if no datanode stopped, or another fence overtook this one.  Each replica of the pipeline has
        every acknowledged byte, so the length of any of them is right.
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
        if recovery and not file.has_length and file.incarnation != self.incarnation:
            length = 0  # a restarted NameNode takes a block for empty if it never received its length
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
