"""Accounts of SCRAM: the users and delegation tokens that it looks up."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from bmq.core.security.principal import Principal
from bmq.core.security.scram import ScramCredential, ScramMechanism


class ScramUsers(Protocol):
    """SCRAM users: the cluster's (``meta.security.scram_credentials``), or a table of users in tests of log-ins."""

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return a user's credential; None if there is none."""

    def decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return the credential of a user that does not exist: the same credential at every call."""

    async def prepare_decoys(self) -> None:
        """Get what ``decoy`` needs."""

    def usual_iterations(self, mechanism: ScramMechanism) -> int:
        """Return the iterations that most users of a mechanism have."""


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """A delegation token that may be used."""

    credential: ScramCredential = field(repr=False)
    owner: Principal
    expires_at_ms: int
    """Wall time, in milliseconds since 1970 UTC."""
    requester: Principal | None = None
    """The principal that made the token."""


class ScramTokens(Protocol):
    """The cluster's delegation tokens (KIP-48)."""

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenAccount | Awaitable[TokenAccount | None] | None:
        """Return a token's account, or an awaitable of it; None if there is none, or if it has expired."""
