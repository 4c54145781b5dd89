"""A request to a server's HTTP address, for commands and jobs."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from bmq.core.http_login import HttpLogin

ANSWER_BYTES_MAX = 16 << 20
"""Largest response in bytes; a console's is smaller."""


class ServerUnreachable(Exception):
    """No server responds; ``str`` names the servers, and says what to do."""


class RequestRefused(Exception):
    """The server refused the request, or does not have the object that it names.

    ``is_passing``: the server has the same request sent again later (503).
    """

    def __init__(self, text: str, *, is_passing: bool = False) -> None:
        super().__init__(text)
        self.is_passing = is_passing


class ConsoleGone(ServerUnreachable):
    """Nothing listens at a console's address."""


def call(
    url: str,
    body: Mapping[str, Any] | None,
    timeout_s: float,
    login: HttpLogin,
    method: str | None = None,
    *,
    bytes_max: int = ANSWER_BYTES_MAX,
    late_advice: str = "try again, or give it longer with --timeout",
) -> Mapping[str, Any]:
    """GET, or send ``body`` by POST or ``method``, and return the response, of ``bytes_max`` at most.

    ``late_advice``: the remedy for a time-out, by the caller's own options.  Raises RequestRefused with the server's
    text, or ServerUnreachable.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {**login.headers, **({} if data is None else {"Content-Type": "application/json"})}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=login.authorities) as response:
            content = json.loads(response.read(bytes_max))
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # no connection, no response; no JSON, no HTTP
        if isinstance(getattr(error, "reason", error), TimeoutError):
            text = f"{url} did not answer within {timeout_s:.3g} s"
            raise ServerUnreachable(f"{text}; {late_advice}") from error
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
    return RequestRefused(message, is_passing=error.code == HTTPStatus.SERVICE_UNAVAILABLE)


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
