"""The ``bmq`` command: one parser (``cli.parsers.tree``), whose default ``run`` returns the exit status.

Here is the part that all commands share: a reader that goes away (``bmq ... | head``), and Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

from bmq.cli.output import fail
from bmq.cli.parsers.tree import build_parser, chosen_command

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_NOT_WRITTEN = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's) and return the exit status."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 still gets every line
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = build_parser(chosen_command(words)).parse_args(words)
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        _discard_output()
        return fail(f"cannot write: {error.strerror}", status=EXIT_NOT_WRITTEN)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def _discard_output() -> None:
    """Point standard output to /dev/null: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Open standard streams that the caller has closed (``<&-``) as /dev/null; Python has None in their place."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - open as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
