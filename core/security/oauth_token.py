"""Access tokens of a client: from a token endpoint by its id and secret (RFC 6749, 4.4), or from a file.

A token is kept until shortly before its end, which an endpoint says; a file is read each time.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from bmq.core.security.client_login import Login

TOKEN_BYTES_MAX = 1 << 20
FETCH_S = 10.0
EARLY_S = 30.0
"""A token is fetched again so long before its end, in seconds, or after half of its life if that is shorter."""
UNKNOWN_LIFE_S = 300.0
"""Life of a token whose endpoint does not say it, in seconds."""


class TokenError(Exception):
    """There is no token; ``str`` says why, and shows no secret."""


class TokenSource:
    """The tokens of one client.  Any thread may ask."""

    def __init__(self, login: Login, trust: ssl.SSLContext | None = None) -> None:
        """Take ``trust``, which says which certificates of the endpoint are right; None: the machine's authorities."""
        self._login = login
        self._trust = trust
        self._lock = threading.Lock()
        self._token = ""
        self._due = 0.0
        self.expires_at = 0.0
        """When the newest token ends, in seconds since 1970; as far as its endpoint says."""

    def token(self) -> str:
        """Return a token that has not ended.  Raises TokenError."""
        with self._lock:
            if not self._token or time.time() >= self._due:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        url = self._login.token_url
        parts = urllib.parse.urlsplit(url)
        life_s = UNKNOWN_LIFE_S
        if parts.scheme == "file":
            token, self._due = self._from_file(urllib.parse.unquote(parts.path)), 0.0
        elif parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
            token, life_s = self._from_endpoint(url)
            self._due = time.time() + max(life_s - EARLY_S, life_s / 2)
        else:
            raise TokenError("sasl.oauthbearer.token.endpoint.url is not like https://issuer/token or file:///path")
        if not token or not token.isascii() or any(each.isspace() for each in token):
            raise TokenError("the access token is empty, or has characters that no token has")
        self._token, self.expires_at = token, time.time() + life_s

    def _from_file(self, path: str) -> str:
        try:
            with Path(path).open(encoding="utf-8") as stream:
                return stream.read(TOKEN_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise TokenError(f"the access token cannot be read: {path}: {reason}") from None

    def _from_endpoint(self, url: str) -> tuple[str, float]:
        fields = {"grant_type": "client_credentials", **({"scope": self._login.scope} if self._login.scope else {})}
        secret = base64.b64encode(f"{self._login.user}:{self._login.password}".encode()).decode()
        headers = {"Authorization": f"Basic {secret}", "Accept": "application/json"}
        request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode(), headers)
        opener = urllib.request.build_opener(
            _NoRedirect(), urllib.request.HTTPSHandler(context=self._trust or ssl.create_default_context())
        )
        try:
            with opener.open(request, timeout=FETCH_S) as response:
                token = json.loads(response.read(TOKEN_BYTES_MAX))
            return str(token["access_token"]), float(token.get("expires_in") or UNKNOWN_LIFE_S)
        except urllib.error.HTTPError as error:
            with error:
                raise TokenError(f"the token endpoint refused: {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise TokenError(f"the token endpoint cannot be reached: {getattr(error, 'reason', error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TokenError("the token endpoint's response has no access_token") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: the secret goes to the endpoint that is set, and nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
