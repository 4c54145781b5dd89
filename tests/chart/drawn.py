"""What of the chart is drawn from elsewhere: the README's table from values.yaml, the schema's settings from the code,
and Grafana's dashboards from `tests.chart.dashboards`.

    python -m tests.chart.drawn            write them
    python -m tests.chart.drawn --check    say which ones differ, status 1 if any

A value's description is the comment above it that begins with `# --`.  `(object)` after that ends the table there: the
object is one row, with its default in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bmq.core.config import OPTIONS, option_name
from tests.chart import dashboards

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "bmq"
BEGIN, END = "<!-- drawn from values.yaml -->\n", "<!-- end -->\n"
PIPE = "\\|"
_MARK, _OBJECT = "# --", "(object)"

CHARTS_OWN = frozenset(
    {
        "advertise", "advertised.listeners", "cluster", "drain_ms", "hadoop_conf_dir", "http", "internal",
        "internal_advertise", "listen", "listener.security.protocol.map", "listeners", "meta", "meta_password_file",
        "node_id", "roles", "root", "shared_listen", "workers", "zone",
    }
)  # fmt: skip
"""Settings that the chart makes itself, of other values: given in `config`, they would count for nothing."""
_TYPES = {"bool": "boolean", "int": "integer", "float": "number"}


@dataclass(frozen=True, slots=True)
class Value:
    """One row of the README's table."""

    key: str
    default: object
    description: str


class Undescribed(Exception):
    """A value has no description."""


def main(arguments: Sequence[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    differing = [(path, drawn) for path, written, drawn in files() if written != drawn]
    for path, drawn in differing:
        if arguments:
            sys.stderr.write(f"{path} differs: run `make docs-tables`\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(drawn)
            sys.stdout.write(f"{path} drawn anew\n")
    return 1 if arguments and differing else 0


def files(chart: Path = CHART) -> Iterator[tuple[Path, str, str]]:
    """Each file: its path, its text as it is, and as it should be."""
    readme = chart / "README.md"
    text = readme.read_text()
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ValueError(f"{readme} has no markers for the table of values")
    yield readme, text, f"{before}{BEGIN}\n{table(values((chart / 'values.yaml').read_text()))}\n{END}{after}"
    path = chart / "values.schema.json"
    text = path.read_text()
    schema = json.loads(text)
    schema["definitions"]["config"] = config_schema()
    yield path, text, json.dumps(schema, indent=2) + "\n"
    for path, drawn in dashboards.files(chart):
        yield path, path.read_text() if path.exists() else "", drawn


def table(rows: Sequence[Value]) -> str:
    lines = ["| key | default | is |", "| --- | --- | --- |"]
    for row in rows:
        cells = (f"`{row.key}`", f"`{json.dumps(row.default)}`", row.description)
        lines.append(f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def values(text: str) -> list[Value]:
    """Return every value of a values.yaml in its order.  Raises Undescribed."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, text.splitlines(), ""))


def _values(mapping: yaml.MappingNode, lines: Sequence[str], prefix: str) -> Iterator[Value]:
    for key_node, node in mapping.value:
        key = f"{prefix}{key_node.value}"
        description = _comment(lines, key_node.start_mark.line)
        is_whole = description.startswith(_OBJECT)
        if isinstance(node, yaml.MappingNode) and node.value and not is_whole:
            yield from _values(node, lines, f"{key}.")
            continue
        if not description:
            raise Undescribed(f"{key} has no description: a comment above it that begins with `{_MARK}`")
        default = yaml.safe_load(yaml.serialize(node))
        yield Value(key, default, description.removeprefix(_OBJECT).strip())


def _comment(lines: Sequence[str], line: int) -> str:
    """Return the description right above this line, "" if there is none."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        text = lines[line].strip()
        if text.startswith(_MARK):
            return " ".join([text.removeprefix(_MARK).strip(), *found])
        found.insert(0, text.removeprefix("#").strip())
    return ""


def config_schema() -> dict[str, Any]:
    """Return what `config` may hold: the settings of `bmq serve` but for those that the chart makes itself."""
    properties = {}
    for option in sorted(OPTIONS, key=option_name):
        if option_name(option) not in CHARTS_OWN:
            kind = _TYPES.get(type(option.default).__name__, "string")
            # A whole number that a float does not hold exactly is given as a string.
            properties[option_name(option)] = {"type": [kind, "string"] if kind in ("integer", "number") else kind}
    return {"type": "object", "additionalProperties": False, "properties": properties}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
