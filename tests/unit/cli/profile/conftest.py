"""The file of profiles, for the tests of `bmq profile`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def file(own_profiles: Path) -> Path:
    return own_profiles
