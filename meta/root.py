"""The root that a cluster is served from, as the metadata store records it.

The key ``/<cluster>/root`` holds the id of that root (``root.json`` there) and the URL under which it was first used,
for messages.  The first process to start writes it; only ``bmq cluster merge-root`` and ``bmq cluster rebuild`` change
the root, while no process runs.

The leader gives the record format 2 before the level of a feature is raised for the first time
(``controller.levels_filing``).  A process reads the record whenever it joins the cluster again, so versions that know
no levels refuse to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from bmq.core.errors import FormatError
from bmq.meta.kv import Compare, Entry, KeyValue, KvUnknown, Put

FORMAT = 1
FORMAT_WITH_LEVELS = 2
"""The format of a cluster that has had a level of a feature above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """A root's id.

    ``url`` is the URL under which it was first used, without a password.  ``has_levels``: the record is of format 2.
    """

    root_id: str
    url: str
    has_levels: bool = False


def root_key(cluster: str) -> str:
    return f"/{cluster}/root"


def encode_root(record: RootRecord) -> bytes:
    number = FORMAT_WITH_LEVELS if record.has_levels else FORMAT
    fields = {"format": number, "root_id": record.root_id, "url": record.url}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_root(entry: Entry) -> RootRecord:
    """Return the record in ``entry``.  Raises FormatError if it is not a root's record, or is of a later format."""
    try:
        raw = json.loads(entry.value)
        number, root_id, url = raw["format"], raw["root_id"], raw["url"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is not a root's record: {entry.value[:80]!r} ({error})") from error
    if type(number) is not int or number not in (FORMAT, FORMAT_WITH_LEVELS):
        raise FormatError(f"{entry.key} is of format {number}: this version reads {FORMAT} and {FORMAT_WITH_LEVELS}")
    if not isinstance(root_id, str) or not root_id or not isinstance(url, str):
        raise FormatError(f"{entry.key} is not a root's record: {entry.value[:80]!r}")
    return RootRecord(root_id=root_id, url=url, has_levels=number == FORMAT_WITH_LEVELS)


async def read_root(kv: KeyValue, cluster: str) -> RootRecord | None:
    """Return the cluster's root; None if no process of a version that writes it has started yet.

    Raises KvError, and FormatError if the record cannot be decoded.
    """
    entry = await kv.get(root_key(cluster))
    return None if entry is None else decode_root(entry)


async def bind_root(kv: KeyValue, cluster: str, record: RootRecord) -> RootRecord:
    """Make ``record`` the cluster's root if there is none.  Return the one that the store has afterwards.

    May be repeated after any KvError.  Raises FormatError if the record there cannot be decoded.
    """
    key = root_key(cluster)
    try:
        done = await kv.commit([Compare(key, 0)], [Put(key, encode_root(record))])
    except KvUnknown:
        found = await read_root(kv, cluster)
        if found is None:
            raise
        return found
    if done.succeeded:
        return record
    entry = done.current[key]
    assert entry is not None, "the compare with a missing key failed"
    return decode_root(entry)
