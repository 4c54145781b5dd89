"""Proxies' reports in the store of the members that they cannot reach (``meta.cluster.unreachable``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.meta.cluster.unreachable import decode_unreachable, unreachable_prefix
from bmq.meta.kv import Changes, KeyValue, KvError
from bmq.meta.prefix_watch import PrefixWatcher

_log = logging.getLogger(__name__)


class UnreachableReports:
    """The reports as one term follows them: ``run`` until cancelled.  ``changed`` is called after each change."""

    def __init__(self, kv: KeyValue, cluster: str, changed: Callable[[], None]) -> None:
        self._by_proxy: dict[str, frozenset[str]] = {}
        self._changed = changed
        self._watcher = PrefixWatcher(kv, unreachable_prefix(cluster), self._take, what="unreachable brokers")

    def __repr__(self) -> str:
        return f"<UnreachableReports of {len(self._by_proxy)} proxies>"

    @property
    def by_proxy(self) -> Mapping[str, frozenset[str]]:
        """The members that each proxy does not reach, by the proxy's incarnation."""
        return self._by_proxy

    async def run(self) -> None:
        """Follow the reports until cancelled."""
        while not self._watcher.has_started:
            try:
                await self._watcher.start()
            except KvError as error:
                _log.info(
                    "could not read the members that proxies cannot reach, trying again", extra=fields(error=error)
                )
        try:
            await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            await self._watcher.close()

    def _take(self, changes: Changes) -> None:
        for event in changes:
            proxy = event.key.rsplit("/", 1)[-1]
            self._by_proxy.pop(proxy, None)
            if event.entry is not None:
                try:
                    self._by_proxy[proxy] = decode_unreachable(event.entry.value)
                except FormatError as error:
                    _log.error(
                        "a proxy's list of unreachable members cannot be read, and is ignored",
                        extra=fields(member=proxy, error=error),
                    )
        self._changed()
