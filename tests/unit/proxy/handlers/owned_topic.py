"""Handlers of requests that name partitions, over a scripted owner."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Ends
from bmq.meta.catalog import Topic
from bmq.proxy.scopes import ProxyScopes
from tests.harness.fakes import FakeCatalog
from tests.harness.scopes import make_scopes

ENDS = Ends(epoch=7, log_start=10, last_stable_offset=40, high_watermark=50)


class FakeOwner:
    """An owner whose methods return, or raise, what ``results`` has; ``calls`` are those made, with arguments."""

    def __init__(self, **results: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._results = {"ends": ENDS, "flushed_ends": ENDS, **results}

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            result = self._results[name]
            if isinstance(result, Exception):
                raise result
            return await result() if callable(result) else result

        return call


def scopes_of(owners: Mapping[int, FakeOwner], *, topics: Mapping[str, Topic] | None = None) -> ProxyScopes:
    """Return scopes for topic ``t`` with 4 partitions; partitions without an owner in ``owners`` get none."""
    catalog = FakeCatalog(Topic(name="t", topic_id=UUID(int=1), partitions=4))
    catalog.topics.update(topics or {})

    async def wait(key: PartitionKey, timeout_s: float) -> Any:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no owner in time")

    return make_scopes(
        catalog=catalog,
        owners=SimpleNamespace(get=lambda key: owners.get(key.partition), wait=wait),
        config=NodeConfig(),
    )
