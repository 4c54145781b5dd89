"""Instructions for the optional packages that this installation lacks.

An installed package cannot say how it was installed: from a clone, from a wheel, or in an image. So the text names the
packages themselves, for the interpreter that misses them, as `pyproject.toml` asks for them.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires

_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w-]+)["']""")


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of `extra` beside this one."""
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install {' '.join(map(shlex.quote, packages(extra)))}"


def packages(extra: str) -> list[str]:
    """Return the requirements of `extra`; its own name where BMQ runs from a zip, which has no metadata."""
    try:
        lines = requires("bmq") or ()
    except PackageNotFoundError:
        return [f"bmq[{extra}]"]
    named = [requirement for requirement, marker in map(_split, lines) if extra in _EXTRA.findall(marker)]
    if not named:
        raise LookupError(f"bmq has no extra {extra!r}")
    return named


def _split(line: str) -> tuple[str, str]:
    """Return a requirement and its marker: `numba>=0.61; extra == "fast"`."""
    requirement, _, marker = line.partition(";")
    return requirement.strip(), marker.strip()
