"""The common part of commands that read or write a cluster's root and metadata store themselves, without any server."""

from __future__ import annotations

import argparse
import os
from urllib.parse import unquote

from bmq.cli.server_settings import load_settings
from bmq.cli.usage import UsageError
from bmq.core.config import NodeConfig
from bmq.core.urls import split_url, without_userinfo

PLACES = ("root", "meta", "cluster")


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
        raise UsageError(f"{url}: there is no such file; a server with this store makes it at its first start")
