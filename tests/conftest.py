"""Settings of all tests: Hypothesis without deadlines, as no test here is about time; log lines with their fields; a
garbage collector that does not go through ten thousand collected tests again and again."""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from bmq.core.logging.handler import BoundedHandler
from bmq.core.logging.lines import TEXT, LineFormatter
from tests.harness.seeds import example_count

pytest_plugins = ["tests.harness.plugin", "tests.harness.spark_features"]

settings.register_profile(
    "bmq",
    deadline=None,
    max_examples=example_count(50, 1_000),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bmq")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without the garbage collector, which takes a third of that time, then set aside what is there.

    Half a million objects are: modules and tests, which live as long as the run, and 0.3 s of each full collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return pytest's fixture, whose ``text`` has lines as the server writes them."""
    caplog.handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    return caplog


@pytest.fixture
def server_log() -> Iterator[io.StringIO]:
    """Yield what a server would have written to its log if no time passed."""
    out = io.StringIO()
    handler = BoundedHandler(out, TEXT, lambda: 0.0)
    logging.getLogger().addHandler(handler)
    yield out
    logging.getLogger().removeHandler(handler)
