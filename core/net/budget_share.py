"""A connection's share of a budget: the bytes that are counted for it, and its turn to read.

A connection has its share of one budget at a time: of the log-ins' (``core.net.login_budget``), later of the clients'
(``core.net.request_budget``).  The share has the bytes as the budget has counted them,
so it can give them back or move them to the other budget.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from bmq.core.net.login_budget import LoginBudget
from bmq.core.net.request_budget import Reader, RequestBudget


class BudgetReader(Reader, Hashable, Protocol):
    """A connection, as either budget sees it."""


R = TypeVar("R", bound=BudgetReader)


class BudgetShare(Generic[R]):
    """The share of a connection.  ``reader`` is the connection, in each call."""

    __slots__ = ("budget", "complete", "held", "is_gated")

    def __init__(self, budget: RequestBudget | LoginBudget[R]) -> None:
        self.budget = budget
        self.held = 0
        """Bytes, as the budget has counted them."""
        self.complete = 0
        """Bytes of complete requests, which are a part of ``held``."""
        self.is_gated = False
        """True while the connection waits for the budget to call ``read_on``."""

    def __repr__(self) -> str:
        return f"<BudgetShare {self.held} complete={self.complete}{' gated' if self.is_gated else ''}>"

    def count(self, reader: R, held: int, complete: int, *, has_completed: bool) -> None:
        """Update the budget to the bytes held now.  The budget may call other connections."""
        more, more_complete = held - self.held, complete - self.complete
        self.held, self.complete = held, complete
        self.budget.change(reader, more, more_complete, has_completed=has_completed)

    def move(self, reader: R, budget: RequestBudget | LoginBudget[R]) -> None:
        """Move the bytes that are counted to another budget."""
        before, held, complete = self.budget, self.held, self.complete
        if before is budget:
            return
        self.budget, self.is_gated = budget, False
        if held:
            before.change(reader, -held, -complete, has_completed=False)
        before.forget(reader)
        if held:
            budget.change(reader, held, complete, has_completed=False)

    def may_read(self, reader: R) -> bool:
        """Return whether the connection may read now.  If not, the budget calls ``read_on`` when its turn comes."""
        self.is_gated = not self.budget.may_read(reader)
        return not self.is_gated

    def forget(self, reader: R) -> None:
        """Give up the turn to read.  The bytes stay counted."""
        self.is_gated = False
        self.budget.forget(reader)
