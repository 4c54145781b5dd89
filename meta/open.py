"""From a URL in the configuration to a ``KeyValue``."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from bmq.meta.kv import KeyValue, KvError
from bmq.meta.memory import MemoryKeyValue, MemoryStore
from bmq.meta.sqlite import SqliteKeyValue


async def open_keyvalue(url: str) -> KeyValue:
    """``sqlite:///absolute/file``, ``etcd://host:port,host:port`` or ``memory:`` (empty, gone with the process).

    etcd takes a user as ``etcd://user:password@host:port,...`` and TLS as ``?ca=/file&cert=/file&key=/file``.
    ValueError when the URL is none of these; KvError when the store cannot be opened.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        return await SqliteKeyValue.open(_sqlite_path(url))
    if url == "memory:":
        return MemoryKeyValue(MemoryStore())
    if scheme == "etcd":
        return await _open_etcd(url)
    raise ValueError(
        f"{url!r} names no key-value store: use sqlite:///absolute/file, etcd://host:port,host:port or memory:"
    )


def without_password(url: str) -> str:
    """The same for a log."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    return parts._replace(netloc=f"{user}{colon and ':***'}{at}{hosts}").geturl() if colon else url


async def _open_etcd(url: str) -> KeyValue:
    # Imported when it is needed: gRPC takes memory and start-up time that a process on SQLite has no use for.
    from bmq.meta.etcd.address import parse_etcd_url
    from bmq.meta.etcd.store import EtcdKeyValue

    try:
        return await EtcdKeyValue.open(parse_etcd_url(url))
    except OSError as error:
        raise KvError(f"etcd://: cannot read a file of its TLS settings: {error}") from error


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"{url!r} is not sqlite:///absolute/file (three slashes, a file, nothing after it)")
    return path
