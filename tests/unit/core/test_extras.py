"""Instructions for installing an optional package: as the installed metadata requires it, for this interpreter."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from bmq.core import extras
from bmq.core.extras import how_to_install, packages

LINES = [
    "uvloop>=0.19",
    'numba>=0.61; extra == "fast"',
    "numpy ; extra=='fast' and python_version < '4'",
    'x; extra == "faster"',
]


def test_packages_of_an_extra_are_those_that_the_metadata_marks_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "requires", lambda name: LINES)
    assert packages("fast") == ["numba>=0.61", "numpy"]
    assert packages("faster") == ["x"]


@pytest.mark.parametrize("lines", [LINES, None])
def test_an_unknown_extra_is_an_error(lines: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "requires", lambda name: lines)
    with pytest.raises(LookupError, match="no extra 'slow'"):
        packages("slow")


def test_without_metadata_the_extra_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", fail)
    assert packages("fast") == ["bmq[fast]"]


@pytest.mark.parametrize(("interpreter", "shown"), [("/opt/py thon/python", "'/opt/py thon/python'"), ("", "python3")])
def test_the_command_can_be_pasted_into_a_shell(interpreter: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    monkeypatch.setattr(extras, "requires", lambda name: LINES)
    assert how_to_install("fast") == f"{shown} -m pip install 'numba>=0.61' numpy"
