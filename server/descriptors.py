"""What a process of ``bmq serve`` may open, fitted to the limit on its descriptors."""

from __future__ import annotations

from dataclasses import replace

from bmq.core.config import NodeConfig
from bmq.core.descriptors import shares


def fit(config: NodeConfig, limit: int) -> tuple[NodeConfig, str]:
    """Return the settings with bounds that ``limit`` descriptors can keep, and a warning if one was lowered."""
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
        f"this process may have {limit} file descriptors: it takes {fitted.max_connections} connections"
        f" (max.connections is {config.max_connections}) and keeps {fitted.open_pipelines_max} segments open"
        f" (open_pipelines_max is {config.open_pipelines_max}); for all of them let it have {wanted}"
        " (LimitNOFILE of a systemd unit, ulimit -Hn of a shell)"
    )
