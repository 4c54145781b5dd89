"""The store's own count, under the key ``/<cluster>/store_count``: see ``core.store_count``.

``bmq cluster rebuild`` sets it, and after that only the leader raises it.
"""

from __future__ import annotations

import json

from bmq.core.errors import FormatError
from bmq.core.store_count import StoreCount
from bmq.meta.kv import Entry

FORMAT = 1


def store_count_key(cluster: str) -> str:
    """Return the key of the store's count."""
    return f"/{cluster}/store_count"


def encode_store_count(count: StoreCount) -> bytes:
    """Return the count as JSON."""
    fields = {"format": FORMAT, "incarnation": count.rebuild_count, "number": count.number, "id": count.id}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_store_count(entry: Entry) -> StoreCount:
    """Return the count in ``entry``.  Raises FormatError if it is not a count, or is of a later format."""
    try:
        raw = json.loads(entry.value)
        found, rebuild_count, number, count_id = raw["format"], raw["incarnation"], raw["number"], raw["id"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is not a store's count: {entry.value[:80]!r} ({error!r})") from error
    if found != FORMAT:
        raise FormatError(f"{entry.key} is of format {found}: this version reads {FORMAT}")
    if type(rebuild_count) is not int or type(number) is not int or not isinstance(count_id, str) or not count_id:
        raise FormatError(f"{entry.key} is not a store's count: {entry.value[:80]!r}")
    return StoreCount(rebuild_count=rebuild_count, number=number, id=count_id)
