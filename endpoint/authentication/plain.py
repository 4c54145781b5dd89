"""PLAIN (RFC 4616): a user's name and password, compared with those in the listener's JAAS text.

Users are options of ``PlainLoginModule``, as in Kafka: ``user_alice="secret"``.  They are read when a
process starts.  The password crosses the network as it is: over SASL_PLAINTEXT everybody on the way can read it.

The password of an unknown user is compared with a password of this process's own, so it takes as long as a wrong
password.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from bmq.core.config import ConfigError
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
)
from bmq.core.security.jaas import JaasError, parse_single_jaas
from bmq.core.security.principal import has_outer_space, user
from bmq.endpoint.authentication.mechanism import MechanismContext, Stateless

PLAIN = "PLAIN"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USER = "user_"
_WRONG = "Authentication failed: Invalid username or password"


class PlainSaslMechanism(Stateless):
    """The users of one listener."""

    name = PLAIN

    def __init__(self, users: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._digests = {name: self._digest(password) for name, password in users.items()}
        self._nobody = secrets.token_bytes(32)

    def __repr__(self) -> str:
        return f"<PlainSaslMechanism {len(self._digests)} users>"

    def create_server(self, context: AuthenticationContext) -> PlainSaslMechanism:
        """Return itself: an attempt is one message, and leaves nothing behind."""
        return self

    def evaluate(self, token: bytes) -> AuthenticationResult:
        """Check ``[authzid] NUL authcid NUL passwd`` (``PlainSaslServer``)."""
        try:
            parts = token.decode().split("\0", 3)
        except UnicodeDecodeError:
            return AuthenticationFailure(
                "the message is not UTF-8", "Authentication failed: the SASL/PLAIN message is not UTF-8"
            )
        if len(parts) != 3:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            return AuthenticationFailure(text, text)
        acts_as, name, password = parts
        if not name:
            return AuthenticationFailure("no user name", "Authentication failed: username not specified")
        if not password:
            return AuthenticationFailure("no password", "Authentication failed: password not specified")
        expected = self._digests.get(name)
        is_right = hmac.compare_digest(self._digest(password), self._nobody if expected is None else expected)
        if expected is None:
            return AuthenticationFailure("unknown user", _WRONG)
        if not is_right:
            return AuthenticationFailure(f"wrong password of user {name!r}", _WRONG)
        if acts_as and acts_as != name:
            text = "Authentication failed: Client requested an authorization id that is different from username"
            return AuthenticationFailure(text, text)
        return Authenticated(user(name))

    def _digest(self, password: str) -> bytes:
        """Return a keyed digest: digests have one length, so comparing them takes one time for all passwords."""
        return hmac.digest(self._key, password.encode(), hashlib.sha256)


def make_plain(context: MechanismContext) -> PlainSaslMechanism:
    """Return the mechanism with the users of the listener's JAAS text.

    Raises ConfigError if it has no such text, or if that is wrong.
    """
    where = f"listener {context.listener}: plain.sasl.jaas.config"
    text = context.setting("sasl.jaas.config")
    if not text:
        name = f"listener.name.{context.listener.lower()}.plain.sasl.jaas.config"
        raise ConfigError(f'{where} is not set; give {name}={LOGIN_MODULE} required user_NAME="PASSWORD";')
    try:
        module = parse_single_jaas(text, LOGIN_MODULE)
    except JaasError as error:
        raise ConfigError(f"{where}: {error}") from None
    users = {name[len(_USER) :]: value for name, value in module.options.items() if name.startswith(_USER)}
    if "" in users or "" in users.values():
        raise ConfigError(f"{where}: a user has an empty name or an empty password")
    if any(map(has_outer_space, users)):
        raise ConfigError(f"{where}: a user's name has white space at an end")
    return PlainSaslMechanism(users)
