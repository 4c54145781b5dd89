"""``bmq profile``: the command line.  The work is in ``cli.profile``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.late import Late

_DESCRIPTION = """\
Name the clusters that you use, and choose one. Then commands need no addresses.

  bmq profile set prod --bootstrap-server kafka1:9092 --http http://kafka1:9080 --root hdfs://namenode:8020/bmq
  bmq profile use prod
  bmq topic list                       of prod
  bmq topic list --profile test        of test, this once

A value is taken from: a flag, else the profile named by --profile, else the environment (BMQ_BOOTSTRAP, BMQ_HTTP_URL,
BMQ_ROOT, BMQ_META, BMQ_CLUSTER, BMQ_COMMAND_CONFIG), else the profile named by BMQ_PROFILE, else the current one, else
the default. A profile's command-config is used with the profile's own bootstrap-server alone.
`bmq serve`, `bmq health`, `bmq cluster rebuild` and `bmq cluster merge-root` read no profile.
"""


_EPILOG = """\
The profiles are in $XDG_CONFIG_HOME/bmq/profiles.toml, else ~/.config/bmq/profiles.toml.

exit status:
  0  done      2  wrong usage, no such profile, or the file cannot be read or written
"""


_HELP = {
    "bootstrap_server": ("HOST:PORT", "a server of the cluster, or several with commas: for topic, group, produce..."),
    "http": ("URL", "a server's HTTP address: for cluster status, drain, balance, move, log-level; segment repair"),
    "root": ("URL", "where segments are stored: for segment, job, cluster doctor"),
    "meta": ("URL", "the metadata store: for cluster doctor"),
    "cluster": ("NAME", "name of the cluster in its store: for cluster doctor"),
    "command_config": ("FILE", "Kafka client settings, TLS and log-in, for bootstrap-server"),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "profile",
        help=text,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="list|show|use|set|remove", required=True)
    listing = _add(
        actions,
        "list",
        Late("bmq.cli.profile.command", "list_profiles"),
        "print the profiles; a star marks the current one",
    )
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    showing = _add(actions, "show", Late("bmq.cli.profile.command", "show"), "print one profile, its passwords masked")
    showing.add_argument("name", nargs="?", metavar="NAME", help="which one (default: the one in use)")
    showing.add_argument("--json", action="store_true", help="one JSON object")
    using = _add(actions, "use", Late("bmq.cli.profile.command", "use"), "make a profile the current one")
    chosen = using.add_mutually_exclusive_group(required=True)
    chosen.add_argument("name", nargs="?", metavar="NAME", help="which one")
    chosen.add_argument("--none", action="store_true", help="use no profile")
    setting = _add(
        actions, "set", Late("bmq.cli.profile.command", "set_values"), "make a profile, or change some of its values"
    )
    setting.add_argument("name", metavar="NAME", help="which one")
    for key, (metavar, text) in _HELP.items():
        setting.add_argument(f"--{key.replace('_', '-')}", metavar=metavar, help=f'{text}; "" removes it')
    setting.add_argument("--use", action="store_true", help="and make it the current one")
    removing = _add(actions, "remove", Late("bmq.cli.profile.command", "remove"), "remove profiles")
    removing.add_argument("names", nargs="+", metavar="NAME", help="which ones")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Late, text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=Late("bmq.cli.profile.command", "run"), command=command)
    return parser
