"""UpdateFeatures, versions 0 to 2 (KIP-584, KIP-1022).

Behaviour: the leader sets all levels of a request, or none (``controller.feature_levels``).  A raised level is in force
when the response is sent, so each member supports it.  A lowered one is held: the leader does not raise it by itself.
Errors are those of Kafka's ``FeatureControlManager``, and of the whole request.

Version notes: 0 has ``allow_downgrade`` instead of the upgrade type, and no ``validate_only``.  Versions 0 and 1 return
a result for every feature of a successful request, version 2 returns none.

Departures: a feature may be named once (INVALID_REQUEST; in Kafka its last update counts).  A downgrade is refused if
it is not safe, whatever its upgrade type (Kafka: for ``metadata.version`` alone).
"""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import FeatureUpdate, UpgradeType
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import UpdateFeaturesResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.scopes import ProxyScopes

WITHOUT_RESULTS_SINCE = 2
UPDATES_MAX = 1_000
"""Features of one request: a hundred times as many as Kafka has."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    try:
        if not scopes.caller.rights(request).allow_on_cluster(AclOperation.ALTER):
            raise not_authorized(ResourceType.CLUSTER)
        updates = _updates(message, request.api_version)
        await _update(scopes, updates, message, validate_only=request.api_version > 0 and message.validate_only)
    except RequestError as error:
        return UpdateFeaturesResponse(
            throttle_time_ms=0, error_code=error.code, error_message=error.message or None, results=[]
        )
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    results = [result(feature=each.name, error_code=ErrorCode.NONE, error_message=None) for each in updates]
    return UpdateFeaturesResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        results=results if request.api_version < WITHOUT_RESULTS_SINCE else [],
    )


def _updates(message: Any, version: int) -> list[FeatureUpdate]:
    """Return the updates.  Raises RequestError INVALID_REQUEST if a feature is named twice, or there are too many."""
    if len(message.feature_updates) > UPDATES_MAX:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"More than {UPDATES_MAX} features in one request.")
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, _kind(each, version)) for each in message.feature_updates
    ]
    if len({each.name for each in updates}) < len(updates):
        raise RequestError(ErrorCode.INVALID_REQUEST, "A feature is named more than once.")
    return updates


def _kind(update: Any, version: int) -> int:
    """Return the code of the upgrade type, as Kafka's ``UpdateFeaturesRequest`` has it."""
    if version > 0:
        return int(update.upgrade_type)
    kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    return int(kind.value)


async def _update(scopes: ProxyScopes, updates: list[FeatureUpdate], message: Any, *, validate_only: bool) -> None:
    """Have the leader set the levels.

    Raises RequestError; INVALID_UPDATE_VERSION begins as Kafka's ``QuorumController`` has it.
    """
    late = RequestError(
        ErrorCode.REQUEST_TIMED_OUT, "the request's time was over before this was done; it may still have been done"
    )
    if message.timeout_ms <= 0:  # as in Kafka, whose controller drops a request that is late when its turn comes
        raise late
    try:
        async with asyncio.timeout(message.timeout_ms / 1000):
            await scopes.process.admin.update_features(updates, validate_only=validate_only)
    except TimeoutError:
        raise late from None
    except RequestError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        text = "The update failed for all features since the following feature had an error:"
        raise RequestError(error.code, f"{text} {error.message}") from None


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.UPDATE_FEATURES, 0, 2, handle, needs=NEEDS),)
