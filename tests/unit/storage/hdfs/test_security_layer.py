"""The security layers of DIGEST-MD5, against exchanges that the JDK's own server has had with this client."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs.digest_md5 import CipherDemanded, DigestFailed, DigestMd5, LevelDemanded
from bmq.storage.hdfs.security_layer import LayerBroken, SecurityLayer, available_ciphers

USER, PASSWORD, CNONCE = "dXNlcg==", "cGFzc3dvcmQ=", "a client's nonce"
BOTH = ("auth-int", "auth-conf")


@dataclass(frozen=True)
class Exchange:
    """A log-in, and the wrapped forms of ``MESSAGES`` as client and server sent them."""

    challenge: bytes
    proof: bytes
    sent: tuple[str, str]
    received: tuple[str, str]
    cipher: str = ""

    def logged_in(self) -> SecurityLayer:
        digest = DigestMd5(USER, PASSWORD, "hdfs/0", levels=BOTH, cipher=self.cipher, cnonce=CNONCE)
        digest.evaluate(self.challenge)
        assert digest.layer is None, "the server has proven nothing yet"
        assert digest.evaluate(self.proof) is None
        assert digest.layer is not None
        return digest.layer


MESSAGES = (b"one", b"x" * 6, b"the second message")
CIPHERS = b',charset=utf-8,cipher="3des,rc4,des,rc4-56,rc4-40",algorithm=md5-sess'
EXCHANGES = {
    "integrity": Exchange(
        b'realm="0",nonce="WVattSxPY/0lq48NBGxBZquqyEzt8i1aZAud6/LM",qop="auth-int",charset=utf-8,algorithm=md5-sess',
        b"rspauth=0e082c246948b06f762f5456835398b2",
        (
            "6f6e653a77b74ca8b5a238a33b000100000000",
            "746865207365636f6e64206d657373616765e17557e30ea9c69c49ee000100000002",
        ),
        (
            "6f6e654491af9c5a6c2487051e000100000000",
            "746865207365636f6e64206d65737361676564653f2fc50b04a60290000100000002",
        ),
    ),
    "3des": Exchange(
        b'realm="0",nonce="jRs9/zwjl7HkWNM+C3oVWdri5fgguDq7CKyKXKJj",qop="auth-conf"' + CIPHERS,
        b"rspauth=104aedd8affce1f87a8a12b8b47d52e8",
        (
            "79e613e990b6eea9d01a65fd083018d5000100000000",
            "a8203e976064f2f73001e57c60495a9f5ca97f7c4fe8b05fca67b6aea1305023000100000002",
        ),
        (
            "4ce1a45eeb6429d863297fbc632e1de6000100000000",
            "753dbcf439ccb21fdd926290f6d510ce991718e3e741f5a74f2e7ff64f447af9000100000002",
        ),
        "3des",
    ),
    "rc4": Exchange(
        b'realm="0",nonce="yOvm6BpSf+nPHC8KQrRpR2tzU1xxaG1TsEOYTdLT",qop="auth-conf"' + CIPHERS,
        b"rspauth=1c6ebfc6cfb5339a62ec67f2609138ca",
        (
            "7fe6dc61baf697f538964734e5000100000000",
            "b5fe623cee15c1056ddea768797282936623249f41a7c39fd9c9b85e000100000002",
        ),
        (
            "2709b4f405672161dabf43160f000100000000",
            "c17db77a97e266ff7c8492b4511d9e091f93eae2d9fdd1bb9679d063000100000002",
        ),
        "rc4",
    ),
}


def pair(cipher: str) -> tuple[SecurityLayer, SecurityLayer]:
    """Return both ends of a connection."""
    return SecurityLayer(b"k" * 16, cipher), SecurityLayer(b"k" * 16, cipher, is_server=True)


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_the_messages_of_an_exchange_with_the_jdk(exchange: Exchange) -> None:
    layer = exchange.logged_in()
    wrapped = [layer.wrap(message).hex() for message in MESSAGES]
    assert (wrapped[0], wrapped[2]) == exchange.sent
    assert layer.unwrap(bytes.fromhex(exchange.received[0])) == b"one"
    with pytest.raises(LayerBroken):  # the second one was lost
        layer.unwrap(bytes.fromhex(exchange.received[1]))


def test_the_clients_first_level_that_the_server_has_is_taken() -> None:
    challenge = EXCHANGES["3des"].challenge.replace(b'qop="auth-conf"', b'qop="auth,auth-int,auth-conf"')
    for levels, taken in (
        (("auth-conf", "auth"), b"qop=auth-conf,"),
        (("auth", "auth-conf"), b"qop=auth"),
        (("auth-int",), b"qop=auth-int"),
    ):
        digest = DigestMd5(USER, PASSWORD, "hdfs/0", levels=levels)
        response = digest.evaluate(challenge)
        assert response is not None
        assert taken in response
        assert digest.qop == levels[0]
    with pytest.raises(LevelDemanded) as caught:
        DigestMd5(USER, PASSWORD, "hdfs/0", levels=BOTH).evaluate(challenge.replace(b",auth-int,auth-conf", b""))
    assert caught.value.levels == "authentication"


@pytest.mark.parametrize("offered", [b"", b',cipher="des,rc4-40"', b',cipher="RC4"'])
def test_a_cipher_that_this_client_does_not_have_is_named(offered: bytes) -> None:
    challenge = EXCHANGES["3des"].challenge.replace(b',cipher="3des,rc4,des,rc4-56,rc4-40"', offered)
    with pytest.raises(CipherDemanded) as caught:
        DigestMd5(USER, PASSWORD, "hdfs/0", levels=BOTH, cipher="3des").evaluate(challenge)
    assert caught.value.ciphers == offered[9:-1].decode().lower().replace(",", ", ")


@pytest.mark.parametrize("size", [b"16", b"16777216", b"-1", b"x", b'"' + b"9" * 40 + b'"'])
def test_a_peers_buffer_has_bounds(size: bytes) -> None:
    digest = DigestMd5(USER, PASSWORD, "hdfs/0", levels=BOTH)
    with pytest.raises(DigestFailed, match="a buffer of"):
        digest.evaluate(EXCHANGES["integrity"].challenge + b",maxbuf=" + size)


@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
def test_a_wrapped_message_fits_the_peers_buffer(cipher: str) -> None:
    layer = SecurityLayer(b"k" * 16, cipher, peer_buffer_bytes=4096)
    for size in range(layer.message_bytes_max - 8, layer.message_bytes_max + 1):
        assert len(layer.wrap(bytes(size))) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
@given(messages=st.lists(st.binary(max_size=40), max_size=6))
def test_messages_come_out_as_they_went_in(cipher: str, messages: list[bytes]) -> None:
    client, server = pair(cipher)
    for message in messages:
        assert server.unwrap(client.wrap(message)) == message
        assert client.unwrap(server.wrap(message)) == message


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
@given(data=st.data())
def test_a_message_that_is_changed_anywhere_ends_the_connection(cipher: str, data: st.DataObject) -> None:
    client, server = pair(cipher)
    token = bytearray(client.wrap(data.draw(st.binary(min_size=1, max_size=40))))
    token[data.draw(st.integers(0, len(token) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LayerBroken):
        server.unwrap(bytes(token))


@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
def test_a_message_that_is_repeated_lost_reflected_or_cut_ends_the_connection(cipher: str) -> None:
    for history in ("repeated", "lost", "reflected", "cut", "longer"):
        client, server = pair(cipher)
        first, second = client.wrap(b"first of two"), client.wrap(b"second")
        wrong = {
            "repeated": first,
            "lost": client.wrap(b"third"),
            "reflected": server.wrap(b"own"),
            "cut": second[:-1],
            "longer": second + b"\0",
        }[history]
        server.unwrap(first)
        with pytest.raises(LayerBroken):
            server.unwrap(wrong)


@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_end_the_connection(cipher: str, token: bytes) -> None:
    with pytest.raises(LayerBroken):
        SecurityLayer(b"k" * 16, cipher).unwrap(token)


def test_the_ciphers_of_this_machine_are_in_the_jdks_order() -> None:
    assert available_ciphers() == ("3des", "rc4")


def test_a_layer_never_tells_its_keys() -> None:
    assert repr(SecurityLayer(b"k" * 16, "rc4")) == "SecurityLayer(rc4, sent=0, received=0)"
