"""FleetExecutor on real clusters: values, errors, cancellation, crashes, and tiny calls in few tasks."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ClusterContextManager,
    RemoteTraceback,
    TaskSubmissionError,
    UnifiedScheduler,
    WorkerCrashedError,
)
from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor


@pytest.fixture
def pool(scheduler: UnifiedScheduler) -> Iterator[FleetExecutor]:
    with FleetExecutor(scheduler) as executor:
        yield executor


def telling_where(seconds: float = 0.0) -> Callable[[Any], str]:
    """A function that returns its cluster; defined here, so that it is pickled by value."""

    def where(_: Any) -> str:
        import time

        from ray_multicluster_scheduler import current

        time.sleep(seconds)
        item = current()
        return "" if item is None else item.cluster

    return where


class TestSubmit:
    def test_values_errors_and_where(self, pool: FleetExecutor) -> None:
        futures = [pool.submit(lambda x: 100 // x, number) for number in (5, 0, 10)]
        assert {future.exception(60) is None for future in as_completed(futures, 60)} == {True, False}
        assert (futures[0].result(), futures[2].result()) == (20, 10)
        error = futures[1].exception()
        assert isinstance(error, ZeroDivisionError)
        assert isinstance(error.__cause__, RemoteTraceback)
        assert futures[0].handle.cluster in {"linux", "mac"}

    def test_the_cluster_context_is_used(self, scheduler: UnifiedScheduler) -> None:
        pool = FleetExecutor(scheduler, fallback="wait")
        for cluster in ("linux", "mac"):
            with ClusterContextManager.use(cluster):
                future, results = pool.submit(telling_where(), 0), pool.map(telling_where(), range(20))
            assert future.result(60) == cluster
            assert set(results) == {cluster}

    async def test_asyncio(self, pool: FleetExecutor) -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.gather(*(loop.run_in_executor(pool, pow, 2, n) for n in range(5))) == [1, 2, 4, 8, 16]

    def test_cancel(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        """Waiting calls never run; running ones continue; the handle ends those, too."""

        def mark(folder: str, name: str, seconds: float) -> str:
            import time
            from pathlib import Path

            Path(folder, name).touch()
            time.sleep(seconds)
            return name

        with FleetExecutor(
            scheduler, preferred_cluster="linux", fallback="wait", resource_requirements={"CPU": 2}
        ) as pool:
            first = pool.submit(mark, str(tmp_path), "first", 30)
            second = pool.submit(mark, str(tmp_path), "second", 0)
            _until((tmp_path / "first").exists)
            assert second.cancel()
            assert not first.cancel()
            _until(first.running)
            first.handle.cancel()
        assert second.cancelled()
        assert type(first.exception()).__name__ == "TaskCancelledError"
        assert not (tmp_path / "second").exists()


class TestMap:
    def test_many_tiny_calls_are_few_tasks_on_both_clusters(
        self, scheduler: UnifiedScheduler, pool: FleetExecutor
    ) -> None:
        def tiny(x: int) -> tuple[int, str]:
            import ray

            return x, ray.get_runtime_context().get_task_id()

        seen = list(pool.map(tiny, range(30_000)))
        assert [value for value, _ in seen] == list(range(30_000))
        assert len({task for _, task in seen}) < 1000
        assert set(pool.map(telling_where(0.05), range(40), chunksize=1)) == {"linux", "mac"}

    def test_exactly_the_chunksize(self, pool: FleetExecutor) -> None:
        def task_id(_: int) -> str:
            import ray

            return ray.get_runtime_context().get_task_id()

        ids = list(pool.map(task_id, range(10), chunksize=4))
        assert [len(list(group)) for _, group in itertools.groupby(ids)] == [4, 4, 2]

    def test_errors_of_single_calls(self, pool: FleetExecutor) -> None:
        def odd(x: int) -> Any:
            import threading

            if x == 3:
                raise ValueError("three")
            return threading.Lock() if x == 5 else x

        results = pool.map(odd, range(8), chunksize=8)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three") as caught:
            next(results)
        assert "in odd" in str(caught.value.__cause__)
        assert next(results) == 4
        with pytest.raises(TaskSubmissionError, match="a lock, cannot be pickled"):
            next(results)
        assert list(results) == [6, 7]

    def test_an_input_that_cannot_be_pickled(self, pool: FleetExecutor) -> None:
        results = pool.map(lambda x: x, [1, threading.Lock(), 3], chunksize=3)
        assert next(results) == 1
        with pytest.raises(TaskSubmissionError, match="a lock, cannot be pickled"):
            next(results)
        assert list(results) == [3]

    def test_a_crashed_call_is_repeated(self, pool: FleetExecutor, tmp_path: Path) -> None:
        def once(x: int, folder: str) -> int:
            import os
            from pathlib import Path

            if x == 2 and not (mark := Path(folder, "died")).exists():
                mark.touch()
                os._exit(1)
            return x

        assert list(pool.map(once, range(4), itertools.repeat(str(tmp_path)), chunksize=4)) == [0, 1, 2, 3]

    def test_a_chunk_that_dies_for_good(self, scheduler: UnifiedScheduler) -> None:
        def die(x: int) -> int:
            import os

            return os._exit(1) if x < 2 else x

        with FleetExecutor(scheduler, crash_retries=0) as pool:
            results = pool.map(die, range(4), chunksize=2)
            for _ in range(2):
                with pytest.raises(WorkerCrashedError):
                    next(results)
            assert list(results) == [2, 3]

    def test_retries_of_single_calls(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        def flaky(x: int) -> int:
            from pathlib import Path

            tried = Path(str(tmp_path), f"tried-{x}")
            count = len(tried.read_text()) if tried.exists() else 0
            tried.write_text("x" * (count + 1))
            if x % 2 and count < 2:
                raise OSError(f"{x} failed")
            return x

        with FleetExecutor(scheduler, retries=2) as pool:
            assert list(pool.map(flaky, range(4), chunksize=4)) == [0, 1, 2, 3]
        assert [len((tmp_path / f"tried-{x}").read_text()) for x in range(4)] == [1, 3, 1, 3]

    def test_endless_input_with_an_abandoned_reader(self, scheduler: UnifiedScheduler, pool: FleetExecutor) -> None:
        results = pool.map(lambda x: x + 1, itertools.count())
        assert list(itertools.islice(results, 3000)) == list(range(1, 3001))
        del results
        _until(lambda: not scheduler.unfinished())

    def test_timeout(self, scheduler: UnifiedScheduler, pool: FleetExecutor) -> None:
        results = pool.map(time.sleep, [30], timeout=1)
        with pytest.raises(TimeoutError):
            next(results)
        _until(lambda: not scheduler.unfinished())

    def test_results_after_the_with(self, scheduler: UnifiedScheduler) -> None:
        with FleetExecutor(scheduler) as pool:
            results = pool.map(os.path.basename, ["/a/b", "/c/d"])
        assert list(results) == ["b", "d"]


def test_inside_of_a_task(scheduler: UnifiedScheduler) -> None:
    """The same program runs there as plain Ray tasks of that cluster."""

    def program() -> tuple[list[int], int, str, list[int]]:
        from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor

        def cube(x: int) -> int:
            return x**3

        def picky(x: int) -> int:
            if x == 1:
                raise ValueError("one")
            return x

        with FleetExecutor() as pool:
            values, single = list(pool.map(cube, range(500))), pool.submit(cube, 5).result()
            rest = pool.map(picky, range(3), chunksize=3)
            first = next(rest)
            try:
                next(rest)
            except ValueError as error:
                output = str(error)
            return values, single, output, [first, *rest]

    values, single, output, rest = scheduler.submit_task(program)
    assert values == [x**3 for x in range(500)]
    assert (single, output, rest) == (125, "one", [0, 2])


def _until(condition: Any, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
