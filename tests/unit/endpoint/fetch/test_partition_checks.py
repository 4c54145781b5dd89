"""The check of one partition: whose events count for it."""

from __future__ import annotations

from bmq.endpoint.fetch.partition_checks import PartitionChecks
from tests.unit.endpoint.serving import World, want


async def test_a_check_that_follows_no_events_leaves_the_partition_of_a_former_topic() -> None:
    """A session that has ended checks once more: by then another topic may have the name."""
    world = World()
    world.topic("t", number=1)
    checks, wanted = PartitionChecks(world.fetch_service.context, world.catalog, world.owners), want("t")
    checks.check(wanted, 100, at_least_one=True, committed=False, wants_aborted=False, follows=True, batches_max=1)
    assert len(world.fetch_service.poll) == 1
    world.topic("t", number=2)
    checks.check(wanted, 100, at_least_one=True, committed=False, wants_aborted=False, follows=False, batches_max=1)
    world.fetch_service.leave([wanted])
    assert len(world.fetch_service.poll) == 0
    await world.fetch_service.close()
