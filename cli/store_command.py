"""The common part of commands that read or write a cluster's root and metadata store themselves, without any server.

The modules that do the work import the roles' code, and are imported when the command runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
from functools import partial
from urllib.parse import unquote

from bmq.cli.serve import load_settings
from bmq.cli.usage import UsageError
from bmq.core.config import NodeConfig
from bmq.core.urls import split_url, without_userinfo

PLACES = ("root", "meta", "cluster")
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
    parser.set_defaults(run=partial(_run, module))
    return parser


def add_places(parser: argparse._ActionsContainer, *, root: str = ROOT, meta: str = META) -> None:
    """Add the options for a cluster's root, store, name and settings; ``root`` and ``meta`` are the help of the first
    two."""
    parser.add_argument("--root", metavar="URL", help=f"{root} (BMQ_ROOT)")
    parser.add_argument("--meta", metavar="URL", help=f"{meta} (BMQ_META)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster: the prefix of its keys (BMQ_CLUSTER)")
    parser.add_argument("--config", metavar="FILE.toml", help="the servers' settings (BMQ_CONFIG)")


def _run(module: str, arguments: argparse.Namespace) -> int:
    status: int = importlib.import_module(module).perform(arguments)
    return status


def settings(arguments: argparse.Namespace, *, root: str, meta: str) -> NodeConfig:
    """Return the servers' settings, with a root that can be written and a store; ``root`` and ``meta`` describe them.

    Raises UsageError if one is missing or cannot be used, ConfigError if a setting is wrong.
    """
    config = load_settings(arguments.config, {name: getattr(arguments, name) for name in PLACES})
    for name, which in (("root", root), ("meta", meta)):
        if not getattr(config, name):
            raise UsageError(
                f"give --{name}, {which}: without the setting, a server has ./bmq-data/log and ./bmq-data/meta.db"
            )
    check_root(config.root)
    if config.meta == "memory:":
        raise UsageError("a store in memory ends with its process; give sqlite:///file or etcd://host:port")
    return config


def check_root(url: str) -> None:
    """Raise UsageError if nothing can be written there, or if it is a local folder that does not exist."""
    parts = split_url(url)
    if parts.scheme == "webhdfs":
        raise UsageError(
            f"{without_userinfo(url)} can be read but not written; give the same cluster's hdfs:// address"
        )
    if parts.scheme == "file" and not os.path.isdir(unquote(parts.path)):
        raise UsageError(f"{without_userinfo(url)}: there is no such folder")


def check_store_file(url: str) -> None:
    """Raise UsageError if the store is a local file that does not exist."""
    parts = split_url(url)
    if parts.scheme == "sqlite" and not os.path.isfile(unquote(parts.path)):
        raise UsageError(f"{url}: there is no such file")
