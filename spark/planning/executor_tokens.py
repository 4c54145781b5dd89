"""The delegation token of a driver for its executors, which read a root on HDFS with Kerberos.

The driver's own token comes out of the files of HADOOP_TOKEN_FILE_LOCATION, or the NameNode gives one to the driver's
ticket or keytab.  Each plan of a batch fetches a token.  A stream's token serves many micro-batches, and is replaced
before the token ends (``token_life``).

Former tokens are left to expire, and not cancelled.  Tasks of an earlier micro-batch may still run: speculative tasks,
or tasks of a stage that is tried again.  A task logs in again whenever it needs a new connection.  A token ends by
itself once its renewal is due, 24 hours by default.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bmq.core.logging.fields import fields
from bmq.spark.planning.driver_login import driver_login
from bmq.spark.planning.token_life import is_due, is_good, may_retry
from bmq.storage.filesystem import CannotLogIn, StorageError, StorageUnavailable
from bmq.storage.open import fetch_storage_token, grant_storage_token

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken, TokenGrant

_log = logging.getLogger("bmq.spark")

Grant = Callable[[str], Awaitable["TokenGrant | None"]]


async def plan_token(root: str) -> StorageToken | None:
    """Return a token for the tasks of one plan, None for a root without Kerberos.

    Raises StorageError if the driver cannot log in.
    """
    own = driver_login(root)
    return await fetch_storage_token(root, hadoop_conf_dir=own.hadoop_conf_dir, hdfs_login=own.login)


class ExecutorTokens:
    """The token of one stream's tasks, replaced in time.

    ``grant`` gets the name of the driver's user, empty before the first token, and returns a token with its life; None
    for a root without Kerberos.  ``clock`` counts seconds.
    """

    def __init__(self, grant: Grant, clock: Callable[[], float] = time.monotonic) -> None:
        self._grant = grant
        self._clock = clock
        self._current: TokenGrant | None = None
        self._at = 0.0
        self._failed_at: float | None = None
        self._is_needed = True

    @classmethod
    def for_root(cls, root: str) -> ExecutorTokens:
        """Return the tokens for ``root``, by the driver's log-in."""

        async def grant(owner: str) -> TokenGrant | None:
            own = driver_login(root)
            return await grant_storage_token(root, owner, hadoop_conf_dir=own.hadoop_conf_dir, hdfs_login=own.login)

        return cls(grant)

    async def current(self) -> StorageToken | None:
        """Return a token for tasks that are planned now, None for a root without Kerberos.

        If no other token can be fetched, the present one is used as long as it is good.  Raises StorageError then, and
        at once if the token of a file is refused, or its file cannot be used.
        """
        if not self._is_needed:
            return None
        held, now = self._current, self._clock()
        if held is None:
            return await self._fetch("")
        age = now - self._at
        if not is_due(held.life_s, age) or self._waits(held, now):
            return held.token
        try:
            return await self._fetch("" if held.life_s is None else held.token.token.content.owner)
        except StorageError as error:
            is_refused = isinstance(error, CannotLogIn) or not isinstance(error, StorageUnavailable)
            if not is_good(held.life_s, age) or (held.life_s is None and is_refused):
                raise
            self._failed_at = self._clock()
            _log.warning(
                "no other token can be fetched for executors: %s is used until it ends",
                held.token,
                extra=fields(error=error),
            )
            return held.token

    def _waits(self, held: TokenGrant, now: float) -> bool:
        """Return whether an attempt failed lately, and the present token is still good."""
        if self._failed_at is None or not is_good(held.life_s, now - self._at):
            return False
        return not may_retry(held.life_s, now - self._failed_at)

    async def _fetch(self, owner: str) -> StorageToken | None:
        began = self._clock()  # before the token's issue: its age is never counted too low
        found = await self._grant(owner)
        self._failed_at = None
        if found is None:
            self._is_needed = False
            return None
        self._current, self._at = found, began
        return found.token
