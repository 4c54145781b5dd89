"""Quotas of one process without a store or an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from bmq.core.net.request import Request
from bmq.core.security.principal import user
from bmq.core.security.session import Session
from bmq.meta.security.client_quotas import Entity, Holder, find_client_quota, find_ip_quota, has_client_quota
from bmq.meta.security.quotas_view import QuotasView
from bmq.proxy.quotas.request_quotas import RequestQuotas
from tests.harness.fakes import FakeClient, FakeClock


class FakeQuotas:
    """A ``QuotasView`` that shows what a test has put there."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Entity, float]] = {}
        self._calls: list[Callable[[], None]] = []

    def put(self, kind: str, entity: Entity, value: float | None) -> None:
        of_kind = self.values.setdefault(kind, {})
        if value is None:
            del of_kind[entity]
        else:
            of_kind[entity] = value
        if not of_kind:
            del self.values[kind]
        for call in self._calls:
            call()

    def has(self, kind: str) -> bool:
        return kind in self.values

    def find(self, kind: str, user: str, client_id: str) -> tuple[Holder, float] | None:
        return find_client_quota(self.values.get(kind, {}).get, user, client_id)

    def is_limited(self, kind: str, holder: Holder) -> bool:
        return has_client_quota(self.values.get(kind, {}).get, holder)

    def find_ip(self, kind: str, ip: str) -> float | None:
        return find_ip_quota(self.values.get(kind, {}).get, ip)

    def subscribe(self, call: Callable[[], None]) -> Callable[[], None]:
        self._calls.append(call)
        return lambda: None


class QuotasWorld:
    """Quotas with a clock ``now``, and a processor time ``processor_s``."""

    def __init__(self, share: float = 1.0) -> None:
        self.now = 100.0
        self.processor_s = 0.0
        self.view = FakeQuotas()
        self.clock = FakeClock(monotonic=lambda: self.now)
        self.quotas = RequestQuotas(
            cast(QuotasView, self.view),
            self.clock,
            lambda limit: limit * share,
            lambda: self.processor_s,
        )

    def request(
        self, key: int, version: int = 9, client_id: str = "app", name: str = "alice", client: FakeClient | None = None
    ) -> Request:
        client = client or FakeClient()
        client.session = Session(principal=user(name))
        return Request(key, version, 7, client_id, memoryview(b""), client, self.now)


def muted(request: Request) -> list[float]:
    assert isinstance(request.client, FakeClient)
    return request.client.muted


async def resolve(awaitable: Any) -> Any:
    return await asyncio.ensure_future(awaitable)
