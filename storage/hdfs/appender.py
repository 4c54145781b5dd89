"""An open file on HDFS: the ``Appender`` over one pipeline."""

from __future__ import annotations

import asyncio
import logging

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import (
    Buffer,
    Lease,
    LeaseLost,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.pipeline import Pipeline

_log = logging.getLogger(__name__)


class HdfsAppender:
    """The ``Appender`` of a file's last block (``bmq.storage.filesystem``); this process holds the file's lease.

    Calls to the NameNode carry the file id, so that a rename of the open file changes nothing.  After a failure no call
    is made: the file may belong to another process by now.
    """

    def __init__(
        self,
        client: HdfsClient,
        pipeline: Pipeline,
        *,
        path: str,
        lease: Lease,
        block: pb.Block,
        end_max: int,
        is_new_block: bool,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._path = path
        self._lease = lease
        self._block = block
        self._end_max = end_max
        self._closed_length: int | None = None
        self._length_task: asyncio.Task[None] | None = None
        self._stored_length = pipeline.acked
        pipeline.on_failure = self._on_failure
        if is_new_block:
            pipeline.hold(self._on_first_ack)
        client.lengths.add(self)

    def __repr__(self) -> str:
        return f"HdfsAppender({self._path}, id={self._lease.file_id}, {self._pipeline!r})"

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._pipeline.nodes

    @property
    def position(self) -> int:
        return self._pipeline.position

    @property
    def flushed(self) -> int:
        return self._pipeline.flushed

    @property
    def pending(self) -> int:
        return self._pipeline.pending

    @property
    def failure(self) -> StorageError | None:
        return self._pipeline.failure

    def write(self, data: Buffer) -> int:
        """Take bytes.  Raises Unsupported past the end of the block: a file has one block, and is rolled before it."""
        position = self._pipeline.position
        if position + memoryview(data).nbytes > self._end_max:
            raise Unsupported(f"{self._path}: {self._end_max} bytes are all that its last block holds: roll the file")
        self._pipeline.write(data)
        return self._pipeline.position

    def flush(self, *, sync: bool = False) -> asyncio.Future[int]:
        return self._pipeline.flush(sync=sync)

    async def close(self) -> int:
        if self._closed_length is not None:
            return self._closed_length
        length = await self.flush()
        self._client.lengths.remove(self)
        if self._length_task is not None:  # it must not reach the NameNode after `complete`
            await asyncio.wait([self._length_task])
        await self._pipeline.finish()
        last = pb.Block()
        last.CopyFrom(self._block)
        last.length = self._pipeline.written
        try:
            await self._client.complete(self._path, self._lease.holder, self._lease.file_id, last)
        finally:
            # Also if this failed: the replicas are closed, nothing can be written, and a fence can close the file.
            self._client.leases.remove(self._lease.file_id)
        self._closed_length = length
        return length

    def abort(self) -> None:
        self._pipeline.abort()

    async def report_length(self) -> None:
        """Send the acknowledged length to the NameNode, if it has grown since the last time.

        Nothing is sent before the first length, which the first acknowledgement sends.  A refusal is ignored: the next
        flush or the next fence meets its cause.  Raises StorageUnavailable if the NameNode does not respond.
        """
        acked = self._pipeline.acked
        if self._pipeline.failure is not None or self._stored_length == 0 or acked <= self._stored_length:
            return
        unavailable: list[StorageUnavailable] = []
        self._length_task = self._client.tasks.start(
            self._send_further_length(acked, unavailable), f"length of {self._path}"
        )
        await asyncio.wait([self._length_task])
        if unavailable:
            raise unavailable[0]

    # ---- within

    def _on_first_ack(self, acked: int) -> None:
        self._length_task = self._client.tasks.start(self._send_first_length(acked), f"first length of {self._path}")

    async def _send_further_length(self, acked: int, unavailable: list[StorageUnavailable]) -> None:
        try:
            await self._client.namenode.fsync(self._path, self._lease.holder, self._lease.file_id, acked)
        except StorageUnavailable as error:
            unavailable.append(error)
        except StorageError as error:
            _log.info("length of an open file refused by the NameNode", extra=fields(path=self._path, error=error))
        else:
            self._stored_length = acked

    async def _send_first_length(self, acked: int) -> None:
        """Send the first length, then let flushes complete (rule 1).

        Without it a restarted NameNode takes the block for empty, and may drop it in a lease recovery.
        """
        lease = self._lease
        try:
            await self._client.namenode.fsync(self._path, lease.holder, lease.file_id, acked)
        except LeaseLost as error:
            self._pipeline.fail(error)
        except StorageError as error:
            self._pipeline.fail(PipelineFailed(f"{self._path}: the NameNode did not store the first length: {error}"))
        else:
            self._stored_length = acked
            self._pipeline.release()

    def _on_failure(self, failure: StorageError) -> None:
        if isinstance(failure, PipelineFailed):
            self._client.suspect(failure.suspects)
        self._client.lengths.remove(self)
        self._client.leases.remove(self._lease.file_id)
        if self._length_task is not None:
            self._length_task.cancel()
