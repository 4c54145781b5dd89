"""The delegation token of a job whose tasks hold it from the plan on, renewed by the driver until the job ends.

A NameNode refuses a token at log-ins once its renewal is due, 24 hours after its issue by default
(``dfs.namenode.delegation.token.renew-interval``).  Tasks cannot get another token then, but each renewal holds for the
token that they have.  The token's last date, 7 days after its issue, ends that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq.core.logging.fields import fields
from bmq.spark.planning.driver_login import driver_login
from bmq.spark.planning.token_life import RETRY_S
from bmq.storage.open import grant_storage_token, renew_storage_token

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken, TokenGrant

_log = logging.getLogger("bmq.spark")

Renew = Callable[["StorageToken"], Coroutine[Any, Any, int]]


def pause_s(life_s: float, *, has_failed: bool) -> float:
    """Return the seconds until the next renewal: half of the token's life, or the pause after a failure."""
    return min(RETRY_S, life_s / 10) if has_failed else life_s / 2


async def grant_token(root: str) -> TokenGrant | None:
    """Return a token that this process may renew, None for a root without Kerberos.

    Raises StorageError if the driver cannot log in.
    """
    own = driver_login(root)
    return await grant_storage_token(root, hadoop_conf_dir=own.hadoop_conf_dir, hdfs_login=own.login)


async def renew_token(token: StorageToken) -> int:
    """Renew a token by the driver's log-in, and return its new end, in milliseconds since 1970."""
    own = driver_login(token.root)
    return await renew_storage_token(token, hadoop_conf_dir=own.hadoop_conf_dir, hdfs_login=own.login)


class RenewedToken:
    """A context in which a job's token stays valid.

    ``run`` runs a renewal on storage's loop.  ``wait`` waits for the job's end, and returns whether the job has ended.

    A token out of a file has no life here: the file's writer renews it.
    """

    def __init__(
        self,
        run: Callable[[Coroutine[Any, Any, int]], int],
        grant: TokenGrant | None,
        renew: Renew = renew_token,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.token = None if grant is None else grant.token
        """The token for tasks, None if they need none."""
        self._run = run
        self._renew = renew
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._thread: threading.Thread | None = None
        if grant is not None and grant.life_s is not None:
            arguments = grant.token, grant.life_s
            self._thread = threading.Thread(target=self._keep, args=arguments, name="bmq-token", daemon=True)

    def __repr__(self) -> str:
        return f"RenewedToken({self.token})"

    def __enter__(self) -> StorageToken | None:
        if self._thread is not None:
            self._thread.start()
        return self.token

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the thread, which may be in its last renewal."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _keep(self, token: StorageToken, life_s: float) -> None:
        has_failed = False
        last_ms = token.token.ends_ms
        while not self._wait(pause_s(life_s, has_failed=has_failed)):
            try:
                ends_ms = self._run(self._renew(token))
            except Exception as error:  # noqa: BLE001  # whatever it is: without this thread nobody renews the token
                has_failed = True
                _log.warning("%s is not renewed", token, extra=fields(error=repr(error)))
                continue
            has_failed = False
            if 0 < last_ms <= ends_ms:
                _log.warning("%s is renewed for the last time: tasks that log in after its last date fail", token)
                return
