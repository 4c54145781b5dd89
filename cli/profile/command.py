"""``bmq profile``: name clusters, and choose one for the other commands."""

from __future__ import annotations

import argparse
import os

from bmq.cli.cluster.http_client import Console
from bmq.cli.exit_status import exit_status_of
from bmq.cli.output import print_json, print_table, printable
from bmq.cli.profile import profiles
from bmq.cli.usage import UsageError
from bmq.core.urls import without_passwords


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    return exit_status_of(arguments, lambda: arguments.command(arguments))


def list_profiles(arguments: argparse.Namespace) -> int:
    """Print every profile."""
    known = profiles.read()
    rows = [(name, name == known.current, profile) for name, profile in sorted(known.by_name.items())]
    if arguments.json:
        for name, is_current, profile in rows:
            print_json({"profile": name, "is_current": is_current, **_masked(profile)})
        return 0
    print_table(
        ("", "PROFILE", "BOOTSTRAP", "HTTP", "ROOT"),
        [
            ("*" if is_current else "", name, *(_masked(profile).get(key) for key in list(profiles.KEYS)[:3]))
            for name, is_current, profile in rows
        ],
        if_none="there are no profiles; `bmq profile set NAME --bootstrap-server HOST:PORT` makes one",
    )
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print the named profile, or the one that commands use now.  Raises UsageError if there is none."""
    known = profiles.read()
    name = arguments.name or profiles.chosen_name(known)
    if name is None:
        raise UsageError("no profile is in use; `bmq profile use NAME` chooses one")
    profile = _masked(known.get(name))
    if arguments.json:
        print_json({"profile": name, "is_current": name == known.current, **profile})
        return 0
    print(printable(f"profile {name}"))
    for key, value in profile.items():
        print(printable(f"  {key:<16} {value}"))
    return 0


def _masked(profile: dict[str, str]) -> dict[str, str]:
    return {key: without_passwords(profile[key]) for key in profiles.KEYS if key in profile}


def use(arguments: argparse.Namespace) -> int:
    """Set the current profile."""
    known = profiles.read()
    if arguments.none:
        known.current = None
    else:
        known.get(arguments.name)
        known.current = arguments.name
    profiles.write(known)
    print("no profile is in use" if known.current is None else f"profile {known.current} is in use")
    return 0


def set_values(arguments: argparse.Namespace) -> int:
    """Change one profile; an empty value removes the key.  Raises UsageError if no value is given."""
    name = profiles.check_name(arguments.name)
    given = {key: text for key in profiles.KEYS if (text := getattr(arguments, key)) is not None}
    if given.get("http"):
        Console(given["http"], timeout_s=1.0)  # checks the URL, without a request
    if given.get("command_config"):
        given["command_config"] = os.path.abspath(given["command_config"])
    known = profiles.read()
    if not given and not (arguments.use and name in known.by_name):
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in profiles.KEYS)
        raise UsageError(f"the profile would be empty: give one of {flags}")
    profile = {**known.by_name.get(name, {}), **given}
    known.by_name[name] = {key: text for key, text in profile.items() if text}
    if arguments.use:
        known.current = name
    profiles.write(known)
    state = "is in use" if known.current == name else f"is set; `bmq profile use {name}` makes it the current one"
    print(f"profile {name} {state}")
    return 0


def remove(arguments: argparse.Namespace) -> int:
    """Remove profiles: all that are named, or none if one of them is missing."""
    known = profiles.read()
    for name in arguments.names:
        known.get(name)
    for name in dict.fromkeys(arguments.names):
        del known.by_name[name]
        if known.current == name:
            known.current = None
    profiles.write(known)
    for name in dict.fromkeys(arguments.names):
        print(f"profile {name} removed")
    return 0
