"""The tree of commands: every command of the parser is in it, with its options and what a shell can offer for them."""

from __future__ import annotations

import re

from bmq.cli.command_tree import Command, Value, walk
from bmq.cli.parsers.tree import build_parser

COMMANDS = list(walk(build_parser()))


def test_each_command_of_the_parsers_help_is_in_the_tree() -> None:
    top = COMMANDS[0]
    assert [name for name, _ in top.commands] == re.findall(r"^    (\w+)", build_parser().format_help(), re.MULTILINE)


def test_a_command_is_known_by_its_path() -> None:
    by_name: dict[str, Command] = {each.name: each for each in COMMANDS}
    create = by_name["bmq topic create"]
    assert [each.metavar for each in create.positionals] == ["NAME"]
    assert ("--partitions",) in [each.names for each in create.options]
    assert dict(by_name["bmq job"].commands).keys() >= {"to_parquet", "to-parquet", "audit"}


def test_a_shell_is_told_which_arguments_are_files_and_profiles() -> None:
    by_name = {each.name: each for each in COMMANDS}
    dump, use = by_name["bmq segment dump"], by_name["bmq profile use"]
    assert [each.value for each in dump.positionals] == [Value.FILE]
    assert [each.value for each in use.positionals] == [Value.PROFILE]
    options = {name: each for each in dump.options for name in each.names}
    assert (options["--profile"].value, options["--topic"].value) == (Value.PROFILE, Value.OTHER)
    assert (options["--topic"].takes_value, options["--json"].takes_value) == (True, False)


def test_help_of_an_argument_is_one_line_with_its_default() -> None:
    cat = {each.name: each for each in COMMANDS}["bmq segment cat"]
    (limit,) = (each for each in cat.options if "--batch-bytes-max" in each.names)
    text = cat.help_of(limit)
    assert "\n" not in text
    assert f"(default: {limit.action.default})" in text
