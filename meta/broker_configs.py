"""A node's configs by Kafka's names, their values in force, and those that may be altered while it runs.  Pure.

Shown are all settings of ``core.config.NodeConfig`` and every broker config that is a topic config's default.  The
latter may be altered, for one node or as the cluster's default, and are in force at once; all else is read when a
process starts.  Kafka allows altering some more (max.connections and its like); here they are refused as read-only
rather than accepted without effect.

Departures: an unknown name is refused.  Kafka accepts it, for plug-ins, of which there are none here.  A config that
Kafka has as dynamic and BMQ has not (``KAFKAS_OWN``) is refused, too, with a text that says so: who sets it expects
an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, replace
from typing import Any, get_type_hints

from bmq.core.config import OPTIONS, ConfigError, NodeConfig, is_long, option_name
from bmq.core.net.listener_config import listener_text
from bmq.core.security import listener_settings
from bmq.meta import topic_configs
from bmq.meta.config_values import BrokerLayers, ConfigKey, ConfigSource, ConfigType, Described, Setting, as_text

_TYPES = get_type_hints(NodeConfig)
_ALIASES: Mapping[str, Callable[[NodeConfig], str]] = {
    "node.id": lambda node: str(node.node_id),
    "broker.id": lambda node: str(node.node_id),
    "broker.rack": lambda node: node.zone,
    "listeners": lambda node: ",".join(
        listener_text(each.name, each.host, each.port) for each in node.kafka_listeners()
    ),
    "advertised.listeners": lambda node: ",".join(
        listener_text(each.name, each.public_host, each.advertised_port or each.port) for each in node.kafka_listeners()
    ),
}
"""Configs that Kafka's tools request by another name than BMQ's, computed from the settings."""


def _of_option(option: Field[Any]) -> ConfigKey:
    return _key(option_name(option), option)


def _key(name: str, option: Field[Any]) -> ConfigKey:
    kind, is_secret = _TYPES[option.name], option.metadata["is_secret"]
    default: Any = option.default
    types = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, str: ConfigType.STRING}
    if kind is int:
        config_type = ConfigType.LONG if is_long(option) else ConfigType.INT
    else:
        config_type = ConfigType.PASSWORD if is_secret else types.get(kind, ConfigType.LIST)
    return ConfigKey(
        name=name,
        kind=config_type,
        default=as_text(default),
        doc=option.metadata["doc"],
        is_sensitive=is_secret,
    )


DYNAMIC: Mapping[str, ConfigKey] = {
    key.server: replace(key, name=key.server) for key in topic_configs.TABLE.values() if key.server
}
"""The configs that may be altered: the topics' defaults, checked as a topic's own."""
ACCESS_CONFIGS = frozenset(topic_configs.TABLE[name].server for name in topic_configs.ACCESS_CONFIGS)
"""The defaults of ``topic_configs.ACCESS_CONFIGS``: they open all topics without a value of their own."""

TABLE: Mapping[str, ConfigKey] = {
    **{option_name(option): _of_option(option) for option in OPTIONS},
    **DYNAMIC,
    **{
        name: ConfigKey(name=name, kind=ConfigType.STRING, default="", doc="")
        for name in _ALIASES
        if name not in map(option_name, OPTIONS)
    },
}


KAFKAS_OWN = frozenset(
    {
        "background.threads",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "principal.builder.class",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "transaction.partition.verification.enable",
    }
)
"""Dynamic broker configs of Kafka without a counterpart here: the names of DynamicBrokerConfig that BMQ lacks."""


def check_static(node: NodeConfig) -> None:
    """Check the topics' defaults among a process's settings as a topic's own configs are checked.

    Raises ConfigError, which names the setting, if one is wrong: it would show when the first topic is created, and
    nowhere before.
    """
    for option in OPTIONS:
        key = DYNAMIC.get(option_name(option))
        if key is not None:
            try:
                key.canonical(as_text(getattr(node, option.name)))
            except ValueError as error:
                raise ConfigError(str(error)) from None


def validate(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return dynamic configs in their canonical form.

    Raises ValueError, with the text for Kafka's INVALID_REQUEST (KAFKA-13609).
    """
    kept = {}
    for name, value in overrides.items():
        if name in KAFKAS_OWN:
            raise ValueError(f"Cannot update these configs dynamically: {name} is Kafka's own and has no effect here")
        if name not in TABLE:
            raise ValueError(f"Unknown broker config name: {name}")
        if name not in DYNAMIC:
            raise ValueError(f"Cannot update these configs dynamically: {name} is read when a process starts")
        kept[name] = DYNAMIC[name].canonical(value)
    return kept


def describe(
    node: NodeConfig, cluster_defaults: Mapping[str, str], node_overrides: Mapping[str, str]
) -> list[Described]:
    """Return every config of one node, by name."""
    layers = BrokerLayers(node, cluster_defaults, node_overrides)
    described = []
    for name, key in sorted(TABLE.items()):
        if name in _ALIASES:
            value = _ALIASES[name](node)
            described.append(Described(key, value, ConfigSource.STATIC_BROKER_CONFIG, True, ()))
            continue
        settings = layers.settings(name, key.default)
        described.append(Described(key, settings[0].value, settings[0].source, name not in DYNAMIC, settings))
    return sorted([*described, *_of_listeners(node)], key=lambda each: each.key.name)


def _of_listeners(node: NodeConfig) -> list[Described]:
    """Return the settings of single listeners that were set."""
    names = node.secured_names()
    described = []
    for name, value in node.listener_settings:
        setting = Setting(name, as_text(value), ConfigSource.STATIC_BROKER_CONFIG)
        key = replace(_key(name, listener_settings.option_of(name, names)), default="")
        described.append(Described(key, setting.value, setting.source, True, (setting,)))
    return described


def describe_defaults(cluster_defaults: Mapping[str, str]) -> list[Described]:
    """Return the cluster's dynamic defaults: only those that were set, as Kafka shows them."""
    described = []
    for name, value in sorted(cluster_defaults.items()):
        if name in DYNAMIC:
            settings = BrokerLayers(NodeConfig(), cluster_defaults, {}).settings(name, DYNAMIC[name].default)[:1]
            described.append(
                Described(DYNAMIC[name], value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, False, settings)
            )
    return described


def default_list(name: str, node: NodeConfig, cluster_defaults: Mapping[str, str]) -> str | None:
    """Return the list that APPEND and SUBTRACT start from; None if the config is not a list."""
    key = DYNAMIC.get(name)
    if key is None or key.kind is not ConfigType.LIST:
        return None
    return BrokerLayers(node, cluster_defaults, {}).settings(name, key.default)[0].value
