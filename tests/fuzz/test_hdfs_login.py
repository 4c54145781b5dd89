"""The log-in to a NameNode under hostile messages: it ends, within its bounds, and never without a proof."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.sasl import STEPS_MAX, LoggedIn, LoginFailed, MechanismStep, Negotiation, Send

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
