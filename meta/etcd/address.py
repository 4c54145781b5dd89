"""Parser of ``etcd://user:password@host:port,host:port?ca=/file&cert=/file&key=/file``."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from bmq.core.urls import split_url

DEFAULT_PORT = 2379
_FILES = ("ca", "cert", "key")
_PARAMETERS = tuple(f"{name}=" for name in _FILES)


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The addresses of an etcd cluster, and this process's credentials.

    With any of the three files connections are TLS.
    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def is_tls(self) -> bool:
        return bool(self.ca or self.cert)


def parse_etcd_url(url: str, user: str = "", password: str = "") -> EtcdAddress:
    """Return the address that ``url`` names; ``user`` and ``password`` are for a URL that gives none.

    Raises ValueError, without the password, if the URL is not of this form.
    """
    parts = split_url(url)
    if "@" in f"{parts.path}{parts.fragment}" or ("@" in parts.query and not parts.query.startswith(_PARAMETERS)):
        raise ValueError("etcd://: write / ? # in user and password as %2F %3F %23, or give meta_password")
    account, _, hosts = parts.netloc.rpartition("@")
    own_user, _, own_password = map(unquote, account.partition(":"))
    if own_password and password:
        raise ValueError("etcd://: the URL has a password and meta_password another: give one of them")
    if own_user and user and own_user != user:
        raise ValueError("etcd://: the URL has a user and meta_user another: give one of them")
    user, password = own_user or user, own_password or password
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError("etcd:// takes no path: etcd://host:port,host:port")
    if password and not user:
        raise ValueError("etcd://: a password belongs to a user: give meta_user, or etcd://user@host:port")
    if user and not password:
        raise ValueError(
            "etcd:// takes user and password, or neither: give meta_password (or meta_password_file) with the user"
        )
    files = _files(parts.query)
    endpoints = tuple(_endpoint(host) for host in hosts.split(","))
    return EtcdAddress(endpoints, user, password, **files)


def tls_context(url: str) -> ssl.SSLContext | None:
    """Return the TLS settings of an address for HTTP, None if it has none.

    Raises ValueError if the URL is wrong, OSError if a file cannot be read.
    """
    files = _files(split_url(url).query)
    if not files:
        return None
    context = ssl.create_default_context(cafile=files.get("ca"))
    if "cert" in files:
        context.load_cert_chain(files["cert"], files["key"])
    return context


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"etcd://: {text!r} is not host:port ({error})") from None
    if not host or parts.path:
        raise ValueError(f"etcd://: {text!r} is not host:port; members are separated by commas")
    return f"[{host}]:{port or DEFAULT_PORT}" if ":" in host else f"{host}:{port or DEFAULT_PORT}"


def _files(query: str) -> dict[str, str]:
    files = dict(parse_qsl(query, keep_blank_values=True))
    for name, path in files.items():
        if name not in _FILES or not path:
            raise ValueError(f"etcd://: {name}={path} is none of ca=/file, cert=/file, key=/file")
    if ("cert" in files) != ("key" in files):
        raise ValueError("etcd://: cert=/file and key=/file come together")
    return files
