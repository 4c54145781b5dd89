"""Profiles: the file, and which layer gives a value."""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.cli.profile import profiles
from bmq.cli.profile.profiles import KEYS, ProfileError, Profiles, check_name, find, parse, render

pytestmark = pytest.mark.slow

Told = pytest.CaptureFixture[str]
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
VALUES = st.dictionaries(st.sampled_from(sorted(KEYS)), st.text(st.characters(exclude_categories=["Cs"])))


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
def test_a_malformed_file_is_refused_with_its_place(text: str, why: str, file: Path) -> None:
    write(file, text)
    with pytest.raises(ProfileError, match="^" + str(file)) as raised:
        profiles.read()
    assert why in str(raised.value)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a" * 65, "ä", "a\n"])
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ProfileError):
        check_name(name)


def test_a_file_that_is_not_text_or_has_no_end_is_refused(file: Path) -> None:
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


def test_a_folder_that_cannot_be_made_is_named(file: Path) -> None:
    file.parent.parent.mkdir(parents=True)
    file.parent.write_text("a file is in the way")
    with pytest.raises(ProfileError, match="cannot write"):
        profiles.write(Profiles())
    with pytest.raises(ProfileError, match="cannot read"):
        profiles.read()


def test_a_user_without_a_home_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without a home directory, as a container with an arbitrary user id does: there is no profile to read."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setattr(Path, "home", no_home)
    assert profiles.read() == Profiles()
    with pytest.raises(ProfileError, match="no home directory: set HOME"):
        profiles.write(Profiles())


def test_the_file_is_in_the_configuration_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert profiles.path({"XDG_CONFIG_HOME": "/etc/mine"}) == Path("/etc/mine/bmq/profiles.toml")
    assert profiles.path({"XDG_CONFIG_HOME": "relative"}) == Path("/home/me/.config/bmq/profiles.toml")
    assert profiles.path({}) == Path("/home/me/.config/bmq/profiles.toml")


# ---------------------------------------------------------------------------------------------------------- layers

LAYERS = ("flag", "named", "environment", "implied")


@pytest.mark.parametrize("given_layers", [set(each) for n in range(5) for each in itertools.combinations(LAYERS, n)])
def test_the_strongest_layer_gives_the_value(
    given_layers: set[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
