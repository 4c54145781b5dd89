"""The HDFS user of this process: the owner of an empty folder that it makes in the root, and deletes.

The folder also shows whether the root can keep segments: it inherits the root's encryption zone and erasure coding, and
a fence must find files by their ids.
"""

from __future__ import annotations

import logging
import uuid

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import NoSuchFile, StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.fencing import inode_path
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.zones import policy_name, refuse_zone

_log = logging.getLogger(__name__)


async def own_user(namenode: NameNode, root: str) -> str:
    """Return the name that the NameNode has for this process.

    Raises NotAllowed without the right to write to ``root``.  Raises Unsupported if the root is in an encryption zone,
    or behind a router.
    """
    info = await _own_folder(namenode, root)
    refuse_zone(root, info)
    if policy := policy_name(info):
        _log.info(
            "the root has the erasure-coding policy %s: segments are replicated there all the same, since HDFS cannot"
            " flush erasure-coded files",
            policy,
            extra=fields(path=root),
        )
    return str(info.owner)


async def _own_folder(namenode: NameNode, root: str) -> pb.FileInfo:
    """Make a folder in the root, delete it, and return its entry."""
    path = f"{root.rstrip('/')}/.user-{uuid.uuid4().hex}"
    await namenode.mkdirs(path)
    try:
        info = await namenode.file_info(path)
        if info is not None:
            await _find_by_id(namenode, root, info)
    finally:
        try:
            await namenode.delete(path, recursive=False)
        except StorageError as error:
            _log.warning("an empty folder of the start stays behind", extra=fields(path=path, error=error))
    if info is None:
        raise NoSuchFile(f"{path} was deleted by another process")
    return info


async def _find_by_id(namenode: NameNode, root: str, info: pb.FileInfo) -> None:
    """Raise Unsupported if the entry is not found by its id: a fence would take a file for deleted.

    A router of HDFS's federation has mount points for paths, and none for ids.
    """
    problem = "another file is found by it"
    try:
        found = await namenode.file_info(inode_path(info.file_id))
        if found is not None and found.file_id == info.file_id:
            return
    except StorageUnavailable:
        raise
    except StorageError as error:
        problem = str(error)
    raise Unsupported(
        f"{root}: a folder is not found by its id ({problem}). Is this a router of HDFS's federation? Give the"
        " hdfs:// URL of the name service behind the mount point"
    )
