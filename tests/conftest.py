"""For all tests: Hypothesis without deadlines, since no test here is about time; and log lines with their fields."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from bmq.core.log_handler import BoundedHandler
from bmq.core.log_lines import TEXT, LineFormatter

settings.register_profile("bmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bmq")


@pytest.fixture(autouse=True)
def _lines_with_fields(request: pytest.FixtureRequest) -> None:
    """Have ``caplog.text`` show lines as the server writes them."""
    if "caplog" in request.fixturenames:
        caplog = request.getfixturevalue("caplog")
        caplog.handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))


@pytest.fixture
def server_log() -> Iterator[io.StringIO]:
    """Yield what a server would have written to its log if no time passed."""
    out = io.StringIO()
    handler = BoundedHandler(out, TEXT, lambda: 0.0)
    logging.getLogger().addHandler(handler)
    yield out
    logging.getLogger().removeHandler(handler)
