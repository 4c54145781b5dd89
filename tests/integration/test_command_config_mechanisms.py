"""`bmq` commands by access tokens, Kerberos tickets and delegation tokens, on a real listener, with a real KDC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool
from tests.services.kdc import REALM, Kdc, missing
from tests.services.processes import free_ports
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, key_set, public_jwk, token

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {missing()}"),
]
KAFKA = "org.apache.kafka.common.security"
PLAIN, SCRAM = f"{KAFKA}.plain.PlainLoginModule", f"{KAFKA}.scram.ScramLoginModule"
OAUTH = f"{KAFKA}.oauthbearer.OAuthBearerLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
LISTENER = "BMQ_LISTENER_NAME_OUTSIDE_"


class Place:
    """A server with one SASL listener, whose rights show who somebody is: each user may create one topic."""

    def __init__(self, folder: Path, kdc: Kdc) -> None:
        self.folder, self.kdc = folder, kdc
        (self.port,) = free_ports(1)
        keytab = kdc.add_service(f"kafka/localhost@{REALM}")
        (folder / "keys.json").write_bytes(key_set(public_jwk("RSA")))
        oauth = f"{LISTENER}OAUTHBEARER_SASL_OAUTHBEARER_"
        service = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="kafka/localhost@{REALM}"'
        self.server = BmqServer(
            (folder / "root").as_uri(),
            folder=folder,
            environment={
                **kdc.environment,
                "BMQ_LISTENERS": f"OUTSIDE://127.0.0.1:{self.port}",
                "BMQ_ADVERTISED_LISTENERS": f"OUTSIDE://localhost:{self.port}",
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "OUTSIDE:SASL_PLAINTEXT",
                f"{LISTENER}SASL_ENABLED_MECHANISMS": "OAUTHBEARER,PLAIN,SCRAM-SHA-512,GSSAPI",
                f"{LISTENER}PLAIN_SASL_JAAS_CONFIG": f'{PLAIN} required user_admin="secret";',
                f"{LISTENER}GSSAPI_SASL_KERBEROS_SERVICE_NAME": "kafka",
                f"{LISTENER}GSSAPI_SASL_JAAS_CONFIG": f"{KERBEROS} required {service};",
                f"{oauth}JWKS_ENDPOINT_URL": (folder / "keys.json").as_uri(),
                f"{oauth}EXPECTED_ISSUER": ISSUER,
                f"{oauth}EXPECTED_AUDIENCE": AUDIENCE,
                "BMQ_DELEGATION_TOKEN_SECRET_KEY": "of the cluster",
                "BMQ_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "BMQ_SUPER_USERS": "User:admin",
            },
        )

    def config(self, name: str, mechanism: str, jaas: str, **settings: str) -> str:
        path = self.folder / f"{name}.properties"
        path.touch(mode=0o600)
        given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        given |= {key.replace("_", "."): value for key, value in settings.items()}
        path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        return str(path)

    def run(self, config: str, *words: str, **environment: str) -> tuple[int, str]:
        """Run `bmq`; return its status and its errors."""
        server = ("--bootstrap-server", f"localhost:{self.port}", "--command-config", config)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "bmq.cli.main", *words, *server],
            env={**os.environ, **self.kdc.environment, **environment}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    def allow(self, user: str, topic: str) -> None:
        admin = self.config("admin", "PLAIN", f'{PLAIN} required username="admin" password="secret";')
        words = ("acl", "add", "--principal", f"User:{user}", "--operation", "create", "--topic", topic)
        assert self.run(admin, *words) == (0, "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Kdc() as kdc:
        running = Place(tmp_path_factory.mktemp("mechanisms"), kdc)
        with running.server:
            yield running


def test_a_principal_of_a_keytab_and_a_ticket_that_is_there(place: Place) -> None:
    """Put two principals into the keytab: the one that is named counts, not the first."""
    keytab = place.kdc.add_service(f"first@{REALM}")
    place.allow("second", "by-keytab")
    second = place.kdc.add_service(f"second@{REALM}")
    both = place.folder / "both.keytab"
    both.write_bytes(keytab.read_bytes() + second.read_bytes()[2:])
    options = f'useKeyTab=true keyTab="{both}"'

    def config(principal: str) -> str:
        jaas = f'{KERBEROS} required {options} principal="{principal}@{REALM}";'
        return place.config("keytab", "GSSAPI", jaas, sasl_kerberos_service_name="kafka")

    assert place.run(config("second"), "topic", "create", "by-keytab") == (0, "")
    status, errors = place.run(config("first"), "topic", "create", "another")
    assert (status, "not authorised for Create on topic another" in errors) == (1, True), errors
    status, errors = place.run(config("third"), "topic", "list")
    assert (status, f"cannot get a ticket for third@{REALM}" in errors) == (2, True), errors

    tickets = place.kdc.log_in(f"carol@{REALM}")
    place.allow("carol", "by-ticket")
    cached = place.config("cached", "GSSAPI", "", sasl_kerberos_service_name="kafka")
    assert place.run(cached, "topic", "create", "by-ticket", KRB5CCNAME=tickets) == (0, "")
    status, errors = place.run(cached, "topic", "list", KRB5CCNAME="FILE:/no/such/tickets")
    assert (status, f"cannot log in at localhost:{place.port} by GSSAPI" in errors) == (1, True), errors


def access_token() -> str:
    now = time.time()
    return token(CLAIMS | {"iat": now, "exp": now + 600})


class Issuer(BaseHTTPRequestHandler):
    """A token endpoint that knows one client."""

    def do_POST(self) -> None:
        body = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        is_right = self.headers["Authorization"] == "Basic YXBwOm9wZW4=" and body["grant_type"] == [
            "client_credentials"
        ]
        self.send_response(200 if is_right else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": access_token(), "expires_in": 600} if is_right else {}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Issuer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def test_an_access_token_of_a_file_and_of_an_endpoint(place: Place, issuer: str) -> None:
    place.allow(str(CLAIMS["sub"]), "by-token")
    (place.folder / "token").write_text(access_token())
    file = (place.folder / "token").as_uri()
    config = place.config("file", "OAUTHBEARER", f"{OAUTH} required;", sasl_oauthbearer_token_endpoint_url=file)
    assert place.run(config, "topic", "create", "by-token") == (0, "")

    def by_endpoint(secret: str) -> str:
        jaas = f'{OAUTH} required clientId="app" clientSecret="{secret}";'
        return place.config("endpoint", "OAUTHBEARER", jaas, sasl_oauthbearer_token_endpoint_url=issuer)

    status, errors = place.run(by_endpoint("open"), "topic", "list")
    assert status == 0, errors
    status, errors = place.run(by_endpoint("shut"), "topic", "list")
    assert (status, "the token endpoint refused: 401" in errors) == (1, True), errors
    (place.folder / "token").write_text("not.a.token")
    status, errors = place.run(config, "topic", "list")
    assert (status, "refused the log-in by OAUTHBEARER" in errors) == (1, True), errors


def test_a_delegation_token(place: Place) -> None:
    admin = place.config("admin", "PLAIN", f'{PLAIN} required username="admin" password="secret";')
    created = run_tool(
        "DelegationTokenCommand", "--bootstrap-server", f"localhost:{place.port}", "--command-config", admin,
        "--create", "--max-life-time-period", "-1",
    ).stdout  # fmt: skip
    identity, hmac = next(line for line in created.splitlines() if "User:admin" in line).split()[:2]
    jaas = f'{SCRAM} required username="{identity}" password="{hmac}" tokenauth="true";'
    worker = place.config("worker", "SCRAM-SHA-512", jaas)
    assert place.run(worker, "topic", "create", "by-delegation") == (0, "")
