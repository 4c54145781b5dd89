"""SCRAM accounts of delegation tokens (KIP-48): a token's id is the user, its HMAC in Base64 the password.

The values that SCRAM computes from a password are made when a token is first used at this proxy: some milliseconds of
PBKDF2, in a thread, and kept.  (Kafka computes it for every token, when it is made.)  The salt is made of the tokens'
secret, so it is the same in every proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from bmq.core.aio.lru import LruCache
from bmq.core.security.delegation_token import DelegationToken, password_of
from bmq.core.security.scram import (
    ITERATIONS_LEAST,
    USUAL_FORM,
    ScramCredential,
    ScramMechanism,
    credential_of_password,
    decoy,
)
from bmq.endpoint.authentication.accounts import TokenAccount
from bmq.meta.security.delegation_tokens import DelegationTokens

CREDENTIALS_MAX = 10_000
"""Tokens and mechanisms whose credential is kept, at some 500 bytes each."""
PARALLEL = 2
"""Credentials that are computed at a time."""


class TokenAccounts:
    """The accounts of all tokens of the cluster, for SCRAM."""

    def __init__(self, tokens: DelegationTokens) -> None:
        self._tokens = tokens
        self._credentials: LruCache[tuple[str, str], ScramCredential] = LruCache(CREDENTIALS_MAX)
        self._turns = asyncio.Semaphore(PARALLEL)

    def __repr__(self) -> str:
        return f"<TokenAccounts {self._tokens!r} credentials={len(self._credentials)}>"

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenAccount | Awaitable[TokenAccount | None] | None:
        """Return a token's account, after a moment if it is used for the first time; None if the token is not valid."""
        token = self._tokens.find(token_id)
        if token is None:
            return None
        credential = self._credentials.get((mechanism.name, token_id))
        return self._compute(mechanism, token_id) if credential is None else _account(token, credential)

    async def _compute(self, mechanism: ScramMechanism, token_id: str) -> TokenAccount | None:
        async with self._turns:
            credential = self._credentials.get((mechanism.name, token_id))
            if credential is None:
                credential = await asyncio.to_thread(self._credential, mechanism, token_id)
                self._credentials.put((mechanism.name, token_id), credential)
        token = self._tokens.find(token_id)  # it may have ended meanwhile
        return None if token is None else _account(token, credential)

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        token_hmac = self._tokens.hmac_of(token_id)
        salt = decoy(mechanism, token_hmac, token_id, USUAL_FORM).salt  # of random bits of the token's own
        return credential_of_password(mechanism, password_of(token_hmac), ITERATIONS_LEAST, salt)


def _account(token: DelegationToken, credential: ScramCredential) -> TokenAccount:
    return TokenAccount(credential, token.owner, token.expires_ms, token.requester)
