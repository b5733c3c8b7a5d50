"""Dispatcher: placed attempts reach their cluster in order, and every outcome comes back as an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import ActorDescription, FailureClass, TaskDescription
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import PreparedAttempt
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import BackgroundTasks, Dispatcher
from ray_multicluster_scheduler.scheduler.scheduler_core.link_runner import LinkRunner
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector
from tests.support.eventually import eventually
from tests.support.fake_link import FakeLink
from tests.unit.lifecycle.driver import job, task


class Links:
    """A pool whose links take as long to come up as a test wants, or fail as it wants."""

    def __init__(self, make: Callable[[str], FakeLink]) -> None:
        self._make = make
        self.up: dict[str, FakeLink] = {}
        self.open = asyncio.Event()
        self.problem: Exception | None = None
        self.asked = 0

    def existing_link(self, cluster: str) -> FakeLink | None:
        return self.up.get(cluster)

    async def link(self, cluster: str) -> FakeLink:
        self.asked += 1
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        return self.up.setdefault(cluster, self._make(cluster))


class Prepare:
    """A preparation that may take its time."""

    def __init__(self) -> None:
        self.homes = ["/home/alice", "/Users/alice"]
        self.prepared: dict[str, PreparedAttempt] = {}
        self.slow: set[str] = set()
        self.done = asyncio.Event()
        self.problem: Exception | None = None

    def home_of(self, cluster: str) -> str | None:
        return "/Users/alice"

    def needs_upload(self, item: TaskDescription, cluster: str) -> bool:
        return item.id in self.slow

    def plain_task(self, item: TaskDescription, cluster: str, attempt: int) -> PreparedAttempt:
        return PreparedAttempt(cluster, attempt)

    async def task(self, item: TaskDescription, cluster: str, attempt: int) -> PreparedAttempt:
        await self.done.wait()
        if self.problem is not None:
            raise self.problem
        return PreparedAttempt(cluster, attempt, {"pip": ["x"]})


class RecordingRunner:
    """Jobs and snapshots, as far as the dispatcher passes them on."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.adopted: list[str] = []
        self.refreshed: list[str] = []
        self.checked: list[str] = []

    def dispatch(self, cluster: str, orders: list[Dispatch]) -> None:
        self.submitted += [order.task_id for order in orders]

    def cancel(self, order: CancelAttempt) -> None:
        self.cancelled.append(order.task_id)

    def adopt(self, order: AdoptAttempt) -> None:
        self.adopted.append(order.task_id)

    async def refresh(self, cluster: str) -> None:
        self.refreshed.append(cluster)

    async def check_dashboard(self, cluster: str) -> None:
        self.checked.append(cluster)


class Bench:
    """A dispatcher and everything around it. The links' Python is 3.11."""

    def __init__(self, python: str = "3.11.2") -> None:
        self.posted: list[events.Event] = []
        self.payload_cache, self.preparation, self.executor = PayloadCache(), Prepare(), RecordingRunner()
        collector = ResultCollector(self.posted.append, OutputStore())
        self.links = Links(lambda cluster: FakeLink(cluster, collector))
        self.items: dict[str, TaskDescription] = {}
        self.link_runner = LinkRunner(
            self.items.__getitem__,
            self.posted.append,
            self.payload_cache,
            cast("Any", self.links),
            cast("Any", self.preparation),
            python,
            lost_after_s=0.05,
            background=(background := BackgroundTasks()),
        )
        runners = {**dict.fromkeys(("task", "actor", "gang"), self.link_runner), "job": cast("Any", self.executor)}
        self.dispatcher = Dispatcher(self.items.__getitem__, runners, cast("Any", self.executor), background)

    def order(self, task_id: str, cluster: str = "a", **values: Any) -> Dispatch:
        payload = {
            "function_digest": self.payload_cache.put(b"fn"),
            "arguments_digest": self.payload_cache.put(task_id.encode()),
        }
        self.items.setdefault(task_id, task(task_id, **{**payload, **values}))
        return Dispatch(task_id, 1, 7, cluster)

    def send(self, *task_ids: str) -> None:
        self.dispatcher.dispatch([self.order(task_id) for task_id in task_ids])

    def sent(self, cluster: str = "a") -> list[str]:
        return [call.task_id for call in self.links.up[cluster].calls] if cluster in self.links.up else []


def end_of(task_id: str, *, force: bool = False) -> CancelAttempt:
    return CancelAttempt(task_id, 1, "a", force)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_waits_for_a_link_leaves_in_order_when_it_is_there(bench: Bench) -> None:
    bench.send("t1", "t2")
    bench.send("t3")
    await asyncio.sleep(0)
    assert bench.sent() == []
    bench.links.open.set()
    await eventually(lambda: len(bench.sent()) == 3)
    bench.send("t4")
    assert bench.sent() == ["t1", "t2", "t3", "t4"]
    assert bench.links.asked == 1
    assert bench.links.up["a"].calls[0].fence == 7
    assert bench.links.up["a"].calls[1].arguments == b"t2"
    await bench.dispatcher.close()


async def test_home_directories_go_along_only_with_those_who_have_such_paths(bench: Bench) -> None:
    bench.links.open.set()
    bench.dispatcher.dispatch([bench.order("t1", home_paths=("/home/alice/x",)), bench.order("t2")])
    await eventually(lambda: len(bench.sent()) == 2)
    with_paths, without = bench.links.up["a"].calls
    assert (with_paths.homes, with_paths.target_home) == (("/home/alice", "/Users/alice"), "/Users/alice")
    assert (without.homes, without.target_home) == ((), None)


@pytest.mark.parametrize(
    ("problem", "code", "permanent"),
    [
        (LinkProblem("no ray there", code="AGENT_NO_RAY", permanent=True, cluster="a"), "AGENT_NO_RAY", True),
        (ClusterConnectionError("no route", cluster="a"), "LINK_FAILED", False),
        (KeyError("a"), "LINK_FAILED", False),
    ],
)
async def test_a_link_that_cannot_be_made_refuses_all_that_waited(
    bench: Bench, problem: Exception, code: str, permanent: bool
) -> None:
    bench.links.problem = problem
    bench.send("t1", "t2")
    bench.links.open.set()
    await eventually(lambda: len(bench.posted) == 3)
    failed = bench.posted[0]
    assert isinstance(failed, events.LinkFailed)
    assert (failed.cluster, failed.code, failed.permanent) == ("a", code, permanent)
    refused = bench.posted[1:]
    assert [(event.task_id, event.failure, event.code) for event in refused] == [
        ("t1", FailureClass.CLUSTER, code),
        ("t2", FailureClass.CLUSTER, code),
    ]
    bench.links.problem = None
    bench.send("t3")
    await eventually(lambda: bench.sent() == ["t3"])


async def test_an_attempt_that_waits_for_its_link_is_taken_back(bench: Bench) -> None:
    bench.send("t1", "t2")
    bench.dispatcher.cancel(end_of("t1"))
    assert bench.posted == [events.AttemptFinished("t1", 1, "cancelled")]
    bench.links.open.set()
    await eventually(bench.sent)
    assert bench.sent() == ["t2"]


async def test_an_attempt_that_was_sent_is_cancelled_over_there(bench: Bench) -> None:
    bench.links.open.set()
    bench.send("t1")
    await eventually(bench.sent)
    bench.dispatcher.cancel(end_of("t1", force=True))
    await eventually(lambda: bench.posted)
    assert bench.links.up["a"].cancelled == [("t1", 1, True)]
    assert bench.posted == [events.AttemptFinished("t1", 1, "cancelled")]


async def test_an_attempt_that_is_prepared_does_not_hold_up_others(bench: Bench) -> None:
    bench.preparation.slow = {"t1", "t2"}
    bench.links.open.set()
    bench.send("t1", "t2", "t3")
    await eventually(bench.sent)
    assert bench.sent() == ["t3"]
    bench.dispatcher.cancel(end_of("t2"))
    bench.preparation.done.set()
    await eventually(lambda: len(bench.sent()) == 2)
    assert bench.links.up["a"].calls[-1].runtime_env == {"pip": ["x"]}
    assert bench.posted == [events.AttemptFinished("t2", 1, "cancelled")]
    assert bench.preparation.prepared["t1"].runtime_env == {"pip": ["x"]}


@pytest.mark.parametrize(
    "problem", [TaskSubmissionError("the folder x is not there"), OSError("the folder x is not there")]
)
async def test_an_attempt_that_cannot_be_prepared_is_refused_for_good(bench: Bench, problem: Exception) -> None:
    bench.preparation.slow = {"t1"}
    bench.preparation.problem = problem
    bench.preparation.done.set()
    bench.links.open.set()
    bench.send("t1")
    await eventually(lambda: bench.posted)
    refused = bench.posted[0]
    assert isinstance(refused, events.DispatchRefused)
    assert refused.failure is FailureClass.PERMANENT
    assert "the folder x is not there" in refused.sentence


async def test_jobs_and_refreshes_start_no_agent(bench: Bench) -> None:
    bench.items["j1"] = job("j1")
    bench.dispatcher.dispatch([Dispatch("j1", 1, 1, "a")])
    bench.dispatcher.cancel(end_of("j1"))
    bench.dispatcher.refresh("a")
    bench.dispatcher.check_dashboard("b")
    await eventually(lambda: bench.executor.submitted and bench.executor.refreshed and bench.executor.checked)
    assert bench.executor.checked == ["b"]
    assert (bench.executor.submitted, bench.executor.cancelled, bench.executor.refreshed) == (["j1"], ["j1"], ["a"])
    assert bench.links.asked == 0, "a program that only submits jobs starts no agent"


async def test_items_of_different_kinds_reach_one_cluster_in_one_batch(bench: Bench) -> None:
    bench.links.open.set()
    orders = [bench.order("t1"), bench.order("x1"), bench.order("t2")]
    bench.items["x1"] = replace(bench.items["x1"], kind="actor", actor=ActorDescription("x1"))
    bench.dispatcher.dispatch(orders)
    await eventually(lambda: len(bench.sent()) == 3)
    assert bench.sent() == ["t1", "x1", "t2"]


async def test_close_gives_up_what_is_under_way(bench: Bench) -> None:
    bench.send("t1")
    await asyncio.sleep(0)
    await bench.dispatcher.close()
    assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []


async def test_a_cluster_with_another_python_gets_no_task_that_waited_for_its_link() -> None:
    bench = Bench(python="3.12.1")
    bench.links.open.set()
    bench.send("t1", "t2")
    await eventually(lambda: len(bench.posted) == 2)
    refused = [event for event in bench.posted if isinstance(event, events.DispatchRefused)]
    assert [(event.task_id, event.code) for event in refused] == [("t1", "PYTHON_MISMATCH"), ("t2", "PYTHON_MISMATCH")]
    assert bench.sent() == []


async def test_an_upload_that_outlives_its_link_is_refused_and_not_lost() -> None:
    bench = Bench()
    bench.links.open.set()
    bench.preparation.slow = {"t1"}
    bench.send("t1")
    await eventually(lambda: bench.links.up)
    bench.links.up.clear()
    bench.preparation.done.set()
    await eventually(lambda: bench.posted)
    (refused,) = bench.posted
    assert isinstance(refused, events.DispatchRefused)
    assert (refused.code, refused.failure) == ("LINK_CLOSED", FailureClass.CLUSTER)


async def test_one_sent_ahead_that_waits_for_its_link_is_taken_back(bench: Bench) -> None:
    bench.dispatcher.dispatch([replace(bench.order("t1"), ahead="overlap"), bench.order("t2")])
    bench.dispatcher.recall(RecallAttempt("t1", 1, "a"))
    assert bench.posted == [events.AttemptFinished("t1", 1, "cancelled")]
    bench.links.open.set()
    await eventually(lambda: "a" in bench.links.up and bench.links.up["a"].calls)
    assert [call.task_id for call in bench.links.up["a"].calls] == ["t2"]


async def test_a_prefetched_attempt_that_waits_for_its_link_gets_its_slot(bench: Bench) -> None:
    bench.dispatcher.dispatch([replace(bench.order("t1"), ahead="overlap")])
    bench.dispatcher.start(StartAttempt("t1", 1, "a"))
    bench.links.open.set()
    await eventually(lambda: "a" in bench.links.up and bench.links.up["a"].calls)
    assert [call.ahead for call in bench.links.up["a"].calls] == [""]


async def test_a_prefetched_attempt_in_preparation_gets_its_slot_or_is_recalled(bench: Bench) -> None:
    bench.links.open.set()
    bench.preparation.slow = {"t1", "t2"}
    bench.dispatcher.dispatch([bench.order("t0")])
    await eventually(lambda: "a" in bench.links.up)
    bench.dispatcher.dispatch([replace(bench.order(name), ahead="overlap") for name in ("t1", "t2")])
    bench.dispatcher.start(StartAttempt("t1", 1, "a"))
    bench.dispatcher.recall(RecallAttempt("t2", 1, "a"))
    bench.preparation.done.set()
    await eventually(lambda: events.AttemptFinished("t2", 1, "cancelled") in bench.posted)
    await eventually(lambda: len(bench.links.up["a"].calls) == 2)
    assert [(call.task_id, call.ahead) for call in bench.links.up["a"].calls] == [("t0", ""), ("t1", "")]


# ---- attempts of the process before


async def test_what_ran_on_a_linked_cluster_is_asked_for_there(bench: Bench) -> None:
    bench.links.open.set()
    bench.send("t1")
    await eventually(bench.sent)
    bench.order("t2")
    bench.dispatcher.adopt(AdoptAttempt("t2", 3, 7, "a"))
    assert bench.links.up["a"].adopted == [("t2", 3)]
    assert bench.sent() == ["t1"]


async def test_a_job_is_watched_where_it_is(bench: Bench) -> None:
    bench.items["j"] = job("j")
    bench.dispatcher.adopt(AdoptAttempt("j", 1, 7, "a"))
    assert (bench.executor.adopted, bench.executor.submitted) == (["j"], [])


async def test_an_attempt_of_an_unknown_agent_ends_with_its_lease(bench: Bench) -> None:
    bench.order("t1")
    bench.dispatcher.adopt(AdoptAttempt("t1", 2, 7, "a"))
    assert bench.posted == []
    await eventually(lambda: bench.posted)
    (over,) = bench.posted
    assert isinstance(over, events.AttemptFinished)
    assert (over.task_id, over.attempt, over.failure, over.code) == ("t1", 2, FailureClass.CLUSTER, "AGENT_UNKNOWN")


async def test_one_that_may_have_been_sent_before_is_asked_for_and_not_refused(bench: Bench) -> None:
    """Its holder reports what becomes of it; a refusal would let it run elsewhere as well."""
    bench.links.up["a"] = bench.links._make("a")
    bench.preparation.slow = {"t1", "t2"}
    bench.preparation.problem = ClusterConnectionError("the dashboard is silent", cluster="a")
    bench.preparation.done.set()
    bench.dispatcher.dispatch([replace(bench.order("t1"), again=True), bench.order("t2")])
    await eventually(lambda: bench.posted)
    await bench.dispatcher.close()
    assert bench.links.up["a"].adopted == [("t1", 1)]
    assert [event.task_id for event in bench.posted if isinstance(event, events.DispatchRefused)] == ["t2"]


async def test_attempt_of_abandoned_agent_is_refused_after_lease(bench: Bench) -> None:
    bench.links.problem = KeyError("gone")
    bench.links.open.set()
    bench.link_runner.abandoned_clusters = {"gone"}
    bench.dispatcher.dispatch([replace(bench.order("t1", "gone"), again=True), bench.order("t2", "gone")])

    def refused() -> list[str]:
        return [event.task_id for event in bench.posted if isinstance(event, events.DispatchRefused)]

    await eventually(refused)
    assert refused() == ["t2"]
    await eventually(lambda: len(refused()) == 2)
    assert refused() == ["t2", "t1"]


async def test_where_nothing_can_be_alive_it_is_refused_at_once(bench: Bench) -> None:
    bench.links.problem = ClusterConnectionError("no route", cluster="a")
    bench.links.open.set()
    bench.link_runner.orphan_timeout_s = 1000.0
    bench.dispatcher.dispatch([replace(bench.order("t1"), again=True)])
    await eventually(lambda: any(isinstance(event, events.DispatchRefused) for event in bench.posted))
