"""Access tokens of OAuth 2: signed JSON Web Tokens (RFC 7519), checked as Kafka's ``BrokerJwtValidator`` does.  Pure.

| checked | how |
|---|---|
| signature | by a key of the issuer's key set, with an algorithm of ``jwks.ALGORITHMS`` |
| ``exp`` | required: later than now, less the clock skew |
| ``nbf`` | if there is one: not later than now, plus the clock skew |
| ``iat`` | required: a time |
| ``iss`` | as expected, if something is |
| ``aud`` | one of those expected; if none is, a token with an audience is refused: it is for somebody else |
| the claim of the subject | required: a text that is not empty, the name of the principal |
| the claim of the scope | a text, or a list of texts without repetition, if there is one |

Needs PyJWT with cryptography, the extra ``oauth``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from bmq.core.security.jwks import ALGORITHMS, JsonWebKey, JsonWebKeySet
from bmq.core.security.principal import has_outer_space, java_trim

CHARS_MAX = 64 << 10
"""Longest token: those that list a user's groups have up to some 20,000 characters."""
KEY_ID_CHARS_MAX = 1_000
"""Longest key id that is looked for (Kafka: ``RefreshingHttpsJwks.MISSING_KEY_ID_MAX_KEY_LENGTH``)."""
TIME_MAX = 253_402_300_799.0
"""The end of the year 9999, in seconds: a later ``exp`` is as good as that, and fits no field in milliseconds."""
_OPTIONS: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}  # by `now`, below


class InvalidToken(Exception):
    """A token that is refused; ``str`` says why, for the log, and has nothing of the token that would be a secret."""


class UnknownKey(InvalidToken):
    """A token that no key of the set may have signed; a newer set may have its key."""

    def __init__(self, key_id: str | None, algorithm: str) -> None:
        named = "without a key id" if key_id is None else f"key id {key_id[:100]!r}"
        super().__init__(f"no key of the key set fits ({named}, algorithm {algorithm})")
        self.key_id = key_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """One listener's expectations of tokens."""

    audiences: Sequence[str] = ()
    issuer: str | None = None
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    clock_skew_s: int = 30


@dataclass(frozen=True, slots=True)
class AccessToken:
    """The facts of a token that was verified."""

    subject: str
    expires_at: float
    """Wall time in seconds."""
    scopes: frozenset[str]


def validate(token: str, keys: JsonWebKeySet, rules: TokenRules, now: float) -> AccessToken:
    """Return what a token says, if it is right at the wall time ``now`` in seconds.

    Raises InvalidToken; UnknownKey if only a key is missing.
    """
    claims = _verified_claims(token, keys, rules)
    expires_at = min(_time(claims, "exp"), TIME_MAX)
    if expires_at <= now - rules.clock_skew_s:
        raise InvalidToken(f"the token expired at {expires_at:.0f}, now is {now:.0f}")
    if "nbf" in claims and _time(claims, "nbf") > now + rules.clock_skew_s:
        raise InvalidToken("the token is not valid yet (nbf)")
    _time(claims, "iat")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise InvalidToken(f"the claim {rules.subject_claim!r} is not a text, or empty: it names the principal")
    name = java_trim(subject)  # as ClaimValidationUtils of Kafka
    if has_outer_space(name):  # removing more than Kafka does would log the client in as another user
        raise InvalidToken(f"the claim {rules.subject_claim!r} has white space at an end: {subject[:200]!r}")
    return AccessToken(name, expires_at, _scopes(claims.get(rules.scope_claim), rules.scope_claim))


def _verified_claims(token: str, keys: JsonWebKeySet, rules: TokenRules) -> Mapping[str, Any]:
    key_id, algorithm = _header(token)
    candidates = keys.find(key_id, algorithm)
    if not candidates:
        raise UnknownKey(key_id, algorithm)
    for key in candidates:
        try:
            return _decode(token, key, algorithm, rules)
        except jwt.InvalidSignatureError:
            continue  # without a key id, or with one that several keys have, any of them may be it
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise InvalidToken(f"{type(error).__name__}: {str(error)[:200]}") from None
    raise InvalidToken("the signature is wrong")


def _decode(token: str, key: JsonWebKey, algorithm: str, rules: TokenRules) -> Mapping[str, Any]:
    return jwt.decode(
        token,
        key=key.public,
        algorithms=[algorithm],  # one that the key may be used with: JsonWebKeySet.find has checked it
        audience=list(rules.audiences) or None,
        issuer=rules.issuer,
        options=_OPTIONS,
    )


def _header(token: str) -> tuple[str | None, str]:
    """Return the key id and the algorithm that a token names.  Neither is believed: they only choose among keys."""
    if len(token) > CHARS_MAX:
        raise InvalidToken(f"the token has {len(token)} characters, over {CHARS_MAX}")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise InvalidToken(f"not a JSON Web Token: {str(error)[:200]}") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidToken(f"signatures of algorithm {str(algorithm)[:20]!r} are not accepted")
    if "b64" in header:
        raise InvalidToken("the header has b64: its payload is not base64url, as a token's is")  # RFC 7797 7
    if key_id is not None and len(key_id) > KEY_ID_CHARS_MAX:
        raise InvalidToken(f"the key id has {len(key_id)} characters, over {KEY_ID_CHARS_MAX}")
    return key_id, algorithm


def _time(claims: Mapping[str, Any], name: str) -> float:
    """Return a claim in seconds since 1970."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"the claim {name!r} is missing, or not a number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidToken(f"the claim {name!r} is not a time")
    return seconds


def _scopes(value: object, claim: str) -> frozenset[str]:
    """Return the scopes of a claim's value, which may be missing."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return frozenset()
    scopes = [java_trim(scope) if isinstance(scope, str) else "" for scope in value]
    if "" in scopes or len(set(scopes)) < len(scopes):
        raise InvalidToken(f"the claim {claim!r} has an empty scope, or one twice")
    return frozenset(scopes)
