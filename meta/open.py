"""The choice of a ``KeyValue`` by the URL in the configuration."""

from __future__ import annotations

import ssl
from urllib.parse import unquote

from bmq.core.urls import normal_url, scheme_of, split_url, without_userinfo
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.kv_sqlite import SqliteKeyValue


def normal_store_url(url: str) -> str:
    """Return ``url`` with its scheme in lower case.  Raises ValueError, without a password, for an unknown scheme."""
    url = normal_url(url)
    if scheme_of(url) in ("sqlite", "etcd") or url == "memory:":
        return url
    raise ValueError(
        f"{without_userinfo(url)!r} names no key-value store: use sqlite:///absolute/file, etcd://host:port,host:port"
        " or memory:"
    )


def is_shared(url: str) -> bool:
    """Return whether several processes can share the store."""
    return scheme_of(url) == "etcd"


def has_password(url: str) -> bool:
    """Return whether the store's URL has a password in it, which lists of processes and shells' histories show."""
    account, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at) and ":" in account


def etcd_security(url: str, *, user: str = "", password: str = "") -> str:
    """Return in words the TLS and the log-in of the connections to the etcd of ``url``.

    Raises ValueError, without the password, if the URL is wrong.
    """
    from bmq.meta.etcd.address import parse_etcd_url

    address = parse_etcd_url(normal_store_url(url), user, password)
    encryption = "TLS" if address.is_tls else "no TLS"
    certificate = ", client certificate" if address.cert else ""
    return f"{encryption}{certificate}, {f'user {address.user}' if address.user else 'no user'}"


async def open_keyvalue(url: str, *, user: str = "", password: str = "") -> KeyValue:
    """Open ``sqlite:///absolute/file``, ``etcd://host:port,host:port`` or ``memory:`` (empty, gone with the process).

    etcd takes TLS as ``?ca=/file&cert=/file&key=/file``.  Its ``user`` and ``password`` may be in the URL instead, as
    ``etcd://user:password@host:port,...``.  Raises ValueError if the URL is none of these, KvError if the store cannot
    be opened.
    """
    url = normal_store_url(url)
    if (user or password) and not is_shared(url):
        raise ValueError(f"meta_user, meta_password: {without_userinfo(url)} has no users; leave them out")
    if url.startswith("sqlite:"):
        return await SqliteKeyValue.open(_sqlite_path(url))
    if url.startswith("etcd:"):
        return await _open_etcd(url, user, password)
    return MemoryKeyValue(MemoryStore())


async def _open_etcd(url: str, user: str, password: str) -> KeyValue:
    # Imported when it is needed: gRPC takes memory and start-up time that a process on SQLite has no use for.
    from bmq.meta.etcd.address import parse_etcd_url
    from bmq.meta.etcd.store import EtcdKeyValue

    try:
        return await EtcdKeyValue.open(parse_etcd_url(url, user, password))
    except OSError as error:
        raise KvError(f"etcd://: cannot read a file of its TLS settings: {error}") from error


def etcd_tls(url: str) -> ssl.SSLContext | None:
    """Return the TLS settings for HTTP to the etcd of ``url``, beside its client; None without TLS.

    Raises ValueError if the URL is wrong, OSError if a file of it cannot be read.
    """
    from bmq.meta.etcd.address import tls_context

    return tls_context(normal_store_url(url))


def _sqlite_path(url: str) -> str:
    parts = split_url(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/") or path.endswith("/"):
        raise ValueError(
            f"{without_userinfo(url)!r} is not sqlite:///absolute/file (three slashes, a file, nothing after it)"
        )
    return path
