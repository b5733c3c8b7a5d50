from __future__ import annotations

import contextlib
import threading
from array import array

import pytest

from ray_multicluster_scheduler.serving import TaskTracker
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.router.router import Decision


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_task_goes_from_queued_to_scheduled_to_completed() -> None:
    clock = Clock()
    tracker = TaskTracker(clock=clock)
    tracker.register_task(task_id="a", ti_uuid="i", model_name="m")
    info = tracker.get_task_info("a")
    assert info is not None
    assert (info.task_status, info.ti_uuid, info.submit_time) == (TaskStatus.QUEUED, "i", 1000.0)
    assert tracker.mark_scheduled("a")
    assert info.task_status is TaskStatus.SCHEDULED
    clock.now += 2
    assert tracker.mark_completed("a", result={"x": 1})
    info = tracker.get_task_info("a")
    assert info is not None
    assert (info.task_status, info.result, info.completion_time) == (TaskStatus.COMPLETED, {"x": 1}, 1002.0)


def test_the_first_end_counts() -> None:
    tracker = TaskTracker()
    tracker.register_task("a", "i", "m")
    assert tracker.mark_failed("a", error="no")
    assert not tracker.mark_completed("a", result=1)
    assert not tracker.mark_scheduled("a")
    info = tracker.get_task_info("a")
    assert info is not None
    assert (info.task_status, info.error, info.result) == (TaskStatus.FAILED, "no", None)


def test_unknown_ids_change_nothing_and_a_taken_one_is_refused() -> None:
    tracker = TaskTracker()
    assert tracker.get_task_info("x") is None
    assert not tracker.mark_scheduled("x")
    assert not tracker.mark_completed("x")
    assert not tracker.remove("x")
    assert not tracker.on_finished("x", print)
    tracker.register_task("x", None, "m")
    with pytest.raises(ValueError, match="taken"):
        tracker.register_task("x", None, "m")
    assert not tracker.remove("x"), "it is not finished"


def test_a_task_that_goes_back_waits_again() -> None:
    tracker = TaskTracker()
    tracker.register_task("a", "i", "m")
    tracker.mark_scheduled("a")
    tracker.assign("a", None, "no instance")
    info = tracker.get_task_info("a")
    assert info is not None
    assert (info.task_status, info.ti_uuid, info.reason) == (
        TaskStatus.QUEUED,
        None,
        "no instance",
    )
    assert tracker.counts()[TaskStatus.SCHEDULED] == 0
    assert tracker.waiting == 1


@pytest.mark.parametrize("limit", [{"max_finished": 3}, {"max_bytes": 3_000}, {"max_age_s": 3.5}])
def test_only_finished_tasks_are_pruned_and_the_oldest_first(limit: dict[str, float]) -> None:
    clock = Clock()
    tracker = TaskTracker(**limit, clock=clock)  # type: ignore[arg-type]
    tracker.register_task("live", "i", "m")
    for index in range(10):
        clock.now += 1
        tracker.register_task(f"t{index}", "i", "m")
        tracker.mark_completed(f"t{index}", result="x" * 200)
    kept = [info.task_id for info in tracker.list_tasks()]
    assert kept[0] == "live", "it is older than all others, and not finished"
    assert 2 <= len(kept) <= 5
    assert kept[1:] == [f"t{index}" for index in range(11 - len(kept), 10)]
    assert tracker.counts()[TaskStatus.COMPLETED] == len(kept) - 1


def test_old_tasks_expire_when_they_are_asked_for() -> None:
    clock = Clock()
    tracker = TaskTracker(max_age_s=10, clock=clock)
    tracker.register_task("a", "i", "m")
    tracker.mark_completed("a")
    clock.now += 11
    assert tracker.get_task_info("a") is None


def test_clear_and_remove_forget_finished_tasks() -> None:
    tracker = TaskTracker()
    for name in "abc":
        tracker.register_task(name, "i", "m")
    tracker.mark_completed("a")
    tracker.mark_failed("b", "no")
    assert tracker.remove("a")
    assert tracker.clear() == 1
    assert [info.task_id for info in tracker.list_tasks()] == ["c"]
    assert sum(tracker.counts().values()) == 1


def test_pages() -> None:
    tracker = TaskTracker()
    for index in range(10):
        tracker.register_task(str(index), "i", "m")
    assert [info.task_id for info in tracker.list_tasks(limit=3, after=6)] == ["6", "7", "8"]


def test_pages_skip_no_task_when_others_are_forgotten_or_finish_meanwhile() -> None:
    tracker = TaskTracker(max_finished=2)
    for index in range(6):
        tracker.register_task(str(index), "i", "m")
    first = tracker.list_tasks(limit=2)
    for one in ("0", "4", "1", "2"):
        tracker.mark_completed(one)  # which forgets 0 and 4
    tracker.register_task("6", "i", "m")
    rest = tracker.list_tasks(after=first[-1].number)
    assert [info.task_id for info in first + rest] == ["0", "1", "2", "3", "5", "6"]


def test_callbacks_are_called_once_at_the_end_or_at_once_after_it() -> None:
    tracker = TaskTracker()
    tracker.register_task("a", "i", "m")
    calls: list[str] = []
    assert tracker.on_finished("a", lambda info: calls.append(info.task_id))
    discarded = calls.append
    tracker.on_finished("a", discarded)
    tracker.discard_callback("a", discarded)
    tracker.mark_completed("a")
    tracker.mark_completed("a")
    assert calls == ["a"]
    tracker.on_finished("a", lambda info: calls.append("late"))
    assert calls == ["a", "late"]


def test_times_by_model_and_instance() -> None:
    clock = Clock()
    tracker = TaskTracker(clock=clock)
    for index in range(4):
        tracker.register_task(str(index), "i", "m")
        clock.now += 1
        tracker.mark_scheduled(str(index))
        clock.now += 2
        tracker.mark_completed(str(index), execution_ms=1500 if index else None)
    times = tracker.timing_statistics()["m"]["i"]
    assert times["total"]["count"] == 4
    assert times["total"]["mean_ms"] == pytest.approx(3000)
    assert times["execution"]["mean_ms"] == pytest.approx((2000 + 3 * 1500) / 4)
    assert times["overhead"]["p50_ms"] == pytest.approx(1500)


def test_times_of_instances_that_come_and_go_are_bounded() -> None:
    tracker = TaskTracker()
    for index in range(3_000):
        tracker.record_times("m", f"i{index}", 2.0, 1.0)
    assert len(tracker.timing_statistics()["m"]) == 1_000
    assert "i2999" in tracker.timing_statistics()["m"]


def test_who_waits_is_called_when_nobody_will_finish_the_task() -> None:
    tracker = TaskTracker()
    tracker.register_task("a", "i", "m")
    calls: list[TaskStatus] = []
    tracker.on_finished("a", lambda info: calls.append(info.task_status))
    tracker.end_callbacks()
    tracker.mark_completed("a")
    assert calls == [TaskStatus.QUEUED]


def test_threads_do_not_lose_or_double_count() -> None:
    tracker = TaskTracker(max_finished=50)
    wins: list[str] = []

    def work(thread: int) -> None:
        for index in range(300):
            name = f"{thread}-{index}"
            tracker.register_task(name, "i", "m")
            tracker.mark_scheduled(name)
            shared = f"shared-{index}"
            with contextlib.suppress(ValueError):
                tracker.register_task(shared, "i", "m")
            if tracker.mark_completed(shared):
                wins.append(shared)
            tracker.mark_completed(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = tracker.counts()
    assert counts[TaskStatus.QUEUED] == counts[TaskStatus.SCHEDULED] == 0
    assert counts[TaskStatus.COMPLETED] == 50 == len(tracker.list_tasks())
    assert len(wins) >= 300


def test_queued_tasks_are_counted_by_model() -> None:
    tracker = TaskTracker()
    for task_id, model in (("a", "m"), ("b", "m"), ("c", "n")):
        tracker.register_task(task_id, None, model)
    assert (tracker.waiting_for("m"), tracker.waiting_for("n"), tracker.waiting_for("x")) == (2, 1, 0)
    tracker.assign("a", "i")
    tracker.mark_scheduled("a")
    assert tracker.waiting_for("m") == 1
    tracker.assign("a", "j")
    assert tracker.waiting_for("m") == 2
    for task_id in "abc":
        tracker.mark_failed(task_id, "no")
    tracker.clear()
    assert not tracker._queued


def test_decisions_count_in_the_bound_on_bytes() -> None:
    decision = Decision("s", "i", "r" * 50, ("i",) * 1_000, array("f", [0.0] * 3_000).tobytes())
    tracker = TaskTracker(max_bytes=100_000)
    for number in range(20):
        tracker.register_task(str(number), "i", "m")
        tracker.assign(str(number), "i", "why", decision)
        tracker.mark_completed(str(number))
    assert 1 < tracker.counts()[TaskStatus.COMPLETED] < 6
    tracker.clear()
    assert tracker._finished_bytes == 0


def test_the_overhead_never_falls() -> None:
    """Also when the times of an instance are forgotten, or one reports more than the request took."""
    tracker, last = TaskTracker(), 0.0
    for number in range(1_100):
        tracker.record_times("m", f"i{number}", 10.0, 8.0 if number % 2 else 20.0)
        assert tracker.overhead_ms["m"] >= last
        last = tracker.overhead_ms["m"]
    assert last == 1_100
