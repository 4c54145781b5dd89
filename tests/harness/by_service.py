"""An order of integration tests in which one of xdist's workers has HDFS and Spark for itself.

`--dist loadfile` gives files to workers as these get free. Both workers then start an HDFS and a Spark each, seven
processes of Java in all, although tests of one worker share them.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

WITH_HDFS = ("test_hdfs_", "test_log_", "test_spark_")
"""Files of tests that mostly use the shared HDFS."""
HDFS = "hdfs"


def scope_of(nodeid: str) -> str:
    """Return what one worker plays whole: the file of a test, or all files with HDFS."""
    path = nodeid.partition("::")[0]
    return HDFS if path.rpartition("/")[2].startswith(WITH_HDFS) else path


class ByService(LoadFileScheduling):  # type: ignore[misc]
    """A scheduler of files, for which the files with HDFS are one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
