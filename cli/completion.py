"""``bmq completion``: scripts that let bash and zsh complete commands, options and their values.

A script holds the whole tree of commands, so that completing starts no Python.  Names of profiles are read from their
file.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence

from bmq.cli.command_tree import Argument, Command, Value, walk
from bmq.cli.parsers.tree import build_parser

# Only names that `bmq` accepts: bash expands the words that it offers, `$(...)` in them too.
_PROFILES = r"""sed -n 's/^\[profiles\."\{0,1\}\([A-Za-z0-9._-]*\)"\{0,1\}\]$/\1/p' \
        "${XDG_CONFIG_HOME:-$HOME/.config}/bmq/profiles.toml" 2>/dev/null"""
_HELP_MAX = 100

# Words before the cursor lead to a command; the value of an option is not a command, whatever its text.
_BASH = r"""# bash completion of bmq: source <(bmq completion bash)

__bmq_commands() {
    case "$1" in
@COMMANDS@
    esac
}

__bmq_options() {
    case "$1" in
@OPTIONS@
    esac
}

# What follows an option: its choices, @file, @profile, or @other; nothing for a flag.
__bmq_value() {
    case "$1" in
@VALUES@
    esac
}

# What a positional argument may be.
__bmq_argument() {
    case "$1" in
@ARGUMENTS@
    esac
}

__bmq_profiles() {
    @PROFILES@
}

_bmq() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=bmq word value="" index
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for (( index = 1; index < COMP_CWORD; index++ )); do
        word=${COMP_WORDS[index]}
        if [[ $word == -* ]]; then
            value=$(__bmq_value "$at $word")
        elif [[ $word == "=" ]]; then
            :
        elif [[ -n $value ]]; then
            value=""
        elif [[ " $(__bmq_commands "$at") " == *" $word "* ]]; then
            at="$at $word"
        fi
    done
    local offered=""
    if [[ $prev == -* && -n $(__bmq_value "$at $prev") ]]; then
        offered=$(__bmq_value "$at $prev")
    elif [[ $cur == -* ]]; then
        offered=$(__bmq_options "$at")
    else
        offered="$(__bmq_commands "$at") $(__bmq_argument "$at")"
    fi
    COMPREPLY=()
    case " $offered " in
    *" @file "*)
        compopt -o filenames 2>/dev/null
        local IFS=$'\n'
        COMPREPLY=($(compgen -f -- "$cur"))
        return
        ;;
    *" @profile "*)
        offered=$(__bmq_profiles)
        ;;
    *" @other "*)
        return
        ;;
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$cur"))
}

complete -F _bmq bmq
"""

_ZSH = r"""#compdef bmq
# zsh completion of bmq: source <(bmq completion zsh), after compinit

__bmq_commands() {
    case "$1" in
@COMMANDS@
    *) reply=() ;;
    esac
}

__bmq_options() {
    case "$1" in
@OPTIONS@
    *) reply=() ;;
    esac
}

# What follows an option: its choices, @file, @profile, or @other; nothing for a flag.
__bmq_value() {
    case "$1" in
@VALUES@
    *) reply=() ;;
    esac
}

# What a positional argument may be.
__bmq_argument() {
    case "$1" in
@ARGUMENTS@
    *) reply=() ;;
    esac
}

__bmq_profiles() {
    reply=(${(f)"$(@PROFILES@)"})
}

# Offer what `reply` says.
__bmq_offer() {
    case "$reply[1]" in
    @file) _files ;;
    @profile) __bmq_profiles; compadd -a reply ;;
    @other|"") ;;
    *) compadd -a reply ;;
    esac
}

_bmq() {
    local at=bmq word takes="" index
    local -a reply names
    for (( index = 2; index < CURRENT; index++ )); do
        word=$words[index]
        if [[ $word == -*=* ]]; then
            takes=""
        elif [[ $word == -* ]]; then
            __bmq_value "$at $word"
            takes=$reply[1]
        elif [[ -n $takes ]]; then
            takes=""
        else
            __bmq_commands "$at"
            names=(${reply%%:*})
            (( $names[(Ie)$word] )) && at="$at $word"
        fi
    done
    if [[ -n $takes ]]; then
        __bmq_value "$at $words[CURRENT-1]"
        __bmq_offer
    elif [[ $words[CURRENT] == --*=* ]]; then
        __bmq_value "$at ${words[CURRENT]%%=*}"
        compset -P '*='
        __bmq_offer
    elif [[ $words[CURRENT] == -* ]]; then
        __bmq_options "$at"
        _describe option reply
    else
        __bmq_commands "$at"
        (( $#reply )) && _describe command reply
        __bmq_argument "$at"
        __bmq_offer
    fi
}

if [[ $funcstack[1] == _bmq ]]; then
    _bmq "$@"
else
    compdef _bmq bmq
fi
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the script and return exit status 0."""
    commands = list(walk(build_parser()))
    print(bash(commands) if arguments.shell == "bash" else zsh(commands), end="")
    return 0


def bash(commands: Sequence[Command]) -> str:
    """Return the script of bash."""

    def echo(rows: Iterable[tuple[str, Iterable[str]]]) -> str:
        return "\n".join(f"    {shlex.quote(name)}) echo {shlex.quote(' '.join(words))} ;;" for name, words in rows)

    return _filled(
        _BASH,
        echo((each.name, [name for name, _ in each.commands]) for each in commands if each.commands),
        echo((each.name, [name for option in each.options for name in option.names]) for each in commands),
        echo(_values(commands)),
        echo(_arguments(commands)),
    )


def zsh(commands: Sequence[Command]) -> str:
    """Return the script of zsh, with a description of every command and option."""

    def reply(rows: Iterable[tuple[str, Iterable[str]]]) -> str:
        return "\n".join(
            f"    {shlex.quote(name)}) reply=({' '.join(map(shlex.quote, words))}) ;;" for name, words in rows
        )

    def described(names: Iterable[tuple[str, str]]) -> list[str]:
        return [f"{name}:{_short(text)}" for name, text in names]

    return _filled(
        _ZSH,
        reply((each.name, described(each.commands)) for each in commands if each.commands),
        reply(
            (each.name, described((name, each.help_of(option)) for option in each.options for name in option.names))
            for each in commands
        ),
        reply(_values(commands)),
        reply(_arguments(commands)),
    )


def _filled(template: str, commands: str, options: str, values: str, arguments: str) -> str:
    for mark, text in (
        ("@COMMANDS@", commands),
        ("@OPTIONS@", options),
        ("@VALUES@", values),
        ("@ARGUMENTS@", arguments),
        ("@PROFILES@", _PROFILES),
    ):
        template = template.replace(mark, text)
    return template


def _values(commands: Iterable[Command]) -> list[tuple[str, list[str]]]:
    return [
        (f"{command.name} {name}", _offered(option))
        for command in commands
        for option in command.options
        if option.takes_value
        for name in option.names
    ]


def _arguments(commands: Iterable[Command]) -> list[tuple[str, list[str]]]:
    """Return, for each command, the values of its first positional argument that has any to offer."""
    rows = []
    for command in commands:
        offers = [_offered(each) for each in command.positionals if each.choices or each.value is not Value.OTHER]
        if offers:
            rows.append((command.name, offers[0]))
    return rows


def _offered(argument: Argument) -> list[str]:
    return list(argument.choices) or [f"@{argument.value.name.lower()}"]


def _short(text: str) -> str:
    """Return a line for a menu, in which colons separate a name from its text."""
    text = text.replace(":", " -")
    return text if len(text) <= _HELP_MAX else f"{text[: _HELP_MAX - 3]}..."
