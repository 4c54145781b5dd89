"""A `bmq serve` with TLS, every SASL mechanism and ACLs, and the log-ins of its users: right ones and wrong ones."""

from __future__ import annotations

import dataclasses
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from bmq.core.security.settings import STANDARD_AUTHORIZER
from tests.harness.certificates import Certificates
from tests.integration.clients.drivers.login import KERBEROS_MODULE, PLAIN_MODULE, SERVICE, Login, write_properties
from tests.integration.clients.mechanisms import CERTIFICATE, TOKEN
from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool
from tests.services.kdc import REALM, Kdc, missing
from tests.services.processes import free_ports
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, key_set, public_jwk, token

USER, ADMIN = "alice", "admin"
PASSWORD = "alice's own"
PREFIX = "of-alice"
"""What begins so is Alice's, topics and groups."""
REAUTH_MS = 2_000
LISTENERS = {"SSL": "SSL", "SASL_PLAINTEXT": "PLAIN", "SASL_SSL": "BOTH", "renewed": "RENEW"}
"""The listener of each protocol, and the one whose sessions are short."""
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class SecureServer:
    """The server, its KDC if this machine has one, and its users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = Certificates.make(folder / "certificates")
        self.stranger = self._pkcs8(Certificates.make(folder / "others"), "stranger")
        self.alice = self._pkcs8(self.certificates, USER)
        self.kdc = Kdc() if not missing() else None
        self._token = ("", "")
        self._ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))

    @staticmethod
    def _pkcs8(by: Certificates, name: str) -> str:
        """Return a file in the one form of PEM that every client reads."""
        data = by.issue(f"{name}.pem", name).read_bytes()
        key = load_pem_private_key(data, None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (by.folder / f"{name}-8.pem").write_bytes(pem + data[data.index(b"-----BEGIN CERTIFICATE") :])
        return str(by.folder / f"{name}-8.pem")

    def __enter__(self) -> Self:
        with ExitStack() as started:
            if self.kdc is not None:
                started.enter_context(self.kdc)
            settings = self._settings()
            self.server = BmqServer((self.folder / "root").as_uri(), folder=self.folder, environment=settings)
            started.enter_context(self.server)
            self._make_users()
            self._started = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    # --- settings ---

    def _settings(self) -> dict[str, str]:
        (self.folder / "keys.json").write_bytes(key_set(public_jwk("RSA")))
        for name, audience in (("right", AUDIENCE), ("wrong", "somebody else")):
            now = time.time()
            claims = CLAIMS | {"sub": USER, "aud": audience, "iat": now, "exp": now + 3600}
            (self.folder / f"{name}.jwt").write_text(token(claims))
        plain = self.folder / "plain-users"
        plain.write_text(f'{PLAIN_MODULE} required user_{ADMIN}="{ADMIN}" user_{USER}="{PASSWORD}";')
        mechanisms = ["PLAIN", *SCRAM, "OAUTHBEARER"]
        settings = {
            "listeners": ",".join(f"{LISTENERS[name]}://127.0.0.1:{port}" for name, port in self._ports.items()),
            "advertised.listeners": ",".join(f"{LISTENERS[k]}://localhost:{port}" for k, port in self._ports.items()),
            "listener.security.protocol.map": "SSL:SSL,PLAIN:SASL_PLAINTEXT,BOTH:SASL_SSL,RENEW:SASL_SSL",
            "ssl.keystore.location": str(self.certificates.server),
            "ssl.truststore.location": str(self.certificates.trust),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^.*CN=([a-z]+).*$/$1/",
            "listener.name.renew.connections.max.reauth.ms": str(REAUTH_MS),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN}",
            "delegation.token.secret.key": "of the cluster",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "2",
        }
        if self.kdc is not None:
            mechanisms.append("GSSAPI")
            principal = f"{SERVICE}/localhost@{REALM}"
            keytab = self.kdc.add_service(principal)
            self._tickets = {name: self.kdc.log_in(f"{name}@{REALM}") for name in (USER, "mallory")}
            jaas = f'{KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}";'
        for name in ("plain", "both", "renew"):
            on = f"listener.name.{name}"
            oauth = f"{on}.oauthbearer.sasl.oauthbearer"
            settings |= {
                f"{on}.sasl.enabled.mechanisms": ",".join(mechanisms),
                f"{on}.plain.sasl.jaas.config.file": str(plain),
                f"{oauth}.jwks.endpoint.url": (self.folder / "keys.json").as_uri(),
                f"{oauth}.expected.issuer": ISSUER,
                f"{oauth}.expected.audience": AUDIENCE,
            }
            if self.kdc is not None:
                settings |= {
                    f"{on}.gssapi.sasl.jaas.config": jaas,
                    f"{on}.gssapi.sasl.kerberos.service.name": SERVICE,
                    f"{on}.gssapi.sasl.kerberos.principal.to.local.rules": f"RULE:[1:$1]({USER})",
                }
        variables = {
            f"BMQ_{name.replace('.', '_').replace('-', '_').upper()}": value for name, value in settings.items()
        }
        return variables | (dict(self.kdc.environment) if self.kdc is not None else {})

    # --- users, by Kafka's tools alone ---

    def tool(self, name: str, *arguments: str, login: Login | None = None) -> str:
        """Return what a tool of Kafka says, as the administrator unless somebody else is named."""
        who = login or self.admin
        file = write_properties(self.folder / "command.properties", who.java())
        common = ("--bootstrap-server", self.bootstrap(who.protocol), "--command-config", str(file))
        return run_tool(name, *common, *arguments).stdout

    def _make_users(self) -> None:
        for mechanism in SCRAM:
            password = f"{mechanism}=[iterations=4096,password={PASSWORD}]"
            user = ("--entity-type", "users", "--entity-name", USER)
            self.tool("ConfigCommand", "--alter", *user, "--add-config", password)
        own = ("--add", "--allow-principal", f"User:{USER}", "--resource-pattern-type", "prefixed")
        topic = ("--operation", "Read", "--operation", "Write", "--operation", "Create", "--operation", "Describe")
        self.tool("AclCommand", *own, *topic, "--topic", PREFIX)
        self.tool("AclCommand", *own, "--operation", "Read", "--group", PREFIX)
        # What the HTTP port's client without a log-in may see: metrics.
        everybody = ("--add", "--allow-principal", "User:ANONYMOUS")
        self.tool("AclCommand", *everybody, "--operation", "Describe", "--cluster")
        self.tool("TopicCommand", "--create", "--topic", "of-bob", "--partitions", "1")
        self._token = self.new_token()

    def new_token(self) -> tuple[str, str]:
        """Return the id and the secret of a new delegation token of Alice's."""
        made = self.tool(
            "DelegationTokenCommand", "--create", "--max-life-time-period", "-1", "--renewer-principal", f"User:{USER}",
            login=self.right("SASL_SSL", "PLAIN"),
        )  # fmt: skip
        words = [line for line in made.splitlines() if f"User:{USER}" in line][-1].split()  # the table's row
        return words[0], words[1]

    @property
    def admin(self) -> Login:
        """Return the administrator's log-in."""
        return self._base("SASL_SSL", mechanism="PLAIN", user=ADMIN, password=ADMIN)

    def right(self, protocol: str, mechanism: str) -> Login:
        """Return Alice's log-in."""
        if mechanism == CERTIFICATE:
            return self._base(protocol, certificate=self.alice)
        if mechanism == "GSSAPI":
            return self._kerberos(protocol, USER)
        if mechanism == "OAUTHBEARER":
            return self._base(protocol, mechanism=mechanism, access_token=str(self.folder / "right.jwt"))
        if mechanism == TOKEN:
            name, secret = self._token
            return self._base(protocol, mechanism=SCRAM[0], user=name, password=secret, is_token=True)
        return self._base(protocol, mechanism=mechanism, user=USER, password=PASSWORD)

    def wrong(self, protocol: str, mechanism: str) -> Login:
        """Return one that the server refuses: a stranger's, or one with another password or audience."""
        right = self.right(protocol, mechanism)
        if mechanism == CERTIFICATE:
            return dataclasses.replace(right, certificate=self.stranger)
        if mechanism == "GSSAPI":
            return self._kerberos(protocol, "mallory")
        if mechanism == "OAUTHBEARER":
            return dataclasses.replace(right, access_token=str(self.folder / "wrong.jwt"))
        return dataclasses.replace(right, password="another")

    def _kerberos(self, protocol: str, name: str) -> Login:
        assert self.kdc is not None
        return self._base(
            protocol, mechanism="GSSAPI", user=f"{name}@{REALM}", keytab=str(self.kdc.keytab(f"{name}@{REALM}")),
            krb5_conf=self.kdc.environment["KRB5_CONFIG"], ticket=self._tickets[name],
        )  # fmt: skip

    def _base(self, protocol: str, **fields: Any) -> Login:
        return Login(protocol=protocol, authority=str(self.certificates.trust), **fields)

    # --- the server as clients see it ---

    def bootstrap(self, protocol: str) -> str:
        """Return the address of this protocol's listener, or of the one whose sessions are short."""
        return f"localhost:{self._ports[protocol]}"

    def counted(self, name: str, listener: str, mechanism: str) -> float:
        """Return a count of log-ins by its metric."""
        labels = f'{{listener="{LISTENERS[listener]}",mechanism="{mechanism}"}}'
        return self._metric(f"kafka_server_socketservermetrics_{name}_total{labels}")

    def refused(self, protocol: str, mechanism: str) -> float:
        """Return how many log-ins have failed; without SASL, how many handshakes of TLS."""
        if mechanism == CERTIFICATE:
            return self._metric("bmq_tls_handshakes_failed_total")
        return self.counted("failed_authentication", protocol, SCRAM[0] if mechanism == TOKEN else mechanism)

    def _metric(self, series: str) -> float:
        with urllib.request.urlopen(f"{self.server.http}/metrics", timeout=10) as response:
            text = response.read().decode()
        (line,) = [each for each in text.splitlines() if each.startswith(f"{series} ")]
        return float(line.rpartition(" ")[2])

    def end_offset(self, topic: str) -> int:
        """Return the end of the topic's one partition."""
        admin = AdminClient({**self.admin.librdkafka(), "bootstrap.servers": self.bootstrap("SASL_SSL")})
        partition = TopicPartition(topic, 0)
        found = admin.list_offsets({partition: OffsetSpec.latest()})  # type: ignore[no-untyped-call]
        return int(found[partition].result(timeout=10).offset)
