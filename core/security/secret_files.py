"""Files with secrets, and whether every user of the machine may read them."""

from __future__ import annotations

import stat
from pathlib import Path

from bmq.core.security.stores import KEY


def is_readable_by_all(path: str) -> bool:
    """Return whether every user may read the file, and pass through the folders on its way.

    A missing file is not readable: its reader reports it.
    """
    try:
        whole = Path(path).resolve(strict=True)
        is_reachable = all(each.stat().st_mode & stat.S_IXOTH for each in whole.parents)
        return is_reachable and bool(whole.stat().st_mode & stat.S_IROTH)
    except (OSError, RuntimeError, ValueError):  # a missing file, a circle of links, or a NUL in the name
        return False


def key_file(location: str) -> str:
    """Return the file with the private key of ``ssl.keystore.location``, which may be a folder."""
    return str(Path(location) / KEY) if Path(location).is_dir() else location


def without_file_type(name: str) -> str:
    """Return the path of a keytab or a ticket cache: Kerberos's library reads ``FILE:`` before a path as no more."""
    return name[5:] if name[:5].lower() == "file:" else name
