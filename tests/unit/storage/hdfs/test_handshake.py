"""The handshake with a datanode: its order, its bounds, and what a refusal means."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.channel import AesCtr
from bmq.storage.hdfs.data_transfer import delimited, encode_varint
from bmq.storage.hdfs.digest_md5 import DigestMd5
from bmq.storage.hdfs.handshake import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    OPEN_TRANSFER,
    Handshake,
    HandshakeFailed,
    KeyRefused,
    ProtectionDemanded,
    TokenRefused,
    TransferSecurity,
)
from bmq.storage.hdfs.security_layer import SecurityLayer

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
PROOF = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"
TOKEN = pb.Token(identifier=b"id", password=b"pw", kind="HDFS_BLOCK_TOKEN", service="")
SUCCESS, ERROR, UNKNOWN_KEY = pb.Handshake.SUCCESS, pb.Handshake.ERROR, pb.Handshake.ERROR_UNKNOWN_KEY


def said(payload: bytes) -> bytes:
    return delimited(pb.Handshake(status=SUCCESS, payload=payload))


def begun() -> Handshake:
    digest = DigestMd5("chris", "secret", "imap/elwood.innosoft.com", cnonce="OA6MHXh6VqTrRk")
    handshake = Handshake("dn:9866", digest)
    assert handshake.start() == MAGIC + said(b"")
    return handshake


def test_a_handshake_in_whatever_pieces_it_comes() -> None:
    for size in (1, 7, 1000):
        handshake = begun()
        sent = b""
        for message in (said(CHALLENGE), said(PROOF)):
            assert not handshake.is_done
            for start in range(0, len(message), size):
                sent += handshake.receive(message[start : start + size])
        assert handshake.is_done
        assert b"response=d388dad90d4bbd760a152321f2143af7" in sent


def test_a_server_without_the_password_is_not_given_the_operation() -> None:
    handshake = begun()
    handshake.receive(said(CHALLENGE))
    with pytest.raises(HandshakeFailed, match="does not know the password"):
        handshake.receive(said(b"rspauth=" + b"0" * 32))
    assert not handshake.is_done


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (pb.Handshake(status=ERROR, message="no", access_token_error=True), TokenRefused),
        (pb.Handshake(status=ERROR, message="DIGEST-MD5: IO error acquiring password"), TokenRefused),
        (pb.Handshake(status=ERROR, message="x [Caused by ...SecretManager$InvalidToken: old]"), TokenRefused),
        (pb.Handshake(status=ERROR, message="out of memory"), HandshakeFailed),
        (pb.Handshake(status=UNKNOWN_KEY, message="key"), KeyRefused),
    ],
)
def test_a_refusal(step: int, message: pb.Handshake, kind: type[Exception]) -> None:
    handshake = begun()
    if step:
        handshake.receive(said(CHALLENGE))
    with pytest.raises(kind) as caught:
        handshake.receive(delimited(message))
    assert type(caught.value) is kind


def test_a_level_that_is_not_built_is_refused_by_its_property() -> None:
    with pytest.raises(ProtectionDemanded, match=r"dn:9866 demands dfs\.data\.transfer\.protection=privacy"):
        begun().receive(said(CHALLENGE.replace(b'"auth"', b'"auth-conf"')))


KEY, COUNTER = b"k" * 16, b"c" * 16


def private(**changed: object) -> Handshake:
    """Return a handshake with privacy that has taken the datanode's proof and cipher option, with these changes."""
    digest = DigestMd5("chris", "secret", "hdfs/0", levels=("auth-conf", "auth"), cnonce="c")
    handshake = Handshake("dn:9866", digest)
    handshake.start()
    challenge = CHALLENGE.replace(b'"auth"', b'"auth,auth-conf",cipher="3des,rc4"')
    message = pb.Handshake.FromString(handshake.receive(said(challenge))[2:])
    assert [option.suite for option in message.cipher_option] == [2], "AES is offered wherever privacy is negotiated"
    server = SecurityLayer(digest._session_key, "3des", is_server=True)
    fields = {"suite": 2, "in_key": server.wrap(KEY), "in_iv": COUNTER, "out_key": server.wrap(KEY), "out_iv": COUNTER}
    option = pb.CipherOption(**{**fields, **changed})  # type: ignore[arg-type]
    proof = b"rspauth=" + digest._proof.encode()
    handshake.receive(delimited(pb.Handshake(status=SUCCESS, payload=proof, cipher_option=[option])))
    return handshake


def test_a_datanode_with_aes_sends_its_keys_through_the_layer() -> None:
    assert isinstance(private().channel, AesCtr)


@pytest.mark.parametrize(
    "changed",
    [
        {"suite": 3},
        {"in_iv": b"short"},
        {"out_iv": b""},
        {"in_key": KEY},
        {"in_key": b""},
        {"out_key": b"x" * 38},
    ],
)
def test_keys_that_are_changed_or_malformed_end_the_handshake(changed: dict[str, object]) -> None:
    with pytest.raises(HandshakeFailed, match="broke off the rules of a handshake: "):
        private(**changed)


@pytest.mark.parametrize(
    "data",
    [
        said(CHALLENGE) + b"x",
        encode_varint(MESSAGE_BYTES_MAX + 1),
        b"\xff" * 10,
        b"\x00",
        b"\x02\xff\xff",
        delimited(pb.BlockOpResponse(status=0))[:1] + b"\x18\x00",
        said(b""),
        said(b"x" * 3000),
    ],
)
def test_bytes_that_are_no_handshake_end_it(data: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        begun().receive(data)


@pytest.mark.slow
@given(st.lists(st.binary(max_size=50), max_size=400))
def test_any_bytes_are_bounded(pieces: list[bytes]) -> None:
    handshake = begun()
    try:
        for piece in pieces:
            handshake.receive(piece)
            assert len(handshake._buffer) <= MESSAGE_BYTES_MAX + 10
    except HandshakeFailed:
        assert not handshake.is_done


def test_which_connections_begin_with_a_handshake() -> None:
    secure = TransferSecurity(("auth",))
    assert secure.handshake("dn", 9866, TOKEN) is not None
    assert secure.handshake("dn", 1004, TOKEN) is None, "only root may listen there"
    empty = pb.Token(identifier=b"", password=b"", kind="", service="")
    assert secure.handshake("dn", 9866, empty) is None, "a NameNode without security"
    assert OPEN_TRANSFER.handshake("dn", 9866, TOKEN) is None


def test_a_token_is_never_told() -> None:
    handshake = TransferSecurity(("auth",)).handshake("dn", 9866, TOKEN)
    assert base64.b64encode(b"pw").decode() not in repr(handshake)
