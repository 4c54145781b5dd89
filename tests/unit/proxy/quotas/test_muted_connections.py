"""Connections that wait for a debt: whose quota's deletion unmutes them."""

from __future__ import annotations

from bmq.meta.security.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, Holder
from bmq.proxy.quotas.holdings import Holding
from bmq.proxy.quotas.muted_connections import MutedConnections
from tests.harness.fakes import FakeClient

ALICE = Holder("alice", "")
PRODUCER = Holding(PRODUCER_BYTE_RATE, ALICE, 1.0, 1.0, 0.0)
CONSUMER = Holding(CONSUMER_BYTE_RATE, ALICE, 1.0, 1.0, 0.0)


def only(kind: str, holder: Holder) -> bool:
    """Return whether a holder still has a quota: that of producers is deleted."""
    return kind == CONSUMER_BYTE_RATE


def test_a_connection_that_waits_longest_for_another_quota_stays_muted() -> None:
    muted = MutedConnections()
    first, second = FakeClient(), FakeClient()
    muted.mute(first, PRODUCER, 10.0, now=0.0)
    muted.mute(first, CONSUMER, 5.0, now=6.0)
    muted.mute(second, PRODUCER, 10.0, now=0.0)
    muted.mute(second, CONSUMER, 3.0, now=6.0)
    muted.look_again(only)
    assert (first.muted, second.muted) == ([10.0, 5.0], [])
    muted.mute(second, CONSUMER, 1.0, now=7.0)
    muted.look_again(only)
    assert second.muted == [1.0]


def test_a_closed_connection_is_forgotten_and_costs_one_subscription() -> None:
    muted = MutedConnections()
    client = FakeClient()
    for now in range(10):
        muted.mute(client, PRODUCER, 1.0, now=float(now))
        muted.look_again(only)
    assert (len(muted), len(client.calls)) == (1, 1)
    client.close()
    assert len(muted) == 0
    muted.mute(client, PRODUCER, 1.0, now=20.0)
    assert (len(muted), client.muted) == (0, [])
