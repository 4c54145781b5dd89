"""The HDFS user of this process: the owner of an empty folder that it makes in the root, and deletes."""

from __future__ import annotations

import logging
import uuid

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import NoSuchFile, StorageError
from bmq.storage.hdfs.namenode import NameNode

_log = logging.getLogger(__name__)


async def own_user(namenode: NameNode, root: str) -> str:
    """Return the name that the NameNode has for this process.  Raises NotAllowed without the right to write to root."""
    path = f"{root.rstrip('/')}/.user-{uuid.uuid4().hex}"
    await namenode.mkdirs(path)
    try:
        info = await namenode.file_info(path)
    finally:
        try:
            await namenode.delete(path, recursive=False)
        except StorageError as error:
            _log.warning("an empty folder of the start stays behind", extra=fields(path=path, error=error))
    if info is None:
        raise NoSuchFile(f"{path} was deleted by another process")
    return str(info.owner)
