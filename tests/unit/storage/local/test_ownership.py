"""Owner, group and mode of a local root's files: set as root, found by ``stat``, and never in the way of a fence."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from bmq.core.file_access import Access
from bmq.storage.access import REFUSALS
from bmq.storage.filesystem import CreateOptions, Unsupported
from bmq.storage.local.ownership import give
from tests.unit.storage.local.roots import opened
from tests.unit.storage.local.stepped_calls import SteppedCall, stop_at_system_calls

pytestmark = [
    pytest.mark.loops("asyncio"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any user and group"),
]

READERS = 64_321
"""A group that no machine has."""
TOPIC = CreateOptions(access=Access(group=str(READERS), mode=0o750))


@pytest.fixture(autouse=True)
def private_umask() -> object:
    """Set the umask that `bmq serve` has."""
    before = os.umask(0o077)
    yield
    os.umask(before)


async def test_files_and_folders_of_a_topic_get_group_and_mode_whatever_the_umask(tmp_path: Path) -> None:
    async with opened(tmp_path / "root") as fs:
        appender = await fs.create("/topics/t/id/0/f", TOPIC)
        topic = tmp_path / "root" / "topics" / "t"
        for path in (topic, topic / "id", topic / "id" / "0"):
            found = path.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o2750, READERS), path
        found = (topic / "id" / "0" / "f").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o640, READERS)
        assert stat.S_IMODE((tmp_path / "root" / "topics").stat().st_mode) == 0o700, "it is of all topics"
        await appender.close()
        assert stat.S_IMODE((topic / "id" / "0" / "f").stat().st_mode) == 0o440


async def test_a_file_without_access_is_its_users_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "root") as fs:
        await fs.create("/topics/t/f")
        assert stat.S_IMODE((tmp_path / "root" / "topics" / "t" / "f").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "root" / "topics" / "t").stat().st_mode) == 0o700


async def test_an_open_file_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs, opened(tmp_path, "other") as other:
        appender = await fs.create("/d/f")
        assert not await other.set_access("/d/f", Access(mode=0o640))
        await appender.close()
        assert await other.set_access("/d/f", Access(group=str(READERS), mode=0o640))
        found = (tmp_path / "d" / "f").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o440, READERS), "closed: nobody may write it"


async def test_a_file_whose_writer_died_is_left_to_its_fence(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        appender = await fs.create("/d/f")
        appender.abort()
        await fs.close()  # its lock is gone, its write bit is not
        assert not await fs.set_access("/d/f", Access(mode=0o640))
        assert (tmp_path / "d" / "f").stat().st_mode & stat.S_IWUSR
        await fs.fence(appender.lease)
        assert await fs.set_access("/d/f", Access(mode=0o640))


async def test_joined_segments_keep_group_and_mode(tmp_path: Path) -> None:
    async with opened(tmp_path) as fs:
        for name in "12":
            await (await fs.create(f"/topics/t/{name}", TOPIC)).close()
        await fs.concat("/topics/t/1", ["/topics/t/2"])
        found = (tmp_path / "topics" / "t" / "1").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o440, READERS)


async def test_a_file_that_a_concat_replaced_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report no success for a file that has gone: the file of the name keeps the former mode."""
    async with opened(tmp_path) as fs:
        for name in "12":
            await (await fs.create(f"/t/{name}", TOPIC)).close()
        stop_at_system_calls(monkeypatch)
        given = list[bool]()
        call = SteppedCall(lambda: given.append(give(str(tmp_path / "t" / "1"), Access(mode=0o600))))
        call.run_to("flock", "1")
        await fs.concat("/t/1", ["/t/2"])
        call.finish()
        assert given == [False]
        assert await fs.set_access("/t/1", Access(mode=0o600))
        assert stat.S_IMODE((tmp_path / "t" / "1").stat().st_mode) == 0o400


async def test_an_unknown_group_is_named_and_does_not_stop_a_writer(tmp_path: Path) -> None:
    unknown = Access(group="no-such-group", mode=0o750)
    async with opened(tmp_path) as fs:
        await fs.make_folder("/topics/t")
        with pytest.raises(Unsupported, match="no group 'no-such-group' on this machine"):
            await fs.set_access("/topics/t", unknown)
        with pytest.raises(Unsupported, match="no user 'no-such-user'"):
            await fs.set_access("/topics/t", Access(owner="no-such-user"))
        before = REFUSALS.total
        appender = await fs.create("/topics/t/f", dataclasses.replace(TOPIC, access=unknown))
        appender.write(b"goes on")
        assert await appender.close() == 7
        assert REFUSALS.total == before + 1
        assert stat.S_IMODE((tmp_path / "topics" / "t" / "f").stat().st_mode) == 0o440, "its mode is not its group's"
