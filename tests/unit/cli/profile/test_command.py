"""``bmq profile``: set, use, show, list and remove."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from bmq.cli.main import main
from bmq.cli.profile import profiles
from bmq.cli.profile.profiles import Profiles

pytestmark = pytest.mark.slow


Told = pytest.CaptureFixture[str]


def test_a_profile_is_set_used_shown_listed_and_removed(file: Path, capsys: Told) -> None:
    url = "etcd://me:secret@e1:2379"
    assert main(["profile", "set", "prod", "--bootstrap-server", "k:9092", "--meta", url]) == 0
    assert capsys.readouterr().out == "profile prod is set; `bmq profile use prod` makes it the current one\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["profile", "use", "prod"]) == 0
    assert capsys.readouterr().out == "profile prod is in use\n"
    assert main(["profile", "set", "prod", "--http", "k:9080", "--meta", ""]) == 0
    assert main(["profile", "set", "test", "--root", "file:///r"]) == 0
    capsys.readouterr()
    assert main(["profile", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "   PROFILE  BOOTSTRAP  HTTP    ROOT",
        "*  prod     k:9092     k:9080  -",
        "   test     -          -       file:///r",
    ]
    assert main(["profile", "show"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "profile prod",
        "  bootstrap_server k:9092",
        "  http             k:9080",
    ]
    assert main(["profile", "remove", "prod", "missing"]) == 2
    assert "there is no profile 'missing'; known: prod, test" in capsys.readouterr().err
    assert main(["profile", "remove", "prod"]) == 0
    assert profiles.read() == Profiles(None, {"test": {"root": "file:///r"}})


def test_passwords_are_masked(file: Path, capsys: Told) -> None:
    assert main(["profile", "set", "prod", "--meta", "etcd://me:secret@e1:2379", "--use"]) == 0
    assert "secret" in file.read_text()
    for words in (["show"], ["show", "--json"], ["list", "--json"], ["list"]):
        assert main(["profile", *words]) == 0
    assert "secret" not in capsys.readouterr().out


def test_a_profile_is_one_json_object(file: Path, capsys: Told) -> None:
    assert main(["profile", "set", "prod", "--root", "file:///r", "--use"]) == 0
    capsys.readouterr()
    assert main(["profile", "show", "prod", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"profile": "prod", "is_current": True, "root": "file:///r"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["use", "nobody"], "there is no profile 'nobody'; known: none yet"),
        (["show"], "no profile is in use"),
        (["set", "a"], "the profile would be empty"),
        (["set", "a/b", "--root", "x"], "is not a profile's name"),
        (["set", "a", "--http", "ftp://x"], "is not like http://"),
        (["set", "a", "--root", "file:///\udcff"], "is not UTF-8"),
    ],
)
def test_a_refused_command_writes_no_file(words: list[str], why: str, file: Path, capsys: Told) -> None:
    assert main(["profile", *words]) == 2
    assert why in capsys.readouterr().err
    assert not file.exists()


def test_use_none_leaves_no_current_profile(file: Path, capsys: Told) -> None:
    assert main(["profile", "set", "a", "--root", "file:///r", "--use"]) == 0
    assert main(["profile", "use", "--none"]) == 0
    assert profiles.read().current is None
    capsys.readouterr()
