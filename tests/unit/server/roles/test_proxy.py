"""The role of a proxy: the gates of its listeners begin and end with it."""

from __future__ import annotations

import pytest

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.endpoint.authentication.gate import AuthenticationGate
from tests.harness.single_node import memory_node

CONFIG = NodeConfig(
    listeners=("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.1:1"),
    listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:SASL_PLAINTEXT"),
    sasl_enabled_mechanisms=("SCRAM-SHA-256",),
    default_replication_factor=1,
)


async def test_the_gates_of_a_proxy_start_and_close_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    async def start(gate: AuthenticationGate) -> None:
        events.append(f"{gate.settings.listener} started")

    async def close(gate: AuthenticationGate) -> None:
        events.append(f"{gate.settings.listener} closed")

    monkeypatch.setattr(AuthenticationGate, "start", start)
    monkeypatch.setattr(AuthenticationGate, "close", close)
    async with memory_node(CONFIG, LoopClock()) as node:
        assert node.proxy.dispatches["OUTSIDE"] is node.proxy.gates["OUTSIDE"]
        assert node.proxy.gates.keys() == {"OUTSIDE"}
        await node.start()
        assert events == ["OUTSIDE started"]
    assert events == ["OUTSIDE started", "OUTSIDE closed"]
