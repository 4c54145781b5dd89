"""A writer waits for its own view, but not for ever."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.security import compared_write
from bmq.meta.security.compared_write import wait_shown


async def test_what_the_view_shows_is_not_waited_for() -> None:
    store = MemoryStore()
    view = PrefixWatcher(MemoryKeyValue(store), "/c/", lambda _: None, what="records")
    await view.start()
    written = await MemoryKeyValue(store).commit([], [Put("/c/a", b"1")])
    await wait_shown(view, written.revision)
    assert view.seen >= written.revision
    await view.close()


async def test_a_view_that_stays_behind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_write, "VIEW_S", 0.01)
    view = PrefixWatcher(MemoryKeyValue(MemoryStore()), "/c/", lambda _: None, what="records")
    await view.start()
    with pytest.raises(RequestError, match="not known") as late:
        await wait_shown(view, view.seen + 1)
    await view.close()
    with pytest.raises(RequestError, match="not known") as closed:
        await wait_shown(view, view.seen + 1)
    assert late.value.code is closed.value.code is ErrorCode.REQUEST_TIMED_OUT
