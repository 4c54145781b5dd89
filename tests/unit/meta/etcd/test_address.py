"""``etcd://`` URLs, and what is wrong with those that are none."""

from __future__ import annotations

import pytest

from bmq.meta.etcd.address import EtcdAddress, parse_etcd_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("etcd://a", EtcdAddress(("a:2379",))),
        ("etcd://a:1,b,c:3/", EtcdAddress(("a:1", "b:2379", "c:3"))),
        ("etcd://[::1]:1,[::2]", EtcdAddress(("[::1]:1", "[::2]:2379"))),
        ("etcd://u:p@a:1,b:2", EtcdAddress(("a:1", "b:2"), "u", "p")),
        ("etcd://u%3A:p%40%2F%3A@a", EtcdAddress(("a:2379",), "u:", "p@/:")),
        ("etcd://a?ca=/x/ca.pem", EtcdAddress(("a:2379",), ca="/x/ca.pem")),
        ("etcd://a?ca=/c&cert=/d&key=/a%20b", EtcdAddress(("a:2379",), ca="/c", cert="/d", key="/a b")),
    ],
)
def test_a_url_says_where_and_who(url: str, address: EtcdAddress) -> None:
    parsed = parse_etcd_url(url)
    assert parsed == address
    assert parsed.is_tls == ("?" in url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("etcd://", "not host:port"),
        ("etcd:a:1", "takes no path"),
        ("etcd://a,,b", "not host:port"),
        ("etcd://a:port", "not host:port"),
        ("etcd://a:99999", "not host:port"),
        ("etcd://a/prefix", "takes no path"),
        ("etcd://a#x", "takes no path"),
        ("etcd://user@a", "user and password, or neither"),
        ("etcd://:secret@a", "belongs to a user"),
        ("etcd://a?timeout=3", "none of ca=/file"),
        ("etcd://a?ca=", "none of ca=/file"),
        ("etcd://a?cert=/c", "come together"),
        ("etcd://user:secret?x@a", "%2F %3F %23"),
        ("etcd://user:secret#x@a", "%2F %3F %23"),
        ("etcd://user:secret/x@a", "%2F %3F %23"),
        ("etcd://user:secret\u2100@a", "is not a URL"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        parse_etcd_url(url)
    assert "secret" not in str(refused.value)


def test_logs_do_not_show_passwords() -> None:
    assert "secret" not in repr(parse_etcd_url("etcd://u:secret@a"))


def test_the_password_may_come_from_elsewhere() -> None:
    address = EtcdAddress(("a:2379",), "u%", "p/?@")
    assert parse_etcd_url("etcd://u%25@a", password="p/?@") == address
    assert parse_etcd_url("etcd://a", "u%", "p/?@") == address
    assert parse_etcd_url("etcd://u%25@a", "u%", "p/?@") == address
    assert parse_etcd_url("etcd://u%25:p%2F%3F%40@a", "u%") == address
    for url, user, password, message in (
        ("etcd://u:p@a", "", "secret", "a password and meta_password another"),
        ("etcd://u@a", "v", "secret", "a user and meta_user another"),
        ("etcd://a", "", "secret", "belongs to a user"),
        ("etcd://a", "u", "", "user and password, or neither"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            parse_etcd_url(url, user, password)
        assert "secret" not in str(refused.value)
