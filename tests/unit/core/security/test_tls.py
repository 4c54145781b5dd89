"""TLS contexts: every form of keystore and truststore, what is refused with which words, and changed files."""

from __future__ import annotations

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.core.options import ConfigError
from bmq.core.security.distinguished_name import BadCertificate
from bmq.core.security.listener_settings import security_of
from bmq.core.security.mapping_rules import NoRule
from bmq.core.security.principal import ANONYMOUS, Principal, user
from bmq.core.security.tls import ServerTls
from tests.harness.certificates import PASSWORD, Certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def tls(settings: dict[str, Any]) -> ServerTls:
    fields: dict[str, Any] = {}
    for key, value in settings.items():
        fields[key.replace(".", "_")] = str(value) if isinstance(value, Path) else value
    return ServerTls(security_of("OUT", "SSL", NodeConfig(**fields), ()))


def shake_hands(server: ServerTls, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """Return the server's side once both sides are done; raise the server's error, if it has one, else the client's."""
    here, _ = both_sides(server, client, name)
    return here


def shown_to(server: ServerTls, client: ssl.SSLContext) -> bytes:
    """Return the certificate that a client gets."""
    _, there = both_sides(server, client, "localhost")
    certificate = there.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def both_sides(
    server: ServerTls, client: ssl.SSLContext, name: str, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.context.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname=name, session=session)
    errors: dict[str, ssl.SSLError] = {}
    for _ in range(6):
        for side, each in (("client", there), ("server", here)):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass  # its turn comes again
            except ssl.SSLError as error:
                errors.setdefault(side, error)
    if errors:
        raise errors.get("server", errors.get("client", ssl.SSLError()))
    return here, there


def client_of(made: Certificates, keystore: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.trust))
    if keystore is not None:
        context.load_cert_chain(keystore)
    return context


def principal(server: ServerTls, client: ssl.SSLContext) -> Principal:
    return server.principal_of(shake_hands(server, client))


@pytest.mark.slow
def test_keystores_in_every_form(made: Certificates) -> None:
    pem = made.server.read_text()
    key, chain = pem.split("-----BEGIN CERTIFICATE-----", 1)
    chain = f"-----BEGIN CERTIFICATE-----{chain}"
    for settings in (
        {"ssl.keystore.location": made.server},
        {"ssl.keystore.location": made.server, "ssl.keystore.type": "PEM"},
        {"ssl.keystore.location": made.encrypted(made.server, "e.pem"), "ssl.key.password": PASSWORD},
        {"ssl.keystore.location": made.pkcs12(made.server, "s.p12"), "ssl.keystore.password": PASSWORD},
        {"ssl.keystore.location": made.pkcs12(made.server, "s.jks"), "ssl.keystore.password": PASSWORD,
         "ssl.keystore.type": "JKS"},  # as Java, which reads PKCS#12 under that name
        {"ssl.keystore.location": made.pkcs12(made.server, "open.p12", password="")},
        {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain},
        {"ssl.keystore.key": key.replace("\n", " "), "ssl.keystore.certificate.chain": chain.replace("\n", " ")},
    ):  # fmt: skip
        server = tls(settings)
        connection = shake_hands(server, client_of(made))
        assert connection.version() == "TLSv1.3"
        assert server.principal_of(connection) == ANONYMOUS
        assert server.expires_in_s > 0


def test_truststores_in_every_form(made: Certificates) -> None:
    for settings in (
        {"ssl.truststore.location": made.trust},
        {"ssl.truststore.location": made.pkcs12(made.trust, "ca.p12", has_key=False),
         "ssl.truststore.password": PASSWORD},
        {"ssl.truststore.certificates": made.trust.read_text()},
    ):  # fmt: skip
        server = tls({"ssl.keystore.location": made.server, "ssl.client.auth": "required", **settings})
        name = principal(server, client_of(made, made.client)).name
        assert name.startswith("CN=alice,"), name
        assert name.endswith(",O=Example"), name


def test_clients_certificates(made: Certificates, tmp_path: Path) -> None:
    other = Certificates.make(tmp_path)
    settings = {"ssl.keystore.location": made.server, "ssl.truststore.location": made.trust}
    required = tls({**settings, "ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:CN=(\\w+),.*/$1/U"})
    requested = tls({**settings, "ssl.client.auth": "requested"})
    assert principal(required, client_of(made, made.client)) == user("ALICE")
    assert principal(requested, client_of(made)) == ANONYMOUS
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(required, client_of(made))
    for server in (required, requested):
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            shake_hands(server, client_of(made, other.client))
    assert principal(tls({"ssl.keystore.location": made.server}), client_of(made, made.client)) == ANONYMOUS
    with pytest.raises(NoRule):
        principal(
            tls({**settings, "ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:CN=bob/$1/"}),
            client_of(made, made.client),
        )


@pytest.mark.parametrize("options", [0, ssl.OP_NO_TICKET])
def test_a_session_of_tls_1_2_ends_with_its_certificate(
    made: Certificates, options: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tls({
        "ssl.keystore.location": made.server, "ssl.truststore.location": made.trust, "ssl.client.auth": "required",
    })  # fmt: skip
    client = client_of(made, made.client)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options |= options
    first, there = both_sides(server, client, "localhost")
    assert not first.session_reused
    server.check_resumed(first)
    again, _ = both_sides(server, client, "localhost", there.session)
    assert again.session_reused
    server.check_resumed(again)
    certificate = again.getpeercert()
    assert certificate is not None
    monkeypatch.setattr(time, "time", lambda: ssl.cert_time_to_seconds(str(certificate["notAfter"])) + 1)
    with pytest.raises(BadCertificate, match="the client resumes a session whose certificate expired at 3000-01-01"):
        server.check_resumed(again)
    server.check_resumed(first)  # OpenSSL has checked the certificate of a full handshake


def test_versions_and_suites(made: Certificates) -> None:
    settings = {"ssl.keystore.location": made.server}
    old = client_of(made)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    one = tls({**settings, "ssl.cipher.suites": (*suite, "TLS_AES_128_GCM_SHA256")})
    cipher = shake_hands(one, old).cipher()
    assert cipher is not None
    assert cipher[0] in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        shake_hands(tls({**settings, "ssl.enabled.protocols": ("TLSv1.3",)}), old)
    assert shake_hands(tls({**settings, "ssl.enabled.protocols": ("TLSv1.2",)}), client_of(made)).version() == "TLSv1.2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "listener OUT: TLS needs a certificate: give ssl.keystore.location"),
        ({"ssl.keystore.key": "x"}, "SSL needs a certificate"),
        ({"ssl.keystore.location": "server", "ssl.keystore.key": "x"}, "either ssl.keystore.location or"),
        ({"ssl.keystore.location": "/does/not/exist"}, "cannot read /does/not/exist: No such file"),
        ({"ssl.keystore.location": "jks"}, "store.jks -destkeystore"),
        ({"ssl.keystore.location": "jks"}, "keytool -importkeystore -srckeystore"),
        ({"ssl.keystore.location": "text"}, "is neither PEM nor PKCS#12"),
        (
            {"ssl.keystore.location": "server", "ssl.keystore.type": "PKCS12"},
            "is PEM, not the type that is set, PKCS12",
        ),
        ({"ssl.keystore.location": "p12", "ssl.keystore.type": "PEM"}, "is PKCS#12, not the type that is set, PEM"),
        ({"ssl.keystore.location": "p12"}, "cannot be read as PKCS#12: is ssl.keystore.password its password?"),
        ({"ssl.keystore.location": "p12", "ssl.keystore.password": "Wr0ng"}, "is ssl.keystore.password its password?"),
        ({"ssl.keystore.location": "trust12", "ssl.keystore.password": PASSWORD}, "holds no private key"),
        ({"ssl.keystore.location": "encrypted"}, "ssl.key.password is not its password"),
        ({"ssl.keystore.location": "encrypted", "ssl.key.password": "Wr0ng"}, "ssl.key.password is not its password"),
        ({"ssl.keystore.location": "trust"}, "the certificate and its key cannot be used"),
        ({"ssl.keystore.location": "mixed"}, "/mixed: the certificate and its key cannot be used: the private key is"),
        ({"ssl.keystore.location": "mixed"}, "listener OUT: ssl.keystore.location="),
        ({"ssl.keystore.location": "folder"}, "/folder/tls.key: No such file"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth=required needs the authorities"),
        ({"ssl.client.auth": "requested"}, "ssl.client.auth=requested needs the authorities"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": "text"}, "is neither PEM nor PKCS#12"),
        ({"ssl.client.auth": "required", "ssl.truststore.certificates": "x"}, "the truststore cannot be used"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": "jks"}, "is a JKS file, which only Java reads"),
        ({"ssl.enabled.protocols": ()}, "ssl.enabled.protocols is empty"),
        ({"ssl.cipher.suites": ("TLS_FOO",)}, "OpenSSL has no suite 'FOO'"),
        ({"ssl.principal.mapping.rules": "RULE:"}, "listener OUT: ssl.principal.mapping.rules: 'RULE:' is not"),
    ],
)
def test_what_cannot_be_used_is_named(made: Certificates, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    (tmp_path / "text").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tls.crt").write_text(made.server.read_text())
    key, _, _ = made.server.read_text().partition("-----BEGIN CERTIFICATE-----")
    _, _, chain = made.client.read_text().partition("-----BEGIN CERTIFICATE-----")
    (tmp_path / "mixed").write_text(f"{key}-----BEGIN CERTIFICATE-----{chain}")
    files = {
        "server": made.server, "jks": tmp_path / "store.jks", "text": tmp_path / "text", "mixed": tmp_path / "mixed",
        "p12": made.pkcs12(made.server, "s.p12"), "trust12": made.pkcs12(made.trust, "ca.p12", has_key=False),
        "encrypted": made.encrypted(made.server, "e.pem"), "trust": made.trust, "folder": tmp_path / "folder",
    }  # fmt: skip
    if settings and "ssl.keystore.location" not in settings and "ssl.keystore.key" not in settings:
        settings = {"ssl.keystore.location": "server", **settings}
    named = {key: files.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
    with pytest.raises(ConfigError) as refused:
        tls(named)
    assert said in str(refused.value)
    assert "Wr0ng" not in str(refused.value)


def test_a_changed_file_makes_a_new_context(tmp_path: Path) -> None:
    """Use the old certificate until the files have changed, and when they cannot be used; then the new one."""
    made = Certificates.make(tmp_path)
    server = tls({"ssl.keystore.location": made.server})
    first = server.context
    assert not server.reload()
    made.server.with_name("bad").write_text("x")
    made.server.with_name("bad").replace(made.server)
    assert not server.reload()
    assert not server.reload()
    assert server.context is first
    shake_hands(server, client_of(made))
    made.server.unlink()
    assert not server.reload()
    made.issue_server()
    assert server.reload()
    assert server.context is not first
    assert server.expires_at > time.time()
    shake_hands(server, client_of(made))


def test_a_changed_truststore_counts_for_new_connections(tmp_path: Path) -> None:
    made, other = Certificates.make(tmp_path / "a"), Certificates.make(tmp_path / "b")
    server = tls(
        {"ssl.keystore.location": made.server, "ssl.truststore.location": made.trust, "ssl.client.auth": "required"}
    )
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client_of(made, other.client))
    other.trust.replace(made.trust)
    client = ssl.create_default_context(cadata=made.authority.cert_pem.bytes().decode())
    client.load_cert_chain(other.client)
    assert server.reload()
    shake_hands(server, client)
    client.load_cert_chain(made.client)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client)


def test_no_key_is_written_to_a_disk(made: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert "S3cret" not in repr(tls({"ssl.keystore.location": made.server, "ssl.key.password": "S3cret"}))


def mount(made: Certificates, folder: Path, version: str) -> None:
    """Write a Secret's files as the kubelet does: each a link through `..data`, which is replaced at once."""
    key, mark, chain = made.server.read_text().partition("-----BEGIN CERTIFICATE-----")
    (folder / version).mkdir(parents=True)
    (folder / version / "tls.crt").write_text(mark + chain)
    (folder / version / "tls.key").write_text(key)
    (folder / "..tmp").symlink_to(version)
    (folder / "..tmp").replace(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def test_a_mounted_secret_is_a_keystore_that_is_read_again(tmp_path: Path) -> None:
    made, mounted = Certificates.make(tmp_path), tmp_path / "mounted"
    mount(made, mounted, "..1")
    server = tls({"ssl.keystore.location": mounted})
    first = shown_to(server, client_of(made))
    assert not server.reload()
    made.issue_server()
    mount(made, mounted, "..2")
    assert server.reload()
    assert shown_to(server, client_of(made)) != first
    for version in ("..1", "..2"):
        (mounted / version / "tls.key").unlink()
    assert not server.reload()


def test_an_expired_certificate_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Certificates.make(tmp_path)
    server = tls({"ssl.keystore.location": made.server})
    server.warn_if_expired()
    assert not caplog.records
    over = datetime.now(UTC) - timedelta(days=1)
    made.authority.issue_cert("localhost", not_after=over).private_key_and_cert_chain_pem.write_to_path(made.server)
    assert server.reload()
    assert server.expires_in_s == pytest.approx(-86_400, abs=60)
    for _ in range(2):
        server.warn_if_expired()
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "certificate has expired" in record.getMessage()
