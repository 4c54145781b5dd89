"""The exit status of a command's work: an expected error is one line on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from bmq.cli.output import fail
from bmq.cli.usage import UsageError, check_text
from bmq.core.http_call import RequestRefused, ServerUnreachable

EXIT_REFUSED = 1
EXIT_USAGE = 2


def exit_status_of(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    """Return the exit status of ``work``; print an expected error that it raises in one line.

    ``work`` is not called if one of the ``arguments`` is not text.
    """
    try:
        check_text(arguments)
        return work()
    except (UsageError, ServerUnreachable) as error:
        return _print_error(str(error), EXIT_USAGE)
    except RequestRefused as error:
        return _print_error(str(error), EXIT_REFUSED)


def _print_error(text: str, status: int) -> int:
    sys.stdout.flush()
    return fail(text, status=status)
