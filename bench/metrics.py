"""Counters that a process of BMQ shows at /metrics."""

from __future__ import annotations

import urllib.request

TIMEOUT_S = 10.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Calls stay on this machine, whatever proxy the environment names."""


def read_metrics(url: str) -> str:
    """Return the text at ``url``.  Raises OSError if the process does not respond."""
    with _HTTP.open(url, timeout=TIMEOUT_S) as response:
        return str(response.read().decode())


def metric_sum(url: str, series: str) -> float:
    """Return the sum of all series of a process that begin so; ``url`` is its address of counters."""
    return sum_of(read_metrics(url), series)


def sum_of(text: str, series: str) -> float:
    """Return the sum of the series that begin with ``series``, a name with some of its labels perhaps; 0 if none."""
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series))
