"""The loader of compiled modules (core/machine_code.py): the digest of the parts of a module.

The tests of the folders for machine code are in tests/unit/spark/decoding/test_compiled.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.core import machine_code


def _add(folder: Path) -> None:
    (folder / "third.py").write_text("")


def _change(folder: Path) -> None:
    (folder / "second.py").write_text("TWO = 3\n")


def _move(folder: Path) -> None:
    (folder / "first.py").write_text("")
    (folder / "second.py").write_text("ONE = 1\nTWO = 2\n")


def _remove(folder: Path) -> None:
    (folder / "first.py").unlink()


@pytest.mark.parametrize("change", [_add, _change, _move, _remove])
def test_each_module_of_a_package_counts_in_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    package = f"parts{change.__name__}"  # a name of its own: Python keeps packages that it has imported
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text("ONE = 1\n")
    (folder / "second.py").write_text("TWO = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = machine_code.digest(package)
    assert machine_code.digest(package) == before
    change(folder)
    assert machine_code.digest(package) != before
