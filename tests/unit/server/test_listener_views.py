"""The cluster as the clients of each listener see it: addresses, membership and the node id."""

from __future__ import annotations

from dataclasses import replace

from bmq.core.config import NodeConfig
from bmq.meta.cluster.member import Address
from bmq.server.listener_views import ListenerViews
from tests.harness.fakes import FakeCatalog, FakeView

CONFIG = NodeConfig(
    node_id=3,
    listeners=("IN://127.0.0.1:0", "OUT://127.0.0.1:1"),
    listener_security_protocol_map=("IN:PLAINTEXT", "OUT:PLAINTEXT"),
)


def views() -> ListenerViews:
    return ListenerViews(CONFIG, FakeView("n"), FakeCatalog())


def test_each_listener_has_its_own_address_and_all_have_one_node_id() -> None:
    of = views()
    of.move({"IN": Address(host="inside", port=1), "OUT": Address(host="outside", port=2)})
    own = {name: view.proxies.own for name, view in of.by_name.items()}
    assert {name: (each.node_id, each.host, each.port) for name, each in own.items()} == {
        "IN": (3, "inside", 1), "OUT": (3, "outside", 2),
    }  # fmt: skip
    assert of.first is of.by_name["IN"]


def test_a_new_node_id_reaches_settings_and_addresses_of_all_listeners() -> None:
    of = views()
    of.move({"IN": Address(host="inside", port=1), "OUT": Address(host="outside", port=2)})
    of.renumber(replace(CONFIG, node_id=7))
    assert of.node_id == 7
    for view in of.by_name.values():
        assert (view.config.node_id, view.proxies.own.node_id) == (7, 7)
    assert of.by_name["OUT"].proxies.own.host == "outside"


def test_clients_are_sent_away_only_if_each_listener_has_another_proxy() -> None:
    of = views()
    of.set_member(False)
    assert not of.sends_away, "no other proxy is known"
