"""Paths within a root: absolute, with ``/`` between names, and never outside the root."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.storage.filesystem import StorageError, Unsupported


def split(path: str) -> tuple[str, ...]:
    """Return the names in ``path``, none for the root.

    Raises Unsupported for a path that could leave the root or mean two files.
    """
    if not path.startswith("/"):
        raise Unsupported(f"{path!r} is not absolute: paths begin with / at the root")
    names = tuple(path[1:].split("/")) if path != "/" else ()
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise Unsupported(f"{path!r} has an empty, '.' or '..' name in it")
    return names


def join(folder: str, name: str) -> str:
    """Return the path of ``name`` in ``folder``, which may be the root."""
    return f"{folder}{name}" if folder == "/" else f"{folder}/{name}"


def check_concat(target: str, sources: Sequence[str]) -> None:
    """Check what the names alone say of a concat.

    Raises StorageError if the files are not all in one folder, or if one is named twice.
    """
    folder = split(target)[:-1]
    if any(split(source)[:-1] != folder for source in sources):
        raise StorageError(f"concat joins files of one folder: {target} and {list(sources)}")
    if len({target, *sources}) != 1 + len(sources):
        raise StorageError(f"concat names a file twice: {target} and {list(sources)}")
