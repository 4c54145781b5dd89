"""Names that the product defines and does not use: a list that only falls.

A name is used if product code, ``bench`` or ``demo`` reads it anywhere, whatever its owner, or has it as a word of a
text, as ``getattr`` and registries do.  A word of docs/ counts too: it is public.  Fields of dataclasses, enums and
other classes with a base are left out: records, protocols and libraries fix their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.voice import ROOT, files
from tests.voice_sentences import ROOMS as PRODUCT

USERS = (*PRODUCT, "bench", "demo")
_WORD = re.compile(r"\w+")
_LISTS = ("__slots__", "__all__")

UNUSED = frozenset(
    {
        "broker/assignment/assigned_partition.py: EVENTS",
        "broker/cleanup/former_owners.py: merges_ended",
        "broker/partition/transitions.py: EVENTS",
        "console/access/audit.py: BY_KAFKA",
        "console/access/audit.py: NOT_ADMINISTRATIVE",
        "console/http.py: open_connections",
        "controller/failures.py: EVENTS",
        "coordinator/transaction/machine.py: EVENTS",
        "core/clock.py: LoopClock",
        "core/garbage_collector.py: NEW_MAX",
        "core/wire/fetch.py: replica_epoch",
        "proxy/audit/acts.py: NOT_ADMINISTRATIVE",
        "spark/decoding/framing.py: skipped_bytes",
        "spark/reading/ranged_reader.py: skipped_places",
        "storage/block_cache.py: bad_indexes",
        "storage/block_cache.py: facts_bytes",
        "storage/cleaning/compiled_filter.py: mark_bytes",
        "storage/cleaning/compiled_filter.py: table_bytes",
        "storage/cleaning/kernels.py: sip_hash",
        "storage/cleaning/superseded.py: mark_bytes",
        "storage/journal_writer.py: bytes_written",
        "storage/journal_writer.py: records_written",
        "storage/memory/namespace.py: is_joined",
        "storage/memory/storage.py: lose_power",
        "storage/memory/storage.py: resume_datanode",
        "storage/memory/storage.py: slow_datanode",
        "storage/memory/storage.py: stall_namenode",
        "storage/memory/storage.py: start_datanode",
        "storage/memory/storage.py: stop_datanode",
    }
)
"""Names that only tests use, by module: a test observes by them what nothing else shows.  No name joins them."""


def _uses(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module reads, and the words of its texts, without docstrings and lists of names."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in _LISTS for to in node.targets):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            nodes += [node.target.value, node.value]
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _WORD.findall(node.value)
        nodes += ast.iter_child_nodes(node)


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield a module's functions and constants, and methods and attributes of its classes without bases."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for to in targets for each in ast.walk(to) if isinstance(each, ast.Name))
        elif isinstance(node, ast.ClassDef) and not node.bases:
            yield node.name
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield method.name
                    yield from _attributes(method)


def _attributes(method: ast.AST) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _unused() -> set[str]:
    used = {word for page in (ROOT / "docs").rglob("*.md") for word in _WORD.findall(page.read_text())}
    defined: list[tuple[Path, str]] = []
    for path in files(list(USERS)):
        tree = ast.parse(path.read_text())
        used.update(_uses(tree))
        if path.relative_to(ROOT).parts[0] in PRODUCT:
            defined += ((path.relative_to(ROOT), name) for name in _definitions(tree))
    return {f"{path}: {name}" for path, name in defined if name not in used and not name.startswith("__")}


@pytest.mark.slow
def test_each_name_of_the_product_is_used_by_it() -> None:
    assert _unused() == UNUSED


def test_what_is_a_use_and_what_is_a_definition() -> None:
    tree = ast.parse(
        'LEAST = 1\nclass Box:\n    """Read by text."""\n    __slots__ = ("count",)\n'
        "    def fill(self):\n        self.count += other.size\n        getattr(self, 'drain')\n"
        "class Kind(Enum):\n    RED = 1\n"
    )
    assert [*_definitions(tree)] == ["LEAST", "Box", "fill", "count"]
    assert {*_uses(tree)} == {"self", "other", "size", "getattr", "drain", "Enum"}
