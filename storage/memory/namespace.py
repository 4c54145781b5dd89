"""The NameNode's tree and the datanodes' replicas, as plain data: no time, no chance, no waiting.

A file's bytes exist once, in ``File.data``: what its writer has handed over.  A replica is only a length into them,
which is exact, because a pipeline carries one stream: replicas of a generation differ in how far they got, never in
content.  A fence cuts ``data`` to the length that it settled on, and raises the generation, after which the old
writer's bytes go nowhere.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from enum import Enum

from bmq.storage.filesystem import AlreadyExists, FileStatus, NoSuchFile, StorageError
from bmq.storage.paths import join, split


class NodeState(Enum):
    UP = "up"
    STOPPED = "stopped"  # SIGSTOP: connections stay, nothing moves
    DEAD = "dead"  # kill -9: connections break, the disk keeps its bytes


class Datanode:
    __slots__ = ("delay_s", "name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = NodeState.UP
        self.delay_s = 0.0

    @property
    def is_up(self) -> bool:
        return self.state is NodeState.UP

    def __repr__(self) -> str:
        return f"{self.name}:{self.state.value}"


class Replica:
    """One datanode's copy.  It takes bytes only from a writer of its own ``generation``.

    ``is_waiting``: its datanode was restarted while it was open.  It shows no length, and gives no bytes, until the
    NameNode has recovered the file (HDFS: ReplicaWaitingToBeRecovered).
    """

    __slots__ = ("generation", "is_waiting", "length", "node")

    def __init__(self, node: Datanode, generation: int, length: int) -> None:
        self.node = node
        self.generation = generation
        self.length = length
        self.is_waiting = False

    def __repr__(self) -> str:
        return f"{self.node}@{self.generation}={self.length}"


class File:
    __slots__ = (
        "block_bytes",
        "data",
        "file_id",
        "generation",
        "holder",
        "incarnation",
        "is_deleted",
        "is_joined",
        "length",
        "modified_ms",
        "name",
        "parent",
        "replicas",
        "replication",
        "stamp",
        "synced",
        "told",
    )

    def __init__(
        self, file_id: int, name: str, parent: Folder, *, holder: str, incarnation: int, modified_ms: int
    ) -> None:
        self.file_id = file_id
        self.name = name
        self.parent = parent
        self.holder: str | None = holder  # None once closed
        self.incarnation = incarnation  # the NameNode's, when the block was begun
        self.block_bytes = 0
        self.data = bytearray()
        self.replicas: list[Replica] = []
        self.replication = 0  # as many replicas as the file is to have
        self.generation = 1  # of the writer that the NameNode accepts
        self.stamp = 1  # highest generation handed out
        self.length = 0  # as the NameNode knows it
        self.told = False  # whether it was ever told
        self.synced = 0  # bytes on the disks of all replicas
        self.is_deleted = False
        self.is_joined = False  # of several files, the nodes of the first of which are known
        self.modified_ms = modified_ms

    @property
    def is_open(self) -> bool:
        return self.holder is not None

    @property
    def reachable(self) -> list[Replica]:
        """Those that can be read."""
        return [replica for replica in self.replicas if replica.node.is_up and not replica.is_waiting]

    @property
    def needs_recovery(self) -> bool:
        """Whether none can be written to or read, and one could after a recovery of the lease."""
        return not self.reachable and any(replica.node.is_up for replica in self.replicas)

    def settle(self, length: int) -> None:
        """Closed, with exactly ``length`` bytes on every replica left."""
        del self.data[length:]
        self.synced = min(self.synced, length)
        for replica in self.replicas:
            replica.length = length
            replica.is_waiting = False
        self.length = length
        self.told = True
        self.holder = None

    def __repr__(self) -> str:
        state = f"open by {self.holder}" if self.is_open else "closed"
        return f"<File {self.file_id} {self.name} {state}, {self.length} told, {len(self.data)} sent, {self.replicas}>"


class Folder:
    __slots__ = ("children", "file_id", "modified_ms", "name", "names", "parent")

    def __init__(self, file_id: int, name: str, parent: Folder | None, *, modified_ms: int = 0) -> None:
        self.file_id = file_id
        self.name = name
        self.parent = parent
        self.children: dict[str, Inode] = {}
        self.names: list[str] = []  # sorted: code points order as UTF-8 bytes do
        self.modified_ms = modified_ms

    def put(self, inode: Inode) -> None:
        assert inode.name not in self.children
        self.children[inode.name] = inode
        insort(self.names, inode.name)
        inode.parent = self

    def drop(self, inode: Inode) -> None:
        del self.children[inode.name]
        del self.names[bisect_right(self.names, inode.name) - 1]

    def after(self, name: str, limit: int) -> list[Inode]:
        start = bisect_right(self.names, name)
        return [self.children[child] for child in self.names[start : start + limit]]


Inode = File | Folder


class Namespace:
    """The tree.  Inodes keep their id through every rename."""

    def __init__(self) -> None:
        self._next_id = 16385  # where HDFS begins, so that nobody takes an id for an index
        self.root = Folder(self._new_id(), "", None)
        self.files: dict[int, File] = {}

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def find(self, path: str) -> Inode | None:
        inode: Inode = self.root
        for name in split(path):
            child = inode.children.get(name) if isinstance(inode, Folder) else None
            if child is None:
                return None
            inode = child
        return inode

    def file(self, path: str) -> File:
        inode = self.find(path)
        if not isinstance(inode, File):
            raise NoSuchFile(path if inode is None else f"{path} is a folder")
        return inode

    def create(self, path: str, *, holder: str, incarnation: int, now_ms: int) -> File:
        *folders, name = self._names(path)
        folder = self.root
        for part in folders:
            child = folder.children.get(part)
            if child is None:
                child = Folder(self._new_id(), part, folder, modified_ms=now_ms)
                folder.put(child)
            if not isinstance(child, Folder):
                raise NoSuchFile(f"{path}: {part} is a file")
            folder = child
        if name in folder.children:
            raise AlreadyExists(path)
        file = File(self._new_id(), name, folder, holder=holder, incarnation=incarnation, modified_ms=now_ms)
        folder.put(file)
        self.files[file.file_id] = file
        return file

    def move(self, source: str, target: str) -> None:
        """Rename without overwriting."""
        inode = self.find(source)
        if inode is None or inode is self.root:
            raise NoSuchFile(source)
        *folders, name = self._names(target)
        folder = self.find("/" + "/".join(folders))
        if not isinstance(folder, Folder):
            raise NoSuchFile(f"{target} has no folder")
        if name in folder.children:
            raise AlreadyExists(target)
        above: Folder | None = folder
        while above is not None:
            if above is inode:
                raise StorageError(f"{source} cannot move into itself")
            above = above.parent
        assert inode.parent is not None
        inode.parent.drop(inode)
        inode.name = name
        folder.put(inode)

    def remove(self, inode: Inode) -> None:
        """Take a tree out.  Open files keep their writers: only the names are gone."""
        assert inode.parent is not None, "the root stays"
        inode.parent.drop(inode)
        for file in _files(inode):
            file.is_deleted = True
            del self.files[file.file_id]

    def path_of(self, inode: Inode) -> str:
        names: list[str] = []
        step: Inode = inode
        while step.parent is not None:
            names.append(step.name)
            step = step.parent
        return "/" + "/".join(reversed(names))

    def status(self, inode: Inode, folder: str | None = None) -> FileStatus:
        path = self.path_of(inode) if folder is None else join(folder, inode.name)
        return FileStatus(
            path=path,
            length=inode.length if isinstance(inode, File) else 0,
            is_dir=isinstance(inode, Folder),
            modified_ms=inode.modified_ms,
            file_id=inode.file_id,
            block_bytes=inode.block_bytes if isinstance(inode, File) else 0,
        )

    @staticmethod
    def _names(path: str) -> tuple[str, ...]:
        names = split(path)
        if not names:
            raise AlreadyExists("/ is the root")
        return names


def _files(inode: Inode) -> Iterator[File]:
    if isinstance(inode, File):
        yield inode
        return
    for name in inode.names:
        yield from _files(inode.children[name])
