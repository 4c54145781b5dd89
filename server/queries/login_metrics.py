"""Numbers of a process's log-ins to secure storage for ``/metrics``."""

from __future__ import annotations

from bmq.console.state import OwnMetric
from bmq.storage.logins import StorageLogins


def login_metrics(logins: StorageLogins) -> list[OwnMetric]:
    """Return the numbers; none for a process that never logged in, as on an HDFS without Kerberos."""
    if not logins.is_used:
        return []
    failed = "Log-ins to HDFS by Kerberos, and renewals of the ticket, that failed, see the log"
    found = [
        OwnMetric("hdfs_logins", "Log-ins to NameNodes by Kerberos", logins.total, True),
        *(
            OwnMetric("hdfs_login_failures", failed, count, True, "reason", reason)
            for reason, count in logins.failures.items()
        ),
    ]
    if logins.ticket_left_s is not None:
        text = "Seconds until the Kerberos ticket of hdfs_keytab ends; none for a ticket cache"
        found.append(OwnMetric("hdfs_ticket_left_seconds", text, logins.ticket_left_s))
    return found
