"""Bounds on what a process of ``bmq serve`` opens, fitted to its limit of file descriptors."""

from __future__ import annotations

from dataclasses import replace

from bmq.core.config import NodeConfig
from bmq.core.descriptors import shares


def fit(config: NodeConfig, limit: int) -> tuple[NodeConfig, str]:
    """Return the settings with bounds that ``limit`` descriptors suffice for, and a warning if one was lowered."""
    connections, segments = shares(limit)
    fitted = replace(
        config,
        max_connections=min(config.max_connections, connections),
        open_pipelines_max=min(config.open_pipelines_max, segments),
    )
    if fitted == config:
        return config, ""
    wanted = max(config.max_connections * 2, config.open_pipelines_max * 4)
    return fitted, (
        f"this process may open {limit} file descriptors: it accepts {fitted.max_connections} connections"
        f" (max.connections is {config.max_connections}) and keeps {fitted.open_pipelines_max} segments open"
        f" (open_pipelines_max is {config.open_pipelines_max}); for all of them raise the limit to {wanted}"
        " (LimitNOFILE of a systemd unit, ulimit -Hn of a shell)"
    )
