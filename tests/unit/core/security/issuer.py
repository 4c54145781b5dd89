"""An issuer of access tokens for tests: keys of every kind, its key set, and tokens signed by them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NOW = 1_800_000_000
ISSUER, AUDIENCE, SUBJECT = "https://issuer.example", "bmq", "alice"
CLAIMS: dict[str, Any] = {"iss": ISSUER, "sub": SUBJECT, "iat": NOW - 10, "exp": NOW + 3600, "aud": AUDIENCE}


@cache
def private_key(kind: str, name: str = "") -> Any:
    """Return the private key of this kind and name: RSA, RSA1024, P-256, P-384, P-521, Ed25519."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, int(kind.removeprefix("RSA") or 2048))
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    return ec.generate_private_key(curves[kind])


def public_jwk(kind: str, key_id: str | None = "k", name: str = "", **more: Any) -> dict[str, Any]:
    """Return a key of a key set: the public part of a private key, with its id and what else it says."""
    public = private_key(kind, name).public_key()
    maker: Any = RSAAlgorithm if kind.startswith("RSA") else OKPAlgorithm if kind == "Ed25519" else ECAlgorithm
    described: dict[str, Any] = {
        field: value for field, value in maker.to_jwk(public, as_dict=True).items() if field != "key_ops"
    }
    return described | ({} if key_id is None else {"kid": key_id}) | more


def key_set(*keys: dict[str, Any]) -> bytes:
    """Return the text of a key set."""
    return json.dumps({"keys": keys}).encode()


def token(
    claims: dict[str, Any] = CLAIMS, *, kind: str = "RSA", algorithm: str = "RS256", key_id: str | None = "k",
    name: str = "", **header: Any,
) -> str:  # fmt: skip
    """Return a token that is signed by a private key; its claims may be wrong."""
    headers = header | ({} if key_id is None else {"kid": key_id})
    return jwt.api_jws.encode(json.dumps(claims).encode(), private_key(kind, name), algorithm, headers)
