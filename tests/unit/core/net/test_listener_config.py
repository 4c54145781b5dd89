"""Listeners: Kafka's forms and rules, each refusal with what would be right."""

from __future__ import annotations

import pytest

from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.core.net.listener_config import LISTENERS_MAX, PROTOCOLS, ListenerAddress, ListenerError, check_apart, resolve

TWO = ("INSIDE://0.0.0.0:9092", "OUTSIDE://0.0.0.0:9094")
MAP = ("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT")


def test_listeners_keep_their_order_and_each_has_its_advertised_address() -> None:
    addresses = ("OUTSIDE://kafka.example.org:31000", "INSIDE://[fd00::1]:9092")
    assert resolve(TWO, addresses, MAP) == (
        ListenerAddress("INSIDE", "0.0.0.0", 9092, "fd00::1", 9092),
        ListenerAddress("OUTSIDE", "0.0.0.0", 9094, "kafka.example.org", 31000),
    )


@pytest.mark.parametrize(
    ("listeners", "found"),
    [
        (("PLAINTEXT://h:9092",), [("PLAINTEXT", "h", 9092)]),
        (("plaintext://h:0",), [("PLAINTEXT", "h", 0)]),
        (("SSL://h:9093",), [("SSL", "h", 9093)]),
        (("SASL_SSL://h:9093",), [("SASL_SSL", "h", 9093)]),
        (("SASL_PLAINTEXT://h:9093",), [("SASL_PLAINTEXT", "h", 9093)]),
        (("PLAINTEXT://:9092",), [("PLAINTEXT", "0.0.0.0", 9092)]),
        (("PLAINTEXT://[::]:9092",), [("PLAINTEXT", "::", 9092)]),
        (("INSIDE://h:0", "OUTSIDE://h:0"), [("INSIDE", "h", 0), ("OUTSIDE", "h", 0)]),
        (("INSIDE://10.0.0.1:9092", "OUTSIDE://[::1]:9092"), [("INSIDE", "10.0.0.1", 9092), ("OUTSIDE", "::1", 9092)]),
    ],
)
def test_forms_that_kafka_takes(listeners: tuple[str, ...], found: list[tuple[str, str, int]]) -> None:
    resolved = resolve(listeners, (), (*MAP, *(f"{each}:{each}" for each in PROTOCOLS)))
    assert [(each.name, each.host, each.port) for each in resolved] == found
    assert all(each.public_host == each.host for each in resolved)


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "said"),
    [
        (("h:9092",), (), (), "listeners: 'h:9092' is not NAME://HOST:PORT"),
        (("PLAINTEXT://h",), (), (), "is not NAME://HOST:PORT"),
        (("PLAINTEXT://h:x",), (), (), "is not NAME://HOST:PORT"),
        (("PLAINTEXT://h:65536",), (), (), "is not NAME://HOST:PORT"),
        (("PLAINTEXT://h/x:1",), (), (), "is not NAME://HOST:PORT"),
        (("://h:1",), (), (), "is not NAME://HOST:PORT"),
        (("A B://h:1",), (), (), "is not NAME://HOST:PORT"),
        (("PLAINTEXT://h:1", "plaintext://h:2"), (), (), "each listener must have a different name, and PLAINTEXT"),
        (("INSIDE://a:1", "OUTSIDE://b:1"), (), MAP, "INSIDE and OUTSIDE have the same port 1"),
        (("INSIDE://10.0.0.1:1", "OUTSIDE://10.0.0.2:1"), (), MAP, "have the same port 1"),
        (("INSIDE://h:1",), (), (), "no security protocol is defined for listener INSIDE; add INSIDE:PLAINTEXT"),
        (("PLAINTEXT://h:1",), (), MAP, "no security protocol is defined for listener PLAINTEXT"),
        (("INSIDE://h:1",), (), ("INSIDE:TLS",), "'TLS' of INSIDE is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (("INSIDE://h:1",), (), ("INSIDE",), "'INSIDE' is not NAME:PROTOCOL"),
        (("INSIDE://h:1",), (), ("INSIDE:PLAINTEXT", "inside:PLAINTEXT"), "INSIDE is listed twice"),
        (TWO, ("OTHER://h:1",), MAP, "advertised.listeners: OTHER is not in listeners=INSIDE://0.0.0.0:9092,OUTSIDE"),
        (TWO, ("INSIDE://0.0.0.0:1",), MAP, "clients cannot connect to '0.0.0.0:1' of INSIDE"),
        (TWO, ("INSIDE://[::]:1",), MAP, "clients cannot connect to '[::]:1' of INSIDE"),
        (TWO, ("INSIDE://:1",), MAP, "clients cannot connect to '0.0.0.0:1' of INSIDE"),
        (TWO, ("INSIDE://h:0",), MAP, "clients cannot connect to 'h:0' of INSIDE"),
        (TWO, ("INSIDE://h:1", "INSIDE://h:2"), MAP, "advertised.listeners: each listener must have a different name"),
    ],
)
def test_what_kafka_refuses(
    listeners: tuple[str, ...], advertised: tuple[str, ...], protocols: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ListenerError) as refused:
        resolve(listeners, advertised, protocols)
    assert said in str(refused.value)


def test_advertised_ports_may_be_the_same() -> None:
    """Two names may lead to one port of two load balancers, as in Kafka."""
    assert len(resolve(TWO, ("INSIDE://a:9092", "OUTSIDE://b:9092"), MAP)) == 2


def test_listeners_are_bounded() -> None:
    names = [f"L{number}" for number in range(LISTENERS_MAX + 1)]
    with pytest.raises(ListenerError, match="17 listeners are over 16"):
        resolve([f"{name}://h:{1000 + number}" for number, name in enumerate(names)], (), ())


@pytest.mark.parametrize(("distance", "ports", "is_apart"), [(2, 2, True), (1, 2, False), (5, 5, True), (4, 5, False)])
def test_workers_ports_must_not_meet(distance: int, ports: int, is_apart: bool) -> None:
    listeners = [ListenerAddress("A", "h", 9092 + distance), ListenerAddress("B", "h", 9092)]
    if is_apart:
        check_apart(listeners, ports)
    else:
        with pytest.raises(ListenerError, match=f"9092 and {9092 + distance} are too near"):
            check_apart(listeners, ports)


# ------------------------------------------------------------------------------------------------- a node's settings


def test_listen_is_the_short_form() -> None:
    assert NodeConfig(listen="h:1").kafka_listeners() == (ListenerAddress("PLAINTEXT", "h", 1),)
    short = NodeConfig(listen="h:1", advertise="k:2").kafka_listeners()
    assert short == resolve(("PLAINTEXT://h:1",), ("PLAINTEXT://k:2",), ())


@pytest.mark.parametrize("value", [list(TWO), ",".join(TWO), " , ".join(TWO)])
def test_settings_have_kafkas_names_in_every_layer(value: object) -> None:
    file = {"listeners": value, "listener.security.protocol.map": list(MAP)}
    environment = {"BMQ_ADVERTISED_LISTENERS": "OUTSIDE://k:1"}
    config = load(file=file, environment=environment, flags={})
    assert [(each.name, each.port, each.advertised_host) for each in config.kafka_listeners()] == [
        ("INSIDE", 9092, ""), ("OUTSIDE", 9094, "k"),
    ]  # fmt: skip
    config = load(file=file, environment=environment, flags={"advertised_listeners": "INSIDE://i:7"})
    assert [each.advertised_host for each in config.kafka_listeners()] == ["i", ""]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advertised.listeners": "PLAINTEXT://h:1"}, "there are no listeners; give advertise with listen"),
        ({"listeners": "PLAINTEXT://h:1", "advertise": "k:1"}, "with listeners give advertised.listeners"),
        (
            {"listeners": ",".join(TWO), "listener.security.protocol.map": ",".join(MAP), "workers": 2},
            "9092 and 9094 are too near to each other; put 3 or more between them",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(file=settings, environment={}, flags={})
    assert said in str(refused.value)
