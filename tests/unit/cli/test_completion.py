"""Completion scripts: they name every command, and the shells themselves accept and follow them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bmq.cli.command_tree import walk
from bmq.cli.completion import bash, zsh
from bmq.cli.main import main
from bmq.cli.parsers.tree import build_parser
from bmq.cli.profile import profiles
from bmq.cli.profile.profiles import Profiles

COMMANDS = list(walk(build_parser()))
needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
CASES: list[tuple[list[str], set[str]]] = [
    (["to"], {"topic"}),
    (["topic", ""], {"list", "create", "describe", "alter", "delete"}),
    (["topic", "create", "--part"], {"--partitions"}),
    (["topic", "create", "orders", "--if"], {"--if-not-exists"}),
    (["produce", "orders", "--compression", ""], {"none", "gzip", "snappy", "lz4", "zstd"}),
    (["produce", "orders", "--compression", "z"], {"zstd"}),
    (["topic", "list", "--bootstrap-server", ""], set()),
    (["topic", "--bogus", "cre"], {"create"}),
    (["segment", "cat", "--topic", "dump", "--max-r"], {"--max-records"}),
    (["cluster", "mer"], {"merge-root"}),
    (["completion", ""], {"bash", "zsh"}),
    (["topic", "list", "--profile", ""], {"prod", "te.st"}),
    (["profile", "use", "p"], {"prod"}),
    (["produce", "orders", "a fi"], {"a file"}),
    (["serve", "--config", "a"], {"a file"}),
]


def ids(cases: list[tuple[list[str], set[str]]]) -> list[str]:
    """Name cases by their words: a set's order differs from process to process."""
    return [" ".join(words) for words, _ in cases]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    profiles.write(Profiles("prod", {"prod": {"root": "file:///r"}, "te.st": {"root": "file:///t"}}))
    (tmp_path / "a file").touch()
    return tmp_path


def shell(words: list[str], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*words, "-c", program], capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bash, zsh])
def test_all_commands_and_options_are_named(make: object) -> None:
    assert callable(make)
    script = make(COMMANDS)
    assert len(COMMANDS) > 30
    for command in COMMANDS:
        assert f"'{command.name}')" in script or f" {command.name})" in script
        for option in command.options:
            for name in option.names:
                assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", script), name
    assert not re.search("@[A-Z]+@", script)


@pytest.mark.slow
def test_the_command_prints_the_script_of_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for name, make in (("bash", bash), ("zsh", zsh)):
        assert main(["completion", name]) == 0
        assert capsys.readouterr().out == make(COMMANDS)


def test_bash_accepts_it(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(bash(COMMANDS))
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "expected"), CASES, ids=ids(CASES))
def test_bash_completes(words: list[str], expected: set[str], folder: Path) -> None:
    (folder / "script").write_text(bash(COMMANDS))
    program = (
        "source ./script; rm script; COMP_WORDS=(bmq "
        + " ".join(f"'{word}'" for word in words)
        + f"); COMP_CWORD={len(words)}; _bmq; "
        'for each in "${COMPREPLY[@]}"; do echo "$each"; done'
    )
    done = shell(["bash", "--norc"], program, folder)
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == expected


def test_bash_completes_behind_an_equals_sign(folder: Path) -> None:
    """bash gives `--compression=z` as three words."""
    (folder / "script").write_text(bash(COMMANDS))
    program = (
        "source ./script; COMP_WORDS=(bmq produce orders --compression = z); COMP_CWORD=5; _bmq;"
        'echo "${COMPREPLY[@]}"; COMP_WORDS=(bmq produce orders --compression =); COMP_CWORD=4; _bmq;'
        'echo "${COMPREPLY[@]}"'
    )
    done = shell(["bash", "--norc"], program, folder)
    assert (done.stdout, done.stderr) == ("zstd\nnone gzip snappy lz4 zstd\n", "")


@pytest.mark.parametrize("name", ["$(touch ran)", "`touch ran`", "a b; touch ran"])
def test_a_name_in_the_file_is_not_carried_out(name: str, folder: Path) -> None:
    """Put shell syntax into a profile's name: bash expands offered words, and the file may be another user's."""
    with profiles.path().open("a") as file:
        file.write(f'\n[profiles."{name}"]\n')
    (folder / "script").write_text(bash(COMMANDS))
    program = 'source ./script; COMP_WORDS=(bmq profile use ""); COMP_CWORD=3; _bmq; echo "${COMPREPLY[@]}"'
    done = shell(["bash", "--norc"], program, folder)
    assert (done.stdout, done.stderr) == ("prod te.st\n", "")
    assert not (folder / "ran").exists()


_STUBS = """
compdef() { :; }
_describe() { local each; for each in ${(P)2}; do [[ $each == $words[CURRENT]* ]] && print -r -- ${each%%:*}; done; }
compadd() { local each; for each in ${(P)2}; do [[ $each == ${words[CURRENT]#*=}* ]] && print -r -- $each; done; }
compset() { :; }
_files() { local each; for each in *(N); do [[ $each == $words[CURRENT]* ]] && print -r -- $each; done; }
"""
"""What zsh's completion system gives a completion function, as far as it is used."""


ZSH_CASES = [*CASES, (["produce", "orders", "--compression=z"], {"zstd"})]


@needs_zsh
@pytest.mark.parametrize(("words", "expected"), ZSH_CASES, ids=ids(ZSH_CASES))
def test_zsh_completes(words: list[str], expected: set[str], folder: Path) -> None:
    (folder / "script").write_text(zsh(COMMANDS))
    given = " ".join(f"'{word}'" for word in ["bmq", *words])
    program = f"{_STUBS}\nsource ./script; rm script; words=({given}); CURRENT={len(words) + 1}; _bmq; true"
    done = shell(["zsh", "-f"], program, folder)
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == expected
