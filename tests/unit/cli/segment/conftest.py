"""The fixture of a root that the tests of `bmq segment` share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.segment.roots import Root


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Root:
    return Root(tmp_path, capsys)
