"""The configs of a topic over Kafka's protocol, and whether BMQ serves it."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.admin import ConfigResource, ConfigResourceType

from bmq.cli.admin_client import AdminClient


def configs_of(admin: AdminClient, topic: str, config_filter: str) -> dict[str, str | None]:
    """Return the topic's configs by name: all in force, or those that ``config_filter`` leaves."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    return values_of(admin.describe_configs([resource], config_filter=config_filter)["topic"][topic])


def values_of(configs: Mapping[str, Mapping[str, str | None]]) -> dict[str, str | None]:
    """Return the values of a response's configs, by name in order."""
    return {key: config["value"] for key, config in sorted(configs.items())}


def is_bmq_topic(configs: Mapping[str, str | None]) -> bool:
    """Return whether BMQ serves the topic with all these configs: many commands work on any Kafka cluster.

    BMQ is recognized by a topic config of its own.
    """
    return "flush.mode" in configs
