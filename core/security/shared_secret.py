"""Proof that both processes of an internal connection have the cluster's secret: a challenge for each connection.

The exchange is a part of Hello (``core.rpc.messages.member``), so a process without a secret needs nothing of it::

    caller                                       callee
      Hello, the caller's nonce           ──▶
                                          ◀──    not yet: the callee's nonce
      Hello, the caller's nonce and proof ──▶    checks the caller's proof
      checks the callee's proof           ◀──    accepted, with the callee's proof

    proof = HMAC-SHA-256(secret, side, cluster, caller, callee, caller's nonce, callee's nonce)

Each part has its length in front of it.  A proof names its side, both nonces and both processes.  So a peer cannot
reflect it, replay it, or use it towards another process.  The caller proves first: a process that merely connects gets
nothing by which secrets could be tried out.

The proofs cover the beginning of a connection, not its bytes: on a network where others can change packets, TLS does.

Pure: nonces come as arguments where a test gives them.
"""

from __future__ import annotations

import hmac
import re
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from bmq.core.security.authentication import AuthenticationFailure, Challenge

NONCE_BYTES = 32
SECRET_LENGTH_MIN = 16
"""Characters of a secret at least: the proofs are computed in no time, so a short one could be found by trying."""
SECRETS_MAX = 16
"""Secrets at most; all of them are tried on a wrong proof."""
NOT_SHOWN = "the other process does not have this cluster's secret"
"""The reason in the log of the side that was not convinced."""
_LENGTH = struct.Struct(">I")
_SEPARATORS = re.compile(r"[,\s]+", re.ASCII)

MakeNonce = Callable[[], bytes]


def new_nonce() -> bytes:
    """Return random bytes that no other exchange has."""
    return secrets.token_bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """The cluster's secrets, as one process has them.

    The first is used to prove, all are accepted.  Without any, the process asks nobody and shows nothing.  If
    ``is_required`` is False, a process without a proof is accepted as well, so a cluster without a secret gets a secret
    process by process.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    is_required: bool = True

    @property
    def is_enforced(self) -> bool:
        """True if no process without the secret is accepted."""
        return bool(self.keys) and self.is_required


NO_SECRET = SharedSecret()


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """Return the secrets of a setting, which commas or ASCII white space separate.

    Raises ValueError, without a secret in its text, if one is too short or there are too many.
    """
    found = [each for each in _SEPARATORS.split(text) if each]
    if len(found) > SECRETS_MAX:
        raise ValueError(f"{len(found)} secrets are over {SECRETS_MAX}")
    for number, each in enumerate(found, 1):
        if len(each) < SECRET_LENGTH_MIN:
            raise ValueError(
                f"secret {number} of {len(found)} is shorter than {SECRET_LENGTH_MIN} characters; make one with"
                " openssl rand -base64 32"
            )
    return tuple(each.encode() for each in found)


class Side(Enum):
    """The side of the connection whose proof it is."""

    CALLER = b"bmq internal caller 1"
    CALLEE = b"bmq internal callee 1"


class AuthMessage(NamedTuple):
    """The parts that both proofs of one connection are computed from (RFC 5802)."""

    cluster: str
    caller: str
    """Incarnation of the process that connects."""
    callee: str
    caller_nonce: bytes
    callee_nonce: bytes


def prove(key: bytes, side: Side, message: AuthMessage) -> bytes:
    """Return the proof of one side."""
    digest = hmac.new(key, digestmod="sha256")
    parts = (message.cluster.encode(), message.caller.encode(), message.callee.encode(), *message[3:])
    for part in (side.value, *parts):
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    return digest.digest()


def proving_key(keys: tuple[bytes, ...], side: Side, message: AuthMessage, proof: bytes) -> bytes | None:
    """Return the key that ``proof`` was made with, None if it is none of these."""
    for key in keys:
        if hmac.compare_digest(prove(key, side, message), proof):
            return key
    return None


class CallerMessage(NamedTuple):
    """The part of a Hello that the proof is about."""

    cluster: str
    caller: str
    nonce: bytes
    proof: bytes


class Accepted(NamedTuple):
    """The callee's response to a caller that it serves; ``proof`` is empty if none was asked for."""

    proof: bytes = b""


WRONG_PROOF = AuthenticationFailure(
    NOT_SHOWN, "this process does not have the secret of the other one's cluster (internal.secret)"
)
NO_PROOF = AuthenticationFailure(
    NOT_SHOWN, "the other process asks for its cluster's secret, which this one has not (internal.secret)"
)
OUT_OF_TURN = AuthenticationFailure(
    "it began its proof again on the same connection", "a proof was begun twice on one connection"
)


class CalleeAuthenticator:
    """The authentication of one connection's caller, until it is accepted or refused."""

    __slots__ = ("_auth_message", "_is_over", "_nonce", "_own", "_secret")

    def __init__(self, secret: SharedSecret, own: str, nonce: MakeNonce = new_nonce) -> None:
        """``own`` is this process's incarnation."""
        self._secret = secret
        self._own = own
        self._nonce = nonce
        self._auth_message: AuthMessage | None = None
        self._is_over = False

    def __repr__(self) -> str:
        return (
            f"<CalleeAuthenticator {self._own} {'over' if self._is_over else 'asked' if self._auth_message else 'new'}>"
        )

    def evaluate(self, message: CallerMessage) -> Challenge | Accepted | AuthenticationFailure:
        """Return the result of a Hello.  A caller has one challenge and one proof; after a failure, no other."""
        result = OUT_OF_TURN if self._is_over else self._judge(message)
        self._is_over = not isinstance(result, Challenge)
        return result

    def _judge(self, message: CallerMessage) -> Challenge | Accepted | AuthenticationFailure:
        if not self._secret.keys:
            return Accepted()
        if not message.nonce:
            return NO_PROOF if self._auth_message is not None or self._secret.is_required else Accepted()
        if self._auth_message is None:
            if message.proof or len(message.nonce) != NONCE_BYTES:
                return WRONG_PROOF  # of another connection, or of no version of ours
            nonce = self._nonce()
            self._auth_message = AuthMessage(message.cluster, message.caller, self._own, message.nonce, nonce)
            return Challenge(nonce)
        if (message.cluster, message.caller, message.nonce) != (
            self._auth_message.cluster,
            self._auth_message.caller,
            self._auth_message.caller_nonce,
        ):
            return OUT_OF_TURN
        key = proving_key(self._secret.keys, Side.CALLER, self._auth_message, message.proof)
        if key is None:
            return WRONG_PROOF
        return Accepted(prove(key, Side.CALLEE, self._auth_message))


class CallerAuthenticator:
    """The calling side of one connection: its nonce, its proof after a challenge, and its check of the callee's."""

    __slots__ = ("_auth_message", "_names", "_secret", "nonce")

    def __init__(self, secret: SharedSecret, cluster: str, own: str, callee: str, nonce: MakeNonce = new_nonce) -> None:
        """``own`` and ``callee`` are the incarnations of this process and of the one that it expects there."""
        self._secret = secret
        self._names = (cluster, own, callee)
        self._auth_message: AuthMessage | None = None
        self.nonce = nonce() if secret.keys else b""
        """The nonce of each Hello; empty without a secret."""

    def __repr__(self) -> str:
        return f"<CallerAuthenticator {self._names[1]} of {self._names[2]} {'asked' if self._auth_message else 'new'}>"

    def evaluate_challenge(self, callee_nonce: bytes) -> bytes | None:
        """Return the proof for the callee's challenge; None if it may not ask now, or has asked before."""
        if not self._secret.keys or self._auth_message is not None or len(callee_nonce) != NONCE_BYTES:
            return None
        self._auth_message = AuthMessage(*self._names, self.nonce, callee_nonce)
        return prove(self._secret.keys[0], Side.CALLER, self._auth_message)

    def verifies(self, proof: bytes) -> bool:
        """Return whether a callee that has accepted this process may be used."""
        if self._auth_message is None:
            return not self._secret.is_enforced  # it has not asked
        return proving_key(self._secret.keys, Side.CALLEE, self._auth_message, proof) is not None
