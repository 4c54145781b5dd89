"""Budget of a process's caches, fitted to the memory of the machine or container."""

from __future__ import annotations

from dataclasses import replace

from bmq.core.config import NodeConfig
from bmq.core.machine_memory import cache_share


def fit_cache(config: NodeConfig, memory: int) -> tuple[NodeConfig, str]:
    """Return the settings with ``cache_bytes`` filled in, and a text for the log that says why it has its value.

    ``memory``: bytes that this process may use, 0 if unknown.  Workers get the value as a setting.
    """
    if config.cache_bytes:
        return config, f"cache_bytes={config.cache_bytes}, as set"
    share = cache_share(memory, config.workers)
    among = f", for each of {config.workers} workers" if config.workers > 1 else ""
    of = f"{memory} bytes of memory" if memory else "an unknown size of memory"
    fitted = replace(config, cache_bytes=share, computed=(*config.computed, "cache_bytes"))
    return fitted, f"cache_bytes={share}, by {of}{among}"
