"""The chart as helm renders it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.chart.drawn import CHART
from tests.services.kubernetes import helm

RELEASE, NAMESPACE = "orders", "queue"
TIMEOUT_S = 120
Object = dict[str, Any]


class HelmFailed(Exception):
    """helm refused; the text is what it said."""


def ci_values() -> list[Path]:
    """Return the sets of values that the chart is tried with."""
    found = sorted((CHART / "ci").glob("*-values.yaml"))
    assert found, "no sets of values in ci/"
    return found


def run_helm(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what helm wrote to standard output.  Raises HelmFailed."""
    done = subprocess.run(
        [str(helm()), *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment
    )
    if done.returncode:
        raise HelmFailed(done.stdout + done.stderr)
    return done.stdout


def template(*arguments: str, values: Sequence[Path] = (), kube_version: str = "1.37") -> list[Object]:
    """Return the objects that are rendered, those of `helm test` too."""
    files = [part for path in values for part in ("--values", str(path))]
    text = run_helm(
        "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", kube_version, *files, *arguments
    )
    return [each for each in yaml.safe_load_all(text) if each is not None]


def find(objects: Sequence[Object], kind: str, name: str) -> Object:
    """Return the one object of this kind and name."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found
