"""The limit of open files of this process, which its children inherit."""

from __future__ import annotations

import resource


def allow_files(count: int) -> None:
    """Raise the limit of open files to ``count``, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard) if hard > 0 else count, hard))
