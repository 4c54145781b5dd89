"""The security that a process's settings put in force, and the settings that close nothing.

Some settings without an effect leave a port open that their author believes closed: TLS between processes without a
certificate, and TLS or log-ins of a listener that has neither.  They end the start.  Other settings, of the whole
process, may be meant for some of its listeners or for later: one line of the log names them.
"""

from __future__ import annotations

from collections.abc import Iterator

from bmq.core.config import HTTP_LISTENER, OPTIONS, ConfigError, NodeConfig, option_name
from bmq.core.net.listener_config import address_text
from bmq.core.security.listener_settings import TABLE, ListenerSecurity, split
from bmq.meta.cluster.member import PROXY
from bmq.meta.open import etcd_security, is_shared

_INTERNAL_TLS = "internal.ssl."
_OF_ALL_TLS = ("ssl.enabled.protocols", "ssl.cipher.suites")
"""Settings that bound the TLS between processes, too."""
_AUTHORIZER_NEEDED = ("super.users", "allow.everyone.if.no.acl.found")
_SASL_KEYS = ("sasl.", "connections.max.reauth.ms")


def check_effect(config: NodeConfig) -> None:
    """Raise ConfigError, which names the settings, if a setting seems to close a port and does not."""
    if not config.has_internal_tls:
        given = [name for name in _given(config) if name.startswith(_INTERNAL_TLS)]
        if given:
            raise ConfigError(
                f"{', '.join(given)}: connections between processes have no TLS without a certificate; give"
                " internal.ssl.keystore.location, or leave the settings out"
            )
    if found := [f"{key} ({why})" for key, why in _of_listeners_without_effect(config)]:
        raise ConfigError(f"these settings of listeners secure nothing: {'; '.join(found)}")


def without_effect(config: NodeConfig) -> list[str]:
    """Return the settings of the process that its other settings leave without an effect, each with the reason.

    Settings of TLS and of log-ins are named for proxies alone.  All processes of a cluster may have one file, and a
    process without the role has no Kafka listener that these settings could close.
    """
    given = _given(config)
    lines = []
    if not config.authorizer_class_name:
        reason = "there is no authorizer: give authorizer.class.name"
        lines += [f"{name}: {reason}" for name in given if name in _AUTHORIZER_NEEDED]
    if PROXY in config.roles:
        lines += _of_ports_without_effect(config, given)
    if not config.audit_log:
        lines += [f"{name}: there is no audit_log" for name in given if name == "audit_lines_per_s"]
    return lines


def in_force(config: NodeConfig) -> str:
    """Return one line with the security in force: of each port, of etcd, the authorizer, the secrets, the audit log.

    Raises ValueError if the store's URL is wrong.
    """
    parts = []
    if PROXY in config.roles:
        security = config.listener_security()
        parts = [
            f"{each.name} {address_text(each.host, each.port)} {_listener_text(security[each.name])}"
            for each in config.kafka_listeners()
        ]
    http = "https" if config.http_tls else "http"
    hosts = f", hosts {','.join(config.http_hosts)}" if config.http_hosts else ""
    parts.append(f"HTTP {config.http} {http}, log-in {','.join(config.http_authentication)}{hosts}")
    if is_shared(config.meta):
        parts.append(f"internal port {config.internal} {_internal_text(config)}")
        etcd = etcd_security(config.meta, user=config.meta_user, password=config.meta_password)
        parts.append(f"etcd {etcd}")
    parts.append(f"authorizer {config.authorizer_class_name.rpartition('.')[2] or 'none'}")
    parts.append(f"delegation tokens {'on' if config.delegation_token_secret_key else 'off'}")
    parts.append(f"audit log {config.audit_log or 'none'}")
    parts.append(f"files of topics {_files_text(config)}")
    if config.root.startswith("hdfs:"):
        parts.append(f"HDFS log-in {_hdfs_text(config)}")
    return "; ".join(parts)


def _mechanisms(security: ListenerSecurity) -> tuple[str, ...]:
    """Return the SASL mechanisms by which clients log in at a listener; none at a listener without log-ins."""
    return tuple(security.get("sasl.enabled.mechanisms")) if security.has_sasl else ()


def _listener_text(security: ListenerSecurity) -> str:
    parts = [security.protocol]
    if security.has_sasl:
        parts.append(f"log-in {','.join(_mechanisms(security))}")
    if security.has_tls:
        parts.append(f"client certificates {security.get('ssl.client.auth')}")
    return ", ".join(parts)


def _internal_text(config: NodeConfig) -> str:
    required = {"TLS": config.internal_ssl_required, "secret": config.internal_secret_required}
    ways = [
        name if required[name] else f"{name} (not required)"
        for name, is_on in (("TLS", config.has_internal_tls), ("secret", bool(config.internal_secret)))
        if is_on
    ]
    return " and ".join(ways) or "open"


def _files_text(config: NodeConfig) -> str:
    """Return the default owner, group and mode of topics' files."""
    given = {"owner": config.log_storage_owner, "group": config.log_storage_group, "mode": config.log_storage_mode}
    return " ".join(f"{name} {value}" for name, value in given.items() if value) or "as storage has them"


def _hdfs_text(config: NodeConfig) -> str:
    if config.hdfs_keytab:
        return f"keytab {config.hdfs_keytab}"
    return "ticket cache" if config.hdfs_principal else "as Hadoop's configuration says, without a keytab"


def _given(config: NodeConfig) -> list[str]:
    """Return the names of the settings that have another value than their default."""
    return [option_name(option) for option in OPTIONS if getattr(config, option.name) != option.default]


def _of_ports_without_effect(config: NodeConfig, given: list[str]) -> Iterator[str]:
    """Yield the settings of TLS and of log-ins among ``given`` that no port uses, each with the reason."""
    kafka, http = list(config.listener_security().values()), config.http_security()
    has_tls = any(each.has_tls for each in (*kafka, http))
    has_logins = any(each.has_sasl for each in kafka) or "none" not in config.http_authentication
    for name in given:
        if name.startswith("ssl.") and not (has_tls or (config.has_internal_tls and name in _OF_ALL_TLS)):
            yield f"{name}: no listener has TLS"
        if name.startswith(_SASL_KEYS) and not has_logins:
            yield f"{name}: no client logs in at any listener"
    for key, _ in config.listener_settings:
        name, own = split(key, config.secured_names())
        mechanism, is_of_mechanism = own.partition(".sasl.")[::2]
        enabled = [each for security in kafka if security.name.lower() == name for each in _mechanisms(security)]
        if is_of_mechanism and enabled and mechanism.upper() not in enabled:
            yield f"{key}: the listener's sasl.enabled.mechanisms are {','.join(enabled)}"


def _of_listeners_without_effect(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yield each setting of a single listener that the listener does not use, with the reason."""
    securities = {name.lower(): security for name, security in config.listener_security().items()}
    securities[HTTP_LISTENER.lower()] = config.http_security()
    for key, _ in config.listener_settings:
        name, own = split(key, securities)
        security, is_http = securities[name], name == HTTP_LISTENER.lower()
        if own.startswith("ssl."):
            if not security.has_tls:
                yield key, "http_tls is false" if is_http else f"the listener's protocol is {security.protocol}"
        elif own in TABLE and not own.startswith(_SASL_KEYS):
            continue  # neither of TLS nor of log-ins
        elif is_http and "none" in config.http_authentication:
            yield key, "http_authentication is none"
        elif not security.has_sasl:
            yield key, f"the listener's protocol is {security.protocol}"
