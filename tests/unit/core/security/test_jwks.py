"""Key sets of issuers: which of their keys verify tokens, and which are never used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.security.jwks import ALGORITHMS, BYTES_MAX, KEYS_MAX, JwksError, parse_key_set
from tests.unit.core.security.issuer import key_set, private_key, public_jwk

RSA = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}


def test_hmac_and_none_are_not_among_the_algorithms() -> None:
    assert frozenset(RSA | {"ES256", "ES384", "ES512", "EdDSA"}) == ALGORITHMS


@pytest.mark.parametrize(
    ("described", "algorithms"),
    [
        (public_jwk("RSA"), RSA),
        (public_jwk("RSA", alg="PS256", use="sig"), {"PS256"}),
        (public_jwk("RSA", key_ops=["verify"]), RSA),
        (public_jwk("P-256"), {"ES256"}),
        (public_jwk("P-384", alg="ES384"), {"ES384"}),
        (public_jwk("P-521"), {"ES512"}),
        (public_jwk("Ed25519"), {"EdDSA"}),
    ],
)
def test_a_public_key_verifies_what_its_type_allows(described: dict[str, Any], algorithms: set[str]) -> None:
    [key] = parse_key_set(key_set(described)).keys
    assert (key.id, set(key.algorithms)) == ("k", algorithms)


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "k"}, "its type is oct"),
        ({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}, "its type is oct"),
        (public_jwk("RSA", alg="HS256"), "its algorithm is HS256"),
        (public_jwk("RSA", alg="none"), "its algorithm is none"),
        (public_jwk("RSA", alg="ES256"), "its algorithm is ES256"),
        (public_jwk("RSA", use="enc"), "not for the verification"),
        (public_jwk("RSA", key_ops=["encrypt"]), "not for the verification"),
        (public_jwk("RSA1024"), "has 1024 bits"),
        (public_jwk("P-256") | {"crv": "P-384"}, "cannot be read"),
        (public_jwk("P-256") | {"crv": "secp256k1"}, "its type is EC secp256k1"),
        (public_jwk("P-256") | {"x": "AAAA"}, "cannot be read"),
        ({"kty": "RSA", "n": 5, "e": "AQAB"}, "cannot be read"),
        ({"kty": "RSA", "e": "AQAB"}, "cannot be read"),
        (public_jwk("RSA") | {"kid": 7}, "its kid is not a text"),
        ({}, "its type is None"),
        ("key", "not a JSON object"),
    ],
)  # fmt: skip
def test_other_keys_are_left_out(described: Any, why: str) -> None:
    with pytest.raises(JwksError, match=why):
        parse_key_set(key_set(described))
    found = parse_key_set(key_set(described, public_jwk("RSA", "good")))
    assert [key.id for key in found.keys] == ["good"]
    assert why in found.unusable[0]


def test_a_private_key_in_the_set_is_used_as_its_public_part() -> None:
    from jwt.algorithms import RSAAlgorithm

    private = RSAAlgorithm.to_jwk(private_key("RSA"), as_dict=True)
    [key] = parse_key_set(key_set({**private, "key_ops": ["verify"]})).keys
    assert key.public == private_key("RSA").public_key()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b'{"keys": 5}', b'{"keys": {}}', b'{"key": []}', b"\xff", b"[" * 100_000, b'"keys"'],
)
def test_a_text_that_is_not_a_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(JwksError, match="not a JSON object"):
        parse_key_set(data)


def test_a_key_set_is_bounded() -> None:
    with pytest.raises(JwksError, match="bytes"):
        parse_key_set(b" " * (BYTES_MAX + 1))
    with pytest.raises(JwksError, match=f"over {KEYS_MAX}"):
        parse_key_set(json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode())
    with pytest.raises(JwksError, match="it is empty"):
        parse_key_set(b'{"keys": []}')


def test_a_key_is_found_by_id_and_algorithm_or_by_algorithm_alone() -> None:
    keys = parse_key_set(key_set(public_jwk("RSA", "a"), public_jwk("RSA", None), public_jwk("P-256", "c")))
    assert [key.id for key in keys.find("a", "RS256")] == ["a"]
    assert keys.find("a", "ES256") == []
    assert keys.find("b", "RS256") == []
    assert [key.id for key in keys.find(None, "RS256")] == ["a", None]
    assert keys.has("c")
    assert not keys.has("b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["kty", "crv", "n", "e", "x", "y", "kid", "alg", "use", "key_ops", "k", "d"])
VALUES = st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "Ed25519", "AQAB", "RS256", "sig", "verify"]) | JSON


@pytest.mark.slow
@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=8) | JSON, max_size=3))
def test_any_json_is_a_key_set_or_refused(described: list[Any]) -> None:
    try:
        keys = parse_key_set(json.dumps({"keys": described}).encode())
    except JwksError:
        return
    assert all(key.algorithms <= ALGORITHMS for key in keys.keys)
