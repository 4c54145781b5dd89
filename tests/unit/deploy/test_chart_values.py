"""The chart's values, schema, README and scripts agree with each other and with the code.  What helm makes of them is
tried by `make chart`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests import drawn_files
from tests.chart import dashboards, drawn
from tests.chart.drawn import CHART, CHARTS_OWN, Undescribed, Value, config_schema, values

ROOT = CHART.parents[2]
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


@pytest.mark.slow
def test_readme_and_schema_are_what_is_drawn() -> None:
    for path, written, drawn_text in drawn.files():
        assert written == drawn_text, f"{path} differs: run `make docs-tables`"


@pytest.mark.slow
def test_check_says_which_file_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("README.md", "values.yaml", "values.schema.json"):
        text = (CHART / name).read_text()
        (tmp_path / name).write_text(text.replace("| `mode` |", "| `modus` |").replace('"num.partitions"', '"nothing"'))
    assert drawn_files.main(drawn.files(tmp_path), ["--check"], "usage") == 1
    printed = capsys.readouterr().err
    assert "README.md differs" in printed
    assert "values.schema.json differs" in printed
    assert drawn_files.main(drawn.files(tmp_path), [], "usage") == 0
    assert drawn_files.main(drawn.files(tmp_path), ["--check"], "usage") == 0
    assert drawn_files.main(drawn.files(tmp_path), ["--unknown"], "usage") == 2


@pytest.mark.slow
def test_a_readme_without_markers_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here\n")
    (tmp_path / "values.yaml").write_text((CHART / "values.yaml").read_text())
    with pytest.raises(ValueError, match="has no lines"):
        list(drawn.files(tmp_path))


def test_descriptions_are_the_comments_above() -> None:
    text = """\
# Not a description.

# -- The first
# of two lines.
a: 1
b:
  # -- (object) Whole.
  c: {d: [1]}
  # -- Empty.
  e: {}
"""
    assert values(text) == [
        Value("a", 1, "The first of two lines."), Value("b.c", {"d": [1]}, "Whole."), Value("b.e", {}, "Empty."),
    ]  # fmt: skip


def test_a_value_without_a_description_is_refused() -> None:
    with pytest.raises(Undescribed, match=r"a\.b has no description"):
        values("a:\n  # a comment\n  b: 1\n")


# ---------------------------------------------------------------------------------------------------------- schema


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference to the schema's definitions."""
    if "$ref" in schema:
        found: Mapping[str, Any] = SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")]
        return found
    return schema


def paths(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key that the schema names, but for settings, which are the code's."""
    for name, each in resolved(schema).get("properties", {}).items():
        yield f"{prefix}{name}"
        if each != {"$ref": "#/definitions/config"}:
            yield from paths(each, f"{prefix}{name}.")


def default_paths(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, each in mapping.items():
        yield f"{prefix}{name}"
        if isinstance(each, dict):
            yield from default_paths(each, f"{prefix}{name}.")


@pytest.mark.slow
def test_the_schema_names_what_values_yaml_names() -> None:
    whole = {row.key for row in values((CHART / "values.yaml").read_text()) if isinstance(row.default, dict)}

    def is_within_a_whole_object(path: str) -> bool:
        return any(path.startswith(f"{key}.") for key in whole)

    in_schema = {path for path in paths(SCHEMA) if not is_within_a_whole_object(path)}
    in_values = {path for path in default_paths(DEFAULTS) if not is_within_a_whole_object(path)}
    assert in_schema == in_values


def test_the_defaults_and_every_set_of_values_fit_the_schema() -> None:
    VALIDATOR.validate(DEFAULTS)
    found = sorted((CHART / "ci").glob("*-values.yaml"))
    assert len(found) >= 5
    for path in found:
        VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        "unknown: 1",
        "proxi: {replicas: 3}",
        "proxy: {replica: 3}",
        "proxy: {replicas: -1}",
        "proxy: {replicas: '3'}",
        "proxy: {firstOrdinal: -1}",
        "broker: {firstOrdinal: 1}",
        "controller: {autoscaling: {enabled: true}}",
        "broker: {drainSeconds: 0}",
        "broker: {maxUnavailable: half}",
        "broker: {resources: {request: {cpu: 1}}}",
        "broker: {resources: {requests: {memory: lots}}}",
        "mode: all",
        "ipFamily: IPv5",
        "clusterName: a/b",
        "image: {digest: latest}",
        "image: {tag: 'a b'}",
        "storage: {root: namenode:8020/bmq}",
        "storage: {root: webhdfs://namenode:9870/bmq}",
        "storage: {root: hdfs://namenode:8020}",
        "etcd: {endpoints: etcd:2379}",
        "etcd: {endpoints: ['http://etcd:2379']}",
        "etcd: {endpoints: [etcd]}",
        "etcd: {endpoints: ['user@etcd:2379']}",
        "zone: {source: nodeLabel}",
        "service: {port: 70000}",
        "external: {type: Ingress}",
        "external: {listener: INTERNAL}",
        "external: {listener: outside}",
        "external: {advertisedHost: 'http://example.org'}",
        "external: {loadBalancerSourceRanges: [198.51.100.1]}",
        "config: {num.partition: 6}",
        "config: {num.partitions: [6]}",
        "config: {auto.create.topics.enable: 1}",
        "config: {roles: broker}",
        "broker: {config: {drain_ms: 5}}",
        "metrics: {serviceMonitor: {interval: often}}",
        "networkPolicy: {egress: {ports: [hdfs]}}",
        "topologySpread: {whenUnsatisfiable: Never}",
        "fullnameOverride: Orders",
    ],
)
def test_wrong_values_are_refused(wrong: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(wrong)), wrong


@pytest.mark.parametrize(
    "root", ["hdfs://nn:8020/bmq", "hdfs://nn1:8020,nn2:8020/bmq", "hdfs://warehouse/bmq", "hdfs:///bmq", "file:///a/b"]
)
def test_every_form_of_root_is_taken(root: str) -> None:
    VALIDATOR.validate({"storage": {"root": root}})


def test_settings_are_those_of_the_code_without_the_charts_own() -> None:
    names = set(config_schema()["properties"])
    assert "num.partitions" in names
    assert "cache_bytes" in names
    assert not names & CHARTS_OWN


# ------------------------------------------------------------------------------------------------------- the rest


def test_the_chart_has_the_projects_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]
    assert chart["version"] == project["version"]


SCRAPED_LABELS = {"namespace", "pod", "app_kubernetes_io_instance", "instance", "job"}
"""Labels that the ServiceMonitor, or Prometheus itself, gives every series."""


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]:
        yield from group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the name and the PromQL expression of each rule, panel and variable."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: ${variable['name']}", variable["query"]


def listed_metrics() -> dict[str, set[str]]:
    """Labels of each metric of docs/metrics.md, by the names that an expression may use."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \|", page, re.MULTILINE):
        own = {label.strip() for label in labels.split(",") if label.strip()}
        if kind == "histogram":
            found |= {f"{name}_bucket": own | {"le"}, f"{name}_count": own, f"{name}_sum": own}
        else:
            found[name] = own
    return found


@pytest.mark.slow
def test_rules_dashboards_and_values_ask_for_metrics_and_labels_that_there_are() -> None:
    listed = listed_metrics()
    found = list(expressions())
    assert len(found) > 140
    values_text = (CHART / "values.yaml").read_text()
    found += [("values.yaml", name) for name in re.findall(r"\[\{name: (\w+), averageValue", values_text)]
    assert found[-1][0] == "values.yaml"
    for name, expression in found:
        metrics = re.findall(r"\b(?:bmq|kafka|process)_\w+", expression)
        assert metrics, name
        for metric in metrics:
            assert metric in listed, f"{name}: {metric}"
        asked = re.findall(r"(\w+)(?:=~|!=|=)", expression)
        for labels in re.findall(r"\b(?:by|without|on) \(([^)]*)\)", expression):
            asked += filter(None, labels.replace(" ", "").split(","))
        known = SCRAPED_LABELS.union(*(listed[metric] for metric in metrics))
        assert set(asked) <= known, f"{name}: {set(asked) - known}"


def test_recorded_names_are_level_metric_operation_and_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    records = [rule for rule in rules() if "record" in rule]
    assert len(records) > 20
    assert len({rule["record"] for rule in records}) == len(records)
    for rule in records:
        level, metric, operation = rule["record"].split(":")
        assert level.startswith("cluster"), "every level begins with the cluster"
        assert "by (namespace, app_kubernetes_io_instance" in rule["expr"], rule["record"]
        for label in level.split("_")[1:]:
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), f"{rule['record']}: {label}"
        assert f"`{level}:{metric}:" in page, rule["record"]
        assert operation in page


def test_no_other_dashboards_lie_about() -> None:
    drawn_names = {f"{dashboard.name}.json" for dashboard in dashboards.DASHBOARDS}
    assert {path.name for path in (CHART / "files" / "dashboards").iterdir()} == drawn_names
    uids = [dashboard.name for dashboard in dashboards.DASHBOARDS]
    assert uids == ["overview", "topics", "groups", "transactions", "storage", "process", "security"]


def test_the_readmes_links_lead_somewhere() -> None:
    readme = (CHART / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", readme)
    assert targets
    for target in targets:
        assert (CHART / target).exists(), target
