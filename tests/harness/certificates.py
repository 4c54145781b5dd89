"""Certificates of tests: an authority, and keystores and truststores by it in every form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

PASSWORD = "S3cret"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority, of a server on this machine, and of a client ``CN=alice``."""

    authority: trustme.CA
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(trustme.CA(), folder)
        made.authority.cert_pem.write_to_path(made.trust)
        made.issue_server()
        made.issue("client.pem", "alice", organization="Example")
        return made

    @property
    def trust(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    def issue_server(self) -> None:
        """Write a new certificate of the server, in place of the old one at once."""
        self.authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            self.folder / "new"
        )
        (self.folder / "new").replace(self.server)

    def issue(self, file: str, common_name: str, *, organization: str | None = None) -> Path:
        """Write a client's key and certificate; return the file."""
        issued = self.authority.issue_cert(
            f"{common_name}@example.org", common_name=common_name, organization_name=organization
        )
        issued.private_key_and_cert_chain_pem.write_to_path(self.folder / file)
        return self.folder / file

    def encrypted(self, source: Path, file: str) -> Path:
        """Write a PEM keystore again with its key under PASSWORD; return the file."""
        data = source.read_bytes()
        key = load_pem_private_key(data, None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode()))
        chain = b"".join(each.public_bytes(Encoding.PEM) for each in x509.load_pem_x509_certificates(data))
        (self.folder / file).write_bytes(pem + chain)
        return self.folder / file

    def pkcs12(self, source: Path, file: str, *, has_key: bool = True, password: str = PASSWORD) -> Path:
        """Write a PEM file as PKCS#12 under PASSWORD; return the file."""
        data = source.read_bytes()
        certificates = x509.load_pem_x509_certificates(data)
        how = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        if has_key:
            key = load_pem_private_key(data, None)
            assert isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey)
            packed = pkcs12.serialize_key_and_certificates(b"bmq", key, certificates[0], certificates[1:], how)
        else:
            packed = pkcs12.serialize_key_and_certificates(b"bmq", None, None, certificates, how)
        (self.folder / file).write_bytes(packed)
        return self.folder / file
