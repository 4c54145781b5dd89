"""A client's log-in: how it shows who it is, and the settings of each library that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE = "kafka"
"""The name of the service in Kerberos principals of servers."""
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A protocol and what its mechanism needs; the other fields are empty.  Names of files are absolute."""

    protocol: str
    mechanism: str = ""
    """Kafka's name; that of SCRAM for a delegation token."""
    user: str = ""
    """The name, the id of a delegation token, or the Kerberos principal."""
    password: str = ""
    is_token: bool = False
    authority: str = ""
    """PEM: who has signed the server's certificate."""
    certificate: str = ""
    """PEM: the client's own key and certificate."""
    access_token: str = ""
    """The file that has the access token."""
    keytab: str = ""
    krb5_conf: str = ""
    ticket: str = ""
    """The credentials cache for libraries that take no keytab."""
    service: str = SERVICE

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def environment(self) -> dict[str, str]:
        """Return variables of the process: Kerberos's files, and what Java's may read."""
        java = []
        found = {}
        if self.krb5_conf:
            found = {"KRB5_CONFIG": self.krb5_conf, "KRB5CCNAME": self.ticket}
            java.append(f"-Djava.security.krb5.conf={self.krb5_conf}")
        if self.access_token:
            java.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={Path(self.access_token).as_uri()}")
        if java:
            found["JDK_JAVA_OPTIONS"] = " ".join(java)
        return found

    def java(self) -> dict[str, str]:
        """Return properties of Kafka's own clients and tools."""
        found = {"security.protocol": self.protocol}
        if self.has_tls:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if self.certificate:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if self.mechanism:
            found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.mechanism == "GSSAPI":
            found["sasl.kerberos.service.name"] = self.service
        if self.access_token:
            found["sasl.oauthbearer.token.endpoint.url"] = Path(self.access_token).as_uri()
            found["sasl.login.callback.handler.class"] = OAUTH_HANDLER
        return found

    def _jaas(self) -> str:
        if self.mechanism == "GSSAPI":
            keytab = f'useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="{self.user}"'
            return f"{KERBEROS_MODULE} required {keytab};"
        if self.mechanism == "OAUTHBEARER":
            return f"{OAUTH_MODULE} required;"
        module = PLAIN_MODULE if self.mechanism == "PLAIN" else SCRAM_MODULE
        token = " tokenauth=true" if self.is_token else ""
        return f'{module} required username="{self.user}" password="{self.password}"{token};'

    def librdkafka(self) -> dict[str, str]:
        """Return properties of librdkafka; an access token comes by a call-back."""
        found = {"security.protocol": self.protocol}
        if self.has_tls:
            found["ssl.ca.location"] = self.authority
        if self.certificate:
            found |= {"ssl.certificate.location": self.certificate, "ssl.key.location": self.certificate}
        if self.mechanism:
            found["sasl.mechanism"] = self.mechanism
        if self.mechanism == "GSSAPI":
            found |= {
                "sasl.kerberos.service.name": self.service,
                "sasl.kerberos.keytab": self.keytab,
                "sasl.kerberos.principal": self.user,
            }
        elif self.password:
            found |= {"sasl.username": self.user, "sasl.password": self.password}
        return found

    def kafka_python(self) -> dict[str, str]:
        """Return arguments of kafka-python's clients; an access token comes by a provider."""
        found = {"security_protocol": self.protocol}
        if self.has_tls:
            found["ssl_cafile"] = self.authority
        if self.certificate:
            found |= {"ssl_certfile": self.certificate, "ssl_keyfile": self.certificate}
        if self.mechanism:
            found["sasl_mechanism"] = self.mechanism
        if self.mechanism == "GSSAPI":
            found["sasl_kerberos_service_name"] = self.service
        elif self.password:
            found |= {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        return found


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a file for ``--command-config``; return it."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path
