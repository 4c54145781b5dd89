"""Schemes mean the same however they are written, and no message has a password."""

from __future__ import annotations

import pytest

from bmq.core.urls import normal_url, scheme_of, split_url, without_passwords, without_userinfo


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("etcd://bmq:S3cret@h:1,h:2?ca=/x", "etcd://***@h:1,h:2?ca=/x"),
        ("ETCD://bmq:S3cret/S3cret@h", "ETCD://***@h"),
        ("etcd://bmq:S3cret#S3cret?S3cret@h", "etcd://***@h"),
        ("etcd://bmq:S3cret@S3cret@h", "etcd://***@h"),
        ("etcdd://bmq:S3cret@h", "etcdd://***@h"),
        ("sqlite://bmq:S3cret@h/x", "sqlite://***@h/x"),
        ("hdfs://bmq:S3cret@nn:8020/a@b", "hdfs://***@nn:8020/a@b"),
        ("hdfs://bmq:S3cret/S3cret@nn/a", "hdfs://***@nn/a"),
        ("webhdfs://bmq:S3cret@nn:9870/a", "webhdfs://***@nn:9870/a"),
        ("hdfs://nn:8020,[::1]:8020/a@b", "hdfs://nn:8020,[::1]:8020/a@b"),
        ("file:///home/a@b", "file:///home/a@b"),
        ("etcd://h:1,h:2", "etcd://h:1,h:2"),
        ("etcd:///bmq:S3cret@h:1", "etcd://***@h:1"),
        ("sqlite:////home/a@b", "sqlite:////home/a@b"),
        ("hdfs:///home/a@b", "hdfs:///home/a@b"),
        ("memory:", "memory:"),
        ("", ""),
    ],
)
def test_a_message_has_no_password(url: str, shown: str) -> None:
    assert without_userinfo(url) == shown
    assert "S3cret" not in shown
    assert without_passwords(f"cannot open {url} now") == f"cannot open {shown} now"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("etcd:/bmq:S3cret@h:1", "***@h:1"),
        ("etcd:bmq:S3cret@h:1", "***@h:1"),
        ("//bmq:S3cret@h:1", "***@h:1"),
        ("bmq:S3cret@S3cret@h", "***@h"),
        ("file:/home/a:b@c", "file:/home/a:b@c"),
        ("/home/a@b", "/home/a@b"),
        ("data/a@b", "data/a@b"),
    ],
)
def test_a_mistyped_url_has_no_password_either(text: str, shown: str) -> None:
    assert without_userinfo(text) == shown


def test_a_scheme_is_the_same_in_capitals() -> None:
    assert normal_url("ETCD://Host:1") == "etcd://Host:1"
    assert normal_url("memory:A") == "memory:A"
    assert [scheme_of(url) for url in ("ETCD://h", "file:///A", "/plain")] == ["etcd", "file", ""]


def test_what_is_not_a_url_is_refused_without_its_password() -> None:
    assert split_url("etcd://u:p@h").hostname == "h"
    for url in ("etcd://u:S3cret@[h", "etcd://u:S3cret\u2100@h"):
        with pytest.raises(ValueError, match="is not a URL") as refused:
            split_url(url)
        assert "S3cret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["hdfs", "1hdfs", "-hdfs", "a.b+c"])
def test_a_url_in_a_text_has_no_password_whatever_stands_before_it(scheme: str) -> None:
    assert without_passwords(f"cannot open ({scheme}://u:secret@h/d) now") == f"cannot open ({scheme}://***@h/d) now"


def test_a_long_name_in_a_message_is_searched_in_linear_time() -> None:
    """A search that begins anew at each letter takes an hour for a million letters."""
    text = "x" * 1_000_000
    assert without_passwords(text) == text
