"""Profiles: the file, which layer gives a value, ``bmq profile``, and the commands that take places from one."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.cli.command_tree import walk
from bmq.cli.doctor.run import _settings
from bmq.cli.main import build_parser, main
from bmq.cli.profile import profiles
from bmq.cli.profile.profiles import KEYS, ProfileError, Profiles, check_name, find, parse, render
from bmq.core.config import unknown_names
from tests.unit.cli.fake_admin import FakeAdmin

pytestmark = pytest.mark.slow

Told = pytest.CaptureFixture[str]
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
VALUES = st.dictionaries(st.sampled_from(sorted(KEYS)), st.text(st.characters(exclude_categories=["Cs"])))


@pytest.fixture
def file(own_profiles: Path) -> Path:
    return own_profiles


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# ------------------------------------------------------------------------------------------------------------ text


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.data())
def test_what_is_rendered_is_parsed_again(by_name: dict[str, dict[str, str]], data: st.DataObject) -> None:
    current = data.draw(st.sampled_from([None, *by_name]))
    again = parse(render(Profiles(current, by_name)))
    assert again == Profiles(current, by_name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("current = ", "not TOML"),
        ("[profiles.a]\nport = '1'", "profile a: unknown key 'port'; known are bootstrap_server"),
        ("[profiles.a]\nroot = 1", "profile a: root is not a string"),
        ("profiles = 1", "profiles is not a table"),
        ("profiles.a = 1", "profiles.a is not a table"),
        ("current = 'b'\n[profiles.a]", "there is no profile 'b'; known: a"),
        ("colour = 'red'", "unknown key 'colour'"),
        ("[profiles.'a b']", "'a b' is not a profile's name"),
        ("a = " + "[" * 5000, "not TOML"),
    ],
)
def test_a_file_that_is_wrong(text: str, why: str, file: Path) -> None:
    write(file, text)
    with pytest.raises(ProfileError, match="^" + str(file)) as raised:
        profiles.read()
    assert why in str(raised.value)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a" * 65, "ä", "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ProfileError):
        check_name(name)


def test_bytes_that_are_no_text_and_a_file_without_end(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(b"current = '\xff'")
    with pytest.raises(ProfileError, match="decode"):
        profiles.read()
    write(file, "#" * (profiles.FILE_BYTES_MAX + 1))
    with pytest.raises(ProfileError, match="larger than"):
        profiles.read()


def test_a_byte_order_mark_is_passed_over(file: Path) -> None:
    write(file, '\ufeffcurrent = "a"\n[profiles.a]\nroot = "file:///x"\n')
    assert profiles.read() == Profiles("a", {"a": {"root": "file:///x"}})


def test_a_folder_that_cannot_be_made(file: Path) -> None:
    file.parent.parent.mkdir(parents=True)
    file.parent.write_text("a file is in the way")
    with pytest.raises(ProfileError, match="cannot write"):
        profiles.write(Profiles())
    with pytest.raises(ProfileError, match="cannot read"):
        profiles.read()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without a home directory, as a container with an arbitrary user id does: there is no profile to read."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setattr(Path, "home", no_home)
    assert profiles.read() == Profiles()
    with pytest.raises(ProfileError, match="no home directory: set HOME"):
        profiles.write(Profiles())


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert profiles.path({"XDG_CONFIG_HOME": "/etc/mine"}) == Path("/etc/mine/bmq/profiles.toml")
    assert profiles.path({"XDG_CONFIG_HOME": "relative"}) == Path("/home/me/.config/bmq/profiles.toml")
    assert profiles.path({}) == Path("/home/me/.config/bmq/profiles.toml")


# ---------------------------------------------------------------------------------------------------------- layers

LAYERS = ("flag", "named", "environment", "implied")


@pytest.mark.parametrize("given_layers", [set(each) for n in range(5) for each in itertools.combinations(LAYERS, n)])
def test_every_combination_of_layers(given_layers: set[str], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of LAYERS that gives a value has it; a profile that is named replaces the current one."""
    write(file, 'current = "mine"\n[profiles.mine]\nroot = "implied"\n[profiles.other]\nroot = "named"\n')
    if "implied" not in given_layers:
        monkeypatch.setenv("BMQ_PROFILE", "")
    if "environment" in given_layers:
        monkeypatch.setenv("BMQ_ROOT", "environment")
    arguments = argparse.Namespace(
        root="flag" if "flag" in given_layers else None, profile="other" if "named" in given_layers else None
    )
    expected = next((layer for layer in LAYERS if layer in given_layers), None)
    assert profiles.value(arguments, "root") == expected


def test_layers_come_before_keys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, 'current = "mine"\n[profiles.mine]\nhttp = "a:1"\nbootstrap_server = "a:2"\n')
    arguments = argparse.Namespace(http=None, bootstrap_server=None, profile=None)
    assert find(arguments, "http", "bootstrap_server") == ("http", "a:1")
    monkeypatch.setenv("BMQ_BOOTSTRAP", "b:2")
    assert find(arguments, "http", "bootstrap_server") == ("bootstrap_server", "b:2")


def test_a_named_profile_hides_the_current_one(file: Path) -> None:
    write(file, 'current = "mine"\n[profiles.mine]\nhttp = "a:1"\n[profiles.other]\nroot = "file:///x"\n')
    assert profiles.value(argparse.Namespace(http=None, profile="other"), "http") is None


def test_a_broken_file_harms_no_command_that_needs_none(file: Path) -> None:
    write(file, "broken")
    assert profiles.value(argparse.Namespace(root="file:///x", profile=None), "root") == "file:///x"
    with pytest.raises(ProfileError):
        profiles.value(argparse.Namespace(root=None, profile=None), "root")


# --------------------------------------------------------------------------------------------------------- command


def test_set_use_show_list_remove(file: Path, capsys: Told) -> None:
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


def test_json(file: Path, capsys: Told) -> None:
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
def test_what_is_refused(words: list[str], why: str, file: Path, capsys: Told) -> None:
    assert main(["profile", *words]) == 2
    assert why in capsys.readouterr().err
    assert not file.exists()


def test_none_in_use(file: Path, capsys: Told) -> None:
    assert main(["profile", "set", "a", "--root", "file:///r", "--use"]) == 0
    assert main(["profile", "use", "--none"]) == 0
    assert profiles.read().current is None
    capsys.readouterr()


def test_a_link_to_a_folder_of_dot_files_stays_one(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file is made beside the real one, which may be on another disk than the link: no rename crosses disks."""
    real = tmp_path / "dotfiles" / "profiles.toml"
    real.parent.mkdir()
    real.write_text("")
    file.parent.mkdir(parents=True)
    file.symlink_to(real)
    replace = os.replace

    def replace_on_one_disk(source: str, target: str) -> None:
        assert Path(source).parent == Path(target).parent == real.parent
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_on_one_disk)
    profiles.write(Profiles(None, {"a": {"root": "file:///r"}}))
    assert file.is_symlink()
    assert "file:///r" in real.read_text()


# ------------------------------------------------------------------------------------ commands that use a profile


def test_commands_over_kafka(
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


def test_segments(tmp_path: Path, capsys: Told) -> None:
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


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_who_reads_none(words: list[str], capsys: Told) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([*words, "--profile", "a"])
    assert "unrecognized arguments: --profile" in capsys.readouterr().err


def test_every_command_that_asks_a_cluster_takes_a_profile() -> None:
    """Look at every command of the parser, so that one that is added later cannot lack ``--profile``."""
    for command in walk(build_parser()):
        names = {name for option in command.options for name in option.names}
        if names & {"--bootstrap-server", "--http", "--root"} and command.path[1] not in ("serve", "health", "profile"):
            reads_none = command.path[1:] in (("cluster", "rebuild"), ("cluster", "merge-root"))
            assert ("--profile" in names) is not reads_none, command.name
