"""TLS and passwords, with a real etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme

from bmq.core.config_sources import load
from bmq.meta.kv import Entry, Event, KvError, KvUnavailable, Put
from bmq.meta.open import open_keyvalue
from tests.integration.conftest import EtcdFactory
from tests.services.etcd import HOST, EtcdCluster, TlsFiles

PASSWORD = "p@ss:w/rd"
ACCOUNT = "bmq:p%40ss%3Aw%2Frd@"


def issue(authority: trustme.CA, name: str, folder: Path) -> TlsFiles:
    """Issue a certificate for this name, and write it into files with the authority's own."""
    files = TlsFiles(folder / f"{name}-ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    issued = authority.issue_cert(name)
    authority.cert_pem.write_to_path(files.ca)
    issued.cert_chain_pems[0].write_to_path(files.cert)
    issued.private_key_pem.write_to_path(files.key)
    return files


def query(files: TlsFiles) -> str:
    return f"?ca={files.ca}&cert={files.cert}&key={files.key}"


async def round_trip(url: str) -> None:
    kv = await open_keyvalue(url)
    await kv.commit([], [Put("/c/a", b"1")])
    assert await anext(kv.watch("/c/", after_revision=1)) == [Event("/c/a", Entry("/c/a", b"1", 2), 2)]
    await kv.close()


def refusal(url: str) -> str:
    with pytest.raises(KvError) as refused:
        asyncio.run(open_keyvalue(url))
    return str(refused.value)


def test_tls_shows_each_side_to_the_other(etcd_new: EtcdFactory, tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    etcd = etcd_new(tls=issue(authority, HOST, tmp_path))
    ours, theirs = issue(authority, "client", tmp_path), issue(stranger, "stranger", tmp_path)
    asyncio.run(round_trip(etcd.url + query(ours)))
    assert "TLS off there" in refusal(etcd.url)
    assert "certificates" in refusal(f"{etcd.url}?ca={theirs.ca}")  # we do not believe it
    believing = TlsFiles(ours.ca, theirs.cert, theirs.key)
    assert etcd.endpoints[0] in refusal(etcd.url + query(believing))  # it does not believe us
    assert "cannot read" in refusal(f"{etcd.url}?ca={tmp_path / 'missing.pem'}")


@pytest.fixture
def protected(etcd: EtcdCluster) -> EtcdCluster:
    etcd.protect("bmq", PASSWORD, "/c/")
    return etcd


def test_a_user_has_his_prefix(protected: EtcdCluster) -> None:
    url = protected.url.replace("//", f"//{ACCOUNT}")

    async def main() -> None:
        await round_trip(url)
        kv = await open_keyvalue(url)
        with pytest.raises(KvUnavailable, match="needs read and write on the cluster's prefix"):
            await kv.commit([], [Put("/elsewhere", b"")])
        assert [entry.key async for entry in kv.list("/c/")] == ["/c/a"]
        lease = await kv.grant(60)
        await kv.commit([], [Put("/c/b", b"", lease)])
        assert await kv.keep_alive(lease) == 60.0
        await kv.revoke(lease)
        await kv.close()

    asyncio.run(main())


def test_user_and_password_may_lie_beside_the_url(protected: EtcdCluster, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    environment = {"BMQ_META": protected.url, "BMQ_META_USER": "bmq", "BMQ_META_PASSWORD_FILE": str(file)}
    config = load(environment=environment, flags={})

    async def main() -> None:
        kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
        assert (await kv.commit([], [Put("/c/a", b"1")])).succeeded
        await kv.close()

    asyncio.run(main())


def test_who_is_no_user_is_told(protected: EtcdCluster) -> None:
    assert "demands a user and password" in refusal(protected.url)
    wrong = refusal(protected.url.replace("//", "//bmq:wrong@"))
    assert "invalid user ID or password" in wrong
    assert "wrong" not in wrong


def test_a_token_that_was_forgotten_is_renewed(protected: EtcdCluster) -> None:
    async def main() -> None:
        kv = await open_keyvalue(protected.url.replace("//", f"//{ACCOUNT}"))
        await kv.commit([], [Put("/c/a", b"1")])
        protected.forget_tokens(PASSWORD)
        answers = await asyncio.gather(*(kv.get("/c/a") for _ in range(20)))
        assert {response.revision for response in answers if response is not None} == {2}
        protected.forget_tokens(PASSWORD)
        assert (await kv.commit([], [Put("/c/a", b"2")])).succeeded
        protected.forget_tokens(PASSWORD)
        watch = kv.watch("/c/", after_revision=2)
        assert await anext(watch) == [Event("/c/a", Entry("/c/a", b"2", 3), 3)]
        await watch.aclose()
        await kv.close()

    asyncio.run(main())


def test_a_password_does_no_harm_where_none_is_asked_for(etcd: EtcdCluster) -> None:
    asyncio.run(round_trip(etcd.url.replace("//", f"//{ACCOUNT}")))
