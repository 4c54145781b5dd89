"""The health of an HDFS as its NameNodes report it to any user: HA state, safe mode, room, the root's quota.

``getHAServiceState`` and ``setSafeMode`` with the action GET need no superuser, and a standby serves them too
(NameNodeRpcServer).  ``getQuotaUsage`` falls back to a content summary if no quota is set, which counts the root's
files as ``hdfs dfs -count`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from bmq.core.aio.tasks import cancel_and_wait
from bmq.storage.filesystem import NotAllowed, StorageError, Unsupported
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import Authenticator, SimpleAuthenticator
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.zones import zone_refusal
from bmq.storage.health import NameNodeState, StorageHealth

HA_STATES = ("initializing", "active", "standby", "observer")


async def ask_namenodes(
    address: HdfsAddress, timeout_s: float, make_identity: Callable[[], Authenticator] = SimpleAuthenticator.for_user
) -> Sequence[NameNodeState]:
    """Return the HA state of each NameNode of an address; all are called at once, for ``timeout_s`` at most.

    ``make_identity`` makes the identity of each call, and its exceptions end all calls.  The state of a NameNode that
    does not respond has an ``error``.
    """
    settings = HdfsSettings()
    timeout_s = min(timeout_s, settings.call_timeout_s)
    settings = replace(settings, call_timeout_s=timeout_s, call_deadline_s=timeout_s)
    loop = asyncio.get_running_loop()
    calls = [loop.create_task(_ask_namenode(*each, settings, make_identity)) for each in address.namenodes]
    try:
        return await asyncio.gather(*calls)
    finally:
        await cancel_and_wait(*calls)  # an identity that cannot be made ends the wait, and not the other calls


async def _ask_namenode(
    host: str, port: int, settings: HdfsSettings, make_identity: Callable[[], Authenticator]
) -> NameNodeState:
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    namenode = NameNode(((host, port),), settings, make_identity())  # here: an earlier one may not be closed
    try:
        state = await namenode.ha_state()
    except NotAllowed as error:
        return NameNodeState(name, error=str(error))  # the log-in was refused
    except Unsupported:
        return NameNodeState(name)  # it responds: it is the only one, or is older than Hadoop 3.3, or demands Kerberos
    except StorageError as error:
        return NameNodeState(name, error=str(error))
    finally:
        await namenode.close()
    return NameNodeState(name, HA_STATES[state] if state < len(HA_STATES) else str(state))


async def read_health(namenode: NameNode, root: str) -> StorageHealth:
    """Return the health that the active NameNode reports.  Raises StorageError if it does not respond.

    The quotas are those of the folder ``root``; they are left out if it does not exist yet.
    """
    is_in_safe_mode = await namenode.is_in_safe_mode()
    stats = await namenode.stats()
    info = await namenode.file_info(root)
    health = StorageHealth(
        capacity_bytes=stats.capacity,
        remaining_bytes=stats.remaining,
        is_in_safe_mode=is_in_safe_mode,
        missing_blocks=stats.missing_blocks,
    )
    if info is None:
        return health
    usage = await namenode.quota_usage(root)
    return replace(
        health,
        root_refusal=zone_refusal(root, info),
        root_names=usage.names,
        root_names_quota=usage.names_quota,
        root_bytes=usage.bytes,
        root_bytes_quota=usage.bytes_quota,
    )
