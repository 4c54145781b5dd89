"""The version of this software, as the installed package has it.

`pyproject.toml` is the one place where it is written. `bmq --version`, `bmq_build_info`, the HTTP API, members of the
cluster and the names of wheel and image take it from there.
"""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("bmq")
