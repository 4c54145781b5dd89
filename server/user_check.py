"""The check that all processes of a cluster are one storage user.

On HDFS a process fences, renames and deletes the files of other processes.  The NameNode lets only the files' owner do
so.  A second user would find out at its first takeover, so a process announces its user, and is refused at its start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bmq.core.logging.fields import fields
from bmq.meta.cluster.member import Member
from bmq.storage.filesystem import FileSystem, OutOfSpace, StorageUnavailable
from bmq.storage.user import user_of

_log = logging.getLogger(__name__)


async def announced_user(fs: FileSystem) -> str:
    """Return the user to announce; empty if storage has none, or cannot show it now: safe mode, a full quota.

    Raises StorageError, as without rights on the root.
    """
    try:
        return await user_of(fs)
    except (StorageUnavailable, OutOfSpace) as error:
        _log.warning(
            "storage does not show this process's user: it is not compared with the members'",
            extra=fields(path=fs.url, error=error),
        )
        return ""


def refusal(own: Member, members: Iterable[Member]) -> str:
    """Return why this process must end: a member is another user; empty if none is.

    A member without a user has none, or is of a version that announces none.  A starting process yields
    to a serving one.  Otherwise the process with the higher name yields.
    """
    for member in members:
        if "" in (own.hdfs_user, member.hdfs_user) or member.hdfs_user == own.hdfs_user:
            continue
        if (own.is_starting, own.incarnation) > (member.is_starting, member.incarnation):
            return (
                f"this process is the HDFS user {own.hdfs_user}, and the member {member.incarnation} is"
                f" {member.hdfs_user}: all processes of a cluster must be one user, since each fences and deletes the"
                " files of others. Give all of them the same HADOOP_USER_NAME, or keytabs whose principals"
                " hadoop.security.auth_to_local maps to one user"
            )
    return ""
