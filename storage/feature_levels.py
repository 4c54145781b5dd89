"""The levels of features on storage, for readers without a metadata store and for its rebuilding (``core.features``).

::

    /levels/<rebuild count, 5>-<revision, 19>[,<feature>=<level>[,held]]...      an empty folder

A folder's name is the whole of it: the highest levels, in force or intended, of the cluster's record at this revision
of the store.  The folder is made in one step, also where no datanode has room, and never changed.  The highest name
counts: a deposed leader takes nothing back with a late, older name.

A raised level is here before it is in force, and a lowered level leaves the store first.  So readers of storage know
all levels of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bmq.core.errors import FormatError
from bmq.core.features import Levels
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLevels:
    """The levels in a folder's name; ``held`` as in ``meta.cluster.levels``."""

    rebuild_count: int = 0
    revision: int = 0
    levels: Levels = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    @property
    def order(self) -> tuple[int, int]:
        """The order of the names: rebuild count, then revision."""
        return (self.rebuild_count, self.revision)


async def newest_levels(fs: FileSystem) -> StoredLevels:
    """Return the levels with the highest name; all are 0 if there is none.

    Raises StorageError, and FormatError if a name is of a later version: it may be the highest.
    """
    found = [_parse(child.path) async for child in fs.list(layout.LEVELS)]
    return max(found, key=lambda each: each.order, default=StoredLevels())


async def put_levels(fs: FileSystem, levels: StoredLevels) -> None:
    """Make the folder of these levels, and remove those with lower names.  May be repeated.  Raises StorageError."""
    await fs.make_folder(_path(levels))
    async for child in fs.list(layout.LEVELS):
        if _parse(child.path).order < levels.order:
            await fs.delete(child.path, recursive=True)


def _path(stored: StoredLevels) -> str:
    names = sorted(stored.levels.keys() | stored.held)
    return layout.feature_levels(
        stored.rebuild_count,
        stored.revision,
        [(name, stored.levels.get(name, 0), name in stored.held) for name in names],
    )


def _parse(path: str) -> StoredLevels:
    parsed = layout.parse_feature_levels(layout.base_name(path))
    if parsed is None:
        raise FormatError(f"{path} does not name levels of features as this version knows them")
    rebuild_count, revision, features = parsed
    return StoredLevels(
        rebuild_count=rebuild_count,
        revision=revision,
        levels={name: level for name, level, _ in features if level},
        held=frozenset(name for name, _, is_held in features if is_held),
    )
