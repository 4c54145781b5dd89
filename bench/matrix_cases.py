"""The cases of bench.matrix: one axis at a time around a centre, and the corners that matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

CENTRE_BYTES = 1000
CENTRE_PARTITIONS = 12
JAVA, C = "java", "c"
NONE = "none"
CLIENTS = {JAVA: "Java", C: "C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load: its records, its partitions, its codec, and the client that makes it."""

    axis: str
    label: str
    """What differs from the centre, in words."""
    record_bytes: int = CENTRE_BYTES
    partitions: int = CENTRE_PARTITIONS
    codec: str = NONE
    client: str = JAVA
    is_spread: bool = False
    """Whether each record goes to the next partition, as records with keys do; the client's default is to fill a batch
    of one partition before the next."""

    @property
    def key(self) -> str:
        """The name of the case in the results; ``axis_of`` and ``label_of`` take it apart."""
        return f"{self.axis}: {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    """Rounds that count, of each axis; those before end once no rate of producing rises (``bench.warm_up``)."""
    warm_rounds_most: int = 8
    megabytes: int = 250
    """Bytes of the records of one measurement."""
    spread_share: float = 0.25
    """Share of those where each record goes to the next partition: batches are small and take longer."""
    records_least: int = 200
    warm_share: float = 0.15
    """Share of the records that is sent first and not counted: the client's compiler needs them."""
    sizes: tuple[int, ...] = (100, 1000, 10_000, 1_000_000)
    partitions: tuple[int, ...] = (1, 12, 100, 1000)
    codecs: tuple[str, ...] = (NONE, "lz4", "zstd")
    clients: tuple[str, ...] = (JAVA, C)

    def count(self, case: Case) -> int:
        """Return the records that count in a measurement of a case."""
        share = self.spread_share if case.is_spread else 1.0
        return max(self.records_least, int(share * self.megabytes * 1_000_000 / case.record_bytes))

    def warm_count(self, case: Case) -> int:
        """Return the further records that are sent before those."""
        return int(self.count(case) * self.warm_share)


FULL = Plan()
QUICK = Plan(
    rounds=1, warm_rounds_most=1, megabytes=4, records_least=20, sizes=(100, CENTRE_BYTES),
    partitions=(CENTRE_PARTITIONS, 24), codecs=(NONE, "zstd"),
)  # fmt: skip


def axes(plan: Plan) -> dict[str, tuple[Case, ...]]:
    """Return the cases of each axis, in the order of the page.  Each axis has the centre, so each can be run alone."""
    sizes = [Case(axis="sizes", label=_bytes(size), record_bytes=size) for size in plan.sizes]
    filled = [Case(axis="partitions", label=_partitions(count), partitions=count) for count in plan.partitions]
    spread = [
        replace(case, label=f"{case.label}, each record to the next", is_spread=True)
        for case in filled
        if case.partitions > CENTRE_PARTITIONS
    ]
    least, most, one = plan.sizes[0], plan.partitions[-1], plan.partitions[0]
    return {
        "sizes": tuple(sizes),
        "partitions": (*filled, *spread),
        "codecs": tuple(Case(axis="codecs", label=codec, codec=codec) for codec in plan.codecs),
        "clients": tuple(Case(axis="clients", label=CLIENTS[client], client=client) for client in plan.clients),
        "corners": (
            Case(axis="corners", label=_corner(least, most), record_bytes=least, partitions=most),
            Case(axis="corners", label=_corner(plan.sizes[-1], one), record_bytes=plan.sizes[-1], partitions=one),
        ),
    }


def centre(all_axes: Mapping[str, tuple[Case, ...]]) -> Case:
    """Return the case that the others differ from in one way."""
    return next(case for case in all_axes["clients"] if case.client == JAVA)


def axis_of(key: str) -> str:
    """Return the axis of a case's name in the results."""
    return key.partition(": ")[0]


def label_of(key: str) -> str:
    """Return what differs from the centre, of a case's name in the results."""
    return key.partition(": ")[2]


def _corner(record_bytes: int, partitions: int) -> str:
    return f"{_bytes(record_bytes)}, {_partitions(partitions)}"


def _partitions(count: int) -> str:
    return f"{count:,} partition{'s' * (count != 1)}"


def _bytes(count: int) -> str:
    for unit, size in (("MB", 1_000_000), ("KB", 1000)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"
