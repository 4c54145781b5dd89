"""AlterClientQuotas and DescribeClientQuotas in every version: validation, filters, and errors as Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest
from bmq.meta.kv import KvUnavailable
from bmq.meta.security import quotas_view
from bmq.proxy.handlers import alter_client_quotas, describe_client_quotas
from tests.harness.scopes import Nobody, change
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving
from tests.unit.proxy.turns import Turns

ALTER, DESCRIBE = alter_client_quotas.APIS[0], describe_client_quotas.APIS[0]
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
Pairs = list[tuple[str, str | None]]
ALICE: Pairs = [("user", "alice")]


def entry(entity: Pairs, **values: float | None) -> Any:
    kind = AlterClientQuotasRequest.EntryData
    return kind(
        entity=[kind.EntityData(entity_type=each, entity_name=name) for each, name in entity],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


async def alter(w: AdminServing, *entries: Any, version: int = 1, only: bool = False) -> list[tuple[int, str | None]]:
    found = await w.ask(ALTER, version, AlterClientQuotasRequest(entries=list(entries), validate_only=only))
    for asked, response in zip(entries, found.entries, strict=True):
        named = [(each.entity_type, each.entity_name) for each in asked.entity]
        assert [(each.entity_type, each.entity_name) for each in response.entity] == named
    return [(each.error_code, each.error_message) for each in found.entries]


def by(kind: str, match_type: int, match: str | None = None) -> Any:
    component = DescribeClientQuotasRequest.ComponentData
    return component(entity_type=kind, match_type=match_type, match=match)


async def describe(w: AdminServing, *components: Any, version: int = 1, strict: bool = False) -> Any:
    return await w.ask(DESCRIBE, version, DescribeClientQuotasRequest(components=list(components), strict=strict))


def shown(found: Any) -> list[tuple[Pairs, dict[str, float]]]:
    assert found.error_code == ErrorCode.NONE
    assert found.error_message is None
    return [
        (
            [(each.entity_type, each.entity_name) for each in one.entity],
            {each.key: each.value for each in one.values},
        )
        for one in found.entries
    ]


@pytest.mark.parametrize("version", versions(ALTER))
async def test_quotas_are_described_once_they_are_altered(version: int) -> None:
    async with serving() as w:
        entities: list[Pairs] = []
        entities += [ALICE, [("user", None)], [("client-id", "c"), ("user", "alice")]]
        values = [{PRODUCER: 1.0, CONSUMER: 2.0}, {PRODUCER: 3.0}, {"request_percentage": 0.5}]
        asked = [entry(entity, **each) for entity, each in zip(entities, values, strict=True)]
        assert await alter(w, *asked, version=version) == [(0, None)] * 3
        assert shown(await describe(w, version=version)) == [
            (ALICE, values[0]),
            ([("user", None)], values[1]),
            ([("user", "alice"), ("client-id", "c")], values[2]),
        ]
        assert await alter(w, entry(ALICE, producer_byte_rate=None), version=version) == [(0, None)]
        assert (ALICE, {CONSUMER: 2.0}) in shown(await describe(w, version=version))


async def test_filters_match_as_kafkas() -> None:
    async with serving() as w:
        both: Pairs = [("user", "alice"), ("client-id", None)]
        entities: list[Pairs] = []
        entities += [ALICE, both, [("user", None)], [("client-id", "c")]]
        for entity in entities:
            assert await alter(w, entry(entity, producer_byte_rate=1.0)) == [(0, None)]

        async def found(*components: Any, strict: bool = False) -> list[Pairs]:
            return [entity for entity, _ in shown(await describe(w, *components, strict=strict))]

        assert await found(by("user", 0, "alice")) == [ALICE, both]
        assert await found(by("user", 0, "alice"), strict=True) == [ALICE]
        assert await found(by("user", 1)) == [[("user", None)]]
        assert await found(by("user", 2), strict=True) == [ALICE, [("user", None)]]
        assert await found(by("user", 2), by("client-id", 1)) == [both]
        assert await found(by("client-id", 2)) == [both, [("client-id", "c")]]
        assert await found(strict=True) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([by("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([by("user", 0, "a"), by("user", 2)], ErrorCode.INVALID_REQUEST),
        ([by("topic", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([by("user", 0)], ErrorCode.INVALID_REQUEST),
        ([by("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([by("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([by("user", 3)], ErrorCode.INVALID_REQUEST),
        ([by("ip", 2), by("client-id", 1)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_filters_that_kafka_refuses(components: list[Any], code: ErrorCode) -> None:
    async with serving() as w:
        found = await describe(w, *components)
        assert (found.error_code, found.entries) == (code, None)
        assert found.error_message


async def test_each_entity_has_a_result_of_its_own() -> None:
    async with serving() as w:
        twice = entry(ALICE, producer_byte_rate=1.0)
        twice.ops.append(twice.ops[0])
        results = await alter(
            w,
            entry([("user", "bob")], producer_byte_rate=1.0),
            twice,
            entry([("user", "x")], producer_byte_rate=-1.0),
            entry([("client-id", "c")], connection_creation_rate=1.0),
            entry([("user", "y")], producer_byte_rate=1.0),
            entry([("user", "y")], consumer_byte_rate=1.0),
            entry([]),
        )
        assert [code for code, _ in results] == [0] + 6 * [ErrorCode.INVALID_REQUEST]
        assert shown(await describe(w)) == [([("user", "bob")], {PRODUCER: 1.0})]


async def test_validate_only_changes_nothing() -> None:
    async with serving() as w:
        results = await alter(w, entry(ALICE, producer_byte_rate=1.0), entry(ALICE[:0]), only=True)
        assert [code for code, _ in results] == [0, ErrorCode.INVALID_REQUEST]
        assert shown(await describe(w)) == []


async def test_a_store_that_does_not_answer_and_too_many_entities_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as w:
        monkeypatch.setattr(quotas_view, "ENTITIES_MAX", 0)
        assert [code for code, _ in await alter(w, entry(ALICE, producer_byte_rate=1.0))] == [
            ErrorCode.POLICY_VIOLATION
        ]
        monkeypatch.undo()

        async def fails(*_: object) -> Any:
            raise KvUnavailable("down")

        monkeypatch.setattr(w.scopes.process.client_quotas._kv, "commit", fails)
        results = await alter(w, entry(ALICE, producer_byte_rate=1.0), entry([]))
        assert [code for code, _ in results] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_REQUEST]


@pytest.mark.slow
@pytest.mark.parametrize("is_allowed", [True, False], ids=["with the right", "without the right"])
@pytest.mark.parametrize("entities", [1, 3])
async def test_many_entities_take_many_turns_of_the_loop(entities: int, is_allowed: bool) -> None:
    async with serving() as w:
        if not is_allowed:
            w.scopes = change(w.scopes, authorizer=Nobody())
        entries = [entry([("user", f"u{each}")] * entities, **{PRODUCER: 1.0}) for each in range(4_000)]
        message = AlterClientQuotasRequest(version=1, entries=entries, validate_only=True)
        turns = Turns()
        found = await ALTER.handle(w.scopes, w.request(ALTER.key, 1), message)
        a_pass = 4 * (1 + entities)
        assert await turns.end() >= (3 * a_pass if is_allowed else a_pass) - 1
        assert len(found.entries) == 4_000
