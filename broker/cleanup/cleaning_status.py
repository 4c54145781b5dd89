"""The state of cleaning of a broker's compacted logs, for metrics and operators.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from bmq.core.aio.steps import Steps, finish_steps
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.storage.cleaning.plan import CleaningPlan, Reason

LOG_BYTES_MAX = 64 << 20
"""Most closed bytes of a log that a round takes without compiled code."""


class Obstacle(Enum):
    """The reason why a log is not cleaned although it may be dirty; the text is for operators."""

    DISABLED = "log.cleaner.enable is false at its owner"
    COMPILING = "compiled code is loaded; on a new machine it is compiled first, which takes half a minute"
    LEVEL = "compaction.version is 0: not all processes support cleaned segments"
    LARGE = f"its closed segments have more than {LOG_BYTES_MAX >> 20} MB, which needs compiled code: the extra fast"
    DAMAGED = "a segment or its index cannot be read"
    FAILED = "its last round failed, as the process's log says; another round follows"


NOT_CLEANED = (
    Obstacle.DISABLED,
    Obstacle.COMPILING,
    Obstacle.LEVEL,
    Obstacle.LARGE,
    Obstacle.DAMAGED,
    Obstacle.FAILED,
    Reason.SWAP_PENDING,
    Reason.OPEN_SEGMENT,
    Reason.UNCOMMITTED,
    Reason.OPEN_TRANSACTION,
    Reason.MIN_LAG,
    Reason.BELOW_RATIO,
)
"""The reasons for which a compacted log is not cleaned, as ``bmq_logs_not_cleaned`` names them in lower case."""


UNKNOWN = "unknown"
"""The name of the reason before the owner's first look, and where no owner reports a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCleaning:
    """The last round of a log: its end in milliseconds of wall time, the bytes of its sources and of its results.

    Bytes are -1 if the indexes of the cleaned segments do not have them.
    """

    ended_ms: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one look at a log.

    ``plan`` is None without a plan, ``obstacle`` says why a due log was not cleaned.  ``damaged_at`` is the base of the
    first segment that cannot be read, None without any.  ``last`` is the last round, as the look found it; None if the
    look read no index, or no segment is cleaned.
    """

    plan: CleaningPlan | None
    obstacle: Obstacle | None = None
    has_cleaned: bool = False
    damaged_at: int | None = None
    last: LastCleaning | None = None

    def after(self, last: Outcome | None) -> Outcome:
        """Return this outcome of a look, with the failure or damage of the last round: a look reads no segment."""
        if last is None or last.why_not not in (Obstacle.FAILED, Obstacle.DAMAGED):
            return self
        damaged_at = last.damaged_at if self.damaged_at is None else self.damaged_at
        return replace(self, obstacle=last.obstacle, damaged_at=damaged_at)

    @property
    def dirty_ratio(self) -> float | None:
        """The dirty ratio after the look; None without a plan."""
        if self.plan is None:
            return None
        return 0.0 if self.has_cleaned else self.plan.dirty_ratio

    @property
    def why_not(self) -> Reason | Obstacle | None:
        """The reason why the log is not cleaned now; None after a round.

        Damage comes first, also where segments before it may be cleaned later.
        """
        if self.damaged_at is not None:
            return Obstacle.DAMAGED
        if self.obstacle is not None or self.plan is None:
            return self.obstacle
        return None if self.plan.is_due else self.plan.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaning:
    """The state of cleaning of one compacted log, as of its owner's last look.

    ``reason`` is a reason of ``NOT_CLEANED`` by its name in lower case, "" after a round, ``UNKNOWN`` before the first
    look.  ``dirty_percent`` is None if the look made no plan, ``last`` is None if no round is known.
    """

    reason: str
    dirty_percent: float | None
    last: LastCleaning | None


def cleaning_state(outcome: Outcome | None, last: LastCleaning | None) -> LogCleaning:
    """Return the state of a log: ``outcome`` is of its last look, None before the first; ``last`` is its last round."""
    if outcome is None:
        return LogCleaning(reason=UNKNOWN, dirty_percent=None, last=last)
    ratio, why_not = outcome.dirty_ratio, outcome.why_not
    return LogCleaning(
        reason="" if why_not is None else why_not.name.lower(),
        dirty_percent=None if ratio is None else 100 * ratio,
        last=last,
    )


def explain(reason: str) -> str:
    """Return the text of a reason for operators; "" for a name without a text, as of a later version."""
    return _TEXTS.get(reason, "")


_TEXTS: dict[str, str] = {reason.name.lower(): str(reason.value) for reason in NOT_CLEANED} | {
    UNKNOWN: "its owner has not looked at the log yet, does not respond, or is of an earlier version"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningTotals:
    """Numbers of all compacted logs of one broker: ``not_cleaned`` has every reason of ``NOT_CLEANED``, at 0 or more.

    ``uncleanable``: logs that damage stops, or whose last round failed, as in Kafka.
    ``max_dirty_percent``: the largest dirty ratio.  ``max_delay_s``: the seconds by which the oldest dirty record is
    past max.compaction.lag.ms, 0 if none is.  ``waiting``: logs, compacted or not, with an unsettled merge of a
    former owner.
    """

    uncleanable: int
    max_dirty_percent: float
    max_delay_s: float
    not_cleaned: Mapping[str, int]
    waiting: int = 0


def count_logs(logs: Iterable[tuple[Outcome, int] | None], now_ms: int) -> Steps[CleaningTotals]:
    """Return the numbers of logs, each with the outcome of its last look and its max.compaction.lag.ms, in steps.

    None stands for a partition that is not counted.
    """
    reasons = Counter[Reason | Obstacle | None]()
    ratio, delay_ms = 0.0, 0
    for number, log in enumerate(logs, 1):
        if number % ELEMENTS_A_TURN == 0:
            yield
        if log is None:
            continue
        outcome, max_lag_ms = log
        reasons[outcome.why_not] += 1
        plan = outcome.plan
        if plan is None or outcome.has_cleaned:
            continue
        ratio = max(ratio, plan.dirty_ratio)
        if plan.oldest_dirty_timestamp > 0:
            delay_ms = max(delay_ms, now_ms - plan.oldest_dirty_timestamp - max_lag_ms)
    return CleaningTotals(
        uncleanable=reasons[Obstacle.DAMAGED] + reasons[Obstacle.FAILED],
        max_dirty_percent=100 * ratio,
        max_delay_s=delay_ms / 1000,
        not_cleaned={reason.name.lower(): reasons[reason] for reason in NOT_CLEANED},
    )


NOTHING_TO_CLEAN = finish_steps(count_logs((), 0))
"""The numbers of a broker without compacted logs."""
