"""A JSON Web Key Set (RFC 7517): the public keys by which an issuer's tokens are verified.  Pure.

Only public keys of asymmetric signatures are kept.  A symmetric key in a set that others can read would let them sign
tokens; a private part is dropped before the key is made.  Needs PyJWT with cryptography, the extra ``oauth``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jwt

BYTES_MAX = 1 << 20
"""Largest key set: those of large issuers have some 10 KB."""
KEYS_MAX = 100
"""Most keys of a set: a token without a key id is tried with every key of its algorithm."""
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 16384
"""RFC 7518 3.3 requires 2048 bits, as does jose4j, the library of Kafka.  Past the upper bound OpenSSL gives up."""

RSA_ALGORITHMS = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_OF_CURVE = {
    ("EC", "P-256"): frozenset(("ES256",)),
    ("EC", "P-384"): frozenset(("ES384",)),
    ("EC", "P-521"): frozenset(("ES512",)),
    ("OKP", "Ed25519"): frozenset(("EdDSA",)),
}
ALGORITHMS = RSA_ALGORITHMS.union(*_OF_CURVE.values())
"""Signatures that are accepted, of any issuer; ``none`` and HMAC are not among them."""
_PUBLIC_FIELDS = ("kty", "crv", "n", "e", "x", "y")


class JwksError(ValueError):
    """A text that is not a usable key set; ``str`` says why."""


@dataclass(frozen=True, slots=True)
class JsonWebKey:
    """One public key, and the algorithms whose signatures it may verify."""

    id: str | None
    algorithms: frozenset[str]
    public: Any
    """The key as ``cryptography`` has it."""


@dataclass(frozen=True, slots=True)
class JsonWebKeySet:
    """The usable keys of an issuer; empty before the first was fetched."""

    keys: tuple[JsonWebKey, ...] = ()
    unusable: tuple[str, ...] = ()
    """Reasons why other keys of the set are not used, for log lines."""

    def find(self, key_id: str | None, algorithm: str) -> list[JsonWebKey]:
        """Return the keys that may have signed a token with this header.

        Without a key id these are all of the algorithm, as RFC 7515 D allows.
        """
        return [
            key for key in self.keys if algorithm in key.algorithms and (key_id is None or key_id == key.id)
        ]  # fmt: skip

    def has(self, key_id: str) -> bool:
        """Return whether a key has this id."""
        return any(key.id == key_id for key in self.keys)


def parse_key_set(data: bytes) -> JsonWebKeySet:
    """Return the keys of a JSON Web Key Set.

    Keys of other kinds, uses or lengths are left out (RFC 7517 5).  Raises JwksError if ``data`` is not a key set, or
    has no usable key.
    """
    if len(data) > BYTES_MAX:
        raise JwksError(f"the key set is over {BYTES_MAX} bytes")
    try:
        keys = json.loads(data)["keys"]
        described = list(keys) if isinstance(keys, list) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        described = None
    if described is None:
        raise JwksError('the key set is not a JSON object with "keys", as RFC 7517 has it')
    if len(described) > KEYS_MAX:
        raise JwksError(f"the key set has {len(described)} keys, over {KEYS_MAX}")
    usable, unusable = [], []
    for number, each in enumerate(described):
        try:
            usable.append(_parse_key(each))
        except JwksError as error:
            unusable.append(f"key {number}: {error}")
    if not usable:
        raise JwksError(f"the key set has no usable key: {'; '.join(unusable)[:1000] or 'it is empty'}")
    return JsonWebKeySet(tuple(usable), tuple(unusable))


def _parse_key(described: Any) -> JsonWebKey:
    if not isinstance(described, dict):
        raise JwksError("is not a JSON object")
    key_id = described.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise JwksError("its kid is not a text")
    use, operations = described.get("use", "sig"), described.get("key_ops", ["verify"])
    if use != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise JwksError("is not for the verification of signatures")
    algorithms = _algorithms_of(described)
    public = {name: described[name] for name in _PUBLIC_FIELDS if name in described}
    try:
        key = jwt.PyJWK(public, min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise JwksError(f"cannot be read: {type(error).__name__}") from None
    if described["kty"] == "RSA" and not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        raise JwksError(f"has {key.key_size} bits; RSA keys from {RSA_BITS_MIN} to {RSA_BITS_MAX} bits are used")
    return JsonWebKey(key_id, algorithms, key)


def _algorithms_of(described: dict[str, Any]) -> frozenset[str]:
    """Return what a key's type allows, or of that only its ``alg``."""
    kind, curve, only = described.get("kty"), described.get("crv"), described.get("alg")
    allowed = RSA_ALGORITHMS if kind == "RSA" else _OF_CURVE.get((str(kind), str(curve)), frozenset())
    if not allowed:
        raise JwksError(f"its type is {str(kind)[:20]} {str(curve)[:20] if curve else ''}".rstrip())
    if only is not None:
        allowed &= {str(only)}
        if not allowed:
            raise JwksError(f"its algorithm is {str(only)[:20]}")
    return allowed


def ids_of(keys: Iterable[JsonWebKey]) -> str:
    """Return the ids of ``keys``, for a log line."""
    return ", ".join(key.id or "(none)" for key in keys)
