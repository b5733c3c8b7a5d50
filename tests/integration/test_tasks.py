"""Tasks on real clusters: options passed to Ray, values and exceptions, retries and cancellation."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import yaml

from ray_multicluster_scheduler import (
    RemoteError,
    TaskCancelledError,
    TaskState,
    TaskSubmissionError,
    TaskTimeoutError,
    UnifiedScheduler,
    WorkerCrashedError,
    get,
)
from ray_multicluster_scheduler.exceptions import RayTaskError
from ray_multicluster_scheduler.local_fleet import LocalFleet


class TestWhatReachesRay:
    def test_requirements_become_ray_resources(self, scheduler: UnifiedScheduler) -> None:
        def assigned() -> dict[str, float]:
            import ray

            return ray.get_runtime_context().get_assigned_resources()

        needs = {"CPU": 1.5, "memory": "100MiB"}
        assert scheduler.submit_task(assigned, resource_requirements=needs) == {"CPU": 1.5, "memory": 100 * 1024**2}
        assert scheduler.submit_task(assigned, resource_requirements={"CPU": 0}) == {}
        assert scheduler.submit_task(assigned) == {"CPU": 1.0}

    def test_requirements_constrain_placement(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        """Eight tasks that each need a whole cluster never overlap on one, and both clusters are used."""
        # While the agent of one cluster starts, its tasks go to the other.
        agents = [
            scheduler.submit_task_async(int, preferred_cluster=name, fallback="wait") for name in ("linux", "mac")
        ]
        get(agents, timeout=120)
        # Also by what is remembered of the last seconds: another user may have been there.
        _until(lambda: all(row.feasible for row in scheduler.plan({"CPU": 2}).candidates))

        def whole(folder: str, number: int) -> str:
            import time
            from pathlib import Path

            from ray_multicluster_scheduler import current

            mark = Path(folder, current().cluster)
            with mark.open("x"):  # fails if another one is there
                time.sleep(0.3)
            mark.unlink()
            return current().cluster

        handles = [
            scheduler.submit_task_async(whole, (str(tmp_path), number), resource_requirements={"CPU": 2})
            for number in range(8)
        ]
        assert set(get(handles, timeout=120)) == {"linux", "mac"}

    def test_environment_of_the_call(self, scheduler: UnifiedScheduler) -> None:
        def look() -> str | None:
            import os

            return os.environ.get("COLOUR")

        assert scheduler.submit_task(look, runtime_env={"env_vars": {"COLOUR": "blue"}}) == "blue"
        assert scheduler.submit_task(look) is None

    def test_ray_does_not_retry_by_itself(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        def die(path: str) -> None:
            import os
            import signal

            with open(path, "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)

        path = tmp_path / "runs"
        with pytest.raises(WorkerCrashedError) as caught:
            scheduler.submit_task(die, (str(path),), crash_retries=0)
        assert path.read_text() == "x"
        assert caught.value.cluster in {"linux", "mac"}

    def test_a_path_under_the_submitters_home_follows_the_task(
        self, scheduler: UnifiedScheduler, fleet: LocalFleet
    ) -> None:
        def echo(path: str, options: dict[str, object]) -> tuple[str, dict[str, object]]:
            return path, options

        mine = str(Path.home() / "data.csv")
        handle = scheduler.submit_task_async(
            echo, (mine, {"note": f"see {mine}"}), preferred_cluster="mac", fallback="wait"
        )
        home = next(c.home_dir for c in scheduler.config.clusters if c.name == "mac")
        assert handle.result(60) == (f"{home}/data.csv", {"note": f"see {mine}"})
        assert handle.explain()["converted_paths"] == [[mine, f"{home}/data.csv"]]


def test_each_cluster_brings_its_own_environment(fleet: LocalFleet, tmp_path: Path) -> None:
    """Tasks and jobs get the chosen cluster's runtime_env, overlaid by the caller's."""

    def look() -> tuple[str | None, str | None]:
        import os

        return os.environ.get("WHERE"), os.environ.get("COLOUR")

    config = yaml.safe_load(Path(fleet.config_path).read_text())
    for entry in config["clusters"]:
        entry["runtime_env"] = {"env_vars": {"WHERE": f"on {entry['name']}", "COLOUR": "grey"}}
    path = tmp_path / "clusters.yaml"
    path.write_text(yaml.safe_dump(config))
    with UnifiedScheduler(path) as scheduler:
        for cluster in ("linux", "mac"):
            place = {"preferred_cluster": cluster, "fallback": "wait"}
            assert scheduler.submit_task(look, **place) == (f"on {cluster}", "grey")
            blue = {"env_vars": {"COLOUR": "blue"}}
            assert scheduler.submit_task(look, runtime_env=blue, **place) == (f"on {cluster}", "blue")
            job = scheduler.submit_job_async("echo $WHERE $COLOUR", runtime_env=blue, **place)
            job.result(90)
            assert f"on {cluster} blue" in job.logs()


class TestWhatComesBack:
    def test_classes_of_the_caller_keep_their_identity(self, scheduler: UnifiedScheduler) -> None:
        class Point:
            def __init__(self, x: int) -> None:
                self.x = x

        value = scheduler.submit_task(lambda point: type(point)(point.x + 1), (Point(1),))
        assert isinstance(value, Point)
        assert value.x == 2

    def test_functions_and_unusual_values_survive(self, scheduler: UnifiedScheduler) -> None:
        assert scheduler.submit_task(lambda: lambda x: x + 1)(1) == 2
        assert scheduler.submit_task(lambda: None) is None
        assert scheduler.submit_task(lambda: b"") == b""
        assert scheduler.submit_task(lambda n: {"n": [n] * 3}, kwargs={"n": float("inf")}) == {"n": [float("inf")] * 3}

    def test_a_result_that_cannot_be_pickled_is_an_error(self, scheduler: UnifiedScheduler) -> None:
        with pytest.raises(TaskSubmissionError, match="result, a lock, cannot be pickled"):
            scheduler.submit_task(lambda: __import__("threading").Lock(), retries=3)

    def test_an_exception_is_rebuilt_without_its_constructor(self, scheduler: UnifiedScheduler) -> None:
        class Awkward(OSError):
            def __init__(self, a: int, *, b: int) -> None:
                super().__init__(5, f"{a} is not {b}", "file")
                self.a, self.lock = a, __import__("threading").Lock()

        def fail(number: int = 1) -> None:
            try:
                [][number]
            except IndexError as error:
                raise Awkward(number, b=2) from error

        class Failing:
            def __init__(self, number: int) -> None:
                if number:
                    fail(number)

            def method(self) -> None:
                fail(3)

        actor = scheduler.submit_actor(Failing, (0,))
        calls = [
            lambda: scheduler.submit_task(fail),
            lambda: scheduler.submit_actor(Failing, (2,)),
            lambda: actor.method.remote().result(60),
        ]
        for number, call in enumerate(calls, 1):
            with pytest.raises(Awkward) as caught:
                call()
            error = caught.value
            assert (error.a, error.errno, error.filename) == (number, 5, "file")
            assert isinstance(error, RayTaskError)
            assert "came without what cannot be pickled: lock (TypeError" in error.__notes__[0]
            assert isinstance(error.__cause__, IndexError)
            assert "raise Awkward(number, b=2)" in str(error.__cause__.__cause__)
        actor.kill()

    def test_an_exception_that_cannot_be_rebuilt_is_still_readable(self, scheduler: UnifiedScheduler) -> None:
        def fail() -> None:
            import sys
            import types

            far = sys.modules["far_away"] = types.ModuleType("far_away")
            far.Awkward = type("Awkward", (Exception,), {"__module__": "far_away"})
            raise far.Awkward("1 is not 2")

        with pytest.raises(RemoteError, match="Awkward: 1 is not 2") as caught:
            scheduler.submit_task(fail)
        assert "raise far.Awkward" in str(caught.value.__cause__)

    def test_sys_exit_is_an_error_of_the_task(self, scheduler: UnifiedScheduler) -> None:
        with pytest.raises(RemoteError, match=r"sys\.exit\(3\)"):
            scheduler.submit_task(lambda: __import__("sys").exit(3))

    def test_output_can_be_read_while_the_task_runs(self, scheduler: UnifiedScheduler) -> None:
        def talk() -> None:
            import sys
            import time

            for number in range(3):
                print("line", number)
                time.sleep(1)
            print("the end", file=sys.stderr)

        handle = scheduler.submit_task_async(talk)
        pieces = list(handle.follow_logs())
        assert "".join(pieces) == "line 0\nline 1\nline 2\nthe end\n"
        assert len(pieces) > 1, "it came in more than one piece"
        assert handle.logs(stream="stderr") == "the end\n"

    def test_a_huge_value_does_not_block_other_results(self, scheduler: UnifiedScheduler) -> None:
        """40 MB go out and come back while small tasks pass."""
        big = scheduler.submit_task_async(lambda data: data, (b"x" * 40_000_000,), preferred_cluster="linux")
        small = [scheduler.submit_task_async(lambda n: n, (n,), preferred_cluster="linux") for n in range(5)]
        assert get(small, timeout=60) == list(range(5))
        assert len(big.result(120)) == 40_000_000


class TestFailure:
    def test_user_errors_are_retried_up_to_the_limit(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        def flaky(path: str) -> int:
            from ray_multicluster_scheduler import current

            with open(path, "a") as file:
                file.write(f"{current().attempt} ")
            if current().attempt < 3:
                raise OSError("not yet")
            return current().attempt

        path = tmp_path / "attempts"
        handle = scheduler.submit_task_async(flaky, (str(path),), retries=2, retry_on=[OSError])
        assert handle.result(90) == 3
        assert path.read_text() == "1 2 3 "

    def test_a_crashed_worker_is_retried(self, scheduler: UnifiedScheduler) -> None:
        def die_once() -> int:
            import os

            from ray_multicluster_scheduler import current

            if current().attempt == 1:
                os._exit(1)
            return current().attempt

        assert scheduler.submit_task(die_once) == 2

    def test_a_running_task_is_cancelled(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        def long(path: str) -> None:
            import time
            from pathlib import Path

            try:
                Path(path).touch()
                while True:  # as everywhere in Ray, an interrupt waits for the next line of Python
                    time.sleep(0.1)
            except KeyboardInterrupt:
                Path(path).write_text("interrupted")
                raise

        mark = tmp_path / "mark"
        handle = scheduler.submit_task_async(long, (str(mark),))
        _until(lambda: handle.state is TaskState.RUNNING and mark.exists())
        handle.cancel()
        with pytest.raises(TaskCancelledError, match=handle.id):
            handle.result(30)
        assert handle.state is TaskState.CANCELLED
        assert mark.read_text() == "interrupted"

    def test_a_task_that_ignores_the_interrupt_is_killed(self, scheduler: UnifiedScheduler) -> None:
        def stubborn() -> None:
            import time

            while True:
                try:
                    time.sleep(100)
                except KeyboardInterrupt:
                    continue

        handle = scheduler.submit_task_async(stubborn)
        _until(lambda: handle.state is TaskState.RUNNING)
        handle.cancel()
        with pytest.raises(TaskCancelledError):
            handle.result(40)

    def test_a_task_that_holds_the_gil_is_reported_as_running(self, scheduler: UnifiedScheduler) -> None:
        """No other thread of its process can run meanwhile."""

        def keep() -> str:
            import ctypes

            ctypes.PyDLL(None).sleep(4)
            return "done"

        handle = scheduler.submit_task_async(keep)
        while handle.state is not TaskState.RUNNING:
            assert not handle.done(), "it was over before it was seen to run"
            time.sleep(0.02)
        assert handle.result(30) == "done"

    def test_only_the_parent_of_a_forking_task_reports_a_result(self, scheduler: UnifiedScheduler) -> None:
        def fork() -> str:
            import os
            import time

            if os.fork() == 0:
                return "child"
            time.sleep(0.5)
            return "parent"

        assert [scheduler.submit_task(fork) for _ in range(2)] == ["parent", "parent"]

    def test_run_timeout(self, scheduler: UnifiedScheduler) -> None:
        handle = scheduler.submit_task_async(lambda: __import__("time").sleep(100), run_timeout=1)
        with pytest.raises(TaskTimeoutError, match=handle.id):
            handle.result(40)
        assert handle.state is TaskState.FAILED

    def test_a_callers_timeout_does_not_affect_the_task(self, scheduler: UnifiedScheduler) -> None:
        handle = scheduler.submit_task_async(lambda: __import__("time").sleep(2) or "slept")
        with pytest.raises(TaskTimeoutError, match=r"after 0\.1 s"):
            handle.result(timeout=0.1)
        assert handle.result(60) == "slept"


class TestTogether:
    def test_two_clusters_at_once_from_several_threads(self, scheduler: UnifiedScheduler) -> None:
        def where(n: int) -> tuple[str, int]:
            from ray_multicluster_scheduler import current

            return current().cluster, n

        results: dict[str, list[tuple[str, int]]] = {}

        def work(cluster: str, offset: int) -> None:
            handles = [
                scheduler.submit_task_async(where, (offset + n,), preferred_cluster=cluster, fallback="wait")
                for n in range(10)
            ]
            results[f"{cluster}{offset}"] = get(handles, timeout=120)

        threads = [
            threading.Thread(target=work, args=(cluster, offset)) for cluster in ("linux", "mac") for offset in (0, 100)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {
            f"{cluster}{offset}": [(cluster, offset + n) for n in range(10)]
            for cluster in ("linux", "mac")
            for offset in (0, 100)
        }

    async def test_handles_can_be_awaited(self, scheduler: UnifiedScheduler) -> None:
        import asyncio

        handles = [scheduler.submit_task_async(lambda n: n * 2, (n,)) for n in range(4)]
        assert await asyncio.gather(*handles) == [0, 2, 4, 6]
        with pytest.raises(ZeroDivisionError):
            await scheduler.submit_task_async(lambda: 1 / 0)

    def test_done_callbacks_get_the_handle(self, scheduler: UnifiedScheduler) -> None:
        called = threading.Event()
        seen = []

        def note(handle: object) -> None:
            seen.append(handle)
            called.set()

        handle = scheduler.submit_task_async(lambda: 1)
        handle.add_done_callback(note)
        assert called.wait(60)
        assert seen == [handle]

    def test_the_same_key_is_the_same_task(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        def note(path: str) -> None:
            with open(path, "a") as file:
                file.write("x")

        path = tmp_path / "runs"
        first = scheduler.submit_task_async(note, (str(path),), idempotency_key="once")
        again = scheduler.submit_task_async(note, (str(path),), idempotency_key="once")
        assert again.id == first.id
        get([first, again], timeout=60)
        assert path.read_text() == "x"


def test_a_users_own_module_is_shipped(scheduler: UnifiedScheduler, tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "my_own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("FACTOR = 6\n")
    (package / "work.py").write_text(
        "from my_own_package.deep import FACTOR\n\nclass Box:\n    def __init__(self, n): self.n = n\n\n"
        "def times(n):\n    return Box(n * FACTOR)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_own_package.work import Box, times

    value = scheduler.submit_task(times, (7,))
    assert isinstance(value, Box)
    assert value.n == 42


def test_a_missing_module_is_named(scheduler: UnifiedScheduler) -> None:
    import hypothesis  # installed here, not on the clusters

    with pytest.raises(TaskSubmissionError, match="module 'hypothesis' cannot be found on the cluster") as caught:
        scheduler.submit_task(hypothesis.note, ("x",), retries=5)
    assert "py_modules" in str(caught.value)


def _until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
