"""A broker that is cut off from storage while clients, the other processes and the metadata store reach it."""

from __future__ import annotations

import asyncio

from bmq.meta.controller.serving import REST_S
from tests.simulation.test_cut_from_store import PARTITIONS, Story, play

EMPTIED_S = 25.0
"""From the cut until others have its partitions: a stall (5 s), the leader's next question (5 s), takeovers."""


def owned(one: Story, host: str) -> int:
    return sum(one.owner_of(partition) == host for partition in range(PARTITIONS))


def test_a_broker_is_given_nothing_before_storage_serves_it_again() -> None:
    """It has nothing to write once others have its partitions.  Given some, they would stand still until it has
    stalled again; those that are only read, as a coordinator's log that is being loaded, for as long as it is cut
    off."""

    async def story(one: Story) -> None:
        assert owned(one, "broker0")
        one.place("broker0").cut_storage(True)
        await one.until(lambda: not owned(one, "broker0"), EMPTIED_S, "others have its partitions")
        end = one.now() + REST_S + EMPTIED_S
        while one.now() < end:
            assert not owned(one, "broker0"), f"{end - one.now():.0f} s before the end"
            await asyncio.sleep(0.5)
        one.place("broker0").cut_storage(False)
        await one.until(lambda: owned(one, "broker0") > 0, REST_S + EMPTIED_S, "it is given partitions again")

    play(0, story)
