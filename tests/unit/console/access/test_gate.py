"""The gate over a real socket: who gets in, by what, and what each request needs."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

import pytest

from bmq.console.access.config import NOBODY_ASKED, AccessConfig
from bmq.console.access.rights import RIGHTS, Who
from bmq.console.http import make_app
from bmq.core.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Authorizer
from tests.unit.console.access.users import PASSWORDS, Acls, Users, serving
from tests.unit.console.posting import MOVE
from tests.unit.console.states import FakeRequests, state
from tests.unit.console.test_http import EXAMPLES, OPENAPI, faults, path_of

pytestmark = pytest.mark.loops("asyncio")
ALICE = f"alice:{PASSWORDS['alice']}"
BODIES = {"/api/v1/cluster/move": MOVE, "/api/v1/login": {"user": "x", "password": "y"}}
NAMES = {
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TOPIC: EXAMPLES["{name}"],
    ResourceType.GROUP: EXAMPLES["{id}"],
    ResourceType.TRANSACTIONAL_ID: EXAMPLES["{id}"],
}
DESCRIBE_CLUSTER = ("alice", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)


def test_every_route_has_a_right() -> None:
    routes = {
        (route.method, route.resource.canonical)
        for route in make_app(state()).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert routes == set(RIGHTS)


def test_openapi_says_which_requests_need_a_login_and_a_right() -> None:
    described = {
        (method.upper(), path): operation
        for path, operations in OPENAPI["paths"].items()
        for method, operation in operations.items()
    }
    assert set(described) == set(RIGHTS) - {("GET", "/static/{file}")}
    for route, operation in described.items():
        right = RIGHTS[route]
        is_open = right.who is Who.ANYONE
        assert (operation.get("security") == []) is is_open, route
        assert ("401" in operation["responses"]) is (not is_open or route == ("POST", "/api/v1/login")), route
        if right.operation is not None:
            assert right.operation.name in operation["responses"]["403"]["description"], route


@pytest.mark.slow
@pytest.mark.parametrize("route", sorted(RIGHTS))
async def test_each_request_needs_its_login_and_its_right(route: tuple[str, str]) -> None:
    """The response is 401 without a log-in, 403 without the right, and the handler's with both."""
    (method, template), right = route, RIGHTS[route]
    path = path_of(template) if template in OPENAPI["paths"] else template.replace("{file}", "app.js")
    acls = Acls()
    body = None if method in ("GET", "DELETE") else BODIES.get(template, {})
    async with serving(Users().config(), replace(state(), authorizer=acls)) as browser:
        stranger = await browser(method, path, body)
        if right.who is Who.ANYONE:
            assert stranger.status == (401 if body else 200)
            return
        assert (stranger.status, stranger.json["error"]) == (401, "not_authenticated")
        assert stranger.headers["WWW-Authenticate"] == 'Basic realm="BMQ", charset="UTF-8", Bearer realm="BMQ"'
        user = await browser(method, path, body, basic=ALICE)
        if right.operation is None or right.resource is None:
            assert user.status in (200, 400)
            return
        assert (user.status, user.json["error"]) == (403, "not_authorised")
        named = re.escape(
            {
                ResourceType.TOPIC: "topic 'orders'",
                ResourceType.GROUP: "group 'billing'",
                ResourceType.TRANSACTIONAL_ID: "transactional id 'billing'",
            }.get(right.resource, "the cluster")
        )
        assert re.fullmatch(f"User:alice is not authorised for {right.operation.name} on {named}", user.json["message"])
        assert faults(user.json, {"$ref": "#/components/schemas/Error"}) == []
        acls.grants.add(("alice", right.operation, right.resource, NAMES[right.resource]))
        allowed = await browser(method, path, body, basic=ALICE)
        assert allowed.status not in (401, 403)
        assert acls.hosts == {"127.0.0.1"}


async def test_where_nobody_is_asked_everything_is_as_without_a_gate() -> None:
    async with serving(NOBODY_ASKED) as browser:
        assert (await browser("GET", "/api/v1/topics")).status == 200
        assert (await browser("POST", "/api/v1/cluster/balance", {})).status == 200
        assert (await browser("GET", "/api/v1/topics", basic="who:ever")).status == 200
        me = (await browser("GET", "/api/v1/me")).json
        assert (me["principal"], me["has_to_log_in"], me["csrf"]) == ("User:ANONYMOUS", False, None)
        assert "ALTER" in me["cluster"]
        assert (await browser("POST", "/api/v1/login", {"user": "alice", "password": "x"})).status == 409


async def test_acls_hold_for_everybody_where_nobody_is_asked() -> None:
    acls = Acls([("ANONYMOUS", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)])
    async with serving(NOBODY_ASKED, replace(state(), authorizer=acls)) as browser:
        assert (await browser("GET", "/api/v1/cluster")).status == 200
        assert (await browser("POST", "/api/v1/cluster/balance", {})).status == 403


@pytest.mark.slow
async def test_a_password_and_a_token_let_in() -> None:
    async with serving(Users().config()) as browser:
        me = (await browser("GET", "/api/v1/me", basic=ALICE)).json
        assert (me["principal"], me["mechanism"]) == ("User:alice", "SCRAM-SHA-256")
        token = {"Authorization": "Bearer a-good-token"}
        assert (await browser("GET", "/api/v1/me", headers=token)).json["mechanism"] == "OAUTHBEARER"
        for wrong in ("Bearer another", "Basic nonsense", "Digest x", "Bearer", "basic  "):
            reply = await browser("GET", "/api/v1/me", headers={"Authorization": wrong})
            assert (reply.status, reply.json["error"]) == (401, "not_authenticated"), wrong


async def test_a_kafka_request_goes_with_its_users_session() -> None:
    requests = FakeRequests()
    async with serving(Users().config(), state(requests=requests)) as browser:
        assert (await browser("GET", "/api/v1/topics/orders/configs", basic=ALICE)).status == 200
        assert str(requests.session.principal) == "User:alice"


async def test_a_refusal_of_kafkas_handlers_is_403() -> None:
    async with serving(Users().config(), state(requests=FakeRequests(fails=29))) as browser:
        reply = await browser("GET", "/api/v1/topics/orders/configs", basic=ALICE)
        assert (reply.status, reply.json["error"]) == (403, "topic_authorization_failed")
        metrics = (await browser("GET", "/metrics", basic=ALICE)).json
        assert 'bmq_http_denied_total{reason="not_authorised"} 1.0' in metrics


async def test_lists_show_what_the_user_may_describe() -> None:
    acls = Acls()
    async with serving(Users().config(), replace(state(), authorizer=acls)) as browser:

        async def shown(path: str, kind: str) -> list[str]:
            reply = await browser("GET", path, basic=ALICE)
            return [each["name" if kind == "topics" else "group_id"] for each in reply.json[kind]]

        topics, groups = "/api/v1/topics", "/api/v1/groups"
        assert await shown(topics, "topics") == []
        assert await shown(groups, "groups") == []
        acls.grants.add(("alice", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders"))
        assert await shown(topics, "topics") == ["orders"]
        group = ("alice", AclOperation.DESCRIBE, ResourceType.GROUP, "billing")
        acls.grants.add(group)
        assert await shown(groups, "groups") == ["billing"]
        acls.grants -= {group}
        acls.grants.add(DESCRIBE_CLUSTER)
        assert await shown(groups, "groups") == ["billing"], "as ListGroups"


async def test_a_group_hides_topics_that_the_user_may_not_describe() -> None:
    acls = Acls([("alice", AclOperation.DESCRIBE, ResourceType.GROUP, "billing")])
    async with serving(Users().config(), replace(state(), authorizer=acls)) as browser:
        hidden = (await browser("GET", "/api/v1/group?id=billing", basic=ALICE)).json
        assert (hidden["offsets"], hidden["members"][0]["assignment"], hidden["lag"]) == ([], {}, 0)
        acls.grants.add(("alice", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders"))
        shown = (await browser("GET", "/api/v1/group?id=billing", basic=ALICE)).json
        assert (len(shown["offsets"]), list(shown["members"][0]["assignment"])) == (1, ["orders"])


async def test_a_reset_needs_the_right_to_read_each_topic() -> None:
    acls = Acls([("alice", AclOperation.READ, ResourceType.GROUP, "billing")])
    body = {"topics": [{"topic": "secret", "partitions": None}], "to": "latest"}
    async with serving(Users().config(), replace(state(), authorizer=acls)) as browser:
        reply = await browser("POST", "/api/v1/group/reset?id=billing", body, basic=ALICE)
        assert (reply.status, reply.json["message"]) == (403, "User:alice is not authorised for READ on topic 'secret'")


@pytest.mark.slow
async def test_health_gives_reasons_to_users_only() -> None:
    console = replace(
        state(), is_ready=lambda: (True, "groups of shard 3 are not served"), is_alive=lambda: (False, "a task ended")
    )
    async with serving(Users().config(), console) as browser:
        assert (await browser("GET", "/readyz")).json == {"status": "ok", "message": ""}
        alive = await browser("GET", "/healthz")
        assert (alive.status, alive.json["message"]) == (503, "log in to see the reason")
        ready = (await browser("GET", "/readyz", basic=ALICE)).json
        assert ready == {"status": "degraded", "message": "groups of shard 3 are not served"}
        assert (await browser("GET", "/readyz", basic="alice:guess")).json == {"status": "ok", "message": ""}


async def test_metrics_ask_or_not_by_a_setting() -> None:
    acls = Acls()
    console = replace(state(), authorizer=acls)
    async with serving(Users().config(), console) as browser:
        assert (await browser("GET", "/metrics")).status == 401
        assert (await browser("GET", "/metrics", basic=ALICE)).status == 403
        acls.grants.add(DESCRIBE_CLUSTER)
        assert (await browser("GET", "/metrics", basic=ALICE)).status == 200
    async with serving(Users().config(metrics_ask=False), replace(state(), authorizer=Acls())) as browser:
        assert (await browser("GET", "/metrics")).status == 200
        assert (await browser("GET", "/api/v1/cluster")).status == 401


@pytest.mark.slow
async def test_what_is_refused_is_counted() -> None:
    async with serving(Users().config(metrics_ask=False), replace(state(), authorizer=Acls())) as browser:
        await browser("GET", "/api/v1/me")
        await browser("GET", "/api/v1/cluster", basic=ALICE)
        await browser("GET", "/api/v1/cluster", basic="alice:guess")
        metrics = (await browser("GET", "/metrics")).json
        for line in (
            'bmq_http_denied_total{reason="no_login"} 1.0',
            'bmq_http_denied_total{reason="not_authorised"} 1.0',
            'bmq_http_logins_total{scheme="basic"} 1.0',
            'bmq_http_logins_failed_total{scheme="basic"} 1.0',
            "bmq_http_console_sessions 0.0",
        ):
            assert line in metrics


async def test_unknown_paths_ask_for_a_login_first() -> None:
    async with serving(Users().config()) as browser:
        assert (await browser("GET", "/api/v1/nothing")).status == 401
        assert (await browser("GET", "/api/v1/nothing", basic=ALICE)).status == 404
        assert (await browser("DELETE", "/api/v1/topics", basic=ALICE)).status == 405


def test_the_console_without_a_gate_is_a_mistake() -> None:
    """A handler without a gate before it has no access, and so serves nobody."""
    source = files("bmq.console").joinpath("http.py").read_text()
    assert source.index("gate(rules)") < source.index("bounded(),")


@pytest.mark.slow
@pytest.mark.parametrize("route", sorted(RIGHTS))
async def test_a_process_that_is_starting_serves_nothing_but_health_and_open_metrics(route: tuple[str, str]) -> None:
    """No password is checked: the process does not know all users."""
    method, template = route
    path = path_of(template) if template in OPENAPI["paths"] else template.replace("{file}", "app.js")
    body = None if method in ("GET", "DELETE") else BODIES.get(template, {})
    users = Users()
    for config in (NOBODY_ASKED, users.config()):
        async with serving(config, replace(state(), is_open=lambda: False)) as browser:
            reply = await browser(method, path, body, basic=ALICE)
            if template in ("/healthz", "/readyz") or (template == "/metrics" and config is NOBODY_ASKED):
                assert reply.status == 200
            else:
                assert (reply.status, reply.json["error"], reply.headers["Retry-After"]) == (503, "starting", "1")
    assert users.checks == []


@pytest.mark.parametrize(
    ("config", "authorizer", "status"),
    [
        (NOBODY_ASKED, ALLOW_ALL, 200),
        (NOBODY_ASKED, Acls(), 503),
        (Users().config(), ALLOW_ALL, 503),
        (Users().config(metrics_ask=False), Acls(), 200),
    ],
)
async def test_metrics_that_need_a_right_wait_for_the_start(
    config: AccessConfig, authorizer: Authorizer, status: int
) -> None:
    async with serving(config, replace(state(), is_open=lambda: False, authorizer=authorizer)) as browser:
        assert (await browser("GET", "/metrics")).status == status


async def test_a_process_that_is_starting_says_so_and_tells_nobody_more_where_users_log_in() -> None:
    """No password is checked there, so a user cannot log in."""
    starting = replace(state(), is_open=lambda: False, is_ready=lambda: (False, "no shard of 10.0.0.1 is loaded"))
    async with serving(NOBODY_ASKED, starting) as browser:
        assert (await browser("GET", "/readyz")).json["message"] == "no shard of 10.0.0.1 is loaded"
    async with serving(Users().config(), starting) as browser:
        found = await browser("GET", "/readyz", basic=ALICE)
        assert (found.status, found.json["message"]) == (503, "this process is starting or ending")


@pytest.mark.parametrize("is_open", [True, False])
async def test_who_may_get_metrics_may_ask_for_their_head(is_open: bool) -> None:
    open_metrics = Users().config(metrics_ask=False)
    async with serving(open_metrics, replace(state(), is_open=lambda: is_open, authorizer=Acls())) as browser:
        for method in ("GET", "HEAD"):
            assert (await browser(method, "/metrics")).status == 200
