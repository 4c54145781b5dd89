"""Data encryption keys (``dfs.encrypt.data.transfer``): asked of the NameNode, held, and replaced before they expire.

The NameNode gives the same kind of key to every client, and datanodes derive it from the key's number and nonce.  A
key lives as long as a block token.  The client replaces a key after 80 % of its life, and uses it to its end if the
NameNode gives no other.  If a datanode refuses a key as unknown, the client forgets it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable

from bmq.core.aio.tasks import OwnedTasks
from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb

Key = pb.GetDataEncryptionKeyResponse.Key

_FRESH_SHARE = 0.8
"""Part of its life after which a key is replaced: an outage of the NameNode may last for the rest."""
_HELD_S_MIN = 1.0
"""Shortest time for which a key is held.  With a clock far ahead, every connection would ask the NameNode."""
_PAUSE_S = 5.0
"""Pause after a question that failed while the held key is still good."""

_log = logging.getLogger(__name__)


class EncryptionKeys:
    """The key of one cluster.  ``ask`` gets a new one from the NameNode, None if it has none to give."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Key | None]],
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._tasks = OwnedTasks()
        self._asking: asyncio.Task[Key | StorageError] | None = None
        self._key: Key | None = None
        self._fresh_until = 0.0
        self._good_until = 0.0

    def __repr__(self) -> str:
        return f"EncryptionKeys({'none yet' if self._key is None else self._key.id})"

    async def close(self) -> None:
        """End the question that is under way."""
        await self._tasks.close()

    async def current(self) -> Key:
        """Return the key for a new connection.  Raises StorageUnavailable if the NameNode gives none.

        A key is replaced in the background.  A caller waits only without a good key, and shares the question.
        """
        key, now = self._key, self._monotonic_s()
        if key is not None and now < self._fresh_until:
            return key
        if self._asking is None:
            self._asking = self._tasks.start(self._replace(), "ask for a data encryption key")
        if key is not None and now < self._good_until:
            return key
        asking = self._asking
        try:
            response = await asyncio.shield(asking)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not asking.cancelled() or (task is not None and task.cancelling()):
                raise
            raise StorageUnavailable("getDataEncryptionKey: the HDFS client was closed") from None
        if isinstance(response, StorageError):
            raise type(response)(str(response)) from response
        return response

    async def _replace(self) -> Key | StorageError:
        """Hold a new key, and return it, or the error that all waiting callers raise."""
        try:
            key = await self._ask()
            if key is None:
                raise StorageUnavailable(
                    "getDataEncryptionKey: the NameNode has no key: dfs.encrypt.data.transfer=true needs"
                    " dfs.block.access.token.enable=true"
                )
        except StorageError as error:
            if self._key is not None:
                self._fresh_until = min(self._good_until, self._monotonic_s() + _PAUSE_S)
                _log.warning("the NameNode gives no new data encryption key", extra=fields(error=error))
            return error
        finally:
            self._asking = None
        now, life_s = self._monotonic_s(), key.expiry_ms / 1000 - self._wall_s()
        self._key = key
        self._fresh_until = now + max(_HELD_S_MIN, _FRESH_SHARE * life_s)
        self._good_until = now + max(_HELD_S_MIN, life_s)
        return key

    def forget(self, key: Key) -> None:
        """Drop ``key``, unknown to a datanode, unless a newer key has replaced it."""
        if self._key is key:
            self._key = None


def user_of(key: Key) -> str:
    """Return the user name that belongs to a key (SaslDataTransferClient.getUserNameFromEncryptionKey)."""
    number = key.id - (1 << 32) if key.id >> 31 else key.id
    return f"{number} {key.pool} {base64.b64encode(key.nonce).decode()}"


def password_of(key: Key) -> str:
    """Return the password that belongs to a key."""
    return base64.b64encode(key.key).decode()
