"""The page docs/benchmarks-security.md, written from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.page import failed, ms, number, ratio_cell, table, verdicts
from bench.quota_pairs import ADAPTER, ALONE, BESIDE, LIMIT, NEIGHBOUR, RECORDS_S
from bench.results import Results, Spread
from bench.rounds_page import beside_kafka, opening, pairs
from bench.security_plan import CONFIGURATIONS, CONNECT, PACED, PARTITIONS, PLAIN, RECORD_BYTES

OBJECTIONS = Path(__file__).with_name("security_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a section, with its words."""

    metric: str
    words: str
    is_compared: bool = True

    def shown(self, spread: Spread | None) -> str:
        """Return the figure; latencies in milliseconds."""
        return ms(spread) if self.metric in ("p50_us", "p99_us") else number(spread)


@dataclass(frozen=True, slots=True)
class Section:
    """One bench on the page."""

    title: str
    text: str
    figures: tuple[Figure, ...]


_MOVED = (
    Figure("mb_s", "MB/s"),
    Figure("all_cpu_s_gb", "server's CPU, s/GB"),
    Figure("client_cpu_s_gb", "client's CPU, s/GB", is_compared=False),
)
_LOG_IN = "Connections of a bare client, each up to where it may send requests, and closed again: TCP, a full handshake"


def sections(plan: Mapping[str, int]) -> dict[str, Section]:
    """Return the sections by bench, in their order."""
    return {
        "produce": Section("Producing", f"{plan['megabytes']} MB a round, as fast as they are acknowledged.", _MOVED),
        "consume": Section(
            "Consuming what was just produced", "One consumer of all partitions, from the beginning.", _MOVED
        ),
        PACED: Section(
            f"At {plan['paced_records_s']:,} records a second",
            f"An open loop for {plan['paced_s']:g} s: from when a record was due to its acknowledgement.",
            (
                Figure("p50_us", "p50, ms"), Figure("p99_us", "p99, ms"),
                Figure("all_cpu_us_record", "server's CPU, µs a record"),
            ),
        ),
        CONNECT: Section(
            "Connecting",
            f"{_LOG_IN}, ApiVersions, the log-in, as far as the configuration has them."
            f" {plan['connections']:,} a round, {plan['connecting']} at a time. "
            "The rate is also the client's, whose threads share the machine; the processor time is the server's alone.",
            (
                Figure("connections_s", "connections/s"),
                Figure("all_cpu_us_connection", "server's CPU, µs a connection"),
                Figure("client_cpu_us_connection", "client's CPU, µs a connection", is_compared=False),
            ),
        ),
    }  # fmt: skip


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    (out / "benchmarks-security.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results that do not name their commit."""
    title = "What TLS, log-ins and ACLs cost"
    parts = [opening(results, "security", title, _what(results), warmed_by="producing or connecting")]
    parts.append(_configurations(results))
    for bench, section in sections(results.plan).items():
        if results.of_bench(bench):
            parts += [f"## {section.title}", section.text, *_section(results, bench, section)]
    if results.of_bench(NEIGHBOUR):
        parts += ["## Beside a client at its quota", _neighbour(results)]
    parts += [failed(results), OBJECTIONS.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _what(results: Results) -> str:
    return f"""The page compares one `bmq serve` with one Kafka broker. Each keeps one copy in a folder of this machine.
Only the server and its security cost. Each runs twice, without an authorizer and with {results.plan["acls"]:,} ACLs,
with the listeners of the table below. Records have {RECORD_BYTES:,} bytes, not compressed, in {PARTITIONS} partitions.
librdkafka is the client of both. A round takes the configurations in turn, on Kafka and on BMQ, one right after the
other. Cores: {results.plan["cores"]}."""


def _configurations(results: Results) -> str:
    tls = results.plan["tls"]
    rows = []
    for each in CONFIGURATIONS.values():
        agreed = {tls[name][each.name] for name in tls if each.name in tls[name]}
        rows.append((each.name, each.protocol, each.about, "; ".join(sorted(agreed)) or "-"))
    return f"""## Configurations

{table(("", "protocol", "", "negotiated"), rows)}

What was negotiated is read from the server's own ServerHello, of a connection of librdkafka; had Kafka and BMQ chosen
otherwise, both would be there. The certificate is the same for all listeners of a server, with an ECDSA P-256 key, in
PKCS#12.

Of the ACLs, four give the clients their rights, by prefix; the other {results.plan["acls"] - 4:,} are of other topics
and principals, literal and by prefix in turn. Before the rounds, each client with ACLs tries to make a topic that none
allows, and must be refused."""


def _neighbour(results: Results) -> str:
    rows = []
    for figure in (Figure("p50_us", "p50, ms"), Figure("p99_us", "p99, ms")):
        both = (results.spread(NEIGHBOUR, ADAPTER, case, figure.metric) for case in (ALONE, BESIDE))
        found = compare_rounds(results, NEIGHBOUR, figure.metric, before=(ADAPTER, ALONE), after=(ADAPTER, BESIDE))
        rows.append((figure.words, *map(figure.shown, both), ratio_cell(found)))
    count = len(results.of(NEIGHBOUR, ADAPTER, ALONE))
    return f"""A client of one process sends {RECORDS_S:,} records a second, alone and beside another client. The other
client produces without a pause, against a quota of {LIMIT / 1e6:g} MB a second. There are {count} pairs, in alternating
order.

{table(("", ALONE, BESIDE, "ratio"), rows)}"""


def _section(results: Results, bench: str, section: Section) -> Iterator[str]:
    names = [name for name in NAMES if name in results.adapters(bench)]
    for name in names:
        rows = []
        for case in CONFIGURATIONS:
            cells = [figure.shown(results.spread(bench, name, case, figure.metric)) for figure in section.figures]
            rows.append((case, *cells))
        yield f"### {NAMES[name]}\n\n{table(('', *(figure.words for figure in section.figures)), rows)}"
    compared = [figure for figure in section.figures if figure.is_compared]
    for name in names:
        found = {
            (case, figure): compare_rounds(results, bench, figure.metric, before=(name, PLAIN.name), after=(name, case))
            for case in CONFIGURATIONS
            if case != PLAIN.name
            for figure in compared
        }
        yield _ratios(f"{NAMES[name]}, beside its own PLAINTEXT", found, is_judged=False)
    for kafka, name in pairs(results, bench):
        beside = {
            (case, figure): beside_kafka(results, bench, case, kafka, name, figure.metric)
            for case in CONFIGURATIONS
            for figure in compared
        }
        yield _ratios(f"{NAMES[name]}, beside {NAMES[kafka]} in the same configuration", beside, is_judged=True)


def _ratios(title: str, found: Mapping[tuple[str, Figure], Comparison | None], *, is_judged: bool) -> str:
    """Return a table of ratios, and in words what is better and worse if sides are compared; "" without any."""
    known = {f"{figure.words.partition(',')[0]} ({case})": each for (case, figure), each in found.items() if each}
    if not known:
        return ""
    figures = list(dict.fromkeys(figure for _, figure in found))
    rows = [
        (case, *(ratio_cell(found[case, figure]) for figure in figures))
        for case in dict.fromkeys(case for case, _ in found)
    ]
    told = f"\n\nBMQ is\n\n{verdicts(known)}" if is_judged else ""
    return f"### {title}\n\n{table(('', *(figure.words for figure in figures)), rows)}{told}"
