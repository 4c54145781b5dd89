"""A `bmq serve` with a listener of every kind of security, and right and wrong credentials for its users."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from bmq.core.wire import messages as m
from bmq.core.wire.response_errors import error_codes
from tests.harness.certificates import Certificates
from tests.harness.wire_client import (
    Login,
    Tokens,
    connected,
    oauth,
    plain,
    scram,
    upsertion,
)
from tests.integration.security_rules import ADMIN, ALICE, TRANSACTIONAL_ID, USERS, K
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.kdc import REALM, Kdc, missing
from tests.services.processes import free_ports
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, key_set, public_jwk, token
from tests.unit.proxy.transactions.transactions_world import init
from tests.unit.server.rights_table import CASES, Op, create_acls, create_topics

HAS_KERBEROS = importlib.util.find_spec("gssapi") is not None and not missing()
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", *(["GSSAPI"] if HAS_KERBEROS else [])]
PASSWORD, SECRET = "right-password", "the-secret-of-this-cluster"


class Place:
    """One `bmq serve` with a listener of every kind, and the credentials of its users."""

    def __init__(self, folder: Path, etcd: EtcdCluster, kdc: Kdc | None) -> None:
        names = ("open", "ssl_none", "ssl_requested", "ssl_required", "sasl", "sasl_ssl", "plain_only", "short")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.made = Certificates.make(folder / "certificates")
        for user in USERS:
            self.made.issue(f"{user}.pem", user)
        now = datetime.now(UTC)
        expired = self.made.authority.issue_cert(
            "alice@example.org", common_name=ALICE, not_before=now - timedelta(2), not_after=now - timedelta(1)
        )
        expired.private_key_and_cert_chain_pem.write_to_path(self.made.folder / "expired.pem")
        alien = trustme.CA().issue_cert("alice@example.org", common_name=ALICE)
        alien.private_key_and_cert_chain_pem.write_to_path(self.made.folder / "alien.pem")
        (folder / "keys.json").write_bytes(key_set(public_jwk("RSA")))
        jaas = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
        jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {jaas};"
        protocols = {"open": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "plain_only": "SASL_PLAINTEXT",
                     "short": "SASL_PLAINTEXT", "sasl_ssl": "SASL_SSL"}  # fmt: skip
        listeners = ",".join(f"{name.upper()}://127.0.0.1:{port}" for name, port in self.ports.items())
        environment = {
            "BMQ_LISTENERS": listeners,
            "BMQ_ADVERTISED_LISTENERS": listeners.replace("127.0.0.1", "localhost"),
            "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(
                f"{name.upper()}:{protocols.get(name, 'SSL')}" for name in names
            ),
            "BMQ_SSL_KEYSTORE_LOCATION": str(self.made.server),
            "BMQ_SSL_TRUSTSTORE_LOCATION": str(self.made.trust),
            "BMQ_SSL_PRINCIPAL_MAPPING_RULES": "RULE:^.*CN=([^,]*).*$/$1/,DEFAULT",
            "BMQ_LISTENER_NAME_SSL_REQUESTED_SSL_CLIENT_AUTH": "requested",
            "BMQ_LISTENER_NAME_SSL_REQUIRED_SSL_CLIENT_AUTH": "required",
            "BMQ_SASL_ENABLED_MECHANISMS": ",".join(MECHANISMS),
            "BMQ_LISTENER_NAME_PLAIN_ONLY_SASL_ENABLED_MECHANISMS": "PLAIN",
            "BMQ_LISTENER_NAME_SHORT_CONNECTIONS_MAX_REAUTH_MS": "300",
            "BMQ_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "20",
            "BMQ_TLS_HANDSHAKE_MS": "2000",
            "BMQ_DELEGATION_TOKEN_SECRET_KEY": "of the tokens",
            "BMQ_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "BMQ_SUPER_USERS": "User:admin",
            "BMQ_INTERNAL_SECRET": SECRET,
            "BMQ_HTTP_AUTHENTICATION": "basic,bearer",
            "BMQ_LISTENER_NAME_HTTP_SASL_ENABLED_MECHANISMS": "PLAIN",
            "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
            "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        for name in ("SASL", "SASL_SSL", "PLAIN_ONLY", "SHORT", "HTTP"):
            environment[f"BMQ_LISTENER_NAME_{name}_PLAIN_SASL_JAAS_CONFIG"] = jaas
            oauth_settings = f"BMQ_LISTENER_NAME_{name}_OAUTHBEARER_SASL_OAUTHBEARER_"
            if name != "PLAIN_ONLY":
                environment[f"{oauth_settings}JWKS_ENDPOINT_URL"] = (folder / "keys.json").as_uri()
                environment[f"{oauth_settings}EXPECTED_ISSUER"] = ISSUER
                environment[f"{oauth_settings}EXPECTED_AUDIENCE"] = AUDIENCE
        self.caches: dict[str, str] = {}
        if kdc is not None:
            service = f"kafka/broker.test@{REALM}"
            gss = (
                "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
                f' keyTab="{kdc.add_service(service)}" principal="{service}";'
            )
            for name in ("SASL", "SASL_SSL", "SHORT"):
                environment[f"BMQ_LISTENER_NAME_{name}_GSSAPI_SASL_JAAS_CONFIG"] = gss
            environment["BMQ_SASL_KERBEROS_SERVICE_NAME"] = "kafka"
            environment |= kdc.environment
            self.caches = {user: kdc.log_in(f"{user}@{REALM}") for user in USERS}
        self.server = BmqServer((folder / "root").as_uri(), etcd.url, environment=environment, folder=folder)
        self.tokens: dict[str, tuple[str, str]] = {}
        """Delegation tokens, each with its HMAC: of alice, and one of hers that has expired."""

    def tls(self, listener: str, certificate: str = "") -> ssl.SSLContext | None:
        """Return what a client of the listener needs; `certificate` names the user of the one that it shows."""
        if "ssl" not in listener:
            return None
        context = ssl.create_default_context(cafile=str(self.made.trust))
        if certificate:
            context.load_cert_chain(self.made.folder / f"{certificate}.pem")
        return context

    def login(self, mechanism: str, user: str, *, is_right: bool = True) -> Login:
        password = PASSWORD if is_right else "wrong-password"
        if mechanism == "PLAIN":
            return plain(user, password)
        if mechanism == "OAUTHBEARER":
            return oauth(access_token(user, **({} if is_right else {"aud": "somebody else"})))
        if mechanism == "GSSAPI":
            return ticket(self.caches[user], is_right=is_right)
        return scram(int(mechanism[-3:]), user, password)

    async def prepare(self) -> None:
        """Make the users of SCRAM, alice's right, a topic, a group's offsets, a producer, and delegation tokens."""
        async with connected(self.ports["sasl"]) as client:
            await client.log_in(plain(ADMIN, PASSWORD))
            Deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
            for bits, number in ((256, 1), (512, 2)):  # a request may name a user once
                upserted = [upsertion(user, bits, PASSWORD) for user in (*USERS, "gone")]
                gone = [Deletion(name="gone", mechanism=number)]
                for rows in ({"deletions": [], "upsertions": upserted}, {"deletions": gone, "upsertions": []}):
                    found = await client.ask(0, m.AlterUserScramCredentialsRequest(**rows))
                    assert not any(error_codes(found)), found
            topics = create_topics("t")
            topics.validate_only = False
            found = await client.ask(7, topics)
            assert not any(error_codes(found)), found
            write = create_acls(2, "t", principal="User:alice", operation=int(Op.WRITE))
            found = await client.ask(3, write)
            assert not any(error_codes(found)), found
            case = CASES[K.OFFSET_COMMIT]
            deadline = time.monotonic() + 30
            while any(error_codes(await client.ask(case.version, case.request()))):
                assert time.monotonic() < deadline, "the group's coordinator is not there"
                await asyncio.sleep(0.1)
            find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[TRANSACTIONAL_ID])
            while any(error_codes(await client.ask(4, find))) or any(
                error_codes(await client.ask(4, init(TRANSACTIONAL_ID, 4)))
            ):
                assert time.monotonic() < deadline, "the transaction's coordinator is not there"
                await asyncio.sleep(0.1)
        async with connected(self.ports["sasl"]) as client:
            await client.log_in(plain(ALICE, PASSWORD))
            for name in ("right", "expired"):
                request = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
                made = await client.ask(1, request)
                assert made.error_code == 0
                self.tokens[name] = made.token_id, base64.b64encode(made.hmac).decode()
            ending = m.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
            assert (await client.ask(1, ending)).error_code == 0


def access_token(user: str, **changed: Any) -> str:
    now = time.time()
    return token(CLAIMS | {"sub": user, "iat": now - 60, "exp": now + 600} | changed)


def ticket(cache: str, *, is_right: bool) -> Login:
    """Return a log-in by Kerberos; if it is not right, the ticket's message is damaged."""
    import gssapi  # where it is

    def tokens() -> Tokens:
        name = gssapi.Name(f"kafka/broker.test@{REALM}", gssapi.NameType.kerberos_principal)
        credentials = gssapi.Credentials(usage="initiate", store={"ccache": cache})
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        context = gssapi.SecurityContext(
            name=name, creds=credentials, usage="initiate", flags=flags, mech=gssapi.MechType.kerberos
        )
        sent = context.step()
        if not is_right:
            sent = sent[:-1] + bytes([sent[-1] ^ 0xFF])
        while not context.complete:
            sent = context.step((yield sent)) or b""
        offered = yield sent
        assert context.unwrap(offered).message[0] == 1, "no security layer"
        yield context.wrap(b"\1\0\0\0", False).message

    return "GSSAPI", tokens
