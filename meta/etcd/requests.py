"""The conversion between ``meta.kv``'s types and etcd's messages.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.kv import Commit, Compare, Entry, Put, Write, prefix_range

# Any key would do, since only the header is used.  This one, so that a user's role can allow it.
_REVISION_KEY = b"/"
_EQUAL, _MOD_REVISION = 0, 2


def get(key: str) -> pb.RangeRequest:
    return pb.RangeRequest(key=key.encode())


def revision() -> pb.RangeRequest:
    """Return a request whose response's header has the store's revision."""
    return pb.RangeRequest(key=_REVISION_KEY, keys_only=True)


def page(prefix: str, after: str, limit: int) -> pb.RangeRequest | None:
    """Return the request for the next page of a listing; None if ``after`` lies past the prefix."""
    low, end = prefix_range(prefix)
    if after:
        low = max(low, after.encode() + b"\x00")  # the key next to it
    if low >= end:
        return None
    return pb.RangeRequest(key=low, range_end=end, limit=limit)


def commit(compares: Sequence[Compare], writes: Sequence[Write]) -> pb.TxnRequest:
    """Return the transaction for a commit; if it fails it reads the compared keys."""
    keys = dict.fromkeys(compare.key for compare in compares)
    return pb.TxnRequest(
        compare=[
            pb.Compare(result=_EQUAL, target=_MOD_REVISION, key=compare.key.encode(), mod_revision=compare.revision)
            for compare in compares
        ],
        success=[_operation(write) for write in writes],
        failure=[pb.Operation(range=get(key)) for key in keys],
    )


def commit_result(compares: Sequence[Compare], response: pb.TxnResponse) -> Commit:
    """Return the result of a commit from the response to its transaction."""
    if response.succeeded:
        return Commit(True, response.header.revision, {})
    keys = dict.fromkeys(compare.key for compare in compares)
    current = {
        key: entry(result.range.kvs[0]) if result.range.kvs else None
        for key, result in zip(keys, response.responses, strict=True)
    }
    return Commit(False, response.header.revision, current)


def grant(ttl_s: float) -> pb.LeaseGrantRequest:
    """Return the request for a lease of whole seconds, rounded up.

    etcd raises the ttl to the length of one and a half elections.
    """
    return pb.LeaseGrantRequest(ttl_s=max(1, math.ceil(ttl_s)))


def entry(found: pb.KeyValue) -> Entry:
    return Entry(found.key.decode(), found.value, found.mod_revision, found.lease)


def _operation(write: Write) -> pb.Operation:
    key = write.key.encode()
    if isinstance(write, Put):
        return pb.Operation(put=pb.PutRequest(key=key, value=write.value, lease=write.lease))
    return pb.Operation(delete=pb.DeleteRequest(key=key))
