"""The NameNode's tree and the datanodes' replicas, as plain data: no time, no chance, no waiting.

A file's bytes exist once, in ``File.data``: those that its writer has written.  A replica is only a length into them.
A length is exact, because a pipeline carries one stream: replicas of a generation differ in length, never in content.
A fence cuts ``data`` to the final length, and raises the generation, after which bytes of the old writer are dropped.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from enum import Enum

from bmq.storage.filesystem import AlreadyExists, FileStatus, NoSuchFile, StorageError
from bmq.storage.paths import join, split

OWNER, GROUP = "bmq", "hadoop"
"""The user of every process, and the group of the root."""
FILE_MODE, FOLDER_MODE = 0o644, 0o755


class NodeState(Enum):
    """The state of a datanode's process."""

    UP = "up"
    STOPPED = "stopped"  # SIGSTOP: connections stay, nothing moves
    DEAD = "dead"  # kill -9: connections break, the disk keeps its bytes


class Datanode:
    """A datanode.  ``delay_s`` is added to each acknowledgement of its pipelines."""

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
    """One datanode's copy of a file.  It accepts bytes only from a writer of its own ``generation``.

    ``is_waiting``: the datanode was restarted while the replica was open.  Such a replica shows no length and no bytes
    until the NameNode has recovered the file (HDFS: ReplicaWaitingToBeRecovered).
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
    """A file: the NameNode's inode, its bytes, and its replicas.  It has one block."""

    __slots__ = (
        "block_bytes",
        "data",
        "file_id",
        "generation",
        "group",
        "has_length",
        "holder",
        "incarnation",
        "is_deleted",
        "is_joined",
        "length",
        "mode",
        "modified_ms",
        "name",
        "owner",
        "parent",
        "replicas",
        "replication",
        "stamp",
        "synced",
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
        self.replication = 0  # the number of replicas that the file is to have
        self.generation = 1  # of the writer that the NameNode accepts
        self.stamp = 1  # the highest generation given to a writer or a fence
        self.length = 0  # as the NameNode has it
        self.has_length = False  # whether a writer has sent the NameNode a length
        self.synced = 0  # bytes on the disks of all replicas
        self.is_deleted = False
        self.is_joined = False  # by concat: the replicas are then those of its first part
        self.modified_ms = modified_ms
        self.owner, self.group, self.mode = OWNER, parent.group, FILE_MODE

    @property
    def is_open(self) -> bool:
        """True while a writer holds the file's lease."""
        return self.holder is not None

    @property
    def reachable(self) -> list[Replica]:
        """The replicas that can be read."""
        return [replica for replica in self.replicas if replica.node.is_up and not replica.is_waiting]

    @property
    def needs_recovery(self) -> bool:
        """True if no replica can be written to or read, and one could after a recovery of the lease."""
        return not self.reachable and any(replica.node.is_up for replica in self.replicas)

    def settle(self, length: int) -> None:
        """Close the file with exactly ``length`` bytes on every replica that is left."""
        del self.data[length:]
        self.synced = min(self.synced, length)
        for replica in self.replicas:
            replica.length = length
            replica.is_waiting = False
        self.length = length
        self.has_length = True
        self.holder = None

    def __repr__(self) -> str:
        state = f"open by {self.holder}" if self.is_open else "closed"
        return f"<File {self.file_id} {self.name} {state}, {self.length} known, {len(self.data)} sent, {self.replicas}>"


class Folder:
    """A folder: its children by name, and their names in order."""

    __slots__ = ("children", "file_id", "group", "mode", "modified_ms", "name", "names", "owner", "parent")

    def __init__(self, file_id: int, name: str, parent: Folder | None, *, modified_ms: int = 0) -> None:
        self.file_id = file_id
        self.name = name
        self.parent = parent
        self.children: dict[str, Inode] = {}
        self.names: list[str] = []  # sorted: code points order as UTF-8 bytes do
        self.modified_ms = modified_ms
        self.owner, self.group, self.mode = OWNER, GROUP, FOLDER_MODE
        if parent is not None:
            self.group, self.mode = parent.group, parent.mode

    def put(self, inode: Inode) -> None:
        """Add a child; its name must be free."""
        assert inode.name not in self.children
        self.children[inode.name] = inode
        insort(self.names, inode.name)
        inode.parent = self

    def drop(self, inode: Inode) -> None:
        """Take a child out."""
        del self.children[inode.name]
        del self.names[bisect_right(self.names, inode.name) - 1]

    def after(self, name: str, limit: int) -> list[Inode]:
        """Return the first ``limit`` children with a name greater than ``name``."""
        start = bisect_right(self.names, name)
        return [self.children[child] for child in self.names[start : start + limit]]


Inode = File | Folder


class Namespace:
    """The NameNode's tree.  Inodes keep their id through every rename."""

    def __init__(self) -> None:
        self._next_id = 16385  # HDFS's first id, so that a test cannot confuse an id with an index
        self.root = Folder(self._new_id(), "", None)
        self.files: dict[int, File] = {}

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def find(self, path: str) -> Inode | None:
        """Return the file or folder at ``path``, None if there is none."""
        inode: Inode = self.root
        for name in split(path):
            child = inode.children.get(name) if isinstance(inode, Folder) else None
            if child is None:
                return None
            inode = child
        return inode

    def file(self, path: str) -> File:
        """Return the file at ``path``.  Raises NoSuchFile if there is none, or if it is a folder."""
        inode = self.find(path)
        if not isinstance(inode, File):
            raise NoSuchFile(path if inode is None else f"{path} is a folder")
        return inode

    def create(self, path: str, *, holder: str, incarnation: int, now_ms: int) -> File:
        """Add an empty open file, and the folders above it, which have the group and mode of those above them.

        Raises AlreadyExists if the name is taken, NoSuchFile if a name above it is a file's.
        """
        *folders, name = self._names(path)
        folder = self.make_folders(path, folders, now_ms=now_ms)
        if name in folder.children:
            raise AlreadyExists(path)
        file = File(self._new_id(), name, folder, holder=holder, incarnation=incarnation, modified_ms=now_ms)
        folder.put(file)
        self.files[file.file_id] = file
        return file

    def make_folders(self, path: str, folders: Iterable[str], *, now_ms: int, mode: int | None = None) -> Folder:
        """Return the folder with these names from the root on; those that are made have ``mode`` if it is given.

        Raises NoSuchFile, with ``path``, if a name is a file's.
        """
        folder = self.root
        for part in folders:
            child = folder.children.get(part)
            if child is None:
                child = Folder(self._new_id(), part, folder, modified_ms=now_ms)
                child.mode = child.mode if mode is None else mode
                folder.put(child)
            if not isinstance(child, Folder):
                raise NoSuchFile(f"{path}: {part} is a file")
            folder = child
        return folder

    def move(self, source: str, target: str) -> None:
        """Rename without overwriting.

        Raises NoSuchFile if there is no source or no folder for the target, AlreadyExists if the target's name is
        taken, StorageError if a folder would be moved into itself.
        """
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
        """Remove a file or a tree.  Open files keep their writers: only the names are gone."""
        assert inode.parent is not None, "the root stays"
        inode.parent.drop(inode)
        for file in _files(inode):
            file.is_deleted = True
            del self.files[file.file_id]

    def path_of(self, inode: Inode) -> str:
        """Return the path of an inode of this tree."""
        names: list[str] = []
        step: Inode = inode
        while step.parent is not None:
            names.append(step.name)
            step = step.parent
        return "/" + "/".join(reversed(names))

    def status(self, inode: Inode, folder: str | None = None) -> FileStatus:
        """Return the entry of ``inode``.  ``folder`` is the path of its parent, if the caller has it."""
        path = self.path_of(inode) if folder is None else join(folder, inode.name)
        return FileStatus(
            path=path,
            length=inode.length if isinstance(inode, File) else 0,
            is_dir=isinstance(inode, Folder),
            modified_ms=inode.modified_ms,
            file_id=inode.file_id,
            block_bytes=inode.block_bytes if isinstance(inode, File) else 0,
            owner=inode.owner,
            group=inode.group,
            mode=inode.mode,
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
