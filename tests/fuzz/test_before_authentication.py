"""Clients that never authenticate, at the ports of a real `bmq serve`: what they can cost, and that nobody else pays.

Shown: memory, descriptors and log lines are bounded by the figures of docs/security.md; a client that has logged in
produces and consumes all the while without a failed request.  ``BMQ_FUZZ_SEED`` gives other bytes, ``BMQ_SOAK`` more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bmq.core.logging.limit import BURST, REPEAT_S
from bmq.core.wire import messages as m
from bmq.core.wire.header import is_flexible
from tests.harness.certificates import Certificates
from tests.harness.seeds import IS_SOAK
from tests.harness.wire_client import scram
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import free_ports, wait_for
from tests.unit.core.wire.mutations import mutate, sample_frames

pytestmark = pytest.mark.loops("asyncio")
SEED = int(os.environ.get("BMQ_FUZZ_SEED", "1"))
CONNECTIONS = 100_000 if IS_SOAK else 600
AT_ONCE = 60
KB, MB = 1 << 10, 1 << 20
RECEIVE_MAX = 512 * KB
"""sasl.server.max.receive.size."""
FRAME_MAX = 8 * MB
"""socket.request.max.bytes of this server."""
REQUESTS_MAX = 32 * MB
"""queued.max.request.bytes of this server."""
LOGINS_MAX = REQUESTS_MAX // 2
"""Bytes of requests of all connections that have yet to log in."""
GIVEN_UP_S = 3.0 if IS_SOAK else 1.0
"""A connection of the fuzzer is given up after this time: its server may wait for more."""
USER = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=secret;"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
Attack = Callable[["Fuzzer"], bytes]


class Place:
    """One server with a port of every kind."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self.made = Certificates.make(folder / "certificates")
        names = ("sasl", "sasl_ssl", "ssl")
        self.ports = dict(zip(names, free_ports(3), strict=True))
        listeners = ",".join(f"{name.upper()}://127.0.0.1:{port}" for name, port in self.ports.items())
        self.server = BmqServer(
            (folder / "root").as_uri(),
            etcd.url,
            folder=folder,
            environment={
                "BMQ_LISTENERS": listeners,
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "SASL:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
                "BMQ_SASL_ENABLED_MECHANISMS": ",".join(MECHANISMS),
                "BMQ_LISTENER_NAME_SASL_PLAIN_SASL_JAAS_CONFIG": USER,
                "BMQ_LISTENER_NAME_SASL_SSL_PLAIN_SASL_JAAS_CONFIG": USER,
                "BMQ_LISTENER_NAME_HTTP_SASL_ENABLED_MECHANISMS": "PLAIN",
                "BMQ_LISTENER_NAME_HTTP_PLAIN_SASL_JAAS_CONFIG": USER,
                "BMQ_HTTP_AUTHENTICATION": "basic",
                "BMQ_SSL_KEYSTORE_LOCATION": str(self.made.server),
                "BMQ_SSL_TRUSTSTORE_LOCATION": str(self.made.trust),
                "BMQ_LISTENER_NAME_SSL_SSL_CLIENT_AUTH": "required",
                "BMQ_INTERNAL_SECRET": "of-the-fuzzed-cluster",
                "BMQ_SOCKET_REQUEST_MAX_BYTES": str(FRAME_MAX),
                "BMQ_QUEUED_MAX_REQUEST_BYTES": str(REQUESTS_MAX),
                "BMQ_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "100",
                "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
            },
        )
        self.ports |= {"internal": self.server.internal_port, "http": self.server.http_port}

    @property
    def descriptors(self) -> int:
        return psutil.Process(self.server.process.pid).num_fds()

    def client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports['sasl']}", "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret",
        }  # fmt: skip


def create_topic(place: Place) -> None:
    """Create the good client's topic: a consumer that subscribes before its first record would note an error."""
    admin = AdminClient(place.client())
    (created,) = admin.create_topics([NewTopic("good", 1)]).values()
    created.result(30)


class GoodClient:
    """A client that has logged in: produces and consumes in a thread of its own, and notes every error."""

    def __init__(self, place: Place) -> None:
        self.errors: list[str] = []
        self.acknowledged = 0
        self.read: Counter[bytes] = Counter()
        self._is_over = threading.Event()
        self._settings = {**place.client(), "error_cb": lambda error: self.errors.append(str(error))}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> GoodClient:
        self._thread.start()
        wait_for(lambda: self.read.total() > 5, "the good client at work", timeout_s=30)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({**self._settings, "linger.ms": 0, "retries": 0, "enable.idempotence": False})
        consumer = Consumer({**self._settings, "group.id": "good", "auto.offset.reset": "earliest"})
        consumer.subscribe(["good"])

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.errors.append(f"produce: {error}")

        sent = 0
        while not self._is_over.is_set():
            producer.produce("good", b"%d" % sent, on_delivery=delivered)
            sent += 1
            producer.poll(0.01)
            self._take(consumer, 0.01)
        producer.flush(30)
        deadline = time.monotonic() + 30
        while self.read.total() < self.acknowledged and time.monotonic() < deadline:
            self._take(consumer, 0.1)
        consumer.close()

    def _take(self, consumer: Consumer, wait_s: float) -> None:
        for message in consumer.consume(100, wait_s):
            if message.error():
                self.errors.append(f"consume: {message.error()}")
            else:
                self.read[message.value() or b""] += 1

    def check(self) -> None:
        assert self.errors == []
        assert self.acknowledged > 10
        assert self.read == {b"%d" % number: 1 for number in range(self.acknowledged)}


class Log:
    """The lines that the server has written since a moment, by their event."""

    def __init__(self, place: Place) -> None:
        self._path = place.server.log
        self._from = self._path.stat().st_size
        self._since = time.monotonic()

    def events(self) -> Counter[str]:
        with self._path.open("rb") as log:
            log.seek(self._from)
            lines = log.read().decode(errors="replace").splitlines()
        found = [re.match(r"\S+ \S+ ([A-Z]+) (bmq\.\S+): (.*?)(?: \w+=|$)", line) for line in lines]
        assert all(found), [line for line, match in zip(lines, found, strict=True) if not match][:3]
        return Counter(" ".join(match.groups()) for match in found if match)

    def check(self) -> None:
        """Check that each event has the lines that docs/logging.md allows, and that none is an error."""
        most = BURST + time.monotonic() - self._since + REPEAT_S / 2
        for event, count in self.events().items():
            assert not event.startswith(("ERROR", "CRITICAL")), event
            assert count <= most, f"{count} lines: {event}"


class Memory:
    """The most that the server's memory has grown by, sampled in a thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before = place.server.rss_bytes
        self.grown = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(0.05):
            self.grown = max(self.grown, self._place.server.rss_bytes - self._before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with EtcdCluster() as etcd:
        made = Place(tmp_path_factory.mktemp("fuzz"), etcd)
        with made.server:
            create_topic(made)
            with GoodClient(made) as warm:
                pass
            warm.check()
            yield made
        assert "Traceback" not in made.server.log.read_text()


# ------------------------------------------------------------------------------------------------------------- bytes


def request(key: int, version: int, body: bytes) -> bytes:
    """Return a request with its size."""
    frame = struct.pack(">hhihs", key, version, 1, 1, b"f") + (b"\0" if is_flexible(key, version) else b"") + body
    return struct.pack(">i", len(frame)) + frame


def message(version: int, asked: Any) -> bytes:
    return request(asked.API_KEY, version, bytes(asked.encode(version=version)))


class Fuzzer:
    """The bytes that connections send, by a seed."""

    def __init__(self, place: Place, seed: object) -> None:
        self.rng = random.Random(repr(seed))
        self.samples = sample_frames(SEED, each=1)
        context = ssl.create_default_context()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        self.hello = outgoing.read()

    def noise(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((1, 3, 4, 8, 100, 5_000)))

    def frames(self) -> bytes:
        found = [bytes(mutate(self.rng, self.samples)) for _ in range(self.rng.choice((1, 1, 3, 20)))]
        return b"".join(struct.pack(">i", len(each)) + each for each in found)

    def oversize(self) -> bytes:
        size = self.rng.choice((-1, -(2**31), 0, RECEIVE_MAX, RECEIVE_MAX + 1, 8 * MB + 1, 2**31 - 1, 0x16030100))
        return struct.pack(">i", size) + self.rng.randbytes(self.rng.choice((0, 10, 70_000, 600_000)))

    def tls(self) -> bytes:
        hello = bytearray(self.hello)
        for _ in range(self.rng.choice((0, 1, 1, 5))):
            hello[self.rng.randrange(len(hello))] = self.rng.getrandbits(8)
        cut = self.rng.choice((len(hello), len(hello), self.rng.randrange(1, len(hello))))
        record = b"\x16\x03\x01" + struct.pack(">H", 16_384) + b"\x01\xff\xff\xff"  # a message that does not end
        return bytes(hello[:cut]) + self.rng.choice((b"", b"", self.noise(), record + self.rng.randbytes(300_000)))

    def sasl(self) -> bytes:
        rng = self.rng
        mechanism = rng.choice((*MECHANISMS, "OAUTHBEARER", "x" * 300))
        version = rng.choice((0, 1))
        begin = message(rng.choice((0, 3)), m.ApiVersionsRequest(version=0)) if rng.random() < 0.5 else b""
        begin += message(version, m.SaslHandshakeRequest(mechanism=mechanism))
        tokens = []
        for _ in range(rng.choice((1, 1, 2, 30))):
            token = next(scram(256, "alice", "wrong")[1]()) if "SCRAM" in mechanism else b"\0alice\0wrong"
            spoilt = bytearray(token)
            if rng.random() < 0.5:
                spoilt[rng.randrange(len(spoilt))] = rng.getrandbits(8)
            tokens.append(rng.choice((token, bytes(spoilt), rng.randbytes(200), rng.randbytes(100_000), b"")))
        for token in tokens:
            begin += (
                message(2, m.SaslAuthenticateRequest(auth_bytes=token))
                if version
                else struct.pack(">i", len(token)) + token
            )
        return begin

    def http(self) -> bytes:
        head = self.rng.choice(
            (b"GET / HTTP/1.1", b"POST /api/v1/login HTTP/1.1", b"GET /api/v1/topics HTTP/1.1", b"X")
        )
        field = self.rng.choice((
            b"Authorization: Basic " + self.noise().hex().encode(), b"A: " + b"a" * 40_000, b"Content-Length: 99999999",
            b"Transfer-Encoding: chunked", b"",
        ))  # fmt: skip
        return head + b"\r\nHost: localhost\r\n" + field + self.rng.choice((b"\r\n\r\n", b"\r\n", b"")) + self.noise()


# ------------------------------------------------------------------ who holds back: first, while no memory is free

HELD = 180
"""Connections of each kind: the HTTP port has 200 at most."""


def half_a_hello(fuzzer: Fuzzer) -> bytes:
    return b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(1_000)


def nothing(fuzzer: Fuzzer) -> bytes:
    return b""


def half_an_exchange(fuzzer: Fuzzer) -> bytes:
    token = next(scram(256, "alice", "wrong")[1]())
    return message(1, m.SaslHandshakeRequest(mechanism="SCRAM-SHA-256")) + message(
        2, m.SaslAuthenticateRequest(auth_bytes=token)
    )


def small_part(fuzzer: Fuzzer) -> bytes:
    return struct.pack(">i", 60_000) + bytes(50_000)


def part_of_a_hello(fuzzer: Fuzzer) -> bytes:
    return struct.pack(">i", 16_000) + bytes(15_000)


def part_of_a_head(fuzzer: Fuzzer) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"A%d: %s\r\n" % (n, bytes(b"a" * 7_000)) for n in range(4)
    )


@pytest.mark.parametrize(
    ("port", "sent", "most"),
    [
        ("sasl", nothing, 10 * KB), ("sasl", half_an_exchange, 16 * KB), ("sasl", small_part, 80 * KB),
        ("ssl", nothing, 80 * KB), ("ssl", half_a_hello, 80 * KB), ("sasl_ssl", half_a_hello, 80 * KB),
        ("internal", part_of_a_hello, 32 * KB), ("http", part_of_a_head, 64 * KB),
    ],
)  # fmt: skip
def test_a_connection_that_holds_back_costs_what_the_documentation_says(
    place: Place, port: str, sent: Attack, most: int
) -> None:
    data = sent(Fuzzer(place, SEED))
    held: list[tuple[socket.socket, bytes]] = []
    before, memory = place.descriptors, place.server.rss_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(HELD):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", place.ports[port])))
            sock.setblocking(False)
            sent_bytes = sock.send(data) if data else 0
            held.append((sock, data[sent_bytes:]))
        wait_for(lambda: place.descriptors >= before + HELD, "all are accepted", timeout_s=20)
        assert place.descriptors <= before + HELD + 5, "one descriptor each"
        grown = 0
        for _ in range(20 if IS_SOAK else 8):  # what was sent is read meanwhile
            for at, (sock, left) in enumerate(held):
                with contextlib.suppress(OSError):  # BlockingIOError: it does not read; else it has closed
                    held[at] = sock, left[sock.send(left) :] if left else left
            grown = max(grown, place.server.rss_bytes - memory)
            time.sleep(0.05)
        assert grown < HELD * most, f"{grown / HELD / KB:.1f} KB each"
    wait_for(lambda: place.descriptors <= before, "descriptors are given back", timeout_s=20)


ATTACKS: tuple[Attack, ...] = (Fuzzer.noise, Fuzzer.frames, Fuzzer.oversize, Fuzzer.tls, Fuzzer.sasl, Fuzzer.http)


async def attack(place: Place, fuzzer: Fuzzer, number: int) -> None:
    """Open a connection, send what the seed says in pieces, and leave: at once, or when the server does."""
    rng = fuzzer.rng
    data = rng.choice(ATTACKS)(fuzzer)
    port = rng.choice(list(place.ports.values()))
    context = None
    if port == place.ports["sasl_ssl"] and rng.random() < 0.7:  # behind a handshake
        context = ssl.create_default_context(cafile=str(place.made.trust))
    piece = rng.choice((len(data) or 1, len(data) or 1, 1_000, max(1, len(data) // 20)))
    is_rude = rng.random() < 0.5
    try:
        async with asyncio.timeout(GIVEN_UP_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
            )
            try:
                for at in range(0, len(data), piece):
                    writer.write(data[at : at + piece])
                    await writer.drain()
                if not is_rude:
                    while await reader.read(64 * KB):
                        pass
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, ssl.SSLError):
        return  # the server has closed it, or waits for more


async def test_bytes_of_every_kind_cost_little_and_harm_nobody(place: Place) -> None:
    fuzzer = Fuzzer(place, SEED)
    numbers = iter(range(CONNECTIONS))
    before = place.descriptors

    async def attacker() -> None:
        for number in numbers:
            await attack(place, fuzzer, number)

    log = Log(place)
    with GoodClient(place) as good, Memory(place) as memory:
        busy = place.descriptors
        await asyncio.gather(*(attacker() for _ in range(AT_ONCE)))
        await asyncio.to_thread(wait_for, lambda: place.descriptors <= busy, "descriptors are given back", timeout_s=20)
    good.check()
    log.check()
    wait_for(lambda: place.descriptors <= before, "descriptors are given back", timeout_s=20)
    assert memory.grown < REQUESTS_MAX * 5 // 4 + AT_ONCE * 200 * KB + 20 * MB, f"seed {SEED}: {memory.grown >> 20} MB"


def test_large_parts_of_requests_are_bounded_together_and_keep_nobody_out(place: Place) -> None:
    """Open connections whose parts of a request, half a megabyte each, are twelve times the memory for requests."""
    count = 12 * REQUESTS_MAX // RECEIVE_MAX
    part = struct.pack(">i", RECEIVE_MAX) + bytes(RECEIVE_MAX - 100)
    log, before = Log(place), place.descriptors
    with GoodClient(place) as good, Memory(place) as memory, contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", place.ports["sasl"])))
            sock.setblocking(False)
            sockets.append((sock, memoryview(part)))
        acknowledged, until = good.acknowledged, time.monotonic() + 12
        while time.monotonic() < until:  # longer than the time after which the slowest are closed
            for at, (sock, left) in enumerate(sockets):
                with contextlib.suppress(OSError):  # BlockingIOError: the server does not read; else it has closed
                    sockets[at] = sock, left[sock.send(left) :] if left else left
            time.sleep(0.1)
        assert good.acknowledged > acknowledged + 50, "the good client goes on meanwhile"
    good.check()
    log.check()
    most = LOGINS_MAX + 40 * MB
    assert most < count * RECEIVE_MAX, "more was sent"
    assert memory.grown < most, f"{memory.grown >> 20} MB"
    wait_for(lambda: place.descriptors <= before, "descriptors are given back", timeout_s=20)


def test_a_client_that_retries_with_a_wrong_password_writes_few_lines(place: Place) -> None:
    """Dozens of attempts are at most three lines; a soak lasts until the log has told of the repeats."""
    log = Log(place)
    wrong = [
        Producer({**place.client(), "sasl.password": "wrong", "reconnect.backoff.max.ms": 100, "log_level": 0})
        for _ in range(5)
    ]
    until = time.monotonic() + (1.5 if IS_SOAK else 0.3) * REPEAT_S  # dozens of attempts
    while time.monotonic() < until:
        for each in wrong:
            each.poll(0.05)
    failed = {event: count for event, count in log.events().items() if "authentication failed" in event}
    assert sum(failed.values()) in (1, 2, 3), failed
