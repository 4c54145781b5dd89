"""SCRAM-SHA-256 and -512: users of the cluster, and delegation tokens, prove that they know their password.

An unknown name goes through the same steps, with a made-up credential that is always the same, and fails at the end
like a wrong password.  ``core.security.scram`` has the computations.

Departures from Kafka: there, a name that does not exist fails at its first message, and so can be told from others.
"""

from __future__ import annotations

from collections.abc import Awaitable

from bmq.core.errors import FormatError
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.principal import user
from bmq.core.security.scram import (
    BY_NAME,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ScramServerMessages,
    parse_client_final,
    parse_client_first,
)
from bmq.endpoint.authentication.accounts import ScramTokens, ScramUsers, TokenAccount
from bmq.endpoint.authentication.mechanism import MechanismContext, Stateless

_OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"

OTHER_NONCE = "librdkafka before 2.6.1 sends one, and Kafka 4 refuses it too: use a later one"


class ScramSaslMechanism(Stateless):
    """One SCRAM mechanism on one listener."""

    def __init__(self, mechanism: ScramMechanism, users: ScramUsers, tokens: ScramTokens | None = None) -> None:
        """``tokens`` None: no delegation token is accepted."""
        self.mechanism = mechanism
        self.users = users
        self.tokens = tokens

    def __repr__(self) -> str:
        return f"<ScramSaslMechanism {self.name}>"

    @property
    def name(self) -> str:
        """The mechanism's name."""
        return self.mechanism.name

    async def start(self) -> None:
        """Get the secret of made-up credentials."""
        await self.users.prepare_decoys()

    def create_server(self, context: AuthenticationContext) -> ScramSaslServer:
        """Return the server of a new attempt."""
        return ScramSaslServer(self)


class ScramSaslServer(Stateless):
    """One client's attempt."""

    __slots__ = ("_first", "_is_known", "_messages", "_of", "_token")

    def __init__(self, of: ScramSaslMechanism) -> None:
        self._of = of
        self._first: ClientFirst | None = None
        self._messages: ScramServerMessages | None = None
        self._token: TokenAccount | None = None
        self._is_known = False

    def evaluate(self, token: bytes) -> AuthenticationResult | Awaitable[AuthenticationResult]:
        """Evaluate the first message, then the final one."""
        try:
            return self._on_first(token) if self._messages is None else self._on_final(token, self._messages)
        except FormatError as error:
            return AuthenticationFailure(str(error))

    def _on_first(self, message: bytes) -> AuthenticationResult | Awaitable[AuthenticationResult]:
        first = self._first = parse_client_first(message)
        if first.acts_as and first.acts_as != first.name:
            return AuthenticationFailure(_OTHER_IDENTITY, _OTHER_IDENTITY)
        mechanism, users, tokens = self._of.mechanism, self._of.users, self._of.tokens
        nobody = users.decoy(mechanism, first.name)  # always, so that it takes as long for those who exist
        if not first.is_by_token:
            return self._challenge(first, users.find(mechanism, first.name), nobody)
        account = tokens.find(mechanism, first.name) if tokens is not None else None
        if isinstance(account, Awaitable):
            return self._after(account, first, nobody)
        return self._challenge_token(first, account, nobody)

    async def _after(
        self, account: Awaitable[TokenAccount | None], first: ClientFirst, nobody: ScramCredential
    ) -> AuthenticationResult:
        """Go on with the account of a token that this proxy sees for the first time."""
        return self._challenge_token(first, await account, nobody)

    def _challenge_token(
        self, first: ClientFirst, account: TokenAccount | None, nobody: ScramCredential
    ) -> AuthenticationResult:
        self._token = account
        return self._challenge(first, None if account is None else account.credential, nobody)

    def _challenge(
        self, first: ClientFirst, found: ScramCredential | None, nobody: ScramCredential
    ) -> AuthenticationResult:
        self._is_known = found is not None
        self._messages = ScramServerMessages(self._of.mechanism, first, nobody if found is None else found)
        return Challenge(self._messages.first_message.encode())

    def _on_final(self, message: bytes, messages: ScramServerMessages) -> AuthenticationResult:
        assert self._first is not None
        final = parse_client_final(message)
        server_final = messages.final_message(final)
        name = self._first.name
        if server_final is None or not self._is_known:
            kind = "token" if self._first.is_by_token else "user"
            if not messages.has_nonce(final):
                return AuthenticationFailure(f"another nonce in the last message for {kind} {name!r}: {OTHER_NONCE}")
            return AuthenticationFailure(f"wrong password of {kind} {name!r}" if self._is_known else f"unknown {kind}")
        if self._token is not None:
            token = self._token
            return Authenticated(
                token.owner, server_final.encode(), token.expires_at_ms, by_token=True, requester=token.requester
            )
        return Authenticated(user(name), server_final.encode())


def make_scram(context: MechanismContext) -> ScramSaslMechanism:
    """Return the mechanism of the context's name."""
    assert context.users is not None, "a process with SASL listeners has the users"
    return ScramSaslMechanism(BY_NAME[context.mechanism], context.users, context.tokens)
