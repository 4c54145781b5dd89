"""URLs of roots and metadata stores in settings and messages: their scheme, and no password in any message."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_WORD = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://\S+")
"""A URL in a text.  A search begins at the first character of a run alone, so its cost is linear in the text."""
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::\d*)?"
_ONLY_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SCHEMES_WITH_A_PATH = ("hdfs", "webhdfs", "file", "http", "https")
_SCHEMES_WITHOUT_HOSTS = ("file", "sqlite", "hdfs", "webhdfs")
"""Schemes whose URLs may do without hosts: the name service of ``hdfs:///dir`` is the default one."""
MASK = "***"


def scheme_of(url: str) -> str:
    """Return the scheme in lower case, "" if there is none (RFC 3986 3.1: schemes are case-insensitive)."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


def normal_url(url: str) -> str:
    """Return ``url`` with its scheme in lower case, so that schemes can be compared as text."""
    scheme, colon, rest = url.partition(":")
    return f"{scheme.lower()}{colon}{rest}"


def without_userinfo(url: str) -> str:
    """Return ``url`` with ``***`` for the user and password in front of its hosts; for messages.

    A password may hold ``/ ? # @`` unescaped, so everything up to the last ``@`` counts as userinfo, unless hosts end
    before it and the scheme has paths.  Mistyped URLs are masked too: ``etcd:/user:password@host``, or no scheme.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _without_password(url)
    _, at, after = rest.rpartition("@")
    if not at or (rest.startswith("/") and scheme.lower() in _SCHEMES_WITHOUT_HOSTS):
        return url
    hosts, slash, path = rest.partition("/")
    if scheme.lower() in _SCHEMES_WITH_A_PATH and slash and "@" in path and _ONLY_HOSTS.fullmatch(hosts):
        return url  # the @ is a part of the path
    if scheme.lower() in _SCHEMES_WITH_A_PATH and "@" in hosts:
        own_hosts = hosts.rpartition("@")[2]
        if _ONLY_HOSTS.fullmatch(own_hosts):
            return f"{scheme}://{MASK}@{own_hosts}{slash}{path}"
    return f"{scheme}://{MASK}@{after}"


def _without_password(text: str) -> str:
    """Return ``text``, which has no ``scheme://``, without what may be user and password (a colon between)."""
    before, _, after = text.rpartition("@")
    scheme, _, rest = text.partition(":")
    if ":" not in before or (scheme.lower() in _SCHEMES_WITHOUT_HOSTS and rest.startswith("/")):
        return text
    return f"{MASK}@{after}"


def split_url(url: str) -> SplitResult:
    """Return the parts of ``url``.  Raises ValueError, whose text has no password, if it is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:  # its own text may repeat the password
        raise ValueError(
            f"{without_userinfo(url)!r} is not a URL: check brackets and characters of its hosts"
        ) from None


def without_passwords(text: str) -> str:
    """Return ``text`` with ``without_userinfo`` applied to every URL in it; for messages of other programs."""
    return _WORD.sub(lambda match: without_userinfo(match[0]), text)
