"""Stand-ins of the audit log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bmq.core.audit.event import AuditEvent
from bmq.core.audit.log import NotWritten


class HeldAudit:
    """An audit log that keeps its events."""

    is_on = True

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.events.append(event)

    def entries(self) -> list[tuple[str, str, str, str | None]]:
        """Return kind, act, outcome and resource of each event."""
        return [(each.kind.value, each.act, each.outcome.value, each.resource) for each in self.events]


class HeldSink:
    """A sink that keeps its lines, and refuses them while ``trouble`` says why."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.trouble = ""
        self.writes_first = 0
        """Lines that are written before the trouble."""
        self.is_closed = False

    async def write(self, lines: Sequence[bytes]) -> None:
        if self.trouble:
            self.lines += lines[: self.writes_first]
            raise NotWritten(self.trouble, self.writes_first)
        self.lines += lines

    async def close(self) -> None:
        self.is_closed = True

    @property
    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]
