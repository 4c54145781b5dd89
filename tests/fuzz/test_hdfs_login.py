"""The log-in to a NameNode under hostile messages: it ends, within its bounds, and never without a proof."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SaslClient
from bmq.storage.hdfs.delegation_token import HadoopToken
from bmq.storage.hdfs.sasl import LEVELS, STEPS_MAX, LoggedIn, LoginFailed, MechanismStep, Negotiation, Send
from bmq.storage.hdfs.token_login import DelegatedAuthenticator, GivenToken

_METHODS = st.sampled_from(["KERBEROS", "TOKEN", "SIMPLE", "PLAIN", "DIGEST", ""])
_MECHANISMS = st.sampled_from(["GSSAPI", "DIGEST-MD5", "PLAIN", ""])
_OFFERS = st.builds(
    lambda method, mechanism, challenge: pb.RpcSasl.Auth(method=method, mechanism=mechanism, challenge=challenge),
    _METHODS,
    _MECHANISMS,
    st.none() | st.binary(max_size=20),
)
_MESSAGES = st.builds(
    lambda state, token, offers: pb.RpcSasl(state=state, token=token, auths=offers).SerializeToString(),
    st.sampled_from(list(pb.RpcSasl.State.values())),
    st.none() | st.binary(max_size=50),
    st.lists(_OFFERS, max_size=4),
)
_DIRECTIVES = st.sampled_from(
    [
        'realm="r"',
        'nonce="n"',
        'qop="auth"',
        'qop="auth,auth-int,auth-conf"',
        "algorithm=md5-sess",
        "charset=utf-8",
        'cipher="3des,rc4"',
        "maxbuf=65536",
        "rspauth=00",
        "rspauth=",
        'nonce=""',
        "x",
        ",",
    ]
)
_CHALLENGES = st.lists(_DIRECTIVES, max_size=8).map(lambda directives: ",".join(directives).encode())
_TOKEN_OFFERS = st.builds(
    lambda challenge: pb.RpcSasl.Auth(
        method="TOKEN", mechanism="DIGEST-MD5", protocol="", server_id="default", challenge=challenge
    ),
    _CHALLENGES,
)
_TOKEN_MESSAGES = st.builds(
    lambda state, token, offers: pb.RpcSasl(state=state, token=token, auths=offers).SerializeToString(),
    st.sampled_from(list(pb.RpcSasl.State.values())),
    st.none() | _CHALLENGES | st.binary(max_size=50),
    st.lists(_TOKEN_OFFERS | _OFFERS, max_size=4),
)
_BODIES = st.lists(_MESSAGES | st.binary(max_size=60), max_size=2 * STEPS_MAX)
_COMPLETE_AFTER = st.integers(0, 6)


@given(_BODIES, _COMPLETE_AFTER, st.booleans())
def test_a_log_in_ends_with_a_proof_or_an_error(bodies: list[bytes], complete_after: int, fallback: bool) -> None:
    """The mechanism proves the server after ``complete_after`` challenges."""
    negotiation = Negotiation("nn1:8020", ("KERBEROS",), is_fallback_allowed=fallback)
    negotiation.start()
    evaluated = 0
    for body in bodies:
        try:
            effect = negotiation.receive(body)
            if isinstance(effect, MechanismStep):
                evaluated += 1
                effect = negotiation.evaluated(
                    b"x" if effect.challenge else None, is_complete=evaluated > complete_after
                )
        except LoginFailed:
            return
        if isinstance(effect, LoggedIn):
            assert effect.method == "KERBEROS" or (effect.method == "SIMPLE" and fallback)
            assert effect.method == "SIMPLE" or evaluated > complete_after
            return
        assert isinstance(effect, Send)
        assert effect.message.state in (pb.RpcSasl.INITIATE, pb.RpcSasl.RESPONSE)
    assert evaluated <= STEPS_MAX


@given(_TOKEN_OFFERS, st.lists(_TOKEN_MESSAGES | st.binary(max_size=60), max_size=2 * STEPS_MAX))
def test_nobody_without_the_password_gets_a_log_in_by_token(offer: pb.RpcSasl.Auth, bodies: list[bytes]) -> None:
    """Begin with an offer by token, and go on with any messages: none of them knows the token's password."""
    token = HadoopToken("HDFS_DELEGATION_TOKEN", "nn1:8020", b"identifier", b"password")
    identity = DelegatedAuthenticator(GivenToken(token), LEVELS)
    negotiation = identity.negotiate("nn1:8020")
    negotiation.start()
    client: SaslClient | None = None
    first = pb.RpcSasl(state=pb.RpcSasl.NEGOTIATE, auths=[offer]).SerializeToString()
    try:
        for body in (first, *bodies):
            effect = negotiation.receive(body)
            if isinstance(effect, MechanismStep):
                if effect.offer is not None:
                    client = identity.client(effect.offer.method, "nn1", (), "", effect.offer.server_id)
                assert client is not None
                response = asyncio.run(client.evaluate(effect.challenge))
                assert b"password" not in (response or b"")
                effect = negotiation.evaluated(response, is_complete=client.is_complete)
            assert isinstance(effect, Send), "nothing else than a message: the server has proven nothing"
    except LoginFailed as error:
        said = str(error)
    else:
        said = ""
    assert "password'" not in said
    assert "\n" not in said
