"""Subjects of certificates as Java writes them: order, keywords, escapes, and bytes that are no certificate."""

from __future__ import annotations

import datetime
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from bmq.core.security.distinguished_name import BadCertificate, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Part = x509.NameAttribute


def certificate(*parts: Part[str] | list[Part[str]]) -> bytes:
    name = x509.Name([x509.RelativeDistinguishedName(part if isinstance(part, list) else [part]) for part in parts])
    issuer = x509.Name([Part(NameOID.COMMON_NAME, "issuer")])
    made = x509.CertificateBuilder(issuer, name, KEY.public_key(), 1, NOW, NOW + datetime.timedelta(1))
    return made.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        ([], ""),
        (
            [Part(NameOID.COUNTRY_NAME, "CH"), Part(NameOID.ORGANIZATION_NAME, "Ex"), Part(NameOID.COMMON_NAME, "al")],
            "CN=al,O=Ex,C=CH",
        ),
        (
            [
                Part(NameOID.DOMAIN_COMPONENT, "org"),
                Part(NameOID.STATE_OR_PROVINCE_NAME, "s"),
                Part(NameOID.LOCALITY_NAME, "l"),
                Part(NameOID.STREET_ADDRESS, "a"),
                Part(NameOID.ORGANIZATIONAL_UNIT_NAME, "u"),
                Part(NameOID.USER_ID, "i"),
            ],
            "UID=i,OU=u,STREET=a,L=l,ST=s,DC=org",
        ),
        ([Part(NameOID.EMAIL_ADDRESS, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([Part(NameOID.COMMON_NAME, 'a,b+c"d\\e<f>g;h=i#j')], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
        ([Part(NameOID.COMMON_NAME, "  a b ")], "CN=\\ \\ a b\\ "),
        ([Part(NameOID.COMMON_NAME, " ")], "CN=\\ "),
        ([Part(NameOID.COMMON_NAME, "Zoë")], "CN=Zoë"),
        ([Part(NameOID.COMMON_NAME, "Zoë", _ASN1Type.BMPString)], "CN=Zoë"),
        ([Part(NameOID.COMMON_NAME, "a\0b")], "CN=a\\00b"),
        ([[Part(NameOID.COMMON_NAME, "a"), Part(NameOID.USER_ID, "b")]], "CN=a+UID=b"),
    ],
)
def test_names_are_written_as_java_writes_them(parts: list[Part[str] | list[Part[str]]], subject: str) -> None:
    assert subject_of(certificate(*parts)) == subject


@pytest.mark.slow
def test_bytes_that_are_not_a_certificate_are_refused() -> None:
    """Cut and change a certificate everywhere: a name comes out, or BadCertificate, and nothing else."""
    whole = certificate(Part(NameOID.COMMON_NAME, "alice"))
    for end in range(len(whole) // 2):
        with pytest.raises(BadCertificate):
            subject_of(whole[:end])
    chance = random.Random(7)
    refused = 0
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(200)] = chance.randrange(256)
        try:
            assert isinstance(subject_of(bytes(data)), str)
        except BadCertificate:
            refused += 1
    assert 100 < refused < 3_000
