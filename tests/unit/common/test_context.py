"""The preferred cluster of a thread or asyncio task, and the item that code runs for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.current_item import CurrentItem, get_current, set_current


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    ClusterContextManager.clear()
    set_current(None)


def test_set_get_clear_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClusterContextManager.get() is None
    monkeypatch.setenv("RMCS_CLUSTER", "linux")
    assert ClusterContextManager.get() == "linux"
    ClusterContextManager.set("mac")
    assert ClusterContextManager.get() == "mac"
    ClusterContextManager.clear()
    assert ClusterContextManager.get() == "linux"


def test_the_with_form_nests_and_restores_after_an_error() -> None:
    def fails() -> None:
        with ClusterContextManager.use("b"):
            raise ValueError(ClusterContextManager.get())

    with ClusterContextManager.use("a"):
        with pytest.raises(ValueError, match="^b$"):
            fails()
        assert ClusterContextManager.get() == "a"
    assert ClusterContextManager.get() is None


def test_threads_do_not_see_each_others_choice() -> None:
    seen: list[str | None] = []
    ClusterContextManager.set("a")
    thread = threading.Thread(target=lambda: seen.append(ClusterContextManager.get()))
    thread.start()
    thread.join()
    assert seen == [None]


async def test_asyncio_tasks_do_not_see_each_others_choice() -> None:
    async def choose(name: str) -> str | None:
        ClusterContextManager.set(name)
        await asyncio.sleep(0.01)
        return ClusterContextManager.get()

    assert await asyncio.gather(choose("a"), choose("b")) == ["a", "b"]
    assert ClusterContextManager.get() is None


def test_the_current_item_of_a_task_is_seen_by_its_threads() -> None:
    item = CurrentItem("t1", 2, 9, "a")
    set_current(item)
    seen: list[CurrentItem | None] = []
    thread = threading.Thread(target=lambda: seen.append(get_current()))
    thread.start()
    thread.join()
    assert seen == [item]
    set_current(None)
    assert get_current({}) is None


def test_the_current_item_of_a_job_is_in_its_environment() -> None:
    environ = {"RMCS_TASK_ID": "j1", "RMCS_ATTEMPT": "3", "RMCS_FENCE": "12", "RMCS_CLUSTER": "mac"}
    assert get_current(environ) == CurrentItem("j1", 3, 12, "mac")
    assert get_current({**environ, "RMCS_ATTEMPT": "three"}) is None
    assert get_current({"RMCS_TASK_ID": "j1"}) is None
