"""Delegation tokens (KIP-48): the names, times and password of a token.  Pure.

A token's id is the user name, and its HMAC the password, of clients that authenticate with it by SCRAM.  The HMAC is
computed from the id and ``delegation.token.secret.key``, which all proxies have: it is not stored.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass

from bmq.core.security.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """One token.  Times are wall times, in milliseconds since 1970 UTC."""

    id: str
    owner: Principal
    """The principal of clients that authenticate with the token."""
    requester: Principal
    """The principal that asked for it (KIP-373)."""
    renewers: tuple[Principal, ...] = ()
    issued_ms: int
    max_ms: int
    """Time past which it cannot be renewed."""
    expires_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms < now_ms or self.max_ms < now_ms

    def may_be_renewed_by(self, principal: Principal) -> bool:
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: Principal) -> bool:
        """Return whether a principal may describe the token without a right to: its owner, requester and renewers."""
        return principal == self.requester or self.may_be_renewed_by(principal)


def new_id() -> str:
    """Return an id that no token has: 128 random bits, in the form of Kafka's ``Uuid``."""
    while (text := base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()).startswith("-"):
        pass  # Kafka's ids do not begin so: commands would take one for an option
    return text


def hmac_of(secret: bytes, token_id: str) -> bytes:
    """Return the HMAC of a token: with the cluster's secret, by SHA-512 (``DelegationTokenManager.createHmac``)."""
    return hmac.digest(secret, token_id.encode(), "sha512")


def password_of(token_hmac: bytes) -> str:
    """Return the password that a client with this HMAC uses."""
    return base64.b64encode(token_hmac).decode()
