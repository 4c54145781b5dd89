"""``bmq quota``: the command line.  The work is in ``cli.quota``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import EPILOG, add_command
from bmq.cli.parsers.late import Late
from bmq.meta.security.client_quotas import BOUND_KEYS, CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, TYPES, USER

_DESCRIPTION = f"""\
List, set and remove quotas of a running cluster, over Kafka's protocol.

A quota is of a user, a client id, both, or an address, or of the default of one. Rates: {", ".join(CLIENT_KEYS)};
of an address {", ".join(IP_KEYS)}. Bounds on what one user may own: {", ".join(BOUND_KEYS)}.
"""


NAMES = (*CLIENT_KEYS, *IP_KEYS, *BOUND_KEYS)


_HELP = {USER: "a user", CLIENT_ID: "a client id", IP: "an address"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "quota",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="list|set|remove", required=True)
    listing = add_command(
        actions,
        "list",
        Late("bmq.cli.quota", "list_quotas"),
        "print quotas: all, or those of an entity",
        "bmq quota list --user alice",
    )
    _add_entity(listing)
    setting = add_command(
        actions,
        "set",
        Late("bmq.cli.quota", "set_quotas"),
        "set quotas of an entity",
        "bmq quota set --user alice max_topics=20",
    )
    _add_entity(setting)
    setting.add_argument("quotas", nargs="+", type=_quota, metavar="NAME=VALUE", help="as max_topics=20")
    removing = add_command(
        actions,
        "remove",
        Late("bmq.cli.quota", "remove_quotas"),
        "remove quotas of an entity",
        "bmq quota remove --user alice max_topics",
    )
    _add_entity(removing)
    removing.add_argument("quotas", nargs="+", type=_name, metavar="NAME", help="as max_topics")


def _add_entity(parser: argparse.ArgumentParser) -> None:
    entity = parser.add_argument_group("entity")
    for kind in TYPES:
        either = entity.add_mutually_exclusive_group()
        either.add_argument(f"--{kind}", metavar="NAME", help=_HELP[kind])
        either.add_argument(f"--{kind}-default", action="store_true", help=f"{_HELP[kind]} without an own quota")


def _quota(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not name or not equals:
            raise ValueError(text)
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, as in max_topics=20") from None


def _name(text: str) -> str:
    """Return the name of a quota.  A server takes the removal of any name for done, of a mistyped one as well."""
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a quota; there are {', '.join(NAMES)}")
    return text
