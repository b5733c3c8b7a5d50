"""Generators on real clusters: tasks and methods of actors whose values are read while they run."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ConfigurationError,
    DynamicObjectRefGenerator,
    ObjectRefGenerator,
    TaskCancelledError,
    TaskState,
    UnifiedScheduler,
    WorkerCrashedError,
    get,
    method,
    remote,
    wait,
)
from tests.support.eventually import until
from tests.support.running_service import RunningService

WAIT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]


def counting() -> Any:
    @remote(num_cpus=0.2)
    def count(number: int, failing: bool = False) -> Any:
        yield from range(number)
        if failing:
            raise ValueError("of the generator")

    return count


def stepping() -> Any:
    """Each value is yielded once its file exists; ``alive`` has one line for each value that was asked for."""

    @remote(num_cpus=0.2)
    def step(folder: Path, number: int) -> Any:
        import time

        for index in range(number):
            while not (folder / str(index)).exists():
                time.sleep(0.02)
            yield index

    return step


def adder() -> Any:
    @remote(num_cpus=0.2)
    def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture(scope="module")
def service(fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    state = tmp_path_factory.mktemp("service") / "state"
    with RunningService(Path(fleet.config_path), state) as running:
        yield running
        running.stop()


@pytest.fixture(params=["embedded", "service"])
def both(request: pytest.FixtureRequest) -> Iterator[UnifiedScheduler]:
    if request.param == "embedded":
        yield request.getfixturevalue("scheduler")
        return
    service = request.getfixturevalue("service")
    with UnifiedScheduler(address=service.address, token=service.token) as client:
        yield client


class TestTasks:
    def test_values_arrive_while_it_runs(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        generator = both.submit_task_async(stepping(), (tmp_path, 3))
        assert isinstance(generator, ObjectRefGenerator)
        for index in range(3):
            assert not generator.next_ready()
            (tmp_path / str(index)).touch()
            value = next(generator)
            assert value.result(WAIT_S) == index
            assert index == 2 or not generator.completed().done()
        with pytest.raises(StopIteration):
            next(generator)
        assert generator.is_finished()
        assert generator.completed().result(WAIT_S) == 3
        assert generator.completed().state is TaskState.SUCCEEDED

    def test_many_and_large_values(self, both: UnifiedScheduler) -> None:
        numbers = both.submit_task_async(counting(), (200,))
        assert [one.result(WAIT_S) for one in numbers] == list(range(200))
        assert list(both.submit_task_async(counting(), (0,))) == []

        def large(number: int) -> Any:
            for index in range(number):
                yield bytes([index]) * 3_000_000

        values = both.submit_task_async(large, (5,))
        assert [one.result(WAIT_S)[:1] for one in values] == [bytes([index]) for index in range(5)]

    def test_a_value_is_a_handle_like_any_other(self, both: UnifiedScheduler) -> None:
        first, second = both.submit_task_async(counting(), (2,))
        total = both.submit_task_async(adder(), (first, 1))
        assert total.result(WAIT_S) == 1
        assert wait([first, second], num_returns=2, timeout=WAIT_S)[1] == []
        generators = [both.submit_task_async(counting(), (number,)) for number in (0, 2)]
        assert wait(generators, num_returns=2, timeout=WAIT_S) == (generators, [])
        assert [len(list(one)) for one in generators] == [0, 2]
        assert get([first, second]) == [0, 1]

    def test_its_exception_is_that_of_the_last_handle(self, both: UnifiedScheduler) -> None:
        *values, last = both.submit_task_async(counting(), (2, True))
        assert get(values) == [0, 1]
        with pytest.raises(ValueError, match="of the generator"):
            last.result(WAIT_S)

    def test_it_is_held_back_while_nobody_reads(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        def noting(path: Path) -> Any:
            while True:
                with path.open("a") as marks:
                    marks.write(".")
                yield 1

        path = tmp_path / "marks"
        generator = both.submit_task_async(noting, (path,))
        for _ in range(20):
            next(generator)
        until(lambda: path.stat().st_size >= 20 + 2 * 16, WAIT_S)
        assert path.stat().st_size < 20 + 3 * 16
        generator.close()
        assert len(list(generator)) < 50
        with pytest.raises(TaskCancelledError):
            generator.completed().result(WAIT_S)

    def test_one_that_is_dropped_is_ended(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        generator = both.submit_task_async(stepping(), (tmp_path, 2))
        whole = generator.completed()
        (tmp_path / "0").touch()
        next(generator)
        del generator
        gc.collect()
        until(lambda: whole.state is TaskState.CANCELLED, WAIT_S)

    def test_one_of_which_nothing_was_read_runs_to_its_end(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        def leave_a_mark(path: Path) -> Any:
            yield from range(60)
            path.touch()

        both.submit_task_async(leave_a_mark, (tmp_path / "mark",))
        gc.collect()
        until((tmp_path / "mark").exists, WAIT_S)

    def test_a_retry_yields_nothing_twice(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        def crash_once(folder: Path) -> Any:
            for index in range(6):
                if index == 4 and not (folder / "crashed").exists():
                    while not (folder / "read").exists():
                        import time

                        time.sleep(0.02)
                    (folder / "crashed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield index

        generator = both.submit_task_async(crash_once, (tmp_path,), crash_retries=1)
        values = [next(generator).result(WAIT_S) for _ in range(3)]
        (tmp_path / "read").touch()
        values += [one.result(WAIT_S) for one in generator]
        assert values == list(range(6))
        assert generator.completed().attempt > 1

    def test_a_crash_without_retries(self, both: UnifiedScheduler) -> None:
        def crash() -> Any:
            yield 1
            os.kill(os.getpid(), signal.SIGKILL)

        *_, last = both.submit_task_async(crash, crash_retries=0)
        with pytest.raises(WorkerCrashedError):
            last.result(WAIT_S)

    def test_async_for(self, both: UnifiedScheduler) -> None:
        async def read() -> list[int]:
            return [await one async for one in both.submit_task_async(counting(), (3,))]

        assert asyncio.run(read()) == [0, 1, 2]

    def test_dynamic(self, both: UnifiedScheduler) -> None:
        whole = both.submit_task_async(counting(), (3,), num_returns="dynamic")
        values = whole.result(WAIT_S)
        assert isinstance(values, DynamicObjectRefGenerator)
        assert len(values) == 3
        first, *rest = values
        assert both.submit_task_async(adder(), (first, 10)).result(WAIT_S) == 10
        assert get(rest) == [1, 2]

        def total(values: Any) -> int:
            from ray_multicluster_scheduler import get

            return sum(get(list(values)))

        assert both.submit_task_async(total, (whole,)).result(WAIT_S) == 3

    def test_what_is_refused(self, both: UnifiedScheduler) -> None:
        for submit in (
            lambda: both.submit_task(counting(), (1,)),
            lambda: both.submit_task_async(counting(), (1,), idempotency_key="k"),
        ):
            with pytest.raises(ConfigurationError, match="is a generator"):
                submit()
        with pytest.raises(TypeError, match="requires a generator"):
            next(both.submit_task_async(adder(), (1, 2), num_returns="streaming")).result(WAIT_S)


class TestMethods:
    def test_of_an_actor(self, both: UnifiedScheduler, tmp_path: Path) -> None:
        class Reader:
            def lines(self, number: int, failing: bool = False) -> Any:
                yield from range(number)
                if failing:
                    raise KeyError("of the method")

            @method(num_returns="streaming")
            def made(self) -> Any:
                return iter("ab")

            def forever(self) -> Any:
                while True:
                    yield 1

            def one(self) -> int:
                return 1

        actor = both.submit_actor(Reader)
        assert [one.result(WAIT_S) for one in actor.lines.remote(40)] == list(range(40))
        *values, last = actor.lines.remote(2, failing=True)
        assert get(values) == [0, 1]
        with pytest.raises(KeyError, match="of the method"):
            last.result(WAIT_S)
        assert [one.result(WAIT_S) for one in actor.made.remote()] == ["a", "b"]
        endless = actor.forever.remote()
        assert next(endless).result(WAIT_S) == 1
        endless.close()
        assert actor.one.remote().result(WAIT_S) == 1
        whole = actor.lines.remote(40).completed()
        assert whole.result(WAIT_S) == 40
        generator = actor.forever.remote()
        next(generator)
        actor.kill()
        *_, last = generator
        assert last.exception(WAIT_S) is not None

    def test_of_an_asynchronous_actor(self, both: UnifiedScheduler) -> None:
        class Reader:
            async def lines(self, number: int) -> AsyncIterator[int]:
                for index in range(number):
                    await asyncio.sleep(0)
                    yield index

            async def one(self) -> int:
                return 1

        actor = both.submit_actor(Reader)
        generator = actor.lines.remote(40)
        first = next(generator)
        assert actor.one.remote().result(WAIT_S) == 1
        assert [one.result(WAIT_S) for one in (first, *generator)] == list(range(40))
        actor.kill()


class TestInside:
    def test_tasks_and_methods_are_rays(self, scheduler: UnifiedScheduler) -> None:
        count = counting()

        class Reader:
            def lines(self) -> Any:
                for letter in "ab":  # noqa: UP028 - Ray sends into it, and passes that on
                    yield letter

        reader = remote(num_cpus=0)(Reader)

        def program() -> Any:
            from ray_multicluster_scheduler import get

            values = [get(one) for one in count.remote(3)]
            dynamic = [get(one) for one in get(count.options(num_returns="dynamic").remote(2))]
            try:
                *_, last = count.remote(0, failing=True)
                get(last)
            except ValueError as error:
                values.append(str(error))
            return values, dynamic, [get(one) for one in reader.remote().lines.remote()]

        values = scheduler.submit_task_async(program).result(WAIT_S)
        assert values == ([0, 1, 2, "of the generator"], [0, 1], ["a", "b"])


PROGRAM = """
import ray_multicluster_scheduler as ray


@ray.remote
def endless():
    while True:
        yield 1


generator = endless.remote()
print(ray.get(next(generator)))
"""


def test_a_program_that_has_not_read_all_ends(config_path: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "RMCS_CONFIG": str(config_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_the_service_restarts_while_a_generator_is_read(service: RunningService, tmp_path: Path) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as client:
        generator = client.submit_task_async(stepping(), (tmp_path, 5))
        for index in (0, 1):
            (tmp_path / str(index)).touch()
        values = [next(generator).result(WAIT_S) for _ in range(2)]
        service.kill()
        for index in (2, 3):
            (tmp_path / str(index)).touch()
        service.start()
        (tmp_path / "4").touch()
        values += [one.result(WAIT_S) for one in generator]
        assert values == list(range(5))
        assert generator.completed().attempt == 1
