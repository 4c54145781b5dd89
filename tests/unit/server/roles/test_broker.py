"""The settings of upkeep that a process's settings make."""

from __future__ import annotations

import pytest

from bmq.broker.cleanup.config import JanitorConfig
from bmq.core.config import NodeConfig
from bmq.server.roles.broker import _janitor_config


@pytest.mark.parametrize(("backoff_ms", "interval_ms"), [(100, 1_000), (5_000, 5_000), (60_000, 30_000)])
def test_a_short_backoff_of_the_cleaner_shortens_the_rounds_of_upkeep(backoff_ms: int, interval_ms: int) -> None:
    config = _janitor_config(NodeConfig(log_cleaner_backoff_ms=backoff_ms))
    assert (config.clean_ms, config.interval_ms) == (backoff_ms, interval_ms)


def test_the_default_backoff_changes_nothing() -> None:
    assert _janitor_config(NodeConfig()) == JanitorConfig()


def test_the_cleaner_can_be_disabled() -> None:
    assert _janitor_config(NodeConfig(log_cleaner_enable=False)) == JanitorConfig(clean_enabled=False)
