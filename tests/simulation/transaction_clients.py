"""Transactional applications of a simulated cluster: they consume, transform and produce, exactly once.

An ``Application`` has a transactional id and a partition that it consumes.  Its instances come and go: one dies in the
middle of anything, a second begins while the first goes on and is fenced, one leaves its transaction open until the
time-out.
"""

from __future__ import annotations

import asyncio
import math
from random import Random

from bmq.core.errors import ErrorCode
from tests.simulation.kafka_clients import Refused, World
from tests.simulation.transaction_attempts import (
    OUTPUT,
    OUTPUTS,
    RING,
    SIDE,
    Applications,
    Attempt,
    Dead,
    Key,
    Outcome,
    Read,
)
from tests.simulation.transaction_isolation import HOPS, hop_of, next_hop
from tests.simulation.transaction_producers import TransactionalProducer
from tests.simulation.transaction_readers import CommittedReader, position_of

COPIES = 8
"""Most records that are written for a consumed record."""
LATE = 0.3
"""Share of the transactions aborted by a client of version 1 that a late batch follows."""
SIDES = 0.15
"""Share of the transactions with a record in ``SIDE``."""
IDLE = 0.3
"""Share of the transactions before which a client does nothing for about as long as its transactional id is kept."""
ROUNDS = 3
"""Most rounds of reading and writing in one transaction of the ring."""
POLLS = 3
"""Fetches in a round until a record is there."""


class Instance(TransactionalProducer):
    """One run of an application, which consumes a partition of the input."""

    def __init__(
        self, world: World, known: Applications, name: str, source: Key, transactional_id: str, rng: Random
    ) -> None:
        super().__init__(world, known, name, transactional_id, rng)
        self.source = source
        self.count = 0

    async def run(self, transactions: int) -> None:
        """Run until that many transactions were committed, or until it is fenced or dies."""
        try:
            self.version = await self.next_version()
            await self.init()
            position = await position_of(self.world, self.known, self.client, self.source)
            while transactions > 0:
                position, is_done = await self._transaction(position)
                transactions -= is_done
                await self.follow()
                await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.4)))
                if self.known.expiration_s < math.inf and self.rng.random() < IDLE:
                    await asyncio.sleep(self.known.expiration_s * self.rng.uniform(0.5, 2.0))
        except Dead as dead:
            self.known.refused.append(f"{self.name}: {dead}")
        finally:
            self.client.close()

    async def _transaction(self, position: int) -> tuple[int, bool]:
        """Run one transaction; return the next position, and whether it was committed."""
        attempt = Attempt(f"{self.name}.{self.count}", self.source, position, position)
        self.count += 1
        self.known.attempts[attempt.name] = attempt
        self.began_s = asyncio.get_running_loop().time()
        try:
            await self._work(attempt)
            if self.rng.random() < 0.08:
                await asyncio.sleep(self.timeout_ms / 1000 + self.rng.random())  # it may be aborted by now
            commits = self.rng.random() < 0.75
        except Refused as refused:
            self.known.refused.append(f"{attempt.name}: {refused}")
            commits = False
        attempt.outcome = Outcome.COMMITTING if commits else Outcome.ABORTING
        try:
            await self.end(commits=commits)
        except Refused as refused:
            self.known.refused.append(f"{attempt.name}: {refused} at its end")
            await self.init()
            return await position_of(self.world, self.known, self.client, self.source), False
        if commits:
            attempt.outcome = Outcome.COMMITTED
        self.began_s = math.inf
        if not commits and self.version == 1 and self.rng.random() < LATE:
            await self._append_late(attempt)
        return (attempt.end, True) if commits else (position, False)

    async def _append_late(self, attempt: Attempt) -> None:
        """Send a batch as if it had been on its way until after its transaction was aborted, then die.

        Before the marker the batch is aborted with its transaction.  Behind the marker no other marker will come for
        it, so it must be refused (rule 12).
        """
        late = Attempt(f"{attempt.name}-late", self.source, attempt.end, attempt.end)
        self.known.attempts[late.name] = late
        partition = self.rng.randrange(OUTPUTS)
        try:
            await self._write(late, {(OUTPUT, partition): [late.name.encode() + b"|late"]})
        except Refused as refused:
            self.known.late += refused.code is ErrorCode.INVALID_TXN_STATE
            raise Dead(f"its late batch got {refused}") from None
        raise Dead("its late batch came before the marker")

    async def _work(self, attempt: Attempt) -> None:
        """Do what a transaction is for: consume, and produce."""
        length = len(self.known.input[self.source[1]])
        attempt.end = min(attempt.begin + self.rng.randint(1, 3), length)
        has_offsets = attempt.end > attempt.begin
        if has_offsets and self.rng.random() < 0.5:
            await self.send_offsets(self.source, attempt.end)
            await self._produce(attempt)
        else:
            await self._produce(attempt)
            if has_offsets:
                await self.send_offsets(self.source, attempt.end)

    async def _produce(self, attempt: Attempt) -> None:
        inputs = self.known.input[self.source[1]]
        values = [inputs[offset] for offset in range(attempt.begin, attempt.end)] or [b"nothing"]
        keys = {(OUTPUT, self.rng.randrange(OUTPUTS)) for _ in values}
        has_side = self.rng.random() < SIDES
        await self.add(keys | ({(SIDE, 0)} if has_side else set()))
        if has_side:
            await self.send({(SIDE, 0): [attempt.name.encode()]})
            self.known.sides += 1
        records: dict[Key, list[bytes]] = {}
        for value in values:
            own = records.setdefault(self.rng.choice(sorted(keys)), [])
            copies = range(self.batches.randint(1, COPIES))
            own += [b"%s|%s|%d" % (attempt.name.encode(), value, copy) for copy in copies]
        await self._write(attempt, records)

    async def _write(self, attempt: Attempt, records: dict[Key, list[bytes]]) -> None:
        """Write records in a transaction, whose partitions were added."""
        for key, values in records.items():
            attempt.records.setdefault(key, []).extend(values)
        await self.send(records)


class RingMember(Instance):
    """One run of an application of the ring: it reads one topic, and writes each token to the other, a hop further.

    A transaction has up to ``ROUNDS`` rounds, and so may read after it has written.  Without isolation it could then
    read what was made of its own records.
    """

    def __init__(self, world: World, known: Applications, name: str, side: int, rng: Random) -> None:
        super().__init__(world, known, name, (RING[side], 0), f"ring{side}", rng)
        self.target = (RING[1 - side], 0)
        self.reader = CommittedReader(world, known, self.source)

    async def _work(self, attempt: Attempt) -> None:
        self.reader.offset = attempt.begin
        sent = attempt.begin
        for _ in range(self.batches.randint(1, ROUNDS)):
            reads = await self._read(attempt.end)
            if reads:
                attempt.reads += reads
                attempt.end = reads[-1].offset + 1
                records = [next_hop(attempt.name, read.value) for read in reads if hop_of(read.value)[0] < HOPS]
                if records:
                    await self.add({self.target})
                    await self._write(attempt, {self.target: records})
                if self.batches.random() < 0.3:
                    await self.send_offsets(self.source, attempt.end)
                    sent = attempt.end
        if not attempt.records:
            nothing = (OUTPUT, self.batches.randrange(OUTPUTS))
            await self.add({nothing})
            await self._write(attempt, {nothing: [attempt.name.encode() + b"|nothing"]})
        if sent < attempt.end:
            await self.send_offsets(self.source, attempt.end)

    async def _read(self, position: int) -> list[Read]:
        """Return some records from a position on, if there are any soon."""
        count = self.batches.randint(1, 3)
        for _ in range(POLLS):
            found = [(offset, value) for offset, value in sorted(self.reader.values.items()) if offset >= position]
            if found:
                return [Read(self.source, offset, value) for offset, value in found[:count]]
            if self.is_killed or self.world.is_over:
                raise Dead("killed")
            await self.reader.poll(self.client)
        return []
