"""Tests of JAAS texts: their form, as Kafka reads it, and errors that show no secret."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.security.jaas import JaasError, LoginModule, parse_jaas, parse_single_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required user_alice="a b" user_bob=\'c"d\' ;', {"user_alice": "a b", "user_bob": 'c"d'}),
        (f"{PLAIN} Required\n  serviceName=kafka // who\n /* more\n */ useKeyTab=true;\n",
         {"serviceName": "kafka", "useKeyTab": "true"}),
        (f'{PLAIN} required a="x;y=z//" ;', {"a": "x;y=z//"}),
        (f'{PLAIN} required a="\\"\\\\\\t\\101";', {"a": '"\\\tA'}),
        (f'{PLAIN} required a="";', {"a": ""}),
        (f"{PLAIN} required refresh_file=/etc/x.keytab;", {"refresh_file": "/etc/x.keytab"}),
        (f'{PLAIN} required user_admin\xa0="p";', {"user_admin\xa0": "p"}),
        (f"{PLAIN} required\x1fa=1\0b=2\x1c;", {"a": "1", "b": "2"}),
        (f"{PLAIN} required // who\ra=1;", {"a": "1"}),
        (f"{PLAIN} required a=\u2003b\u3000;", {"a": "\u2003b\u3000"}),
    ],
)  # fmt: skip
def test_options_are_read_as_kafka_reads_them(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == (LoginModule(PLAIN, "required", options),)


def test_several_modules_follow_each_other() -> None:
    modules = parse_jaas("a.B required x=1;\n c.D optional;")
    assert [(each.name, each.flag, dict(each.options)) for each in modules] == [
        ("a.B", "required", {"x": "1"}),
        ("c.D", "optional", {}),
    ]
    with pytest.raises(JaasError, match="one login module is expected, not 2"):
        parse_single_jaas("a.B required; c.D optional;", "a.B")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("// nothing", "empty"),
        ("a.B", "expected one of required"),
        ("a.B sometimes;", "expected one of required"),
        ('a.B "required";', "expected one of required"),
        ("required;", "expected one of required"),
        ("= required;", "class of a login module at character 1"),
        ("a.B required", "semicolon at the end"),
        ('a.B required password="hunter2"', "semicolon at the end"),
        ('a.B required password"hunter2";', 'expected name="value" or a semicolon at character 14'),
        ("a.B required password=;", "character 14"),
        ("a.B required =hunter2;", "character 14"),
        ('a.B required password="hunter2;', "quoted text without its end at character 23"),
        ('a.B required x="hunter2" x="hunter2";', "twice, again at character 26"),
        ('a.B required x\x85="hunter2";', "unexpected character at character 15"),
        ('a.B required x="hunter2"; #', "unexpected character at character 27"),
        ("a.B required " + "x" * (1 << 20), "more than"),
    ],
)
def test_an_error_says_where_and_shows_no_secret(text: str, why: str) -> None:
    with pytest.raises(JaasError, match=why) as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


def test_the_module_is_of_the_mechanism() -> None:
    assert parse_single_jaas(f"{PLAIN} required;", PLAIN).name == PLAIN
    with pytest.raises(JaasError, match=r"is 'a.B', expected .*PlainLoginModule"):
        parse_single_jaas('a.B required password="hunter2";', PLAIN)


def test_options_are_in_no_repr() -> None:
    assert "hunter2" not in repr(parse_jaas('a.B required password="hunter2";'))


@pytest.mark.slow
@given(st.text(alphabet=" ab\"'\\=;/*\n#0", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(JaasError):
        assert parse_jaas(text)


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=5))
def test_quoted_values_come_back_whole(options: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    text = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    assert parse_jaas(f"a.B required {text};")[0].options == options
