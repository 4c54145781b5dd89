"""Fixtures that the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.cli.profile.profiles import KEYS
from tests.unit.cli.fake_admin import FakeAdmin, runner


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture(autouse=True)
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own profiles and addresses out of the tests; return where the profiles of this test are."""
    for name in ("BMQ_PROFILE", *KEYS.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "bmq" / "profiles.toml"


@pytest.fixture
def servers() -> list[str]:
    """Return the list to which each address that `bmq` connects to is added."""
    return []


@pytest.fixture
def bmq(admin: FakeAdmin, servers: list[str]) -> Callable[..., int]:
    return runner(admin, servers)
