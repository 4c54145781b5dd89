"""The log-in of commands and jobs at servers' HTTP addresses, from the environment.

| variable | is |
|---|---|
| ``BMQ_HTTP_USER`` | the user's name |
| ``BMQ_HTTP_PASSWORD``, ``BMQ_HTTP_PASSWORD_FILE`` | its password, or the file that has it |
| ``BMQ_HTTP_TOKEN``, ``BMQ_HTTP_TOKEN_FILE`` | a token, in place of user and password |
| ``BMQ_HTTP_CA`` | file in PEM of the authorities that sign the servers' certificates; the machine's when empty |

No flag takes a password: a command line can be read by every user of its machine.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRET_BYTES_MAX = 64 << 10


class HttpLoginError(ValueError):
    """The environment's log-in is wrong; ``str`` says what to do, without a secret."""


@dataclass(frozen=True, slots=True)
class HttpLogin:
    """Headers and authorities of requests."""

    authorization: str = field(default="", repr=False)
    """Value of the header ``Authorization``; empty without a log-in."""
    authorities: ssl.SSLContext | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request."""
        return {"Authorization": self.authorization} if self.authorization else {}


def http_login(environment: Mapping[str, str]) -> HttpLogin:
    """Return the log-in that the environment gives.  Raises HttpLoginError if it is wrong."""
    user, password, token = (
        environment.get("BMQ_HTTP_USER", ""),
        _secret(environment, "BMQ_HTTP_PASSWORD"),
        _secret(environment, "BMQ_HTTP_TOKEN"),
    )
    if bool(user) != bool(password) or (user and token):
        raise HttpLoginError(
            "give BMQ_HTTP_USER with BMQ_HTTP_PASSWORD (or ..._FILE), or BMQ_HTTP_TOKEN, or none of them"
        )
    if ":" in user:
        raise HttpLoginError("BMQ_HTTP_USER has a colon, which no user's name has over HTTP")
    authorization = f"Bearer {token}" if token else ""
    if user:
        authorization = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    if not authorization.isascii() or not authorization.isprintable():
        raise HttpLoginError("BMQ_HTTP_TOKEN is not a token: it has characters that no header has")
    return HttpLogin(authorization, _authorities(environment.get("BMQ_HTTP_CA", "")))


def secret_files(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files with secrets of the log-in that the environment gives."""
    paths = (environment.get(f"{name}_FILE", "") for name in ("BMQ_HTTP_PASSWORD", "BMQ_HTTP_TOKEN"))
    return tuple(path for path in paths if path)


def _secret(environment: Mapping[str, str], name: str) -> str:
    value, path = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if value and path:
        raise HttpLoginError(f"{name} and {name}_FILE are both set; leave one of them out")
    if not path:
        return value
    try:
        with Path(path).open(encoding="utf-8") as stream:
            return stream.read(SECRET_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise HttpLoginError(f"{name}_FILE: cannot read {path}: {reason}") from None


def _authorities(path: str) -> ssl.SSLContext | None:
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise HttpLoginError(f"BMQ_HTTP_CA: {path} has no certificates in PEM that can be read: {error}") from None
