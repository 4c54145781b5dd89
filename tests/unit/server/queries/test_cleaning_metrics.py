"""Metrics of the cleaning of compacted logs."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker.cleanup.cleaning_status import Obstacle, Outcome, count_logs
from bmq.console.state import OwnMetric
from bmq.core.aio.steps import finish_steps
from bmq.server.queries.cleaning_metrics import cleaning_metrics
from tests.harness.members import memory_broker


def test_a_brokers_numbers_have_kafkas_names_where_kafka_has_them() -> None:
    logs = [(Outcome(plan=None, obstacle=Obstacle.LEVEL), 1), (Outcome(plan=None, damaged_at=3), 1)]
    manager = memory_broker().janitor.cleaning
    cleaner = manager.cleaner
    cleaner.rounds, cleaner.bytes_before, cleaner.bytes_after = 4, 500, 60
    manager.swapper.swaps_done = 7
    totals = replace(finish_steps(count_logs(logs, 0)), waiting=2)
    metrics = cleaning_metrics(manager, totals)
    found = [each for each in metrics if isinstance(each, OwnMetric)]
    numbers = {f"{each.name}{each.label_value and '.' + each.label_value}": each.value for each in found}
    assert {name: value for name, value in numbers.items() if value} == {
        "kafka_log_logcleanermanager_uncleanable_partitions_count": 1,
        "logs_not_cleaned.level": 1,
        "logs_not_cleaned.damaged": 1,
        "logs_unsettled": 2,
        "cleaning_rounds": 4,
        "cleaning_bytes_before": 500,
        "cleaning_bytes_after": 60,
        "cleaning_swaps": 7,
    }
    assert numbers["logs_not_cleaned.large"] == 0
    assert {each.name for each in found if each.is_counter} == {
        "cleaning_rounds",
        "cleaning_bytes_before",
        "cleaning_bytes_after",
        "cleaning_swaps",
    }
