"""Packaging: pyproject's list of packages, the folders, and the links that checkers read all name the same things.

A package that is forgotten in pyproject.toml works from the source tree and is missing from the wheel.
"""

from __future__ import annotations

import importlib
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOT_PRODUCT = {"tests", "bench", "demo"}

with (ROOT / "pyproject.toml").open("rb") as _file:
    PROJECT: dict[str, Any] = tomllib.load(_file)
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
PACKAGES: list[str] = SETUPTOOLS["packages"]


def product_folders() -> list[Path]:
    """Top-level folders of the product."""
    marked = {init.parent for init in ROOT.glob("*/__init__.py")}
    return sorted(folder for folder in marked if folder.name not in NOT_PRODUCT and not folder.name.startswith("."))


def folders_with_init() -> set[str]:
    """Each as the package that it is."""
    found = set()
    for top in product_folders():
        for init in top.rglob("__init__.py"):
            found.add(".".join(("bmq", *init.parent.relative_to(ROOT).parts)))
    return found


def test_every_folder_with_an_init_is_a_listed_package() -> None:
    """Compare the listed packages with the folders that have an ``__init__.py``: each is listed once."""
    assert set(PACKAGES) == folders_with_init()
    assert len(PACKAGES) == len(set(PACKAGES))


def test_every_module_is_in_a_package() -> None:
    """A folder of modules that lacks its __init__.py would be in no package at all."""
    lonely = {
        module.parent.relative_to(ROOT)
        for top in product_folders()
        for module in top.rglob("*.py")
        if not (module.parent / "__init__.py").exists()
    }
    assert lonely == set()


def test_every_file_that_is_no_module_is_packed() -> None:
    """The types' marker, messages' sources and stubs, the API's description: by a pattern of package-data.

    setuptools packs stubs by itself.
    """
    data: dict[str, list[str]] = SETUPTOOLS["package-data"]
    for top in product_folders():
        for file in top.rglob("*"):
            if not file.is_file() or file.suffix in (".py", ".pyi") or "__pycache__" in file.parts:
                continue
            folder = next(each for each in file.parents if (each / "__init__.py").exists())
            package = ".".join(("bmq", *folder.relative_to(ROOT).parts))
            patterns = [*data.get("*", ()), *data.get(package, ())]
            name = file.relative_to(folder)
            is_packed = any(
                pattern.count("/") == len(name.parts) - 1 and fnmatch(str(name), pattern) for pattern in patterns
            )
            assert is_packed, file.relative_to(ROOT)


def test_every_package_says_that_it_is_typed() -> None:
    assert [folder.name for folder in product_folders() if not (folder / "py.typed").is_file()] == []


def test_every_top_level_package_has_its_folder() -> None:
    tops = {package for package in PACKAGES if package.count(".") == 1}
    assert SETUPTOOLS["package-dir"] == {package: package.removeprefix("bmq.") for package in sorted(tops)}


def test_the_links_are_complete() -> None:
    """``.links/bmq/<folder>`` leads to the folder, relative, so that a checkout anywhere works; no other link."""
    links = ROOT / ".links" / "bmq"
    assert {link.name for link in links.iterdir()} == {folder.name for folder in product_folders()}
    for folder in product_folders():
        link = links / folder.name
        assert link.is_symlink(), link
        assert link.readlink() == Path("..", "..", folder.name)
        assert link.resolve() == folder


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_can_be_imported(package: str) -> None:
    """Import each package as ``bmq.<folder>``: it comes from the folder that pyproject.toml names."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == ROOT.joinpath(*package.split(".")[1:], "__init__.py")


def test_bmq_itself_is_only_a_namespace() -> None:
    """Check that ``bmq`` has no file, so that it may be spread over folders (PEP 420)."""
    assert importlib.import_module("bmq").__file__ is None


def test_importing_a_folder_by_its_bare_name_is_banned() -> None:
    """Check the ban: with the repository on the path, such an import would load every module a second time."""
    banned = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == {folder.name for folder in product_folders()}


def test_coverage_looks_at_every_folder() -> None:
    """All that runs; a folder that holds only its name may be left out."""
    covered = set(PROJECT["tool"]["coverage"]["run"]["source"])
    with_code = {folder.name for folder in product_folders() if len(list(folder.rglob("*.py"))) > 1}
    assert with_code <= covered
