"""One map: order, errors at their turn, bounded reading of the input, and an end when nobody reads."""

from __future__ import annotations

import gc
import importlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any, ClassVar

import pytest

from ray_multicluster_scheduler.app.client_api.executor import chunked_map
from ray_multicluster_scheduler.app.client_api.executor import executor as executor_module
from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    RemoteTraceback,
    ResultLostError,
    SchedulerError,
    TaskSubmissionError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config import Settings
from tests.support.main_thread import press_ctrl_c, when_main_thread_is_in
from tests.support.thread_fleet import ThreadFleet
from tests.unit.client_api.control_plane import until


@pytest.fixture
def fleet() -> Iterator[ThreadFleet]:
    with ThreadFleet(linux=2, mac=2) as running:
        yield running


def executor(fleet: ThreadFleet, **options: Any) -> FleetExecutor:
    return FleetExecutor(fleet, **options)  # type: ignore[arg-type]


def drain(results: Iterator[Any]) -> list[Any]:
    """Everything, with errors in the places where they were raised."""
    seen: list[Any] = []
    while True:
        try:
            seen.append(next(results))
        except StopIteration:
            return seen
        except Exception as error:  # noqa: BLE001 - collected
            seen.append(error)


class TestValues:
    @pytest.mark.parametrize("chunksize", [None, 1, 7, 10_000])
    def test_in_the_order_of_the_input(self, fleet: ThreadFleet, chunksize: int | None) -> None:
        results = executor(fleet).map(lambda x: x * 2, range(2000), chunksize=chunksize)
        assert list(results) == [x * 2 for x in range(2000)]

    def test_a_large_chunksize_is_one_task(self, fleet: ThreadFleet) -> None:
        assert list(executor(fleet).map(str, range(100), chunksize=1000)) == [str(x) for x in range(100)]
        assert len(fleet.handles) == 1

    def test_exactly_the_packing_that_was_asked_for(self, fleet: ThreadFleet) -> None:
        def slowly() -> Iterator[int]:
            for number in range(10):
                time.sleep(chunked_map.PULL_S)  # longer than others would wait for a chunk to be full
                yield number

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunked_map, "PULL_S", 0.01)
            assert list(executor(fleet).map(lambda x: x, slowly(), chunksize=4)) == list(range(10))
        assert len(fleet.handles) == 3

    def test_many_tiny_calls_are_few_tasks(self, fleet: ThreadFleet) -> None:
        assert sum(executor(fleet).map(lambda x: 1, range(100_000))) == 100_000
        assert len(fleet.handles) < 1000, "so many only where calls seem to take long, as the machine is busy"

    def test_several_iterables_end_with_the_shortest(self, fleet: ThreadFleet) -> None:
        assert list(executor(fleet).map(pow, [2, 3, 4], itertools.repeat(2))) == [4, 9, 16]

    def test_empty_iterable(self, fleet: ThreadFleet) -> None:
        assert list(executor(fleet).map(str, [])) == []
        assert fleet.handles == []

    def test_none_is_a_value(self, fleet: ThreadFleet) -> None:
        assert list(executor(fleet).map(lambda x: None, range(3))) == [None, None, None]

    def test_a_chunk_has_the_name_of_the_function(self, fleet: ThreadFleet) -> None:
        list(executor(fleet).map(str, range(3)))
        list(executor(fleet, name="mine").map(str, range(3), chunksize=3))
        assert [handle.options["name"] for handle in fleet.handles[-2:]] == ["str", "mine"]

    def test_the_context_of_the_caller_is_carried(self, fleet: ThreadFleet) -> None:
        with ClusterContextManager.use("mac"):
            results = executor(fleet).map(str, range(20), chunksize=1)
        list(results)
        assert {handle.preferred for handle in fleet.handles} == {"mac"}

    def test_remote_functions(self, fleet: ThreadFleet) -> None:
        """Those of ours are called as they are, with their own options where the executor has none."""
        known = RemoteFunction(lambda x: x + 1, num_cpus=2, tags=["gpu"], priority=3, num_returns=1)
        assert list(executor(fleet, priority=5).map(known, range(3), chunksize=3)) == [1, 2, 3]
        (handle,) = fleet.handles
        assert handle.options["resource_requirements"] == {"CPU": 2}
        assert (handle.options["tags"], handle.options["priority"]) == (["gpu"], 5)

    def test_all_clusters_work(self, fleet: ThreadFleet) -> None:
        list(executor(fleet).map(lambda x: time.sleep(0.01), range(60)))
        assert {handle.cluster for handle in fleet.handles} == {"linux", "mac"}

    def test_more_is_sent_when_all_that_was_sent_has_a_place(self) -> None:
        """Long calls, many places: nobody waits for the first ones to end before the others begin."""
        with ThreadFleet(big=40) as fleet:
            together = threading.Barrier(40, timeout=60)
            _barriers["all"] = together
            assert list(executor(fleet).map(meet, range(40))) == [True] * 40

    @pytest.mark.parametrize("native", [False, True])
    def test_no_polling_while_idle(self, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        filled: list[None] = []
        fill = chunked_map.ChunkedMap._fill

        def counted(work: chunked_map.ChunkedMap) -> float | None:
            filled.append(None)
            return fill(work)

        monkeypatch.setattr(chunked_map.ChunkedMap, "_fill", counted)
        with ThreadFleet(native=native, here=2) as fleet:
            fleet.gate.clear()
            results = executor(fleet).map(str, range(50), chunksize=1)
            until(lambda: len(fleet.handles) == chunked_map.RESERVE)

            def quiet() -> bool:
                before = len(filled)
                time.sleep(0.3)
                return len(filled) == before

            until(quiet)
            assert sum(handle.looked for handle in fleet.handles) == 0
            fleet.open()
            assert list(results) == [str(x) for x in range(50)]

    def test_what_waits_again_counts_as_waiting_again(self, fleet: ThreadFleet) -> None:
        """After a retry a chunk has no place any more: nothing more is sent because of it."""
        fleet.gate.clear()
        results = executor(fleet).map(str, range(100), chunksize=1)
        until(lambda: len(fleet.handles) == chunked_map.RESERVE)
        first = fleet.handles[0]
        first.move(TaskState.RUNNING)
        until(lambda: len(fleet.handles) == chunked_map.RESERVE + 1)
        for state in (TaskState.RETRYING, TaskState.QUEUED):
            first.move(state)
        fleet.handles[1].move(TaskState.RUNNING)
        time.sleep(0.05)
        assert len(fleet.handles) == chunked_map.RESERVE + 1
        results.close()

    def test_a_large_cluster_is_filled_from_inside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody sees what runs there, and it is not taken for nothing."""
        monkeypatch.setattr(executor_module, "_reserve", lambda _: 200)
        with ThreadFleet(native=True, here=1) as fleet:
            fleet.gate.clear()
            results = executor(fleet).map(str, range(500), chunksize=1)
            until(lambda: len(fleet.handles) == 200)
            results.close()
            fleet.open()


_barriers: dict[str, threading.Barrier] = {}


def meet(_: int) -> bool:
    """Returns only when as many calls run at the same time as the barrier wants."""
    _barriers["all"].wait()
    return True


class TestErrors:
    def test_raised_when_its_turn_comes_and_the_others_are_not_lost(self, fleet: ThreadFleet) -> None:
        seen = drain(executor(fleet).map(lambda x: 10 // x, [5, 0, 2, 0, 1], chunksize=5))
        assert [seen[0], seen[2], seen[4]] == [2, 5, 10]
        for error in (seen[1], seen[3]):
            assert isinstance(error, ZeroDivisionError)
            assert isinstance(error.__cause__, RemoteTraceback)
            assert "10 // x" in str(error.__cause__)
            assert any("on cluster" in note for note in error.__notes__)

    def test_a_for_loop_ends_with_it(self, fleet: ThreadFleet) -> None:
        results = executor(fleet).map(lambda x: 10 // x, [5, 0, 2])
        assert next(results) == 2
        with pytest.raises(ZeroDivisionError):
            list(results)

    def test_a_stop_iteration_of_a_call_does_not_end_the_map(self, fleet: ThreadFleet) -> None:
        results = executor(fleet).map(lambda x: next(iter([x] if x != 1 else [])), range(3), chunksize=3)
        assert next(results) == 0
        with pytest.raises(RuntimeError, match="a call of the map raised StopIteration") as caught:
            next(results)
        assert isinstance(caught.value.__cause__, StopIteration)
        assert list(results) == [2]

    @pytest.mark.parametrize("wrong", ["a", 1.5])
    def test_a_chunksize_that_is_no_number(self, fleet: ThreadFleet, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"chunksize is {wrong!r}"):
            executor(fleet).map(str, [1], chunksize=wrong)

    def test_a_chunk_that_fails_as_a_whole_fails_each_of_its_calls(self, fleet: ThreadFleet) -> None:
        fleet.crashes.append(WorkerCrashedError("the worker died"))
        with_one_lost = drain(executor(fleet).map(lambda x: x, range(6), chunksize=2))
        lost = [value for value in with_one_lost if isinstance(value, WorkerCrashedError)]
        assert len(lost) == 2
        assert [value for value in with_one_lost if isinstance(value, int)] in (
            [2, 3, 4, 5],
            [0, 1, 4, 5],
            [0, 1, 2, 3],
        )

    def test_one_result_that_cannot_be_pickled(self, fleet: ThreadFleet) -> None:
        seen = drain(executor(fleet).map(lambda x: threading.Lock() if x == 1 else x, range(3), chunksize=3))
        assert (seen[0], seen[2]) == (0, 2)
        assert isinstance(seen[1], TaskSubmissionError)
        assert "cannot pickle" in str(seen[1])

    def test_a_result_that_cannot_be_loaded_here(self, fleet: ThreadFleet) -> None:
        (error,) = drain(executor(fleet).map(lambda x: Sour(), [1]))
        assert isinstance(error, ResultLostError)
        assert "too sour" in str(error)

    @pytest.mark.parametrize("inputs", [[1, threading.Lock(), 3], [threading.Lock()]])
    def test_one_input_that_cannot_be_pickled(self, fleet: ThreadFleet, inputs: list[Any]) -> None:
        seen = drain(executor(fleet).map(lambda x: x, inputs, chunksize=3))
        errors = [value for value in seen if isinstance(value, TaskSubmissionError)]
        assert len(errors) == 1
        assert "a lock, cannot be pickled" in str(errors[0])
        assert [value for value in seen if isinstance(value, int)] == [x for x in inputs if isinstance(x, int)]

    def test_an_error_of_the_input_comes_after_the_values_before_it(self, fleet: ThreadFleet) -> None:
        def broken() -> Iterator[int]:
            yield from range(10)
            raise OSError("the disk is gone")

        seen = drain(executor(fleet).map(lambda x: x, broken()))
        assert seen[:10] == list(range(10))
        assert [str(error) for error in seen[10:]] == ["the disk is gone"]

    def test_what_is_refused_and_no_input_is_to_blame(self, fleet: ThreadFleet) -> None:
        fleet.refusal = TaskSubmissionError("The module cannot work on a cluster.")
        assert drain(executor(fleet).map(str, range(5))) == [fleet.refusal]

    def test_a_scheduler_that_accepts_nothing_is_reported_once(self, fleet: ThreadFleet) -> None:
        fleet.refusal = SchedulerError("The scheduler was shut down.")
        assert drain(executor(fleet).map(str, itertools.count())) == [fleet.refusal]

    def test_what_is_wrong_at_once(self, fleet: ThreadFleet) -> None:
        with pytest.raises(ConfigurationError, match="map"):
            executor(fleet).map(3, [1])  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="_async"):
            executor(fleet).map(_async, [1])
        with pytest.raises(TypeError):
            executor(fleet).map(str, 3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="chunksize"):
            executor(fleet).map(str, [1], chunksize=0)
        lock = threading.Lock()
        with pytest.raises(TaskSubmissionError, match=r"capturing"):
            executor(fleet).map(lambda x: lock, [1])
        assert fleet.handles == []


class Sour:
    """Can be pickled, and not loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_sour, ())


async def _async(x: int) -> int:
    return x


def _sour() -> None:
    raise ValueError("too sour")


class TestRetries:
    tries: ClassVar[dict[int, int]] = {}

    @staticmethod
    def flaky(x: int) -> int:
        """Fails twice for even numbers."""
        tried = TestRetries.tries[x] = TestRetries.tries.get(x, 0) + 1
        if x % 2 == 0 and tried <= 2:
            raise OSError(f"{x} failed {tried} times")
        return x

    def test_a_call_that_raised_is_repeated_alone(self, fleet: ThreadFleet) -> None:
        """The stand-in repeats nothing by itself: the first repetition is ours, the rest is left to the scheduler."""
        self.tries.clear()
        seen = drain(executor(fleet, retries=2).map(TestRetries.flaky, range(4), chunksize=4))
        assert [str(value) for value in seen] == ["0 failed 2 times", "1", "2 failed 2 times", "3"]
        assert [handle.options["retries"] for handle in fleet.handles] == [0, 1, 1]
        assert self.tries == {0: 2, 1: 1, 2: 2, 3: 1}

    def test_a_value_that_came_late_is_in_its_place(self, fleet: ThreadFleet) -> None:
        self.tries.clear()
        self.tries.update({0: 1, 2: 1})
        assert list(executor(fleet, retries=1).map(TestRetries.flaky, range(4), chunksize=3)) == [0, 1, 2, 3]

    def test_settings_hold_too(self) -> None:
        self.tries.clear()
        self.tries[0] = 1
        with ThreadFleet(Settings(retries=1), mac=1) as fleet:
            assert list(executor(fleet).map(TestRetries.flaky, [0])) == [0]

    @pytest.mark.parametrize("options", [{}, {"retries": 3, "no_retry_on": [OSError]}, {"retries": 3, "retry_on": "X"}])
    def test_not_when_it_was_not_asked_for(self, fleet: ThreadFleet, options: dict[str, Any]) -> None:
        self.tries.clear()
        assert len(drain(executor(fleet, **options).map(TestRetries.flaky, [0], chunksize=1))) == 1
        assert self.tries == {0: 1}

    def test_a_failed_import_is_not_repeated(self, fleet: ThreadFleet) -> None:
        [error] = drain(executor(fleet, retries=3).map(importlib.import_module, ["nowhere_x"], chunksize=1))
        assert isinstance(error, ModuleNotFoundError)
        assert len(fleet.handles) == 1

    def test_run_timeout_counts_for_each_call(self, fleet: ThreadFleet) -> None:
        list(executor(fleet, run_timeout=2).map(str, range(10), chunksize=5))
        assert [handle.options["run_timeout"] for handle in fleet.handles] == [10, 10]


class TestReading:
    def test_an_endless_input_is_read_only_so_far(self, fleet: ThreadFleet) -> None:
        pulled = itertools.count()
        results = executor(fleet).map(lambda x: x, pulled, chunksize=10)
        until(lambda: len(fleet.handles) >= chunked_map.UNREAD_BASE)
        time.sleep(0.1)
        bound = chunked_map.UNREAD_BASE + chunked_map.UNREAD_PER_SLOT * 4
        assert len(fleet.handles) <= bound
        assert list(itertools.islice(results, 5000)) == list(range(5000))
        assert len(fleet.handles) <= 500 + bound
        results.close()

    def test_progress_without_a_reader(self, fleet: ThreadFleet) -> None:
        results = executor(fleet).map(lambda x: x, range(20), chunksize=1)
        until(lambda: len(fleet.handles) == 20 and all(handle.done() for handle in fleet.handles))
        assert list(results) == list(range(20))

    def test_a_slow_input_is_not_waited_for(self, fleet: ThreadFleet) -> None:
        """What is there is sent, though a chunk could hold more."""
        more = threading.Event()

        def source() -> Iterator[int]:
            yield from range(200)  # enough to learn that calls are tiny
            time.sleep(chunked_map.PULL_S)
            yield 200
            more.wait(60)
            yield 201

        results = executor(fleet).map(lambda x: x, source())
        assert list(itertools.islice(results, 201)) == list(range(201))
        more.set()
        assert list(results) == [201]

    def test_timeout(self, fleet: ThreadFleet) -> None:
        fleet.gate.clear()
        results = executor(fleet).map(str, range(3), timeout=0.05)
        with pytest.raises(TimeoutError) as caught:
            next(results)
        assert isinstance(caught.value, TaskTimeoutError)
        with pytest.raises(StopIteration):
            next(results)
        until(lambda: all(handle.state == "CANCELLED" for handle in fleet.handles))

    def test_ready_results_are_returned_after_the_timeout(self, fleet: ThreadFleet) -> None:
        results = executor(fleet).map(str, range(3), timeout=1, chunksize=3)
        assert next(results) == "0"
        time.sleep(1.1)
        assert list(results) == ["1", "2"]


class TestTheEnd:
    def test_closing_cancels_what_is_unfinished(self, fleet: ThreadFleet) -> None:
        fleet.gate.clear()
        results = executor(fleet).map(str, range(100))
        until(lambda: len(fleet.handles) == chunked_map.RESERVE)
        results.close()
        until(lambda: all(handle.state == "CANCELLED" for handle in fleet.handles))
        assert list(results) == []
        assert len(fleet.handles) == chunked_map.RESERVE

    def test_ctrl_c_while_waiting_closes_it(self, fleet: ThreadFleet) -> None:
        fleet.gate.clear()
        results = executor(fleet).map(str, range(100))
        until(lambda: len(fleet.handles) == chunked_map.RESERVE)
        other = when_main_thread_is_in("_next_chunk", action=press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            next(results)
        other.join()
        until(lambda: all(handle.state == "CANCELLED" for handle in fleet.handles))
        assert list(results) == []

    def test_an_exception_inside_with_withdraws_what_was_not_read(self, fleet: ThreadFleet) -> None:
        _barriers["all"] = threading.Barrier(5, timeout=60)  # four places, and us
        read: list[Iterator[bool]] = []

        def program() -> None:
            with executor(fleet) as pool:
                read.append(pool.map(meet, range(100), chunksize=1))
                until(lambda: sum(handle.state == "RUNNING" for handle in fleet.handles) == 4)
                others.append(threading.Thread(target=let_go))
                others[0].start()
                raise ValueError("mine")

        def let_go() -> None:
            """When what has not begun is withdrawn: others would begin in the place of these four."""
            until(lambda: all(handle.state == "RUNNING" or handle.done() for handle in fleet.handles))
            _barriers["all"].wait()

        others: list[threading.Thread] = []
        with pytest.raises(ValueError, match="mine"):
            program()
        others[0].join()
        assert all(handle.done() for handle in fleet.handles)
        values = drain(read[0])
        assert values[:4] == [True] * 4, "what ran was waited for"
        assert {type(value) for value in values[4:]} == {CancelledError}

    @pytest.mark.parametrize("started", [True, False])
    def test_forgetting_it_does_too(self, fleet: ThreadFleet, started: bool) -> None:
        results = executor(fleet).map(str, itertools.count())
        if started:
            assert next(results) == "0"
        fleet.gate.clear()
        del results
        gc.collect()
        until(lambda: not any(thread.name == "rmcs-map" for thread in threading.enumerate()))

    def test_no_thread_is_left_behind(self, fleet: ThreadFleet) -> None:
        list(executor(fleet).map(str, range(10)))
        until(lambda: not any(thread.name == "rmcs-map" for thread in threading.enumerate()))

    def test_shutdown_waits_for_what_was_sent(self, fleet: ThreadFleet) -> None:
        with executor(fleet) as pool:
            results = pool.map(lambda x: time.sleep(0.01) or x, range(20), chunksize=2)
        assert all(handle.done() for handle in fleet.handles)
        assert len(fleet.handles) == 10
        assert list(results) == list(range(20))

    def test_a_long_map_goes_on_after_shutdown(self, fleet: ThreadFleet) -> None:
        with executor(fleet) as pool:
            results = pool.map(lambda x: x, range(1000), chunksize=1)
        assert list(results) == list(range(1000))

    def test_shutdown_with_cancel_withdraws_the_rest(self, fleet: ThreadFleet) -> None:
        fleet.gate.clear()
        pool = executor(fleet)
        results = pool.map(str, range(100), chunksize=1)
        until(lambda: len(fleet.handles) == chunked_map.RESERVE)
        for handle in fleet.handles[:3]:
            handle.attempt = 1  # they were sent ahead and taken back: they wait like the others
        pool.shutdown(cancel_futures=True)
        assert {handle.state for handle in fleet.handles} == {"CANCELLED"}
        with pytest.raises(CancelledError):
            next(results)
        assert len(drain(results)) == chunked_map.RESERVE
