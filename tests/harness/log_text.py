"""Texts of a test's log lines, with their fields."""

from __future__ import annotations

import pytest

from bmq.core.logging.fields import fields_of, in_text


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return each line's text and fields."""
    return [record.getMessage() + in_text(fields_of(record)) for record in caplog.records]
