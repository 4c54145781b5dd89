"""Every number that the etcd client depends on, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.aio.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Time-outs and bounds of the client.  Seconds unless the name says otherwise."""

    connect_timeout_s: float = 2.0
    """A connection inside one network takes milliseconds, TLS included; two lost SYNs take 3 s and are not worth it."""

    call_timeout_s: float = 5.0
    """One call, one attempt.  etcd responds in milliseconds, and in about 2 s when an election lies between."""

    urgent_timeout_s: float = 2.0
    """The same for renewals of leases. A lease of 10 s is renewed every third of it. A member that hangs must not take
    the time for a try at another member."""

    doubt_s: float = 0.5
    """A call without a response for so long makes the client ask the member for its status, which it has at hand
    whatever the cluster does.  A member without a response to that either, for as long again, is silent.  If there was
    an election since, the call may be lost: etcd drops what was on its way to a leader that dies, without a word."""

    retry_for_s: float = 6.0
    """The last attempt of a call begins this long after the first: one member may hang for a whole time-out before
    another is tried.  A call so takes this and one time-out at most."""

    open_for_s: float = 6.0
    """The same for the first call, in ``open``: a process started beside etcd may be a little early."""

    calls_in_flight: int = 256
    """Calls sent and not yet answered; further callers wait.  etcd itself refuses past 5,000 unapplied proposals."""

    avoid_s: float = 5.0
    """A member that failed is tried last for this long, so that a dead member does not cost every call its time-out.
    Short, since a wrong suspicion merely moves load."""

    backoff_s: Backoff[float] = Backoff(0.05, 1.0)
    """Pause before all members are tried once more, half of it random so that a thousand clients do not come back at
    once."""

    keepalive_s: float = 6.0
    """Silence on a connection with a watch after which it is probed.  etcd closes connections that are probed more
    often than every 5 s (--grpc-keepalive-min-time)."""

    keepalive_timeout_s: float = 3.0
    """The connection is given up after a probe without response for this long."""

    progress_s: float = 60.0
    """A quiet watch requests its progress this often, so that it can resume after a disconnect although its own last
    event is long compacted.  Must be well below what the cluster keeps (--auto-compaction-retention)."""
