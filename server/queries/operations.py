"""Operators' commands, for the console of one process."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.console.operations import (
    DrainFacts,
    LoggerFacts,
    LogLevelFacts,
    LogLevelsFacts,
    MovedFacts,
    NotPossible,
    ProcessFacts,
)
from bmq.controller.admin.client import RemoteAdmin
from bmq.core.logging.levels import LoggerLevel, LogLevels
from bmq.server.cluster_member import ClusterMember
from bmq.server.log_levels_api import log_levels
from bmq.server.queries.cluster_facts import ClusterStatus
from bmq.server.queries.job_rounds import JobRounds
from bmq.server.queries.member_names import Ambiguous, NoSuchMember, find_member
from bmq.server.queries.repairs import Repairs


class Operations:
    """The ``ClusterOperations`` of one process."""

    def __init__(
        self,
        joined: ClusterMember,
        admin: RemoteAdmin,
        levels: LogLevels,
        status: ClusterStatus,
        rounds: JobRounds,
        repairs: Repairs,
    ) -> None:
        """Join the commands; ``levels`` are the log levels of this process."""
        self._joined = joined
        self._admin = admin
        self._log_levels = levels
        self.members = status.members
        self.status = status.status
        self.begin_cleaning = rounds.begin_cleaning
        self.swap_cleaned = rounds.swap_cleaned
        self.end_cleaning = rounds.end_cleaning
        self.repair = repairs.repair

    async def drain(self, member: str) -> DrainFacts:
        found = self._find(member)
        await self._admin.drain(found["incarnation"])
        return DrainFacts(member=found["incarnation"], partitions=found["partitions"], shards=found["shards"])

    async def balance(self) -> int:
        return await self._admin.balance()

    async def move(self, topic: str, partition: int, member: str) -> MovedFacts:
        incarnation = self._find(member)["incarnation"]
        await self._admin.move(topic, partition, incarnation)
        return MovedFacts(topic=topic, partition=partition, member=incarnation)

    async def log_levels(self, member: str) -> LogLevelsFacts:
        incarnation, found = await self._ask_levels(member, "", "")
        return LogLevelsFacts(
            member=incarnation,
            loggers=[LoggerFacts(logger=each.logger, level=each.level, is_set=each.is_set) for each in found],
        )

    async def set_log_level(self, member: str, logger: str, level: str) -> LogLevelFacts:
        incarnation, (found,) = await self._ask_levels(member, logger, level)
        return LogLevelFacts(member=incarnation, logger=found.logger, level=found.level, is_set=found.is_set)

    async def _ask_levels(self, named: str, logger: str, level: str) -> tuple[str, Sequence[LoggerLevel]]:
        incarnation = self._find(named)["incarnation"]
        return incarnation, await log_levels(
            self._log_levels, self._joined, self._joined.view.members[incarnation], logger, level
        )

    def _find(self, named: str) -> ProcessFacts:
        """Return the member of this name.  Raises NotPossible if there is none, or more than one."""
        members = {each["incarnation"]: each for each in self.members()}
        try:
            return members[find_member(named, list(members.values()))]
        except NoSuchMember as error:
            raise NotPossible(404, "unknown_member", str(error)) from None
        except Ambiguous as error:
            raise NotPossible(409, "ambiguous_member", str(error)) from None
