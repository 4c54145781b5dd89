"""What the leader asks members: whether they live and serve, what they carry and have open, and to leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmq.controller.file_shares import OpenFileReport
from bmq.controller.planning.partition_load import Measured
from bmq.meta.cluster.member import Member


class MemberClient(Protocol):
    """The leader's calls.  ``peer_asking`` makes them over the internal connections."""

    async def is_alive(self, member: Member) -> bool:
        """A probe: False when it is as good as dead."""

    async def load(self, member: Member) -> list[Measured] | None:
        """Its traffic since it was last asked; None when it does not say."""

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        """Send it its share of open files, unless that is None, and return its report; None if it sends none: it
        does not answer, or is of an earlier version."""

    async def is_serving(self, member: Member) -> bool | None:
        """Whether it can do what it is for; None when it does not say."""

    def keep(self, member: Member) -> None:
        """Have a connection to it, so that its breaking is heard of."""

    async def leave(self, member: Member) -> None:
        """Have it drain and end.  RequestError."""

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        """Have ``call`` run with a member's incarnation, and why, when the connection to it breaks;
        the answer ends that."""
