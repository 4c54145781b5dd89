"""The planner's input: how many proxies do not reach a broker."""

from __future__ import annotations

from bmq.controller.planning.planner_view import count_unreachable


def test_only_live_proxies_that_reach_some_broker_are_counted() -> None:
    reports = {"p1": {"a"}, "p2": {"a", "gone"}, "cut off": {"a", "b"}, "dead": {"b"}}
    assert count_unreachable(reports, {"p1", "p2", "cut off"}, {"a", "b"}) == {"a": 2}


def test_a_proxy_that_does_not_reach_the_only_broker_is_counted() -> None:
    assert count_unreachable({"p": {"a"}}, {"p"}, {"a"}) == {"a": 1}
