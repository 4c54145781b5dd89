"""The renewal of a lease: only while files are open, and whatever a renewal raises."""

import asyncio
from typing import cast

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.lease_renewer import LeaseRenewer
from bmq.storage.hdfs.namenode import NameNode
from tests.unit.storage.hdfs.fakes import namenode

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


async def test_a_lease_is_renewed_only_while_files_are_open() -> None:
    async with namenode(lambda _call: b"") as (client, (fake,)):
        renewer = LeaseRenewer(client, "holder", 0.01)
        renewer.add(1)
        renewer.add(2)
        renewer.remove(1)
        await fake.wait_calls(3)
        renewer.remove(2)
        await asyncio.sleep(0.03)  # one renewal may be under way
        count = len(fake.calls)
        await asyncio.sleep(0.05)
        assert len(fake.calls) == count
        assert pb.RenewLeaseRequest.FromString(fake.calls[0].request).holder == "holder"
        await renewer.close()


async def test_renewals_continue_after_one_fails() -> None:
    async with namenode(lambda _call: "java.io.FileNotFoundException") as (client, (fake,)):
        renewer = LeaseRenewer(client, "holder", 0.01)
        renewer.add(1)
        await fake.wait_calls(3)
        await renewer.close()


async def test_renewals_continue_after_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    """A renewal raises an error that is not expected: unless renewals continue, HDFS takes the files after 20
    minutes."""
    renewals: list[str] = []

    class Broken:
        async def renew_lease(self, holder: str) -> None:
            renewals.append(holder)
            if len(renewals) == 1:
                raise ZeroDivisionError

    renewer = LeaseRenewer(cast("NameNode", Broken()), "holder", 0.001)
    renewer.add(1)
    async with asyncio.timeout(10):
        while len(renewals) < 3:  # noqa: ASYNC110  # the renewer's own timer moves it
            await asyncio.sleep(0.001)
    await renewer.close()
    text = "bug: cannot renew the HDFS lease of holder, trying again in 0.001 s"
    assert [record.message for record in caplog.records] == [text]
