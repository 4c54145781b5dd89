"""Prometheus' own programs, for what is shown of metrics, rules and dashboards: promtool, and a server on loopback.

python -m tests.services.prometheus      build what is missing, and print where it is
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services import jars
from tests.services.go_programs import GoModule, build, cached

VERSION = "v0.315.0"
"""Prometheus 3.15 as a Go module."""

_MODULE = GoModule(
    "github.com/prometheus/prometheus",
    VERSION,
    {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("promtool", "prometheus")},
    # Later versions moved packages that one of the dependencies still imports into modules of their own.
    replaced={"cloud.google.com/go": "v0.123.0"},
    # Without service discovery in clouds, which is most of the code, and of the time that a build takes.
    tags=("remove_all_sd",),
)


def folder() -> Path:
    """Return the folder of `promtool` and `prometheus`, after a build of some minutes if this is the first time."""
    found = cached("prometheus", VERSION)
    jars.once(found, lambda: build(_MODULE, found))
    return found


def main(arguments: Sequence[str]) -> int:
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for name in _MODULE.packages:
        print(folder() / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
