"""Stories of one classic group, as transcripts: ``groups/*.txt``.

A transcript is blocks of commands, ``----``, and what came of them.  To write the outcomes anew, for review as a diff:
``BMQ_REWRITE=1 pytest tests/scenarios``.  Commands, with ``name`` for a client (``c1``), times in seconds::

    rules delay=0 size=3              before anything else; delay of the first rebalance, group.max.size
    join name [instance=i] [protocols=range,sticky] [topics=t,u] [session=10] [rebalance=60] [version=9] [new]
                                      a name that has an id joins with it, unless ``new``
    sync name [c1=data c2=data]       with the generation that it was last told
    beat name [generation=n]
    leave name... | leave instance=i
    commit name
    wait 5                            seconds pass, deadlines expire
    hold | flush                      writes stay in flight; they become durable
    fail                              the shard is lost: everybody is answered, the last durable record is loaded
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.members import Protocols
from bmq.coordinator.group.messages import Join, JoinResponse, Now, Respond, Store, Sync, SyncResponse
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group.timers import GroupTimers
from bmq.coordinator.records import StoredGroup
from bmq.core.errors import ErrorCode, RequestError

FOLDER = Path(__file__).parent / "groups"
REWRITE = "BMQ_REWRITE"


class Client:
    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.instance: str | None = None


class Story:
    def __init__(self) -> None:
        self.rules = GroupRules(0)
        self.ms = 0
        self.deadlines = GroupTimers()
        self.group = self._new()
        self.clients: dict[str, Client] = {}
        self.ids = 0
        self.is_held = False
        self.held: list[Store] = []
        self.durable: StoredGroup | None = None
        self.out: list[str] = []

    def run(self, commands: list[str]) -> str:
        self.out = []
        for line in commands:
            verb, *words = line.split()
            getattr(self, verb)(*words)
            self._settle()
        shown = repr(self.group).removeprefix("<Group g ").removesuffix(">")
        return "\n".join([*self.out, shown])

    # ------------------------------------------------------------------------------------------------ commands

    def set_rules(self, options: dict[str, str]) -> None:
        self.rules = GroupRules(int(options.get("delay", 0)) * 1000, int(options.get("size", 100)))
        self.group = self._new()

    def join(self, name: str, *words: str) -> None:
        options, client = _options(words), self.clients.setdefault(name, Client())
        if "new" in words:
            client.member_id = ""
        client.instance = options.get("instance", client.instance)
        self.ids += 1
        version = int(options.get("version", 9))
        request = Join(
            member_id=client.member_id,
            new_member_id=f"{name}-{self.ids}",
            instance_id=client.instance,
            session_timeout_ms=int(options.get("session", 10)) * 1000,
            rebalance_timeout_ms=int(options.get("rebalance", 60)) * 1000,
            protocol_type=options.get("type", "consumer"),
            protocols=_protocols(options),
            requires_known_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self._show(name, self.group.join(request, name, self._now()))

    def sync(self, name: str, *words: str) -> None:
        client = self.clients[name]
        assignments = {self.clients[who].member_id: data.encode() for who, data in _options(words).items()}
        request = Sync(
            member_id=client.member_id,
            instance_id=client.instance,
            generation=client.generation,
            assignments=assignments,
        )
        try:
            self._show(name, self.group.sync(request, name, self._now()))
        except RequestError as error:
            self._say(name, error.code.name)

    def beat(self, name: str, *words: str) -> None:
        client = self.clients[name]
        generation = int(_options(words).get("generation", client.generation))
        try:
            code = self.group.heartbeat(client.member_id, client.instance, generation, self.ms)
        except RequestError as error:
            code = error.code
        self._say(name, code.name)

    def commit(self, name: str) -> None:
        client = self.clients[name]
        try:
            self.group.check_commit(client.member_id, client.instance, client.generation, self.ms)
        except RequestError as error:
            self._say(name, error.code.name)
        else:
            self._say(name, "NONE")

    def leave(self, *words: str) -> None:
        instances = [("", word.removeprefix("instance=")) for word in words if word.startswith("instance=")]
        members = [(self.clients[word].member_id, None) for word in words if "=" not in word]
        for word, code in zip(words, self.group.leave([*members, *instances], self._now()), strict=True):
            self._say(word, code.name)

    def wait(self, seconds: str) -> None:
        end = self.ms + int(float(seconds) * 1000)
        while (at := self.deadlines.next()) <= end:
            self.ms = max(self.ms, at)
            while (timer := self.deadlines.pop(self.ms)) is not None:
                self.out.append(f"{self.ms / 1000:g} s: {timer.kind.value} {timer.member_id}".rstrip())
                self.group.expired(timer, self._now())
                self._settle()
        self.ms = end

    def hold(self) -> None:
        self.is_held = True

    def flush(self) -> None:
        self.is_held = False
        held, self.held = self.held, []
        for effect in held:
            self._stored(effect)

    def fail(self) -> None:
        self.held.clear()
        self.is_held = False
        self.group.close(ErrorCode.NOT_COORDINATOR)
        self._settle()
        self.deadlines = GroupTimers()
        if self.durable is None:
            self.group = self._new()
        else:
            self.group = Group.restore("g", self.durable, self.rules, self.deadlines, self._now())

    # ------------------------------------------------------------------------------------------------- effects

    def _settle(self) -> None:
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Respond):
                    assert isinstance(effect.token, str)
                    self._show(effect.token, effect.response)
                elif self.is_held:
                    self.out.append("a write is in flight")
                    self.held.append(effect)
                else:
                    self._stored(effect)

    def _stored(self, effect: Store) -> None:
        self.out.append(f"stored generation {effect.value.generation} of {len(effect.value.members)}")
        self.durable = effect.value
        self.group.stored(effect, self._now())
        self._settle()

    def _show(self, name: str, response: JoinResponse | SyncResponse | None) -> None:
        client = self.clients[name]
        if response is None:
            self._say(name, "waits")
        elif isinstance(response, SyncResponse):
            shown = f" {response.assignment.decode() or 'nothing'}" if response.error is ErrorCode.NONE else ""
            self._say(name, f"sync {response.error.name}{shown}")
        else:
            self._show_join(name, client, response)

    def _show_join(self, name: str, client: Client, response: JoinResponse) -> None:
        if response.error is ErrorCode.NONE:
            client.member_id, client.generation = response.member_id, response.generation
            members = ", ".join(each.member_id for each in response.members)
            leads = f", leads {members}" if members else ""
            skips = ", skips the assignment" if response.skip_assignment else ""
            leader = f"leader {response.leader}"
            text = f"generation {response.generation} {response.protocol} as {response.member_id}, {leader}"
            self._say(name, f"join {text}{leads}{skips}")
            return
        if response.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""
        self._say(name, f"join {response.error.name}")

    def _say(self, name: str, text: str) -> None:
        self.out.append(f"{name}: {text}")

    def _now(self) -> Now:
        return Now(self.ms, 1_000_000 + self.ms)

    def _new(self) -> Group:
        return Group("g", self.rules, self.deadlines, 1_000_000)


def _options(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _protocols(options: dict[str, str]) -> Protocols:
    topics = options.get("topics", "t").split(",")
    data = b"\0\1" + len(topics).to_bytes(4, "big")
    data += b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return tuple((name, data) for name in options.get("protocols", "range").split(","))


def play(text: str) -> str:
    """Return the transcript with the outcomes as they are now; comments and commands stay."""
    story, out = Story(), []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n----")[0].split("\n")
        commands = [line for line in lines if line and not line.startswith("#")]
        if commands and commands[0].startswith("rules "):
            story.set_rules(_options(tuple(commands.pop(0).split()[1:])))
        out.append("\n".join(lines) if not commands else "\n".join([*lines, "----", story.run(commands)]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text()
    played = play(text)
    if os.environ.get(REWRITE):
        path.write_text(played)
    else:
        assert played == text


def test_there_are_stories() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 9
