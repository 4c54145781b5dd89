"""Fetches of a client with a quota: what it owes costs storage nothing."""

from __future__ import annotations

from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.result import FetchResult
from tests.unit.endpoint.serving import World, offsets, release, serving, want

T0 = ("t", 0)


async def fetch(world: World, *, owes: bool, asked: list[int]) -> FetchResult:
    def admit(size: int) -> bool:
        asked.append(size)
        return not owes

    params = FetchParams(1, 50 << 20, 0.5, committed=False, metrics=world.metrics, admit=admit)
    fetched = world.fetch_service.fetch(0, -1, [want("t"), want("t", 1)], (), params, by_id=False)
    return fetched if isinstance(fetched, FetchResult) else await fetched


async def test_a_client_in_debt_has_nothing_read_from_storage() -> None:
    async with serving() as world:
        await world.store("t", batches=20)
        world.flush("t", 1)
        asked: list[int] = []
        fetched = await fetch(world, owes=True, asked=asked)
        assert offsets(fetched) == {T0: [], ("t", 1): []}
        assert (world.fs.log_reads, set(asked)) == (0, {0})
        budget = world.fetch_service.budget
        assert (budget.storage.used, budget.memory.used) == (0, 0)
        asked.clear()
        fetched = await fetch(world, owes=False, asked=asked)
        assert offsets(fetched)[T0] == list(range(20))
        assert asked[0] == 0 < asked[-1]
        release(fetched)


async def test_records_in_memory_are_dropped_for_a_client_in_debt() -> None:
    async with serving() as world:
        world.flush("t")
        asked: list[int] = []
        fetched = await fetch(world, owes=True, asked=asked)
        assert offsets(fetched)[T0] == []
        assert all(asked)
