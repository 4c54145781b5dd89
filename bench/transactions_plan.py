"""The plan of bench.transactions: its measurements, their cases, amounts, and what is aimed at."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 6
RECORD_BYTES = 100
ONE, MANY, COST, READS, IDS = "one", "many", "cost", "reads", "ids"
"""The measurements, by the names that ``--only`` has."""
JAVA, LIBRDKAFKA = "Java", "librdkafka"
SMALL, LARGE = 1, 100
"""Records of a transaction."""
READ = 1_000
"""Records of a transaction of the log that is read: brokers with three copies commit fewer than twenty a second."""
TRANSACTIONS, FLUSHES = "transactions", "flushes"
"""The cases of ``COST``: bundles in transactions, and bundles of an idempotent producer, each flushed."""
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
"""The cases of ``READS``."""
SITES = {"local": ("kafka-1", "bmq-local"), "replicas": ("kafka-3", "bmq-3")}
"""The deployments of each site, Kafka's first."""
AIMS = {ONE: 1.0, MANY: 0.7, "p99": 1.5, COST: 0.85, READS: 0.95}
"""Least ratios of rates; of ``p99`` the largest ratio.  Of ``ONE``, ``MANY`` and ``p99`` to Kafka."""
ID_BYTES_AIM = 1000
"""Most bytes of resident memory of an idle transactional id."""
LOAD_S_AIM = 5.0
"""Most seconds until a process has loaded all shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    warm_rounds_most: int = 4
    warm_s: float = 0.3
    """Time of each load that comes first and does not count."""
    measured_s: float = 1.5
    producers: int = 50
    many_s: float = 3.0
    read_records: int = 300_000
    """Records of the log that is read, written once by transactions of ``READ`` records."""
    ids: int = 100_000


FULL = Plan()
QUICK = Plan(
    rounds=2, warm_rounds_most=1, warm_s=0.2, measured_s=0.8, producers=10, many_s=1.0, read_records=20_000, ids=1000
)


def case_of(client: str, records: int) -> str:
    """Return the case of ``ONE``: a client, and the records of a transaction."""
    return f"{client}, {'1 record' if records == 1 else f'{records} records'}"


ONE_CASES = tuple(case_of(client, records) for client in (JAVA, LIBRDKAFKA) for records in (SMALL, LARGE))
