"""Topics that a real server cleans all the time: segments of a second, and no dirty ratio."""

from __future__ import annotations

import re
import urllib.request

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.services.processes import wait_for

SERVER = {"BMQ_LOG_CLEANER_BACKOFF_MS": "100"}
"""Settings of the server: it looks at each log as often as it can."""
TOPIC = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
}
"""Configs of the topics."""
_ROUNDS = re.compile(r"^bmq_cleaning_rounds_total (\d+)", re.MULTILINE)
_CALL_S = 30.0


def clean_often(bootstrap: str, *topics: str) -> None:
    """Give existing topics the configs ``TOPIC``."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in TOPIC.items()]
    resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in topics]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs(resources).values():
        future.result(_CALL_S)


def rounds(http: str) -> int:
    """Return the rounds of cleaning that the server of this HTTP address has completed since its start."""
    with urllib.request.urlopen(f"{http}/metrics", timeout=_CALL_S) as response:
        (found,) = _ROUNDS.findall(response.read().decode())
    return int(found)


def wait_for_rounds(http: str, count: int, limit_s: float) -> None:
    """Wait until the server has completed ``count`` more rounds of cleaning."""
    goal = rounds(http) + count
    wait_for(lambda: rounds(http) >= goal, f"{goal} rounds of cleaning", timeout_s=limit_s, interval_s=0.5)
