"""The lines that wait to be written, and the bounds on them.  Pure.

A priority has room of its own, so no flood of log-ins or denials pushes an act out.  A source has half of a priority's
room at most, so it does not push others' lines out.  The writer takes acts first, then denials, then log-ins, and no
more lines a second than the setting says.  Lines without room are counted by kind, source and act; a line with these
counts comes before the next lines.

    event ──> room in its priority, and its source's half not full? ── no ──> count it
              yes: its line waits ── at most the rate, acts first ──> a batch for the writer
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from bmq.core.audit.event import TEXT_MAX, AuditEvent, LeftOut, Priority


class Room(NamedTuple):
    """Bounds on the lines of one priority that wait."""

    lines: int
    bytes: int


ROOM: Mapping[Priority, Room] = {
    Priority.ACT: Room(40_000, 24 << 20),
    Priority.DENIAL: Room(10_000, 6 << 20),
    Priority.LOGIN: Room(20_000, 10 << 20),
}
"""A request creates 20,000 topics at most, which is half of the acts' room; 10,000 clients may connect again at once.
40 MB in all, while nothing can be written."""
BATCH_LINES = 500
BATCH_BYTES = 512 << 10
"""A batch is one append to a file, or one record batch of a topic: under message.max.bytes."""
COUNTED_MAX = 100
"""Kinds, sources and acts whose lines left out are counted apart between two lines about them."""
LEFT_OUT_S = 10.0
"""Time between two lines about lines left out."""
OTHERS = "(others)"


class _Waiting:
    """The lines of one priority, the oldest first."""

    __slots__ = ("by_source", "bytes", "lines", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.lines: deque[tuple[str, bytes]] = deque()
        self.bytes = 0
        self.by_source: dict[str, list[int]] = {}  # lines and bytes

    def has_room(self, source: str) -> bool:
        """Return whether one more line of the source may wait."""
        lines, size = self.by_source.get(source, (0, 0))
        room = self.room
        return (
            len(self.lines) < room.lines
            and self.bytes < room.bytes
            and lines < room.lines // 2
            and size < room.bytes // 2
        )

    def put(self, source: str, line: bytes) -> None:
        self.lines.append((source, line))
        self.bytes += len(line)
        held = self.by_source.setdefault(source, [0, 0])
        held[0] += 1
        held[1] += len(line)

    def pop(self) -> bytes:
        source, line = self.lines.popleft()
        self.bytes -= len(line)
        held = self.by_source[source]
        held[0] -= 1
        held[1] -= len(line)
        if not held[0]:
            del self.by_source[source]
        return line


class AuditQueue:
    """The lines that wait.  ``now`` is in seconds, and never goes back."""

    def __init__(self, lines_per_s: int, room: Mapping[Priority, Room] = ROOM) -> None:
        self._rate = lines_per_s
        self._waiting = {priority: _Waiting(room[priority]) for priority in Priority}
        self._tokens = float(lines_per_s)
        self._since = 0.0
        self._uncounted: Counter[LeftOut] = Counter()
        self._last_left_out = float("-inf")
        self.left_out: Counter[str] = Counter({priority.name.lower(): 0 for priority in Priority})
        """Lines left out since the start, by priority."""

    def __len__(self) -> int:
        return sum(len(each.lines) for each in self._waiting.values())

    @property
    def size(self) -> int:
        """Bytes of the lines that wait."""
        return sum(each.bytes for each in self._waiting.values())

    @property
    def has_left_out(self) -> bool:
        """True if a line about lines left out is to be written."""
        return bool(self._uncounted)

    def has_room(self, event: AuditEvent) -> bool:
        """Return whether the event's line may wait; count it as left out if not."""
        priority = event.priority
        if self._waiting[priority].has_room(event.source):
            return True
        self.left_out[priority.name.lower()] += 1
        key = LeftOut(event.kind.value, event.source, event.act[:TEXT_MAX])
        if key not in self._uncounted and len(self._uncounted) >= COUNTED_MAX:
            key = LeftOut(event.kind.value, OTHERS, OTHERS)
        self._uncounted[key] += 1
        return False

    def put(self, event: AuditEvent, line: bytes) -> None:
        """Let the line of an event wait that ``has_room``."""
        self._waiting[event.priority].put(event.source, line)

    def take_left_out(self, now: float, *, is_last: bool = False) -> list[tuple[LeftOut, int]]:
        """Return the counts of lines left out, the largest first; nothing if a line about them is not due."""
        if not self._uncounted or (not is_last and now - self._last_left_out < LEFT_OUT_S):
            return []
        self._last_left_out = now
        found = self._uncounted.most_common()
        self._uncounted.clear()
        return found

    def take(self, now: float, *, is_last: bool = False) -> list[bytes]:
        """Return the next batch of lines, acts first; nothing if none waits, or none may be written yet.

        ``is_last``: the process ends, and the rate does not count.
        """
        self._tokens = min(float(self._rate), self._tokens + max(0.0, now - self._since) * self._rate)
        self._since = now
        limit = BATCH_LINES if is_last else min(BATCH_LINES, int(self._tokens))
        batch: list[bytes] = []
        size = 0
        for waiting in self._waiting.values():
            while waiting.lines and len(batch) < limit and size < BATCH_BYTES:
                line = waiting.pop()
                size += len(line)
                batch.append(line)
        self._tokens = max(0.0, self._tokens - len(batch))
        return batch
