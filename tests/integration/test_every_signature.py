"""All options of tasks and all attributes of their handles, each once, on two real clusters.

Faults are tested in other files.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ConfigurationError,
    NoFeasibleClusterError,
    TaskCancelledError,
    TaskState,
    TaskSubmissionError,
    TaskTimeoutError,
    UnifiedScheduler,
    UnknownItemError,
    cancel,
    explain,
    get,
    put,
    submit_task,
    submit_task_async,
    wait,
)
from tests.support.by_value_functions import WHOLE, all_idle, full, noting, waiting, where
from tests.support.mac_cluster import until

pytestmark = pytest.mark.usefixtures("scheduler")
ON_MAC: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}


class TestWhatIsSaid:
    def test_everything_by_position(self, scheduler: UnifiedScheduler) -> None:
        all_idle(scheduler)

        def show(a: int, b: int) -> tuple[int, dict[str, float], str]:
            import ray

            from ray_multicluster_scheduler import current

            return a - b, ray.get_runtime_context().get_assigned_resources(), current().cluster

        assert submit_task(show, (5,), {"b": 3}, {"CPU": 0.5}, ["arm64"]) == (2, {"CPU": 0.5}, "mac")
        assert submit_task_async(show, [5], {"b": 4}, {"CPU": 0.5}, ["x86_64"]).result(60) == (1, {"CPU": 0.5}, "linux")

    def test_its_name_is_shown_everywhere(self) -> None:
        def name_in_ray() -> str:
            import ray

            return ray.get_runtime_context().get_task_name()

        handle = submit_task_async(name_in_ray, name="my very own")
        assert handle.result(60) == "my very own"
        assert explain(handle.id)["name"] == "my very own"
        assert submit_task(name_in_ray).endswith("name_in_ray")

    def test_unknown_tags_are_labels(self) -> None:
        assert submit_task(where(), tags=["nightly"]) in {"linux", "mac"}
        with pytest.raises(NoFeasibleClusterError, match="nightly"):
            submit_task(where(), require_tags=["nightly"])
        assert submit_task(where(), tags=["nightly", "arm64"], require_tags=["macos"]) == "mac"

    def test_allowed_and_denied_clusters(self) -> None:
        assert submit_task(where(), allow_clusters=["mac"]) == "mac"
        assert submit_task(where(), deny_clusters=["mac"]) == "linux"
        assert submit_task(where(), preferred_cluster="mac", deny_clusters=["mac"]) == "linux"
        with pytest.raises(NoFeasibleClusterError, match="mac"):
            submit_task(where(), allow_clusters=["mac"], deny_clusters=["mac"])

    def test_the_preferred_cluster_is_full(self, tmp_path: Path) -> None:
        with full(tmp_path) as go:
            assert submit_task(where(), preferred_cluster="mac") == "linux"
            assert submit_task(where(), preferred_cluster="mac", fallback="any") == "linux"
            patient = submit_task_async(where(), **ON_MAC)
            with pytest.raises(TaskTimeoutError, match="queue_timeout|waited") as caught:
                submit_task(where(), queue_timeout=0.5, **ON_MAC)
            assert caught.value.task_id
            assert explain(caught.value.task_id)["attempt"] == 0, "it was never sent"
            explanation = patient.explain()
            assert (explanation["state"], explanation["code"], explanation["cluster"]) == (
                "QUEUED",
                "NO_CAPACITY",
                None,
            )
            assert (patient.cluster, patient.attempt, patient.accepted()) == (None, 0, True)
            go.touch()
            assert patient.result(60) == "mac"

    def test_higher_priorities_go_first(self, tmp_path: Path) -> None:
        lines = tmp_path / "lines"
        with full(tmp_path) as go:
            handles = [
                submit_task_async(noting(), (str(lines), str(number)), None, WHOLE, priority=number, **ON_MAC)
                for number in (0, -7, 9, 1)
            ]
            assert [handle.explain()["state"] for handle in handles] == ["QUEUED"] * 4
            go.touch()
            get(handles, timeout=60)
        assert lines.read_text().split() == ["9", "1", "0", "-7"]

    def test_a_key_is_its_owners(self) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "the same"}
        ada, again, bob = (submit_task_async(int, owner=owner, **keyed) for owner in ("ada", "ada", "bob"))
        assert get([ada, again, bob], timeout=60) == [0, 0, 0]
        assert ada.id == again.id != bob.id

    def test_errors_that_are_not_retried(self, tmp_path: Path) -> None:
        def fail(path: str) -> None:
            with open(path, "a") as file:
                file.write("x")
            raise LookupError("no")

        for number, options in enumerate(
            ({"no_retry_on": [LookupError]}, {"no_retry_on": "LookupError"}, {"retry_on": ["OSError"]})
        ):
            path = tmp_path / str(number)
            handle = submit_task_async(fail, (str(path),), retries=2, **options)  # type: ignore[arg-type]
            assert isinstance(handle.exception(60), LookupError)
            assert (path.read_text(), handle.attempt) == ("x", 1)

    def test_deduplicated_items_run_once(self, tmp_path: Path) -> None:
        def slow(path: str) -> int:
            import time

            time.sleep(1)
            with open(path, "a") as file:
                file.write("x")
            return 7

        path = tmp_path / "runs"
        first, again, other = (
            submit_task_async(slow, (str(path),), dedup=word) for word in ("content", "content", "none")
        )
        assert get([first, again, other], timeout=60) == [7, 7, 7]
        assert first.id == again.id != other.id
        assert path.read_text() == "xx"

    def test_a_verb_that_waits_takes_no_generator(self) -> None:
        def stream() -> Iterator[int]:
            yield 1

        with pytest.raises(ConfigurationError, match="generator"):
            submit_task(stream)


class TestHandles:
    def test_handle_properties_before_and_after_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mistakes: list[Any] = []
        monkeypatch.setattr(threading, "excepthook", mistakes.append)
        go = tmp_path / "go"
        handle = submit_task_async(waiting(), (str(go),), **ON_MAC)
        until(lambda: handle.state is TaskState.RUNNING, 60)
        assert (handle.accepted(), handle.done(), handle.cluster, handle.attempt) == (True, False, "mac", 1)
        assert repr(handle) == f"<TaskHandle {handle.id} RUNNING on 'mac'>"
        for ask in (handle.result, handle.exception):
            with pytest.raises(TaskTimeoutError, match=f"{handle.id} .*0.1 s"):
                ask(timeout=0.1)
        over = submit_task_async(int)
        assert over.result(60) == 0  # the first one that is not over is named
        with pytest.raises(TaskTimeoutError, match=handle.id):
            get([over, handle], timeout=0.5)
        go.touch()
        assert (handle.result(timeout=60), handle.exception(), handle.done()) == ("went", None, True)
        assert (handle.state, handle.logs(), handle.cluster) == (TaskState.SUCCEEDED, "", "mac")
        assert repr(handle) == f"<TaskHandle {handle.id} SUCCEEDED on 'mac'>"
        handle.cancel()
        assert handle.state is TaskState.SUCCEEDED, "what is over stays as it is"
        late: list[Any] = []
        reported = threading.Event()
        handle.add_done_callback(lambda _: 1 / 0)  # the mistake of one is not the others'
        handle.add_done_callback(lambda one: (late.append(one), reported.set()))
        assert reported.wait(60)
        assert late == [handle]
        until(lambda: bool(mistakes))  # it is shown on another thread
        assert [mistake.exc_type for mistake in mistakes] == [ZeroDivisionError], "it is shown, and no more than that"

    def test_copies_and_pickles(self) -> None:
        handle, value = submit_task_async(lambda: [1]), put([2])
        assert copy.copy(handle) is handle
        assert copy.deepcopy({"deep": handle})["deep"] is handle
        for one in (handle, value):
            with pytest.raises(TaskSubmissionError):
                pickle.dumps(one)
            with pytest.raises(TaskSubmissionError, match=one.id):
                submit_task(lambda captured=one: captured)
        assert get([handle, value], timeout=60) == [[1], [2]]
        assert value.result() is not value.result(), "each is a copy of its own"
        assert (value.done(), value.state, value.explain()["code"]) == (True, TaskState.SUCCEEDED, "PUT")

    def test_dropping_a_handle_keeps_its_item(self, tmp_path: Path) -> None:
        go, lines = tmp_path / "go", tmp_path / "lines"
        first = submit_task_async(waiting(), (str(go),), resource_requirements={"CPU": 0.5})
        item_id = submit_task_async(noting(), (str(lines), first)).id
        del first
        gc.collect()
        go.touch()
        until(lambda: explain(item_id)["state"] == "SUCCEEDED", 60)
        assert lines.read_text() == "went\n", "also as an argument of another"

    async def test_asyncio(self, tmp_path: Path) -> None:
        go = tmp_path / "go"
        handle = submit_task_async(waiting(), (str(go),))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_value(handle), 0.2)
        reader = asyncio.ensure_future(_value(handle))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        others = [asyncio.ensure_future(_value(handle)) for _ in range(3)]
        elsewhere = asyncio.to_thread(lambda: asyncio.run(_value(handle)))
        await asyncio.sleep(0)
        assert not handle.done(), "a caller that stops waiting leaves it alone"
        go.touch()
        assert await asyncio.gather(*others, elsewhere) == ["went"] * 4
        assert await handle == "went"

    def test_the_first_error_ends_the_waiting(self, tmp_path: Path) -> None:
        slow = submit_task_async(waiting(), (str(tmp_path / "go"),))
        wrong = submit_task_async(list.pop, ([],))
        with pytest.raises(IndexError):
            get([slow, wrong], timeout=60)
        assert not slow.done()
        assert wait([slow, wrong], num_returns=1, timeout=60) == ([wrong], [slow])
        assert wait([slow, wrong], num_returns=2, timeout=0.1) == ([wrong], [slow]), "the time is over, not an error"
        (tmp_path / "go").touch()
        assert wait([slow, wrong], num_returns=2) == ([slow, wrong], [])

    def test_output_is_bounded(self) -> None:
        def shout() -> None:
            for number in range(1_500):
                print(f"{number:04}", "x" * 1_000)

        handle = submit_task_async(shout)
        handle.result(60)
        log = handle.logs()
        assert 500_000 < len(log) < 1_100_000
        assert log.startswith("0000 xxx")
        assert "dropped" in log[-100:], "and it says so"


async def _value(handle: Any) -> Any:
    return await handle


class TestCancelById:
    def test_in_every_state(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        with full(tmp_path):
            running = submit_task_async(waiting(), (str(tmp_path / "never"),), preferred_cluster="linux")
            until(lambda: running.state is TaskState.RUNNING, 60)
            pending = submit_task_async(noting(), (str(ran), running))
            queued = submit_task_async(noting(), (str(ran), "queued"), **ON_MAC)
            states = [explain(one.id)["state"] for one in (pending, queued, running)]
            assert states == ["PENDING", "QUEUED", "RUNNING"]
            for one in (pending, queued, running):
                cancel(one.id)
                with pytest.raises(TaskCancelledError, match=one.id):
                    one.result(30)
                assert one.state is TaskState.CANCELLED
                cancel(one.id)
        assert not ran.exists()
        with pytest.raises(UnknownItemError, match="task-nobody"):
            cancel("task-nobody")
        with pytest.raises(UnknownItemError, match="task-nobody"):
            explain("task-nobody")

    def test_between_two_attempts_and_by_handle(self, tmp_path: Path) -> None:
        def fail(path: str) -> None:
            with open(path, "a") as file:
                file.write("x")
            raise OSError("again and again")

        path = tmp_path / "runs"
        handle = submit_task_async(fail, (str(path),), retries=50)
        until(lambda: handle.state is TaskState.RETRYING, 60)
        cancel(handle, force=True)
        with pytest.raises(TaskCancelledError):
            handle.result(30)
        count = len(path.read_text())
        assert (count, handle.state) == (handle.attempt, TaskState.CANCELLED)
