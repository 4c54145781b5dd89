"""Scopes of endpoints and handlers under test, from a few parts and stand-ins for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import RequestCounters
from bmq.core.net.request import Request
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Rights
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.response_budget import ResponseBudget
from bmq.endpoint.scopes import Caller, Scopes
from bmq.proxy.scopes import ProxyScopes, ProxyServices, ProxyView
from tests.harness.fakes import all_rights


class Absent:
    """A part that the test does without: each use of it fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<absent {self._name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"the test has no {self._name}, whose {name} is used")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked(Caller):
    """A caller that may do everything, also for requests that are stand-ins without a client."""

    def rights(self, request: Request) -> Rights:
        return all_rights()


class Nobody:
    """An authorizer that allows nothing."""

    is_on = True

    def is_allowed(self, *about: Any) -> bool:
        return False

    def is_allowed_on_some(self, *about: Any) -> bool:
        return False


def make_scopes(**parts: Any) -> ProxyScopes:
    """Return scopes with ``parts``, each in the scope that has a field of its name.

    Other fields have their defaults; parts without a default are `Absent`.  Raises TypeError if no scope has a field of
    a part's name.
    """
    config = parts.setdefault("config", NodeConfig())
    parts.setdefault("clock", LoopClock())
    parts.setdefault("metrics", RequestCounters())
    parts.setdefault("responses", ResponseBudget(config.queued_max_request_bytes))
    kinds = (ProxyServices, ProxyView, Caller if "authorizer" in parts else Unchecked)
    process, view, caller = (_fill(kind, parts) for kind in kinds)
    if parts:
        raise TypeError(f"no scope has {', '.join(parts)}")
    return Scopes(process, view, caller)


def change(scopes: ProxyScopes, **parts: Any) -> ProxyScopes:
    """Return scopes with ``parts`` in place of the same fields; all other objects are shared."""

    def changed(scope: Any) -> Any:
        return replace(scope, **{each.name: parts.pop(each.name) for each in fields(scope) if each.name in parts})

    caller: Any = scopes.caller
    if "authorizer" in parts:
        caller = Caller(**{each.name: getattr(caller, each.name) for each in fields(Caller)})
    made = Scopes(changed(scopes.process), changed(scopes.view), changed(caller))
    if parts:
        raise TypeError(f"no scope has {', '.join(parts)}")
    return made


def make_endpoint(scopes: ProxyScopes, apis: Sequence[Api[Any]]) -> Endpoint:
    """Return the dispatch of ``apis`` with the scopes."""
    return Endpoint(scopes.process, scopes.view, scopes.caller, apis)


def serve(scopes: ProxyScopes, api: Api[Any], request: Request) -> Any:
    """Serve a request past its header by its plan.  Return the handler's result, or an awaitable of it."""
    return make_endpoint(scopes, [api])._call(api, request)


def _fill(kind: type[Any], parts: dict[str, Any]) -> Any:
    """Return an instance of a scope with its parts, which are removed from ``parts``."""
    values = {}
    for each in fields(kind):
        if each.name in parts:
            values[each.name] = parts.pop(each.name)
        elif each.default is MISSING and each.default_factory is MISSING:
            values[each.name] = Absent(each.name)
    return kind(**values)
