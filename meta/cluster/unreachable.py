"""The brokers that a proxy cannot reach although they are members: one key a proxy, under its lease.

The controller counts: if one proxy cannot reach a broker, the proxy is at fault; if many cannot, the broker is.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from bmq.core.errors import FormatError

FORMAT = 1


def unreachable_prefix(cluster: str) -> str:
    return f"/{cluster}/unreachable/"


def unreachable_key(cluster: str, proxy: str) -> str:
    return f"{unreachable_prefix(cluster)}{proxy}"


def encode_unreachable(brokers: Collection[str]) -> bytes:
    return json.dumps({"format": FORMAT, "brokers": sorted(brokers)}, separators=(",", ":")).encode()


def decode_unreachable(data: bytes) -> frozenset[str]:
    """Return the brokers in ``data``.  Raises FormatError if it does not hold them, or is of a later format."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise FormatError(f"unreachable brokers of format {raw['format']}: this version reads {FORMAT}")
        if not all(isinstance(each, str) for each in raw["brokers"]):
            raise FormatError(f"not names of brokers: {data[:80]!r}")
        return frozenset(raw["brokers"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not a list of unreachable brokers: {data[:80]!r} ({error})") from error
