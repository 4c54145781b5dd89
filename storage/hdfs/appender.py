"""An open file: the seam's ``Appender`` over one pipeline."""

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

log = logging.getLogger(__name__)


class HdfsAppender:
    """Writes the last block of a file whose lease is ours.

    Calls to the NameNode carry the file id, so that a rename of the open file changes nothing.  After a failure it
    makes no call at all: the file may be another's by now.
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
        self._telling: asyncio.Task[None] | None = None
        self._told = pipeline.acked
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
        """Unsupported past the end of the block: a file is one block long, and rolled before that."""
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
        if self._telling is not None:  # it must not reach the NameNode after `complete`
            await asyncio.wait([self._telling])
        await self._pipeline.finish()
        last = pb.Block()
        last.CopyFrom(self._block)
        last.length = self._pipeline.written
        try:
            await self._client.complete(self._path, self._lease.holder, self._lease.file_id, last)
        finally:
            # Even when this failed: replicas are closed, nothing can be written, and a fence can end it.
            self._client.leases.remove(self._lease.file_id)
        self._closed_length = length
        return length

    def abort(self) -> None:
        self._pipeline.abort()

    async def tell_length(self) -> None:
        """Tell the NameNode what was acknowledged since it was last told, which is nothing before the first length.

        A refusal is left to those whom it matters to: the next flush, the next fence.  Raises StorageUnavailable.
        """
        acked = self._pipeline.acked
        if self._pipeline.failure is not None or self._told == 0 or acked <= self._told:
            return
        unavailable: list[StorageUnavailable] = []
        self._telling = self._client.tasks.start(
            self._tell_further_length(acked, unavailable), f"length of {self._path}"
        )
        await asyncio.wait([self._telling])
        if unavailable:
            raise unavailable[0]

    # ---- within

    def _on_first_ack(self, acked: int) -> None:
        self._telling = self._client.tasks.start(self._tell_first_length(acked), f"first length of {self._path}")

    async def _tell_further_length(self, acked: int, unavailable: list[StorageUnavailable]) -> None:
        try:
            await self._client.namenode.fsync(self._path, self._lease.holder, self._lease.file_id, acked)
        except StorageUnavailable as error:
            unavailable.append(error)
        except StorageError as error:
            log.info("length of an open file refused by the NameNode", extra=fields(path=self._path, error=error))
        else:
            self._told = acked

    async def _tell_first_length(self, acked: int) -> None:
        """Rule 1: a restarted NameNode that believes the block empty may drop it in lease recovery."""
        lease = self._lease
        try:
            await self._client.namenode.fsync(self._path, lease.holder, lease.file_id, acked)
        except LeaseLost as error:
            self._pipeline.fail(error)
        except StorageError as error:
            self._pipeline.fail(PipelineFailed(f"{self._path}: the NameNode did not take the first length: {error}"))
        else:
            self._told = acked
            self._pipeline.release()

    def _on_failure(self, failure: StorageError) -> None:
        if isinstance(failure, PipelineFailed):
            self._client.suspect(failure.suspects)
        self._client.lengths.remove(self)
        self._client.leases.remove(self._lease.file_id)
        if self._telling is not None:
            self._telling.cancel()
