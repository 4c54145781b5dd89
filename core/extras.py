"""Instructions for installing the optional packages that this installation lacks.

An installed package cannot say how it was installed: from a clone, from a wheel, or in an image.  So the text names the
packages themselves, for the interpreter that lacks them, as ``pyproject.toml`` requires them.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires

_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w-]+)["']""")


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of ``extra`` for this interpreter."""
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install {' '.join(map(shlex.quote, packages(extra)))}"


def packages(extra: str) -> list[str]:
    """Return the requirements of ``extra``; ``bmq[extra]`` where BMQ runs from a zip, which has no metadata.

    Raises LookupError if BMQ has no such extra.
    """
    try:
        lines = requires("bmq") or ()
    except PackageNotFoundError:
        return [f"bmq[{extra}]"]
    named = [requirement for requirement, marker in map(_split, lines) if extra in _EXTRA.findall(marker)]
    if not named:
        raise LookupError(f"bmq has no extra {extra!r}")
    return named


def _split(line: str) -> tuple[str, str]:
    """Return a requirement and its marker, as in ``numba>=0.61; extra == "fast"``."""
    requirement, _, marker = line.partition(";")
    return requirement.strip(), marker.strip()
