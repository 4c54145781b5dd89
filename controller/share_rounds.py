"""The rounds in which brokers report their open files and are sent their shares (``controller.file_shares``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from bmq.controller.election import Leadership
from bmq.controller.file_shares import FileShares
from bmq.controller.member_client import MemberClient
from bmq.core.clock import Clock
from bmq.meta.cluster.member import Member

_log = logging.getLogger(__name__)

SHARE_ROUND_S = 1.0
"""Time between rounds while storage lacks room for open files."""
ROOMY_ROUND_S = 5.0
"""Time between rounds while it does not."""
BROKERS_PARALLEL = 16
"""Brokers asked at once."""


class ShareRounds:
    """The rounds of one term: ``run`` until cancelled.

    ``brokers`` returns the brokers that count as alive; ``is_living`` whether one, by its incarnation, still does when
    its report arrives.
    """

    def __init__(
        self,
        leadership: Leadership,
        client: MemberClient,
        clock: Clock,
        *,
        brokers: Callable[[], Iterable[Member]],
        is_living: Callable[[str], bool],
    ) -> None:
        self._leadership = leadership
        self._client = client
        self._clock = clock
        self._brokers = brokers
        self._is_living = is_living
        self._shares = FileShares()

    def __repr__(self) -> str:
        return f"<ShareRounds {self._shares!r}>"

    def forget(self, broker: str) -> None:
        """Forget a broker that is not a member any more."""
        self._shares.forget(broker)

    async def run(self) -> None:
        """Divide the open files that storage has room for: a round sends the last round's shares and takes reports."""
        shares = self._shares
        turns = asyncio.Semaphore(BROKERS_PARALLEL)

        async def ask(member: Member) -> None:
            async with turns:
                reported = await self._client.open_files(member, shares.share(member.incarnation))
            if reported is not None and self._is_living(member.incarnation):
                shares.update(member.incarnation, reported, self._clock.monotonic())

        while True:
            if self._leadership.may_act:
                was_divided = shares.is_divided
                async with asyncio.TaskGroup() as tasks:
                    for member in self._brokers():
                        tasks.create_task(ask(member))
                shares.divide(self._clock.monotonic())
                if shares.is_divided != was_divided:
                    if shares.is_divided:
                        _log.info("storage has room for about %d open files, brokers share it", shares.room)
                    else:
                        _log.info("storage has room again, brokers need no shares")
            await asyncio.sleep(SHARE_ROUND_S if shares.is_divided else ROOMY_ROUND_S)
