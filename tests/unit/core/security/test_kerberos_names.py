"""Names of Kerberos principals: Kafka's and Hadoop's rules, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.security.kerberos_names import KerberosNameError, ShortNamer

APP = ("RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g", "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT")
LOWER = (
    "RULE:[1:$1]/L", "RULE:[2:$1](Test.*)s/ABC///L", "RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L",
    "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g/L", "RULE:[2:$1]/L", "DEFAULT",
)  # fmt: skip
UPPER = tuple(rule.replace("/L", "/U") for rule in LOWER)
HADOOP = ("RULE:[1:$1@$0](.*@FOO\\.COM)s/@.*//", "RULE:[2:$1/$2@$0](nn/.*@.*FOO\\.COM)s/.*/hdfs/", "DEFAULT")


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        (("DEFAULT",), "alice@REALM.COM", "alice"),
        (("DEFAULT",), "kafka/host.example.com@REALM.COM", "kafka"),
        # KerberosNameTest of Kafka.
        (APP, "App.service-name/example.com@REALM.COM", "service-name"),
        (APP, "App.service-name@REALM.COM", "service-name"),
        (APP, "user/host@REALM.COM", "user"),
        (LOWER, "User@REALM.COM", "user"),
        (LOWER, "TestABC/host@FOO.COM", "test"),
        (LOWER, "ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        (LOWER, "App.SERVICE-name/example.com@REALM.COM", "service-name"),
        (LOWER, "User/root@REALM.COM", "user"),
        (UPPER, "User@REALM.COM", "USER"),
        (UPPER, "TestABC/host@FOO.COM", "TEST"),
        (UPPER, "ABC_User_ABC/host@FOO.COM", "XYZ_USER_XYZ"),
        (UPPER, "App.service-name/example.com@REALM.COM", "SERVICE-NAME"),
        (UPPER, "User/root@REALM.COM", "USER"),
        # Hadoop's documentation of auth_to_local.
        (HADOOP, "alice@FOO.COM", "alice"),
        (HADOOP, "nn/host@EAST.FOO.COM", "hdfs"),
        (HADOOP, "dn/host@REALM.COM", "dn"),
        # Texts of replacements, as Java has them.
        (("RULE:[1:$1]s/(a)(l)/$2$1/",), "alal@R", "laal"),
        (("RULE:[1:$1]s/(a)/$10/",), "ab@R", "a0b"),
        (("RULE:[1:$1]s/a/\\$1/",), "ab@R", "$1b"),
        (("RULE:[1:$1]s/^$|x/_/g",), "axbx@R", "a_b_"),
        (("RULE:[1:$0.$1]",), "alice@R", "R.alice"),
        (("RULE:[1:constant]",), "alice@R", "constant"),
    ],
)
def test_the_first_rule_that_applies_gives_the_name(rules: tuple[str, ...], principal: str, name: str) -> None:
    assert ShortNamer(rules, "REALM.COM").short_name(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal", "why"),
    [
        (("DEFAULT",), "alice@OTHER", "no rule applies"),
        (("DEFAULT",), "alice@realm.com", "no rule applies"),
        (("RULE:[2:$1]",), "alice@REALM.COM", "no rule applies"),
        (("RULE:[1:$1](bob)",), "alicebob@REALM.COM", "no rule applies"),
        (("RULE:[1:$1@$0]",), "alice@REALM.COM", "not a name"),
        (("RULE:[2:$1/$2]",), "alice/a@REALM.COM", "not a name"),
        (("RULE:[1:$1]s/.*//g",), "alice@REALM.COM", "not a name"),
        (("DEFAULT",), "alice", "is not name@REALM"),
        (("DEFAULT",), "@REALM.COM", "is not name@REALM"),
        (("DEFAULT",), "alice@", "is not name@REALM"),
        (("DEFAULT",), "a/b/c@REALM.COM", "is not name@REALM"),
        (("DEFAULT",), "alice\\@REALM.COM@OTHER", "is not name@REALM"),
        (("DEFAULT",), "admin\\/x@REALM.COM", "is not name@REALM"),
        (("DEFAULT",), "alice@REALM.COM@OTHER", "is not name@REALM"),
        (("DEFAULT",), "alice@REALM.COM\n", "no rule applies"),
        ((), "alice@REALM.COM", "no rule applies"),
    ],
)
def test_other_principals_have_no_name(rules: tuple[str, ...], principal: str, why: str) -> None:
    with pytest.raises(KerberosNameError, match=why):
        ShortNamer(rules, "REALM.COM").short_name(principal)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        *((rule, "is not DEFAULT or RULE") for rule in (
            "DEFAULT/L", "DEFAULT/g", "default", "", "RULE:[1:$1/L", "RULE:[1:$1]/l", "RULE:[:$1]", "RULE:[1]",
            "RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g", "RULE:[1:$1]s/a/b", "RULE:[1:$1] ", "RULE:[1:$1]\n", "RULE:[1:$1](a)(b)",
        )),
        ("RULE:[0:x]", "one component or two, not 0"),
        ("RULE:[3:$1]", "one component or two, not 3"),
        ("RULE:[1:$2]", "is none of"),
        ("RULE:[1:$]", "is none of"),
        ("RULE:[1:$99999999999999999999]", "is none of"),
        ("RULE:[1:$1](*)", "nothing to repeat"),
        ("RULE:[1:$1]s/[/x/", "unterminated"),
        ("RULE:[1:$1]s/a/$1/", "has \\$1"),
        ("RULE:[1:$1]s/a/$/", "neither a group"),
        ("RULE:[1:$1]s/a/\\/", "neither a group"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused(rule: str, why: str) -> None:
    with pytest.raises(KerberosNameError, match=why):
        ShortNamer(["DEFAULT", rule], "REALM.COM")


def test_patterns_are_ascii_as_in_java() -> None:
    namer = ShortNamer((r"RULE:[1:$1](\w+ate)/L",), "REALM.COM")
    assert namer.short_name("Kate@REALM.COM") == "kate"
    with pytest.raises(KerberosNameError, match="no rule"):
        namer.short_name("\u212aate@REALM.COM")


def test_a_name_with_white_space_at_an_end_is_refused() -> None:
    with pytest.raises(KerberosNameError, match="not a name"):
        ShortNamer(("DEFAULT",), "REALM.COM").short_name("admin\xa0@REALM.COM")


@pytest.mark.slow
@given(st.text(st.sampled_from("ab/@\\$. \nR"), max_size=12))
def test_any_text_has_a_simple_name_or_none(principal: str) -> None:
    namer = ShortNamer(["RULE:[2:$1-$2](a.*)s/b/$0/g", "RULE:[1:$1@$0](.*@R)s/@R//", "DEFAULT"], "R")
    try:
        name = namer.short_name(principal)
    except KerberosNameError:
        return
    assert name
    assert not set(name) & set("/@")


@pytest.mark.slow
@given(st.text(st.sampled_from("RULEDFAT:[]()12$s/gl.*+?|\\ab"), max_size=20).map(lambda end: "RULE:[1:" + end))
def test_any_rule_is_parsed_or_refused(rule: str) -> None:
    try:
        ShortNamer([rule], "R")
    except KerberosNameError:
        return
