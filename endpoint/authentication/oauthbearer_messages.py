"""The messages of OAUTHBEARER (RFC 7628), as Kafka reads them (``OAuthBearerClientInitialResponse``).  Pure.

::

    client: n,a=AUTHZID,^Aauth=Bearer TOKEN^Aname=value^A^A     a=AUTHZID and the extensions may be missing
    server: (empty)                                             the token is right
        or: {"status":"invalid_token"}                          it is not; the client then sends ^A, and fails

^A is the byte 1.  Stricter than Kafka: a name that is given twice is refused, where Kafka takes the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

INVALID_TOKEN = '{"status":"invalid_token"}'
"""Kafka's text for every token that it refuses; the reason is in the server's log alone."""
GIVE_UP = b"\x01"
"""The client's last message after that: it has seen the error."""
AUTH = "auth"
_MESSAGE = re.compile(
    rb"n,(?:a=(?P<authzid>(?:[\x01-\x2B\x2D-\x3C\x3E-\x7F]|=2C|=3D)+))?,"
    rb"\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class WrongMessage(ValueError):
    """A message that is not of this form; ``str`` says why, and has nothing of the token."""


@dataclass(frozen=True, slots=True)
class InitialResponse:
    """The client's first message."""

    token: str = field(repr=False)
    acts_as: str = ""
    """The authorization id: whom the client wants to be."""
    extensions: Mapping[str, str] = field(default_factory=dict)


def parse_initial_response(message: bytes) -> InitialResponse:
    """Return the parts of a client's first message.  Raises WrongMessage if it is not of this form."""
    found = _MESSAGE.fullmatch(message)
    if found is None:
        raise WrongMessage("the message is not n,[a=NAME],^A then NAME=VALUE^A pairs then ^A, as RFC 7628 3.1 has it")
    pairs: dict[str, str] = {}
    for pair in found["pairs"].decode("ascii").split("\x01")[:-1]:
        name, _, value = pair.partition("=")
        if name in pairs:
            raise WrongMessage(f"{name[:100]!r} is given twice")
        pairs[name] = value
    if AUTH not in pairs:
        raise WrongMessage(f"{AUTH!r} is not given")
    credentials = _AUTH.fullmatch(pairs.pop(AUTH))
    if credentials is None:
        raise WrongMessage(f"{AUTH!r} is not a scheme and a token")
    if credentials["scheme"].lower() != "bearer":
        raise WrongMessage(f"the scheme is {credentials['scheme'][:20]!r}, not Bearer")
    acts_as = (found["authzid"] or b"").decode("ascii").replace("=2C", ",").replace("=3D", "=")
    return InitialResponse(credentials["token"], acts_as, pairs)
