"""The amount of work of this folder's generated tests: the same few examples each time, many under ``BMQ_SOAK=1``."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.seeds import IS_SOAK


def examples(few: int, many: int) -> settings:
    return settings(
        max_examples=many if IS_SOAK else few,
        derandomize=not IS_SOAK,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


def with_random(few: int, many: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that calls a test, with a ``Random`` as its argument ``rng``, once for each example.

    The Randoms of a soak are Hypothesis's, which chooses every number and shrinks an example that fails.  Otherwise
    they are Python's with the seeds from 0 to ``few`` - 1, at a fifth of the cost.  A failure names its seed.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        if IS_SOAK:
            return examples(few, many)(given(rng=st.randoms(use_true_random=False))(test))

        @functools.wraps(test)
        def seeded(*args: Any, **kwargs: Any) -> None:
            for seed in range(few):
                try:
                    test(*args, rng=random.Random(seed), **kwargs)
                except BaseException as error:
                    error.add_note(f"seed {seed} of {few}")
                    raise

        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name != "rng"]
        seeded.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return seeded

    return decorate
