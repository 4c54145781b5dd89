"""``bmq completion``: the command line.  The work is in ``cli.completion``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.late import Late

_DESCRIPTION = """\
Print a script that lets the shell complete bmq's commands, options and their values.

  bash   source <(bmq completion bash)              in ~/.bashrc, or once:
         bmq completion bash > ~/.local/share/bash-completion/completions/bmq
  zsh    source <(bmq completion zsh)               in ~/.zshrc after compinit, or once:
         bmq completion zsh > "${fpath[1]}/_bmq"
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "completion",
        help=text,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh"), metavar="bash|zsh", help="the shell")
    parser.set_defaults(run=Late("bmq.cli.completion", "run"))
