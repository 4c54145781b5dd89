"""SIGTERM: one deadline for everything that it waits for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.core.audit.log import NO_AUDIT
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.admission import NO_BOUNDS, NO_RATES
from bmq.server.listeners import CLIENTS_SHARE, Sockets, warn_of_loopback_names
from bmq.server.node import LEAVES_METADATA_S, Node
from bmq.server.ports import Ports
from tests.harness.fakes import FakeCatalog, FakeView
from tests.harness.log_text import lines

LIMIT_S = 8.0
CONFIG = NodeConfig(root="file:///data", roles=("proxy",), shared_listen="127.0.0.1:1", drain_ms=int(LIMIT_S * 1000))


class FakeNode:
    """Takes ``leaves_s`` to hand everything over, if it may."""

    def __init__(self, leaves_s: float, config: NodeConfig = CONFIG) -> None:
        self.config = config
        self.proxy = SimpleNamespace(endpoint=None, dispatches={"PLAINTEXT": None}, audit=NO_AUDIT, gates={})
        self.client_port = PortCounters()
        self.security = SimpleNamespace(connection_rates=NO_RATES, connection_bounds=NO_BOUNDS)
        self.joined = SimpleNamespace(standstill=None)
        self.ports = Ports()
        self.events: list[str] = []
        self._leaves_s = leaves_s

    def is_response_room_wanted(self) -> bool:
        return False

    async def leave(self, deadline: float, close_by: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(min(self._leaves_s, deadline - loop.time()))
        self.events.append("left")

    def drain(self) -> None:
        self.events.append("drained")


class FakeListener:
    """Clients that do not go by themselves."""

    connections: tuple[object, ...] = ()

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    async def drain(self, timeout_s: float) -> None:
        self.timeouts.append(timeout_s)
        await asyncio.sleep(timeout_s)


@pytest.mark.parametrize("leaves_s", [0.0, 1.0, 100.0])
async def test_all_that_is_waited_for_ends_by_one_deadline(leaves_s: float) -> None:
    """However long the hand-over takes; clients always have their share."""

    node = FakeNode(leaves_s)
    sockets = Sockets(cast(Any, node), cast(Any, None))
    listener = sockets._kafka = cast(Any, FakeListener())
    loop = asyncio.get_running_loop()
    began = loop.time()
    await sockets.drain()
    assert loop.time() - began == pytest.approx(LIMIT_S)
    assert node.events == ["left", "drained"]
    assert listener.timeouts == [pytest.approx(max(LIMIT_S - leaves_s, CLIENTS_SHARE * LIMIT_S))]


async def test_who_has_no_clients_hands_over_until_the_deadline() -> None:
    node = FakeNode(0.9 * LIMIT_S, replace(CONFIG, roles=("broker",)))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await Sockets(cast(Any, node), cast(Any, None)).drain()
    assert loop.time() - began == pytest.approx(0.9 * LIMIT_S)


class Leaving:
    """The parts of a ``Node`` that its leaving needs; ``joined`` and ``broker`` note their timeouts in ``given``."""

    config = CONFIG
    catalog = FakeCatalog()

    def __init__(self, slow_s: float) -> None:
        self.view = FakeView("a")
        self.view.join("a", "b")
        self.given: list[float] = []
        self.joined = SimpleNamespace(drain=self._take)
        self.broker = SimpleNamespace(wait_moved=self._take, has_partitions=True)
        self._slow_s = slow_s

    async def _take(self, timeout_s: float, *_: object) -> None:
        self.given.append(timeout_s)
        await asyncio.sleep(min(self._slow_s, timeout_s))


@pytest.mark.parametrize("slow_s", [0.0, 2.0, 100.0])
async def test_leaving_ends_by_its_deadline(slow_s: float) -> None:
    node = Leaving(slow_s)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await Node.leave(cast(Any, node), began + 5.0, began + 6.0)
    assert loop.time() - began == pytest.approx(min(5.0, 2 * slow_s + LEAVES_METADATA_S))
    assert node.given == [pytest.approx(5.0), pytest.approx(max(0.0, 5.0 - slow_s))]


@pytest.mark.parametrize(
    ("listen", "advertise", "name", "is_warned"),
    [
        ("0.0.0.0:9092", "", "localhost", True),
        ("[::]:9092", "", "localhost.localdomain", True),
        ("0.0.0.0:9092", "", "kafka1.example.org", False),
        ("0.0.0.0:9092", "kafka1.example.org:9092", "localhost", False),
        ("127.0.0.1:9092", "", "localhost", False),
    ],
)
def test_a_name_that_nobody_else_can_use_is_warned_of(
    listen: str, advertise: str, name: str, is_warned: bool,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("bmq.server.listeners.own_name", lambda: name)
    config = replace(CONFIG, listen=listen, advertise=advertise)
    warn_of_loopback_names(config, has_clients=True, has_peers=True)
    assert lines(caplog) == (
        [
            "clients get a loopback address, which they can use on this machine only: set advertise to its name and"
            f' port listener="listen={listen}" error="it listens on every address, clients get {name}"'
        ]
        if is_warned
        else []
    )
    caplog.clear()
    warn_of_loopback_names(config, has_clients=False, has_peers=True)
    assert caplog.records == []
