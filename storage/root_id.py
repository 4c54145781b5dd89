"""The id of a root: a random name that distinguishes two roots of one cluster.

::

    /root.json      {"format": 1, "root_id": ...}

The metadata store has the id of the root that the cluster is served from (``meta.root``); a process whose ``--root``
has another one, or none, does not serve.  The file is written once, under a temporary name that is renamed, and never
changed: if several processes make it at once, one wins, and all read the same id.  The id is not part of
``cluster.json``, which is replaced when a store is rebuilt.
"""

from __future__ import annotations

import contextlib
import uuid

from bmq.core.errors import FormatError
from bmq.storage import layout
from bmq.storage.cluster_files import FILE_BYTES_MAX, FORMAT, parse_file, write_whole
from bmq.storage.filesystem import AlreadyExists, FileSystem, NoSuchFile


async def read_root_id(fs: FileSystem) -> str:
    """Return the root's id, "" if it has none.  Raises FormatError if ``/root.json`` is not such a file."""
    try:
        raw = parse_file(layout.ROOT, await fs.read(layout.ROOT, 0, FILE_BYTES_MAX))
    except NoSuchFile:
        return ""
    found = raw.get("root_id")
    if not isinstance(found, str) or not found:
        raise FormatError(f"{layout.ROOT} has no root_id")
    return found


async def make_root_id(fs: FileSystem) -> str:
    """Return the root's id, and make one if it has none.  Raises FormatError as ``read_root_id`` does."""
    found = await read_root_id(fs)
    if found:
        return found
    with contextlib.suppress(AlreadyExists):  # another process was faster: its id is read
        await write_whole(fs, layout.ROOT, {"format": FORMAT, "root_id": uuid.uuid4().hex})
    return await read_root_id(fs)
