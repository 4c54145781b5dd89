"""Data encryption keys (``dfs.encrypt.data.transfer``): asked of the NameNode, held, and replaced before they expire.

The NameNode gives the same kind of key to every client, and datanodes derive it from the key's number and nonce.  A
key lives as long as a block token.  The client replaces a key after 80 % of its life, so a clock that is off
by less than the rest does no harm.  If a datanode refuses a key as unknown, the client forgets it.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb

Key = pb.GetDataEncryptionKeyResponse.Key

_USED_SHARE = 0.8
_HELD_S_MIN = 1.0
"""Shortest time for which a key is held.  With a clock far ahead, every connection would ask the NameNode."""


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
        self._asking = asyncio.Lock()  # held across a call: handshakes of that time share its key
        self._key: Key | None = None
        self._held_until = 0.0

    def __repr__(self) -> str:
        return f"EncryptionKeys({'none yet' if self._key is None else self._key.id})"

    async def current(self) -> Key:
        """Return the key for a new connection.  Raises StorageUnavailable if the NameNode gives none."""
        async with self._asking:
            now = self._monotonic_s()
            if self._key is None or now >= self._held_until:
                key = await self._ask()
                if key is None:
                    raise StorageUnavailable(
                        "getDataEncryptionKey: the NameNode has no key: dfs.encrypt.data.transfer=true needs"
                        " dfs.block.access.token.enable=true"
                    )
                life_s = key.expiry_ms / 1000 - self._wall_s()
                self._key, self._held_until = key, now + max(_HELD_S_MIN, _USED_SHARE * life_s)
            return self._key

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
