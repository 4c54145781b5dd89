"""Files, modules and classes that the documentation names exist in the repository."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = (
    "bench",
    "broker",
    "cli",
    "console",
    "controller",
    "coordinator",
    "core",
    "demo",
    "endpoint",
    "meta",
    "proxy",
    "server",
    "spark",
    "storage",
    "tests",
)
FOREIGN = frozenset({"broker.rack", "storage.group", "storage.mode", "storage.owner"})
"""Configs whose names look like modules."""
_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"[\w./-]+\.(?:py|proto)")
_MODULE = re.compile(rf"(?:{'|'.join(room for room in ROOMS if room != 'spark')})(?:\.[a-z_]\w*)+")
_CLASS = re.compile(r"[A-Z][a-z]\w*")
_ATTRIBUTE = re.compile(r"([A-Z][a-z]\w*)\.([a-z_][a-z0-9_]*)(?:\(.*\))?")


def pages() -> list[Path]:
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@cache
def sources() -> tuple[str, ...]:
    """Return the path of each source file, from the root on, with a slash before it."""
    return tuple(
        f"/{path.relative_to(ROOT)}"
        for room in ROOMS
        for suffix in ("*.py", "*.proto")
        for path in (ROOT / room).rglob(suffix)
    )


@cache
def texts() -> tuple[str, ...]:
    """Return the texts of all Python files."""
    return tuple((ROOT / name.lstrip("/")).read_text() for name in sources() if name.endswith(".py"))


@cache
def classes() -> frozenset[str]:
    return frozenset(re.findall(r"^ *class (\w+)", "\n".join(texts()), re.MULTILINE))


@cache
def attributes() -> dict[str, frozenset[str]]:
    """Return the names of each class's attributes and methods, inherited ones too; of classes of one name together.

    Only classes that a page names, and their bases, are in the result: two thousand files take long to parse.
    """
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    left = {match[1] for page in pages() for text in quoted(page) if (match := _ATTRIBUTE.fullmatch(text))}
    left |= {"PartitionMachine", "AssignedPartition"}
    while left:
        defines = re.compile(rf"^ *class (?:{'|'.join(sorted(left))})\b", re.MULTILINE)
        for text in texts():
            if defines.search(text) is None:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name in left:
                    found.setdefault(node.name, set()).update(_names_in(node))
                    bases.setdefault(node.name, set()).update(map(ast.unparse, node.bases))
        left = {
            base for each in bases.values() for base in each if re.fullmatch(r"\w+", base)
        } & classes() - bases.keys()
    return {name: frozenset[str]().union(*(found[each] for each in _with_bases(name, bases))) for name in found}


def _with_bases(name: str, bases: dict[str, set[str]]) -> set[str]:
    """Return the class, and those of its bases that are in ``bases`` too."""
    found, left = {name}, [name]
    while left:
        new = {each for each in bases[left.pop()] if each in bases} - found
        found |= new
        left += new
    return found


def _names_in(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield each.name
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()) | ast.Name(ctx=ast.Store()):
                yield each.attr if isinstance(each, ast.Attribute) else each.id


def quoted(page: Path) -> list[str]:
    return [text for text in _CODE.findall(_FENCE.sub("", page.read_text())) if "…" not in text]


def is_file(name: str) -> bool:
    """Say whether a source file ends in this name, as in "machine.py" or "broker/partition/machine.py"."""
    return any(path.endswith(f"/{name}") for path in sources())


def is_module(name: str) -> bool:
    """Say whether this is a module or a package, or a name in a module."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file() or path.parent.with_suffix(".py").is_file()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    texts = quoted(page)
    files = {text for text in texts if _FILE.fullmatch(text) and not is_file(text)}
    modules = {text for text in texts if _MODULE.fullmatch(text) and not is_file(text) and not is_module(text)}
    assert files | modules - FOREIGN == set()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mark"), [("glossary.md", "`"), ("README.md", ".py`")])
def test_classes_that_the_tables_of_the_design_name_exist(name: str, mark: str) -> None:
    text = (ROOT / "docs" / "design" / name).read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and mark in line]
    named = {text for line in rows for text in _CODE.findall(line) if _CLASS.fullmatch(text)}
    assert len(named) > 20
    assert named - classes() == set()


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_attributes_that_a_page_names_exist(page: Path) -> None:
    pairs = {found.groups() for text in quoted(page) if (found := _ATTRIBUTE.fullmatch(text))}
    known = {(owner, name) for owner, name in pairs if owner in attributes()}
    assert {(owner, name) for owner, name in known if name not in attributes()[owner]} == set()


@pytest.mark.slow
def test_what_does_not_exist_is_found() -> None:
    assert "high_watermark" in attributes()["PartitionMachine"]
    assert "place" not in attributes()["AssignedPartition"]
    assert is_file("broker/partition/machine.py")
    assert is_file("machine.py")
    assert not is_file("achine.py")
    assert not is_file("broker/machine.py")
    assert is_module("broker.store_waits")
    assert is_module("bench.hdfs_read")
    assert is_module("broker.store_waits.StoreWaits")
    assert not is_module("broker.places")
    assert not is_module("broker.partition.places")
    assert "PartitionMachine" in classes()
