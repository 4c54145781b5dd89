"""The root as executors read it: with its NameNodes in the URL.

A driver has Hadoop's configuration (HADOOP_CONF_DIR); an executor may have none, or one that differs.  So a name
service is resolved once, where a query is planned.
"""

from __future__ import annotations

from dataclasses import replace

from bmq.spark.options import OptionError, ReadOptions
from bmq.storage.open import resolved_url


def with_namenodes(options: ReadOptions) -> ReadOptions:
    """Return the options with a root that needs no configuration.  Raises OptionError if that cannot be made."""
    try:
        return replace(options, root=resolved_url(options.root))
    except ValueError as error:
        raise OptionError(f"option 'root': {error}") from error
