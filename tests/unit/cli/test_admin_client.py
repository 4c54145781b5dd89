"""Errors of commands that speak Kafka: no cluster answers, error codes in words, and refusals."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NotLeaderForPartitionError

from bmq.cli import admin_client
from bmq.cli.admin_client import AdminClient, describe_code, explain, perform, read_error, run
from bmq.cli.kafka_client import Settings
from bmq.core.http_call import RequestRefused
from tests.unit.cli.fake_admin import FakeAdmin, parse


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_an_address_without_a_listener_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    port = refused_port()
    arguments = parse("topic", "list", "--bootstrap-server", f"127.0.0.1:{port}")
    assert run(arguments) == 2
    assert capsys.readouterr().err == (
        f"bmq: cannot reach 127.0.0.1:{port}: is `bmq serve` running? (127.0.0.1:{port}: connection refused)\n"
    )


def test_an_address_without_a_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("topic", "list", "--bootstrap-server", "localhost")) == 2
    assert "'localhost' is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.slow
def test_a_listener_that_does_not_speak_kafka_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Connect to a server that closes every connection: the command gives up after its timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # the listening socket is closed at the end
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            arguments = parse("topic", "list", "--bootstrap-server", f"127.0.0.1:{port}", "--timeout", "0.5")
            assert run(arguments) == 2
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    error = capsys.readouterr().err
    assert "accepts connections but does not answer as Kafka within 0.5 s" in error
    assert "a listener with security.protocol=PLAINTEXT? Without --command-config a command has no TLS" in error
    assert "max_connections" in error


def test_an_http_port_is_recognised_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """No client is started, which would ask for as long as it may."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def respond() -> None:
            connection = server.accept()[0]
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        assert run(parse("topic", "list", "--bootstrap-server", address)) == 2
        thread.join()
    assert capsys.readouterr().err == f"bmq: {address} answers as HTTP: is it the Kafka port?\n"


def test_the_server_comes_from_the_environment(
    bmq: Callable[..., int], servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_BOOTSTRAP", "broker:1234")
    assert bmq("topic", "list") == 0
    assert bmq("topic", "list", "--bootstrap-server", "other:1") == 0
    monkeypatch.delenv("BMQ_BOOTSTRAP")
    assert bmq("topic", "list") == 0
    assert servers == ["broker:1234", "other:1", "127.0.0.1:9092"]


def test_a_server_that_does_not_respond_in_time_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "knock", lambda servers, timeout_s, settings: [])

    def never(admin: AdminClient, arguments: argparse.Namespace) -> int:
        raise KafkaTimeoutError("too late")

    @contextlib.contextmanager
    def connect(servers: str, timeout_s: float, settings: Settings) -> Iterator[AdminClient]:
        yield FakeAdmin()

    arguments = parse("topic", "list", "--timeout", "3")
    arguments.command = never
    assert perform(arguments, connect) == 2
    assert "127.0.0.1:9092 did not answer within 3 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (40, "Unknown name: x.", "Unknown name: x (INVALID_CONFIG)"),
        (36, "Topic 'x' already exists.", "there is a topic of that name already (TOPIC_ALREADY_EXISTS)"),
        (
            7,
            "slow",
            "slow; try again; `bmq cluster status` shows whether a controller leads, and which brokers live"
            " (REQUEST_TIMED_OUT)",
        ),
        (
            15,
            None,
            "no live coordinator serves it now; try again, or see which coordinators live:"
            " `bmq cluster status` (COORDINATOR_NOT_AVAILABLE)",
        ),
        (14, None, "try again (COORDINATOR_LOAD_IN_PROGRESS)"),
        (44, "", "POLICY_VIOLATION"),
        (9_999, "new", "error 9999: new"),
        (9_999, None, "error 9999"),
    ],
)
def test_error_codes_are_printed_in_words(code: int, message: str | None, expected: str) -> None:
    assert describe_code(code, message) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KafkaTimeoutError(), "no server responded in time"),
        (KafkaTimeoutError(None), "no server responded in time"),
        (KafkaConnectionError("reset"), "KafkaConnectionError: reset"),
        (NotLeaderForPartitionError(), describe_code(6)),
    ],
)
def test_errors_of_the_client_are_named_once(error: KafkaError, expected: str) -> None:
    assert explain(error) == expected


def test_errors_in_texts_are_recognised() -> None:
    assert read_error("[Error 40] InvalidConfigurationError: Bad: x\ny") == (40, "Bad: x\ny")
    assert read_error("[Error 69] GroupIdNotFoundError") == (69, "")
    assert read_error("something else") == (-1, "something else")


def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(admin: AdminClient, arguments: argparse.Namespace) -> int:
        sys.stdout.write("half of it\n")
        raise RequestRefused("no")

    @contextlib.contextmanager
    def connect(servers: str, timeout_s: float, settings: Settings) -> Iterator[AdminClient]:
        yield FakeAdmin()

    arguments = parse("topic", "list")
    arguments.command = refuse
    assert perform(arguments, connect) == 1
    assert capsys.readouterr() == ("half of it\n", "bmq: no\n")
