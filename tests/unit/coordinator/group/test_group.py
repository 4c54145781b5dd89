"""Every request in every state of a classic group: the table of Kafka's answers.

The group has the member ``m`` (leader, static instance ``i``) at generation 1, and the pending member ``p`` where it
says so.  ``parked`` means that the answer comes later.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.messages import Join, Now, Respond, Store, Sync
from bmq.coordinator.group.states import COMES_AFTER, GroupRules, GroupState
from bmq.coordinator.group.timers import GroupTimers
from bmq.core.errors import ErrorCode, RequestError

NOW = Now(1_000, 5_000)
JOIN = Join(
    member_id="",
    new_member_id="n",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=30_000,
    protocol_type="consumer",
    protocols=(("range", b"\0\1\0\0\0\1\0\1t"),),
)
EMPTY, PREPARING, COMPLETING, STABLE = GroupState.EMPTY, GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE
LIVE = (PREPARING, COMPLETING, STABLE)


def group_in(state: GroupState) -> Group:
    """``m`` has been the leader of generation 1; in PREPARING it has not joined again yet."""
    deadlines = GroupTimers()
    group = Group("g", GroupRules(0), deadlines, 0)
    group.join(replace(JOIN, instance_id="i", new_member_id="m"), "m", NOW)
    group._finish_join(NOW)
    if state is COMPLETING:
        return store_all(group)
    group.sync(Sync(member_id="m", instance_id="i", generation=1, assignments={"m": b"a"}), "m", NOW)
    store_all(group)
    if state is PREPARING:
        group.join(replace(JOIN, new_member_id="other", requires_known_id=False), "other", NOW)
    elif state is EMPTY:
        group.leave([("m", "i")], NOW)
    store_all(group)
    assert group.state is state
    return group


def store_all(group: Group) -> Group:
    while effects := group.take_effects():
        for effect in effects:
            if isinstance(effect, Store):
                group.stored(effect, NOW)
    return group


def outcome(call: object) -> str:
    """Return the error code's name, or ``parked`` if the call gave no result yet."""
    try:
        response = call()  # type: ignore[operator]
    except RequestError as error:
        return error.code.name
    if response is None:
        return "parked"
    return str(getattr(response, "error", response).name)


# What is asked, and what is answered in: Empty, PreparingRebalance, CompletingRebalance, Stable.
JOINS = [
    ("new", {}, "MEMBER_ID_REQUIRED", "MEMBER_ID_REQUIRED", "MEMBER_ID_REQUIRED", "MEMBER_ID_REQUIRED"),
    ("new, old version", {"requires_known_id": False}, "parked", "parked", "parked", "parked"),
    ("new static", {"instance_id": "j"}, "parked", "parked", "parked", "parked"),
    ("static comes back", {"instance_id": "i"}, "parked", "parked", "parked", "parked"),
    ("unknown id", {"member_id": "x"}, *["UNKNOWN_MEMBER_ID"] * 4),
    ("unknown instance", {"member_id": "m", "instance_id": "x"},
     "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"),
    ("fenced", {"member_id": "x", "instance_id": "i"},
     "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "FENCED_INSTANCE_ID", "FENCED_INSTANCE_ID"),
    ("leader again", {"member_id": "m", "instance_id": "i"}, "UNKNOWN_MEMBER_ID", "parked", "NONE", "parked"),
    ("other metadata", {"member_id": "m", "instance_id": "i", "protocols": (("range", b"x"),)},
     "UNKNOWN_MEMBER_ID", "parked", "parked", "parked"),
    ("no common protocol", {"protocols": (("x", b""),)},
     "MEMBER_ID_REQUIRED", "INCONSISTENT_GROUP_PROTOCOL", "INCONSISTENT_GROUP_PROTOCOL", "INCONSISTENT_GROUP_PROTOCOL"),
    ("other type", {"protocol_type": "connect"},
     "MEMBER_ID_REQUIRED", "INCONSISTENT_GROUP_PROTOCOL", "INCONSISTENT_GROUP_PROTOCOL", "INCONSISTENT_GROUP_PROTOCOL"),
    ("no protocols", {"protocols": ()}, *["INCONSISTENT_GROUP_PROTOCOL"] * 4),
    ("no type", {"protocol_type": ""}, *["INCONSISTENT_GROUP_PROTOCOL"] * 4),
]  # fmt: skip
MEMBER = {"member_id": "m", "instance_id": "i", "generation": 1}
SYNCS = [
    ("member", MEMBER, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "parked", "NONE"),
    ("without its instance", {**MEMBER, "instance_id": None},
     "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "parked", "NONE"),
    ("unknown", {**MEMBER, "member_id": "x", "instance_id": None}, *["UNKNOWN_MEMBER_ID"] * 4),
    ("fenced", {**MEMBER, "member_id": "x"}, "UNKNOWN_MEMBER_ID", *["FENCED_INSTANCE_ID"] * 3),
    ("old generation", {**MEMBER, "generation": 0}, "UNKNOWN_MEMBER_ID", *["ILLEGAL_GENERATION"] * 3),
    ("other protocol", {**MEMBER, "protocol": "x"}, "UNKNOWN_MEMBER_ID", *["INCONSISTENT_GROUP_PROTOCOL"] * 3),
    ("other type", {**MEMBER, "protocol_type": "x"}, "UNKNOWN_MEMBER_ID", *["INCONSISTENT_GROUP_PROTOCOL"] * 3),
]  # fmt: skip
HEARTBEATS = [
    ("member", ("m", "i", 1), "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "NONE", "NONE"),
    ("unknown", ("x", None, 1), *["UNKNOWN_MEMBER_ID"] * 4),
    ("fenced", ("x", "i", 1), "UNKNOWN_MEMBER_ID", *["FENCED_INSTANCE_ID"] * 3),
    ("old generation", ("m", "i", 0), "UNKNOWN_MEMBER_ID", *["ILLEGAL_GENERATION"] * 3),
]
COMMITS = [
    ("member", ("m", "i", 1), "UNKNOWN_MEMBER_ID", "parked", "REBALANCE_IN_PROGRESS", "parked"),
    ("simple", ("", None, -1), "parked", *["UNKNOWN_MEMBER_ID"] * 3),
    ("id without generation", ("m", None, -1), "parked", *["ILLEGAL_GENERATION"] * 3),
    ("unknown", ("x", None, 1), *["UNKNOWN_MEMBER_ID"] * 4),
    ("fenced", ("x", "i", 1), "UNKNOWN_MEMBER_ID", *["FENCED_INSTANCE_ID"] * 3),
    ("old generation", ("m", "i", 0), "UNKNOWN_MEMBER_ID", *["ILLEGAL_GENERATION"] * 3),
]
LEAVES = [
    ("member", ("m", "i"), "UNKNOWN_MEMBER_ID", "NONE", "NONE", "NONE"),
    ("instance alone", ("", "i"), "UNKNOWN_MEMBER_ID", "NONE", "NONE", "NONE"),
    ("nobody", ("", None), *["UNKNOWN_MEMBER_ID"] * 4),
    ("unknown", ("x", None), *["UNKNOWN_MEMBER_ID"] * 4),
    ("fenced", ("x", "i"), "UNKNOWN_MEMBER_ID", *["FENCED_INSTANCE_ID"] * 3),
]
STATES = (EMPTY, PREPARING, COMPLETING, STABLE)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "changes", "answers"), [(r[0], r[1], r[2:]) for r in JOINS])
def test_join(name: str, changes: dict[str, object], answers: tuple[str, ...], state: GroupState) -> None:
    group = group_in(state)
    request = replace(JOIN, **changes)  # type: ignore[arg-type]
    assert outcome(lambda: group.join(request, "t", NOW)) == answers[STATES.index(state)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "fields", "answers"), [(r[0], r[1], r[2:]) for r in SYNCS])
def test_sync(name: str, fields: dict[str, object], answers: tuple[str, ...], state: GroupState) -> None:
    group = group_in(state)
    assert outcome(lambda: group.sync(Sync(**fields), "t", NOW)) == answers[STATES.index(state)]  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "args", "answers"), [(r[0], r[1], r[2:]) for r in HEARTBEATS])
def test_heartbeat(name: str, args: tuple[str, str | None, int], answers: tuple[str, ...], state: GroupState) -> None:
    group = group_in(state)
    assert outcome(lambda: group.heartbeat(*args, NOW.ms)) == answers[STATES.index(state)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "args", "answers"), [(r[0], r[1], r[2:]) for r in COMMITS])
def test_commit(name: str, args: tuple[str, str | None, int], answers: tuple[str, ...], state: GroupState) -> None:
    """``parked``: accepted, written next."""
    group = group_in(state)
    assert outcome(lambda: group.check_commit(*args, NOW.ms)) == answers[STATES.index(state)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("name", "args", "answers"), [(r[0], r[1], r[2:]) for r in LEAVES])
def test_leave(name: str, args: tuple[str, str | None], answers: tuple[str, ...], state: GroupState) -> None:
    group = group_in(state)
    assert [code.name for code in group.leave([args], NOW)] == [answers[STATES.index(state)]]


@pytest.mark.parametrize("state", STATES)
def test_a_pending_member_may_join_and_leave_in_every_state(state: GroupState) -> None:
    group = group_in(state)
    assert outcome(lambda: group.join(replace(JOIN, new_member_id="p"), "t", NOW)) == "MEMBER_ID_REQUIRED"
    assert not group.is_idle
    group.leave([("p", None)], NOW)
    assert not group.pending
    group = group_in(state)
    group.join(replace(JOIN, new_member_id="p"), "t", NOW)
    assert outcome(lambda: group.join(replace(JOIN, member_id="p"), "t", NOW)) == "parked"
    assert "p" in group.members


@pytest.mark.parametrize("state", LIVE)
def test_closing_a_group_answers_all_parked_requests(state: GroupState) -> None:
    group = group_in(state)
    group.join(replace(JOIN, new_member_id="w", requires_known_id=False), "w", NOW)
    store_all(group)
    group.close(ErrorCode.NOT_COORDINATOR)
    waiting = {"w", "other"} if state is PREPARING else {"w"}
    codes = {e.token: e.response.error for e in group.take_effects() if isinstance(e, Respond)}
    assert codes == dict.fromkeys(waiting, ErrorCode.NOT_COORDINATOR)
    assert group.state is GroupState.DEAD


def test_states_change_by_legal_moves_only() -> None:
    group = group_in(STABLE)
    for state in GroupState:
        if group.state not in COMES_AFTER[state]:
            with pytest.raises(AssertionError):
                group._move(state, NOW)
