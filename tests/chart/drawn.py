"""The parts of the chart that are drawn: the README's table from values.yaml, the schema's settings from the code, and
Grafana's dashboards from `tests.chart.dashboards`.

`python -m tests.docs_tables` writes them with the tables of docs/.

A value's description is the comment above it that begins with `# --`.  `(object)` after that ends the table there: the
object is one row, with its default in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bmq.core.config import OPTIONS, option_name
from bmq.core.options import COMMAND, FILE
from bmq.core.security.listener_settings import TABLE
from tests.chart import dashboards
from tests.drawn_files import Drawn, replace_section, table

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "bmq"
BEGIN, END = "<!-- drawn from values.yaml -->", "<!-- end -->"
_MARK, _OBJECT = "# --", "(object)"

CHARTS_OWN = frozenset(
    {
        "advertise", "advertised.listeners", "allow.everyone.if.no.acl.found", "authorizer.class.name", "cluster",
        "drain_ms", "hadoop_conf_dir", "http", "http_authentication", "http_metrics_authentication", "http_tls",
        "insecure", "internal", "internal.secret", "internal.secret.required", "internal.ssl.keystore.location",
        "internal.ssl.required", "internal.ssl.truststore.location", "internal_advertise", "listen",
        "listener.security.protocol.map",
        "listeners", "log_format", "meta", "meta_password", "meta_user", "node_id", "roles", "root", "shared_listen",
        "super.users", "workers", "zone",
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


def files(chart: Path = CHART) -> Iterator[Drawn]:
    """Yield each file of the chart that is drawn, or has drawn parts."""
    readme = chart / "README.md"
    text = readme.read_text()
    rows = _table(values((chart / "values.yaml").read_text()))
    yield Drawn(readme, text, replace_section(readme, text, BEGIN, END, rows))
    path = chart / "values.schema.json"
    text = path.read_text()
    schema = json.loads(text)
    schema["definitions"]["config"] = config_schema()
    yield Drawn(path, text, json.dumps(schema, indent=2) + "\n")
    for path, drawn in dashboards.files(chart):
        yield Drawn(path, path.read_text() if path.exists() else "", drawn)


def _table(rows: Sequence[Value]) -> str:
    cells = [(f"`{row.key}`", f"`{json.dumps(row.default)}`", row.description) for row in rows]
    return table(("key", "default", "is"), cells)


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
    """Return what `config` may hold: the settings of `bmq serve` but for those that the chart makes itself.

    A secret, which a ConfigMap may not hold, is given by its file, in a volume, or a command.
    """
    properties: dict[str, Any] = {}
    for option in sorted(OPTIONS, key=option_name):
        name = option_name(option)
        if name in CHARTS_OWN:
            continue
        if option.metadata["is_secret"]:
            properties |= {f"{name}.{source}": {"type": "string"} for source in (FILE, COMMAND)}
        else:
            kind = _TYPES.get(type(option.default).__name__, "string")
            # A whole number that a float does not hold exactly is given as a string.
            properties[name] = {"type": [kind, "string"] if kind in ("integer", "number") else kind}
    properties["schema_registry_url"] = {"type": "string", "pattern": "^[^@]*$"}  # its user and password are a secret
    listeners: dict[str, Any] = {f"^listener\\.name\\.[a-z0-9_]+\\.([a-z0-9-]+\\.)?({'|'.join(_of_listeners())})$": {}}
    return {
        "type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items())),
        "patternProperties": listeners,
    }  # fmt: skip


def _of_listeners() -> Iterator[str]:
    """Yield what may follow a listener's name, as a pattern."""
    for key, option in sorted(TABLE.items()):
        if option.metadata["is_secret"]:
            yield from (re.escape(f"{key}.{source}") for source in (FILE, COMMAND))
        else:
            yield re.escape(key)
