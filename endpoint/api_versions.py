"""ApiVersions, versions 0 to 4: the APIs that this endpoint serves, from the handlers' registrations.

Behaviour: the response comes from memory, for every client, at any time.  A request in an unknown version of
ApiVersions gets UNSUPPORTED_VERSION and the known versions of ApiVersions, in version 0 (KIP-511): the client then
sends it again.

Version notes: 3 carries the client's software name and version; a name that Kafka would refuse gets INVALID_REQUEST.
4 may list features whose lowest version is 0; version 3 leaves them out (KAFKA-17492).

Features (KIP-584): those whose highest level is above 0 in this version's table (``core.features``).  Without any the
epoch is -1.  Clients count an absent feature as level 0.  At a level of ``transaction.version`` below 2 a producer adds
partitions by requests of their own.  Without ``group.version`` clients do not use the consumer protocol of KIP-848.
``metadata.version`` is between Kafka's own processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.features import Feature, FeatureTable
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import NOTHING_NEEDED
from bmq.endpoint.scopes import AnyScopes

SOFTWARE_SINCE = FEATURES_SINCE = 3
LOWEST_0_SINCE = 4
CLIENT_ID_KEPT = 256
"""Characters of a client id that a connection keeps, for log lines."""
SOFTWARE_KEPT = 64
"""Characters of the software's name and version that a connection keeps.  The request may have half a megabyte."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Software names and versions that Kafka accepts (``ApiVersionsRequest``)."""


class ApiVersions:
    """The handler of an endpoint, with the APIs that it lists."""

    def __init__(self, apis: Sequence[Api[Any]]) -> None:
        self._apis = apis

    def __call__(self, scopes: AnyScopes, request: Request, message: ApiVersionsRequest) -> ApiVersionsResponse:
        if request.client_id is not None:
            request.client.client_id = request.client_id[:CLIENT_ID_KEPT]
        if request.api_version >= SOFTWARE_SINCE:
            name, version = message.client_software_name, message.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
            request.client.client_software = (name[:SOFTWARE_KEPT], version[:SOFTWARE_KEPT])
        api_keys = [_range(api) for api in self._apis]
        if request.api_version < FEATURES_SINCE or not (features := _listed(scopes.process.features)):
            return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=api_keys)
        supported, finalized = ApiVersionsResponse.SupportedFeatureKey, ApiVersionsResponse.FinalizedFeatureKey
        levels = scopes.process.levels()
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=api_keys,
            supported_features=[
                supported(name=each.name, min_version=each.supported.lowest, max_version=each.supported.highest)
                for each in features
                if each.supported.lowest > 0 or request.api_version >= LOWEST_0_SINCE
            ],
            finalized_features_epoch=levels.epoch,
            finalized_features=[
                finalized(name=each.name, max_version_level=level, min_version_level=level)
                for each in features
                if (level := levels.of(each.name))
            ],
        )


def _listed(table: FeatureTable) -> list[Feature]:
    """Return the features for clients: those with a level above 0."""
    return [feature for feature in table.features if feature.supported.highest > 0]


def unsupported_version(api: Api[Any]) -> ApiVersionsResponse:
    """Return the response, to be encoded in version 0, to a request in a version that is not served.

    ``api`` is ApiVersions itself.
    """
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(api)])


def _range(api: Api[Any]) -> ApiVersionsResponse.ApiVersion:
    least = api.min_version if api.advertised_min is None else api.advertised_min
    return ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=least, max_version=api.max_version)


APIS = (Api(ApiKey.API_VERSIONS, 0, 4, ApiVersions(()), needs=NOTHING_NEEDED, handle_of=ApiVersions),)
