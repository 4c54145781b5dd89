"""The tables of the product's state machines, drawn from their code (``core.transitions``)."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from bmq.broker.assignment import assigned_partition
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.partition import transitions
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.controller import failures
from bmq.controller.failures import MemberState
from bmq.coordinator.transaction import machine as transaction_machine
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.transitions import Cell
from bmq.endpoint.authentication import machine as authentication_machine
from bmq.proxy.routing import produce_route
from bmq.proxy.routing.produce_route import RouteState
from bmq.storage import journal_machine, journal_states
from bmq.storage.journal_machine import JournalMachine
from bmq.storage.journal_states import JournalState
from tests.drawn_files import table

Function = Callable[..., object]
_STATE = frozenset({"self.state", "self._state", "machine.state", "machine._state"})
"""Expressions to which a machine's code assigns its state."""


class Machine(NamedTuple):
    """A machine as it is drawn. ``terminal``: states in which every event is late; ``kind``: the class of its data."""

    states: type[Enum]
    terminal: frozenset[Enum]
    table: Mapping[tuple[Any, type[Any]], Function | Cell]
    kind: type

    @property
    def first(self) -> Enum:
        return next(iter(self.states))

    @property
    def living(self) -> list[Enum]:
        return [state for state in self.states if state not in self.terminal]


PARTITION = Machine(PartitionState, frozenset(TERMINAL), transitions.TABLE, PartitionMachine)
ASSIGNED = Machine(
    OpenState, frozenset({OpenState.WITHDRAWN}), assigned_partition.TABLE, assigned_partition.AssignedPartition
)
MEMBER = Machine(MemberState, frozenset(), failures.TABLE, failures.FailureDetector)
JOURNAL = Machine(JournalState, frozenset(journal_states.TERMINAL), journal_machine.TABLE, JournalMachine)
TRANSACTION = Machine(TransactionState, frozenset(), transaction_machine.TABLE, transaction_machine.Transaction)
AUTHENTICATION = Machine(
    authentication_machine.State,
    frozenset({authentication_machine.State.CLOSED}),
    authentication_machine.TABLE,
    authentication_machine.AuthenticationMachine,
)
ROUTE = Machine(RouteState, frozenset(), produce_route.TABLE, produce_route.ProduceRoute)


def states(machine: Machine) -> str:
    return table(["state", "means"], [[state.name, state.value] for state in machine.states])


def pairs(machine: Machine) -> str:
    """Events down, living states across; terminal states ignore everything and share a column."""
    titles = ["event", *(state.name for state in machine.living)]
    if machine.terminal:
        titles.append(" ".join(state.name for state in machine.states if state in machine.terminal))
    rows = []
    for event in dict.fromkeys(event for _, event in machine.table):
        row = [f"**{event.__name__}**", *(_cell(machine.table[state, event]) for state in machine.living)]
        ended = {_cell(machine.table[state, event]) for state in machine.terminal}
        rows.append([*row, " ".join(sorted(ended))] if machine.terminal else row)
    return table(titles, rows)


def _cell(cell: Function | Cell) -> str:
    return cell.name.lower() if isinstance(cell, Cell) else f"`{_name(cell)}`"


def _name(function: Function) -> str:
    return function.__name__.lstrip("_").removeprefix("on_")


def handlers(machine: Machine) -> str:
    """Each function once: when it is called, what it says of itself, where it may lead."""
    used: dict[Function, list[type[Any]]] = {}
    for (_, event), cell in machine.table.items():
        if not isinstance(cell, Cell):
            used.setdefault(cell, []).append(event)
    rows = []
    for function, its_events in used.items():
        events = ", ".join(dict.fromkeys(event.__name__ for event in its_events))
        doc = inspect.getdoc(function) or "-"
        leads = ", ".join(state.name for state in machine.states if state.name in _targets(function, machine.kind))
        rows.append([f"`{_name(function)}`", events, doc.splitlines()[0], leads or "-"])
    return table(["handler", "event", "says", "may lead to"], rows)


def diagram(machine: Machine) -> str:
    """Every change of state that a function can make, with the events that may cause it."""
    causes: dict[tuple[str, str], list[str]] = {}
    for (state, event), cell in machine.table.items():
        if not isinstance(cell, Cell):
            for target in _targets(cell, machine.kind):
                if target != state.name:
                    causes.setdefault((state.name, target), []).append(event.__name__)
    order = [state.name for state in machine.states]
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {machine.first.name}"]
    for (source, target), events in sorted(causes.items(), key=lambda edge: [order.index(name) for name in edge[0]]):
        lines.append(f"    {source} --> {target}: {', '.join(dict.fromkeys(events))}")
    lines += [f"    {state.name} --> [*]" for state in machine.states if state in machine.terminal]
    return "\n".join([*lines, "```", ""])


@functools.cache
def _targets(handler: Function, kind: type) -> frozenset[str]:
    """Return the states that ``handler`` assigns, itself or in functions and methods of the machine that it calls."""
    found: set[str] = set()
    not_read: list[Any] = [handler]
    seen = set[Any]()
    while not_read:
        function = not_read.pop()
        if function in seen or not inspect.isfunction(function):
            continue
        seen.add(function)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if isinstance(node, ast.Assign) and _STATE & set(map(ast.unparse, node.targets)):
                owner, _, name = ast.unparse(node.value).rpartition(".")
                assert owner.endswith("State"), f"{function} sets the state to {ast.unparse(node.value)}: name it there"
                found.add(name)
            elif isinstance(node, ast.Call):
                owner, _, name = ast.unparse(node.func).rpartition(".")
                if owner in ("self", "machine"):
                    not_read.append(getattr(kind, name, None))
                elif not owner:
                    not_read.append(function.__globals__.get(name))
    return frozenset(found)
