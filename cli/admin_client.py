"""The common part of ``bmq topic``, ``bmq group`` and ``bmq cluster``: the connection, and error texts.

The commands are ordinary Kafka clients (kafka-python's admin client) and work on any Kafka cluster.  Parts of
``bmq cluster`` need a BMQ cluster (``cli.cluster.http_client``).  A command is a function from the connection and
the parsed arguments to the exit status; any error becomes one line with the remedy.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kafka import KafkaAdminClient
from kafka.errors import (
    BrokerResponseError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from bmq.cli.command_config import command_config
from bmq.cli.exit_status import exit_status_of
from bmq.cli.kafka_client import WITHOUT_CONFIG, Settings, settings_of
from bmq.cli.output import fail
from bmq.cli.parsers.common import DEFAULT_SERVER, DefaultSeconds
from bmq.cli.probe import CannotConnect, LoginRefused, Node, probe
from bmq.cli.profile import profiles
from bmq.cli.usage import UsageError
from bmq.core.config import ConfigError, parse_address
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused, ServerUnreachable

_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition; `bmq topic list` shows what exists",
    ErrorCode.TOPIC_ALREADY_EXISTS: "there is a topic of that name already",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; `bmq group list` shows what exists",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop its consumers first",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; stop its consumers first",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user may not do that to the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user may not do that to the group",
    ErrorCode.SECURITY_DISABLED: "the cluster has no authorizer, so it has no ACLs (authorizer.class.name)",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (
        "no live broker serves the partition now; try again, or see which brokers live: `bmq cluster status`"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "no live broker serves the partition now; try again, or see which brokers live: `bmq cluster status`"
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "no live coordinator serves it now; try again, or see which coordinators live: `bmq cluster status`"
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "storage has fewer copies to give than the topic's min.insync.replicas: start datanodes, or"
        " `bmq topic alter TOPIC --config min.insync.replicas=1`; on a local root it must be 1"
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: "the transaction before is still ending",
    ErrorCode.UNSUPPORTED_VERSION: "the server is too old, or does not serve this",
}


class AdminClient(Protocol):
    """The methods of kafka-python's admin client that commands use, with the types that they return."""

    def describe_topics(self, topics: Sequence[str] | None = None) -> list[dict[str, Any]]: ...
    def create_topics(
        self, new_topics: Mapping[str, Mapping[str, Any]], timeout_ms: int, validate_only: bool, raise_errors: bool
    ) -> dict[str, Any]: ...
    def delete_topics(self, topics: Sequence[str], timeout_ms: int, raise_errors: bool) -> dict[str, Any]: ...
    def create_partitions(
        self, topic_partitions: Mapping[str, int], timeout_ms: int, validate_only: bool, raise_errors: bool
    ) -> Any: ...
    def describe_configs(
        self, config_resources: Sequence[Any], *, config_filter: str
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]: ...
    def alter_configs(
        self, config_resources: Sequence[Any], *, raise_on_unknown: bool, incremental: bool
    ) -> dict[str, dict[str, str]]: ...
    def list_partition_offsets(
        self, topic_partition_specs: Mapping[Any, Any], isolation_level: int = 0
    ) -> dict[Any, Any]: ...
    def describe_log_dirs(self, topic_partitions: Mapping[str, list[int]]) -> list[dict[str, Any]]: ...
    def list_groups(self, broker_ids: Sequence[int] | None = None) -> list[dict[str, Any]]: ...
    def describe_groups(self, group_ids: Sequence[str]) -> dict[str, dict[str, Any]]: ...
    def list_group_offsets(self, group_specs: Sequence[str]) -> dict[str, dict[Any, Any]]: ...
    def delete_groups(self, group_ids: Sequence[str]) -> dict[str, str]: ...
    def alter_group_offsets(self, group_id: str, offsets: Mapping[Any, Any]) -> dict[Any, Any]: ...
    def describe_features(self) -> dict[str, dict[str, Any]]: ...
    def describe_cluster(self) -> dict[str, Any]: ...
    def describe_acls(self, acl_filter: Any) -> tuple[list[Any], Any]: ...
    def create_acls(self, acls: Sequence[Any]) -> dict[str, list[Any]]: ...
    def delete_acls(self, acl_filters: Sequence[Any]) -> list[tuple[Any, list[Any], Any]]: ...
    @property
    def _manager(self) -> Any: ...


_LOOK = {ErrorCode.REQUEST_TIMED_OUT: "`bmq cluster status` shows whether a controller leads, and which brokers live"}
"""Commands that show the cause of an error, of whose message the server knows more."""
DENIED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_ERROR_TEXT = re.compile(r"\[Error (?P<code>-?\d+)\] \w+(?:: (?P<message>.*))?", re.DOTALL)
COORDINATOR_ERRORS = (
    CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError, ConcurrentTransactionsError
)  # fmt: skip
"""Errors of a coordinator during its loading, its search, or the end of the transaction before."""
RETRY_WAIT_S = 0.2
SERVER_SHARE = 0.8
"""Part of ``--timeout`` after which the server is to say that a change is not done."""
NODES_MAX = 20
"""Servers of a cluster that are probed for why a command got no response."""

Result = TypeVar("Result")
Client = TypeVar("Client")
Item = TypeVar("Item")
Command = Callable[[AdminClient, argparse.Namespace], int]
Connect = Callable[[str, float, Settings], "contextlib.AbstractContextManager[AdminClient]"]


# ---------------------------------------------------------------------------------------------------- command line


def run(arguments: argparse.Namespace) -> int:
    """Run the parsed command on a Kafka connection and return its exit status."""
    return perform(arguments, connect)


def perform(arguments: argparse.Namespace, connect: Connect) -> int:
    """Run the command on a Kafka connection and return its exit status; expected errors are printed in one line."""

    def work() -> int:
        servers = profiles.value(arguments, "bootstrap_server") or DEFAULT_SERVER
        config = command_config(arguments, servers)
        if config.request_timeout_s is not None and isinstance(arguments.timeout, DefaultSeconds):
            arguments.timeout = config.request_timeout_s
        settings = arguments.settings = settings_of(config)
        arguments.bootstrap_server = servers
        with explained(servers, arguments.timeout, settings), connect(servers, arguments.timeout, settings) as admin:
            command: Command = arguments.command
            return command(admin, arguments)

    return exit_status_of(arguments, work)


@contextlib.contextmanager
def explained(servers: str, timeout_s: float, settings: Settings) -> Iterator[None]:
    """Raise errors of kafka-python from within as ServerUnreachable or RequestRefused, whose text says what to do."""
    try:
        yield
    except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError) as error:
        raise RequestRefused(f"a server of the cluster refused the log-in: {error}") from error
    except (KafkaTimeoutError, KafkaConnectionError, RequestTimedOutError, TimeoutError) as error:
        find_cause(servers, timeout_s, settings)
        text = f"{servers} did not answer within {timeout_s:g} s"
        raise ServerUnreachable(f"{text}; try again, or give it longer with --timeout") from error
    except KafkaError as error:
        raise RequestRefused(explain(error)) from error


def find_cause(servers: str, timeout_s: float, settings: Settings) -> None:
    """Raise ServerUnreachable or RequestRefused if a probe of the servers shows why none of them responds.

    Clients connect to the cluster's advertised addresses, perhaps others, with other certificates.
    """
    for host, port in knock(servers, timeout_s, settings)[:NODES_MAX]:
        knock(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}", timeout_s, settings)


# ------------------------------------------------------------------------------------------------------ connection


@contextlib.contextmanager
def connect(servers: str, timeout_s: float, settings: Settings) -> Iterator[AdminClient]:
    """Yield a connection to the first of ``servers`` that responds.

    Raises UsageError, ServerUnreachable or RequestRefused.
    """
    admin = open_client(KafkaAdminClient, servers, timeout_s, settings)
    try:
        yield admin
    finally:
        admin.close()


def open_client(
    make: Callable[..., Client], servers: str, timeout_s: float, settings: Settings, **configs: object
) -> Client:
    """Return a client of kafka-python, connected to a server of ``servers``.

    Raises UsageError, ServerUnreachable, or RequestRefused if the server does not let this user in.
    """
    knock(servers, timeout_s, settings)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # the errors below hold the useful part of its warnings
    timeout_ms = int(timeout_s * 1000)
    given = {"bootstrap_timeout_ms": timeout_ms, "request_timeout_ms": timeout_ms, **configs}
    try:
        return make(bootstrap_servers=servers.split(","), **settings.for_kafka_python(), **given)
    except KafkaError as error:
        find_cause(servers, timeout_s, settings)
        protocol = settings.security.protocol
        raise ServerUnreachable(
            f"{servers} accepts connections but does not answer as Kafka within {timeout_s:g} s "
            f"({_name(error)}): is it the Kafka port of a listener with security.protocol={protocol}?"
            + ("" if settings.config.where else " Without --command-config a command has no TLS and no log-in.")
            + " Or has the user as many connections as its quota max_connections allows? The server's log says so"
        ) from error


def ask(admin: AdminClient, request: Any, server: int | None = None) -> Any:
    """Send a request for which kafka-python's admin client has no method, and return its response.

    ``server`` is the node id of the server; None: any server answers.
    """
    connections = admin._manager
    if server is None:
        return connections.run(connections.send, request)
    return connections.run(connections.send, request, server)


def _addresses(servers: str) -> list[tuple[str, int]]:
    try:
        return [parse_address(server, "--bootstrap-server") for server in servers.split(",")]
    except ConfigError as error:
        raise UsageError(str(error)) from None


def knock(servers: str, timeout_s: float, settings: Settings = WITHOUT_CONFIG) -> list[Node]:
    """Probe the first of ``servers`` that listens; return the addresses that the cluster advertises, if it says them.

    Raises ServerUnreachable if none listens, or if a client with these settings would not be served there, and
    RequestRefused if the user is not let in.  It does so at once, in plain words; a Kafka client tries for long.
    """
    addresses = _addresses(servers)
    causes = []
    for host, port in addresses:
        try:
            return probe(host, port, settings, timeout_s)
        except CannotConnect as error:
            raise ServerUnreachable(str(error)) from error
        except LoginRefused as error:
            raise RequestRefused(str(error)) from error
        except OSError as error:
            causes.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
    where = ",".join(f"{host}:{port}" for host, port in addresses)
    raise ServerUnreachable(f"cannot reach {where}: is `bmq serve` running? ({'; '.join(causes)})")


def server_timeout_ms(arguments: argparse.Namespace) -> int:
    """Return the time in ms that the server has: it must respond, with the reason, before the client gives up."""
    return max(1, int(arguments.timeout * 1000 * SERVER_SHARE))


def of_coordinator(arguments: argparse.Namespace, call: Callable[..., Result], *values: object) -> Result:
    """Return ``call(*values)``, repeated until ``--timeout`` while the group's coordinator is being found or loaded.

    A new cluster has no coordinator before the first request for one.
    """
    deadline = time.monotonic() + arguments.timeout
    while True:
        try:
            return call(*values)
        except COORDINATOR_ERRORS:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_WAIT_S)


def of_each_server(
    admin: AdminClient, arguments: argparse.Namespace, call: Callable[[int], list[Item]]
) -> tuple[list[Item], list[int]]:
    """Return the items of ``call(node id)`` for all servers, and the servers without items so far.

    A server is asked again until ``--timeout`` while a part of its shards is being loaded.
    """
    items: list[Item] = []
    silent = [int(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"]]
    deadline = time.monotonic() + arguments.timeout
    while True:
        left, silent = silent, []
        for server in left:
            try:
                items += call(server)
            except COORDINATOR_ERRORS:
                silent.append(server)
        if not silent or time.monotonic() > deadline:
            return items, silent
        time.sleep(RETRY_WAIT_S)


def tell_silent(silent: Sequence[int], items: str, shards: str) -> int:
    """Return the exit status of a listing; print the servers that could not list their ``items``, if there are any."""
    if not silent:
        return 0
    servers = ", ".join(map(str, sorted(silent)))
    return fail(
        f"{items} may be missing: {len(silent)} of the cluster's servers cannot list theirs now ({servers}), since "
        f"some of the {shards}' shards are not loaded; `bmq cluster status` shows which and why"
    )


# ---------------------------------------------------------------------------------------------------------- errors


def check(code: int, message: str | None, what: str, right: str = "") -> None:
    """Raise RequestRefused, with ``what`` before the reason, unless ``code`` is NONE."""
    if code != ErrorCode.NONE:
        raise RequestRefused(f"{what}: {describe_code(code, message, right)}")


def raise_if_moving(code: int) -> None:
    """Raise kafka-python's error for a ``code`` of COORDINATOR_ERRORS, after which ``of_coordinator`` tries again."""
    for error in COORDINATOR_ERRORS:
        if error.errno == code:
            raise error


@contextlib.contextmanager
def needs(right: str) -> Iterator[None]:
    """Raise RequestRefused that names ``right`` if the body raises that it is missing: "Describe on group billing"."""
    try:
        yield
    except BrokerResponseError as error:
        if error.errno not in DENIED:
            raise
        raise RequestRefused(describe_code(error.errno, right=right)) from error


def describe_code(code: int, message: str | None = None, right: str = "") -> str:
    """Return Kafka's name of the error, with what to do about it, or else with the server's message.

    ``right`` is what the request needs, as in "Describe on group billing".
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"error {code}: {message}" if message else f"error {code}"
    if right and known in DENIED:
        return f"not authorised for {right} ({known.name})"
    advice = _ADVICE.get(known) or (message or "").strip().rstrip(".")
    if known.is_retriable and known not in _ADVICE:
        advice = f"{advice}; try again" if advice else "try again"
        advice += f"; {_LOOK[known]}" if known in _LOOK else ""
    return f"{advice} ({known.name})" if advice else known.name


def read_error(text: str) -> tuple[int, str]:
    """Return (code, message) of an error that kafka-python passes on as a text only."""
    found = _ERROR_TEXT.fullmatch(text)
    return (int(found["code"]), found["message"] or "") if found else (ErrorCode.UNKNOWN_SERVER_ERROR, text)


def explain(error: KafkaError) -> str:
    """Return the text of an error of kafka-python: this module's if it carries a Kafka code, else the error's own.

    The error's own text begins with the name of its class.  A time-out has no text, or ``None`` for it.
    """
    if isinstance(error, BrokerResponseError) and error.errno is not None:
        return describe_code(error.errno)
    if isinstance(error, KafkaTimeoutError):
        return "no server responded in time"
    return str(error)


def _name(error: Exception) -> str:
    return type(error).__name__
