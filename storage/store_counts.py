"""The newest count of the metadata store that a leader has left on the root: see ``core.store_count``.

::

    /store/<rebuild count, 5>-<number, 19>-<id>      an empty folder

A folder's name is the whole of it.  A folder is made in one step, also where no datanode has room, and is never
changed.  A former leader that makes an older folder late takes nothing back, since the highest name counts.
"""

from __future__ import annotations

from bmq.core.store_count import StoreCount
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem


async def newest_store_counts(fs: FileSystem) -> list[StoreCount]:
    """Return the highest count on the root; empty if there is none.  Raises StorageError.

    Two equal counts with different ids are of two copies of a store.
    """
    found = [layout.parse_store_count(layout.base_name(child.path)) async for child in fs.list(layout.STORE)]
    counts = [count for count in found if count is not None]
    highest = max((count.order for count in counts), default=(0, 0))
    return [count for count in counts if count.order == highest]


async def put_store_count(fs: FileSystem, count: StoreCount) -> None:
    """Leave a count that the store already has on the root, and remove those below it.

    May be repeated.  Raises StorageError.
    """
    await fs.make_folder(layout.store_count(count))
    async for child in fs.list(layout.STORE):
        other = layout.parse_store_count(layout.base_name(child.path))
        if other is not None and other.order < count.order:
            await fs.delete(child.path, recursive=True)
