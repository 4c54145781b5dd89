"""``bmq serve``: the command line.  The work is in ``cli.serve``, imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import Field
from typing import Any

from bmq.cli.parsers.late import Late
from bmq.core.config import OPTIONS, NodeConfig, environment_name, option_name

ANY_ID = -1
"""The node id of a server without one: a proxy takes the lowest free id, a process without a shared store takes 0."""


BY_MEMORY = 0
"""The ``cache_bytes`` of a server without one: a share of the memory (``server.cache_budget``)."""


DEFAULTS = NodeConfig(node_id=ANY_ID, cache_bytes=BY_MEMORY)


_DESCRIPTION = """\
Serve Kafka clients. Without flags: every role in this process, data in ./bmq-data.

Processes with the same --meta etcd://... and the same --root are one cluster: see docs/operations.md in BMQ's
repository.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser, with the flags of all settings that have a flag.

    ``text`` is its line in the help of ``bmq``.
    """
    parser = commands.add_parser(
        "serve",
        help=text,
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
    parser.set_defaults(run=Late("bmq.cli.serve", "run"), explain_unknown=_explain_unknown)


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
