"""Rules that make principals' names of certificates' subjects: the cases of Kafka's own tests, and refusals."""

from __future__ import annotations

import pytest

from bmq.core.security.mapping_rules import BadRule, MappingRules, NoRule

KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (KAFKAS, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKAS, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KAFKAS, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE"),
        (KAFKAS, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("DEFAULT", "CN=a", "CN=a"),
        (" ,DEFAULT, ", "CN=a", "CN=a"),
        ("RULE:CN=(.*)/$1/", "CN=a,O=b", "a,O=b"),
        ("RULE:CN=(a)/$1$2/", "CN=a", "a$2"),
        ("RULE:CN=(a)/$12/", "CN=a", "a2"),
        ("RULE:CN=(a)(b)?/$1$2/", "CN=a", "a"),
        ("RULE:CN=a/x$1/", "CN=a", "x$1"),
        (r"RULE:CN=(a)/\$1\/$0/", "CN=a", "$1/CN=a"),
        (r"RULE:CN=a\/(.*)/$1/U", "CN=a/b", "B"),
        (r"RULE:CN=([^,\\]*)\\,(.*)/$1-$2/", "CN=a\\,b", "a-b"),
        ("RULE:CN=(?<who>.*)/${who}@x/L", "CN=Ä", "ä@x"),
        ("RULE:CN=(a,b)/$1/,DEFAULT", "CN=a,b", "a,b"),
    ],
)
def test_names(rules: str, subject: str, name: str) -> None:
    assert MappingRules(rules).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "said"),
    [
        ("RULE:^CN=(.*?),O=x$/$1/", "CN=a", "no rule of ssl.principal.mapping.rules applies to 'CN=a'"),
        ("RULE:CN=()/$1/", "CN=", "makes an empty name"),
        ("RULE:CN/x/", "CN=a", "no rule"),
        # Java's \\w, \\d and (?i) are ASCII: the Kelvin sign is no K, a digit of another script no digit.
        ("RULE:^CN=(\\w+),O=x$/$1/L", "CN=\u212aate,O=x", "no rule"),
        ("RULE:(?i)^CN=kafka$/kafka/", "CN=\u212aafka", "no rule"),
        ("RULE:^CN=(\\d+)$/$1/", "CN=\u0661", "no rule"),
        ("RULE:^CN=(.*)$/$1/", "CN=admin\xa0", "white space at an end"),
    ],
)
def test_a_client_without_a_name_has_no_principal(rules: str, subject: str, said: str) -> None:
    with pytest.raises(NoRule, match=said):
        MappingRules(rules).name_of(subject)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "there is no rule"),
        (" , ", "there is no rule"),
        ("RULE:a/b", "is not RULE:pattern/replacement/"),
        ("RULE:a", "is not RULE:pattern/replacement/"),
        ("rule:a/b/", "begins neither with RULE: nor with DEFAULT"),
        ("RULE:a/b/X", "'X' follows a rule"),
        ("RULE:a/b/LU", "'U' follows a rule"),
        ("DEFAULTS", "'S' follows a rule"),
        ("RULE:(/b/", "the pattern of 'RULE:"),
        ("DEFAULT DEFAULT", "put a comma between"),
        ("RULE:a\\/b/", "is not RULE:pattern/replacement/"),
    ],
)
def test_rules_that_cannot_be_read(rules: str, said: str) -> None:
    with pytest.raises(BadRule) as refused:
        MappingRules(rules)
    assert said in str(refused.value)
