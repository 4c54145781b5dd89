"""Access tokens: what is accepted, and each way in which one is wrong."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.security.access_token import CHARS_MAX, TIME_MAX, InvalidToken, TokenRules, UnknownKey, validate
from bmq.core.security.jwks import JsonWebKeySet, parse_key_set
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, NOW, key_set, private_key, public_jwk, token

RULES = TokenRules(audiences=(AUDIENCE, "other"), issuer=ISSUER)
KEYS = parse_key_set(key_set(public_jwk("RSA")))


def of_parts(*parts: object) -> str:
    """Return the parts joined as a token: texts as they are, others as JSON in base64url."""
    texts = [
        part if isinstance(part, str) else base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in parts
    ]
    return ".".join(texts)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        *(("RSA", algorithm) for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512"), ("Ed25519", "EdDSA"),
    ],
)  # fmt: skip
def test_a_token_is_verified_by_every_algorithm(kind: str, algorithm: str) -> None:
    keys = parse_key_set(key_set(public_jwk(kind)))
    found = validate(token(kind=kind, algorithm=algorithm), keys, RULES, NOW)
    assert (found.subject, found.expires_at, found.scopes) == ("alice", NOW + 3600, frozenset())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"exp": None}, "'exp' is missing"),
        ({"exp": "1900000000"}, "'exp' is missing, or not a number"),
        ({"exp": True}, "'exp' is missing, or not a number"),
        ({"exp": -1}, "'exp' is not a time"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": NOW - 3600}, "expired"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "now"}, "'nbf' is missing, or not a number"),
        ({"iat": None}, "'iat' is missing"),
        ({"iat": -5}, "'iat' is not a time"),
        ({"iss": None}, "MissingRequiredClaimError|InvalidIssuerError"),
        ({"iss": "https://issuer.example/"}, "InvalidIssuerError"),
        ({"iss": [ISSUER]}, "InvalidIssuerError"),
        ({"aud": None}, "aud"),
        ({"aud": "else"}, "InvalidAudienceError"),
        ({"aud": []}, "aud"),
        ({"aud": [AUDIENCE, 5]}, "InvalidAudienceError"),
        ({"aud": {AUDIENCE: 1}}, "InvalidAudienceError"),
        ({"sub": None}, "'sub' is not a text, or empty|InvalidSubjectError"),
        ({"sub": " "}, "'sub' is not a text, or empty"),
        ({"sub": 5}, "InvalidSubjectError"),
        ({"scope": ["a", "a"]}, "'scope' has an empty scope, or one twice"),
        ({"scope": ["a", ""]}, "'scope' has an empty scope"),
        ({"scope": ["a", 1]}, "'scope' has an empty scope"),
        ({"scope": ""}, "'scope' has an empty scope"),
    ],
)
def test_a_wrong_claim_is_refused(changed: dict[str, Any], why: str) -> None:
    claims = {name: value for name, value in (CLAIMS | changed).items() if value is not None}
    with pytest.raises(InvalidToken, match=why):
        validate(token(claims), KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 30},
        {"iat": NOW + 5000},  # Kafka asks for a time, and not for one that has passed
        {"aud": ["x", "other"]},
        {"aud": "other"},
        {"scope": "read write"},
        {"scope": {"not": "a list"}},
        {"sub": " alice "},
    ],
)
def test_what_kafka_accepts_is_accepted(changed: dict[str, Any]) -> None:
    assert validate(token(CLAIMS | changed), KEYS, RULES, NOW).subject == "alice"


def test_scopes_and_the_principal_may_have_other_claims() -> None:
    rules = TokenRules(audiences=(AUDIENCE,), scope_claim="scp", subject_claim="client_id")
    found = validate(token(CLAIMS | {"scp": ["a", " b "], "client_id": "x"}), KEYS, rules, NOW)
    assert (found.subject, found.scopes) == ("x", frozenset({"a", "b"}))
    with pytest.raises(InvalidToken, match="'client_id' is not a text"):
        validate(token(), KEYS, rules, NOW)


def test_a_token_for_somebody_is_refused_where_no_audience_is_expected() -> None:
    with pytest.raises(InvalidToken, match="InvalidAudienceError"):
        validate(token(), KEYS, TokenRules(), NOW)
    without = {name: value for name, value in CLAIMS.items() if name != "aud"}
    assert validate(token(without), KEYS, TokenRules(), NOW).subject == "alice"


@pytest.mark.parametrize("later", [1e300, 10**400, TIME_MAX * 2])
def test_a_token_without_end_ends_with_the_year_9999(later: float) -> None:
    if later == 10**400:
        with pytest.raises(InvalidToken, match="not a time"):
            validate(token(CLAIMS | {"exp": later}), KEYS, RULES, NOW)
    else:
        assert validate(token(CLAIMS | {"exp": later}), KEYS, RULES, NOW).expires_at == TIME_MAX


def test_a_token_signed_by_nobody_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", "", None, 5, ["RS256"]):
        with pytest.raises(InvalidToken, match="not accepted"):
            validate(of_parts({"alg": algorithm, "kid": "k"}, CLAIMS, ""), KEYS, RULES, NOW)
    with pytest.raises(InvalidToken, match="signature is wrong"):
        validate(of_parts({"alg": "RS256", "kid": "k"}, CLAIMS, ""), KEYS, RULES, NOW)


@pytest.mark.slow
def test_a_public_key_is_not_a_secret_of_an_hmac() -> None:
    public = private_key("RSA").public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    import hashlib
    import hmac

    unsigned = of_parts({"alg": "HS256", "kid": "k"}, CLAIMS)
    signature = base64.urlsafe_b64encode(hmac.digest(public, unsigned.encode(), hashlib.sha256)).rstrip(b"=").decode()
    with pytest.raises(InvalidToken, match="'HS256' are not accepted"):
        validate(f"{unsigned}.{signature}", KEYS, RULES, NOW)


@pytest.mark.parametrize("space", ["\xa0", "\u2003", "\u3000", "\x85"])
def test_a_subject_with_white_space_at_an_end_is_no_other_user(space: str) -> None:
    for subject in (f"admin{space}", f"{space}admin"):
        with pytest.raises(InvalidToken, match="'sub' has white space at an end"):
            validate(token(CLAIMS | {"sub": subject}), KEYS, RULES, NOW)


def test_a_scope_keeps_the_white_space_that_java_keeps() -> None:
    found = validate(token(CLAIMS | {"scope": ["read\xa0", " write "]}), KEYS, RULES, NOW)
    assert found.scopes == {"read\xa0", "write"}


def test_another_keys_signature_is_wrong() -> None:
    with pytest.raises(InvalidToken, match="signature is wrong"):
        validate(token(name="another"), KEYS, RULES, NOW)
    good = token()
    changed = of_parts(good.split(".")[0], CLAIMS | {"sub": "admin"}, good.split(".")[2])
    with pytest.raises(InvalidToken, match="signature is wrong"):
        validate(changed, KEYS, RULES, NOW)


def test_an_unknown_key_id_is_told_apart() -> None:
    with pytest.raises(UnknownKey) as raised:
        validate(token(key_id="new"), KEYS, RULES, NOW)
    assert raised.value.key_id == "new"
    with pytest.raises(UnknownKey):
        validate(token(kind="P-256", algorithm="ES256"), KEYS, RULES, NOW)
    with pytest.raises(UnknownKey):
        validate(token(), JsonWebKeySet(), RULES, NOW)


def test_without_a_key_id_every_key_of_the_algorithm_is_tried() -> None:
    keys = parse_key_set(key_set(public_jwk("RSA", "a", "another"), public_jwk("P-256", "b"), public_jwk("RSA", "c")))
    assert validate(token(key_id=None), keys, RULES, NOW).subject == "alice"


def test_a_key_verifies_only_its_own_algorithm() -> None:
    keys = parse_key_set(key_set(public_jwk("RSA", alg="PS256")))
    with pytest.raises(UnknownKey):
        validate(token(), keys, RULES, NOW)


@pytest.mark.parametrize(
    "header",
    [{"crit": ["exp"]}, {"crit": []}, {"crit": ["b64"], "b64": True}, {"b64": False}, {"crit": ["x"], "x": 1}],
)
def test_a_header_that_asks_for_more_is_refused(header: dict[str, Any]) -> None:
    signed = jwt.api_jws.PyJWS().encode(
        json.dumps(CLAIMS).encode(), private_key("RSA"), "RS256", {"kid": "k"} | header,
        is_payload_detached=header.get("b64") is False,
    )  # fmt: skip
    with pytest.raises(InvalidToken):
        validate(signed, KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a.b", "a.b.c", "a.b.c.d", "é.é.é", of_parts([], {}, ""), of_parts("null", {}, ""),
        of_parts({"alg": "RS256", "kid": 5}, CLAIMS, "AAAA"), "x" * (CHARS_MAX + 1),
        of_parts({"alg": "RS256", "kid": "k" * 1001}, CLAIMS, "AAAA"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidToken):
        validate(text, KEYS, RULES, NOW)


def test_a_reason_has_nothing_of_the_token() -> None:
    good = token(CLAIMS | {"exp": NOW - 100})
    with pytest.raises(InvalidToken) as raised:
        validate(good, KEYS, RULES, NOW)
    assert not any(part in str(raised.value) for part in good.split("."))


@pytest.mark.slow
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: of_parts({"alg": "RS256"}, data.hex(), "")))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidToken):
        validate(text, KEYS, RULES, NOW)


@pytest.mark.slow
@given(st.integers(0, 400), st.integers(1, 255))
def test_a_changed_character_is_refused(where: int, by: int) -> None:
    good = token()
    place = where % len(good)
    changed = good[:place] + chr(ord(good[place]) ^ by) + good[place + 1 :]
    with pytest.raises(InvalidToken):
        validate(changed, KEYS, RULES, NOW)
