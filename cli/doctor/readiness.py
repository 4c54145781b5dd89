"""Requests by which ``bmq cluster doctor`` asks a server about itself: ``/readyz``, and pages such as ``/metrics``.

They go straight to the server, whatever proxy the environment names, with the log-in of ``bmq cluster status``.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus

from bmq.cli.doctor.checks import Health
from bmq.cli.doctor.clock import ahead_s
from bmq.cli.health import LOCAL, of_this_machine
from bmq.cli.secret_notes import noted_http_login
from bmq.cli.usage import UsageError
from bmq.core.config import NodeConfig, parse_address
from bmq.core.http_call import ServerUnreachable
from bmq.core.http_login import HttpLogin
from bmq.core.urls import split_url

HEALTH_BYTES_MAX = 64 << 10
PAGE_BYTES_MAX = 16 << 20
_PORTS = {"http": 80, "https": 443}


class NotPermitted(Exception):
    """The environment's log-in may not read a page."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The way to the servers' HTTP addresses."""

    url: str
    """The address of a single process."""
    scheme: str
    """``http`` or ``https``, of the members' addresses in the store."""
    login: HttpLogin
    own_context: ssl.SSLContext | None = None
    """TLS of ``url``, if it differs from the TLS of members."""

    def ask(self, url: str, timeout_s: float) -> Health:
        """Return the health of the server at ``url``."""
        return readyz(url, timeout_s, self.login, self._context(url))

    def read(self, url: str, page: str, timeout_s: float) -> bytes:
        """Return a page of the server at ``url``.

        Raises NotPermitted if the log-in may not read it, and ServerUnreachable if there is no such page.
        """
        request = urllib.request.Request(f"{url}{page}", headers=dict(self.login.headers))
        try:
            with _opener(self._context(url)).open(request, timeout=timeout_s) as response:
                return bytes(response.read(PAGE_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                    raise NotPermitted(str(error)) from error
                raise ServerUnreachable(f"{url}{page}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(f"{url}{page}: {getattr(error, 'reason', error)}") from error

    def _context(self, url: str) -> ssl.SSLContext | None:
        if url == self.url and self.own_context is not None:
            return self.own_context
        return self.login.authorities


def servers_of(config: NodeConfig, url: str | None) -> Servers:
    """Return the way to the servers: by ``url``, or by the settings ``http`` and ``http_tls`` if there is none.

    Without a log-in and authorities, a server of the settings may show any certificate, as to ``bmq health``: it has
    the server's public name, and nothing secret is sent.  Raises UsageError if the environment's log-in is wrong.
    """
    login = noted_http_login()
    if url is not None:
        return Servers(url, "https" if config.http_tls else split_url(url).scheme, login)
    host, port = parse_address(config.http, "http")
    host = LOCAL.get(host, host)
    scheme = "https" if config.http_tls else "http"
    own = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    is_open = not login.authorization and login.authorities is None
    return Servers(own, scheme, login, of_this_machine() if config.http_tls and is_open else None)


def address_of(url: str) -> str:
    """Return HOST:PORT of a URL, or ``url`` itself if it has no scheme.  Raises UsageError if it is not an HTTP URL."""
    if "://" not in url:
        return url
    try:
        parts = split_url(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.scheme not in _PORTS:
        raise UsageError(f"--http: {url!r} is not like https://kafka1.example.com:9080")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def readyz(url: str, timeout_s: float, login: HttpLogin, context: ssl.SSLContext | None) -> Health:
    """Return a server's health; of status 0, with the reason, if it does not answer."""
    request = urllib.request.Request(f"{url}/readyz", headers=dict(login.headers))
    began = time.time()
    try:
        try:
            with _opener(context).open(request, timeout=timeout_s) as response:
                ahead = ahead_s(response.headers["Date"], began, time.time())
                return Health(response.status, _message(response.read(HEALTH_BYTES_MAX)), ahead)
        except urllib.error.HTTPError as error:
            with error:
                ahead = ahead_s(error.headers["Date"], began, time.time())
                return Health(error.code, _message(error.read(HEALTH_BYTES_MAX)), ahead)
    except (OSError, http.client.HTTPException) as error:
        return Health(0, str(getattr(error, "reason", error)))


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"its response is not one of `bmq serve`: {body[:80]!r}"
