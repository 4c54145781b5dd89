"""The plan of bench.security: the configurations that are measured, and amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MECHANISM = "SCRAM-SHA-512"
PARTITIONS = 6
RECORD_BYTES = 1000
OPEN, SECURED = "open", "secured"
"""The two processes of a site: one without an authorizer, one with ACLs."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to connect: the process of a site, its listener, and that listener's protocol."""

    name: str
    process: str
    listener: str
    protocol: str
    about: str


PLAIN = Configuration("PLAINTEXT", OPEN, "PLAINTEXT", "PLAINTEXT", "no authorizer")
CONFIGURATIONS: Mapping[str, Configuration] = {
    each.name: each
    for each in (
        PLAIN,
        Configuration("PLAINTEXT with ACLs", SECURED, "PLAINTEXT", "PLAINTEXT", "the client is `User:ANONYMOUS`"),
        Configuration("SSL", OPEN, "TLS", "SSL", "no authorizer, no client's certificate"),
        Configuration("SASL_SSL with ACLs", SECURED, "LOGIN", "SASL_SSL", f"the client logs in by {MECHANISM}"),
    )
}
THROUGHPUT, PACED, CONNECT = "throughput", "paced", "connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    warm_rounds_most: int = 6
    megabytes: int = 200
    """What is produced and consumed again, of one measurement."""
    warm_share: float = 0.1
    """Share that is sent first and not in the rate, but in the processor time."""
    paced_records_s: int = 1000
    paced_s: float = 4.0
    connections: int = 400
    connecting: int = 4
    """How many connect at the same time."""
    acls: int = 300
    neighbour_pairs: int = 10
    neighbour_s: float = 8.0
    """Time of each half of a pair."""

    @property
    def count(self) -> int:
        """Records of a measurement of throughput."""
        return self.megabytes * 1_000_000 // RECORD_BYTES

    @property
    def warm_count(self) -> int:
        """Records that come before them."""
        return int(self.count * self.warm_share)


FULL = Plan()
QUICK = Plan(
    rounds=1,
    warm_rounds_most=1,
    megabytes=10,
    paced_records_s=200,
    paced_s=0.5,
    connections=12,
    acls=40,
    neighbour_pairs=2,
    neighbour_s=1.0,
)
