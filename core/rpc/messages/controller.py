"""Messages that controllers serve; those of administration: ``controller.admin.messages``."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Text


@dataclass(frozen=True, slots=True)
class ReportResponse(InternalResponse):
    """The receipt of a report."""


@dataclass(frozen=True, slots=True)
class ReportRequest(InternalRequest[ReportResponse]):
    """A report that the sender's connection to ``incarnation`` broke, or could not be made."""

    KEY = InternalKey.REPORT

    incarnation: Text
    why: Text
