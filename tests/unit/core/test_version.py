"""One version, in one place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bmq.cli.main import main
from bmq.core import extras
from bmq.core.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOPS = (
    "broker",
    "cli",
    "console",
    "controller",
    "coordinator",
    "core",
    "endpoint",
    "meta",
    "proxy",
    "server",
    "spark",
    "storage",
)


def test_the_installed_package_is_of_this_tree() -> None:
    """Else an environment is stale: `make setup` installs it again when pyproject.toml changes."""
    assert PROJECT["version"] == VERSION


def test_the_command_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"bmq {VERSION}\n"


@pytest.mark.slow
def test_nothing_else_asks_for_it() -> None:
    asks = re.compile(r"""version\(["']bmq["']\)""")
    asking = [
        path.relative_to(ROOT)
        for top in TOPS
        for path in (ROOT / top).rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    ]
    assert asking == [Path("core/version.py")]


def test_the_changelog_has_a_section_of_it() -> None:
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - {"dev"}))
def test_how_to_install_an_extra_names_its_packages(extra: str) -> None:
    """Install for the interpreter that misses the packages: BMQ itself is on no index, and may have come as a wheel."""
    wanted = {re.split(r"[<>=]", each)[0] for each in PROJECT["optional-dependencies"][extra]}
    assert {re.split(r"[<>=]", each)[0] for each in extras.packages(extra)} == wanted
    assert extras.how_to_install(extra).partition(" ")[2].startswith("-m pip install ")


def test_an_extra_that_is_none() -> None:
    with pytest.raises(LookupError, match="no extra 'fats'"):
        extras.packages("fats")
