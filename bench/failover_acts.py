"""The acts of the failover measurement: what is lost, added or restarted, how, and the aim for its pauses.  Pure.

A deployment has some of the parts; Kafka's counterpart of an act is the same act on the part that does the same work,
and none where it has no such part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

KILL, PAUSE, UNPLUG = "killed", "paused", "unplugged"
DRAIN, RESTART, ADD = "drained", "restarted", "one more"
DEATHS = (KILL, PAUSE, UNPLUG)
PLANNED = (DRAIN, RESTART, ADD)
HOW: Mapping[str, str] = {
    KILL: "`kill -9`",
    PAUSE: "silence: SIGSTOP, its connections stay open",
    UNPLUG: "silence: its cable is pulled, as a switch or the power of a machine would",
    DRAIN: "SIGTERM, and it stays away",
    RESTART: "SIGTERM, and it is started again at once",
    ADD: "a further one is started, and gets its share of the partitions",
}
NODE, BROKER, PROXY, CONTROLLER, COORDINATOR = "node", "broker", "proxy", "controller", "coordinator"
DATANODE, NAMENODE, ETCD, MACHINE = "datanode", "namenode", "etcd", "machine"
PARTS: Mapping[str, str] = {
    NODE: "process with all roles",
    MACHINE: "whole machine",
    BROKER: "broker",
    PROXY: "proxy",
    CONTROLLER: "leading controller",
    COORDINATOR: "the group's coordinator",
    DATANODE: "datanode",
    NAMENODE: "NameNode",
    ETCD: "etcd's leader",
}
"""The parts, in the order of the page, in its words."""
SITES: Mapping[str, tuple[str, str]] = {"nodes": ("kafka-3", "bmq-3"), "roles": ("kafka-roles", "bmq-roles")}
"""The deployments that are measured in turn, Kafka's first."""
HAS: Mapping[str, tuple[str, ...]] = {
    "kafka-3": (NODE, MACHINE, CONTROLLER, COORDINATOR),
    "bmq-3": (NODE, MACHINE, CONTROLLER, COORDINATOR, DATANODE, NAMENODE, ETCD),
    "kafka-roles": (BROKER, CONTROLLER, COORDINATOR),
    "bmq-roles": (BROKER, PROXY, CONTROLLER, COORDINATOR),
}
OWNERS = (NODE, BROKER)
"""The parts that own partitions: these are drained, added and restarted too."""
SIZED = frozenset(
    {(part, KILL) for part in (NODE, MACHINE, BROKER, DATANODE)} | {(part, how) for part in OWNERS for how in PLANNED}
)
"""What is measured at every size of data; the rest at the first size only."""
AIM_DEATH_MS, AIM_PLANNED_MS = 3000.0, 100.0
NAMENODE_AWAY_S = 10.0
"""Seconds for which the NameNode is silent.  It is the only one: after a kill it is started again at once."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act on one part of a deployment."""

    part: str
    how: str

    @property
    def case(self) -> str:
        """Name in results and options, such as ``node-killed``."""
        return f"{self.part}-{self.how.replace(' ', '-')}"

    def case_at(self, size: str) -> str:
        """Return the case under which the results have it, with so much data."""
        return f"{self.case}, {size}"

    @property
    def aim_ms(self) -> float:
        """The longest pause that BMQ aims at."""
        return AIM_PLANNED_MS if self.how in PLANNED else AIM_DEATH_MS

    @property
    def away_s(self) -> float | None:
        """Seconds after which it is undone; None if it lasts until the stream flows without the part."""
        if self.part != NAMENODE:
            return None
        return 0.0 if self.how == KILL else NAMENODE_AWAY_S


def acts_of(deployment: str) -> list[Act]:
    """Return the acts that a deployment can be measured in, in the order of the page; additions come last."""
    parts = [part for part in PARTS if part in HAS[deployment]]
    found = [Act(part, how) for part in parts for how in DEATHS]
    return found + [Act(part, how) for part in parts if part in OWNERS for how in PLANNED]


ACTS: Mapping[str, Act] = {act.case: act for names in SITES.values() for name in names[::-1] for act in acts_of(name)}
"""Every act by its case, in the order of the page."""


def in_order(acts: Sequence[Act], number: int) -> list[Act]:
    """Return the acts in the order of this round: each round begins a fifth further on.

    An addition stays last, since its deployment is another one afterwards.
    """
    others, last = [act for act in acts if act.how != ADD], [act for act in acts if act.how == ADD]
    start = (number - 1) * max(1, len(others) // 5) % max(1, len(others))
    return others[start:] + others[:start] + last


def chosen(deployment: str, cases: Collection[str], *, is_first_size: bool, can_unplug: bool) -> list[Act]:
    """Return the acts of a deployment that are wanted, at this size, on this machine."""
    return [
        act
        for act in acts_of(deployment)
        if act.case in cases and (is_first_size or (act.part, act.how) in SIZED) and (can_unplug or act.how != UNPLUG)
    ]
