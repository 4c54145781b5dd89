"""``KeyValue`` on an etcd cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

from bmq.core.aio.standstill import Standstill
from bmq.core.metrics.counters import Histogram
from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd import requests
from bmq.meta.etcd.address import EtcdAddress
from bmq.meta.etcd.attempts import Repeatability
from bmq.meta.etcd.client import EtcdClient
from bmq.meta.etcd.errors import COMPACTED
from bmq.meta.etcd.member import (
    COMPACT,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    LEASE_TIME_TO_LIVE,
    RANGE,
    STATUS,
    TXN,
    CallFailed,
)
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.etcd.watching import follow
from bmq.meta.kv import (
    Changes,
    Commit,
    Compare,
    Entry,
    KvError,
    KvUnavailable,
    LeaseNotFound,
    Write,
    check_commit,
)
from bmq.meta.maintenance import LeaseLeft, StoreMember, StoreStatus

VERSION_MIN = (3, 5, 8)
"""etcd's least version.  Before it, a progress response could name a revision whose changes the member had yet to send:
after a disconnect they would be missed."""


_NO_SPACE_ALARM = "NOSPACE"


class EtcdKeyValue:
    """The store of a cluster.  ``open`` makes it, ``close`` ends it; used from the loop that opened it."""

    def __init__(self, client: EtcdClient, standstill: Standstill | None = None) -> None:
        """``standstill`` is looked at when a commit is sent: see ``looking``."""
        self._client = client
        self._standstill = standstill

    @property
    def calls_ms(self) -> Mapping[str, Histogram]:
        return self._client.calls_ms

    @property
    def calls_failed(self) -> int:
        return self._client.calls_failed

    @classmethod
    async def open(cls, address: EtcdAddress, settings: EtcdSettings | None = None) -> EtcdKeyValue:
        """Connect and check that the cluster can be used.

        Raises KvUnavailable if no member answers in time, or none accepts this process; KvError if it is too old;
        OSError if a file of the address cannot be read.
        """
        client = EtcdClient(address, settings or EtcdSettings())
        try:
            await _require_usable(client, address)
        except BaseException:
            await client.close()
            raise
        return cls(client)

    def looking(self, standstill: Standstill) -> EtcdKeyValue:
        """Return the same store with commits that look for a standstill: see ``meta.kv_for_clients``."""
        return EtcdKeyValue(self._client, standstill)

    async def get(self, key: str) -> Entry | None:
        if not key:
            return None
        response = await self._client.ask(RANGE, requests.get(key), Repeatability.READ)
        return requests.entry(response.kvs[0]) if response.kvs else None

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        while (request := requests.page(prefix, after, limit)) is not None:
            response = await self._client.ask(RANGE, request, Repeatability.READ)
            for found in response.kvs:
                yield requests.entry(found)
            if not response.more:
                return
            after = response.kvs[-1].key.decode()

    async def revision(self) -> int:
        response = await self._client.ask(RANGE, requests.revision(), Repeatability.READ)
        return response.header.revision

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        check_commit(compares, writes)
        if not compares and not writes:
            return Commit(True, await self.revision(), {})  # etcd would answer it from one member's state
        # A commit that writes nothing may be repeated.
        kind = Repeatability.ONCE if writes else Repeatability.READ
        request = requests.commit(compares, writes)
        response = await self._client.ask(TXN, request, kind, standstill=self._standstill)
        return requests.commit_result(compares, response)

    async def grant(self, ttl_s: float) -> int:
        response = await self._client.ask(LEASE_GRANT, requests.grant(ttl_s), Repeatability.ONCE)
        return response.id

    async def keep_alive(self, lease: int) -> float:
        request = pb.LeaseKeepAliveRequest(id=lease)
        response = await self._client.ask(LEASE_KEEP_ALIVE, request, Repeatability.REPEATABLE, is_urgent=True)
        if response.ttl_s <= 0:
            raise LeaseNotFound(f"lease {lease:x} has ended")
        return float(response.ttl_s)

    async def revoke(self, lease: int) -> None:
        await self._client.ask(LEASE_REVOKE, pb.LeaseRevokeRequest(id=lease), Repeatability.ONCE)

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        return follow(self._client, prefix, after_revision)

    async def status(self) -> StoreStatus:
        """Return the status of one member; alarms are the cluster's."""
        response = await self._client.ask(STATUS, pb.StatusRequest(), Repeatability.READ)
        return StoreStatus(
            bytes=response.database_bytes,
            bytes_in_use=response.database_bytes_in_use,
            quota_bytes=response.quota_bytes,
            is_full=any(_NO_SPACE_ALARM in error for error in response.errors),
        )

    async def servers(self) -> Sequence[StoreMember]:
        """Return the status of each member of the address; a member without a leader answers too."""
        return [
            StoreMember(endpoint, error=str(response))
            if isinstance(response, CallFailed)
            else _server(endpoint, response)
            for endpoint, response in await self._client.ask_each(STATUS, pb.StatusRequest())
        ]

    async def lease_left(self, lease: int) -> LeaseLeft:
        response = await self._client.ask(LEASE_TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(id=lease), Repeatability.READ)
        return LeaseLeft(float(response.left_s), float(response.granted_s))

    async def compact(self, revision: int) -> None:
        """Compact the history; no error if it is compacted already."""
        try:
            await self._client.ask(COMPACT, pb.CompactionRequest(revision=revision), Repeatability.REPEATABLE)
        except KvError as error:
            if COMPACTED not in str(error):
                raise

    async def close(self) -> None:
        await self._client.close()


def _server(endpoint: str, status: pb.StatusResponse) -> StoreMember:
    return StoreMember(
        endpoint,
        version=status.version,
        has_leader=status.leader != 0,
        is_learner=status.is_learner,
        behind=max(0, status.raft_index - status.raft_applied_index),
    )


async def _require_usable(client: EtcdClient, address: EtcdAddress) -> None:
    where = ", ".join(address.endpoints)
    try:
        status = await client.ask(
            STATUS, pb.StatusRequest(), Repeatability.READ, retry_for_s=client.settings.open_for_s
        )
        await client.ask(RANGE, requests.revision(), Repeatability.READ, retry_for_s=client.settings.open_for_s)
    except KvUnavailable as error:
        raise KvUnavailable(
            f"etcd at {where} cannot be used: {error}; are its members up, the addresses their client addresses,"
            f" and {'the certificates theirs' if address.is_tls else 'TLS off there (else give ca=/file)'}?"
        ) from None
    version = tuple(int(part) for part in re.findall(r"\d+", status.version)[:3])
    if version < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        raise KvError(f"etcd at {where} is {status.version}; {needed} or later is needed")
