"""Numbers of a process's log-ins to secure storage for ``/metrics``."""

from __future__ import annotations

from bmq.console.state import OwnMetric
from bmq.storage.logins import StorageLogins


def login_metrics(logins: StorageLogins) -> list[OwnMetric]:
    """Return the numbers; none for a process without Kerberos and delegation token, as on an open HDFS."""
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
    if logins.token_left_s is not None:
        text = "Seconds until the delegation token of HADOOP_TOKEN_FILE_LOCATION ends, and no renewal helps"
        found.append(OwnMetric("hdfs_token_left_seconds", text, logins.token_left_s))
    return found
