"""The common part of parsers: options that many commands have, and the types of their values."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.late import Late

DEFAULT_SERVER = "127.0.0.1:9092"


DEFAULT_TIMEOUT_S = 10.0


EPILOG = """\
exit status:
  0  done      1  refused, or not found: standard error says why      2  wrong usage, or no response from the server
"""


class DefaultSeconds(float):
    """A time-out that the command line does not give: the setting ``request.timeout.ms`` takes its place."""


def add_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Late, text: str, example: str
) -> argparse.ArgumentParser:
    """Add a sub-command over Kafka's protocol, with the options that all have, and return its parser."""
    parser = add_bare_command(actions, name, text, example)
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="a server of the cluster, or several with commas; default: $BMQ_BOOTSTRAP, the profile's, else "
        + DEFAULT_SERVER,
    )
    add_command_config(parser)
    add_profile(parser)
    parser.set_defaults(run=Late("bmq.cli.admin_client", "run"), command=command)
    return parser


def add_bare_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    example: str,
    *,
    timeout: str = "give up after so many seconds without a response",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> argparse.ArgumentParser:
    """Add a sub-command without options for a connection and return its parser.  ``timeout`` is the help of
    ``--timeout``."""
    parser = actions.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"example:\n  {example}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DefaultSeconds(timeout_s),
        metavar="S",
        help=f"{timeout} (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def seconds(text: str) -> float:
    """Return a number of seconds between 0 and a day.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def config_pair(text: str) -> tuple[str, str]:
    """Split ``name=value``, whose value may be empty and may hold more equals signs.

    Raises argparse.ArgumentTypeError if there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as in retention.ms=3600000")
    return name.strip(), value.strip()


def add_command_config(parser: argparse._ActionsContainer) -> None:
    """Add ``--command-config`` to a command that speaks Kafka."""
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="Kafka client settings as Kafka's tools take them: TLS and log-in; default: $BMQ_COMMAND_CONFIG, the"
        " profile's, else none",
    )


def add_profile(parser: argparse._ActionsContainer) -> None:
    """Add ``--profile`` to a command that takes addresses from one."""
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="take what no flag gives from this profile (`bmq profile`); default: $BMQ_PROFILE, else the current one",
    )


DEFAULT_HTTP = "http://127.0.0.1:9080"


def add_http(parser: argparse._ActionsContainer) -> None:
    """Add the option for a server's HTTP address."""
    parser.add_argument(
        "--http",
        metavar="URL",
        help="a server's HTTP address; default: $BMQ_HTTP_URL, the profile's, else " + DEFAULT_HTTP,
    )
