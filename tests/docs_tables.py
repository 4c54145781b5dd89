"""The tables in docs/ and in the chart that are drawn from the code, so that they cannot say anything else.

    python -m tests.docs_tables            write them, and the chart's (tests.chart.drawn)
    python -m tests.docs_tables --check    say which ones differ, status 1 if any

Each stands between two markers in its page; the text around them is written by hand.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bmq.cli.command_tree import Command, walk
from bmq.cli.parsers.serve import default_text
from bmq.cli.parsers.tree import build_parser
from bmq.console.access.rights import RIGHTS
from bmq.core.config import OPTIONS, environment_name, option_name
from bmq.core.logging.fields import FIELDS
from bmq.core.security.acls import ResourceType
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta import topic_configs
from bmq.proxy.apis import ALL_APIS
from bmq.storage import recovery
from tests import drawn_files, machine_tables
from tests.chart import drawn as chart
from tests.drawn_files import Drawn, replace_section, table
from tests.hadoop_matrix import results as hadoop_matrix
from tests.integration.clients import mechanisms
from tests.log_events import events as read_log_events
from tests.mutants.catalogue import read_list
from tests.simulation import abandoned_apis
from tests.spark_matrix import results as spark_matrix

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(arguments: Sequence[str]) -> int:
    return drawn_files.main(itertools.chain(pages(), chart.files()), arguments, __doc__ or "")


def pages() -> Iterator[Drawn]:
    """Each page of docs/."""
    for name, sections in PAGES.items():
        path = DOCS / name
        written = drawn = path.read_text()
        for section, draw in sections.items():
            begin, end = f"<!-- drawn from the code: {section} -->", f"<!-- end: {section} -->"
            drawn = replace_section(path, drawn, begin, end, draw())
        yield Drawn(path, written, drawn)


# ------------------------------------------------------------------------------------------------- recovery


def recovery_rows() -> str:
    rows = []
    for number, row in enumerate(recovery.TABLE, 1):
        facts = [fact.value if fact is not None else "any" for fact in (row.found, row.covered, row.tail, row.reach)]
        rows.append([str(number), *facts, f"**{row.action.name}**", row.label, row.crash])
    return table(["row", "found", "checkpoint", "tail", "next base", "action", "label", "the crash behind it"], rows)


def recovery_combinations() -> str:
    rows = []
    for facts in recovery.combinations():
        row = recovery.judge(facts)
        number = str(recovery.TABLE.index(row) + 1)
        said = [facts.found.value, facts.covered.value, facts.tail.value, facts.reach.value]
        rows.append([*said, f"**{row.action.name}**", number, row.label])
    return table(["found", "checkpoint", "tail", "next base", "action", "row", "label"], rows)


def recovery_actions() -> str:
    return table(["action", "means"], [[action.name, action.value] for action in recovery.Action])


# ------------------------------------------------------------------------------------------------- the endpoint


def client_mechanisms() -> str:
    return table(["client", *mechanisms.MECHANISMS, "a session's end"], mechanisms.drawn_rows())


def apis() -> str:
    rows = []
    for api in sorted(ALL_APIS, key=lambda api: api.key):
        least = api.min_version if api.advertised_min is None else api.advertised_min
        listed = f"{least} to {api.max_version}"
        served = "" if least == api.min_version else f" (served from {api.min_version})"
        name = "".join(word.title() for word in api.key.name.split("_"))
        rows.append([str(int(api.key)), name, listed + served, "; ".join(map(_need, api.needs or ())) or "nothing"])
    return table(["key", "API", "versions", "asks for the right to"], rows)


def abandoned_requests() -> str:
    return table(["API", "client", "shown by, or the reason why no client gives it up"], abandoned_apis.rows())


def _need(need: Need) -> str:
    return f"{need.operation.name} {need.resource_type.name}" + (f" ({need.where})" if need.where else "")


def own_settings() -> str:
    return _settings(is_kafka=False)


def kafka_settings() -> str:
    return _settings(is_kafka=True)


def _settings(*, is_kafka: bool) -> str:
    rows = []
    for option in OPTIONS:
        if bool(option.metadata["kafka"]) is is_kafka:
            default = default_text(option)
            flag = f"`{option.metadata['flag']}`" if option.metadata["flag"] else ""
            shown = f"`{default}`" if default else ""
            rows.append(
                [f"`{option_name(option)}`", flag, f"`{environment_name(option)}`", shown, option.metadata["doc"]]
            )
    if is_kafka:
        return table(["key", "environment", "default", "is"], [[row[0], *row[2:]] for row in rows])
    return table(["key", "flag", "environment", "default", "is"], rows)


def http_rights() -> str:
    """Return what each request of the HTTP port needs."""
    names = {
        ResourceType.CLUSTER: "the cluster",
        ResourceType.TOPIC: "the topic",
        ResourceType.GROUP: "the group",
        ResourceType.TRANSACTIONAL_ID: "the transactional id",
    }
    rows = []
    for (method, path), right in RIGHTS.items():
        needs = right.who.value
        if right.operation is not None and right.resource is not None:
            needs = f"{right.operation.name} on {names[right.resource]}"
        rows.append([f"`{method} {path}`", needs, right.note])
    return table(["request", "is for", ""], rows)


def topic_config_rows() -> str:
    """Return the table of all topic configs."""
    rows = []
    for key in topic_configs.TABLE.values():
        shown = f"`{key.default}`" if key.default else ""
        rows.append([f"`{key.name}`", shown, f"`{key.server}`" if key.server else "", key.doc])
    return table(["config", "default", "the default's broker config", "is"], rows)


# ------------------------------------------------------------------------------------------------- the command line


def commands() -> str:
    """Each command that does something, with its help."""
    tree = _tree()
    helps = {(*command.path, name): text for command in tree for name, text in command.commands}
    return table(
        ["command", "does"],
        [[f"`{command.name}`", helps[command.path]] for command in tree if not command.commands],
    )


_NARGS = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
COMMON_MIN = 8
"""Number of commands: an option that so many share, with the same text, is documented once."""


def common_options() -> str:
    """Return the table of the options that many commands share."""
    return table(["option", "is"], [list(row) for row in _common()])


def command_options() -> str:
    """Each command's other arguments, but for those of `bmq serve`, which configuration.md has."""
    common = _common()
    sections = []
    for command in _tree():
        if command.commands or command.name == "bmq serve":
            continue
        words = [_NARGS.get(str(each.action.nargs), "{0}").format(each.metavar) for each in command.positionals]
        rows = _rows(command)
        sections.append(f"### `{' '.join([command.name, *words])}`\n")
        if own := [list(row) for row in rows if row not in common]:
            sections.append(table(["argument", "is"], own))
        if shared := ", ".join(row[0] for row in rows if row in common):
            sections.append(f"Also {shared}.\n")
    return "\n".join(sections)


def _common() -> dict[tuple[str, str], None]:
    """Return rows of the options that many commands have, in their first command's order."""
    leaves = [_rows(command) for command in _tree() if not command.commands and command.name != "bmq serve"]
    counted = Counter(row for rows in leaves for row in rows)
    return {row: None for row, count in counted.items() if count >= COMMON_MIN}


def _rows(command: Command) -> list[tuple[str, str]]:
    rows = [(f"`{each.metavar}`", command.help_of(each)) for each in command.positionals]
    for each in command.options:
        value = "" if not each.takes_value else f" {'|'.join(each.choices) or each.metavar}"
        if each.names[-1] != "--help":
            rows.append((f"`{each.names[-1]}{value}`", command.help_of(each)))
    return rows


def _tree() -> list[Command]:
    """Every command by its first name; an alias is not another one."""
    tree, seen = [], set[int]()
    for command in walk(build_parser()):
        if id(command.parser) not in seen:
            seen.add(id(command.parser))
            tree.append(command)
    return tree


# ------------------------------------------------------------------------------------------------- mutations


def mutations() -> str:
    rows = [[str(one.rule), f"`{one.name}`", one.breaks, f"`{one.file}`", f"`{one.killed_by}`"] for one in read_list()]
    return table(["rule", "mutation", "what the mistake does", "in", "killed by"], rows)


# ------------------------------------------------------------------------------------------------------- the log


def log_fields() -> str:
    return table(["field", "is"], [[f"`{name}`", meaning] for name, meaning in FIELDS.items()])


READS_STORAGE = ("cli/rebuild/", "broker/repair/scan.py")
"""Commands' lines, which are not in a server's log."""


def log_events() -> str:
    """Return the table of warnings and errors for operators; an event that several places write is one row."""
    found: dict[tuple[str, str, str], frozenset[str]] = {}
    for event in sorted(read_log_events(), key=lambda event: (event.path.split("/")[0], event.level, event.text)):
        if event.level in ("WARNING", "ERROR") and event.text and not event.path.startswith(READS_STORAGE):
            key = (event.path.split("/")[0], event.level, event.text)
            found[key] = found.get(key, frozenset()) | event.fields
    rows = [
        [room, level, text, " ".join(f"`{name}`" for name in FIELDS if name in names)]
        for (room, level, text), names in found.items()
    ]
    return table(["part", "level", "event", "fields"], rows)


def _machine(machine: machine_tables.Machine) -> dict[str, Callable[[], str]]:
    return {
        "states": lambda: machine_tables.states(machine),
        "state diagram": lambda: machine_tables.diagram(machine),
        "state table": lambda: machine_tables.pairs(machine),
        "handlers": lambda: machine_tables.handlers(machine),
    }


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "design/partition-states.md": _machine(machine_tables.PARTITION),
    "design/assignment-states.md": _machine(machine_tables.ASSIGNED),
    "design/journal-states.md": _machine(machine_tables.JOURNAL),
    "design/transaction-states.md": _machine(machine_tables.TRANSACTION),
    "design/controller.md": {
        "members' states": lambda: machine_tables.states(machine_tables.MEMBER),
        "members' table": lambda: machine_tables.pairs(machine_tables.MEMBER),
    },
    "design/cluster.md": {
        "route's states": lambda: machine_tables.states(machine_tables.ROUTE),
        "route's table": lambda: machine_tables.pairs(machine_tables.ROUTE),
    },
    "design/recovery-table.md": {
        "actions": recovery_actions,
        "rows": recovery_rows,
        "combinations": recovery_combinations,
    },
    "design/endpoint.md": {"APIs": apis},
    "design/simulation.md": {"requests that were given up": abandoned_requests},
    "clients.md": {"mechanisms": client_mechanisms},
    "cli.md": {"commands": commands, "options of many commands": common_options, "options": command_options},
    "design/mutations.md": {"mutations": mutations},
    "logging.md": {"fields": log_fields, "events": log_events},
    "operations/http.md": {"rights": http_rights},
    "operations/hdfs.md": {"versions of Hadoop": lambda: hadoop_matrix.draw(hadoop_matrix.read_results())},
    "spark.md": {"versions of PySpark": lambda: spark_matrix.draw(spark_matrix.read_results())},
    "configuration.md": {
        "own settings": own_settings,
        "Kafka's settings": kafka_settings,
        "topic configs": topic_config_rows,
    },
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
