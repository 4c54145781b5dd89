"""The root as executors read it: with its NameNodes in the URL.

A driver has Hadoop's configuration (``driver_login``); an executor may have none, or another configuration.  So a name
service is resolved once, where a query is planned.
"""

from __future__ import annotations

from dataclasses import replace

from bmq.spark.options import OptionError, ReadOptions
from bmq.spark.planning.driver_login import driver_login
from bmq.storage.open import resolved_url


def with_namenodes(options: ReadOptions) -> ReadOptions:
    """Return the options with a root that needs no configuration.  Raises OptionError if that cannot be made."""
    try:
        return replace(
            options, root=resolved_url(options.root, hadoop_conf_dir=driver_login(options.root).hadoop_conf_dir)
        )
    except ValueError as error:
        raise OptionError(f"option 'root': {error}") from error
