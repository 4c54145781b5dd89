"""Commands that take a cluster's addresses from a profile, and those that take none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.cli.command_tree import walk
from bmq.cli.doctor.run import _settings
from bmq.cli.main import main
from bmq.cli.parsers.tree import build_parser
from bmq.cli.profile.profiles import KEYS
from bmq.core.config_sources import unknown_names
from tests.unit.cli.fake_admin import FakeAdmin

pytestmark = pytest.mark.slow


Told = pytest.CaptureFixture[str]


def test_commands_over_kafka_take_their_servers_from_a_profile(
    admin: FakeAdmin, bmq: Callable[..., int], servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["profile", "set", "prod", "--bootstrap-server", "k:9092"]) == 0
    assert bmq("topic", "list") == 0
    assert bmq("topic", "list", "--profile", "prod") == 0
    monkeypatch.setenv("BMQ_BOOTSTRAP", "e:9092")
    assert bmq("topic", "list") == 0
    assert bmq("topic", "list", "--profile", "prod") == 0
    assert bmq("topic", "list", "--profile", "prod", "--bootstrap-server", "f:9092") == 0
    assert servers == ["127.0.0.1:9092", "k:9092", "e:9092", "k:9092", "f:9092"]
    assert bmq("topic", "list", "--profile", "missing") == 2


def test_segment_commands_take_their_root_from_a_profile(tmp_path: Path, capsys: Told) -> None:
    root = tmp_path / "root"
    (root / "topics" / "orders").mkdir(parents=True)
    assert main(["profile", "set", "prod", "--root", f"file://{root}", "--use"]) == 0
    assert main(["segment", "dump", "--topic", "missing"]) == 2
    assert f"no such topic in file://{root}" in capsys.readouterr().err


def test_a_job_takes_its_root_from_a_profile(tmp_path: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["job", "audit", "--topic", "orders"]) == 2
    assert "no root is given: use --root URL, or set BMQ_ROOT" in capsys.readouterr().err
    monkeypatch.setenv("BMQ_ROOT", "file:///environment")
    assert main(["profile", "set", "prod", "--root", f"file://{tmp_path}/nowhere"]) == 0
    assert main(["job", "audit", "--topic", "orders", "--profile", "prod"]) == 2
    assert f"{tmp_path}/nowhere" in capsys.readouterr().err


def test_a_named_profile_is_as_strong_as_flags_for_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile in use is weaker than the servers' settings; one that is named is as strong as flags."""
    assert main(["profile", "set", "a", "--root", "file:///a", "--http", "http://a:1", "--meta", "sqlite:///a"]) == 0
    assert main(["profile", "set", "b", "--root", "file:///b", "--use"]) == 0
    monkeypatch.setenv("BMQ_ROOT", "file:///environment")
    monkeypatch.delenv("BMQ_CONFIG", raising=False)
    parser = build_parser()
    assert _settings(parser.parse_args(["cluster", "doctor"])).root == "file:///environment"
    named = _settings(parser.parse_args(["cluster", "doctor", "--profile", "a", "--meta", "sqlite:///m"]))
    assert (named.root, named.http, named.meta) == ("file:///a", "a:1", "sqlite:///m")
    monkeypatch.delenv("BMQ_ROOT")
    assert _settings(parser.parse_args(["cluster", "doctor"])).root == "file:///b"


def test_a_server_takes_none_of_their_names_for_a_misspelt_setting() -> None:
    assert unknown_names(dict.fromkeys([*KEYS.values(), "BMQ_PROFILE"], "x")) == []


@pytest.mark.parametrize(
    "words", [["serve"], ["health"], ["cluster", "rebuild"], ["cluster", "merge-root"]], ids=" ".join
)
def test_commands_of_servers_take_no_profile(words: list[str], capsys: Told) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([*words, "--profile", "a"])
    assert "unrecognized arguments: --profile" in capsys.readouterr().err


def test_every_command_that_asks_a_cluster_takes_a_profile() -> None:
    """Look at every command of the parser, so that one that is added later cannot lack ``--profile``."""
    for command in walk(build_parser()):
        names = {name for option in command.options for name in option.names}
        if names & {"--bootstrap-server", "--http", "--root"} and command.path[1] not in ("serve", "health", "profile"):
            reads_none = command.path[1:] in [("cluster", each) for each in ("rebuild", "merge-root", "add-scram")]
            assert ("--profile" in names) is not reads_none, command.name
