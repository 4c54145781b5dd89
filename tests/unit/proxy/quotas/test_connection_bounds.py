"""Live connections of a user: counted from the log-in to the close, by user, with the bound of the moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from bmq.core.security.principal import user
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.meta.security.quotas_view import QuotasView
from bmq.proxy.quotas.connection_bounds import ConnectionBounds
from tests.harness.fakes import FakeClient


class SetBounds:
    """Bounds by principal."""

    def __init__(self, **bounds: int) -> None:
        self.of = {f"User:{name}": bound for name, bound in bounds.items()}

    def find_bound(self, kind: str, principal: str) -> int | None:
        assert kind == "max_connections"
        return self.of.get(principal)


def client(name: str) -> FakeClient:
    made = FakeClient()
    made.session = replace(ANONYMOUS_SESSION, principal=user(name))
    return made


def test_a_user_has_as_many_connections_as_the_bound_says() -> None:
    view = SetBounds(alice=2, ANONYMOUS=0)
    bounds = ConnectionBounds(cast(QuotasView, view))
    first, second, third = client("alice"), client("alice"), client("alice")
    assert (bounds.admit(first), bounds.admit(second)) == ("", "")
    assert bounds.admit(third) == "max_connections (2) of User:alice is reached"
    assert bounds.admit(client("bob")) == ""
    assert "max_connections (0) of User:ANONYMOUS" in bounds.admit(FakeClient())
    third.close()
    assert bounds.admit(client("alice")) != "", "a refused one gives nothing back"
    second.close()
    assert bounds.admit(client("alice")) == ""


def test_a_lower_bound_closes_nothing_and_holds_from_then_on() -> None:
    view: Any = SetBounds()
    bounds = ConnectionBounds(cast(QuotasView, view))
    live = [client("alice") for _ in range(3)]
    assert all(bounds.admit(each) == "" for each in live)
    view.of = {"User:alice": 2}
    assert bounds.admit(client("alice")) != ""
    live[0].close()
    assert bounds.admit(client("alice")) != ""
    live[1].close()
    assert bounds.admit(client("alice")) == ""
    for each in live[2:]:
        each.close()
    assert repr(bounds) == "<ConnectionBounds principals=1>"
