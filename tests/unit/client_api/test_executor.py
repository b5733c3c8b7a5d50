"""FleetExecutor.submit and shutdown: what users of concurrent.futures expect."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
from ray_multicluster_scheduler.app.client_api.executor.fleet_future import FleetFuture
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskCancelledError, TaskSubmissionError
from tests.support.thread_fleet import ThreadFleet
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task

_events: dict[str, threading.Event] = {}


def hold() -> str:
    """Runs until it is let go."""
    _events["go"].wait(20)
    return "held"


@pytest.fixture
def fleet() -> Iterator[ThreadFleet]:
    _events["go"] = threading.Event()
    with ThreadFleet(mac=1) as running:
        yield running
        _events["go"].set()


@pytest.fixture
def pool(fleet: ThreadFleet) -> FleetExecutor:
    return FleetExecutor(fleet)  # type: ignore[arg-type]


def running(pool: FleetExecutor) -> FleetFuture[str]:
    """A call that runs, on the only place there is."""
    future = pool.submit(hold)
    until(future.running)
    return future


class TestSubmit:
    def test_value_and_error(self, pool: FleetExecutor) -> None:
        assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
        assert pool.submit(lambda *, a, b: a - b, a=5, b=2).result(60) == 3
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(60)

    def test_names_that_submit_uses_itself_are_free(self, pool: FleetExecutor) -> None:
        assert pool.submit(lambda fn, self: fn + self, fn=1, self=2).result(60) == 3

    def test_options_reach_every_call(self, fleet: ThreadFleet) -> None:
        pool = FleetExecutor(fleet, resource_requirements={"CPU": 2}, tags=["gpu"], priority=5)  # type: ignore[arg-type]
        pool.submit(str).result(60)
        list(pool.map(str, [1]))
        for handle in fleet.handles:
            assert (
                handle.options.items() >= {"priority": 5, "tags": ["gpu"], "resource_requirements": {"CPU": 2}}.items()
            )

    def test_the_context_of_the_caller_is_carried(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        with ClusterContextManager.use("mac"):
            pool.submit(str)
        pool.submit(str).result(60)
        assert [handle.preferred for handle in fleet.handles] == ["mac", None]

    def test_wait_and_as_completed(self, pool: FleetExecutor) -> None:
        slow, quick = pool.submit(hold), pool.submit(int, 3)
        done, pending = wait([slow, quick], 0.05)
        assert (done, pending) == (set(), {slow, quick})
        quick.cancel()
        done, _ = wait([slow, quick], 10, return_when=FIRST_COMPLETED)
        assert done == {quick}, "wait() hears of a cancellation"
        _events["go"].set()
        assert [future.cancelled() for future in as_completed([slow, quick], 10)] == [True, False]

    def test_states(self, pool: FleetExecutor) -> None:
        first, second = running(pool), pool.submit(str)
        assert (first.done(), first.running(), second.running()) == (False, True, False)
        _events["go"].set()
        second.result(60)
        assert (first.done(), first.running(), first.result(60)) == (True, False, "held")

    def test_callbacks_of_the_future(self, pool: FleetExecutor) -> None:
        seen: list[Any] = []
        future = pool.submit(int, 3)
        future.add_done_callback(lambda done: seen.append(done.result()))
        until(lambda: seen == [3])

    def test_unpicklable_call_is_rejected_at_once(self, pool: FleetExecutor) -> None:
        with pytest.raises(TaskSubmissionError):
            pool.submit(str, threading.Lock())

    async def test_from_asyncio(self, pool: FleetExecutor) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(pool, int, 3) == 3
        assert await asyncio.wrap_future(pool.submit(int, 4)) == 4
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pool, divmod, 1, 0)

    async def test_a_cancelled_await_withdraws_the_call(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        pool.submit(hold)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(pool.submit(str)), 0.05)
        await asyncio.to_thread(until, lambda: fleet.handles[1].state == "CANCELLED")


class TestCallbacks:
    """Users' callbacks have two threads; nothing of ours waits for them."""

    def test_slow_ones_stop_no_result(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        let_go = self.block(pool)
        assert pool.submit(int, 3).result(60) == 3
        assert list(pool.map(int, "456")) == [4, 5, 6]
        assert fleet.callbacks._work_queue.empty()
        let_go.set()

    def test_slow_ones_stop_no_coroutine(self, pool: FleetExecutor) -> None:
        async def both() -> list[int]:
            loop = asyncio.get_running_loop()
            return [await asyncio.wrap_future(pool.submit(int, 3)), await loop.run_in_executor(pool, int, 4)]

        let_go = self.block(pool)
        assert asyncio.run(asyncio.wait_for(both(), 10)) == [3, 4]
        let_go.set()

    def test_those_that_wait_for_other_futures(self, pool: FleetExecutor) -> None:
        first = running(pool)
        others = [pool.submit(int, number) for number in range(4)]
        seen: list[int] = []
        for future in others[:2]:
            future.add_done_callback(lambda _: seen.append(sum(other.result(60) for other in others)))
        _events["go"].set()
        until(lambda: seen == [6, 6])
        assert first.result(60) == "held"

    def test_with_a_real_control_plane(self) -> None:
        errands, let_go, begun = BackgroundWorker("test"), threading.Event(), threading.Semaphore(0)

        def block(_: object) -> None:
            begun.release()
            let_go.wait(20)

        with ControlPlane() as plane:
            for name in ("t1", "t2"):
                handle = plane.task(name)
                handle.add_done_callback(block)
                plane.finish(handle)
                assert begun.acquire(timeout=60)
            future: FleetFuture[None] = FleetFuture(plane.task("t3"), errands)
            plane.finish(future.handle)
            assert future.result(60) is None
            let_go.set()

    def test_in_order_and_with_errors(self, pool: FleetExecutor, caplog: pytest.LogCaptureFixture) -> None:
        first, seen = running(pool), []

        def fail(_: object) -> None:
            raise ValueError("not today")

        first.add_done_callback(lambda _: seen.append(1))
        first.add_done_callback(fail)
        first.add_done_callback(lambda _: seen.append(2))
        _events["go"].set()
        until(lambda: seen == [1, 2])
        assert "not today" in caplog.text

    def test_at_once_when_it_is_over(self, pool: FleetExecutor) -> None:
        future, seen = pool.submit(int, 3), []
        future.result(60)
        future.add_done_callback(lambda done: seen.append((done.result(), threading.get_ident())))
        assert seen == [(3, threading.get_ident())]

    def block(self, pool: FleetExecutor) -> threading.Event:
        """Give both threads something to do until the event is set."""
        first, let_go, begun = running(pool), threading.Event(), threading.Semaphore(0)

        def hold_up(_: object) -> None:
            begun.release()
            let_go.wait(20)

        first.add_done_callback(hold_up)
        second = pool.submit(str)
        second.add_done_callback(hold_up)
        _events["go"].set()
        for _ in range(2):
            assert begun.acquire(timeout=60)
        return let_go


class Meets:
    """Its pickling takes until as many are pickled at the same time as the barrier wants."""

    barrier = threading.Barrier(3, timeout=20)

    def __reduce__(self) -> tuple[object, ...]:
        Meets.barrier.wait()
        return (int, ())


class Slow:
    """Its pickling waits for an event."""

    begun, let_go = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[object, ...]:
        Slow.begun.set()
        Slow.let_go.wait(20)
        return (int, ())


class TestFromSeveralThreads:
    def test_pickling_is_not_one_after_another(self, pool: FleetExecutor) -> None:
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(pool.submit(int, Meets()).result(60))) for _ in "123"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [0, 0, 0]

    @pytest.mark.parametrize("cancel", [False, True])
    def test_shutdown_waits_for_a_submission_under_way(
        self, fleet: ThreadFleet, pool: FleetExecutor, cancel: bool
    ) -> None:
        Slow.begun.clear()
        Slow.let_go.clear()
        futures: list[FleetFuture[int]] = []
        if cancel:
            running(pool)
        submits = threading.Thread(target=lambda: futures.append(pool.submit(int, Slow())))
        submits.start()
        assert Slow.begun.wait(60)
        ends = threading.Thread(target=lambda: pool.shutdown(cancel_futures=cancel))
        ends.start()
        until(lambda: pool._shut_down)
        Slow.let_go.set()
        submits.join(60)
        until(lambda: bool(fleet.handles[-1].done()))
        _events["go"].set()
        ends.join(60)
        assert not ends.is_alive()
        assert [future.cancelled() for future in futures] == [cancel]


class TestCancel:
    def test_what_was_taken_back_is_withdrawn(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        """It was sent ahead once and waits here again."""
        running(pool)
        future = pool.submit(str)
        fleet.handles[1].attempt = 1
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(0)

    def test_what_was_sent_after_all_is_no_withdrawal(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        running(pool)
        future = pool.submit(str)
        handle = fleet.handles[1]
        handle.attempt = 1
        real = handle.cancel

        def sent_meanwhile() -> None:
            handle.attempt = 2
            real()

        handle.cancel = sent_meanwhile  # type: ignore[method-assign]
        assert not future.cancel()
        assert isinstance(future.exception(10), TaskCancelledError)

    def test_inside_a_cluster_all_was_sent(self) -> None:
        _events["go"] = threading.Event()
        with ThreadFleet(native=True, here=1) as fleet:
            pool = FleetExecutor(fleet)  # type: ignore[arg-type]
            futures = [pool.submit(hold), pool.submit(str)]
            assert not futures[1].cancel()
            assert [handle.looked for handle in fleet.handles] == [0, 0], "nobody asked Ray"
            _events["go"].set()
            assert [future.result(60) for future in futures] == ["held", ""]

    def test_waiting_items_are_withdrawn(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        running(pool)
        future = pool.submit(str)
        assert future.cancel()
        assert future.cancel(), "again is the same"
        assert (future.cancelled(), future.done(), future.running()) == (True, True, False)
        assert fleet.handles[1].state == "CANCELLED"
        with pytest.raises(CancelledError):
            future.result(0)

    def test_callbacks_hear_of_it_once(self, pool: FleetExecutor) -> None:
        running(pool)
        seen: list[Any] = []
        future = pool.submit(str)
        future.add_done_callback(seen.append)
        future.cancel()
        until(lambda: seen == [future])
        _events["go"].set()
        pool.shutdown()
        assert seen == [future]

    def test_running_items_continue(self, pool: FleetExecutor) -> None:
        future = running(pool)
        assert not future.cancel()
        _events["go"].set()
        assert future.result(60) == "held"
        assert not future.cancelled()

    def test_finished_items_are_unchanged(self, pool: FleetExecutor) -> None:
        future = pool.submit(int, 3)
        future.result(60)
        assert not future.cancel()
        assert future.result(0) == 3

    def test_the_handle_ends_what_runs(self, pool: FleetExecutor) -> None:
        future = running(pool)
        future.handle.cancel()
        _events["go"].set()
        assert isinstance(future.exception(10), TaskCancelledError)
        assert not future.cancelled()

    def test_cancelling_many_from_a_callback(self, pool: FleetExecutor) -> None:
        """The first error ends the rest, as programs do it."""
        first = running(pool)
        rest = [pool.submit(str) for _ in range(20)]
        first.add_done_callback(lambda _: [future.cancel() for future in reversed(rest)])
        _events["go"].set()
        done, _ = wait([first, *rest], 10)
        assert len(done) == 21

    def test_with_a_real_control_plane(self) -> None:
        """What waits in the queue is known not to have run; what has a place is left alone."""
        errands = BackgroundWorker("test")
        with ControlPlane(execution_mode="serial") as plane:
            first: FleetFuture[None] = FleetFuture(plane.task("t1"), errands)
            second: FleetFuture[None] = FleetFuture(plane.submit(plane.with_payload(task("t2"))), errands)
            until(lambda: second.handle.state == "QUEUED")
            assert not first.cancel()
            assert first.running()
            assert second.cancel()
            assert second.handle.state == "CANCELLED"
            plane.finish(first.handle)
            assert first.result(60) is None
            assert [order.task_id for order in plane.placed] == ["t1"]

    def test_after_the_end_of_the_scheduler(self) -> None:
        errands = BackgroundWorker("test")
        with ControlPlane(execution_mode="serial") as plane:
            plane.task("t1")
            future: FleetFuture[None] = FleetFuture(plane.submit(plane.with_payload(task("t2"))), errands)
        assert isinstance(future.exception(10), TaskCancelledError)
        assert not future.cancel()


class TestShutdown:
    def test_waits_and_refuses(self, fleet: ThreadFleet, pool: FleetExecutor) -> None:
        future = running(pool)
        ended = threading.Thread(target=pool.shutdown)
        ended.start()
        until(lambda: pool._shut_down)
        assert not future.done()
        for late in (lambda: pool.submit(str), lambda: pool.map(str, [1])):
            with pytest.raises(RuntimeError, match="after shutdown"):
                late()
        _events["go"].set()
        ended.join(60)
        assert not ended.is_alive()
        assert future.done()
        assert FleetExecutor(fleet).submit(int, 3).result(60) == 3, "the scheduler goes on"  # type: ignore[arg-type]

    def test_without_waiting(self, pool: FleetExecutor) -> None:
        future = running(pool)
        pool.shutdown(wait=False)
        assert not future.done()
        _events["go"].set()
        assert future.result(60) == "held"

    def test_with_cancel(self, pool: FleetExecutor) -> None:
        first = running(pool)
        rest = [pool.submit(str) for _ in range(10)]

        def let_go() -> None:
            """Not before: the next ones would begin in its place."""
            try:
                until(lambda: all(future.cancelled() for future in rest))
            finally:
                _events["go"].set()

        other = threading.Thread(target=let_go)
        other.start()
        pool.shutdown(cancel_futures=True)
        other.join()
        assert all(future.cancelled() for future in rest)
        assert first.result(0) == "held"

    def test_as_a_context(self, fleet: ThreadFleet) -> None:
        with FleetExecutor(fleet) as pool:  # type: ignore[arg-type]
            futures = [pool.submit(lambda: time.sleep(0.01)) for _ in range(5)]
        assert all(future.done() for future in futures)

    def test_finished_futures_are_released(self, pool: FleetExecutor) -> None:
        wait([pool.submit(str) for _ in range(20)])
        until(lambda: not pool._pending)


class TestMaking:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"retires": 3}, "did you mean retries"),
            ({"idempotency_key": "k"}, "idempotency_key"),
            ({"priority": "high"}, "priority"),
            ({"resource_requirements": {"CPU": -1}}, "CPU"),
            ({"tags": "gpu"}, "tags"),
        ],
    )
    def test_wrong_options_are_refused(self, fleet: ThreadFleet, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            FleetExecutor(fleet, **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("given", "options"), [(5, {}), (None, {"max_workers": 5})])
    def test_a_number_of_workers_is_no_scheduler(self, given: Any, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="5.*UnifiedScheduler"):
            FleetExecutor(given, **options)

    def test_the_shared_scheduler_is_taken_when_it_is_needed(self, fleet: ThreadFleet) -> None:
        before = execution_context.exchange_shared(None)
        try:
            pool = FleetExecutor()
            assert not execution_context.has_shared()
            execution_context.exchange_shared(fleet)  # type: ignore[arg-type]
            assert pool.submit(int, "3").result(60) == 3
            assert list(pool.map(int, "45")) == [4, 5]
        finally:
            execution_context.exchange_shared(before)
