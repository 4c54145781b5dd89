"""Settings of security that Kafka's brokers have: a part of a process's settings (``core.config.NodeConfig``).

A setting with a scope may be set for one listener, a setting of scope MECHANISM for one SASL mechanism of a listener:
``core.security.listener_settings``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.options import INT_MAX, LISTENER, MECHANISM, ConfigError, option
from bmq.core.security.principal import Principal, has_outer_space, java_trim, parse_principal

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
"""Versions of TLS that may be enabled.  Earlier versions have no safe cipher left (RFC 8996)."""
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
STORE_TYPES = ("", "PEM", "PKCS12", "JKS")
CLIENT_AUTH = ("none", "requested", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Settings of the listeners' TLS and SASL, of authorisation, and of delegation tokens."""

    # Kafka's: authorisation.
    authorizer_class_name: str = option(
        "",
        f"{STANDARD_AUTHORIZER}: clients may do what ACLs allow; when empty everything",
        kafka="authorizer.class.name", choices=("", STANDARD_AUTHORIZER),
    )  # fmt: skip
    super_users: str = option(
        "", "principals that may do everything, separated by semicolons: User:admin;User:CN=ops", kafka="super.users"
    )
    allow_everyone_if_no_acl_found: bool = option(
        False,
        "whether everybody may do everything to a resource that no ACL applies to",
        kafka="allow.everyone.if.no.acl.found",
    )
    # Kafka's: connections.
    max_connection_creation_rate: int = option(
        INT_MAX,
        "new connections a second at most, of this process and, for a listener's own value, of that listener; others"
        " wait",
        kafka="max.connection.creation.rate", scope=LISTENER, least=1,
    )  # fmt: skip
    # Kafka's: TLS.
    ssl_keystore_location: str = option(
        "",
        "file of the certificate with its chain, and of its private key: PEM or PKCS#12; or a folder with tls.crt and"
        " tls.key, as Kubernetes mounts a Secret of the type kubernetes.io/tls",
        kafka="ssl.keystore.location", scope=LISTENER,
    )  # fmt: skip
    ssl_keystore_type: str = option(
        "",
        "PEM or PKCS12; when empty the file shows it (Kafka: JKS, which is refused here)",
        kafka="ssl.keystore.type", scope=LISTENER, choices=STORE_TYPES,
    )  # fmt: skip
    ssl_keystore_password: str = option(
        "", "password of a PKCS#12 keystore", kafka="ssl.keystore.password", scope=LISTENER, is_secret=True
    )
    ssl_key_password: str = option(
        "", "password of an encrypted private key in PEM", kafka="ssl.key.password", scope=LISTENER, is_secret=True
    )
    ssl_keystore_key: str = option(
        "",
        "private key in PEM, in place of a keystore's file",
        kafka="ssl.keystore.key", scope=LISTENER, is_secret=True,
    )  # fmt: skip
    ssl_keystore_certificate_chain: str = option(
        "",
        "certificate and its chain in PEM, in place of a keystore's file",
        kafka="ssl.keystore.certificate.chain", scope=LISTENER, is_secret=True,
    )  # fmt: skip
    ssl_truststore_location: str = option(
        "",
        "file of the authorities that sign clients' certificates: PEM or PKCS#12; when empty the machine's",
        kafka="ssl.truststore.location", scope=LISTENER,
    )  # fmt: skip
    ssl_truststore_type: str = option(
        "",
        "PEM or PKCS12; when empty the file shows it (Kafka: JKS, which is refused here)",
        kafka="ssl.truststore.type", scope=LISTENER, choices=STORE_TYPES,
    )  # fmt: skip
    ssl_truststore_password: str = option(
        "", "password of a PKCS#12 truststore", kafka="ssl.truststore.password", scope=LISTENER, is_secret=True
    )
    ssl_truststore_certificates: str = option(
        "",
        "authorities in PEM, in place of a truststore's file",
        kafka="ssl.truststore.certificates", scope=LISTENER, is_secret=True,
    )  # fmt: skip
    ssl_client_auth: str = option(
        "none",
        "clients' certificates: required, requested (a client without one is User:ANONYMOUS) or none",
        kafka="ssl.client.auth", scope=LISTENER, choices=CLIENT_AUTH,
    )  # fmt: skip
    ssl_enabled_protocols: tuple[str, ...] = option(
        TLS_VERSIONS,
        "versions of TLS: TLSv1.2, TLSv1.3",
        kafka="ssl.enabled.protocols", scope=LISTENER, choices=TLS_VERSIONS,
    )  # fmt: skip
    ssl_cipher_suites: tuple[str, ...] = option(
        (),
        "cipher suites, by their IANA or OpenSSL names; when empty OpenSSL's choice",
        kafka="ssl.cipher.suites", scope=LISTENER,
    )  # fmt: skip
    ssl_principal_mapping_rules: str = option(
        "DEFAULT",
        "how a certificate's name becomes a principal: RULE:pattern/replacement/[LU], DEFAULT (the whole name)",
        kafka="ssl.principal.mapping.rules", scope=LISTENER,
    )  # fmt: skip
    # Kafka's: SASL.
    sasl_enabled_mechanisms: tuple[str, ...] = option(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "SASL mechanisms of SASL listeners (Kafka: GSSAPI, which needs a keytab)",
        kafka="sasl.enabled.mechanisms", scope=LISTENER, choices=SASL_MECHANISMS,
    )  # fmt: skip
    sasl_jaas_config: str = option(
        "", "JAAS login module and options of a mechanism", kafka="sasl.jaas.config", scope=MECHANISM, is_secret=True
    )
    sasl_server_max_receive_size: int = option(
        524_288,
        "largest request before a client has authenticated",
        kafka="sasl.server.max.receive.size", scope=LISTENER, least=1 << 10,
    )  # fmt: skip
    connections_max_reauth_ms: int = option(
        0,
        "longest time until a SASL client must authenticate again; 0: no limit",
        kafka="connections.max.reauth.ms", scope=MECHANISM, least=0,
    )  # fmt: skip
    connection_failed_authentication_delay_ms: int = option(
        100,
        "pause before a connection whose authentication failed is closed",
        kafka="connection.failed.authentication.delay.ms", least=0,
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_url: str = option(
        "",
        "keys of the token issuer: https://host/path, or file:///path",
        kafka="sasl.oauthbearer.jwks.endpoint.url", scope=MECHANISM,
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = option(
        3_600_000,
        "time between two reads of these keys",
        kafka="sasl.oauthbearer.jwks.endpoint.refresh.ms", scope=MECHANISM, least=1,
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = option(
        100,
        "first pause after a read of these keys that failed",
        kafka="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", scope=MECHANISM, least=1,
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = option(
        10_000,
        "longest such pause",
        kafka="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", scope=MECHANISM, least=1,
    )  # fmt: skip
    sasl_oauthbearer_clock_skew_seconds: int = option(
        30,
        "difference of the issuer's clock that is accepted",
        kafka="sasl.oauthbearer.clock.skew.seconds", scope=MECHANISM, least=0,
    )  # fmt: skip
    sasl_oauthbearer_expected_audience: tuple[str, ...] = option(
        (),
        "audiences of which a token must have one; when empty, a token that has one is refused",
        kafka="sasl.oauthbearer.expected.audience", scope=MECHANISM,
    )  # fmt: skip
    sasl_oauthbearer_expected_issuer: str = option(
        "",
        "issuer that a token must have; any when empty",
        kafka="sasl.oauthbearer.expected.issuer", scope=MECHANISM,
    )  # fmt: skip
    sasl_oauthbearer_scope_claim_name: str = option(
        "scope", "claim of a token's scopes", kafka="sasl.oauthbearer.scope.claim.name", scope=MECHANISM
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sub", "claim of a token's user", kafka="sasl.oauthbearer.sub.claim.name", scope=MECHANISM
    )
    sasl_kerberos_service_name: str = option(
        "", "first part of this service's Kerberos principal", kafka="sasl.kerberos.service.name", scope=MECHANISM
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = option(
        ("DEFAULT",),
        "how a Kerberos principal becomes a user's name",
        kafka="sasl.kerberos.principal.to.local.rules", scope=MECHANISM,
    )  # fmt: skip
    # Kafka's: delegation tokens.
    delegation_token_secret_key: str = option(
        "",
        "secret of which all delegation tokens are made, the same in every proxy; without it there are none",
        kafka="delegation.token.secret.key", is_secret=True,
    )  # fmt: skip
    delegation_token_max_lifetime_ms: int = option(
        604_800_000,
        "longest life of a delegation token, with all renewals",
        kafka="delegation.token.max.lifetime.ms", least=1,
    )  # fmt: skip
    delegation_token_expiry_time_ms: int = option(
        86_400_000,
        "life of a delegation token until it must be renewed",
        kafka="delegation.token.expiry.time.ms", least=1,
    )  # fmt: skip
    delegation_token_expiry_check_interval_ms: int = option(
        3_600_000,
        "time between two searches for expired delegation tokens",
        kafka="delegation.token.expiry.check.interval.ms", least=1,
    )  # fmt: skip

    def super_principals(self) -> tuple[Principal, ...]:
        """Return the principals of ``super.users``.  Raises ConfigError if one is not a principal."""
        try:
            found = tuple(parse_principal(name) for each in self.super_users.split(";") if (name := java_trim(each)))
        except ValueError as error:
            raise ConfigError(f"super.users: {error}; principals are separated by semicolons") from None
        for principal in found:
            if has_outer_space(principal.name):
                raise ConfigError(f"super.users: {str(principal)[:200]!r} has white space at an end of its name")
        return found
