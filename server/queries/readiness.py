"""Liveness and readiness of a process, with what it does not serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmq.broker.not_served_api import NotServed
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.meta.cluster.membership import TTL_S, Membership
from bmq.server.queries.counts import Counts
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.coordinator import CoordinatorRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The readiness of one process to serve clients."""

    is_in_service: Callable[[], bool]
    """Returns False while the process starts or drains."""
    membership: Membership
    broker: BrokerRole | None
    coordinator: CoordinatorRole | None
    counts: Counts
    quarantined: Callable[[], Mapping[str, str]]
    """Returns the reason by key or topic that the process cannot use."""
    descriptors: DescriptorMeter | None
    """The meter of file descriptors; None under a simulation's clock."""

    def is_alive(self) -> tuple[bool, str]:
        """Return True: a process that can respond is alive.  ``is_ready`` says what it waits for."""
        return True, ""

    def is_ready(self) -> tuple[bool, str]:
        """Return False, and the reason, while other processes serve clients better; else True, and what is not served.

        If storage acknowledges nothing, the result is still True. Storage fails for all processes at once, and a
        service without endpoints could return neither reads from memory nor an error with the reason.
        """
        if not self.is_in_service():
            return False, "starting, or draining"
        if self.descriptors is not None and self.descriptors.is_out:
            return False, "no file descriptor is left: new connections are closed as they come"
        if not self.membership.is_member:
            return False, "the metadata store says that this process's lease is gone; it registers again"
        not_served = (
            self.broker.broker.storage_trouble if self.broker is not None else "",
            _store_trouble(self.broker, self.membership),
            _partitions_not_served(self.counts.not_served),
            _degraded(self.coordinator),
            _quarantined(self.quarantined()),
        )
        return True, "; ".join(filter(None, not_served))


def _store_trouble(broker: BrokerRole | None, membership: Membership) -> str:
    """Return why the broker waits for the metadata store, or that the lease is not renewed; "" if all is well."""
    if broker is not None and (trouble := broker.broker.store_trouble):
        return trouble
    age_s = membership.lease_age_s
    if age_s <= TTL_S:
        return ""
    return f"the metadata store has not renewed this process's lease for {age_s:.0f} s: is it up and reachable?"


def _partitions_not_served(found: NotServed) -> str:
    if not found.total:
        return ""
    topic, partition, why = found.partitions[0]
    more = f", and {found.total - 1} more partitions" if found.total > 1 else ""
    return f"{topic}-{partition}{more} cannot be served: {why}"


def _degraded(role: CoordinatorRole | None) -> str:
    """Return what is not served for want of a shard, and why; "" if all is.  Clients of other shards are served."""
    not_loaded = role.shards_not_loaded() if role is not None else {}
    if not not_loaded:
        return ""
    shard, why = min(not_loaded.items())
    more = f", and {len(not_loaded) - 1} more" if len(not_loaded) > 1 else ""
    return f"{shard.kind.name} of {shard}{more} are not served: {why}"


def _quarantined(found: Mapping[str, str]) -> str:
    if not found:
        return ""
    what, why = min(found.items())
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{what}{more} cannot be used: {why}"
