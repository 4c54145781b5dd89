"""The demo's steps: start a server, produce, consume, kill it in the middle of both, and check; stop it, and let Spark
read its segments.

python -m demo [--kills N] [--records N] [--no-spark] [--picture FILE] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from demo import flights
from demo.java import JavaMissing, ensure_java
from demo.progress import Progress
from demo.report import Kill, print_carriers, print_halves, print_verdict
from demo.roundtrip import STALL_S, TICK_S, RoundTrip
from demo.server import Server, ServerFailed
from demo.stage import DemoFailed, Interrupted, delete_group, fetch, new_topic, run_to_the_end, say
from demo.work import Worker

PICTURE = Path("build/demo/flights.png")
RECORDS_A_KILL = 20_000
"""Records at least before, between and after the kills: fewer are done before the demo checks again."""
_LATE_ACKS_S = 0.1
"""Seconds after a kill in which the old server's responses arrive; no new server is up by then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    options = _parse(arguments)
    return run_to_the_end(lambda: _run(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=f"Send {flights.ROWS:,} real flights through `bmq serve` with a real Kafka client, kill the server "
        "while they are produced and while a group of two consumes them, and check that nothing is lost, doubled, "
        "changed or out of order. Then stop it, and let Spark work out delays from the segments that it left.",
        epilog="Exit status: 0 if all checks pass, 1 if one fails, 2 for bad arguments. The data set, 9 MB, "
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


def _run(options: argparse.Namespace) -> bool:
    """Play the demo and return whether all checks pass.  No server is left, and a folder only if it may show a
    fault."""
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
            print(f"demo: bmq serve ended with status {status} after SIGTERM", file=sys.stderr)
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
        ensure_java(say)
    archive = fetch()
    if server is not None:
        server.start()
        server.wait_ready()
        say(f"bmq serve is up at {server.bootstrap}, its data in a temporary folder")
    bootstrap = server.bootstrap if server is not None else options.bootstrap_server
    blows = [partial(_kill, server)] * options.kills if server is not None else []
    with new_topic(bootstrap, is_guest=server is None) as topic:
        check = server.check if server is not None else lambda: None
        trip = RoundTrip(bootstrap, topic, archive, total, check=check)
        done = trip.run(while_producing=blows, while_consuming=blows)
        if server is None:
            delete_group(bootstrap, trip.group)
    problems = done.problems
    print_carriers(done.sent, done.ledger, flights.read_airlines(archive))
    print_halves(done.sent, done.ledger, done.taken, done.first, done.second)
    print_verdict(done.sent, problems)
    if server is not None and options.spark:
        problems += _analyse(server, topic, archive, total, options.picture)
    return not problems


def _analyse(server: Server, topic: str, archive: Path, total: int, picture: Path) -> list[str]:
    """Run Spark's part on the files, with the server stopped.  Returns a text for each fault."""
    from demo import batch  # takes a second to import, and is not wanted without Spark

    status = server.stop()
    if status:
        raise DemoFailed(f"bmq serve ended with status {status} after SIGTERM")
    say("\nbmq serve is stopped; Spark reads the segments that it left")
    return batch.analyse(server.root, topic, archive, total, picture)


def _kill(server: Server, worker: Worker, progress: Progress) -> Kill:
    """Kill and start the server, and wait for its next response.  The pause is from the kill to that."""
    done = worker.done
    progress.say(f"kill -9 at {done:,} records")
    killed = time.monotonic()
    server.kill()
    server.start()
    time.sleep(_LATE_ACKS_S)
    responses = worker.responses
    server.wait_ready()
    while worker.responses == responses and worker.is_running:
        time.sleep(TICK_S / 10)
        progress.at(worker.done)
        if time.monotonic() - killed > STALL_S:
            raise DemoFailed(f"no response for {STALL_S:g} s after the kill")
    pause = time.monotonic() - killed
    progress.say(f"next response {pause:.2f} s after the kill")
    return Kill(done, pause)
