"""A plan says what then happens: for the same item, at the same moment."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.common.tables import decision_rows, decision_text, fails_at_once
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task

NAMES = ("a", "b", "c")


def test_of_an_owner_whose_queue_is_paused() -> None:
    driver = ready(4)
    driver.send(events.QueuePaused("owner", "ann", "until Monday"))
    plan = driver.machine.plan(task("t", owner="ann"), driver.now)
    assert (plan.cluster, plan.code) == (None, "OWNER_PAUSED")
    assert decision_text(plan).splitlines()[:2] == [
        "OWNER_PAUSED: the queue of ann is paused: until Monday",
        "It can continue when an operator resumes the owner's queue.",
    ]
    assert [line.verdict for line in decision_rows(plan)] == ["fits"]
    assert driver.machine.plan(task("t", owner="bob"), driver.now).cluster == "a"


def test_it_leaves_what_owners_have_had_as_it_was() -> None:
    """A plan for an unknown owner leaves no account, and one for others moves nobody in the line."""
    asked, quiet = (Driver(cluster("a"), owners={"ann": {"max_running": 3}}) for _ in range(2))
    for driver in (asked, quiet):
        driver.link_up("a", 4)
        for name in ("ann", "bob", "ann", "bob", "eve", "ann"):
            driver.submit(task(f"{name}{driver.machine._state.unfinished}", cpus=2, owner=name), after=1)
    accounts = {name: dict(vars(one)) for name, one in asked.machine._state.queue._accounts.items()}
    assert list(accounts) == ["ann", "bob", "eve"]
    for number in range(50):
        for name in ("ann", "bob", f"guest{number}"):
            for cpus in (1, 2, 100):
                asked.machine.plan(task("t", cpus=cpus, owner=name, priority=number), asked.now + number)
    assert {name: vars(one) for name, one in asked.machine._state.queue._accounts.items()} == accounts
    for driver in (asked, quiet):
        for task_id in ("ann0", "bob1"):
            driver.start(task_id)
            driver.send(events.Continued(), after=3)
            driver.succeed(task_id)
    assert list(asked.sent_to()) == list(quiet.sent_to())
    assert len(asked.sent_to()) == 4


def test_of_an_owner_who_has_as_much_as_it_may() -> None:
    driver = Driver(cluster("a"), owners={"ann": {"max_running": 1, "max_gpus": 1}})
    driver.link_up("a", {"CPU": 8.0, "GPU": 4.0})
    gpus = task("g", requirements={"GPU": 2.0}, owner="ann")
    assert driver.machine.plan(gpus, driver.now).code == "OWNER_LIMIT"
    driver.submit(task("runs", owner="ann"))
    plan = driver.machine.plan(task("t", owner="ann"), driver.now)
    assert (plan.cluster, plan.code) == (None, "OWNER_LIMIT")
    assert plan.sentence == "ann: 1 of its items is on clusters; its max_running is 1"


def test_plan_with_a_full_queue() -> None:
    driver = ready(4, max_queue=1)
    driver.submit(task("all", cpus=4))
    driver.submit(task("waits"))
    assert driver.machine.plan(task("t", cpus=0), driver.now).cluster == "a", "it would start at once"
    plan = driver.machine.plan(task("t"), driver.now)
    assert (plan.cluster, plan.code) == (None, "QUEUE_FULL")
    assert plan.sentence == "it would be refused: 1 item waits already and max_queue is 1"
    assert plan.unblocked_by == "something that waits leaves the queue, or max_queue is raised"


@pytest.mark.parametrize("settings", [{"max_queue": 1}, {"owners": {"": {"max_running": 1}}}])
def test_an_infeasible_item_is_reported_before_other_reasons(settings: dict[str, Any]) -> None:
    driver = ready(4, **settings)
    driver.submit(task("all", cpus=4))
    driver.submit(task("waits"))
    plan = driver.machine.plan(task("t", cpus=9), driver.now)
    assert plan.code == "TOO_BIG"
    assert decision_text(plan).splitlines()[:2] == [
        "TOO_BIG: no cluster can take it, and waiting would not help",
        "Only this would help: a gets a node that is large enough.",
    ]


def test_a_permanent_reason_is_reported_before_a_temporary_one() -> None:
    driver = ready(4)
    driver.snapshot("a", 4, source="http")
    driver.send(events.LinkClosed("a", "it is over"))
    plan = driver.machine.plan(task("t", cpus=9), driver.now + 60)
    assert [one.code for one in plan.candidates[0].rejections] == ["STALE_SNAPSHOT", "TOO_BIG", "NO_CAPACITY"]
    assert plan.code == "TOO_BIG"
    assert plan.sentence.startswith("a: it requests 9 CPU")


def test_room_that_is_kept_for_another_is_for_the_more_urgent_ones() -> None:
    driver = ready(4)
    for number in range(4):
        driver.submit(task(f"s{number}", submitted_at=driver.now))
    driver.submit(task("wide", cpus=4, submitted_at=driver.now))
    driver.fire("keep", after=300)
    driver.succeed("s0")
    late = task("late", submitted_at=driver.now)
    urgent = task("urgent", submitted_at=driver.now, priority=9)
    assert driver.machine.plan(late, driver.now).code == "NO_CAPACITY"
    assert driver.machine.plan(urgent, driver.now).cluster == "a"
    assert driver.submit(late).state is TaskState.QUEUED
    assert driver.submit(urgent).state is TaskState.DISPATCHING


# ---- whatever the fleet is


@pytest.mark.parametrize("seed", range(200))
def test_a_plan_predicts_what_then_happens(seed: int) -> None:
    chance = Random(seed)
    driver = some_fleet(chance)
    for number in range(chance.randrange(14)):
        something_happens(driver, chance, number)
    item = some_item(chance, "new")
    plan = driver.machine.plan(item, driver.now)
    lines = decision_rows(plan)
    record = driver.submit(item)
    if plan.cluster is not None:
        assert (record.state, record.cluster) == (TaskState.DISPATCHING, plan.cluster)
        whys_chosen = [line.why.partition(";")[0] for line in lines if line.verdict == "chosen"]
        assert whys_chosen == ["passes every filter"]
    elif fails_at_once(lines):
        asked_anew = {"CLUSTER_UNREACHABLE", "CLUSTER_MISCONFIGURED"} & {one.partition(":")[0] for one in whys(lines)}
        waits = record.code.startswith("OWNER_") or bool(asked_anew)  # and fails then
        assert record.state in ((TaskState.FAILED, TaskState.QUEUED) if waits else (TaskState.FAILED,))
        assert any(one.permanent and one.code == plan.code for row in plan.candidates for one in row.rejections)
    elif plan.code == "QUEUE_FULL":
        assert (record.state, record.code) == (TaskState.FAILED, "QUEUE_FULL")
    else:
        assert record.state is TaskState.QUEUED
        assert driver.machine.explain_wait(item.id, driver.now).code == plan.code


def whys(lines: list[Any]) -> list[str]:
    return [one for line in lines for one in line.why.split("; ")]


def some_fleet(chance: Random) -> Driver:
    """Three clusters, each linked, seen once, silent or misconfigured."""
    odd: list[dict[str, Any]] = [{}, {}, {"tags": ("x",)}, {"max_running_jobs": 1}, {"autoscaling": True}]
    driver = Driver(
        *(cluster(name, **chance.choice(odd)) for name in NAMES),
        submission_interval_s=chance.choice([0, 40]),
        resource_threshold=chance.choice([1, 0.7]),
        execution_mode=chance.choice(["parallel", "parallel", "serial"]),
        owners={"ann": {"max_running": chance.choice([1, 2, None])}, "bob": {"max_queued": chance.choice([None, 2])}},
        max_queue=chance.choice([1000, 4]),
    )
    for name in NAMES:
        match chance.randrange(8):
            case 0:
                driver.no_answer(name)
            case 1:
                driver.no_answer(name, permanent=True)
            case 2:
                driver.snapshot(name, 8, source="http")
            case 3:
                pass
            case _:
                driver.link_up(name, *(chance.choice([2, 4, 8]) for _ in range(chance.choice([1, 2]))))
    return driver


def some_item(chance: Random, name: str) -> TaskDescription:
    values: dict[str, Any] = {"priority": chance.choice([0, 0, 5]), "owner": chance.choice(["ann", "bob"])}
    if chance.random() < 0.3:
        values.update(preferred_cluster=chance.choice(NAMES), fallback=chance.choice(["any", "wait"]))
    if chance.random() < 0.2:
        values[chance.choice(["tags", "require_tags"])] = ("x",)
    make, cpus = chance.choice([task, task, job, actor]), chance.choice([0, 1, 1, 2, 4, 8, 30])
    if make is job and chance.random() < 0.5:
        held = {"CPU": float(chance.choice([1, 4, 9]))}
        values["job"] = JobDescription("python x.py", entrypoint_resources=held)
    return make(name, cpus, **values)


def something_happens(driver: Driver, chance: Random, number: int) -> None:
    name, live = chance.choice(NAMES), [one.task.id for one in driver.machine.records() if one.live]
    match chance.randrange(12):
        case 0:
            driver.send(events.CordonChanged(name, True))
        case 1:
            driver.send(events.QueuePaused("cluster", name, ""))
        case 2:
            driver.send(events.QueuePaused("owner", chance.choice(["ann", "bob"]), "for a reason"))
        case 3:
            driver.send(events.LinkDown(name, "it was cut"))
        case 4 if live:
            driver.succeed(chance.choice(live))
        case 5:
            driver.now += chance.choice([1, 6, 50])
        case _:
            driver.submit(some_item(chance, f"t{number}"))
