"""The cleaning of a compacted topic's partitions, from the owner of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from bmq.broker.cleanup.cleaning_status import UNKNOWN, explain
from bmq.broker.log_cleaning_api import cleaning_rows
from bmq.console.state import CleaningFacts
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.member_queries import ask_members
from bmq.server.roles.broker import BrokerRole


async def log_cleaning(
    joined: ClusterMember, broker: BrokerRole | None, topic_id: UUID, numbers: range
) -> Mapping[int, CleaningFacts]:
    """Return the facts of the partitions of ``numbers`` by number, after a single request to every owner.

    ``broker`` is the role of this process; None without it.  The reason is ``UNKNOWN`` for a partition without an
    owner, and if the owner does not respond, or is of a version before the request.
    """
    view = joined.view
    owners = {number: view.owner_of(PartitionKey(topic_id, number)) for number in numbers}
    members = [
        member
        for name in sorted(set(owners.values()) - {view.own})
        if (member := view.members.get(name)) is not None and member.internal.port
    ]
    request = LogCleaningRequest(topic_id=topic_id, first=numbers.start, count=len(numbers))
    rows: dict[str, Iterable[CleaningRow]] = {
        name: response.partitions for name, response in (await ask_members(joined, members, request)).items()
    }
    if broker is not None:
        rows[view.own] = cleaning_rows(broker.broker.janitor.cleaning, topic_id, numbers.start, len(numbers))
    found = {(name, row.partition): row for name, some in rows.items() for row in some}
    return {number: _facts(found.get((owner, number), _UNKNOWN)) for number, owner in owners.items()}


_UNKNOWN = CleaningRow(partition=-1, reason=UNKNOWN, dirty_percent=-1.0, ended_ms=-1, bytes_before=-1, bytes_after=-1)


def _facts(row: CleaningRow) -> CleaningFacts:
    return CleaningFacts(
        reason=row.reason,
        why=explain(row.reason),
        dirty_percent=row.dirty_percent if row.dirty_percent >= 0 else None,
        cleaned_ms=_known(row.ended_ms),
        bytes_before=_known(row.bytes_before),
        bytes_after=_known(row.bytes_after),
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None
