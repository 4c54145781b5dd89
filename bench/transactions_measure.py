"""The measurements of bench.transactions: of one deployment in one round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.deployments import Deployment
from bench.results import Sample
from bench.transactions_clients import Clients, Load
from bench.transactions_plan import (
    COMMITTED,
    COST,
    FLUSHES,
    JAVA,
    LARGE,
    LIBRDKAFKA,
    MANY,
    ONE,
    PARTITIONS,
    READ,
    READS,
    RECORD_BYTES,
    SMALL,
    TRANSACTIONS,
    UNCOMMITTED,
    Plan,
    case_of,
)


@dataclass(slots=True)
class Side:
    """A deployment, the clients of all, and the topics that stay as long as it runs."""

    deployment: Deployment
    clients: Clients
    written: str = field(default="", init=False)
    """The topic that loads write to; "" until the first load."""
    read: str = field(default="", init=False)
    """The topic that is read; "" until it is written."""

    @property
    def name(self) -> str:
        """The deployment's name: the adapter of its samples."""
        return self.deployment.name

    def load(self, *, producers: int, records: int, warm_s: float, seconds: float, kind: str) -> Load:
        """Return a load on the topic that loads write to; create the topic first if it is missing."""
        self.written = self.written or self.deployment.create_topic(PARTITIONS)
        bootstrap = self.deployment.bootstrap
        return Load(bootstrap, self.written, PARTITIONS, producers, records, RECORD_BYTES, warm_s, seconds, kind)


Measure = Callable[[Side, Plan, int], Iterator[Sample]]


def one(side: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure one producer of each client, with transactions of one record and of many."""
    for client in (JAVA, LIBRDKAFKA):
        for records in (SMALL, LARGE):
            load = side.load(
                producers=1, records=records, warm_s=plan.warm_s, seconds=plan.measured_s, kind=TRANSACTIONS
            )  # fmt: skip
            runs = side.clients.java if client == JAVA else side.clients.librdkafka
            yield _sample(side, ONE, case_of(client, records), number, runs.run(load).metrics)


def many(side: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure many producers at once, with transactions of one record."""
    load = side.load(
        producers=plan.producers, records=SMALL, warm_s=plan.warm_s, seconds=plan.many_s, kind=TRANSACTIONS
    )  # fmt: skip
    yield _sample(side, MANY, many_case(plan.producers), number, side.clients.java.run(load).metrics)


def many_case(producers: int) -> str:
    """Return the case of ``MANY``."""
    return f"{producers} producers, 1 record"


def cost(side: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure the same bundles in transactions and without; rounds alternate which comes first."""
    for kind in _in_turn((TRANSACTIONS, FLUSHES), number):
        load = side.load(producers=1, records=LARGE, warm_s=plan.warm_s, seconds=plan.measured_s, kind=kind)
        yield _sample(side, COST, kind, number, side.clients.java.run(load).metrics)


def reads(side: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure both isolations of the same log; rounds alternate which comes first."""
    _require_log(side, plan)
    for isolation in _in_turn((COMMITTED, UNCOMMITTED), number):
        rate = side.clients.librdkafka.consume(
            side.deployment.bootstrap, side.read, count=plan.read_records, partitions=PARTITIONS, isolation=isolation
        )
        yield _sample(side, READS, isolation, number, {"records_s": rate})


MEASUREMENTS: Mapping[str, Measure] = {ONE: one, MANY: many, COST: cost, READS: reads}
RATES = {ONE: "transactions_s", MANY: "transactions_s"}
"""The rates that must not rise any more before rounds count."""


def warm_up(side: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure one producer and many."""
    yield from one(side, plan, number)
    yield from many(side, plan, number)


def _require_log(side: Side, plan: Plan) -> None:
    """Write the log that is read, by transactions of ``READ`` records: the first time only."""
    if side.read:
        return
    topic = side.deployment.create_topic(PARTITIONS)
    side.clients.librdkafka.write(
        side.deployment.bootstrap, topic, count=plan.read_records // READ, records=READ, partitions=PARTITIONS,
        record_bytes=RECORD_BYTES,
    )  # fmt: skip
    side.read = topic


def _in_turn(cases: tuple[str, str], number: int) -> tuple[str, ...]:
    return cases if number % 2 else cases[::-1]


def _sample(side: Side, bench: str, case: str, number: int, metrics: dict[str, float]) -> Sample:
    return Sample(adapter=side.name, bench=bench, case=case, round=number, metrics=metrics)
