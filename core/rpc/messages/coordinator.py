"""Messages that coordinators serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import (
    Bool,
    Int16,
    Int64,
    Late,
    LaterText,
    LaterTopicIds,
    Numbers,
    Reasons,
    Row,
    Rows,
    Text,
)


@dataclass(frozen=True, slots=True)
class ForwardResponse(InternalResponse):
    """``body`` is the response's, in the request's version; within a process it may be the response itself."""

    message: Text = ""
    body: Late = b""


@dataclass(frozen=True, slots=True)
class ForwardRequest(InternalRequest[ForwardResponse]):
    """A client's request for a group, as it came.

    ``ownerships`` are pairs (code of a shard, expected ownership number); ``meta.shard_kinds`` has the codes.

    ``principal`` is the client's, with requests that may create a group or a transactional id.  A coordinator of an
    earlier version does not read it: the group or id counts for nobody.

    ``topic_ids`` are the ids that a broker means by the names of topics in its question about a transaction.  The
    coordinator's catalog may be behind, and show an earlier topic of the name.
    """

    KEY = InternalKey.FORWARD

    client_host: Text
    client_id: Text
    api_key: Int16
    api_version: Int16
    ownerships: Numbers
    body: Late
    principal: LaterText = ""
    topic_ids: LaterTopicIds = ()


@dataclass(frozen=True, slots=True)
class ShardsNotLoadedResponse(InternalResponse):
    """Shards that should be loaded by now and are not, by code, each with the reason."""

    shards: Reasons = ()


@dataclass(frozen=True, slots=True)
class ShardsNotLoadedRequest(InternalRequest[ShardsNotLoadedResponse]):
    """A request for the shards that the coordinator cannot load."""

    KEY = InternalKey.SHARDS_NOT_LOADED


LagSamples = Annotated[tuple[tuple[int, int], ...], Rows(Row(Int64, Int64))]


@dataclass(frozen=True, slots=True)
class GroupLagResponse(InternalResponse):
    """Times of day in ms, each with the group's lag then; ``is_counted`` False: the process is set to count none."""

    is_counted: Bool = False
    samples: LagSamples = ()


@dataclass(frozen=True, slots=True)
class GroupLagRequest(InternalRequest[GroupLagResponse]):
    """A request for the samples of a group's lag that are newer than ``after_ms`` of the time of day."""

    KEY = InternalKey.GROUP_LAG

    group_id: Text
    after_ms: Int64
