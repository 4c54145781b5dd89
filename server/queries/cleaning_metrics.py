"""Numbers of the cleaning of compacted logs that ``/metrics`` shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bmq.broker.cleanup.cleaning_status import CleaningTotals
from bmq.broker.cleanup.log_cleaner_manager import LogCleanerManager
from bmq.console.state import Own, OwnMetric


def cleaning_metrics(manager: LogCleanerManager[Any], totals: CleaningTotals) -> Iterable[Own]:
    """Yield the numbers of one broker's logs at the last look (``totals``), and of its cleanings."""
    cleaner = manager.cleaner
    yield OwnMetric(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Compacted logs in which damage stops the cleaning, or whose last round failed",
        totals.uncleanable,
    )
    yield OwnMetric(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "Bytes since the last cleaning of the dirtiest compacted log, in percent of all that a round would read",
        totals.max_dirty_percent,
    )
    yield OwnMetric(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        "Seconds by which the oldest record not yet cleaned is past max.compaction.lag.ms",
        totals.max_delay_s,
    )
    for reason, count in totals.not_cleaned.items():
        yield OwnMetric(
            "logs_not_cleaned", "Compacted logs that are not cleaned now, by reason", count, False, "reason", reason
        )
    yield OwnMetric(
        "logs_unsettled",
        "Logs neither merged nor cleaned because of a former owner's unsettled merge",
        totals.waiting,
    )
    yield OwnMetric("cleaning_rounds", "Cleanings of compacted logs that were completed", cleaner.rounds, True)
    yield OwnMetric("cleaning_bytes_before", "Bytes of segments that were cleaned", cleaner.bytes_before, True)
    yield OwnMetric("cleaning_bytes_after", "Bytes of the cleaned segments", cleaner.bytes_after, True)
    yield OwnMetric(
        "cleaning_swaps",
        "Swaps of segments for a cleaned segment that were completed, also for an owner before",
        manager.swapper.swaps_done,
        True,
    )
