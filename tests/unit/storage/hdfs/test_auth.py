"""The user of simple authentication, and the level of a log-in by token."""

import itertools

import pytest

from bmq.storage.filesystem import NotAllowed, StorageError
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import AUTH_SIMPLE, SimpleAuthenticator, TokenAuthenticator
from bmq.storage.hdfs.digest_md5 import parse
from bmq.storage.hdfs.login import find_login
from bmq.storage.hdfs.sasl import LEVELS, LoginFailed
from bmq.storage.hdfs.security_layer import SecurityLayer
from bmq.storage.open import fetch_storage_token, namenode_states, open_filesystem

pytestmark = pytest.mark.loops("asyncio")


def test_the_user_is_the_given_one_else_that_of_the_environment_else_the_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "spark")
    assert SimpleAuthenticator.for_user().user == "spark"
    assert SimpleAuthenticator.for_user("bmq").user == "bmq"
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert SimpleAuthenticator.for_user().user
    assert SimpleAuthenticator.for_user().auth_byte == AUTH_SIMPLE


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 65532"), OSError("No username set")])
def test_a_user_id_without_a_name_is_an_error_that_names_the_variable_to_set(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run under a user id without a name, as in a container; each error is what some version of Python raises."""

    def getuser() -> str:
        raise error

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr("getpass.getuser", getuser)
    with pytest.raises(StorageError, match="has no name here: set HADOOP_USER_NAME"):
        SimpleAuthenticator.for_user()


TOKEN = pb.Token(identifier=b"i", password=b"p", kind="HDFS_BLOCK_TOKEN", service="")
QOPS = {"authentication": "auth", "integrity": "auth-int", "privacy": "auth-conf"}


def lists_of_levels() -> list[tuple[str, ...]]:
    return [levels for count in (1, 2, 3) for levels in itertools.permutations(LEVELS, count)]


@pytest.mark.parametrize("levels", lists_of_levels(), ids=",".join)
async def test_a_token_is_used_at_the_first_level_of_the_client_that_the_server_offers(levels: tuple[str, ...]) -> None:
    for offered in lists_of_levels():
        client = TokenAuthenticator(TOKEN, levels).client("TOKEN", "dn1", (), "", "default")
        qops = ",".join(QOPS[level] for level in offered)
        challenge = f'realm="default",nonce="n",qop="{qops}",cipher="3des,rc4",charset=utf-8,algorithm=md5-sess'
        common = [level for level in levels if level in offered]
        if not common:
            with pytest.raises(LoginFailed) as refused:
                await client.evaluate(challenge.encode())
            assert str(refused.value).startswith(
                f"dn1 offers hadoop.rpc.protection={','.join(offered)}; this client has"
                f" hadoop.rpc.protection={','.join(levels)}:"
            )
            assert refused.value.kind is NotAllowed
            continue
        response = await client.evaluate(challenge.encode())
        assert response is not None
        assert parse(response)["qop"] == [QOPS[common[0]]]
        assert client.protection.layer is None, "the server has proven nothing yet"
        digest = client._digest  # type: ignore[attr-defined]
        await client.evaluate(b"rspauth=" + digest._proof.encode())
        assert client.protection.level == common[0]
        layer = client.protection.layer
        assert (layer is None) == (common[0] == "authentication")
        if layer is not None:
            server = SecurityLayer(digest._session_key, digest._cipher, is_server=True)
            assert server.unwrap(layer.wrap(b"call")) == b"call"
            assert layer.unwrap(server.wrap(b"response")) == b"response"
            assert layer.message_bytes_max < 65536


async def test_ciphers_that_this_machine_does_not_have_are_named() -> None:
    client = TokenAuthenticator(TOKEN, ("privacy",)).client("TOKEN", "dn1", (), "", "default")
    challenge = b'realm="default",nonce="n",qop="auth-conf",cipher="des,rc4-40",charset=utf-8,algorithm=md5-sess'
    with pytest.raises(LoginFailed, match=r"dn1 offers hadoop\.rpc\.protection=privacy with the ciphers des, rc4-40"):
        await client.evaluate(challenge)


@pytest.mark.parametrize("url", ["hdfs://127.0.0.1:1/a", "webhdfs://127.0.0.1:1/a"])
async def test_the_proxy_user_of_hadoops_environment_is_refused_by_name(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's own client would act for this user: files would have another owner than an operator expects."""
    monkeypatch.setenv("HADOOP_PROXY_USER", "alice")
    with pytest.raises(ValueError, match=r"HADOOP_PROXY_USER=alice is set.*: unset it"):
        await open_filesystem(url, holder="h")
    if url.startswith("hdfs:"):
        with pytest.raises(ValueError, match="HADOOP_PROXY_USER=alice is set"):
            await fetch_storage_token(url)
        with pytest.raises(ValueError, match="HADOOP_PROXY_USER=alice is set"):
            await namenode_states(url, "", 0.1)
    monkeypatch.setenv("HADOOP_PROXY_USER", "")
    await find_login("hdfs://127.0.0.1:1/a")
