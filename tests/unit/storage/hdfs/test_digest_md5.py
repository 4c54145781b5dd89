"""DIGEST-MD5: the examples of RFC 2831, section 4, and what a server may not say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.digest_md5 import CHALLENGE_BYTES_MAX, DigestFailed, DigestMd5, LevelDemanded, parse

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
PROOF = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def imap(password: str = "secret") -> DigestMd5:
    return DigestMd5("chris", password, "imap/elwood.innosoft.com", cnonce="OA6MHXh6VqTrRk")


def test_the_rfcs_example_of_imap() -> None:
    digest = imap()
    assert digest.evaluate(CHALLENGE) == (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    assert not digest.is_complete, "the server has proven nothing yet"
    assert digest.evaluate(PROOF) is None
    assert digest.is_complete


def test_the_rfcs_example_of_acap() -> None:
    digest = DigestMd5("chris", "secret", "acap/elwood.innosoft.com", cnonce="OA9BSuZWMSpW8m")
    response = digest.evaluate(
        b'realm="elwood.innosoft.com",nonce="OA9BSXrbuRhWay",qop="auth",algorithm=md5-sess,charset=utf-8'
    )
    assert response is not None
    assert b"response=6084c6db3fede7352c551284490fd0fc" in response
    assert digest.evaluate(b"rspauth=2f0b3d7c3c2e486600ef710726aa2eae") is None


def test_a_tokens_bytes_are_user_and_password_in_base64() -> None:
    token = pb.Token(identifier=b"\x00\xff", password=b"\x01", kind="HDFS_BLOCK_TOKEN", service="")
    response = DigestMd5.by_token(token, "hdfs/0").evaluate(CHALLENGE)
    assert response is not None
    assert b'username="AP8="' in response
    assert response != DigestMd5.by_token(token, "hdfs/0").evaluate(CHALLENGE), "each has a nonce of its own"


@pytest.mark.parametrize(
    "proof",
    [
        b"rspauth=00000000000000000000000000000000",
        b"rspauth=",
        b"",
        b'rspauth="\xff"',
        b"rspauth=ea40f60335c427b5527b84dbabcdfffd,rspauth=ea40f60335c427b5527b84dbabcdfffd",
        CHALLENGE,
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(proof: bytes) -> None:
    digest = imap()
    digest.evaluate(CHALLENGE)
    with pytest.raises(DigestFailed):
        digest.evaluate(proof)
    assert not digest.is_complete


def test_a_proof_for_another_password_is_refused() -> None:
    digest = imap("other")
    digest.evaluate(CHALLENGE)
    with pytest.raises(DigestFailed, match="does not know the password"):
        digest.evaluate(PROOF)


@pytest.mark.parametrize(
    ("challenge", "said"),
    [
        (b"", "without a nonce"),
        (CHALLENGE.replace(b"md5-sess", b"md5"), "md5-sess"),
        (CHALLENGE.replace(b'nonce="OA6MG9tEQGm2hh",', b""), "without a nonce"),
        (CHALLENGE + b',nonce="again"', "two of nonce"),
        (CHALLENGE.replace(b"OA6MG9tEQGm2hh", "\u20ac".encode()).replace(b",charset=utf-8", b""), "a nonce with other"),
        (CHALLENGE.replace(b"OA6MG9tEQGm2hh", b"\xe4"), "a nonce with other"),
        (CHALLENGE + b',realm="open', "malformed"),
        (b"\xff\xfe", "malformed"),
        (b'realm="' + b"r" * CHALLENGE_BYTES_MAX + b'"', "bytes"),
    ],
)
def test_a_malformed_challenge_is_refused(challenge: bytes, said: str) -> None:
    with pytest.raises(DigestFailed, match=said):
        imap().evaluate(challenge)


def test_a_level_with_a_layer_is_refused_by_hadoops_name_of_it() -> None:
    with pytest.raises(LevelDemanded) as caught:
        imap().evaluate(CHALLENGE.replace(b'qop="auth"', b'qop="auth-int,auth-conf"'))
    assert caught.value.levels == "integrity, privacy"
    assert imap().evaluate(CHALLENGE.replace(b'qop="auth"', b'qop="auth-conf, auth"'))


def test_quotes_and_commas_are_of_the_text() -> None:
    assert parse(rb' a="x\"y,z\\" ,, B=c , ') == {"a": ['x"y,z\\'], "b": ["c"]}
    assert parse(b'realm="a",realm="b"') == {"realm": ["a", "b"]}


def test_nothing_follows_the_end() -> None:
    digest = imap()
    digest.evaluate(CHALLENGE)
    digest.evaluate(PROOF)
    with pytest.raises(DigestFailed, match="after the end"):
        digest.evaluate(PROOF)


@given(st.one_of(st.binary(max_size=300), st.text(alphabet='a="\\, nonce', max_size=300).map(str.encode)))
def test_any_bytes_are_answered_or_refused(challenge: bytes) -> None:
    digest = imap()
    try:
        digest.evaluate(challenge)
    except DigestFailed:
        assert not digest.is_complete
