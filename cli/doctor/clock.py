"""The clock of another machine, by the ``Date`` of its HTTP responses: whole seconds (RFC 9110, 6.6.1)."""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime


def ahead_s(date: str | None, began: float, ended: float) -> float | None:
    """Return how many seconds the clock that wrote ``date`` is ahead of ours; None if it is not a date.

    The request took from ``began`` to ``ended``, seconds since 1970 by our clock: a time between them is no difference.
    """
    if date is None:
        return None
    try:
        named = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    if named > ended:
        return named - ended
    return min(0.0, named + 1 - began)  # the second that it names was over by then


def clock_of(endpoint: str, context: ssl.SSLContext | None, timeout_s: float) -> float | None:
    """Return how many seconds etcd's clock at ``host:port`` is ahead of ours; None if nothing there speaks HTTP.

    Its ``/version`` is on the clients' port, unless it has another for HTTP (--listen-client-http-urls).
    """
    connection = (
        http.client.HTTPConnection(endpoint, timeout=timeout_s)
        if context is None
        else http.client.HTTPSConnection(endpoint, timeout=timeout_s, context=context)
    )
    began = time.time()
    try:
        connection.request("GET", "/version")
        response = connection.getresponse()
        return ahead_s(response.getheader("Date"), began, time.time())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
