"""Items that run after others, after a time, or not a second time: accepted, readable, queued when all is over."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import admission, events, prerequisites
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import ClearTimer, Complete, Continue, SetTimer
from tests.unit.lifecycle.driver import Driver, job, ready, task


def run(driver: Driver, task_id: str) -> None:
    driver.start(task_id)
    driver.succeed(task_id)


class TestAfter:
    def test_it_waits_with_a_reason_until_all_have_succeeded(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.submit(task("b"))
        record = driver.submit(task("t", after=("a", "b")))
        assert (record.state, record.code) == (TaskState.PENDING, "WAITS_FOR_DEPENDENCIES")
        assert record.sentence == "waits for a, b to succeed"
        missing = driver.machine.unmet_prerequisites("t")
        assert missing is not None
        assert missing.unblocked_by == "a, b succeed"
        run(driver, "a")
        assert record.state is TaskState.PENDING
        assert driver.machine.unmet_prerequisites("t") is missing
        assert missing.sentence == "waits for b to succeed"
        assert missing.unblocked_by == "b succeeds"
        run(driver, "b")
        assert record.state is TaskState.DISPATCHING
        assert driver.machine.unmet_prerequisites("t") is None

    def test_many_are_not_all_named(self) -> None:
        driver = ready(1)
        for name in "abcde":
            driver.submit(task(name))
        assert driver.submit(task("t", after=tuple("abcde"))).sentence == "waits for a, b, c and 2 more to succeed"

    def test_one_that_is_over_counts_at_once_and_one_named_twice_once(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        run(driver, "a")
        driver.submit(task("b"))
        assert driver.submit(task("t", after=("a", "a"))).state is TaskState.DISPATCHING
        driver.submit(task("u", after=("b", "b")))
        run(driver, "b")
        assert driver.state("u") is TaskState.DISPATCHING

    def test_a_failed_dependency_fails_it_at_once_with_the_reason(self) -> None:
        driver = ready(4)
        driver.submit(job("a"))
        driver.submit(task("b"))
        driver.submit(task("t", after=("a", "b")))
        driver.start("a")
        driver.fail("a")
        end = driver.end("t")
        assert (driver.state("t"), driver.machine.record("t").code) == (TaskState.FAILED, "DEPENDENCY_FAILED")
        assert end.error == "TaskSubmissionError"
        assert "because a, which it was to run after, failed" in end.message
        assert "ValueError came up" in end.message
        run(driver, "b")
        assert driver.state("t") is TaskState.FAILED

    def test_a_cancelled_one_fails_it_too(self) -> None:
        driver = ready(1)
        driver.submit(task("a", cpus=1))
        driver.submit(task("b", cpus=1))
        driver.submit(task("t", after=("b",)))
        driver.cancel("b")
        assert "because b, which it was to run after, was cancelled" in driver.end("t").message

    def test_one_that_failed_before(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.start("a")
        driver.fail("a")
        driver.submit(task("t", after=("a",)))
        assert driver.machine.record("t").code == "DEPENDENCY_FAILED"
        assert driver.states("t") == ["PENDING", "FAILED"]

    def test_an_unknown_id_is_an_error_at_once_also_its_own(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        for name, other in (("t", "nobody"), ("u", "u")):
            driver.submit(task(name, after=("a", other)))
            assert driver.end(name).error == "ConfigurationError"
            assert repr(other) in driver.end(name).message
        run(driver, "a")
        assert driver.state("t") is TaskState.FAILED

    def test_both_arguments_and_dependencies_have_to_be_over(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.submit(task("b"))
        for name in ("t", "u"):
            driver.send(events.Submitted(task(name, after=("a",)), "waits for its argument b"))
            record = driver.machine.record(name)
            assert record.code == "WAITS_FOR_ARGUMENTS"
            assert record.sentence == "waits for its argument b; waits for a to succeed"
        driver.send(events.ArgumentsReady("t", pinned="a"))
        driver.send(events.ArgumentsReady("t"))  # repeated events
        assert driver.machine.record("t").code == "WAITS_FOR_DEPENDENCIES"
        run(driver, "a")
        assert (driver.state("t"), driver.state("u")) == (TaskState.DISPATCHING, TaskState.PENDING)
        assert driver.machine.record("u").code == "WAITS_FOR_ARGUMENTS"
        driver.send(events.ArgumentsReady("u"))
        assert driver.state("u") is TaskState.DISPATCHING

    def test_a_failed_argument_ends_the_wait_for_the_others(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.send(events.Submitted(task("t", after=("a",)), "waits for its argument b"))
        driver.send(events.ArgumentsFailed("t", "its argument b failed"))
        run(driver, "a")
        assert driver.machine.record("t").code == "ARGUMENT_FAILED"
        assert driver.machine.unmet_prerequisites("t") is None

    def test_arguments_that_fail_late_say_nothing_of_one_that_waits_for_others(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.submit(task("t", after=("a",)))
        driver.send(events.ArgumentsFailed("t", "its argument b failed"))
        assert driver.state("t") is TaskState.PENDING

    def test_it_can_be_cancelled_meanwhile(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.submit(task("t", after=("a",)))
        driver.cancel("t")
        assert driver.state("t") is TaskState.CANCELLED
        run(driver, "a")
        assert driver.sent_to() == {"a": "a"}
        assert not driver.machine.has_unfinished()

    def test_they_count_for_max_queue(self) -> None:
        driver = ready(1, max_queue=1)
        driver.submit(task("a"))
        driver.submit(task("t", after=("a",)))
        driver.submit(task("u", after=("a",)))
        assert driver.end("u").error == "QueueFullError"

    def test_a_long_chain_fails_from_its_first_to_its_last(self) -> None:
        driver = ready(1)
        driver.submit(task("t0"))
        for number in range(1, 2000):
            driver.submit(task(f"t{number}", after=(f"t{number - 1}",)))
        driver.start("t0")
        driver.fail("t0")
        assert driver.state("t1999") is TaskState.FAILED
        assert "because t1998," in driver.end("t1999").message

    def test_a_bounded_number_of_dependents_is_notified_in_one_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "MAX_NOTIFICATIONS", 10)
        driver = ready(1)
        driver.submit(task("a"))
        for number in range(25):
            driver.submit(task(f"t{number}", after=("a",)))
        driver.start("a")
        output = driver.machine.handle(events.AttemptFinished("a", 1, "failed"), driver.now)
        ends = [one.task_id for one in output if isinstance(one, Complete)]
        assert ends == ["a", *(f"t{number}" for number in range(10))]
        assert isinstance(output[-1], Continue)
        driver.send(events.Continued())
        assert not driver.machine.has_unfinished()

    def test_a_dependent_that_is_cancelled_before_its_notification(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "MAX_NOTIFICATIONS", 1)
        driver = ready(2)
        driver.submit(task("a"))
        driver.submit(task("b"))
        for name in ("t", "u", "v"):
            driver.submit(task(name, after=("a", "b")))
        driver.start("a")
        driver.machine.handle(events.AttemptFinished("a", 1, "succeeded"), driver.now)  # only t is reported
        driver.machine.handle(events.CancelRequested("v", "not needed"), driver.now)
        driver.machine.handle(events.CancelRequested("u", "not needed"), driver.now)
        driver.send(events.Continued())
        assert [driver.state(name) for name in "tuv"] == ["PENDING", "CANCELLED", "CANCELLED"]
        run(driver, "b")
        assert driver.state("t") is TaskState.DISPATCHING

    def test_of_two_that_wait_for_one_the_other_goes_on_waiting(self) -> None:
        driver = ready(2)
        driver.submit(task("a"))
        driver.submit(task("t", after=("a",)))
        driver.submit(task("u", after=("a",)))
        driver.cancel("t")
        run(driver, "a")
        assert driver.state("u") is TaskState.DISPATCHING

    def test_an_owner_may_have_so_many_waiting(self) -> None:
        driver = ready(1, owners={"ada": {"max_queued": 2}})
        driver.submit(task("a", owner="bob"))
        driver.submit(task("t1", owner="ada", after=("a",)))
        driver.submit(task("t2", owner="ada"))
        driver.submit(task("t3", owner="ada"))
        assert driver.end("t3").error == "QueueFullError"
        assert "2 items of ada wait already and owners: ada: max_queued is 2" in driver.end("t3").message
        assert driver.end("t3").next_step == (
            "submit it again later, or raise owners: ada: max_queued; "
            "at a service by `rmcs owner set ada --max-queued N`"
        )

    def test_what_is_advised_can_be_typed_whatever_its_name(self) -> None:
        driver = ready(1, owners={"ada l": {"max_queued": 0}})
        assert driver.submit(task("first", owner="ada l")).state is TaskState.DISPATCHING
        driver.submit(task("t", owner="ada l"))
        assert "`rmcs owner set 'ada l' --max-queued N`" in (driver.end("t").next_step or "")

    def test_one_item_is_no_items(self) -> None:
        driver = ready(1, owners={"ada": {"max_queued": 1}})
        driver.submit(task("a", owner="bob"))
        driver.submit(task("t1", owner="ada"))
        driver.submit(task("t2", owner="ada"))
        assert "1 item of ada waits already and owners: ada: max_queued is 1" in driver.end("t2").message
        assert driver.submit(task("t4", owner="bob")).state is TaskState.QUEUED

    def test_who_is_held_counts_for_max_queue_too(self) -> None:
        driver = ready(1, max_queue=1)
        driver.submit(task("a"))
        driver.submit(task("t"))
        driver.send(events.HoldRequested("t"))
        driver.submit(task("u"))
        assert driver.end("u").error == "QueueFullError"

    def test_a_time_and_arguments(self) -> None:
        driver = ready(1)
        driver.send(events.Submitted(task("t", start_after=driver.now + 5), "waits for its argument b"))
        missing = driver.machine.unmet_prerequisites("t")
        assert missing is not None
        assert missing.unblocked_by == "its arguments have values and it is 1970-01-01 00:16:45 UTC"

    def test_an_argument_that_is_bound_to_a_cluster_that_is_gone(self) -> None:
        driver = ready(1)
        driver.send(events.Submitted(task("t"), "waits for its argument b"))
        driver.send(events.ArgumentsReady("t", pinned="gone"))
        assert driver.end("t").error == "ConfigurationError"
        assert driver.machine.unmet_prerequisites("t") is None

    def test_a_forgotten_one_counts_as_what_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = ready(4)
        for name in ("good", "bad"):
            driver.submit(task(name))
            driver.start(name)
        driver.succeed("good")
        driver.fail("bad")
        driver.machine.forget("good")
        driver.machine.forget("bad")
        assert driver.submit(task("t", after=("good",))).state is TaskState.DISPATCHING
        assert driver.submit(task("u", after=("bad",))).code == "DEPENDENCY_FAILED"
        monkeypatch.setattr(prerequisites, "KEPT_FORGOTTEN", 2)
        driver.machine.forget("u")
        assert driver.submit(task("v", after=("good",))).code == "UNKNOWN_DEPENDENCY"


class TestStartAfter:
    def test_it_is_queued_when_its_time_has_come(self) -> None:
        driver = ready(2)
        record = driver.submit(task("t", start_after=driver.now + 60))
        assert (record.state, record.code) == (TaskState.PENDING, "STARTS_LATER")
        assert record.sentence == "may start from 1970-01-01 00:17:40 UTC on"
        assert SetTimer("begin:t", 1060.0) in driver.last
        driver.fire("begin:t", after=60)
        assert record.state is TaskState.DISPATCHING

    def test_a_time_that_has_passed_is_none(self) -> None:
        driver = ready(2)
        assert driver.submit(task("t", start_after=driver.now)).state is TaskState.DISPATCHING
        assert "begin:t" not in driver.machine.timers

    def test_whatever_comes_last(self) -> None:
        driver = ready(4)
        driver.submit(task("a"))
        driver.submit(task("t", after=("a",), start_after=driver.now + 60))
        driver.submit(task("u", after=("a",), start_after=driver.now + 900))
        assert driver.machine.record("t").code == "WAITS_FOR_DEPENDENCIES"
        driver.fire("begin:t", after=60)
        assert driver.state("t") is TaskState.PENDING
        run(driver, "a")
        assert driver.state("t") is TaskState.DISPATCHING
        assert driver.machine.record("u").code == "STARTS_LATER"
        driver.fire("begin:u", after=900)
        assert driver.state("u") is TaskState.DISPATCHING

    def test_its_timer_goes_with_it(self) -> None:
        driver = ready(4)
        driver.submit(task("t", start_after=driver.now + 60))
        driver.cancel("t")
        assert driver.issued(ClearTimer) == [ClearTimer("begin:t")]
        driver.send(events.TimerFired("begin:t"))
        assert driver.state("t") is TaskState.CANCELLED


class TestContent:
    def test_an_equal_one_is_not_taken_while_the_first_is_not_over(self) -> None:
        driver = ready(4)
        driver.submit(task("t", content_key="k"))
        driver.send(events.Submitted(task("u", content_key="k")))
        assert [record.task.id for record in driver.machine.records()] == ["t"]
        assert driver.machine.id_for_content("k") == "t"
        driver.submit(task("v", content_key="other"))
        assert set(driver.sent_to()) == {"t", "v"}

    def test_it_is_no_cache(self) -> None:
        driver = ready(4)
        driver.submit(task("t", content_key="k"))
        run(driver, "t")
        assert driver.machine.id_for_content("k") is None
        driver.submit(task("u", content_key="k"))
        assert driver.machine.id_for_content("k") == "u"
        driver.machine.forget("t")
        assert driver.machine.id_for_content("k") == "u"

    def test_no_item_joins_one_that_is_being_cancelled(self) -> None:
        driver = ready(4)
        driver.submit(task("t", content_key="k"))
        driver.start("t")
        driver.cancel("t")
        assert driver.state("t") is TaskState.RUNNING
        driver.submit(task("u", content_key="k"))
        assert set(driver.sent_to()) == {"t", "u"}
        driver.stopped("t")
        assert driver.machine.id_for_content("k") == "u"


def test_nothing_of_one_that_was_waited_for_stays() -> None:
    driver = ready(4)
    driver.submit(task("first"))
    for name in ("a", "b"):
        driver.submit(task(name, after=("first",)))
    waiting = driver.machine._state.prerequisites._waiting_for
    assert set(waiting) == {"first"}
    driver.cancel("a")
    assert set(waiting) == {"first"}
    driver.cancel("b")
    assert waiting == {}
