"""The end of a topic's counters: with its topic."""

from __future__ import annotations

from bmq.core.metrics.counters import RequestCounters
from bmq.endpoint.fetch.context import is_gone
from bmq.meta.catalog import Catalog, TopicChange


def forget_gone_topics(catalog: Catalog, counters: RequestCounters) -> None:
    """Remove the counters of each topic that leaves the catalog from now on."""

    def forget(change: TopicChange) -> None:
        if change.before is not None and is_gone(change):
            counters.forget(change.before.name)

    catalog.subscribe(forget)
