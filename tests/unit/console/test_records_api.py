"""Records over HTTP: produced, and found by offset, time and key; and the bounds of what is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import pytest

from bmq.console import records_api, records_reader
from bmq.console.operations import NotPossible
from bmq.console.records_api import RecordsApi, partition_of
from bmq.console.schema_registry import SchemaRegistry
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_batch
from bmq.core.records.control import Marker
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import FetchedPartition
from bmq.core.wire.fetch_client import READ_COMMITTED, READ_UNCOMMITTED
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.console.asked import Called, get, post, refused
from tests.unit.console.served import NO_SCHEMA, ORDERS, TOPIC, create, serving
from tests.unit.console.states import NOW_MS, FakeRequests, list_offsets_response, state
from tests.unit.console.states import TOPIC as TOPIC_FACTS
from tests.unit.console.test_schema_registry import FakeRegistry, serving_registry

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


async def test_records_are_produced_and_found_by_offset_time_and_key() -> None:
    async with serving() as api:
        await create(api)
        times = []
        for number in range(6):
            body = {
                "partition": 0, "key": f"k{number % 2}", "value": f'{{"n": {number}}}', "value_format": "json",
                "headers": [{"key": "h", "value": None}],
            }  # fmt: skip
            status, response = await api("POST", f"{TOPIC}/records{ORDERS}", body)
            assert (status, response["partition"], response["offset"]) == (201, 0, number)
            times.append(response["timestamp"])
        _, response = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, offset="earliest", limit=2)
        assert [each["offset"] for each in response["records"]] == [0, 1]
        assert response["partitions"] == [
            {"partition": 0, "log_start": 0, "high_watermark": 6, "last_stable_offset": 6, "next": 2, "error": ""}
        ]
        first = response["records"][0]
        assert first["value"] == {"format": "json", "text": '{"n": 0}', "bytes": 8, **NO_SCHEMA}
        assert first["headers"] == [{"key": "h", "value": {"text": None, "bytes": 0, **NO_SCHEMA, "format": "null"}}]
        _, response = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, limit=2)
        assert [each["offset"] for each in response["records"]] == [5, 4]
        assert response["has_more"]
        _, response = await api(
            "GET", f"{TOPIC}/records{ORDERS}", partition=0, offset=3, limit=1, format="hex", bytes=2
        )
        assert [each["offset"] for each in response["records"]] == [3]
        assert response["records"][0]["value"] == {
            **NO_SCHEMA,
            "format": "hex",
            "text": "7b22",
            "bytes": 8,
            "is_cut": True,
        }
        _, response = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, timestamp=times[5])
        assert response["records"][-1]["offset"] == 5
        assert all(each["timestamp"] >= times[5] for each in response["records"])
        _, response = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, key="k1", offset="earliest")
        assert [each["offset"] for each in response["records"]] == [1, 3, 5]
        _, response = await api("GET", f"{TOPIC}/records{ORDERS}", limit=10)
        assert [each["partition"] for each in response["partitions"]] == [0, 1]
        _, response = await api("GET", f"{TOPIC}/partitions/{{partition}}/segments{ORDERS}&partition=0")
        assert [each["base_offset"] for each in response["segments"]] == [0]
        assert response["segments"][0]["blocks"][0]["nodes"]
        assert response["segments"][0]["bytes"] > 0


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ({"offset": "-3"}, 400, "wrong_parameter"),
        ({"offset": "soon"}, 400, "wrong_parameter"),
        ({"partition": 9}, 404, "unknown_partition"),
        ({"format": "xml"}, 400, "wrong_parameter"),
        ({"isolation_level": "read_all"}, 400, "wrong_parameter"),
        ({"key": "zz", "key_format": "hex"}, 400, "wrong_value"),
    ],
)
async def test_wrong_parameters_for_records_are_refused(query: dict[str, object], status: int, error: str) -> None:
    async with serving() as api:
        await create(api)
        got, body = await api("GET", f"{TOPIC}/records{ORDERS}", **query)
        assert (got, body["error"]) == (status, error)


async def test_values_are_shown_by_their_schema() -> None:
    async with serving() as api:
        await create(api)
        status, response = await api("GET", f"{TOPIC}/records{ORDERS}", format="registry")
        assert (status, response["error"]) == (400, "no_schema_registry")
        registry = FakeRegistry()
        registry.answers["/schemas/ids/7"] = {"schema": '"string"'}
        async with serving_registry(registry):
            api.use_registry(SchemaRegistry(registry.url))
            for number in (7, 8):
                value = f"00000000{number:02x}0261"
                body = {"partition": 0, "value": value, "value_format": "hex", "key": "k"}
                assert (await api("POST", f"{TOPIC}/records{ORDERS}", body))[0] == 201
            for wanted in ("auto", "registry"):
                _, response = await api("GET", f"{TOPIC}/records{ORDERS}", offset="earliest", format=wanted)
                known, unknown = (each["value"] for each in response["records"])
                assert (known["format"], known["text"], known["schema_id"]) == ("avro", '"a"', 7)
                assert (unknown["format"], unknown["schema_id"]) == ("hex", None)
                assert ("404" in unknown["error"]) == (wanted == "registry")
            assert sorted(registry.asked) == ["/schemas/ids/7", "/schemas/ids/8"]
            _, response = await api("GET", f"{TOPIC}/records{ORDERS}", offset="earliest", format="hex")
            assert {each["value"]["format"] for each in response["records"]} == {"hex"}
            await api.registry.close()


async def test_a_key_goes_where_kafkas_clients_put_it() -> None:
    async with serving() as api:
        await create(api, partitions=7)
        _, made = await api("POST", f"{TOPIC}/records{ORDERS}", {"key": "billing", "value": "v"})
        _, found = await api("GET", f"{TOPIC}/records{ORDERS}", key="billing")
        assert [each["partition"] for each in found["partitions"]] == [made["partition"]]
        assert [each["offset"] for each in found["records"]] == [0]


# ---------------------------------------------------------------------------------------------- handlers by themselves


class Log(FakeRequests):
    """A log of offsets 5 to `end`, one fetch a batch of three records with keys k0 to k2; `broken` partitions fail."""

    def __init__(self, end: int = 20, broken: Collection[int] = ()) -> None:
        super().__init__()
        self.end = end
        self.broken = broken
        self.fetched: list[int] = []
        self.silent_from: int | None = None
        """The offset from which on the time of a read is up; -1 for ListOffsets too."""

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        assert key is ApiKey.LIST_OFFSETS
        if self.silent_from == -1:
            raise TimeoutError
        return list_offsets_response(
            message,
            lambda _, part: (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if part.partition_index in self.broken else 0,
                5 if part.timestamp == -2 else self.end if part.timestamp == -1 else -1,
            ),
        )

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        if self.silent_from is not None and offset >= self.silent_from:
            raise TimeoutError
        self.fetched.append(offset)
        base = offset - (offset - 5) % 3
        batch = build_batch([Record(key=b"k%d" % n, value=b"v") for n in range(3)], base_offset=base)
        return FetchedPartition(partition, 0, self.end, self.end, 5, [batch])


async def read(requests: FakeRequests, query: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the offsets of the records that a request gets, and the facts of its partitions."""
    notified: Any = await Called(RecordsApi(state(requests=requests)), requests).read(get(f"/?{query}", name="orders"))
    return [each["offset"] for each in notified["records"]], notified["partitions"]


@pytest.mark.parametrize(
    ("query", "offsets", "following"),
    [
        ("offset=earliest&limit=2", [5, 6], 7),
        ("offset=6&limit=3", [6, 7, 8], 9),
        ("offset=0&limit=1", [5], 6),
        ("offset=99", [], 20),
        ("limit=2", [19, 18], 20),
        ("timestamp=1000", [], 20),
        ("offset=earliest&key=k1&limit=2", [6, 9], 10),
        ("offset=earliest&key=none", [], 20),
        ("key=k1&limit=2", [6, 9], 10),
        ("offset=latest&key=k1&limit=3", [18], 20),
    ],
)
async def test_a_read_begins_and_ends_within_the_log(query: str, offsets: list[int], following: int) -> None:
    found, (facts,) = await read(Log(), f"partition=0&{query}")
    assert (found, facts["next"], facts["log_start"], facts["high_watermark"]) == (offsets, following, 5, 20)


async def test_a_search_for_a_key_ends_after_so_many_bytes_and_continues_from_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records_reader, "SCAN_BYTES_MAX", 1)
    requests = Log()
    found, (facts,) = await read(requests, "partition=0&offset=earliest&key=none")
    assert (found, facts["next"], requests.fetched) == ([], 8, [5])


async def test_a_response_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_reader, "ANSWER_BYTES_MAX", 500)
    found, (facts,) = await read(Log(), "partition=0&offset=earliest")
    assert (found, facts["next"]) == ([5, 6], 7)


async def test_the_limit_is_shared_by_the_partitions() -> None:
    found, facts = await read(Log(), "offset=earliest&limit=4")
    assert found == [5, 5, 6, 6]
    assert [each["next"] for each in facts] == [7, 7]


class Logs(FakeRequests):
    """Logs of partitions, each a list of timestamps: a record has its own by its offset, and a batch of its own."""

    def __init__(self, *times: Sequence[int], size: int = 1) -> None:
        super().__init__()
        self.times = times
        self.size = size
        self.fetched = 0

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        return list_offsets_response(
            message,
            lambda _, part: (0, len(self.times[part.partition_index]) if part.timestamp == -1 else 0),
        )

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        times = self.times[partition]
        self.fetched += len(times) - offset
        batches: list[Any] = [
            build_batch([Record(key=b"k", value=b"v" * self.size)], base_offset=at, base_timestamp=times[at])
            for at in range(offset, len(times))
        ]
        return FetchedPartition(partition, 0, len(times), len(times), 0, batches)


async def read_times(requests: Logs, query: str) -> tuple[list[tuple[int, int]], bool, list[int]]:
    """Return (partition, offset) of the records, whether there are more, and the next offsets."""
    console = state(requests=requests)
    console.find_topic = lambda name: {**TOPIC_FACTS, "partitions": len(requests.times)}
    notified: Any = await Called(RecordsApi(console), requests).read(get(f"/?{query}", name="orders"))
    found = [(each["partition"], each["offset"]) for each in notified["records"]]
    return found, notified["has_more"], [each["next"] for each in notified["partitions"]]


async def test_the_newest_records_are_those_of_the_topic_the_newest_first() -> None:
    """Have one partition with all of the new records: an even share of each partition would miss them."""
    logs = Logs([10, 80], [], [20, 30, 60, 70], [40, 50], [1])
    assert await read_times(logs, "limit=4") == ([(0, 1), (2, 3), (2, 2), (3, 1)], True, [2, 0, 4, 2, 1])
    assert (await read_times(logs, "limit=9"))[1] is False
    hot = Logs(*[[at] for at in range(49)], list(range(100, 1_100)))
    found, has_more, _ = await read_times(hot, "limit=50")
    assert found == [(49, offset) for offset in range(999, 949, -1)]
    assert has_more
    assert hot.fetched < 400, "each window is read once"


async def test_the_oldest_records_are_those_of_the_topic_and_the_others_are_next() -> None:
    logs = Logs([1, 2, 3, 4, 90], [50, 60], [5, 70])
    assert await read_times(logs, "offset=earliest&limit=4") == ([(0, 0), (0, 1), (0, 2), (0, 3)], True, [4, 0, 0])
    assert await read_times(logs, "offset=1&limit=9") == (
        [(0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (0, 4)],
        False,
        [5, 2, 2],
    )


async def test_of_records_without_room_in_the_response_the_oldest_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records_reader, "ANSWER_BYTES_MAX", 2_500)
    found, has_more, _ = await read_times(Logs(list(range(20)), size=500), "partition=0&limit=10")
    assert (found, has_more) == ([(0, 19), (0, 18)], True)


async def test_a_window_with_too_many_bytes_is_read_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest records are behind the bytes that one search may read."""
    monkeypatch.setattr(records_reader, "SCAN_BYTES_MAX", 1)
    found, has_more, _ = await read_times(OneByOne(list(range(20))), "partition=0&limit=16")
    assert (found, has_more) == ([(0, 19)], True)


class OneByOne(Logs):
    """Logs of which a fetch returns one record."""

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        found = await super().fetch(topic_id, partition, offset, max_bytes, isolation_level)
        return FetchedPartition(partition, 0, found.high_watermark, found.high_watermark, 0, found.records[:1])


async def test_a_partition_that_cannot_be_read_is_named_beside_the_others() -> None:
    found, facts = await read(Log(broken=[1]), "offset=earliest&limit=2")
    assert found == [5, 6]
    assert [(each["next"], each["error"].partition(":")[0]) for each in facts] == [
        (7, ""),
        (None, "NOT_LEADER_OR_FOLLOWER"),
    ]


async def test_a_request_whose_partitions_all_fail_is_an_error() -> None:
    with pytest.raises(RequestError) as raised:
        await read(Log(broken=[0, 1]), "offset=earliest")
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_read_whose_time_is_up_returns_what_it_has() -> None:
    requests = Log()
    requests.silent_from = 8
    found, (facts,) = await read(requests, "partition=0&offset=earliest")
    assert (found, facts["next"], facts["error"]) == ([5, 6, 7], 8, "not read within 15 s; ask again from next")


async def test_a_read_whose_time_is_up_before_the_first_offset_is_an_error() -> None:
    requests = Log()
    requests.silent_from = -1
    with pytest.raises(RequestError) as raised:
        await read(requests, "partition=0&offset=earliest")
    assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("damaged_byte", [HEADER_BYTES, 8], ids=["a record's length", "a batch's length"])
async def test_records_that_cannot_be_parsed_are_named_with_their_offset(
    damaged_byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = build_batch([Record(key=b"k", value=b"v")], base_offset=5)
    damaged[damaged_byte] = 0x7E

    async def fetch(
        topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        return FetchedPartition(partition, 0, 20, 20, 5, [damaged])

    requests = Log()
    monkeypatch.setattr(requests, "fetch", fetch)
    with pytest.raises(RequestError, match="at offset 5: ") as raised:
        await read(requests, "partition=0&offset=earliest")
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("query", "searched"),
    [
        ("limit=2", ""),
        ("partition=0&key=k1", "the records from the earliest offset on, of partition 0"),
        ("partition=0&key=k1&offset=9", "the records from offset 9 on, of partition 0"),
        ("partition=0&key=k1&timestamp=9", "the records from the given time on, of partition 0"),
        ("partition=0&key=k1&offset=latest&limit=9", "the newest 9 offsets alone, of partition 0"),
        ("key=k1", "the records from the earliest offset on, of partition 1, where Kafka's default partitioner puts"),
    ],
)
async def test_a_response_says_what_was_searched_for_a_key(query: str, searched: str) -> None:
    requests = Log()
    response: Any = await Called(RecordsApi(state(requests=requests)), requests).read(get(f"/?{query}", name="orders"))
    assert response["searched"].startswith(searched)
    assert bool(response["searched"]) == bool(searched)


class Rotten(Log):
    """A log whose batch of offsets 11 to 13 has a byte that changed on storage."""

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        """Return up to three batches."""
        parts = [
            await super(Rotten, self).fetch(topic_id, partition, at, max_bytes, isolation_level)
            for at in range(offset, min(offset + 9, 18), 3)
        ]
        batches = [bytearray(part.records[0]) for part in parts]
        for batch in batches:
            if Batch(memoryview(batch)).base_offset == 11:
                batch[-2] ^= 1  # the value: the record can be parsed
        return FetchedPartition(partition, 0, self.end, self.end, 5, batches)


@pytest.mark.parametrize("query", ["offset=11", "offset=12", "limit=8"])
async def test_a_record_of_a_damaged_batch_is_not_shown(query: str) -> None:
    with pytest.raises(RequestError, match=r"at offset 1\d: the batch up to offset 13 is damaged, its CRC") as raised:
        await read(Rotten(), f"partition=0&{query}")
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE


async def test_the_records_before_and_behind_damage_are_shown() -> None:
    found, (facts,) = await read(Rotten(), "partition=0&offset=earliest")
    assert (found, facts["next"]) == ([5, 6, 7, 8, 9, 10], 11)
    assert facts["error"].startswith("CORRUPT_MESSAGE: at offset 11: the batch up to offset 13 is damaged")
    found, (facts,) = await read(Rotten(), "partition=0&offset=14&limit=3")
    assert (found, facts["error"]) == ([14, 15, 16], "")


async def test_many_partitions_need_one_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_api, "PARTITIONS_MAX", 1)
    assert await refused(read(Log(), "offset=earliest")) == (400, "wrong_parameter")
    assert (await read(Log(), "offset=earliest&limit=1&partition=1"))[0] == [5]
    assert (await read(Log(), "offset=earliest&limit=1&key=k0"))[0] == [5]


async def test_a_topic_or_a_partition_that_does_not_exist_is_refused() -> None:
    console = Called(RecordsApi(state(requests=Log())), Log())
    assert await refused(console.read(get(name="nobody"))) == (404, "unknown_topic")
    assert await refused(console.read(get("/?partition=2", name="orders"))) == (404, "unknown_partition")


@pytest.mark.usefixtures("without_connection")
@pytest.mark.parametrize(
    ("body", "partition"),
    [
        ({"value": "v"}, 1),
        ({"value": "v", "partition": 0}, 0),
        ({"value": "v", "key": "a"}, partition_of(b"a", 2)),
        ({"value": "v", "key": "a", "partition": 1 - partition_of(b"a", 2)}, 1 - partition_of(b"a", 2)),
        ({"value": "v", "key": "61", "key_format": "hex"}, partition_of(b"a", 2)),
    ],
    ids=str,
)
async def test_a_record_goes_to_its_partition_its_keys_or_any(body: dict[str, Any], partition: int) -> None:
    notified: Any = await Called(RecordsApi(state()), FakeRequests()).produce(post(body, name="orders"))
    assert notified == {"topic": "orders", "partition": partition, "offset": 9, "timestamp": NOW_MS}


@pytest.mark.usefixtures("without_connection")
async def test_nothing_is_produced_to_an_internal_topic() -> None:
    console = state()
    console.find_topic = lambda name: {**TOPIC_FACTS, "is_internal": True}
    assert await refused(Called(RecordsApi(console), FakeRequests()).produce(post({"value": "v"}, name="orders"))) == (
        400,
        "internal_topic",
    )


async def test_a_control_record_names_its_marker_and_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = [data(0, pid=7, base=5).data, marker(Marker.ABORT, pid=7, base=6).data]

    async def fetch(
        topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        return FetchedPartition(partition, 0, 7, 7, 5, batches)

    requests = Log(7)
    monkeypatch.setattr(requests, "fetch", fetch)
    handler = Called(RecordsApi(state(requests=requests)), requests)
    response: Any = await handler.read(get("/?partition=0&offset=earliest", name="orders"))
    shown = [(each["is_control"], each["marker"], each["producer_id"]) for each in response["records"]]
    assert shown == [(False, None, 7), (True, "abort", 7)]


# ---------------------------------------------------------------------------------------------------- isolation levels

COMMITTER, ABORTER = 7, 8


class TransactionalLog(FakeRequests):
    """A log of offsets 5 to 15, with committed transactions, an aborted one, and from offset 14 on an open one.

    Fetch and ListOffsets follow their isolation level.
    """

    STABLE, END = 14, 16

    def __init__(self) -> None:
        super().__init__()
        self.levels: set[int] = set()
        """The isolation levels of all fetches."""
        self.batches: list[Batch] = [
            data(0, pid=COMMITTER, base=5, count=2),
            data(0, pid=ABORTER, base=7),
            marker(Marker.COMMIT, pid=COMMITTER, base=8),
            data(1, pid=ABORTER, base=9),
            data(0, pid=9, base=10, is_transactional=False),
            marker(Marker.ABORT, pid=ABORTER, base=11),
            data(2, pid=ABORTER, base=12),
            marker(Marker.COMMIT, pid=ABORTER, base=13),
            data(2, pid=COMMITTER, base=14),
            data(1, pid=9, base=15, is_transactional=False),
        ]

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        end = self.STABLE if message.isolation_level == READ_COMMITTED else self.END
        return list_offsets_response(message, lambda _, part: (0, {-2: 5, -1: end}.get(part.timestamp, -1)))

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        self.levels.add(isolation_level)
        is_committed = isolation_level == READ_COMMITTED
        end = self.STABLE if is_committed else self.END
        found: list[Any] = [each.data for each in self.batches if each.next_offset > offset and each.base_offset < end]
        aborted = [(ABORTER, 7)] if offset <= 11 else []
        return FetchedPartition(
            partition, 0, self.END, self.STABLE, 5, found, aborted=aborted if is_committed else None
        )


@pytest.mark.parametrize(
    ("query", "offsets", "following"),
    [
        ("offset=earliest", [5, 6, 8, 10, 11, 12, 13], 14),
        ("offset=earliest&limit=2", [5, 6], 8),
        ("offset=7&limit=1", [8], 10),
        ("offset=9", [10, 11, 12, 13], 14),
        ("offset=12", [12, 13], 14),
        ("offset=99", [], 14),
        ("timestamp=5000", [], 14),
        ("limit=3", [13, 12, 11], 14),
        ("limit=9", [13, 12, 11, 10, 8, 6, 5], 14),
    ],
)
async def test_committed_records_are_read_by_default(query: str, offsets: list[int], following: int) -> None:
    for level in ("", "&isolation_level=read_committed"):
        requests = TransactionalLog()
        found, (facts,) = await read(requests, f"partition=0&{query}{level}")
        assert (found, facts["next"]) == (offsets, following)
        assert (facts["last_stable_offset"], facts["high_watermark"]) == (14, 16)
        assert requests.levels <= {READ_COMMITTED}


@pytest.mark.parametrize(
    ("query", "offsets", "following"),
    [
        ("offset=earliest", list(range(5, 16)), 16),
        ("offset=7&limit=1", [7], 8),
        ("offset=99", [], 16),
        ("limit=3", [15, 14, 13], 16),
    ],
)
async def test_all_records_are_read_on_request(query: str, offsets: list[int], following: int) -> None:
    requests = TransactionalLog()
    found, (facts,) = await read(requests, f"partition=0&{query}&isolation_level=read_uncommitted")
    assert (found, facts["next"]) == (offsets, following)
    assert (facts["last_stable_offset"], facts["high_watermark"]) == (None, 16)
    assert requests.levels <= {READ_UNCOMMITTED}


async def test_the_time_of_a_record_behind_the_last_stable_offset_begins_at_that_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def send(key: ApiKey, version: int, message: Any) -> Any:
        end = 14 if message.isolation_level == READ_COMMITTED else 16
        return list_offsets_response(message, lambda _, part: (0, {-2: 5, -1: end}.get(part.timestamp, 15)))

    requests = TransactionalLog()
    monkeypatch.setattr(requests, "send", send)
    found, (facts,) = await read(requests, "partition=0&timestamp=5000")
    assert (found, facts["next"]) == ([], 14)


async def test_aborted_records_are_not_searched_past_the_end() -> None:
    """Have a fetch return a batch that ends behind the last stable offset of ListOffsets."""
    requests = TransactionalLog()
    requests.batches = [data(0, pid=ABORTER, base=7, count=8), marker(Marker.ABORT, pid=ABORTER, base=15)]
    found, (facts,) = await read(requests, "partition=0&offset=earliest")
    assert (found, facts["next"]) == ([], 14)


async def test_a_wrong_isolation_level_is_refused_with_the_right_ones() -> None:
    with pytest.raises(NotPossible, match="choose from read_committed, read_uncommitted"):
        await read(TransactionalLog(), "isolation_level=1")
