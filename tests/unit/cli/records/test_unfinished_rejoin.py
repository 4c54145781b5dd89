"""A poll that ends between the responses to JoinGroup and SyncGroup, with kafka-python's own coordinator.

The network is a stand-in: a request gets its response when the test sends it.  kafka-python 3.0.12 forgets the rejoin;
GroupConsumer finishes it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import kafka
import pytest
from kafka import KafkaConsumer
from kafka.cluster import ClusterMetadata
from kafka.consumer.subscription_state import SubscriptionState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import KafkaTimeoutError
from kafka.future import Future
from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from kafka.structs import MemberState

from bmq.cli.records import consume
from bmq.cli.records.group_consumer import PRIVATE_PARTS, GroupConsumer, check_parts
from bmq.cli.usage import UsageError
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition

NODE, MEMBER = 1, "m-1"


class Response:
    """A response on its way: the task that awaits it goes on once it is there."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, object]:
        yield
        return self._value


class Task:
    """A coroutine of kafka-python that goes on from response to response."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.is_done = False
        self.result: Any = None
        self.go_on()

    def go_on(self) -> None:
        try:
            self._work.send(None)
        except StopIteration as end:
            self.is_done, self.result = True, end.value

    def close(self) -> None:
        self._work.close()


class Network:
    """Client, connections and loop of kafka-python in one, and the server of a group with one member."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self.cluster = cluster
        self._net = self._manager = self
        self.sent: list[str] = []
        self.join: Task | None = None
        self.responses_within_poll = 0

    def is_disconnected(self, node: int) -> bool:
        return False

    def run(self, call: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Run a part of a poll: all that it awaits is there at once, or has timed out."""
        task = Task(call(*arguments))
        assert task.is_done
        return task.result

    def call_soon(self, call: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Task | Future:
        if call.__name__ != "_do_join_and_sync_async":
            return Future()  # the loops of heartbeats and of metadata
        self.join = Task(call(*arguments))
        return self.join

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        callback()

    async def wait_for(self, task: Task, timeout_ms: float) -> Any:
        """Let as many responses come as the poll has time for.  Raises KafkaTimeoutError if the task needs more."""
        while self.responses_within_poll and not task.is_done:
            self.responses_within_poll -= 1
            task.go_on()
        if not task.is_done:
            raise KafkaTimeoutError
        return task.result

    def send(self, request: Any, node_id: int, request_timeout_ms: int | None = None) -> Response:
        assert node_id == NODE
        self.sent.append(type(request).__name__)
        match request:
            case JoinGroupRequest():
                return Response(_joined(request))
            case SyncGroupRequest():
                ((_, assignment),) = request.assignments
                return Response(
                    SyncGroupResponse(
                        error_code=0, protocol_type="consumer", protocol_name="range", assignment=assignment.encode()
                    )
                )
        raise AssertionError(request)


def _joined(request: Any) -> Any:
    """Return the JoinGroup response to the group's only member, its leader."""
    (metadata,) = (metadata.encode() for name, metadata in request.protocols if name == "range")
    member = JoinGroupResponse.JoinGroupResponseMember(member_id=MEMBER, group_instance_id=None, metadata=metadata)
    return JoinGroupResponse(
        error_code=0, generation_id=1, protocol_type="consumer", protocol_name="range", leader=MEMBER,
        skip_assignment=False, member_id=MEMBER, members=[member],
    )  # fmt: skip


class Fetcher:
    """A fetcher that has no records."""

    def reset_offsets_if_needed(self) -> None: ...
    def maybe_validate_positions(self) -> None: ...
    def validate_offsets_if_needed(self) -> None: ...
    def fetch_records(self, *arguments: Any, **configs: Any) -> tuple[dict[Any, Any], bool]:
        return {}, False


class Member:
    """A consumer, the only member of its group, of the topic ``t``; its polls fetch nothing."""

    def __init__(self, kind: type[KafkaConsumer]) -> None:
        self._cluster = ClusterMetadata()
        self._network = Network(self._cluster)
        self.sent = self._network.sent
        self._cluster.attach(self._network)
        self._subscription = SubscriptionState("earliest")
        self._subscription.subscribe(topics=["t"])
        self.coordinator = ConsumerCoordinator(
            self._network, self._subscription, group_id="g", enable_auto_commit=False, api_version=(4, 0)
        )
        self.coordinator.coordinator_id = NODE
        self._consumer = object.__new__(kind)
        self._consumer.__dict__.update(
            config={"group_id": "g", "max_poll_records": 500},
            _closed=False,
            _coordinator=self.coordinator,
            _fetcher=Fetcher(),
            _refresh_committed_offsets=lambda **_: True,
        )

    def close(self) -> None:
        if self._network.join is not None:
            self._network.join.close()
        self._consumer._closed = True

    def grow(self, partitions: int) -> None:
        """Have the metadata of the topic come, with its number of partitions."""
        self._cluster._partitions["t"] = dict.fromkeys(range(partitions))
        self.coordinator._handle_metadata_update(self._cluster)

    def poll(self, *, responses: int) -> list[int]:
        """Poll for as long as ``responses`` need, and return the assigned partitions."""
        self._network.responses_within_poll = responses
        assert self._consumer.poll(0) == {}
        return sorted(key.partition for key in self._subscription.assigned_partitions())


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the closed consumers, of a kafka-python without ``_coordinator``."""
    found: list[object] = []

    def create(self: Any, *topics: str, **configs: Any) -> None:
        self.config = configs

    def close(self: object, **options: object) -> None:
        found.append(self)

    monkeypatch.setattr(KafkaConsumer, "__init__", create)
    monkeypatch.setattr(KafkaConsumer, "close", close)
    return found


@contextlib.contextmanager
def member(kind: type[KafkaConsumer]) -> Iterator[Member]:
    """Yield a consumer that is in its group, with the only partition of ``t``."""
    made = Member(kind)
    try:
        made.grow(1)
        assert made.poll(responses=2) == [0]
        yield made
    finally:
        made.close()


def test_a_rejoin_whose_second_response_comes_after_the_poll_is_finished() -> None:
    with member(GroupConsumer) as consumer:
        consumer.grow(2)
        assert consumer.poll(responses=1) == [0], "SyncGroup has no response yet"
        assert consumer.coordinator.state == MemberState.REBALANCING
        assert consumer.poll(responses=1) == [0, 1]
        assert consumer.coordinator.state == MemberState.STABLE
        assert consumer.coordinator._heartbeat_enabled
        assert consumer.sent == ["JoinGroupRequest", "SyncGroupRequest"] * 2, "the rejoin was not begun again"


def test_polls_without_time_for_any_response_send_no_request_twice() -> None:
    with member(GroupConsumer) as consumer:
        consumer.grow(2)
        assert [consumer.poll(responses=responses) for responses in (0, 0, 1, 0, 0)] == [[0]] * 5
        assert consumer.poll(responses=1) == [0, 1]
        assert consumer.sent == ["JoinGroupRequest", "SyncGroupRequest"] * 2


def test_a_finished_rejoin_is_not_begun_again() -> None:
    with member(GroupConsumer) as consumer:
        assert [consumer.poll(responses=2) for _ in range(3)] == [[0]] * 3
        assert consumer.sent == ["JoinGroupRequest", "SyncGroupRequest"]


def test_kafka_pythons_own_poll_forgets_the_rejoin() -> None:
    """The stand-in fails as a true group did; a version whose polls do not fail here needs no GroupConsumer."""
    with member(KafkaConsumer) as consumer:
        consumer.grow(2)
        assert [consumer.poll(responses=1) for _ in range(3)] == [[0]] * 3
        assert consumer.coordinator.state == MemberState.REBALANCING
        assert not consumer.coordinator._heartbeat_enabled


def test_this_version_of_kafka_python_has_the_private_parts() -> None:
    assert PRIVATE_PARTS == ("_coordinator", "_coordinator.request_rejoin")
    consumer = KafkaConsumer(bootstrap_servers=[], group_id="g", api_version=(4, 0), metrics_enabled=False)
    try:
        check_parts(consumer)
        assert consumer.group_metadata().state == MemberState.UNJOINED
    finally:
        consumer.close(autocommit=False, timeout_ms=0)


class WithCoordinator:
    """A consumer whose coordinator has no ``request_rejoin``."""

    _coordinator = object()


@pytest.mark.parametrize(
    ("consumer", "missing"),
    [
        (object(), "KafkaConsumer._coordinator,"),
        (WithCoordinator(), "KafkaConsumer._coordinator.request_rejoin,"),
    ],
)
def test_a_missing_part_is_named_with_the_version(consumer: object, missing: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"kafka-python {kafka.__version__} has no {missing}")):
        check_parts(consumer)


def test_consume_in_a_group_names_a_missing_part_and_ends(
    bmq: Callable[..., int], admin: FakeAdmin, closed: list[object], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    admin.add_topic("orders", FakePartition())
    monkeypatch.setattr(consume, "open_client", lambda make, *_, **configs: make(**configs))
    assert bmq("consume", "orders", "--group", "g") == 2
    error = capsys.readouterr().err
    assert "has no KafkaConsumer._coordinator, without which short polls lose a rejoin of the group" in error
    assert "or leave out --group" in error
    assert len(closed) == 1


def test_a_consumer_without_a_group_needs_no_private_part(closed: list[object]) -> None:
    assert GroupConsumer(group_id=None).config == {"group_id": None}
    assert closed == []
