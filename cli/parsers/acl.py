"""``bmq acl``: the command line.  The work is in ``cli.acl``, imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from bmq.cli.parsers.common import EPILOG, add_command
from bmq.cli.parsers.late import Late
from bmq.core.options import meant
from bmq.core.security.acls import AclOperation, ResourceType

_DESCRIPTION = """\
List, add and remove access control lists of a running cluster, over Kafka's protocol.

An ACL allows or denies a principal one operation on the resources of a name, or of a prefix. With `*` as the name it is
for all resources of a type; with User:* for everybody. What denies wins. A cluster without an authorizer has no ACLs.
"""


TYPES: Mapping[str, tuple[ResourceType, str, str]] = {
    "topic": (ResourceType.TOPIC, "NAME", "a topic"),
    "group": (ResourceType.GROUP, "NAME", "a consumer group"),
    "transactional_id": (ResourceType.TRANSACTIONAL_ID, "ID", "a transactional id"),
    "delegation_token": (ResourceType.DELEGATION_TOKEN, "ID", "a delegation token"),
    "user_principal": (ResourceType.USER, "PRINCIPAL", "a user, for whom delegation tokens are made"),
}
"""Resource types by the name of their flag, with what the flag takes and its help."""


_NOT_GIVEN = (AclOperation.UNKNOWN, AclOperation.ANY, AclOperation.TWO_PHASE_COMMIT)
"""Operations that no ACL is given for; kafka-python has no TWO_PHASE_COMMIT."""
_OPERATIONS = {each.name: each for each in AclOperation if each not in _NOT_GIVEN}
"""Operations by name; ALL is every operation."""
_OPERATIONS_HELP = "as read, write, describe, alter-configs, all; may be repeated"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "acl",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="list|add|remove", required=True)
    listing = add_command(
        actions,
        "list",
        Late("bmq.cli.acl", "list_acls"),
        "print ACLs: all, or those that apply to a resource",
        "bmq acl list --topic orders",
    )
    _add_filter(listing, "match")
    adding = add_command(
        actions,
        "add",
        Late("bmq.cli.acl", "add"),
        "allow or deny principals operations on resources",
        "bmq acl add --principal User:alice --operation read --operation describe --topic orders",
    )
    _add_resources(adding, ("literal", "prefixed"), "literal")
    adding.add_argument(
        "--principal", action="append", required=True, type=_principal, metavar="PRINCIPAL", help="as User:alice"
    )
    adding.add_argument("--host", action="append", metavar="ADDRESS", help="only from this address (default: any)")
    what = adding.add_mutually_exclusive_group(required=True)
    what.add_argument("--operation", action="append", type=_operation, metavar="NAME", help=_OPERATIONS_HELP)
    what.add_argument("--producer", action="store_true", help="write, describe and create, on --topic")
    what.add_argument("--consumer", action="store_true", help="read and describe on --topic, read on --group")
    adding.add_argument("--permission", choices=("allow", "deny"), default="allow", help="default: %(default)s")
    removing = add_command(
        actions,
        "remove",
        Late("bmq.cli.acl", "remove"),
        "remove the ACLs that all flags choose",
        "bmq acl remove --principal User:alice --topic orders",
    )
    _add_filter(removing, "literal")


def _add_resources(parser: argparse.ArgumentParser, patterns: Sequence[str], default: str) -> None:
    resources = parser.add_argument_group("resources", "may be repeated")
    for flag, (_, metavar, text) in TYPES.items():
        resources.add_argument(
            f"--{flag.replace('_', '-')}", action="append", default=[], metavar=metavar, help=f"{text}; * is all"
        )
    resources.add_argument("--cluster", action="store_true", help="the cluster")
    resources.add_argument(
        "--pattern", choices=patterns, default=default, help="how names are meant (default: %(default)s)"
    )


def _add_filter(parser: argparse.ArgumentParser, pattern: str) -> None:
    _add_resources(parser, ("literal", "prefixed", "match", "any"), pattern)
    parser.add_argument("--principal", type=_principal, metavar="PRINCIPAL", help="of this one, as User:alice")
    parser.add_argument("--host", metavar="ADDRESS", help="of this host; * is the ACLs for any host")
    parser.add_argument("--operation", type=_operation, metavar="NAME", help="of this operation, as read or all")
    parser.add_argument("--permission", choices=("allow", "deny"), help="those that allow, or those that deny")


def _operation(text: str) -> AclOperation:
    """Return the operation that is named as in describe-configs or DescribeConfigs.

    Raises argparse.ArgumentTypeError.
    """
    folded = {name.replace("_", "").lower(): operation for name, operation in _OPERATIONS.items()}
    wanted = text.replace("_", "").replace("-", "").lower()
    if wanted not in folded:
        names = [name.replace("_", "-").lower() for name in _OPERATIONS]
        hint = meant(text.lower(), names) or f"; there are {', '.join(names)}"
        raise argparse.ArgumentTypeError(f"there is no operation {text!r}{hint}")
    return folded[wanted]


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not kind or not colon or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not TYPE:NAME, as in User:alice")
    return text
