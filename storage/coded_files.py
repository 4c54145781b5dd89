"""The error of a reader that has no log-in for erasure-coded files.  Others have made them out of BMQ's."""

from __future__ import annotations


def needs_own_login(where: str, policy: str) -> str:
    """Return the text of an error: the erasure-coded file ``where`` cannot be read by a delegation token."""
    return (
        f"{where} is erasure-coded by {policy}, and this reader has a delegation token alone: such files are read"
        " through hdfs-native, by a keytab or a ticket. Replicate the file, while no process serves its topic: hdfs dfs"
        " -cp -p into a folder with hdfs ec -setPolicy -replicate, then hdfs dfs -mv back"
    )
