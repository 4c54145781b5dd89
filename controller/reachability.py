"""Reachability of brokers: the number of proxies that report each one as unreachable.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set


def count_unreachable(reports: Mapping[str, Set[str]], proxies: Set[str], brokers: Set[str]) -> dict[str, int]:
    """Return, for each live broker that any reports, the number of live proxies that report it as unreachable.

    ``reports``: the unreachable members by proxy; ``proxies``, ``brokers``: those that are alive.  With several brokers
    a proxy that reaches none of them is presumed to be cut off itself, and its report is ignored.
    """
    counts: Counter[str] = Counter()
    for proxy, named in reports.items():
        known = named & brokers
        if proxy in proxies and not (known == brokers and len(brokers) > 1):
            counts.update(known)
    return dict(counts)
