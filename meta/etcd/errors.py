"""The meaning of a failed call to etcd: certainly not done, or unknown.  Pure.

gRPC's status codes do not separate the two: UNAVAILABLE is a refused connection, a member without a leader, and a
commit that was proposed and never answered.  The texts do, being part of etcd's interface (rpctypes/error.go) and
matched by its own client.  **A text that is not listed here is unknown**: if etcd changes one, a caller has to check
again, but never acts on a wrong verdict.
"""

from __future__ import annotations

from enum import Enum, auto

from grpc import StatusCode


class FailureVerdict(Enum):
    """The meaning of a failure for the call."""

    NOT_DONE = auto()
    """No member has accepted it; another one, or the same one later, may."""

    TOKEN = auto()
    """Not done: the token has expired, or was issued before the member restarted.  Authenticate and send it again."""

    FORBIDDEN = auto()
    """Not done, and sending it again does not help: an operator must change something."""

    LEASE_GONE = auto()
    """Not done: the lease does not exist."""

    UNKNOWN = auto()
    """Sent, and perhaps done, or to be done later.  For a read: no response."""


# Texts of gRPC that come with UNAVAILABLE before anything was sent.
_UNREACHED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

COMPACTED = "etcdserver: mvcc: required revision has been compacted"
"""The response to a compaction that is done already, by another process or by the try before."""

_TEXTS = {
    # Refused before a proposal is made (v3rpc/interceptor.go, v3_server.go).
    "etcdserver: no leader": FailureVerdict.NOT_DONE,
    "etcdserver: not capable": FailureVerdict.NOT_DONE,
    "etcdserver: rpc not supported for learner": FailureVerdict.NOT_DONE,
    "etcdserver: too many requests": FailureVerdict.NOT_DONE,
    # The member had no leader to pass the proposal to, or the leader was handing over.
    "raft proposal dropped": FailureVerdict.NOT_DONE,
    "etcdserver: invalid auth token": FailureVerdict.TOKEN,
    # Users or roles have changed since the token was issued; found before the proposal or when it is applied, undone.
    "etcdserver: revision of auth store is old": FailureVerdict.TOKEN,
    # Sent without one, while authentication was being switched on.
    "etcdserver: user name is empty": FailureVerdict.TOKEN,
    "etcdserver: permission denied": FailureVerdict.FORBIDDEN,
    "etcdserver: authentication failed, invalid user ID or password": FailureVerdict.FORBIDDEN,
    "etcdserver: request is too large": FailureVerdict.FORBIDDEN,
    "etcdserver: too many operations in txn request": FailureVerdict.FORBIDDEN,
    "etcdserver: duplicate key given in txn request": FailureVerdict.FORBIDDEN,
    "etcdserver: too large lease TTL": FailureVerdict.FORBIDDEN,
    "etcdserver: requested lease not found": FailureVerdict.LEASE_GONE,
    COMPACTED: FailureVerdict.FORBIDDEN,
}

NO_SPACE = "etcdserver: mvcc: database space exceeded"
"""Unknown, although it looks like NOT_DONE: etcd applies the commit that finds the quota just exceeded, and still
returns this error."""

NO_AUTHENTICATION = "etcdserver: authentication is not enabled"

_HINTS = {
    NO_SPACE: "etcd's database is full: compact and defragment it, raise --quota-backend-bytes, then disarm the alarm",
    "etcdserver: request is too large": "etcd's --max-request-bytes is below its default of 1.5 MiB",
    "etcdserver: too many operations in txn request": "etcd's --max-txn-ops is below its default of 128",
    "etcdserver: user name is empty": "etcd demands a user and password",
    "etcdserver: permission denied": "the user needs read and write on the cluster's prefix, and read on the key /",
}


def judge(code: StatusCode, details: str) -> FailureVerdict:
    """Return the verdict on a call that gRPC failed with this status."""
    if code is StatusCode.UNAVAILABLE and details.startswith(_UNREACHED):
        return FailureVerdict.NOT_DONE
    return _TEXTS.get(details, FailureVerdict.UNKNOWN)


def judge_cancelled(reason: str) -> FailureVerdict:
    """Return the verdict on etcd's reason for ending a watch: a text, or a whole status as Go prints it."""
    return _TEXTS.get(reason.rpartition("desc = ")[2], FailureVerdict.UNKNOWN)


def explain(code: StatusCode, details: str) -> str:
    """Return the text of a status for operators, with a hint where there is one."""
    text = f"{code.name}: {details}" if details else code.name
    return f"{_HINTS[details]} ({text})" if details in _HINTS else text
