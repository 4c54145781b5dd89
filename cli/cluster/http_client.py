"""The client of servers' HTTP addresses, for ``bmq cluster`` and the cleaning in ``bmq topic describe``.

The process at this address may be the very process that is to be drained.  So the other members' addresses are kept: if
a member does not respond, the request goes to another member of the same cluster.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from bmq.cli.secret_notes import noted_http_login
from bmq.cli.usage import UsageError
from bmq.core.http_call import ServerUnreachable, call
from bmq.core.urls import split_url

CONSOLES_MAX = 100


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
        self._login = noted_http_login()
        self._timeout_s = timeout_s
        self._cluster_id: str | None = None

    def status(self, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Return the cluster's status.  Raises ServerUnreachable if no console responds within the time."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        failed: ServerUnreachable | None = None
        for url in tuple(self._urls):
            try:
                status = call(f"{url}/api/v1/cluster/status", None, max(0.1, deadline - time.monotonic()), self._login)
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
        return call(f"{self._urls[0]}/api/v1/cluster/{name}", body, self._timeout_s, self._login)

    def topic(self, name: str, after: int, limit: int) -> Mapping[str, Any]:
        """Return a topic with at most ``limit`` partitions behind number ``after``.

        Raises RequestRefused or ServerUnreachable.
        """
        query = urllib.parse.urlencode({"after": after, "limit": limit})
        url = f"{self._urls[0]}/api/v1/topics/{urllib.parse.quote(name, safe='')}?{query}"
        details = call(url, None, self._timeout_s, self._login)
        if "topic" not in details or "partitions" not in details:
            raise ServerUnreachable(f"{self._urls[0]} answers, but not as `bmq serve`")
        return details

    def log_levels(self, member: str) -> Mapping[str, Any]:
        """Return a member's loggers.  Raises RequestRefused or ServerUnreachable."""
        return call(self._log_level(member), None, self._timeout_s, self._login)

    def set_log_level(self, member: str, logger: str, level: str) -> Mapping[str, Any]:
        """Set the level of a member's logger, by one request.  Raises RequestRefused or ServerUnreachable."""
        body = {"logger": logger, "level": level}
        return call(self._log_level(member), body, self._timeout_s, self._login, method="PUT")

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
