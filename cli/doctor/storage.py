"""Findings of ``bmq cluster doctor`` about storage: from its own report of its health to faults.  No I/O.

| subject | found when |
|---|---|
| NameNodes | one does not answer; none is active; several are |
| safe mode | it is on |
| root | it is in an encryption zone |
| room | under a tenth is left |
| quota | over nine tenths of the root's files and folders, or bytes, are used |
| blocks | some have no copy left |
"""

from __future__ import annotations

from collections.abc import Sequence

from bmq.cli.doctor.checks import Diagnosis
from bmq.cli.output import format_size
from bmq.storage.health import NameNodeState, StorageHealth

ROOM_LEAST = 0.1
QUOTA_MOST = 0.9


def check_namenodes(states: Sequence[NameNodeState]) -> list[Diagnosis]:
    """Return the faults of the root's NameNodes."""
    findings = []
    for each in states:
        if each.error:
            remedy = "start it, or take it out of the root's URL or hdfs-site.xml; until then no NameNode can take over"
            findings.append(Diagnosis("storage", each.address, f"the NameNode does not answer: {each.error}", remedy))
    known = [each for each in states if each.state]
    active = [each.address for each in known if each.state == "active"]
    if known and not active and len(known) == len(states):
        listed = ", ".join(f"{each.address} {each.state}" for each in known)
        remedy = "check the ZKFCs and JournalNodes; hdfs haadmin -getAllServiceState shows what Hadoop sees"
        findings.append(Diagnosis("storage", "NameNodes", f"none is active: {listed}", remedy))
    if len(active) > 1:
        remedy = "stop one at once: check fencing (dfs.ha.fencing.methods), and that the URL names one name service"
        findings.append(Diagnosis("storage", "NameNodes", f"several are active: {', '.join(active)}", remedy))
    return findings


def check_storage(url: str, health: StorageHealth) -> list[Diagnosis]:
    """Return the faults in storage's report of its health."""
    findings = []
    if health.is_in_safe_mode:
        what = "the NameNode is in safe mode: nothing can be created, moved or deleted"
        remedy = "it ends once enough blocks are reported; one that an operator began by hdfs dfsadmin -safemode leave"
        findings.append(Diagnosis("storage", url, what, remedy))
    if health.root_refusal:
        remedy = "servers end at their start until the root is another one: docs/operations/hdfs.md"
        findings.append(Diagnosis("storage", url, health.root_refusal, remedy))
    if health.capacity_bytes and health.remaining_bytes < ROOM_LEAST * health.capacity_bytes:
        what = f"{format_size(health.remaining_bytes)} of {format_size(health.capacity_bytes)} are left"
        remedy = "add datanodes or disks, delete topics, or shorten their retention"
        findings.append(Diagnosis("storage", url, what, remedy))
    if 0 <= health.root_bytes_quota <= health.root_bytes / QUOTA_MOST:
        used, quota = format_size(health.root_bytes), format_size(health.root_bytes_quota)
        remedy = "raise it (hdfs dfsadmin -setSpaceQuota), delete topics, or shorten their retention"
        findings.append(
            Diagnosis("storage", url, f"{used} of the quota of {quota} are used, all copies counted", remedy)
        )
    if 0 <= health.root_names_quota <= health.root_names / QUOTA_MOST:
        what = f"{health.root_names} of {health.root_names_quota} files and folders of the quota are used"
        remedy = "raise it (hdfs dfsadmin -setQuota), or have fewer partitions and larger segments (segment.bytes)"
        findings.append(Diagnosis("storage", url, what, remedy))
    if health.missing_blocks:
        what = f"{health.missing_blocks} blocks of this HDFS have no copy left"
        remedy = "bring their datanodes back; hdfs fsck / -list-corruptfileblocks names the files"
        findings.append(Diagnosis("storage", url, what, remedy))
    return findings
