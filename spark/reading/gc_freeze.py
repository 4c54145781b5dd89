"""A worker's loaded modules, taken out of the garbage collector's rounds.

Spark uses its Python workers for many tasks and collects garbage after each task.  The planning process does so after
each query.  Scanning what Spark, pyarrow and numba have left loaded, 130,000 objects, takes 0.08 s: as long as decoding
80 MB.  So each process once sets its objects aside (``gc.freeze``); later ones are collected as usual.
"""

from __future__ import annotations

import gc
import os

_spared_in = 0


def freeze_gc() -> None:
    """Freeze the collector's objects, once in each process, forked children included.

    Called once all that a Spark process needs is loaded.
    """
    global _spared_in
    if _spared_in != os.getpid():
        _spared_in = os.getpid()
        gc.freeze()
