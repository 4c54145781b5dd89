"""The silence of members that were declared dead, and may join again while they are still silent to this process."""

from __future__ import annotations

from collections.abc import Set

from bmq.core.aio.lru import LruCache

SILENT_MAX = 64
"""Members declared dead because they were silent, of which it is remembered since when."""


class SilentMembers:
    """Silent members, and members that joined again after a silence and have not yet answered a probe."""

    __slots__ = ("_since", "_unproven")

    def __init__(self) -> None:
        self._since: LruCache[str, float] = LruCache(SILENT_MAX)
        self._unproven: dict[str, tuple[float, float]] = {}  # since when it did not respond, and when it joined again

    @property
    def unproven(self) -> Set[str]:
        """The members that joined again and have not yet answered a probe."""
        return self._unproven.keys()

    def note(self, incarnation: str, since: float) -> None:
        """Note that a member has not responded since a monotonic time."""
        self._since.put(incarnation, since)

    def joined(self, incarnation: str, now: float) -> None:
        """Note that a member joined: it has to answer a probe if it was silent before."""
        since = self._since.pop(incarnation)
        if since is not None:
            self._unproven[incarnation] = since, now

    def responded(self, incarnation: str) -> float | None:
        """Note a response; return for how many seconds the member was silent before it joined again, if it was."""
        self._since.pop(incarnation)
        times = self._unproven.pop(incarnation, None)
        return None if times is None else times[1] - times[0]

    def gone(self, incarnation: str) -> None:
        """Note that a member is gone.  If it had to answer a probe, it has to once it joins again."""
        times = self._unproven.pop(incarnation, None)
        if times is not None:
            self.note(incarnation, times[0])
