"""What a worker has loaded stays, so the collector need not look at it again and again.

Spark uses its Python workers for many tasks and collects garbage after each, and so does the process that plans, after
each query.  Going through what Spark, pyarrow and numba have left loaded, 130,000 objects, takes 0.08 s: as long as
decoding 80 MB.  Once a process what is there is therefore set aside (``gc.freeze``); what comes later is collected as
ever.
"""

from __future__ import annotations

import gc
import os

_spared_in = 0


def freeze_gc() -> None:
    """Called where all is loaded that a process of Spark's needs; does its work once a process, children again."""
    global _spared_in
    if _spared_in != os.getpid():
        _spared_in = os.getpid()
        gc.freeze()
