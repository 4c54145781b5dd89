"""Datanodes to avoid: pure, with time as an argument.

A NameNode hands out a dead datanode for minutes, so the broker keeps its own list of exclusions. A node is excluded
when a pipeline named it as its failed node, or when flushes through it are slow while other flushes are not. An
exclusion ends with a successful probe, at the latest after ``exclude_ms``; if no other nodes are left, the file system
ignores it. A node that does not respond to a probe is left by every pipeline that is written through it.

Slowness is judged against the other nodes, never alone: storage that is slow everywhere is only slow. A flush is as
slow as the slowest node of its pipeline. So a slow flush makes all of its nodes suspect, and a fast one clears all of
them. A node is therefore rated by its fast flushes: a good node has some, in pipelines without the slow one; the slow
one has none. The rating works from four nodes on; a mean over all flushes would need fifteen. Rolls for slowness take a
token from a bucket, so that a short disturbance of the whole cluster cannot cause a storm of new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Limits of exclusion and of slowness."""

    exclude_ms: int = 60_000
    """Longest exclusion; a successful probe ends it earlier."""
    probe_after_ms: int = 5_000
    """Time from a node's exclusion to its first probe: a paused node often comes back only for a moment."""
    outlier_factor: float = 5.0
    """A node is slow if its fast flushes take more than this many times as long as the median node's ..."""
    outlier_floor_ms: float = 50.0
    """... and more than this."""
    forgetting: float = 0.02
    """Weight of a slower flush in a node's fast time: after 35 of them half of the node's former rating is gone."""
    roll_tokens: int = 10
    """Most rolls for slowness in a burst."""
    roll_refill_ms: int = 3_000
    """Time after which one more token is added."""


class NodeHealth:
    """Fast flushes and exclusions of the datanodes seen so far; bounded by their number."""

    def __init__(self, config: HealthConfig | None = None) -> None:
        self.config = config or HealthConfig()
        self._fast_ms: dict[str, float] = {}
        self._excluded_at: dict[str, int] = {}
        self._slow: set[str] = set()  # excluded for slowness, which a probe does not measure
        self._silent: set[str] = set()  # excluded because they did not respond to a probe
        self._tokens = float(self.config.roll_tokens)
        self._refilled_ms: int | None = None
        self.flushes = 0  # acknowledged, ever

    def flushed(self, nodes: Sequence[str], took_ms: float) -> None:
        """Note an acknowledged flush through ``nodes`` that took ``took_ms``: it is as slow as the slowest of them."""
        self.flushes += 1
        weight = self.config.forgetting
        for node in nodes:
            fast = self._fast_ms.get(node, took_ms)
            self._fast_ms[node] = took_ms if took_ms <= fast else fast + (took_ms - fast) * weight

    def failed(self, suspects: Sequence[str], now_ms: int) -> None:
        """Exclude nodes that broke a pipeline or were found unreachable."""
        for node in suspects:
            self._excluded_at[node] = now_ms

    def silenced(self, nodes: Sequence[str], now_ms: int) -> None:
        """Exclude nodes that did not respond to a probe.

        Open pipelines through them are given up, too.
        """
        self.failed(nodes, now_ms)
        self._silent.update(nodes)

    def has_silent(self, nodes: Iterable[str]) -> bool:
        """Return whether one of ``nodes`` did not respond to a probe, and has not been restored since."""
        return bool(self._silent) and not self._silent.isdisjoint(nodes)

    def slow(self, nodes: Sequence[str], now_ms: int) -> None:
        """Exclude nodes that respond, but late: for ``exclude_ms``, whatever a probe says."""
        self.failed(nodes, now_ms)
        self._slow.update(nodes)

    def excluded(self, now_ms: int) -> tuple[str, ...]:
        """Return the nodes to leave out of a new pipeline, sorted; ends exclusions that are over."""
        late = [node for node, since in self._excluded_at.items() if now_ms - since >= self.config.exclude_ms]
        for node in late:
            self.restored(node)
        return tuple(sorted(self._excluded_at))

    def to_probe(self, now_ms: int) -> tuple[str, ...]:
        """Return the excluded nodes that are due for a probe, sorted; never those excluded for slowness."""
        wait = self.config.probe_after_ms
        return tuple(
            node
            for node, since in sorted(self._excluded_at.items())
            if now_ms - since >= wait and node not in self._slow
        )

    def restored(self, node: str) -> None:
        """End the exclusion of ``node``, after a successful probe or its time, and forget its rating."""
        self._excluded_at.pop(node, None)
        self._slow.discard(node)
        self._silent.discard(node)
        self._fast_ms.pop(node, None)

    def outliers(self, nodes: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return those of ``nodes`` (default: all known) that are slow against the median of all."""
        known = sorted(self._fast_ms.values())
        if len(known) < 2:
            return ()
        median = known[(len(known) - 1) // 2]
        bound = max(self.config.outlier_floor_ms, median * self.config.outlier_factor)
        asked = self._fast_ms if nodes is None else nodes
        return tuple(node for node in asked if self._fast_ms.get(node, 0.0) > bound)

    def take_roll_token(self, now_ms: int) -> bool:
        """Take a token for one more roll for slowness; return whether there was one."""
        if self._refilled_ms is None:
            self._refilled_ms = now_ms
        gained = (now_ms - self._refilled_ms) / self.config.roll_refill_ms
        self._tokens = min(float(self.config.roll_tokens), self._tokens + gained)
        self._refilled_ms = now_ms
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
