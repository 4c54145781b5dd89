"""Which storage nodes to avoid: pure, time as an argument.

A NameNode hands out a dead datanode for minutes, so exclusion is ours.  A node is excluded when a pipeline named it as
the one that failed, or when flushes through it are slow while flushes that avoid it are not.  Exclusion ends with a
successful probe, at the latest after ``exclude_ms``; when all else fails the file system drops the advice.  A node that
does not answer a probe is left by every pipeline that is written through it.

Slowness is judged against the other nodes, never alone: storage that is slow everywhere is only slow.  A flush is as
slow as the slowest node of its pipeline, so a slow flush accuses all of them; but a fast one acquits all of them.  So a
node is known by its fast flushes: a good node has some, in pipelines without the slow one, the slow one has none.  This
works from four nodes on, where means over all flushes would need fifteen.  Rolls for
slowness take a token from a bucket, so that a cluster-wide hiccup cannot become a storm of new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    exclude_ms: int = 60_000
    """Longest exclusion; a probe may end it before."""
    probe_after_ms: int = 5_000
    """A node is not probed sooner after it was excluded: a paused one often comes back for a moment."""
    outlier_factor: float = 5.0
    """A node is slow when its fast flushes take this many times the median node's."""
    outlier_floor_ms: float = 50.0
    """... and at least this long."""
    forgetting: float = 0.02
    """Weight of a slower flush: after 35 of them half of a node's good name is gone."""
    roll_tokens: int = 10
    """Rolls for slowness in a burst."""
    roll_refill_ms: int = 3_000
    """Time to gain one token."""


class NodeHealth:
    """Fast flushes and exclusions of the nodes seen so far; bounded by the number of datanodes."""

    def __init__(self, config: HealthConfig | None = None) -> None:
        self.config = config or HealthConfig()
        self._fast_ms: dict[str, float] = {}
        self._excluded_at: dict[str, int] = {}
        self._slow: set[str] = set()  # excluded for slowness: a probe says nothing of that
        self._silent: set[str] = set()  # excluded since they do not answer a probe
        self._tokens = float(self.config.roll_tokens)
        self._refilled_ms: int | None = None
        self.flushes = 0  # acknowledged, ever

    def flushed(self, nodes: Sequence[str], took_ms: float) -> None:
        """A flush through ``nodes`` was acknowledged.  It is as slow as the slowest of them."""
        self.flushes += 1
        weight = self.config.forgetting
        for node in nodes:
            fast = self._fast_ms.get(node, took_ms)
            self._fast_ms[node] = took_ms if took_ms <= fast else fast + (took_ms - fast) * weight

    def failed(self, suspects: Sequence[str], now_ms: int) -> None:
        """These nodes broke a pipeline, or were found unreachable."""
        for node in suspects:
            self._excluded_at[node] = now_ms

    def silenced(self, nodes: Sequence[str], now_ms: int) -> None:
        """These nodes do not answer a probe: pipelines through them are left, not only avoided."""
        self.failed(nodes, now_ms)
        self._silent.update(nodes)

    def has_silent(self, nodes: Iterable[str]) -> bool:
        """Whether one of ``nodes`` did not answer a probe, and has not answered one since."""
        return bool(self._silent) and not self._silent.isdisjoint(nodes)

    def slow(self, nodes: Sequence[str], now_ms: int) -> None:
        """These nodes answer, but late: excluded for their time, whatever a probe says."""
        self.failed(nodes, now_ms)
        self._slow.update(nodes)

    def excluded(self, now_ms: int) -> tuple[str, ...]:
        """Nodes to leave out of a new pipeline."""
        late = [node for node, since in self._excluded_at.items() if now_ms - since >= self.config.exclude_ms]
        for node in late:
            self.restored(node)
        return tuple(sorted(self._excluded_at))

    def to_probe(self, now_ms: int) -> tuple[str, ...]:
        """Excluded nodes whose recovery is worth asking for."""
        wait = self.config.probe_after_ms
        return tuple(
            node
            for node, since in sorted(self._excluded_at.items())
            if now_ms - since >= wait and node not in self._slow
        )

    def restored(self, node: str) -> None:
        """A probe succeeded, or time is up: the node starts with a clean slate."""
        self._excluded_at.pop(node, None)
        self._slow.discard(node)
        self._silent.discard(node)
        self._fast_ms.pop(node, None)

    def outliers(self, nodes: Iterable[str] | None = None) -> tuple[str, ...]:
        """Those of ``nodes`` (default: of all) that are slow against the median of all."""
        known = sorted(self._fast_ms.values())
        if len(known) < 2:
            return ()
        median = known[(len(known) - 1) // 2]
        bound = max(self.config.outlier_floor_ms, median * self.config.outlier_factor)
        asked = self._fast_ms if nodes is None else nodes
        return tuple(node for node in asked if self._fast_ms.get(node, 0.0) > bound)

    def take_roll_token(self, now_ms: int) -> bool:
        """Whether one more roll for slowness is allowed now."""
        if self._refilled_ms is None:
            self._refilled_ms = now_ms
        gained = (now_ms - self._refilled_ms) / self.config.roll_refill_ms
        self._tokens = min(float(self.config.roll_tokens), self._tokens + gained)
        self._refilled_ms = now_ms
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
