"""``bmq job`` without Spark: its help, and what it says when something is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bmq.cli.main import main
from bmq.spark.jobs import JOBS, session, to_parquet

pytestmark = pytest.mark.slow

AUDIT = ["job", "audit", "--root", "file:///nowhere", "--topic", "orders"]


@pytest.mark.parametrize("name", ["to_parquet", "to-parquet", "audit"])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["job", name, "--help"])
    printed = capsys.readouterr().out
    assert "--root" in printed
    assert "--master" in printed


def test_help_imports_nothing_heavy() -> None:
    """Show ``bmq --help`` without loading Spark: users wait for it, on machines that do not have it."""
    heavy = ["pyspark", "pyarrow", "pandas", "numba", "matplotlib", "fastavro"]
    script = f"""
import sys
from bmq.cli.main import main
for arguments in (["--help"], ["job", "--help"], ["job", "audit", "--help"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code
print([name for name in {heavy} if name in sys.modules])
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.import_module

    def without_spark(name: str, package: str | None = None) -> Any:
        if name == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_spark)
    assert main(AUDIT) == 2
    printed = capsys.readouterr().err
    assert "Spark jobs need the package pyspark: " in printed
    assert "-m pip install " in printed


@pytest.mark.parametrize(("version", "says"), [(None, "there is none"), (11, "there is Java 11")])
def test_java_is_missing(
    version: int | None, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "java_version", lambda: version)
    assert main(AUDIT) == 2
    printed = capsys.readouterr().err
    assert f"Java 17 or later, {says}" in printed
    assert "openjdk-17-jre-headless" in printed


@pytest.mark.parametrize("job", [["audit"], ["to-parquet", "--table", "table"]])
def test_a_root_or_a_topic_that_is_not_there_is_told_before_spark_starts(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run jobs with a missing root or topic: Spark is not started, and a mistyped root is not made."""

    def no_session(*_: object) -> None:
        raise AssertionError("Spark was started")

    place = tmp_path / "place"  # libraries keep files in the configuration's folder, which is beside it
    place.mkdir()
    monkeypatch.chdir(place)
    for module in JOBS.values():
        monkeypatch.setattr(importlib.import_module(module), "start_session", no_session)
    root = place / "root"
    assert main(["job", *job, "--root", root.as_uri(), "--topic", "orders"]) == 2
    assert capsys.readouterr().err == f"bmq: there is no folder {root}\n"
    assert not root.exists()
    root.mkdir()
    assert main(["job", *job, "--root", root.as_uri(), "--topic", "orders"]) == 2
    assert "there is no topic orders in " in (error := capsys.readouterr().err)
    assert "is it the right root?" in error
    assert list(place.iterdir()) == [root], "nor is the table"


@pytest.mark.parametrize(
    "arguments",
    [
        [*AUDIT, "--output", "audit.xls"],
        [*AUDIT, "--picture", "audit.gif"],
        [*AUDIT, "--picture", "/no/such/folder/audit.png"],
        [*AUDIT, "--output", "/no/such/folder/audit.json"],
        ["job", "to_parquet", "--root", "r", "--topic", "t", "--table", "x", "--max-offsets", "0"],
        ["job", "to_parquet", "--root", "r", "--topic", "t", "--table", "x", "--file-bytes", "12q"],
        ["job", "unknown"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "avro"], "--schema is missing: an Avro schema (.avsc)"),
        (["--format", "protobuf"], "--schema is missing: a descriptor set"),
        (["--schema", "id bigint"], "--schema has no meaning for raw values"),
    ],
)
def test_a_schema_that_does_not_fit_the_format_is_refused_before_spark_starts(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(to_parquet, "start_session", start)
    monkeypatch.setattr(to_parquet, "read_topic", start)
    assert main(["job", "to_parquet", "--root", "file:///r", "--topic", "t", "--table", "file:///x", *words]) == 2
    assert message in capsys.readouterr().err
