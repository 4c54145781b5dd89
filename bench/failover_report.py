"""The page docs/benchmarks-failover.md, written from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import failover_plot, machine
from bench.failover_acts import ADD, AIM_DEATH_MS, AIM_PLANNED_MS, HOW, PARTS, SITES, Act, acts_of
from bench.failover_figures import NOT_MET, comparison, figure, has_failed, is_met, longest_pause, was_tried
from bench.failover_plan import AFFECTED
from bench.page import VERDICTS, ratio
from bench.results import Results, Spread

OBJECTIONS = Path(__file__).with_name("failover_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
TITLES = {
    "nodes": "Three nodes, beside three nodes",
    "roles": "Roles apart, beside brokers and controllers apart",
}
NAMES = {
    "kafka-3": "three Kafka nodes, each broker, controller and endpoint of clients",
    "bmq-3": (
        "three `bmq serve` with all roles, each an endpoint of clients, over three etcd, a NameNode and three datanodes"
    ),
    "kafka-roles": "three Kafka brokers and three controllers",
    "bmq-roles": (
        "three proxies (the endpoints of clients), three brokers, two controllers and two coordinators over the same"
        " services"
    ),
}
SHORT = {"bmq-3": "three nodes", "bmq-roles": "roles apart"}
EXACT_MB = 5.0
"""What the growth of all disks is exact to: the stream's own share is calculated."""


class EarlierForm(ValueError):
    """Results of before commits were recorded, whose page stays as it is until they are measured again."""


def write(results: Results, out: Path) -> None:
    """Write the page and its pictures into folder ``out``.  Raises EarlierForm, and then leaves the page alone."""
    text = page(results)
    failover_plot.write(results, out / "benchmarks")
    (out / "benchmarks-failover.md").write_text(text)


def page(results: Results) -> str:
    """Return the page.  Raises EarlierForm for results of before commits were recorded."""
    if not results.commit:
        raise EarlierForm(f"{results.measured_at} Their form is an earlier one: the page stays, measure again.")
    parts = [_head(results), _unmet(results)]
    for site, (kafka, ours) in SITES.items():
        sections = [_site(results, kafka, ours, size) for size in results.plan["sizes"]]
        if any(sections):
            parts += [f"## {TITLES[site]}\n\nBMQ: {NAMES[ours]}. Kafka: {NAMES[kafka]}.", *filter(None, sections)]
    parts += [_not_measured(results), OBJECTIONS.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(results: Results) -> str:
    plan = results.plan
    settings = "\n".join(f"| {name} | {_listed(values)} |" for name, values in plan["settings"].items())
    acts = "\n".join(f"| {name} | {what} |" for name, what in HOW.items())
    loads = [sample.metrics["load"] for sample in results.samples]
    return f"""# A part lost, a part more

{results.head}

Written by `make bench-cluster`; do not edit. Every round, with the command line of each process, is in
`benchmarks/failover.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes, {plan["rounds"]} rounds. In each round each deployment is started
afresh, alone on the machine, Kafka's and BMQ's in turn in the order that the round before did not have. A topic of
{plan["partitions"]:,} partitions is filled, and {plan["streamed"]} of them get a record of 100 bytes every
{plan["every_ms"]:g} ms each. Then part after part is taken away and given back, in another order each round:

| | |
| --- | --- |
{acts}

The part is the one that does most for the topic, or for the group. It stays away until records flow without it, and
{plan["observe_s"]:g} s at least.

**Pause.** The clients, librdkafka in a process of its own, are an open loop: records are due at fixed times. A
partition's pause is the longest time from when a record was due to its acknowledgement (`acks=all`), or to its arrival
at the only member of a group. A commit is due every 100 ms, one at a time; its pause is the longest time until one is
confirmed. All are exact to {plan["every_ms"]:g} ms. Shown are the median of the partitions that were affected (a pause
of more than {AFFECTED * plan["every_ms"]:g} ms), as the median of the rounds, and the longest of any partition in any
round. Both clients try again every 20 to 100 ms, and wait {plan["timeout_ms"]:,} ms for a server that is silent.

**Aims.** {AIM_DEATH_MS:,.0f} ms when something dies, {AIM_PLANNED_MS:,.0f} ms when something is drained, restarted or
added. An aim is met if the longest pause of producing and of consuming in all rounds is within it; when the group's
coordinator is lost, that of committing too. The ratio is of the longest pauses of producing, BMQ's to Kafka's of the
same round.
{VERDICTS}

**Whole again.** From when the part is started, continued or plugged in until all is as before. Kafka: every replica is
in sync, every controller has the log. BMQ: every process is a member, every partition is with its owner, every
whole block has three copies, every etcd member has the log. Exact to 0.1 s. **Copied** is what all disks grew by, from
the beginning to the end, without what the records themselves take; exact to {EXACT_MB:g} MB.

| settings, beside defaults | |
| --- | --- |
{settings}

{_table(("", ""), machine.rows(results))}

Clients, servers and storage share these cores. Load average before each act: {_range(loads)}."""


def _unmet(results: Results) -> str:
    """Return what is unfavourable, before all tables."""
    rows = []
    for site in SITES.values():
        for size in results.plan["sizes"]:
            for act in acts_of(site[1]):
                if is_met(results, site[1], act, size) == NOT_MET:
                    longest = longest_pause(results, site[1], act, size)
                    shown = ["" if longest is None else _ms(longest)]
                    shown += ["failed"] if has_failed(results, site[1], act, size) else []
                    rows.append(
                        (SHORT[site[1]], _title(act), size, ", and ".join(filter(None, shown)), _ms(act.aim_ms))
                    )
    if not rows:
        return "## Aims that are not met\n\nNone of those that were measured."
    return "## Aims that are not met\n\n" + _table(("deployment", "act", "data", "longest pause, ms", "aim, ms"), rows)


def _site(results: Results, kafka: str, ours: str, size: str) -> str:
    acts = [act for act in acts_of(ours) if any(was_tried(results, name, act, size) for name in (kafka, ours))]
    if not acts:
        return ""
    head = ("act", "Kafka, median", "longest", "BMQ, median", "longest", "ratio", "", "aim", "met")
    produce = [
        (
            _title(act),
            *_pauses(results, kafka, act, size, "produce"),
            *_pauses(results, ours, act, size, "produce"),
            *_ratio(results, kafka, ours, act, size),
            _ms(act.aim_ms),
            is_met(results, ours, act, size),
        )
        for act in acts
    ]
    consume = [
        (
            _title(act),
            *(cell for name in (kafka, ours) for cell in _pauses(results, name, act, size, "consume")),
            *(_pauses(results, name, act, size, "commit")[1] for name in (kafka, ours)),
        )
        for act in acts
    ]
    whole = [
        (
            _title(act),
            *(_seconds(results, name, act, size) for name in (kafka, ours)),
            *(_copied(results, name, act, size) for name in (kafka, ours)),
            *(_returned(results, name, act, size) for name in (kafka, ours)),
        )
        for act in acts
    ]
    names = ("act", "Kafka, median", "longest", "BMQ, median", "longest", "commits: Kafka, longest", "BMQ, longest")
    wholes = ("act", "Kafka, s", "BMQ, s", "Kafka copied", "BMQ copied", "Kafka, pause then, ms", "BMQ, pause then, ms")
    return f"""### {size} of data

Pauses of producing, ms:

{_table(head, produce)}

{_picture(results, ours, acts, size)}Pauses of consuming, from when a record was due, so that a pause of
producing is in it; and of commits, ms:

{_table(names, consume)}

Until whole again, bytes copied, and the longest pause of producing while the part comes back:

{_table(wholes, whole)}"""


def _picture(results: Results, ours: str, acts: Sequence[Act], size: str) -> str:
    if not any(figure(results, ours, act, size, "produce_ms") for act in acts):
        return ""
    return f"![pauses](benchmarks/{failover_plot.name_of(ours, size)}.svg)\n\n"


def _not_measured(results: Results) -> str:
    lines = []
    if results.plan["not_unplugged"]:
        lines.append(f"No cable was pulled: {results.plan['not_unplugged']}.")
    for sample in results.samples:
        if sample.metrics["refused"]:
            lines.append(
                f"{sample.metrics['refused']:.0f} records were refused: round {sample.round}, {sample.adapter},"
                f" {sample.case}."
            )
    lines += results.failures
    return "## Not measured, and failed\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


# ----- cells


def _pauses(results: Results, name: str, act: Act, size: str, kind: str) -> tuple[str, str]:
    if act not in acts_of(name):
        return "no such part", ""
    middle = figure(results, name, act, size, f"{kind}_ms")
    longest = figure(results, name, act, size, f"{kind}_max_ms")
    if middle is None or longest is None:
        return "-", "-"
    return _ms(middle.middle), _ms(longest.high)


def _ratio(results: Results, kafka: str, ours: str, act: Act, size: str) -> tuple[str, str]:
    found = comparison(results, kafka, ours, act, size)
    if found is None:
        return "", ""
    middle, spread, verdict = ratio(found)
    return f"{middle} ({spread})", verdict


def _seconds(results: Results, name: str, act: Act, size: str) -> str:
    return _around(figure(results, name, act, size, "whole_s"))


def _copied(results: Results, name: str, act: Act, size: str) -> str:
    spread = figure(results, name, act, size, "copied_mb")
    if spread is None:
        return "-"
    if spread.high < EXACT_MB:
        return f"under {EXACT_MB:g} MB"
    shown = f"{max(0.0, spread.middle):,.0f} MB"
    return f"{shown} (at most {spread.high:,.0f})" if spread.high > spread.low else shown


def _returned(results: Results, name: str, act: Act, size: str) -> str:
    spread = figure(results, name, act, size, "return_produce_max_ms")
    return "-" if spread is None else _ms(spread.high)


def _title(act: Act) -> str:
    return f"one {PARTS[act.part]} more" if act.how == ADD else f"{PARTS[act.part]} {act.how}"


def _around(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    shown = f"{spread.middle:.1f}"
    return f"{shown} ({spread.low:.1f} to {spread.high:.1f})" if spread.high > spread.low else shown


def _ms(value: float) -> str:
    return f"{value:,.0f}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}" if values else "not known"


def _listed(properties: dict[str, str]) -> str:
    return " ".join(f"`{name}={value}`" for name, value in properties.items())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
