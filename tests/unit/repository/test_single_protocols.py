"""Protocols with a single implementation: a list that only falls.

A protocol that restates the one class behind it says everything twice.  Where imports may go to the class, a parameter
names the class.  A protocol earns its place at a border of layers, between rooms that do not import each other, or with
a second class.

A class implements a protocol if it, or a base of it, defines all names of the protocol.  Types are not compared.  Only
classes count that the protocol's module may import: classes of the same room, or of a lower layer (``pyproject.toml``).
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.voice import ROOT, files
from tests.voice_sentences import ROOMS as PRODUCT

_CIRCLE = "the class's module imports the protocol's"
_PROXIES = "proxies import this module of the room, not the class's"
_CAPABILITY = "an optional part of an adapter, found by isinstance"
SINGLE: Mapping[str, str] = {
    "broker/files/deferred_indexes.py: IndexFiles": _CIRCLE,
    "console/kafka.py: Requests": "a second class in tests has written responses",
    "controller/admin/api.py: Admin": _PROXIES,
    "controller/member_client.py: MemberClient": "a second class in tests has a table of members",
    "coordinator/api.py: LocalCoordinator": _PROXIES,
    "coordinator/api.py: LocalTransactionCoordinator": _PROXIES,
    "core/net/connection_owner.py: ConnectionOwner": _CIRCLE,
    "core/net/connection_owner.py: LoopOwner": _CIRCLE,
    "core/net/strangers.py: Stranger": _CIRCLE,
    "core/net/tls_transport.py: TlsOwner": _CIRCLE,
    "endpoint/authentication/accounts.py: ScramUsers": "a second class in tests has a table of users",
    "meta/catalog.py: Catalog": "a second class in tests, without a store, is of the harness",
    "meta/cluster/view.py: ClusterView": "a second class in tests, without a store, is of the harness",
    "meta/kv_for_clients.py: LooksWhenSending": _CAPABILITY,
    "meta/maintenance.py: Inspected": _CAPABILITY,
    "meta/maintenance.py: Maintained": _CAPABILITY,
    "meta/proxy_addresses.py: Proxies": "a second class in tests, without a cluster, is of the harness",
    "proxy/routing/remote_tail.py: OwnerLink": _CIRCLE,
    "storage/cleaning/plain_runs.py: RunFilter": _CIRCLE,
    "storage/filesystem.py: DeletesJoined": _CAPABILITY,
    "storage/filesystem.py: ReadsInto": _CAPABILITY,
    "storage/hdfs/lengths.py: GrowingFile": _CIRCLE,
    "storage/hdfs/pipeline.py: PipelineWatch": _CIRCLE,
    "storage/memory/storage.py: OpenWriter": _CIRCLE,
}
"""The protocols that are left, each with its reason.  No protocol joins them."""


@dataclass(frozen=True)
class Kind:
    """A class, with the methods and attributes that its own body defines."""

    module: str
    name: str
    bases: frozenset[str]
    names: frozenset[str]

    @property
    def is_protocol(self) -> bool:
        return bool(self.bases & {"Protocol", "typing.Protocol"})

    @property
    def room(self) -> str:
        return self.module.partition("/")[0]


def kinds(module: str, tree: ast.Module) -> Iterator[Kind]:
    """Yield the classes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            yield Kind(module, node.name, frozenset(map(ast.unparse, bases)), frozenset(_names(node)))


def _names(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
        elif isinstance(each, ast.Assign):
            yield from (to.id for to in each.targets if isinstance(to, ast.Name))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            yield inner.attr


def layers() -> dict[str, int]:
    """Return the number of each room's layer, 0 for the highest."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    names = [[room.strip().removeprefix("bmq.") for room in layer.split("|")] for layer in contract["layers"]]
    return {room: number for number, rooms in enumerate(names) for room in rooms}


class Product:
    """Classes, with the layers of their rooms."""

    def __init__(self, classes: Iterator[Kind], layer: Mapping[str, int]) -> None:
        self._classes = [*classes]
        self._layer = layer
        self._named = defaultdict[str, list[Kind]](list)
        for each in self._classes:
            self._named[each.name].append(each)

    def single(self) -> dict[str, str]:
        """Return the only implementation of each protocol that has one, by the protocol's place."""
        found = dict[str, str]()
        for protocol in self._classes:
            wanted = self._names(protocol)
            if not protocol.is_protocol or not wanted - {"__call__"}:
                continue  # the type of a function
            by = [each for each in self._classes if not each.is_protocol and wanted <= self._names(each)]
            if len(by) == 1 and self._may_import(protocol.room, by[0].room):
                found[f"{protocol.module}: {protocol.name}"] = f"{by[0].module}: {by[0].name}"
        return found

    def _may_import(self, room: str, other: str) -> bool:
        return room == other or self._layer[room] < self._layer[other]

    def _bases(self, kind: Kind, seen: frozenset[str] = frozenset()) -> Iterator[Kind]:
        """Yield the class and its bases, found by name."""
        yield kind
        for base in kind.bases - seen - {kind.name}:
            for each in self._named[base.rpartition(".")[2]]:
                yield from self._bases(each, seen | {kind.name})

    def _names(self, kind: Kind) -> set[str]:
        return {name for each in self._bases(kind) for name in each.names}


def product() -> Product:
    found = (
        kind for path in files([*PRODUCT]) for kind in kinds(str(path.relative_to(ROOT)), ast.parse(path.read_text()))
    )
    return Product(found, layers())


@pytest.mark.slow
def test_a_protocol_has_more_than_one_implementation_or_a_reason() -> None:
    assert product().single().keys() == SINGLE.keys()


def test_each_protocol_that_is_left_has_its_reason() -> None:
    assert [place for place, why in SINGLE.items() if not why] == []


def single(*sources: str) -> dict[str, str]:
    """Return what is found in modules of the rooms high, beside, low and so on."""
    rooms = {"high": 0, "beside": 1, "own": 1, "low": 2}
    parts = [source.split(": ", 1) for source in sources]
    found = (kind for room, text in parts for kind in kinds(room, ast.parse(text)))
    return Product(found, rooms).single()


READS = "own: class Reads(Protocol):\n  size: int\n  def read(self): ...\n"
FILE = "class File:\n  def __init__(self):\n    self.size = 1\n  def read(self): ..."


@pytest.mark.parametrize(
    ("sources", "is_found"),
    [
        ([f"own: {FILE}"], True),
        ([f"low: {FILE}"], True),
        ([f"beside: {FILE}"], False),
        ([f"high: {FILE}"], False),
        ([f"low: {FILE}", "high: class Other:\n  size: int\n  def read(self): ..."], False),
        (["low: class File:\n  def read(self): ..."], False),
        (["low: class Base:\n  size = 1\nclass File(Base):\n  async def read(self): ..."], True),
        (["low: class File(Protocol):\n  size: int\n  def read(self): ..."], False),
    ],
)
def test_the_one_class_of_a_protocol_is_found(sources: list[str], is_found: bool) -> None:
    assert bool(single(READS, *sources)) is is_found


def test_the_type_of_a_function_is_no_such_protocol() -> None:
    method = "\n  def __call__(self): ..."
    assert single(f"own: class Call(Protocol):{method}", f"own: class File:{method}") == {}
