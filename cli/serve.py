"""``bmq serve``: from the parsed flags to the settings of a server that runs.

The server itself is in ``server.process``, imported when it is started: other commands do not need the roles' code.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from bmq.cli.output import fail
from bmq.cli.parsers.serve import DEFAULTS
from bmq.cli.server_settings import load_settings, read_file, settings_file
from bmq.core.config import OPTIONS, ROLES, ConfigError, NodeConfig
from bmq.core.config_sources import unknown_names
from bmq.core.logging import handler as log_handler
from bmq.core.logging.fields import fields
from bmq.core.urls import normal_url, scheme_of, without_userinfo
from bmq.meta.open import etcd_security, is_shared, normal_store_url
from bmq.server.open_ports import check_open_ports, ports_with_clear_passwords
from bmq.server.secret_files import readable_by_all
from bmq.server.security_in_force import check_effect, in_force, without_effect
from bmq.storage.open import WRITABLE_SCHEMES, unknown_root

DATA = "bmq-data"
"""The folder, below the working directory, of a server without a setting for its data."""
_log = logging.getLogger("bmq")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends the process; return the exit status."""
    flags = {option.name: getattr(arguments, option.name) for option in OPTIONS if option.metadata["flag"]}
    try:
        config = _with_places(load_settings(arguments.config, flags, DEFAULTS))
        _check_certificates(config)
        check_effect(config)
        open_ports = check_open_ports(config)
        file = settings_file(arguments.config)
        in_sight = readable_by_all(read_file(file), file, os.environ, config)
        for line in unknown_names(os.environ):
            print(f"bmq: warning: {line}", file=sys.stderr)
    except ConfigError as error:
        return fail(str(error), status=2)
    log_handler.install(sys.stderr, config.log_format, config.log_level)
    _log.info("security in force: %s", in_force(config))
    if idle := without_effect(config):
        _log.warning("settings of security have no effect", extra=fields(error="; ".join(idle)))
    for path in in_sight:
        _log.warning(
            "every user of this machine may read a file with a secret; take the right from others (chmod o-r)",
            extra=fields(path=path),
        )
    if open_ports:
        _log.warning(
            "ports are open to every client that reaches them, since insecure is set",
            extra=fields(listener="; ".join(open_ports)),
        )
    if in_clear := ports_with_clear_passwords(config):
        _log.warning(
            "passwords or tokens come in clear text over the network",
            extra=fields(listener="; ".join(in_clear)),
        )
    from bmq.server.process import CannotServe, serve

    try:
        return serve(config)
    except CannotServe as error:
        return fail(f"cannot serve: {error}")


def _check_certificates(config: NodeConfig) -> None:
    """Raise ConfigError if a port's TLS or log-ins cannot be made: before storage and workers are begun with."""
    has_tls = config.http_tls or config.has_internal_tls
    if has_tls or any(each.has_tls for each in config.listener_security().values()):
        from bmq.server.certificates import open_certificates, open_internal_tls

        open_certificates(config)
        open_internal_tls(config)
    if config.http_authentication != ("none",):
        from bmq.server.http_access import HttpAccess

        HttpAccess(config)


def places_here() -> tuple[str, str]:
    """Return the root and the store of a server without settings for them, below the working directory."""
    data = Path.cwd() / DATA
    return f"file://{quote(str(data / 'log'))}", f"sqlite://{quote(str(data / 'meta.db'))}"


def _with_places(config: NodeConfig) -> NodeConfig:
    """Fill in the root and the store, and make the default folder if one of them is left out.

    Raises ConfigError if one of them cannot be used.
    """
    own_root, own_meta = places_here()
    root, meta = config.root or own_root, config.meta or own_meta
    try:
        meta = normal_store_url(meta)
        if is_shared(meta):
            etcd_security(meta, user=config.meta_user, password=config.meta_password)
    except ValueError as error:
        raise ConfigError(f"meta: {error}") from None
    root = normal_url(root)
    if not is_shared(meta):
        _check_alone(config, meta)
    if root.startswith("webhdfs:"):
        raise ConfigError(
            f"root: {without_userinfo(root)} can be read but not written; give the same cluster's hdfs:// address"
        )
    if scheme_of(root) not in ("file", "hdfs", "memory"):
        raise ConfigError(f"root: {unknown_root(root, WRITABLE_SCHEMES)}")
    if not config.root or not config.meta:
        try:
            (Path.cwd() / DATA).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {Path.cwd() / DATA}: {error.strerror}; give --root and --meta") from None
    node_id = config.node_id if is_shared(meta) else max(0, config.node_id)
    return replace(config, root=root, meta=meta, node_id=node_id)


def _check_alone(config: NodeConfig, meta: str) -> None:
    """Raise ConfigError if the settings need more than one process: without a shared store there is only this one."""
    meta = without_userinfo(meta)
    if set(config.roles) != set(ROLES):
        raise ConfigError(f"roles: with {meta} one process has all roles; leave --roles out, or give --meta etcd://...")
    if config.workers > 1:
        raise ConfigError(f"workers: only one process may use {meta}; leave --workers out, or give --meta etcd://...")
