"""The means of each client to show who it is: the table of the tests, and of docs/clients.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

CERTIFICATE, TOKEN = "SSL, client certificate", "delegation token"
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", TOKEN)
MECHANISMS = (CERTIFICATE, *SASL_MECHANISMS)
SASL_PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
_SCRAM_ONLY = (*MECHANISMS[:4], "OAUTHBEARER")
_OLD = dict.fromkeys(("SCRAM-SHA-256", "SCRAM-SHA-512"), "from 2.6.1 on")


@dataclass(frozen=True, slots=True)
class ClientMeans:
    """One client's row."""

    client: str
    """The driver's name."""
    shown: str
    """The name that people know."""
    has: tuple[str, ...]
    renews: bool
    """Whether it authenticates again on the same connection (KIP-368); else that is closed."""
    but: Mapping[str, str] = field(default_factory=dict)
    """What the table says of a mechanism that it has, and that does not work."""


TABLE = (
    ClientMeans("java", "Java, `kafka-clients`", MECHANISMS, renews=True),
    ClientMeans("confluent", "confluent-kafka (librdkafka)", _SCRAM_ONLY, renews=True),
    ClientMeans("kcat", "kcat, Debian's (librdkafka 2.0.2)", (*MECHANISMS[:2], "GSSAPI"), renews=False, but=_OLD),
    ClientMeans("franz-go", "franz-go", MECHANISMS, renews=True),
    ClientMeans("kafka-python", "kafka-python", (*_SCRAM_ONLY, "GSSAPI"), renews=True),
    ClientMeans("sarama", "sarama", (*_SCRAM_ONLY, "GSSAPI"), renews=True),
    ClientMeans("kafkajs", "kafkajs", _SCRAM_ONLY, renews=True),
)


def cells() -> Iterator[tuple[ClientMeans, str, str]]:
    """Yield each client with a protocol and a mechanism that it has."""
    for row in TABLE:
        for mechanism in row.has:
            for protocol in ("SSL",) if mechanism == CERTIFICATE else SASL_PROTOCOLS:
                yield row, protocol, mechanism


def drawn_rows() -> list[list[str]]:
    """Return the rows of docs/clients.md: a name, a cell for each mechanism, and how the client goes on."""
    return [
        [row.shown, *("yes" if each in row.has else row.but.get(each, "none") for each in MECHANISMS), _renewal(row)]
        for row in TABLE
    ]


def _renewal(row: ClientMeans) -> str:
    return "on the same connection" if row.renews else "the connection is closed"
