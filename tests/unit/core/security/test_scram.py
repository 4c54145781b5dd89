"""Tests of SCRAM: the RFCs' own exchanges, each message's form, and what proves nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.security.scram import (
    BY_NAME,
    BY_TYPE,
    MESSAGE_MAX,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    USUAL_FORM,
    CredentialForm,
    ScramCredential,
    ScramMechanism,
    ScramServerMessages,
    credential_of,
    credential_of_password,
    decoy,
    decoy_form,
    form_of,
    parse_client_final,
    parse_client_first,
    random_text,
)

SCRAM_SHA_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1")
RFC_5802 = (
    SCRAM_SHA_1, "pencil", "QSXCR+Q6sek8bf92", 4096,
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL", "3rfcNHYJY1ZVvWVs7j",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)  # fmt: skip
RFC_7677 = (
    SCRAM_SHA_256, "pencil", "W22ZaJ0SNY7soEsUEjb6gQ==", 4096,
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)  # fmt: skip


def proof_of(mechanism: ScramMechanism, password: str, first: str, server_first: str, bare: str) -> str:
    """Return a client's final message: computed here by itself, as the RFC says."""
    parts = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    message = f"{first.split(',', 2)[2]},{server_first},{bare}".encode()
    signature = hmac.digest(stored_key, message, mechanism.hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}"


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_the_exchange_is_the_rfcs(vector: tuple[ScramMechanism, str, str, int, str, str, str, str, str]) -> None:
    mechanism, password, salt, iterations, first, nonce, server_first, final, server_final = vector
    credential = credential_of_password(mechanism, password, iterations, base64.b64decode(salt))
    server = ScramServerMessages(mechanism, parse_client_first(first.encode()), credential, nonce)
    assert server.first_message == server_first
    assert proof_of(mechanism, password, first, server_first, final.rpartition(",p=")[0]) == final
    assert server.final_message(parse_client_final(final.encode())) == server_final


@pytest.mark.parametrize("mechanism", BY_NAME.values(), ids=list(BY_NAME))
@pytest.mark.parametrize(
    "first", ["n,,n=a=2Cb=3D,r=x", "y,a=a=2Cb=3D,n=a=2Cb=3D,r=x", "n,,n=pässwort,r=x,tokenauth=true"]
)
def test_the_right_password_proves_itself(mechanism: ScramMechanism, first: str) -> None:
    credential = credential_of_password(mechanism, "gehé,im=", 4096)
    server = ScramServerMessages(mechanism, parse_client_first(first.encode()), credential)
    nonce = server.first_message.partition(",")[0][2:]
    binding = base64.b64encode(",".join(first.split(",", 2)[:2]).encode() + b",").decode()
    for password, is_right in (("gehé,im=", True), ("gehé,im", False)):
        final = proof_of(mechanism, password, first, server.first_message, f"c={binding},r={nonce}")
        assert (server.final_message(parse_client_final(final.encode())) is not None) is is_right


@pytest.mark.parametrize(
    "bare",
    [
        "c=biws,r=rOprNGfwEbeRWgbNEkqO",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k1",
        "c=biws,r=%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "c=eSws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    ],
    ids=["client's nonce alone", "another nonce", "the server's alone", "another header"],
)
def test_a_proof_for_another_exchange_proves_nothing(bare: str) -> None:
    mechanism, password, salt, iterations, first, nonce, server_first, _, _ = RFC_7677
    credential = credential_of_password(mechanism, password, iterations, base64.b64decode(salt))
    server = ScramServerMessages(mechanism, parse_client_first(first.encode()), credential, nonce)
    final = proof_of(mechanism, password, first, server_first, bare)
    assert server.final_message(parse_client_final(final.encode())) is None


def test_a_proof_of_another_length_proves_nothing() -> None:
    mechanism, password, salt, iterations, first, nonce, _, final, _ = RFC_7677
    credential = credential_of_password(mechanism, password, iterations, base64.b64decode(salt))
    server = ScramServerMessages(mechanism, parse_client_first(first.encode()), credential, nonce)
    parsed = parse_client_final(final.encode())
    for proof in (b"", parsed.proof[:-1], parsed.proof + b"\0"):
        assert server.final_message(parsed._replace(proof=proof)) is None


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=,r=x", b"n,,n=a", b"n,,n=a,r=", b"n,,r=x,n=a", b"n,n=a,r=x", b"p=tls-unique,,n=a,r=x",
        b"n,,n=a=2,r=x", b"n,,n=a=,r=x", b"n,,n=a=2c,r=x", b"n,a=,n=a,r=x", b"n,a==,n=a,r=x", b"n,,m=x,n=a,r=x",
        b"n,,n=a\0,r=x", b"n,,n=\xff,r=x", b"n,,n=a,r=x y", b"n,,n=a,r=x,y", b"n,,n=a,r=x,1=y", b"\0alice\0secret",
        b"n,,n=a,r=" + b"x" * MESSAGE_MAX,
    ],
)  # fmt: skip
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(FormatError, match="SCRAM"):
        parse_client_first(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"c=biws", b"c=biws,r=x", b"c=biws,r=x,p=", b"c=biws,r=x,p=a", b"c=b,r=x,p=YQ==", b"r=x,c=biws,p=YQ==",
     b"c=biws,r=x,p=YQ==,y=z", b"c=biws,r=x,p=Y Q=", b"c=biws,r=\xff,p=YQ=="],
)  # fmt: skip
def test_what_is_no_final_message_is_refused(message: bytes) -> None:
    with pytest.raises(FormatError, match="SCRAM"):
        parse_client_final(message)


def test_extensions_are_read() -> None:
    first = parse_client_first(b"n,,n=id,r=x,tokenauth=true,y=z=1")
    assert first.extensions == {"tokenauth": "true", "y": "z=1"}
    assert first.is_by_token
    assert first.bare == "n=id,r=x,tokenauth=true,y=z=1"
    assert not parse_client_first(b"n,,n=id,r=x,tokenauth=false").is_by_token
    assert parse_client_final(b"c=biws,r=x,e=1,p=YQ==").bare == "c=biws,r=x,e=1"


@pytest.mark.slow
@given(st.binary(max_size=60) | st.text(alphabet="nycrap=,a2C3D", max_size=30).map(str.encode))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(FormatError):
        parse_client_first(message)
    with contextlib.suppress(FormatError):
        parse_client_final(message)


def test_a_salted_password_gives_the_same_credential() -> None:
    for mechanism in BY_NAME.values():
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, b"secret", b"salt", 4096)
        made = credential_of(mechanism, salted, b"salt", 4096)
        assert made == credential_of_password(mechanism, "secret", 4096, b"salt")
        assert len(made.stored_key) == len(made.server_key) == mechanism.size


def test_a_decoy_is_the_same_each_time_and_looks_like_a_salt() -> None:
    made = decoy(SCRAM_SHA_256, b"of the cluster", "carol", USUAL_FORM)
    assert made == decoy(SCRAM_SHA_256, b"of the cluster", "carol", USUAL_FORM)
    others = [
        decoy(SCRAM_SHA_256, b"of the cluster", "dave", USUAL_FORM),
        decoy(SCRAM_SHA_512, b"of the cluster", "carol", USUAL_FORM),
        decoy(SCRAM_SHA_256, b"of another", "carol", USUAL_FORM),
    ]
    assert len({made.salt, *(each.salt for each in others)}) == 4
    assert len({made.stored_key, *(each.stored_key for each in others)}) == 4
    assert made.salt.decode().isalnum()
    lengths = {len(decoy(SCRAM_SHA_256, b"x", str(n), USUAL_FORM).salt) for n in range(200)}
    assert lengths <= {24, 25, 26}
    assert lengths & {len(random_text()) for _ in range(200)}


@pytest.mark.parametrize(
    "salt",
    [b"1e7lwn3bqqjpnuf60w56w1ptus", b"abc123", bytes(range(64)), bytes(20), b"UPPER", b"x" * 1024],
    ids=["of Kafka's tools", "a short text", "raw", "zeros", "capitals", "long"],
)
def test_a_decoy_has_the_form_that_it_is_asked_for(salt: bytes) -> None:
    form = form_of(ScramCredential(salt, 8192, b"", b""))
    for name in ("a", "b", "c"):
        made = decoy(SCRAM_SHA_256, b"of the cluster", name, form)
        assert form_of(made) == form
        assert form.salt_bytes in (0, len(made.salt))


@pytest.mark.slow
def test_names_get_each_form_as_often_as_users_have_it_and_keep_it() -> None:
    java, raw = CredentialForm(8192, 0, is_text=True), CredentialForm(4096, 64, is_text=False)
    names = [str(n) for n in range(2000)]

    def drawn(counts: dict[CredentialForm, int]) -> list[CredentialForm]:
        return [decoy_form(b"of the cluster", name, counts) for name in names]

    before = drawn({java: 3, raw: 1})
    assert 0.70 < before.count(java) / len(names) < 0.80
    after = drawn({java: 3, raw: 1, USUAL_FORM: 1})  # a user more, of another form
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {USUAL_FORM}
    assert drawn({}) == [USUAL_FORM] * len(names)


def test_nothing_secret_is_in_a_repr() -> None:
    credential = replace(credential_of_password(SCRAM_SHA_256, "secret", 4096), salt=b"salted")
    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert "salted" not in repr(ScramServerMessages(SCRAM_SHA_256, parse_client_first(b"n,,n=a,r=x"), credential))


def test_the_mechanisms_have_kafkas_numbers() -> None:
    assert {number: each.name for number, each in BY_TYPE.items()} == {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
