"""Removal of open files that were never written: spares, and first files made ahead."""

from __future__ import annotations

import asyncio
import contextlib

from bmq.storage.filesystem import Appender, FileSystem, StorageError


async def remove_unused(fs: FileSystem, appender: Appender, within_s: float) -> None:
    """Close the file, then delete it; each may take ``within_s`` seconds.

    The order matters: the writer of a deleted file would go on being acknowledged. A file that does not close, because
    its pipeline broke, is aborted, which ends its acknowledgements too, and deleted as well: HDFS would keep it open
    for as long as this process lives. A file that cannot be deleted is left to the janitor's sweep
    (``SegmentRoll.has_given_up``).
    """
    try:
        async with asyncio.timeout(within_s):
            await appender.close()
    except (StorageError, TimeoutError):
        appender.abort()
    except BaseException:
        appender.abort()
        raise
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(within_s):
            await fs.delete(appender.lease.paths[0])
