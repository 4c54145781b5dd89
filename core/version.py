"""The version of this software, read from the installed package's metadata.

``pyproject.toml`` is the one place where it is written.  ``bmq --version``, ``bmq_build_info``, the HTTP API, the
cluster's members and the names of wheel and image take it from there.
"""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("bmq")
