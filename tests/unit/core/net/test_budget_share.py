"""A connection's share of a budget: counting, moving, and its turn to read."""

from __future__ import annotations

from bmq.core.metrics.counters import PortCounters
from bmq.core.net.budget_share import BudgetShare
from bmq.core.net.login_budget import LoginBudget
from bmq.core.net.request_budget import RequestBudget


class FakeReader:
    has_begun = False
    is_let_through = False

    def read_on(self) -> None:
        self.is_let_through = True


class World:
    def __init__(self) -> None:
        metrics = PortCounters()
        self.clients = RequestBudget(800, metrics)
        self.log_ins = LoginBudget[FakeReader](800, metrics, lambda reader: None)
        self.reader = FakeReader()
        self.share = BudgetShare[FakeReader](self.clients)

    def count(self, held: int, complete: int) -> None:
        self.share.count(self.reader, held, complete, has_completed=False)


def test_a_budget_counts_the_change() -> None:
    world = World()
    world.count(100, 40)
    world.count(30, 30)
    assert world.clients.held == world.share.held == world.share.complete == 30
    world.count(0, 0)
    assert world.clients.held == 0


def test_the_bytes_move_to_the_other_budget() -> None:
    world = World()
    world.count(100, 40)
    world.share.move(world.reader, world.log_ins)
    assert (world.clients.held, world.log_ins.held, world.share.held) == (0, 100, 100)
    world.share.move(world.reader, world.log_ins)
    assert world.log_ins.held == 100
    world.count(0, 0)
    assert world.log_ins.held == 0


def test_a_turn_to_read_can_be_given_up() -> None:
    world = World()
    assert world.share.may_read(world.reader)
    world.count(800, 800)
    assert not world.share.may_read(world.reader)
    assert world.share.is_gated
    world.share.forget(world.reader)
    assert not world.share.is_gated
    world.count(0, 0)
    assert not world.reader.is_let_through
