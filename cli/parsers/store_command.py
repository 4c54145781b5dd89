"""The common part of parsers of commands that read or write a cluster's root and metadata store themselves."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.late import Late

ROOT = "where segments are stored, as for `bmq serve`"


META = "the cluster's store: sqlite:///file or etcd://..."


def add_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    module: str,
    *,
    text: str,
    description: str,
    epilog: str,
    root: str = ROOT,
    meta: str = META,
) -> argparse.ArgumentParser:
    """Add a command that ``module``'s ``perform(arguments)`` carries out, with the options for root, store and
    cluster."""
    parser = actions.add_parser(
        name,
        help=text,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_places(parser, root=root, meta=meta)
    parser.set_defaults(run=Late(module, "perform"))
    return parser


def add_places(parser: argparse._ActionsContainer, *, root: str = ROOT, meta: str = META) -> None:
    """Add the options for a cluster's root, store, name and settings; ``root`` and ``meta`` are the help of the first
    two."""
    parser.add_argument("--root", metavar="URL", help=f"{root} (BMQ_ROOT)")
    parser.add_argument("--meta", metavar="URL", help=f"{meta} (BMQ_META)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster: the prefix of its keys (BMQ_CLUSTER)")
    parser.add_argument("--config", metavar="FILE.toml", help="the servers' settings (BMQ_CONFIG)")
