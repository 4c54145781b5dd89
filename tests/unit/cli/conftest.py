"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.fake_admin import FakeAdmin, runner


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def bmq(admin: FakeAdmin) -> Callable[..., int]:
    return runner(admin)
