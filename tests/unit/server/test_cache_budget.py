"""The budget of the caches: by memory unless it is set, and shown as the default that it is."""

from __future__ import annotations

import pytest

from bmq.cli.parsers.serve import DEFAULTS
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.meta.broker_configs import describe
from bmq.meta.config_values import ConfigSource
from bmq.server.cache_budget import fit_cache
from bmq.server.workers import worker_environment

MB, GB = 1 << 20, 1 << 30


def loaded(**file: object) -> NodeConfig:
    return load(file=file, environment={}, flags={}, defaults=DEFAULTS)


@pytest.mark.parametrize(
    ("file", "memory", "budget", "why"),
    [
        ({}, 16 * GB, 2 * GB, f"cache_bytes={2 * GB}, by {16 * GB} bytes of memory"),
        ({}, 0, 512 * MB, f"cache_bytes={512 * MB}, by an unknown size of memory"),
        ({"cache_bytes": 0}, 16 * GB, 2 * GB, f"cache_bytes={2 * GB}, by {16 * GB} bytes of memory"),
        ({"workers": 4}, 16 * GB, 512 * MB, f"cache_bytes={512 * MB}, by {16 * GB} bytes of memory, for each of 4"),
        ({"cache_bytes": 16 * MB}, 16 * GB, 16 * MB, f"cache_bytes={16 * MB}, as set"),
        ({"cache_bytes": 8 * GB, "workers": 4}, 16 * GB, 8 * GB, f"cache_bytes={8 * GB}, as set"),
    ],
)
def test_the_budget_follows_the_memory_unless_it_is_set(
    file: dict[str, object], memory: int, budget: int, why: str
) -> None:
    config, text = fit_cache(loaded(**file), memory)
    assert config.cache_bytes == budget
    assert text.startswith(why)


def test_clients_see_the_value_in_force_and_whether_it_was_set() -> None:
    def shown(config: NodeConfig) -> tuple[str, ConfigSource]:
        (found,) = [each for each in describe(config, {}, {}) if each.key.name == "cache_bytes"]
        return found.value, found.source

    assert shown(fit_cache(loaded(), 16 * GB)[0]) == (str(2 * GB), ConfigSource.DEFAULT_CONFIG)
    assert shown(fit_cache(loaded(cache_bytes=2 * GB), 1)[0]) == (str(2 * GB), ConfigSource.STATIC_BROKER_CONFIG)


def test_a_worker_gets_its_part() -> None:
    config, _ = fit_cache(loaded(workers=2, meta="etcd://e:1", root="hdfs://n:1/b"), 8 * GB)
    worker = load(environment=worker_environment({}, config, 1), flags={}, defaults=DEFAULTS)
    assert worker.cache_bytes == 512 * MB
    assert fit_cache(worker, 8 * GB)[0] == worker


@pytest.mark.parametrize("given", [-1, 1, 16 * MB - 1])
def test_a_budget_that_is_too_small_is_refused(given: int) -> None:
    with pytest.raises(ConfigError, match=r"cache_bytes=.* is under"):
        loaded(cache_bytes=given)
