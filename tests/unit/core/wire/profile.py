"""The amount of work of this folder's generated tests: the same few examples each time, many under ``BMQ_SOAK=1``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.harness.seeds import IS_SOAK


def examples(few: int, many: int) -> settings:
    return settings(
        max_examples=many if IS_SOAK else few,
        derandomize=not IS_SOAK,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
