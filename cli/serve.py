"""``bmq serve``: from flags, environment and file to the settings of a server.

The server itself is in ``server.process``, imported when it is started: other commands do not need the roles' code.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bmq.cli.output import fail
from bmq.core.config import OPTIONS, ROLES, ConfigError, NodeConfig, environment_name, option_name
from bmq.core.config_sources import load, unknown_names
from bmq.core.logging import handler as log_handler
from bmq.core.logging.fields import fields
from bmq.core.urls import normal_url, scheme_of, without_userinfo
from bmq.meta.broker_configs import check_static
from bmq.meta.open import is_shared, normal_store_url
from bmq.server.open_ports import check_open_ports, ports_with_clear_passwords
from bmq.server.secret_files import readable_by_all
from bmq.server.security_in_force import check_effect, in_force, without_effect
from bmq.storage.open import WRITABLE_SCHEMES, unknown_root

ANY_ID = -1
"""The node id of a server without one: a proxy takes the lowest free id, a process without a shared store takes 0."""
BY_MEMORY = 0
"""The ``cache_bytes`` of a server without one: a share of the memory (``server.cache_budget``)."""
DEFAULTS = NodeConfig(node_id=ANY_ID, cache_bytes=BY_MEMORY)
FILE_BYTES_MAX = 64 << 10
"""Largest file of settings: many times what all of them take."""
DATA = "bmq-data"
"""The folder, below the working directory, of a server without a setting for its data."""
_log = logging.getLogger("bmq")

_DESCRIPTION = """\
Serve Kafka clients. Without flags: every role in this process, data in ./bmq-data.

Processes with the same --meta etcd://... and the same --root are one cluster: see docs/operations.md in BMQ's
repository.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser, with the flags of all settings that have a flag."""
    parser = commands.add_parser(
        "serve",
        help="serve Kafka clients",
        description=_DESCRIPTION,
        epilog=_other_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in OPTIONS:
        if option.metadata["flag"]:
            shown = default_text(option)
            default = f" [{shown}]" if shown else ""
            help_text = f"{option.metadata['doc']}{default} ({environment_name(option)})"
            if isinstance(option.default, bool):
                parser.add_argument(
                    option.metadata["flag"], dest=option.name, action="store_const", const=True, help=help_text
                )
                continue
            parser.add_argument(
                option.metadata["flag"], dest=option.name, metavar=option.metadata["metavar"], help=help_text
            )
    parser.add_argument("--config", metavar="FILE.toml", help="settings, one key = value each (BMQ_CONFIG)")
    parser.set_defaults(run=run, explain_unknown=_explain_unknown)


def _explain_unknown(unknown: Sequence[str]) -> str:
    """Return how to give those of the ``unknown`` arguments that name a setting without a flag; "" if none does."""
    named = {each.removeprefix("--").partition("=")[0].replace("-", "_") for each in unknown if each.startswith("--")}
    return "".join(
        f"; {name} has no flag: set {environment_name(option)}, or give it in the file of --config"
        for option in OPTIONS
        if not option.metadata["flag"]
        for name in (option_name(option),)
        if named & {name, name.replace(".", "_")}
    )


def _other_settings() -> str:
    """Return the settings without a flag, as the end of ``--help``."""
    lines = ["settings without a flag, for the file or the environment (dots become underscores: BMQ_NUM_PARTITIONS):"]
    for option in OPTIONS:
        if not option.metadata["flag"]:
            shown = default_text(option)
            lines.append(f"  {option_name(option):<44} {option.metadata['doc']}{f' [{shown}]' if shown else ''}")
    return "\n".join(lines)


def default_text(option: Field[Any]) -> str:
    """Return the default of a setting of ``bmq serve``, in the form of its value on the command line."""
    value = getattr(DEFAULTS, option.name)
    return ",".join(value) if isinstance(value, tuple) else str(value)


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


def load_settings(file: str | None, flags: Mapping[str, object], defaults: NodeConfig | None = None) -> NodeConfig:
    """Return the settings of a server or of a command that works on its store, from all four layers.

    Raises ConfigError, which names the setting, if one is wrong.
    """
    file = settings_file(file)
    values = read_file(file)
    config = load(file=values, environment=os.environ, flags=flags, defaults=defaults, file_name=file)
    check_static(config)
    return config


def settings_file(flag: str | None) -> str:
    """Return the path of the file of settings, from ``--config`` or BMQ_CONFIG; "" without a file.

    Raises ConfigError if BMQ_CONFIG is empty: a template's unset path must not drop every setting of a file.
    """
    path = os.environ.get("BMQ_CONFIG") if flag is None else flag
    if path is not None and not path.strip():
        name = "BMQ_CONFIG" if flag is None else "--config"
        raise ConfigError(f"{name} is set, but empty: give it the path of a file, or leave it out")
    return path or ""


def read_file(path: str) -> dict[str, object]:
    """Return the file's keys; a table's keys are joined to its name with a dot, as in Kafka's names.

    A byte order mark, which editors of Windows write, is ignored.  Raises ConfigError, which names the file, if it
    cannot be read.
    """
    if not path:
        return {}
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"the settings in {path} are larger than {FILE_BYTES_MAX} bytes")
        return _flat(tomllib.loads(data.decode("utf-8-sig")), "")
    except RecursionError:
        raise ConfigError(f"the settings in {path} are nested too deeply: a setting is one key = value") from None
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the settings in {path} are not TOML: {error}") from None


def _flat(table: dict[str, object], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


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
