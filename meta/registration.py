"""A process's presence: a key under a lease, renewed while the process lives.

An unreachable etcd is not a lost lease (rule 7): storage fences owners, so a broker goes on.  Only the store's own
statement that the lease is gone ends the membership.
"""

from __future__ import annotations

import asyncio
import json

from bmq.meta.kv import KeyValue, KvError, LeaseNotFound, Put

TTL_S = 10.0
"""Seconds: longer than a pause of etcd's election (about 3 s), short enough that a dead broker is soon noticed."""


def broker_key(cluster: str, incarnation: str) -> str:
    return f"/{cluster}/brokers/{incarnation}"


class Registration:
    """A registration: ``start`` makes it, ``run`` renews it until ``stop`` or until the lease is lost (``is_lost``)."""

    def __init__(self, kv: KeyValue, key: str, facts: dict[str, str | int], *, ttl_s: float = TTL_S) -> None:
        self._kv = kv
        self._key = key
        self._value = json.dumps(facts, separators=(",", ":")).encode()
        self._ttl_s = ttl_s
        self._lease = 0
        self.is_lost = False

    async def start(self) -> None:
        """Register.

        Raises KvError if the store does not answer: a process that cannot register does not begin.
        """
        self._lease = await self._kv.grant(self._ttl_s)
        await self._kv.commit([], [Put(self._key, self._value, self._lease)])

    async def run(self) -> None:
        """Renew the lease three times in its ttl.  Returns when the lease is lost."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                await self._kv.keep_alive(self._lease)
            except LeaseNotFound:
                self.is_lost = True
                return
            except KvError:
                continue  # unreachable: not a lost lease; the next turn tries again

    async def stop(self) -> None:
        """Leave at once instead of by expiry.  If the store does not answer, the lease runs out."""
        try:
            await self._kv.revoke(self._lease)
        except KvError:
            return
