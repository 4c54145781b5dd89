"""The plan of the benchmark of security: the order of its rounds, its settings, its ACLs, and what a failure costs."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourcePatternType

from bench import security
from bench.deployments import Deployment
from bench.results import Results, Sample
from bench.security_plan import CONFIGURATIONS, CONNECT, OPEN, QUICK, SECURED, THROUGHPUT, Plan
from bench.security_sites import (
    LISTENERS,
    PROTOCOLS,
    SETTINGS,
    TOPICS,
    Site,
    bindings,
    client_properties,
    without_secrets,
)
from tests.harness.certificates import PASSWORD

SIDES = ("kafka-1", "bmq-local")


def site(name: str) -> Site:
    return Site(name, {case: Deployment(name, case, 1, {}) for case in CONFIGURATIONS})


SITES = [site(name) for name in SIDES]


def fake(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Yield a sample of producing and one of connecting, whose rates rise in the first two rounds."""
    assert deployment.bootstrap == case
    for bench, metric in (("produce", "records_s"), (CONNECT, "connections_s")):
        rate = 100.0 if number <= -2 or number > 0 else 50.0 - 40 * number
        yield Sample(adapter=deployment.name, bench=bench, case=case, round=number, metrics={metric: rate})


def failing(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Fail on one side."""
    if deployment.name == "kafka-1":
        raise OSError("no more")
    yield from fake(deployment, case, plan, number)


@pytest.mark.parametrize("number", range(8))
def test_a_round_takes_each_configuration_on_both_sides_one_right_after_the_other(number: int) -> None:
    cells = [(cell.case, cell.name) for cell in security.in_turn(SITES, number)]
    assert len(set(cells)) == len(cells) == len(CONFIGURATIONS) * len(SIDES)
    for (first, one), (second, other) in zip(cells[::2], cells[1::2], strict=True):
        assert first == second
        assert {one, other} == set(SIDES)


def test_no_configuration_and_no_side_has_a_place_of_its_own() -> None:
    rounds = [list(security.in_turn(SITES, number)) for number in range(8)]
    for case in CONFIGURATIONS:
        places = [[cell.case for cell in cells[::2]].index(case) for cells in rounds]
        assert set(places) == set(range(len(CONFIGURATIONS)))
        first = [next(cell.name for cell in cells if cell.case == case) for cells in rounds]
        assert first.count("kafka-1") == first.count("bmq-local")


def test_rounds_that_count_come_after_the_rates_have_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "warm_up", fake)
    monkeypatch.setattr(security, "MEASUREMENTS", {THROUGHPUT: fake, "other": fake})
    results = Results(command="", machine={}, plan={}, started="")
    plan = replace(QUICK, rounds=2, warm_rounds_most=6)
    assert list(security.measure(SITES, [THROUGHPUT], plan, results, is_quick=False)) == [0, 1, 2]
    assert results.plan["warm_up"] == {"rounds": 4, "is_warm": True}
    assert {sample.round for sample in results.samples} == {1, 2}
    assert len(results.samples) == 2 * len(CONFIGURATIONS) * len(SIDES) * 2
    assert not results.failures


def test_a_failure_costs_no_other_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(security, "warm_up", fake)
    monkeypatch.setattr(security, "MEASUREMENTS", {THROUGHPUT: failing})
    results = Results(command="", machine={}, plan={}, started="")
    assert list(security.measure(SITES, [THROUGHPUT], QUICK, results, is_quick=True)) == [1]
    assert {sample.adapter for sample in results.samples} == {"bmq-local"}
    assert results.failures[-1].startswith("throughput, ")
    assert len(results.failures) == len(CONFIGURATIONS)
    capsys.readouterr()


def test_a_site_that_does_not_start_is_a_failure_and_the_other_one_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def start(name: str, _: Path | None, acls: int) -> Iterator[Site]:
        if name == "kafka-1":
            raise OSError("no room")
        yield replace(site(name), deployments={})

    monkeypatch.setattr(security, "start", start)
    results = Results(command="", machine={}, plan={}, started="")
    options = argparse.Namespace(deployments=",".join(SIDES), folder=tmp_path)
    with contextlib.ExitStack() as stack:
        assert [each.name for each in security.started(stack, options, QUICK, results)] == ["bmq-local"]
    assert results.failures == ["start of kafka-1: OSError('no room')"]
    assert results.plan["tls"] == {"bmq-local": {}}
    assert "no room" in capsys.readouterr().err


def test_every_configuration_has_a_listener_of_its_protocol() -> None:
    for each in CONFIGURATIONS.values():
        assert each.listener in LISTENERS[each.process]
        assert PROTOCOLS[each.listener] == each.protocol
        assert ("ACLs" in each.name) == (each.process == SECURED)


def test_a_client_has_what_its_protocol_needs_and_no_more() -> None:
    trust = Path("ca.pem")
    assert client_properties("PLAINTEXT", trust) == {}
    assert client_properties("SSL", trust) == {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}
    log_in = client_properties("SASL_SSL", trust)
    assert (log_in["sasl.mechanism"], log_in["sasl.username"]) == ("SCRAM-SHA-512", "bench")


def test_a_page_shows_no_password() -> None:
    assert PASSWORD in str(SETTINGS[SECURED])
    for name in (OPEN, SECURED):
        shown = without_secrets(SETTINGS[name])
        assert shown.keys() == SETTINGS[name].keys()
        assert PASSWORD not in str(shown)


def test_there_are_as_many_acls_as_asked_for_and_the_clients_have_theirs() -> None:
    found = bindings(300)
    assert len({(each.name, each.principal, each.resource_pattern_type, each.restype) for each in found}) == 300
    ours = [each for each in found if each.name == TOPICS]
    assert {each.principal for each in ours} == {"User:ANONYMOUS", "User:bench"}
    assert all(each.resource_pattern_type == ResourcePatternType.PREFIXED for each in ours)
    assert all(each.operation == AclOperation.ALL for each in ours)
    patterns = [each.resource_pattern_type for each in found if each not in ours]
    assert patterns.count(ResourcePatternType.LITERAL) == patterns.count(ResourcePatternType.PREFIXED)


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--only", "speed"], ["--deployments", "kafka-3"]])
def test_options_that_cannot_be_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        security.main(given)
    assert "error:" in capsys.readouterr().err
