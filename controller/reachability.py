"""What proxies say that they cannot reach -> how many of them each broker is out of reach for.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set


def count_unreachable(reports: Mapping[str, Set[str]], proxies: Set[str], brokers: Set[str]) -> dict[str, int]:
    """By the living proxies, of the living brokers.  Who reaches none of several is cut off himself: his word says
    nothing about them."""
    counts: Counter[str] = Counter()
    for proxy, named in reports.items():
        known = named & brokers
        if proxy in proxies and not (known == brokers and len(brokers) > 1):
            counts.update(known)
    return dict(counts)
