"""The numbers on which the HDFS client depends, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.aio.backoff import Backoff
from bmq.storage.hdfs.umask import DEFAULT_UMASK


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSettings:
    """The settings of this process's client of one HDFS."""

    user: str = ""
    """The user of simple authentication; empty: HADOOP_USER_NAME, else the operating system's."""

    use_datanode_hostname: bool = False
    """True to reach datanodes by host name, not by address: for clusters behind address translation."""

    umask: int = DEFAULT_UMASK
    """Rights that new files and folders lack, where no mode is asked for: fs.permissions.umask-mode of the site."""

    # ---- NameNode and datanode calls

    connect_timeout_s: float = 2.0
    """Bound of one connection attempt.  A TCP connection inside one network takes microseconds; two lost SYNs take 3 s
    and are not worth waiting for."""

    login_timeout_s: float = 10.0
    """Bound of one log-in by Kerberos.  It takes 10 ms; the library tries the KDCs in turn, for seconds."""

    call_timeout_s: float = 5.0
    """Bound of one attempt of a NameNode call, and with several NameNodes of each response in a log-in.  A NameNode
    under a long garbage collection responds within seconds."""

    call_deadline_s: float = 15.0
    """Bound of all attempts of one call together.  A failover to a standby took 1.8 s; safe mode after a restart takes
    41 s and is reported as StorageUnavailable, since the caller is better placed to wait."""

    report_timeout_s: float = 10.0
    """Bound of the wait for a datanode's first report of an open block, after the NameNode started or became active.
    Datanodes send heartbeats every 3 s; Hadoop's dfs.client.retry.times.get-last-block-length allows 12 s."""

    backoff_s: Backoff[float] = Backoff(0.05, 1.0)
    """Pause between attempts, half of it random so that a thousand clients do not come back at once."""

    lease_renewal_s: float = 20.0
    """Interval of lease renewals.  The soft limit is 60 s: two renewals may be lost."""

    length_report_s: float = 30.0
    """Interval in which the NameNode is sent the length of an open file: an HDFS snapshot holds as much of it.  A
    segment that is written has its file's entry read every 5 s, which is six times as many calls."""

    # ---- write path

    packet_bytes: int = 1 << 20
    """Most data in a packet.  64 KB, 256 KB and 1 MB packets were measured, see docs/design/hdfs-client.md.  Datanodes
    refuse more than 16 MB."""

    window_bytes: int = 16 << 20
    """Bytes sent and not acknowledged, per pipeline; further bytes stay in the caller's buffers."""

    window_packets: int = 80
    """Packets sent and not acknowledged, per pipeline: Hadoop's dfs.client.write.max-packets-in-flight.  When it is
    full, waiting flushes share the next packet."""

    setup_timeout_s: float = 5.0
    """Bound of a pipeline's set-up.  It takes 5 ms; a datanode that must first warm up takes a second."""

    ack_timeout_s: float = 5.0
    """A pipeline is given up if a packet is not acknowledged for so long.  Longer than a datanode's usual garbage
    collection or a busy disk's queue, shorter than a producer's patience."""

    probe_timeout_s: float = 0.5
    """Bound of a probe of a datanode, which takes a millisecond.  Datanodes are probed when a set-up has taken this
    long too, or an acknowledgement half of its time-out."""

    silent_s: float = 2.0
    """A datanode that did not respond to a probe is not probed again for so long: otherwise every later set-up would
    wait ``probe_timeout_s`` for it."""

    heartbeat_s: float = 20.0
    """Interval in which a pipeline is checked for a heartbeat.  Datanodes drop a pipeline that is silent for
    dfs.client.socket-timeout, 60 s.  A check may be skipped, so the longest silence is twice this."""

    block_attempts: int = 4
    """Blocks requested and abandoned while a file is being created, before giving up."""

    opens_max: int = 16
    """Pipelines being opened at once: 200 at once took 5.5 s and starved the flushes beside them."""

    suspect_s: float = 30.0
    """A datanode that failed is avoided by new files for so long: the NameNode chooses a dead one for minutes (10.5 by
    default).  It is short, since a wrong suspicion wastes capacity."""

    full_node_s: float = 30.0
    """A live datanode that has refused every block for so long is not waited for: files with fewer copies are opened
    without it.  Longer than brokers take to close files for one another (docs/design/places.md), about 20 s."""

    complete_timeout_s: float = 10.0
    """Bound of ``complete``, which returns false until one datanode has reported the block, normally for 3 ms."""

    # ---- take-over

    takeover_node_timeout_s: float = 0.5
    """Wait for the datanodes that are to stop a file's writer and send its length, or to close it.  It takes 5 ms; a
    stopped datanode must not delay the take-over of a file of which others have two copies."""

    takeover_copies_timeout_s: float = 2.0
    """The same wait while fewer than two have responded.  A busy machine takes half a second for 5 ms of work, and
    acknowledged bytes would be on one disk until HDFS has copied them."""

    takeover_rounds: int = 4
    """Rounds tried before lease recovery: a failed round means that another process acted on the file meanwhile."""

    recovery_interval_s: float = 1.0
    """Interval of recoverLease calls.  A single call may never finish, if the datanode that it chose is dead."""

    fence_timeout_s: float = 120.0
    """Bound of a whole fence.  recoverLease with a dead datanode took up to 94 s."""

    # ---- reads

    read_timeout_s: float = 5.0
    """Bound of one step of a read from one datanode; then the next replica is tried."""

    readers_max: int = 512
    """Closed files whose block locations are kept."""

    reader_ttl_s: float = 30.0
    """Time for which they are trusted: blocks move, and a path may be replaced."""

    reader_file_min_bytes: int = 1 << 20
    """The locations of smaller files are requested for each read: small files are metadata, and may be replaced."""

    thread_read_min_bytes: int = 256 << 10
    """Reads of so many bytes of a block are done by a thread, smaller reads by the event loop. Passing a read to a
    thread costs 0.1 ms, and the loop must not check megabytes of checksums."""

    read_threads_max: int = 16
    """Threads for such reads; further reads wait for a thread."""

    datanode_connections_max: int = 64
    """Idle IPC connections to datanodes that are kept."""

    def validate(self) -> None:
        """Check the relations between the numbers.  Raises ValueError that names the wrong one."""
        if not 0 < self.packet_bytes <= 15 << 20:
            raise ValueError("packet_bytes must be between 1 and 15 MB (datanodes refuse packets above 16 MB)")
        if self.window_bytes < self.packet_bytes:
            raise ValueError("window_bytes must hold at least one packet")
        if self.call_deadline_s < self.call_timeout_s:
            raise ValueError("call_deadline_s must allow one attempt of call_timeout_s")
        if self.takeover_copies_timeout_s < self.takeover_node_timeout_s:
            raise ValueError("takeover_copies_timeout_s must not be below takeover_node_timeout_s")
        if self.lease_renewal_s > 30:
            raise ValueError("lease_renewal_s must be at most half of HDFS's soft limit of 60 s")
        if self.length_report_s <= 0:
            raise ValueError("length_report_s must be above 0")
        if self.heartbeat_s > 30:
            raise ValueError("heartbeat_s must be at most half of the datanodes' time-out of 60 s")
