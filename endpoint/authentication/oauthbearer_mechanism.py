"""OAUTHBEARER (RFC 7628): a client shows an access token of an issuer whose keys this listener knows.

The session ends with the token (KIP-368).  A token that is refused is answered as in Kafka: with the error, then, when
the client has acknowledged that, with SASL_AUTHENTICATION_FAILED.  Needs the extra ``oauth``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from bmq.core.clock import Clock
from bmq.core.security.access_token import AccessToken, InvalidToken, TokenRules, UnknownKey, validate
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.jwks import JsonWebKeySet
from bmq.core.security.jwks_source import JwksSource
from bmq.core.security.principal import user
from bmq.endpoint.authentication.oauthbearer_messages import (
    GIVE_UP,
    INVALID_TOKEN,
    InitialResponse,
    WrongMessage,
    parse_initial_response,
)

OAUTHBEARER = "OAUTHBEARER"


class OAuthBearerSaslMechanism:
    """The issuer whose tokens one listener accepts."""

    name = OAUTHBEARER

    def __init__(self, source: JwksSource, rules: TokenRules, clock: Clock) -> None:
        self.source = source
        self._rules = rules
        self._clock = clock

    def create_server(self, context: AuthenticationContext) -> OAuthBearerSaslServer:
        """Return the server of a new attempt."""
        return OAuthBearerSaslServer(self)

    async def start(self) -> None:
        """Begin to fetch the issuer's keys.

        Does not wait for them: clients that come before wait a few seconds, and are refused as long as there are none.
        """
        self.source.start()

    async def close(self) -> None:
        """Stop fetching.  Idempotent."""
        await self.source.close()

    def validate(self, token: str, keys: JsonWebKeySet) -> AccessToken:
        """Return what a token says, checked with ``keys``.

        Raises InvalidToken; UnknownKey if only a key is missing.
        """
        return validate(token, keys, self._rules, self._clock.now_ms() / 1000)


class OAuthBearerSaslServer:
    """One client's attempt."""

    __slots__ = ("_mechanism", "_refused")

    def __init__(self, mechanism: OAuthBearerSaslMechanism) -> None:
        self._mechanism = mechanism
        self._refused: str | None = None  # the reason, once the client has got the error

    def dispose(self) -> None:
        """Do nothing: the token was not kept."""

    def evaluate(self, token: bytes) -> AuthenticationResult | Awaitable[AuthenticationResult]:
        """Check the client's token; wait for the issuer's newer keys if it names one that is not known."""
        if self._refused is not None:
            text = INVALID_TOKEN if token == GIVE_UP else ""
            return AuthenticationFailure(self._refused, text)
        try:
            message = parse_initial_response(token)
        except WrongMessage as error:
            return AuthenticationFailure(f"OAUTHBEARER's first message is wrong: {error}")
        try:
            return self._check(message, self._mechanism.source.keys)
        except UnknownKey as error:
            return self._check_with_newer_keys(message, error)

    async def _check_with_newer_keys(self, message: InitialResponse, error: UnknownKey) -> AuthenticationResult:
        keys = await self._mechanism.source.fetch_for(error.key_id or "")
        try:
            return self._check(message, keys)
        except UnknownKey as still:
            return self._refuse(still)

    def _check(self, message: InitialResponse, keys: JsonWebKeySet) -> AuthenticationResult:
        try:
            token = self._mechanism.validate(message.token, keys)
        except UnknownKey:
            raise
        except InvalidToken as error:
            return self._refuse(error)
        if message.acts_as and message.acts_as != token.subject:
            text = (
                f"Authentication failed: Client requested an authorization id ({message.acts_as}) that is different"
                f" from the token's principal name ({token.subject})"
            )
            return AuthenticationFailure(text, text)
        return Authenticated(user(token.subject), expires_at_ms=int(token.expires_at * 1000))

    def _refuse(self, error: InvalidToken) -> Challenge:
        self._refused = f"the access token is refused: {error}"
        return Challenge(INVALID_TOKEN.encode())
