"""A node as the console and the metrics see it, with the numbers of each of its parts."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

from bmq.console.state import OwnMetric, StorageFacts
from bmq.controller.planning.planner_view import Why
from bmq.core.audit.log import NO_AUDIT
from bmq.core.config import NodeConfig
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.core.metrics.counters import Histogram, Metrics
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.node import Node
from bmq.server.queries.counts import Counts
from bmq.server.queries.own_metrics import OwnMetrics


class PendingMoves:
    """One that waits, after two that were made."""

    def __init__(self) -> None:
        self.moves = Counter({Why.DEAD: 2})

    def __len__(self) -> int:
        return 1


TERM = SimpleNamespace(
    failures=SimpleNamespace(declared_dead={"lease_ended": 2, "no_answer": 1}),
    pending_moves=PendingMoves(),
    without_owner=lambda: (4, 2),
)


def collected(**parts: object) -> SimpleNamespace:
    """Return numbers of a process without a broker, and ``parts`` instead of its own."""
    of = {"request": lambda: None, "group_lag": None, "log_sizes": None, "counts": Counts(None, None)}
    return SimpleNamespace(**{**of, **parts})


def coordinator_role(not_loaded: dict[int, str]) -> SimpleNamespace:
    return SimpleNamespace(
        coordinator=SimpleNamespace(groups_refused=2, commits_unverified=4, oldest_pending_s=12.5),
        transaction_shards=None,
        shards_not_loaded=lambda: {ShardId(GROUPS, number): why for number, why in not_loaded.items()},
        shards_not_loaded_by_reason=lambda: {"storage": len(not_loaded), "no_owner": 0},
    )


def node(
    *,
    is_leading: bool = False,
    has_leader: bool = True,
    not_loaded: dict[int, str] | None = None,
    quarantined: dict[str, str] | None = None,
    room: StorageFacts | None = None,
) -> Node:
    view = SimpleNamespace(
        own="b", members={"a": object(), "b": object()}, controller=object() if has_leader else None,
        owned_count=lambda incarnation: {"b": 3}[incarnation], levels=FeatureLevels(levels={"f": 1}),
    )  # fmt: skip
    joined = SimpleNamespace(
        view=view,
        features=FeatureTable((Feature("f", LevelRange(0, 2)),)),
        membership=SimpleNamespace(is_member=True, lease_age_s=1.5),
        peers=SimpleNamespace(connected=1),
    )
    fake = SimpleNamespace(
        metrics=Metrics(),
        catalog=None,
        fs=None,
        broker=None,
        is_serving=True,
        coordinator=coordinator_role(not_loaded) if not_loaded is not None else None,
        certificates={"OUT": SimpleNamespace(expires_in_s=86_400.0)},
        collected=collected(),
        joined=joined,
        view=view,
        quarantined=lambda: quarantined or {},
        held_produces=5,
        controller=SimpleNamespace(
            controller=SimpleNamespace(leading=TERM if is_leading else None),
            store_upkeep=None,
            is_leader=is_leading,
            cleaner=SimpleNamespace(waiting=3, failing=1) if is_leading else None,
            access_walks=SimpleNamespace(under_way=2, failing=1) if is_leading else None,
        ),
        proxy=SimpleNamespace(
            remote_owners=SimpleNamespace(followed=7, relayed=4, route_ms=Histogram()),
            fetch_service=SimpleNamespace(
                tails=SimpleNamespace(used=0),
                wait_ms=Histogram(),
                read_ms=Histogram(),
                budget=SimpleNamespace(response_bytes=9, waiting=1),
            ),
            console_endpoint=None,
            coordinator=None,
            transactions=None,
            owners=None,
            audit=NO_AUDIT,
            audit_log=None,
        ),
        security=SimpleNamespace(authorizer=ALLOW_ALL),
        store_times=None,
        config=NodeConfig(roles=()),
        storage_room=SimpleNamespace(known=room, facts=None),
        pool=SimpleNamespace(cached_bytes=0, hits=1, hit_bytes=2, reads=3, read_bytes=4),
    )
    return cast(Node, fake)


def metrics(of: Node) -> dict[str, float]:
    return {
        f"{each.name}{{{each.label_value}}}" if each.label else each.name: each.value
        for each in OwnMetrics(of).read()
        if isinstance(each, OwnMetric)
    }
