"""The storage user of this process, as storage itself names it: the owner of what the process makes.

Principals and settings do not show the user: the NameNode maps principals to users by rules of its own
(``hadoop.security.auth_to_local``).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bmq.storage.filesystem import FileSystem


@runtime_checkable
class HasUser(Protocol):
    """A ``FileSystem`` whose files have an owner that all processes of a cluster must be."""

    async def user(self) -> str:
        """Return the owner of what this process makes.  Raises StorageError as ``user_of``."""


async def user_of(fs: FileSystem) -> str:
    """Return the user of this process; empty where files of one user are open to the cluster's other processes.

    Raises StorageError: NotAllowed without the right to write, Unsupported if the root cannot keep segments.
    """
    return await fs.user() if isinstance(fs, HasUser) else ""
