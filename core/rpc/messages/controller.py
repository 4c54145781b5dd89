"""Messages that controllers serve; those of administration: ``controller.admin.messages``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Added, Array, Bool, Float64, Row, Text


@dataclass(frozen=True, slots=True)
class ReportResponse(InternalResponse):
    """The receipt of a report."""


@dataclass(frozen=True, slots=True)
class ReportRequest(InternalRequest[ReportResponse]):
    """A report that the sender's connection to ``incarnation`` broke, or could not be made."""

    KEY = InternalKey.REPORT

    incarnation: Text
    why: Text


class QuotaDemand(NamedTuple):
    """A proxy's report on a holder of a quota, which ``quota`` names; rates and shares are a second's."""

    quota: Text
    limit: Float64
    rate: Float64
    share: Float64
    was_short: Bool


QuotaDemands = Annotated[tuple[QuotaDemand, ...], Array(Row.of(QuotaDemand))]
Floats = Annotated[tuple[tuple[float], ...], Array(Row(Float64))]
Credits = Annotated[tuple[tuple[float], ...], Added(0, Array(Row(Float64)))]


@dataclass(frozen=True, slots=True)
class QuotaSharesResponse(InternalResponse):
    """The sender's shares and the changes of their credits, in the order of the request.

    ``error``: this process does not lead.  An earlier version's leader leaves credits as they are.
    """

    shares: Floats = ()
    credits: Credits = ()


@dataclass(frozen=True, slots=True)
class QuotaSharesRequest(InternalRequest[QuotaSharesResponse]):
    """A request for the sender's shares in limits of the cluster.

    ``credits`` has the holders' credits, below 0 a debt, in the order of the demands.  A request of an earlier version
    has no credits.
    """

    KEY = InternalKey.QUOTA_SHARES

    demands: QuotaDemands = ()
    credits: Credits = ()
