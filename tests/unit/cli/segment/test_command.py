"""``bmq segment``: what it refuses, in one line, and which roots it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.cli.main import main
from tests.unit.cli.segment.roots import THREE, Root

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dump"], "name either files"),
        (["dump", "/x.log", "--topic", "orders"], "name either files"),
        (["dump", "/x.log", "--partition", "1"], "belong to --topic"),
        (["dump", "/x.txt"], "/x.txt is neither a segment"),
        (["dump", "/journals/x.jnl"], "x.jnl"),
        (["dump", "/topics/00000000000000000000-00000001-0000.log"], "00000000000000000000-00000001-0000.log"),
        (["dump", "--topic", "nobody"], "no such topic"),
        (["dump", "--topic", "no/topic"], "is not a topic name"),
        (["dump", "--topic", "orders", "--partition", "4"], "has no partition 4; there is 0"),
        (["dump", "--topic", "orders", "--topic-id", "x"], "orders has no id x"),
        (["cat", "/journals/j-00000001.jnl"], "cat prints the records of .log files"),
        (["dump", "../outside.jnl"], "'..'"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(root: Root, arguments: list[str], message: str) -> None:
    root.journal(name="j-00000001.jnl")
    status, out, err = root.run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("bmq: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_root_that_is_missing_or_wrong_is_refused_without_its_password(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BMQ_ROOT", raising=False)
    assert main(["segment", "verify", "--topic", "orders"]) == 2
    assert "no root is given" in capsys.readouterr().err
    assert main(["segment", "verify", "--topic", "orders", "--root", f"{tmp_path.as_uri()}/typo"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()
    assert main(["segment", "verify", "--topic", "orders", "--root", "s3://bucket"]) == 2
    assert "use one of" in capsys.readouterr().err
    for url in ("file://[::1", "hdfs://u:secret@[::1/x", "webhdfs://u:secret@h:99999/x", "hdfs://h:x/y"):
        assert main(["segment", "verify", "--topic", "orders", "--root", url]) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("bmq: --root: ")
        assert "secret" not in printed
    root.log(0, *THREE)
    monkeypatch.setenv("BMQ_ROOT", tmp_path.as_uri())
    assert main(["segment", "verify", "--topic", "orders"]) == 0


def test_on_hdfs_the_log_in_is_that_of_the_servers_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["segment", "verify", "--topic", "orders", "--root", "hdfs://127.0.0.1:9/a"]
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("BMQ_HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("BMQ_HDFS_KEYTAB", "/no/such.keytab")
    assert main(arguments) == 2
    assert "hdfs_keytab is set, but hadoop.security.authentication is not kerberos" in capsys.readouterr().err
    monkeypatch.delenv("BMQ_HDFS_KEYTAB")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", "/no/such.token")
    assert main(arguments) == 2
    assert "/no/such.token, of HADOOP_TOKEN_FILE_LOCATION, does not exist" in capsys.readouterr().err
    monkeypatch.setenv("BMQ_NUM_PARTITIONS", "many")
    assert main(arguments) == 2
    assert "BMQ_NUM_PARTITIONS" in capsys.readouterr().err
