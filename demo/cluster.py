"""The demo in full: a cluster over HDFS and etcd, of which a datanode and a broker are killed under load.

python -m demo.cluster [--records N] [--picture FILE] [--secure [LEVEL]]

HDFS and etcd are those that the tests start; the machine needs only their programs, which are fetched once.  Every
process ends with this one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from demo import flights
from demo.java import JavaMissing, ensure_java
from demo.pauses import Pauses
from demo.progress import Progress
from demo.report import Kill, print_carriers, print_halves, print_verdict
from demo.roundtrip import STALL_S, TICK_S, Outcome, RoundTrip
from demo.stage import DemoFailed, Interrupted, fetch, new_topic, run_to_the_end, say
from demo.work import Worker
from tests.services import kdc
from tests.services.bmq_cluster import BROKER, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_security import LEVELS, HdfsSecurity
from tests.services.hdfs_tools import open_root
from tests.services.jars import ServiceUnavailable
from tests.services.processes import NotReady, ServiceProcess

PICTURE = Path("build/demo/flights-cluster.png")
LIMIT_S = 900
"""Seconds for the whole demo, downloads excepted; a fifth of that is usual."""
RECORDS_MIN = 60_000
"""Fewer are sent before both kills are done."""
DATANODES = 4
"""One more than replicas, so that one may be killed."""
USER = f"bmq@{kdc.REALM}"
"""The user of a secure HDFS."""
SETTINGS = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "8"}
_LATE_ACKS_S = 0.5
"""Seconds in which acknowledgements from before a kill arrive."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    options = _parse(arguments)
    return run_to_the_end(lambda: _run(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.cluster",
        description="Start HDFS, etcd and a cluster of nine processes, send real flights through it with a real Kafka "
        "client while a datanode and then a broker are killed, read them in a group, and check that nothing is lost, "
        "doubled, changed or out of order. Then stop the cluster, and let Spark work out delays from its segments.",
        epilog="Exit status: 0 if all checks pass, 1 if one fails, 2 for bad arguments. HDFS, etcd and the "
        "data set, 200 MB, are downloaded once, to BMQ_CACHE_DIR or ~/.cache/bmq.",
    )
    parser.add_argument(
        "--records", type=int, default=flights.ROWS, metavar="N", help="only so many (default: all %(default)s)"
    )
    parser.add_argument(
        "--picture", type=Path, default=PICTURE, metavar="FILE", help="of the delays (default: %(default)s)"
    )
    parser.add_argument(
        "--secure",
        nargs="?",
        const="authentication",
        choices=list(LEVELS),
        metavar="LEVEL",
        help="with Kerberos and block tokens, at this level of protection: authentication (without LEVEL), integrity or"
        " privacy; it needs Debian's krb5-kdc, krb5-admin-server and krb5-user",
    )
    options = parser.parse_args(arguments)
    if not RECORDS_MIN <= options.records <= flights.ROWS:
        parser.error(f"--records is a number from {RECORDS_MIN} to {flights.ROWS}")
    return options


def _run(options: argparse.Namespace) -> bool:
    """Play the demo and return whether all checks pass.  No process is left, and a folder only if it may show a
    fault."""
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bmq-demo-"))
    is_well, is_kept = False, True
    try:
        is_well = _play(options, folder)
    except (flights.DataMissing, JavaMissing, ServiceUnavailable) as error:
        print(f"demo: {error}", file=sys.stderr)
        is_kept = False
    except (DemoFailed, NotReady, KafkaException, TimeoutError) as error:
        print(f"demo: {str(error) or 'the cluster does not answer'}", file=sys.stderr)
    except (Interrupted, BrokenPipeError) as error:
        is_kept = isinstance(error, Interrupted) and error.is_late
        raise
    finally:
        signal.alarm(0)
        if is_well or not is_kept:
            shutil.rmtree(folder)
        else:
            print(f"demo: logs and data of all processes are kept in {folder}", file=sys.stderr)
    print(f"{'all is well' if is_well else 'FAILED'}, {time.monotonic() - started:.0f} s in all")
    return is_well


def _play(options: argparse.Namespace, folder: Path) -> bool:
    ensure_java(say)
    archive = fetch()
    with _site(folder, options.secure) as (hdfs, cluster):
        with new_topic(cluster.bootstrap) as topic:
            trip = RoundTrip(
                cluster.bootstrap, topic, archive, options.records, check=partial(_require_alive, hdfs, cluster)
            )
            done = _under_fire(trip, hdfs, cluster)
        print_carriers(done.sent, done.ledger, flights.read_airlines(archive))
        print_halves(done.sent, done.ledger, done.taken, done.first, done.second)
        print(f"{'':<11}without a kill the longest pause of a partition was {trip.pauses.longest[0]:.2f} s")
        print_verdict(done.sent, done.problems)
        _stop(cluster)
        from demo import batch  # takes a second to import, and is not wanted before

        return not done.problems + batch.analyse(cluster.root, topic, archive, options.records, options.picture)


# ---------------------------------------------------------------------------------------------------------- processes


@contextlib.contextmanager
def _site(folder: Path, level: str | None) -> Iterator[tuple[HdfsCluster, BmqCluster]]:
    """Yield HDFS and the cluster, running.  However it ends, every process is killed.

    ``level``: the protection of a secure HDFS, None without Kerberos.
    """
    security = None if level is None else _security(folder, level)
    say("starting etcd and HDFS; their programs are fetched the first time")
    etcd = EtcdCluster(folder=folder / "etcd")
    hdfs = HdfsCluster(datanodes=DATANODES, folder=folder / "hdfs", security=security)
    cluster = BmqCluster(
        f"{hdfs.root}/bmq", etcd, proxies=2, brokers=3, controllers=2, coordinators=2,
        environment={**SETTINGS, "BMQ_INTERNAL_SECRET": secrets.token_hex(32)}, folder=folder / "bmq",
    )  # fmt: skip
    signal.alarm(LIMIT_S)
    started = time.monotonic()
    try:
        etcd.start()
        hdfs.start()
        what = "etcd" if security is None else "etcd, a Kerberos KDC"
        say(f"{what}, a NameNode and {DATANODES} datanodes are up after {time.monotonic() - started:.1f} s")
        if security is not None:
            _log_in(hdfs, security)
        ready = time.monotonic()
        cluster.start()
        say(
            f"{_count(cluster, 'proxy')}, {_count(cluster, BROKER)}, {_count(cluster, 'controller')} and"
            f" {_count(cluster, 'coordinator')} are up {time.monotonic() - ready:.1f} s later, at {cluster.bootstrap}"
        )
        yield hdfs, cluster
    finally:
        for process in [*_members(cluster), *hdfs.processes, *etcd.members]:
            process.kill()


def _security(folder: Path, level: str) -> HdfsSecurity:
    """Return the realm of a secure HDFS, not started.  Raises ServiceUnavailable if the machine lacks its programs."""
    if packages := kdc.missing():
        raise ServiceUnavailable(f"a secure HDFS needs a Kerberos KDC; install the Debian packages {packages}")
    return HdfsSecurity(folder / "security", rpc_protection=level, transfer=LEVELS[level])


def _log_in(hdfs: HdfsCluster, security: HdfsSecurity) -> None:
    """Make BMQ's user, and have the cluster's processes and Spark's driver log in as it, by keytab."""
    open_root(hdfs)
    keytab = security.kdc.add_service(USER)
    os.environ.update(
        KRB5_CONFIG=security.kdc.environment["KRB5_CONFIG"],
        BMQ_HDFS_KEYTAB=str(keytab),
        BMQ_HADOOP_CONF_DIR=str(hdfs.conf_folder),
    )
    say(f"HDFS asks for Kerberos, at the level {security.rpc_protection}; BMQ and Spark's driver log in as {USER}")


def _members(cluster: BmqCluster) -> list[ServiceProcess]:
    return [member.process for member in cluster.members.values()]


def _count(cluster: BmqCluster, role: str) -> str:
    number = len(cluster.names(role))
    return f"{number} {role.removesuffix('y') + 'ies' if role.endswith('y') else role + 's'}"


def _require_alive(hdfs: HdfsCluster, cluster: BmqCluster) -> None:
    """Raise NotReady unless all processes run, except those that were killed."""
    for process in [*_members(cluster), *hdfs.processes]:
        if process.pid is not None:  # None after a kill
            process.require_running()


def _stop(cluster: BmqCluster) -> None:
    """Stop the cluster as a service manager does.  Raises DemoFailed if a process does not end cleanly."""
    started = time.monotonic()
    try:
        cluster.stop_politely(*(name for name, member in cluster.members.items() if member.process.is_running))
    except (AssertionError, NotReady) as error:
        raise DemoFailed(str(error)) from error
    say(f"\nthe cluster is stopped, in {time.monotonic() - started:.1f} s; Spark reads the segments that it left")


# -------------------------------------------------------------------------------------------------------------- kills


def _under_fire(trip: RoundTrip, hdfs: HdfsCluster, cluster: BmqCluster) -> Outcome:
    """Run the round trip; kill a datanode at a third of the records, a broker at two thirds.  Neither is started
    again."""
    blows = [partial(_datanode, trip.pauses, hdfs), partial(_broker, trip.pauses, cluster)]
    done = trip.run(while_producing=blows)
    felt = trip.pauses.longest[1:]
    done.first.kills = [
        dataclasses.replace(kill, pause=pause) for kill, pause in zip(done.first.kills, felt, strict=True)
    ]
    return done


def _datanode(pauses: Pauses, hdfs: HdfsCluster, worker: Worker, progress: Progress) -> Kill:
    """Kill the datanode with the most open replicas."""
    replicas = [len([*each.data_dir.glob("current/BP-*/current/rbw/blk_*.meta")]) for each in hdfs.datanodes]
    index = replicas.index(max(replicas))
    what = f"a datanode with {replicas[index]} open replicas"
    return _struck(what, partial(hdfs.kill_datanode, index), pauses, worker, progress)


def _broker(pauses: Pauses, cluster: BmqCluster, worker: Worker, progress: Progress) -> Kill:
    """Kill the broker that owns the most partitions."""
    name = cluster.busiest(BROKER)
    owned = list(cluster.owners().values()).count(name)
    return _struck(f"a broker with {owned} partitions", partial(cluster.kill, name), pauses, worker, progress)


def _struck(what: str, kill: Callable[[], None], pauses: Pauses, worker: Worker, progress: Progress) -> Kill:
    """Kill, and wait until every partition acknowledges again.  The pause is so far the longest; it may yet grow."""
    done = worker.done
    progress.say(f"kill -9 to {what} at {done:,} records")
    pauses.open_window()
    kill()
    killed = time.monotonic()
    while worker.is_running and not pauses.all_acknowledged_since(killed + _LATE_ACKS_S):
        time.sleep(TICK_S)
        progress.at(worker.done)
        if time.monotonic() - killed > STALL_S:
            raise DemoFailed(f"a partition had no acknowledgement for {STALL_S:g} s after the kill")
    progress.say(f"all partitions acknowledge again; the longest pause was {pauses.longest[-1]:.2f} s")
    return Kill(done, pauses.longest[-1], what)


if __name__ == "__main__":
    sys.exit(main())
