"""The client process of bench.security: it produces, consumes and connects when it is told, and tells what it used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import client_load
from bench.load_process import LoadProcess, Parent
from bench.security_login import connect_often

PRODUCER = {"batch.size": "65536", "linger.ms": "5"}
"""Settings of librdkafka's producer, as other pages have them."""
CONSUMER = {"fetch.wait.max.ms": "10"}
"""Settings of librdkafka's consumer.  A fetch of partitions that were read to their end waits half a second by default,
and with it the partitions that are not in it yet: a pause of the client, whatever the server."""
TIMEOUT_S = 180.0


def serve(parent: Parent) -> None:
    """Do what comes, one act after another; tell its rate, and the processor seconds of this process meanwhile."""
    parent.tell("ready")
    while True:
        act, arguments = parent.wait()
        before = time.process_time()
        rate = ACTS[act](**arguments)
        parent.tell((rate, time.process_time() - before))


def produce(*, properties: Mapping[str, str], **load: Any) -> float:
    """Return the records a second of librdkafka's producer."""
    return client_load.produce(properties=PRODUCER | dict(properties), **load)


def consume(*, properties: Mapping[str, str], **load: Any) -> float:
    """Return the records a second of librdkafka's consumer."""
    return client_load.consume(properties=CONSUMER | dict(properties), **load)


ACTS: Mapping[str, Callable[..., float]] = {
    "produce": produce, "consume": consume, "connect": connect_often,
}  # fmt: skip


def ask(client: LoadProcess, act: str, **arguments: Any) -> tuple[float, float]:
    """Return the rate of an act in a process that runs ``serve``, and the processor seconds that it took there.

    Raises LoadFailed or TimeoutError.
    """
    client.send((act, arguments))
    rate, cpu_s = client.expect(TIMEOUT_S)
    return float(rate), float(cpu_s)
