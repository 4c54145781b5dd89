"""The parser of the whole command line: what it loads, and the work that its commands name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bmq.cli.command_tree import walk
from bmq.cli.parsers.late import Late
from bmq.cli.parsers.tree import COMMANDS, build_parser, chosen_command

CLIENTS = ("bmq.cli.admin_client", "bmq.cli.kafka_client", "bmq.cli.acl", "bmq.cli.topic")
"""Modules of commands that speak Kafka."""
HEAVY = (
    "kafka", "aiohttp", "grpc", "cryptography", "numba", "pandas", "pyarrow", "pyspark", "fastavro", "matplotlib",
    "uvloop", "bmq.meta.etcd", "bmq.server", "bmq.proxy", "bmq.broker", "bmq.controller", "bmq.coordinator",
    "bmq.console", *CLIENTS,
)  # fmt: skip
"""Libraries and rooms that cost a noticeable time to load, and that no parser needs."""


def loaded(script: str) -> list[str]:
    """Return the modules of HEAVY that a process has loaded after ``script``."""
    script += f"\nimport sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.slow
def test_help_of_all_commands_loads_nothing_heavy() -> None:
    """Print the help of every command in one process: users wait for it, and shells complete by it."""
    script = """
from bmq.cli import main
from bmq.cli.command_tree import walk
from bmq.cli.parsers.tree import build_parser
for command in walk(build_parser()):
    print(command.parser.format_help())
"""
    assert loaded(script) == []


def test_help_of_bmq_loads_no_parser_of_a_command() -> None:
    script = """
import sys
from bmq.cli.main import main
for words in (["--help"], ["nonsense"], []):
    try:
        main(words)
    except SystemExit:
        pass
print([name for name in sys.modules if name.startswith("bmq.cli.parsers.")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['bmq.cli.parsers.late', 'bmq.cli.parsers.tree']"


@pytest.mark.slow
def test_the_server_loads_no_client_of_commands_and_no_library_of_jobs() -> None:
    """Load what ``bmq serve`` runs: kafka-python comes with the schemas of messages, the commands' clients do not."""
    script = """
import bmq.cli.main, bmq.cli.parsers.serve, bmq.cli.serve, bmq.server.process
"""
    assert not {"pandas", "pyarrow", "pyspark", "matplotlib", "numba", *CLIENTS} & set(loaded(script))


def test_each_command_names_work_that_exists() -> None:
    """Find the function of every parser: a wrong name would be found only when the command runs."""
    names = {late for command in walk(build_parser()) for late in _work(command.parser._defaults)}
    assert len(names) > len(COMMANDS)
    assert all(callable(late.find()) for late in names)


def _work(defaults: dict[str, object]) -> Iterator[Late]:
    yield from (value for value in defaults.values() if isinstance(value, Late))


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["topic", "list"], "topic"),
        (["--nonsense", "topic", "list"], "topic"),
        (["--", "topic", "list"], "topic"),
        (["--version"], ""),
        ([], ""),
    ],
)
def test_the_first_word_that_is_not_an_option_is_the_command(words: list[str], chosen: str) -> None:
    assert chosen_command(words) == chosen


@pytest.mark.parametrize("name", COMMANDS)
def test_a_chosen_command_has_the_same_help_as_in_the_whole(name: str) -> None:
    chosen, whole = build_parser(name), build_parser()
    assert chosen.format_help() == whole.format_help()
    (ours,) = (each.parser for each in walk(chosen) if each.path == ("bmq", name))
    (theirs,) = (each.parser for each in walk(whole) if each.path == ("bmq", name))
    assert ours.format_help() == theirs.format_help()
