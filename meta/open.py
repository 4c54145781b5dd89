"""From a URL in the configuration to a ``KeyValue``."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from bmq.meta.kv import KeyValue
from bmq.meta.memory import MemoryKeyValue, MemoryStore
from bmq.meta.sqlite import SqliteKeyValue


async def open_keyvalue(url: str) -> KeyValue:
    """``sqlite:///absolute/file`` or ``memory:`` (empty, gone with the process).

    ValueError when the URL is none of these; KvError when the store cannot be opened.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        return await SqliteKeyValue.open(_sqlite_path(url))
    if url == "memory:":
        return MemoryKeyValue(MemoryStore())
    if scheme == "etcd":
        raise ValueError(
            "etcd:// needs the cluster part, which this version does not contain; use sqlite:///file for one process"
        )
    raise ValueError(f"{url!r} names no key-value store: use sqlite:///absolute/file or memory:")


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"{url!r} is not sqlite:///absolute/file (three slashes, a file, nothing after it)")
    return path
