"""The APIs for clients (proxy/apis.py): the requests that may be parked, by their frames."""

from __future__ import annotations

from bmq.coordinator.routing import GROUP_APIS
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.apis import ALL_APIS
from tests.harness.scopes import make_endpoint, make_scopes


def test_the_requests_that_may_be_parked() -> None:
    endpoint = make_endpoint(make_scopes(), ALL_APIS)
    parked = {api.key for api in ALL_APIS if endpoint.may_park(memoryview(int(api.key).to_bytes(2, "big") + bytes(6)))}
    assert parked == {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
    assert {key for key, api in GROUP_APIS.routed.items() if api.may_park} == parked - {ApiKey.FETCH}
