"""The layers of settings: defaults, then the file, the environment and flags, the last one wins."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bmq.core.config import OPTIONS, ConfigError, NodeConfig, environment_name, option_name, parse_value
from bmq.core.options import in_environment, meant, secret_names
from bmq.core.security import listener_settings
from bmq.core.security.secrets import read_secret

_FIELDS = {each.name: each for each in OPTIONS}
_META_PASSWORD_FILE = "meta_password_file"
"""An older name of ``meta_password.file``; in the environment both have the same."""
_FAR = 0.7
"""Likeness from which a setting is proposed for a variable that is refused anyway."""
_LISTENERS_ENVIRONMENT = in_environment(listener_settings.PREFIX)
_SECURITY_PREFIXES = (
    "audit",
    "hadoop_conf_dir",
    "hdfs_",
    "http_authentication",
    "http_hosts",
    "http_metrics_authentication",
    "http_tls",
    "insecure",
    "internal_s",
    "listener",
    "log_storage_",
    "meta",
    "root",
    "storage_shared_",
)
_SECURITY_ENVIRONMENT = {
    name
    for each in OPTIONS
    if each in listener_settings.SECURITY_OPTIONS or each.name.startswith(_SECURITY_PREFIXES)
    for name in (environment_name(each), *(in_environment(key) for key, _ in secret_names(each)))
}
"""Variables of the settings of security.

Without their values a process may serve clients that it must refuse.  Or it may use a store or storage without TLS,
log-in or encryption: ``meta`` and ``root`` have defaults, and Hadoop's configuration says whether HDFS has Kerberos.
"""
_SECURITY_WORDS = {
    "ACL", "ACLS", "ALLOW", "AUDIT", "AUTH", "AUTHN", "AUTHZ", "CERT", "CERTIFICATE", "CREDENTIAL", "CREDENTIALS",
    "DELEGATION", "ENCRYPT", "ENCRYPTION", "HTTPS", "INSECURE", "JAAS", "KERBEROS", "KEYTAB", "LISTENER", "LISTENERS",
    "MTLS", "OAUTH", "OAUTHBEARER", "PASSWORD", "PASSWORDS", "PRINCIPAL", "PRINCIPALS", "SASL", "SCRAM", "SECRET",
    "SECRETS", "SECURE", "SECURITY", "SSL", "SUPER", "SUPERUSER", "SUPERUSERS", "TLS", "TOKEN", "TOKENS",
}  # fmt: skip
_SECURITY_BEGINNINGS = ("AUTHEN", "AUTHORI", "KEYSTORE", "TRUSTSTORE")
"""Words, and beginnings of words, that mark the name of an unknown variable as one of security."""
_OF_KAFKA = {
    "broker.id": "node_id",
    "broker.rack": "zone",
    "controller.quorum.bootstrap.servers": "meta, the metadata store,",
    "controller.quorum.voters": "meta, the metadata store,",
    "log.dir": "root, where segments are stored,",
    "log.dirs": "root, where segments are stored,",
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "log.roll.hours": "log.roll.ms",
    "metadata.log.dir": "meta, the metadata store,",
    "node.id": "node_id",
    "process.roles": "roles",
    "zookeeper.connect": "meta, the metadata store,",
}
"""The setting to use here in place of a setting of Kafka's brokers, by the latter's name."""
_OF_COMMANDS = {"BMQ_HTTP_PASSWORD", "BMQ_HTTP_PASSWORD_FILE", "BMQ_HTTP_TOKEN", "BMQ_HTTP_TOKEN_FILE"}
"""Variables of ``bmq cluster`` that have a word of ``_SECURITY_WORDS``: ``cli/cluster/http_login.py``."""
_OF_KUBERNETES = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$", re.ASCII
)
"""Variables that Kubernetes sets for each Service, after the Service's name: bmq-auth makes BMQ_AUTH_SERVICE_HOST."""


def load(
    *,
    file: Mapping[str, object] | None = None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    defaults: NodeConfig | None = None,
    file_name: str = "the file",
) -> NodeConfig:
    """Return the settings from all four layers; ``flags`` by field name, None for those not given.

    Raises ConfigError, which names the layer: for a key of ``file`` by ``file_name``.
    """
    values = _from_file(file or {}, file_name)
    values.update(_from_environment(environment))
    for name, flag in flags.items():
        if flag is not None:
            values[name] = parse_value(_FIELDS[name], flag, f"--{name.replace('_', '-')}")
    config = replace(defaults or NodeConfig(), **values)
    names = config.secured_names()
    own = {**dict(config.listener_settings), **_of_listeners(file or {}, names, file_name)}
    own.update(_of_listeners(_by_key(environment, names), names, "the environment"))
    config = replace(config, listener_settings=tuple(sorted(own.items())))
    config.validate()
    return config


def _from_file(file: Mapping[str, object], file_name: str) -> dict[str, Any]:
    """Return the file's settings by field name, but for those of single listeners."""
    values: dict[str, Any] = {}
    by_name = {option_name(option): option for option in OPTIONS}
    secrets = {name: (option, source) for option in OPTIONS for name, source in secret_names(option)}
    secrets[_META_PASSWORD_FILE] = secrets["meta_password.file"]
    for name, value in file.items():
        if name.startswith(listener_settings.PREFIX):
            continue
        where = f"{file_name}: {name}"
        if is_of_security(in_environment(name)):
            _check_filled(where, value, "key")
        if name in secrets:
            option, source = secrets[name]
            parsed: Any = read_secret(source, str(value), where)
        else:
            found = by_name.get(name) or by_name.get(name.replace("-", "_"))
            if found is None:
                hint = meant(name, by_name) or _instead_of(name)
                raise ConfigError(f"{file_name}: unknown setting {name!r}{hint}")
            option, parsed = found, parse_value(found, value, where)
        if option.name in values:
            raise _set_twice(where, option_name(option))
        values[option.name] = parsed
    return values


def _instead_of(name: str) -> str:
    """Return ``; set NAME instead`` for a setting of Kafka's brokers that has another name here."""
    found = _OF_KAFKA.get(name)
    return f"; set {found} instead" if found else ""


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the environment's settings by field name, but for those of single listeners."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        name = environment_name(option)
        if name in environment:
            if is_of_security(name):
                _check_filled(name, environment[name], "variable")
            values[option.name] = parse_value(option, environment[name], name)
        for key, source in secret_names(option):
            other = in_environment(key)
            if other in environment:
                if option.name in values:
                    raise ConfigError(
                        f"{other}: {option_name(option)} is set in another way, too; leave one of them out"
                    )
                values[option.name] = read_secret(source, environment[other], other)
    return values


def is_of_security(name: str) -> bool:
    """Return whether the environment variable ``name`` is a setting of security, of the process or a listener."""
    return name in _SECURITY_ENVIRONMENT or name.startswith(_LISTENERS_ENVIRONMENT)


def _check_filled(name: str, value: object, kind: str) -> None:
    """Raise ConfigError if a setting of security is empty or blank, as an unset ``${X}`` in a template makes it.

    An empty variable would win over the file's value, and open a port that the file closes.  With an empty key of the
    file, a port stays open that the file's author believes closed.  ``kind`` is what the operator can remove.
    """
    if isinstance(value, str) and not value.strip():
        raise ConfigError(f"{name} is set, but empty: give it a value, or remove the {kind}")


def _set_twice(where: str, key: str) -> ConfigError:
    return ConfigError(f"{where}: {key} is set in another way, too; leave one of them out")


def _by_key(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the environment's settings of single listeners by their keys.

    Raises ConfigError if a variable is none of them, or means two.
    """
    wanted = [name for name in sorted(environment) if name.startswith(_LISTENERS_ENVIRONMENT)]
    if not wanted:
        return {}
    keys: dict[str, list[str]] = {}
    for key in listener_settings.legal_keys(names):
        keys.setdefault(in_environment(key), []).append(key)
    found = {}
    for name in wanted:
        of_name = keys.get(name, [])
        if len(of_name) != 1:
            why = f" means {' and '.join(of_name)}; set it in the file" if of_name else meant(name, keys)
            raise ConfigError(f"{'' if of_name else 'unknown setting '}{name}{why}")
        _check_filled(name, environment[name], "variable")
        found[of_name[0]] = environment[name]
    return found


def _of_listeners(values: Mapping[str, object], names: Sequence[str], where: str) -> dict[str, Any]:
    """Return the settings of single listeners among ``values``, by key, those of secrets read from where they are."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(listener_settings.PREFIX):
            _check_filled(f"{where}: {name}", value, "key")
            key, parsed, source = listener_settings.parse(name, value, names, where)
            if key in found:
                raise _set_twice(f"{where}: {name}", key)
            found[key] = read_secret(source, parsed, f"{where}: {name}") if source else parsed
    return found


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of ``environment`` that looks like a misspelt or missing setting.

    A variable looks like a setting if it is similar to a setting, or if it begins with the first two words of a longer
    setting, as BMQ_LOG_CLEANER_THREADS does.  Other variables that begin with BMQ_ are ignored: some commands use
    BMQ_ROOT, and Kubernetes sets BMQ_PORT_9092_TCP.
    Raises ConfigError if the name may mean a setting of security, by likeness or by one of its words: a process must
    not start unprotected because of a mistyped name.
    """
    names = [environment_name(option) for option in OPTIONS]
    names += [in_environment(name) for option in OPTIONS for name, _ in secret_names(option)]
    lines = []
    for name in sorted(environment):
        upper = name.upper()  # a name in other letters sets nothing: its author believes that it does
        is_unknown = upper.startswith("BMQ_") and name not in names and not name.startswith(_LISTENERS_ENVIRONMENT)
        if not is_unknown or upper in _OF_COMMANDS or _OF_KUBERNETES.search(upper):
            continue
        guess = meant(upper, names)
        words = upper.split("_")
        has_word = not _SECURITY_WORDS.isdisjoint(words) or any(word.startswith(_SECURITY_BEGINNINGS) for word in words)
        if has_word or (guess and guess == meant(upper, _SECURITY_ENVIRONMENT)):
            raise ConfigError(f"unknown setting {name}{guess or meant(upper, names, likeness=_FAR)}")
        if guess:
            lines.append(f"unknown setting {name}{guess}")
        elif nearest := difflib.get_close_matches(upper, _family(upper, names), n=1, cutoff=0.0):
            lines.append(f"unknown setting {name}, which has no effect; the nearest setting is {nearest[0]}")
    return lines


def _family(name: str, names: Sequence[str]) -> list[str]:
    """Return the settings' variables of three words or more after BMQ whose first two words are those of ``name``."""
    first = name.split("_")[:3]
    return [each for each in names if len(words := each.split("_")) > 3 and words[:3] == first]
