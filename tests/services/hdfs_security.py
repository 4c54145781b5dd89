"""Kerberos and TLS of the secure development HDFS: a realm, keytabs, keystores, and the properties that name them.

Datanodes run without root and without jsvc: that is allowed where data transfer is protected by SASL and HTTP by TLS.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from tests.services.hdfs_config import write_conf
from tests.services.kdc import REALM, Kdc

SERVER_HOST = "localhost"
"""The host in the servers' principals: the name that this machine's own address has."""
NAMENODE_PRINCIPAL = f"nn/{SERVER_HOST}@{REALM}"
DATANODE_PRINCIPAL = f"dn/{SERVER_HOST}@{REALM}"
JOURNALNODE_PRINCIPAL = f"jn/{SERVER_HOST}@{REALM}"
HTTP_PRINCIPAL = f"HTTP/{SERVER_HOST}@{REALM}"
_PASSWORD = "changeit"

AUTHENTICATED = {"dfs.data.transfer.protection": "authentication"}
_AES = {"dfs.encrypt.data.transfer.cipher.suites": "AES/CTR/NoPadding"}
TRANSFERS: Mapping[str, Mapping[str, str]] = {
    "aes": {"dfs.data.transfer.protection": "privacy", **_AES},
    "integrity": {"dfs.data.transfer.protection": "integrity"},
    "privacy": {"dfs.data.transfer.protection": "privacy,integrity"},
    "encrypted": {"dfs.encrypt.data.transfer": "true", "dfs.data.transfer.protection": "authentication", **_AES},
    "encrypted-rc4": {
        "dfs.encrypt.data.transfer": "true",
        "dfs.encrypt.data.transfer.algorithm": "rc4",
        "dfs.data.transfer.protection": "authentication",
    },
}
"""What may protect the connections to datanodes, by the name of a test's parameter."""
LEVELS: Mapping[str, Mapping[str, str]] = {
    "authentication": AUTHENTICATED,
    "integrity": TRANSFERS["integrity"],
    "privacy": TRANSFERS["aes"],
}
"""The protection of connections to datanodes by the level of calls, for a cluster of one level."""


class HdfsSecurity:
    """The realm and the certificates of one secure HDFS, kept in `folder`.

    `rpc_protection` is Hadoop's `hadoop.rpc.protection`, `transfer` what protects connections to datanodes beside block
    tokens; ticket_life a krb5 duration, as in `10h`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rpc_protection: str = "authentication",
        transfer: Mapping[str, str] = AUTHENTICATED,
        ticket_life: str = "10h",
        kdc_port: int | None = None,
        is_detached: bool = False,
    ) -> None:
        self.folder = folder
        self.rpc_protection = rpc_protection
        self.transfer = dict(transfer)
        self.kdc = Kdc(folder=folder / "kdc", port=kdc_port, max_life=ticket_life, is_detached=is_detached)

    def start(self) -> None:
        """Start the realm; at the first start make its principals and the certificates too."""
        is_new = not self._authority.exists()
        self.kdc.start()
        if is_new:
            for principal in (NAMENODE_PRINCIPAL, DATANODE_PRINCIPAL, JOURNALNODE_PRINCIPAL, HTTP_PRINCIPAL):
                self.kdc.add_service(principal)
            self._write_stores()

    @property
    def java_options(self) -> list[str]:
        """The options by which a Java program finds the realm; old Hadoop reads it by a class that Java 17 hides."""
        hidden = "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED"
        return [f"-Djava.security.krb5.conf={self.kdc.environment['KRB5_CONFIG']}", hidden]

    @property
    def tls(self) -> ssl.SSLContext:
        """A context that trusts the servers' certificates."""
        return ssl.create_default_context(cafile=str(self._authority))

    def client_settings(self) -> dict[str, str]:
        """Return the properties that clients need too."""
        return {
            "hadoop.security.authentication": "kerberos",
            "hadoop.rpc.protection": self.rpc_protection,
            "dfs.namenode.kerberos.principal": NAMENODE_PRINCIPAL,
            "dfs.datanode.kerberos.principal": DATANODE_PRINCIPAL,
            "dfs.http.policy": "HTTPS_ONLY",
            **self.transfer,
        }

    def server_settings(self) -> dict[str, str]:
        """Return the properties of the servers alone."""
        return {
            "hadoop.security.authorization": "false",
            "dfs.permissions.enabled": "true",
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.keytab.file": str(self.kdc.keytab(NAMENODE_PRINCIPAL)),
            "dfs.datanode.keytab.file": str(self.kdc.keytab(DATANODE_PRINCIPAL)),
            "dfs.journalnode.keytab.file": str(self.kdc.keytab(JOURNALNODE_PRINCIPAL)),
            "dfs.journalnode.kerberos.principal": JOURNALNODE_PRINCIPAL,
            "dfs.journalnode.kerberos.internal.spnego.principal": HTTP_PRINCIPAL,
            "dfs.web.authentication.kerberos.principal": HTTP_PRINCIPAL,
            "dfs.web.authentication.kerberos.keytab": str(self.kdc.keytab(HTTP_PRINCIPAL)),
        }

    def write_conf(self, folder: Path) -> None:
        """Write the files that name the keystore and the truststore, for servers and clients."""
        for side in ("server", "client"):
            write_conf(folder, self._stores(side), files=[f"ssl-{side}.xml"])

    def to_json(self) -> Mapping[str, object]:
        return {"kdc_port": self.kdc.port, "rpc_protection": self.rpc_protection, "transfer": self.transfer}

    # --- within ---

    @property
    def _authority(self) -> Path:
        return self.folder / "authority.pem"

    def _stores(self, side: str) -> dict[str, str]:
        settings: dict[str, str] = {}
        for store in ("keystore", "truststore"):
            settings |= {
                f"ssl.{side}.{store}.location": str(self.folder / f"{store}.p12"),
                f"ssl.{side}.{store}.password": _PASSWORD,
                f"ssl.{side}.{store}.type": "pkcs12",
            }
        return settings | {f"ssl.{side}.keystore.keypassword": _PASSWORD}

    def _write_stores(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(SERVER_HOST, "127.0.0.1")
        key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
        root = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
        encryption = BestAvailableEncryption(_PASSWORD.encode())
        (self.folder / "keystore.p12").write_bytes(
            pkcs12.serialize_key_and_certificates(b"server", key, certificate, [root], encryption)  # type: ignore[arg-type]
        )
        trusted = [pkcs12.PKCS12Certificate(root, b"authority")]
        (self.folder / "truststore.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, encryption))
        authority.cert_pem.write_to_path(str(self._authority))
