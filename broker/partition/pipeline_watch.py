"""The times at which a pipeline whose flush is late is probed, or rolled because it is slow: pure."""

from __future__ import annotations

from bmq.broker.config import BrokerConfig

_NEVER_MS = -(1 << 62)


class PipelineWatch:
    """The watch over one partition's pipelines. Times are monotonic ms.

    A probe goes to a pipeline's datanodes once the oldest flush takes ``silent_flush_ms``. A pipeline is suspected of
    slowness from ``slow_flush_ms`` on, and at most once in ``slow_roll_interval_ms``.
    """

    __slots__ = ("_config", "_probe_due_ms", "_slow_ms")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._probe_due_ms = _NEVER_MS
        self._slow_ms = _NEVER_MS  # when a pipeline was suspected of slowness, or rolled for it, last

    def __repr__(self) -> str:
        return f"<PipelineWatch slow={self._slow_ms} probe_due={self._probe_due_ms}>"

    def due_ms(self, sent_ms: int) -> int:
        """Return the time of the next check, if the oldest flush in flight was sent at ``sent_ms``."""
        config = self._config
        return min(
            max(sent_ms + config.silent_flush_ms, self._probe_due_ms),
            max(sent_ms + config.slow_flush_ms, self._slow_ms + config.slow_roll_interval_ms),
        )

    def may_roll(self, now_ms: int) -> bool:
        """Return whether the last suspicion, or roll, was long ago."""
        return now_ms - self._slow_ms >= self._config.slow_roll_interval_ms

    def rolled(self, now_ms: int) -> None:
        """Note that the open segment is rolled because its pipeline is slow."""
        self._slow_ms = now_ms

    def late(self, age_ms: int, now_ms: int) -> bool | None:
        """Note the age of the oldest flush in flight; return whether the pipeline that is to be checked counts as slow.

        Returns None if no check is due.
        """
        is_slow = age_ms >= self._config.slow_flush_ms and self.may_roll(now_ms)
        if is_slow:
            self._slow_ms = now_ms
        elif age_ms < self._config.silent_flush_ms or now_ms < self._probe_due_ms:
            return None
        self._probe_due_ms = now_ms + self._config.slow_flush_ms
        return is_slow
