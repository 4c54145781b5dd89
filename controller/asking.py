"""The leader's requests to members: whether they are alive and serve, their load and open files, and to leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmq.controller.file_shares import OpenFileReport
from bmq.controller.planning.partition_load import Measured
from bmq.meta.cluster.member import Member


class MemberClient(Protocol):
    """The leader's calls; ``controller.member_client`` makes them over the internal connections."""

    async def is_alive(self, member: Member) -> bool:
        """Probe the member.  Returns False if it refuses the connection or does not respond."""

    async def load(self, member: Member) -> list[Measured] | None:
        """Return the traffic of the member's partitions since the last call; None if it does not respond."""

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        """Send the member its share of open files, unless that is None, and return its report.

        Returns None if it sends none: it does not respond, or is of an earlier version.
        """

    async def is_serving(self, member: Member) -> bool | None:
        """Return whether the member can do its work; None if it does not respond."""

    def keep(self, member: Member) -> None:
        """Keep a connection to the member, so that its end is noticed (``subscribe_broken``)."""

    async def leave(self, member: Member) -> None:
        """Have the member drain and end.  Raises RequestError."""

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        """Call ``call`` with a member's incarnation and the reason when the connection to it breaks.

        Returns a function that unsubscribes it.
        """
