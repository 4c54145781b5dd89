"""The NameNode's demand for encrypted connections to datanodes (``dfs.encrypt.data.transfer``), asked again in time.

The demand is one of the NameNode's server defaults.  Administrators may switch it under running processes, by a restart
of HDFS's servers.  Datanodes then close connections of the former kind without a response, as full datanodes do.  So
the NameNode is asked again after a failed connection.  It is asked each hour too, as by Hadoop's clients
(DFSClient.getServerDefaults).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from bmq.core.aio.tasks import OwnedTasks
from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs.encryption_keys import EncryptionKeys, Key

EVERY_S = 3600.0
"""Seconds after which the NameNode is asked again (DFSClient.SERVER_DEFAULTS_VALIDITY_PERIOD)."""
PAUSE_S = 3.0
"""Least seconds from one question to the next, however many connections fail."""
WAIT_S = 1.0
"""Longest wait of a failed connection for the response: the NameNode may be silent too."""

_log = logging.getLogger(__name__)


class TransferEncryption:
    """The demand of one cluster.  ``keys`` has the data encryption keys while the NameNode demands encryption.

    ``ask`` returns whether it does, and ``ask_key`` a new key.  If Hadoop's configuration demands encryption,
    ``demand`` is the text for a NameNode without this demand; else it is empty.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[bool]],
        ask_key: Callable[[], Awaitable[Key | None]],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys: EncryptionKeys | None = None
        self.demand = ""
        self._ask = ask
        self._ask_key = ask_key
        self._monotonic_s = monotonic_s
        self._asked_at = monotonic_s()
        self._tasks = OwnedTasks()
        self._asking: asyncio.Task[None] | None = None
        self._is_refused = False

    def __repr__(self) -> str:
        return f"<TransferEncryption {self.keys}>"

    @property
    def refusal(self) -> str:
        """The text ``demand`` while the NameNode denies the configuration's demand; empty otherwise.

        ``keys`` stay: connections are encrypted with a key that is still good, or are not made.
        """
        return self.demand if self._is_refused else ""

    async def begin(self, demand: str = "") -> None:
        """Ask for the first time.

        Raises Unsupported with the text ``demand`` if it is not empty and the NameNode demands no encryption, and as
        ``ask``.
        """
        self.demand = demand
        is_encrypted = await self._ask()
        if demand and not is_encrypted:
            raise Unsupported(demand)
        self.keys = EncryptionKeys(self._ask_key) if is_encrypted else None

    async def close(self) -> None:
        """End the questions that are under way."""
        await self._tasks.close()
        if self.keys is not None:
            await self.keys.close()

    def note_use(self) -> None:
        """Ask again in the background if the last question is an hour old."""
        if self._monotonic_s() - self._asked_at >= EVERY_S:
            self._start()

    async def has_changed(self, keys: EncryptionKeys | None) -> bool:
        """Return whether a connection that failed with ``keys`` would now be protected otherwise.

        The NameNode is asked, unless it was asked a moment ago.  If the NameNode denies the configuration's demand,
        nothing changes but ``refusal``: other datanodes may serve this client with a key that is still good.
        """
        if self.keys is not keys:
            return True
        await self._ask_soon()
        return self.keys is not keys

    async def refuse_denied(self) -> None:
        """Raise StorageUnavailable while the NameNode denies the configuration's demand: for reads without ``keys``.

        The NameNode is asked, unless it was asked a moment ago.  Without a demand nothing is asked.
        """
        if not self.demand:
            return
        await self._ask_soon()
        if self.refusal:
            raise StorageUnavailable(self.refusal)

    async def _ask_soon(self) -> None:
        """Have the NameNode asked, unless it was asked a moment ago, and wait a moment for the response."""
        if self._asking is None and self._monotonic_s() - self._asked_at >= PAUSE_S:
            self._start()
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=WAIT_S)

    def _start(self) -> None:
        if self._asking is None:
            self._asked_at = self._monotonic_s()
            self._asking = self._tasks.start(self._ask_again(), "ask whether data transfer is encrypted")

    async def _ask_again(self) -> None:
        try:
            is_encrypted = await self._ask()
        except StorageError as error:
            _log.warning("the NameNode does not say whether data transfer is encrypted", extra=fields(error=error))
            return
        finally:
            self._asking = None
        was_refused, self._is_refused = self._is_refused, bool(self.demand) and not is_encrypted
        if self._is_refused and not was_refused:
            _log.warning("the NameNode denies the demand of encrypted data transfer", extra=fields(error=self.demand))
        former = self.keys
        if self._is_refused or is_encrypted == (former is not None):
            return
        if former is None:
            self.keys = EncryptionKeys(self._ask_key)
            _log.warning("the NameNode demands encrypted data transfer now: new connections to datanodes are encrypted")
            return
        self.keys = None
        _log.warning("the NameNode demands no encrypted data transfer any more: new connections have none")
        await former.close()
