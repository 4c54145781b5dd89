"""UpdateFeatures in every version: what the leader is asked, and errors as Kafka's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import FeatureUpdate
from bmq.core.wire.messages import UpdateFeaturesRequest
from bmq.proxy.handlers import update_features
from tests.harness.scopes import change
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving

API = update_features.APIS[0]


class FakeAdmin:
    """The leader: it keeps what it is asked, or raises ``error``."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[FeatureUpdate], bool]] = []
        self.error: RequestError | None = None

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        self.asked.append((list(updates), validate_only))
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def serving_features() -> AsyncIterator[tuple[AdminServing, FakeAdmin]]:
    async with serving() as w:
        admin = FakeAdmin()
        w.scopes = change(w.scopes, admin=admin)
        yield w, admin


def update(name: str = "f", level: int = 1, **fields: Any) -> Any:
    return UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, **fields)


async def ask(w: AdminServing, version: int, *updates: Any, timeout_ms: int = 1_000, **fields: Any) -> Any:
    message = UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=list(updates), **fields)
    return await w.ask(API, version, message)


@pytest.mark.parametrize("version", versions(API))
async def test_a_request_is_the_leaders(version: int) -> None:
    async with serving_features() as (w, admin):
        fields = {"upgrade_type": 2} if version else {"allow_downgrade": True}
        found = await ask(w, version, update(**fields), update("g", 3), **({"validate_only": True} if version else {}))
        assert admin.asked == [([FeatureUpdate("f", 1, 2), FeatureUpdate("g", 3, 1)], version > 0)]
        assert (found.error_code, found.error_message) == (ErrorCode.NONE, None)
        results = [(each.feature, each.error_code, each.error_message) for each in found.results or ()]
        assert results == ([("f", 0, None), ("g", 0, None)] if version < 2 else [])


@pytest.mark.parametrize("version", versions(API))
async def test_an_error_is_that_of_the_whole_request(version: int) -> None:
    async with serving_features() as (w, admin):
        admin.error = RequestError(ErrorCode.INVALID_UPDATE_VERSION, "Invalid update version 1 for feature f. No.")
        found = await ask(w, version, update())
        assert found.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert found.error_message == (
            "The update failed for all features since the following feature had an error:"
            " Invalid update version 1 for feature f. No."
        )
        assert not found.results
        admin.error = RequestError(ErrorCode.FEATURE_UPDATE_FAILED, "a process registered")
        found = await ask(w, version, update())
        assert (found.error_code, found.error_message) == (ErrorCode.FEATURE_UPDATE_FAILED, "a process registered")


async def test_what_is_refused_before_the_leader_is_asked() -> None:
    async with serving_features() as (w, admin):
        found = await ask(w, 2, update(), update(level=2))
        assert found.error_code == ErrorCode.INVALID_REQUEST
        found = await ask(w, 2, *(update(str(number)) for number in range(update_features.UPDATES_MAX + 1)))
        assert found.error_code == ErrorCode.INVALID_REQUEST
        found = await ask(w, 2, update(), timeout_ms=0)
        assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert [asked for asked, _ in admin.asked if len(asked) > 1] == []


async def test_a_leader_of_an_earlier_version_refuses_it() -> None:
    async with serving_features() as (w, admin):
        admin.error = RequestError(ErrorCode.UNSUPPORTED_VERSION, "c1 does not serve it")
        assert (await ask(w, 2, update())).error_code == ErrorCode.UNSUPPORTED_VERSION
