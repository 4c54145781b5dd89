"""The client of servers' HTTP addresses, for ``bmq cluster`` and the cleaning in ``bmq topic describe``.

The process at this address may be the very process that is to be drained.  So the other members' addresses are kept: if
a member does not respond, the request goes to another member of the same cluster.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from bmq.cli.admin_client import RequestRefused, ServerUnreachable
from bmq.cli.cluster.http_login import HttpLogin, http_login
from bmq.cli.usage import UsageError
from bmq.core.urls import split_url

ANSWER_BYTES_MAX = 16 << 20
"""Largest response in bytes; a console's is smaller."""
CONSOLES_MAX = 100


class ConsoleGone(ServerUnreachable):
    """Nothing listens at a console's address."""


class Console:
    """The consoles of one cluster.  Every call takes at most ``timeout_s``."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Use ``url``; ``http://`` may be left out, as in ``bmq serve --http``.  Raises UsageError if it is not an HTTP
        address, or the environment's log-in is wrong."""
        if "://" not in url:
            url = f"http://{url}"
        try:
            parts = split_url(url)
            is_http = parts.scheme in ("http", "https") and parts.netloc
        except ValueError:
            is_http = False
        if not is_http:
            raise UsageError(f"--http: {url!r} is not like http://127.0.0.1:9080")
        self._urls = [url.rstrip("/")]
        self._scheme = parts.scheme
        self._login = http_login(os.environ)
        self._timeout_s = timeout_s
        self._cluster_id: str | None = None

    def status(self, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Return the cluster's status.  Raises ServerUnreachable if no console responds within the time."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        failed: ServerUnreachable | None = None
        for url in tuple(self._urls):
            try:
                status = _call(f"{url}/api/v1/cluster/status", None, max(0.1, deadline - time.monotonic()), self._login)
                self._check(url, status)
            except ServerUnreachable as error:
                failed = failed or error
                self._urls.remove(url)
                self._urls.append(url)  # the next call asks others first
                continue
            self._remember(url, status)
            return status
        assert failed is not None, "there is one URL at least"
        raise failed

    def act(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an operator's request once, to one console, and return the response.

        Raises RequestRefused or ServerUnreachable.
        """
        return _call(f"{self._urls[0]}/api/v1/cluster/{name}", body, self._timeout_s, self._login)

    def topic(self, name: str, after: int, limit: int) -> Mapping[str, Any]:
        """Return a topic with at most ``limit`` partitions behind number ``after``.

        Raises RequestRefused or ServerUnreachable.
        """
        query = urllib.parse.urlencode({"after": after, "limit": limit})
        url = f"{self._urls[0]}/api/v1/topics/{urllib.parse.quote(name, safe='')}?{query}"
        details = _call(url, None, self._timeout_s, self._login)
        if "topic" not in details or "partitions" not in details:
            raise ServerUnreachable(f"{self._urls[0]} answers, but not as `bmq serve`")
        return details

    def log_levels(self, member: str) -> Mapping[str, Any]:
        """Return a member's loggers.  Raises RequestRefused or ServerUnreachable."""
        return _call(self._log_level(member), None, self._timeout_s, self._login)

    def set_log_level(self, member: str, logger: str, level: str) -> Mapping[str, Any]:
        """Set the level of a member's logger, by one request.  Raises RequestRefused or ServerUnreachable."""
        body = {"logger": logger, "level": level}
        return _call(self._log_level(member), body, self._timeout_s, self._login, method="PUT")

    def _log_level(self, member: str) -> str:
        return f"{self._urls[0]}/api/v1/members/{urllib.parse.quote(member, safe='')}/log-level"

    def _check(self, url: str, status: Mapping[str, Any]) -> None:
        """Raise ServerUnreachable unless this is a status of the same cluster.

        An address may by now be another machine's or another cluster's.
        """
        if "members" not in status or "cluster_id" not in status:
            raise ServerUnreachable(f"{url} answers, but not as `bmq serve`")
        if self._cluster_id not in (None, status["cluster_id"]):
            raise ServerUnreachable(f"{url} belongs to another cluster")
        self._cluster_id = status["cluster_id"]

    def _remember(self, url: str, status: Mapping[str, Any]) -> None:
        """Keep the address that responded first, then the others'."""
        others = [
            f"{self._scheme}://{member['http']}"
            for member in status["members"]
            if member["http"] and member["incarnation"] != status["asked"]
        ]
        self._urls = list(dict.fromkeys([url, *others]))[:CONSOLES_MAX]


def _call(
    url: str, body: Mapping[str, Any] | None, timeout_s: float, login: HttpLogin, method: str | None = None
) -> Mapping[str, Any]:
    """GET, or send ``body`` by POST or ``method``, and return the response.

    Raises RequestRefused with the server's text, or ServerUnreachable.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {**login.headers, **({} if data is None else {"Content-Type": "application/json"})}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=login.authorities) as response:
            content = json.loads(response.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # no connection, no response; no JSON, no HTTP
        if isinstance(getattr(error, "reason", error), TimeoutError):
            text = f"{url} did not answer within {timeout_s:.3g} s"
            raise ServerUnreachable(f"{text}; try again, or give it longer with --timeout") from error
        is_gone = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        unreachable = ConsoleGone if is_gone else ServerUnreachable
        raise unreachable(f"{url}: {_cause(error)}: {_advice(url, error)}") from error
    if not isinstance(content, dict):
        raise ServerUnreachable(f"{url} answers, but not as `bmq serve`")
    return content


def _refusal(url: str, error: urllib.error.HTTPError) -> RequestRefused | ServerUnreachable:
    """Return RequestRefused for a console's own error; ServerUnreachable for any other body: no console sends that."""
    try:
        with error:
            content = json.loads(error.read(ANSWER_BYTES_MAX))
        code, message = content["error"], content["message"]
    except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
        return ServerUnreachable(f"{url}: {error.reason}: is it the HTTP address of `bmq serve`?")
    if code == "not_authenticated":
        return RequestRefused(f"{message}: BMQ_HTTP_USER and BMQ_HTTP_PASSWORD_FILE, or BMQ_HTTP_TOKEN_FILE, log in")
    if code == "not_found":
        return ServerUnreachable(f"{url}: {error.reason}: is it the HTTP address of a `bmq serve` of this version?")
    return RequestRefused(message)


def _advice(url: str, error: Exception) -> str:
    """Return the remedy for a request without a response, above all if only one side speaks TLS."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "BMQ_HTTP_CA names a file of the authorities that sign the servers' certificates"
    if isinstance(reason, ssl.SSLError):
        return "does it speak TLS? Use http:// if `bmq serve` has no http_tls"
    is_ended = isinstance(reason, http.client.BadStatusLine | ConnectionResetError | BrokenPipeError)
    if url.startswith("http://") and is_ended:
        return "is it the HTTP address of `bmq serve`? If it has http_tls, use https://, and BMQ_HTTP_CA for its CA"
    return "is it the HTTP address of `bmq serve`?"


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)
