"""Delays from the data set itself, and the report of a difference; the Java that Spark needs."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path

import pytest

from demo import java
from demo.delays import Carrier, Day, differences, from_data_set, print_delays
from demo.java import JavaMissing, ensure_java
from demo.picture import draw

CSV = b"""\
year,month,day,dep_time,arr_delay,carrier
2013,1,1,517,10,UA
2013,1,1,518,-4,UA
2013,1,2,519,3,UA
2013,1,3,520,3,UA
2013,1,3,NA,NA,UA
2013,1,3,NA,NA,OO
2013,1,4,521,7,OO
"""
UA = Carrier("UA", 5, 3.0, date(2013, 1, 1), 3.0)
OO = Carrier("OO", 1, None, None, None)


def test_the_worst_of_equal_days_is_the_first() -> None:
    assert from_data_set(CSV, 6) == [OO, UA]
    assert from_data_set(CSV, 7)[0] == Carrier("OO", 2, 7.0, date(2013, 1, 4), 7.0)


def test_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert differences([UA, OO], [OO, UA]) == []
    other = dataclasses.replace(UA, mean=3.0000000000000004)
    assert differences([other, OO], [OO, UA]) == [f"Spark found {other}, the data set has {UA}"]
    assert differences([UA], [OO, UA]) == ["carrier OO is in one only"]
    assert differences([UA, UA], [UA]) == ["Spark returned a carrier twice"]
    print_delays([other, OO], [UA, OO], {"UA": "United"})
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith("UA  United")
    assert printed[2].endswith("2013-01-01     3.0 min  <- differs")
    assert printed[3].split() == ["OO", "1", "-", "-", "-"]


@pytest.mark.slow
def test_picture(tmp_path: Path) -> None:
    days = [Day("UA", date(2013, 1, 1), 2, 2, 6), Day("OO", date(2013, 1, 3), 1, 0, 0)]
    draw([UA, OO], days, {"UA": "United"}, tmp_path / "flights.png")
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")


def test_java_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_version", lambda: 21)
    said: list[str] = []
    ensure_java(said.append)
    assert said == []


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_version", lambda: 11)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(JavaMissing, match=r"there is Java 11: install it .*openjdk-17-jre-headless"):
        ensure_java(lambda text: None)


def test_java_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install Java by the first package that apt-get has."""
    versions = iter([None, 21])
    monkeypatch.setattr(java, "java_version", lambda: next(versions))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    called = tmp_path / "called"
    for name, body in (("apt-get", f'echo "$@" >> {called}'), ("apt-cache", '[ "$2" = openjdk-21-jre-headless ]')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said: list[str] = []
    ensure_java(said.append)
    assert said == ["Spark needs Java: installing openjdk-21-jre-headless"]
    assert called.read_text().splitlines() == [
        "-q update",
        "-q install -y --no-install-recommends openjdk-21-jre-headless",
    ]
