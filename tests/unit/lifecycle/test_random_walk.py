"""Seeded walks over machine and fake fleet, with faults at every edge; the fleet judges after every call."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import ActorDescription, JobDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from tests.unit.lifecycle.fake_fleet import FakeFleet, fleet_of

STEPS = 250
SEEDS = range(72)

OWNERS = ["", "", "ann", "bob"]

ACTIONS = [
    *3 * ["submit"],
    *2 * ["answer"],
    *5 * ["step"],
    *3 * ["hurry"],
    *2 * ["time"],
    "mute",
    "end",
    "link",
    "cancel",
    "arguments",
    "old",
    "fleet",
    "dead",
]
"""What may happen next; what stands here more often happens more often."""

CALM = [*6 * ["submit"], *8 * ["step"], *3 * ["answer"], *3 * ["time"], "order", "end", "cancel", "arguments", "old"]
"""The same where clusters are well, and people give orders."""

SHORT = [
    *5 * ["submit"],
    *4 * ["step"],
    *4 * ["hurry"],
    *2 * ["answer"],
    "time",
    "link",
    "end",
    "cancel",
    *2 * ["order"],
]
"""The same where there is much short work."""

STYLES = [ACTIONS, CALM, SHORT]


def some_item(chance: Random, number: int, actions: list[str]) -> TaskDescription:
    kind: Any = "task" if actions is SHORT else chance.choice(["task", "task", "task", "task", "job", "actor"])
    clusters = [None, None, "a", "b"] if actions is not SHORT else [None, "a"]
    sizes = {1: [1.0, 2.0, 3.0, 8.0], 2: [8.0, 8.0, 8.0, 1.0]}.get(STYLES.index(actions), [0.5, 1.0, 3.0, 8.0, 8.0])
    return TaskDescription(
        id=f"t{number}",
        kind=kind,
        name=f"t{number}",
        requirements={} if kind in ("job", "actor") else {"CPU": chance.choice(sizes)},
        preferred_cluster=chance.choice(clusters),
        fallback=chance.choice(["any", "any", "wait"]),
        priority=chance.choice([0, 0, 1]),
        owner=chance.choice(OWNERS),
        function_digest=chance.choice(["f1", "f1", "f2"]) if kind == "task" else None,
        retries=chance.choice([0, 2]),
        retry_lost=chance.random() < 0.5,
        run_timeout=chance.choice([None, 5.0]),
        queue_timeout=chance.choice([None, None, 20.0]),
        job=JobDescription("true") if kind == "job" else None,
        actor=some_actor(chance, number) if kind == "actor" else None,
    )


def some_actor(chance: Random, number: int) -> ActorDescription:
    return ActorDescription(
        f"t{number}",
        placement={"CPU": chance.choice([1.0, 3.0])},
        max_restarts=chance.choice([0, 1, 5]),
        restart_elsewhere=chance.random() < 0.5,
        ready_timeout=chance.choice([None, 6.0]),
    )


def some_settings(chance: Random) -> Settings:
    return Settings(
        resource_threshold=chance.choice([1, 0.7]),  # one number for all
        submission_interval_s=chance.choice([0, 3]),
        execution_mode=chance.choice(["parallel", "parallel", "serial"]),
        max_queue=chance.choice([100_000, 15]),
        breaker_failures=chance.choice([2, 5, 100]),
        breaker_recovery_s=20,
        lost_after_s=15,
        heartbeat_s=1,
        lease_s=5,
        start_grace_s=4,
        snapshot_interval_s=2,
        reserve_after_s=chance.choice([0, 5, 300]),
        ageing_s=chance.choice([5, 3600]),
        order=chance.choice(["fair", "fair", "fifo"]),
        owners={"bob": {"max_running": 2, "max_queued": 5, "weight": 2}},  # validated into the model
        retry_backoff={"base_s": 0.5, "max_s": 5},  # validated into the model
    )


def some_order(chance: Random, task_id: str, cluster: str) -> events.Event:
    """What an operator may want."""
    owner = chance.choice(OWNERS)
    return chance.choice(
        [
            events.HoldRequested(task_id, "wait"),
            events.ReleaseRequested(task_id),
            events.PriorityChanged(task_id, chance.choice([-1, 0, 3])),
            *2 * [events.QueueResumed("cluster", cluster), events.QueueResumed("owner", owner)],
            events.QueuePaused("cluster", cluster, "for now"),
            events.QueuePaused("owner", owner),
            events.CordonChanged(cluster, cordoned=True),
            *2 * [events.CordonChanged(cluster, cordoned=False)],
            events.OwnerLimitsChanged(owner, OwnerLimits(weight=3, max_running=chance.choice([None, 0, 1, 3]))),
            events.OwnerLimitsChanged(owner, None),
        ]
    )


def hurry(fleet: FakeFleet, chance: Random) -> None:
    """What was sent ahead arrives before anything else happens; then Ray runs some of it early, or a place is freed."""
    waiting = [one for one in fleet.live.values() if one.ahead]
    for one in waiting:
        fleet.step(one, "accepted")
    for one in chance.sample(waiting, chance.randint(0, len(waiting))):
        fleet.step(one, "started")
    fleet.advance(chance.choice([0.0, 0.3, 1.5]))
    for one in [one for one in fleet.live.values() if not one.ahead and one.task.kind == "task"][:2]:
        fleet.step(one, "started")
        fleet.step(one, "succeeded")
    fleet.advance(chance.choice([0.0, 0.3]))


def walk(seed: int) -> FakeFleet:
    """Some time in the life of a fleet, in one of three styles."""
    chance = Random(seed)
    fleet = FakeFleet(SchedulerMachine(some_settings(chance), fleet_of("a", "b", "c")), chance)
    for number in range(STEPS):
        fault_or_fact(fleet, chance, number, STYLES[seed % 3])
    return fleet


def fault_or_fact(fleet: FakeFleet, chance: Random, number: int, actions: list[str]) -> None:
    """One thing happens."""
    name = chance.choice(["a", "b", "c"])
    one = chance.choice(list(fleet.live.values())) if fleet.live else None
    match chance.choice(actions):
        case "submit":
            fleet.submit(some_item(chance, number, actions), chance.choice(["", "", "", "waits for an argument"]))
        case "arguments" if fleet.incomplete:
            pinned = chance.choice([None, None, "a"])
            fleet.arguments(chance.choice(fleet.incomplete), well=chance.random() < 0.8, pinned=pinned)
        case "answer" if fleet.asked:
            fleet.answer(chance.choice(fleet.asked), well=True)
        case "mute" if fleet.asked:
            fleet.answer(chance.choice(fleet.asked), well=chance.random() < 0.3)
        case "step" if one is not None:
            fleet.step(one, chance.choice(["accepted", "started", "succeeded", "succeeded"]))
        case "end" if one is not None:
            failure = chance.choice(["user", "crash", "cluster", "permanent"])
            fleet.step(one, chance.choice(["failed", "cancelled", "refused"]), failure)
        case "hurry" if any(other.ahead for other in fleet.live.values()):
            hurry(fleet, chance)
        case "link":
            fleet.link(name, chance.choice(["up", "up", "down", "closed", "failed"]))
        case "cancel" if fleet.tasks:
            task_id = chance.choice(list(fleet.tasks))
            fleet.feed(events.CancelRequested(task_id, "why not", chance.random() < 0.3))
        case "fleet":
            known = {metadata.name: metadata for metadata in fleet.machine.registry.list()}
            if name == "c" and chance.random() < 0.1:
                fleet.feed(events.ClusterChanged("c", None))
            elif name in known:
                fleet.feed(events.ClusterChanged(name, known[name], cordoned=chance.random() < 0.5))
        case "dead" if chance.random() < 0.3:
            fleet.declare_dead(name)
        case "order" if fleet.tasks:
            fleet.feed(some_order(chance, chance.choice(list(fleet.tasks)), name))
        case "old" if fleet.old_mail:
            late = chance.choice(fleet.old_mail)
            # Old events of links would be a lie about now, not a late truth; of attempts and snapshots it is harmless.
            if isinstance(late, events.Started | events.AttemptFinished | events.DispatchAccepted | events.PlaceMoved):
                fleet.feed(late)
        case _:
            fleet.advance(chance.choice([0.1, 0.5, 2.0, 8.0]))


@cache
def finished(seed: int) -> FakeFleet:
    fleet = walk(seed)
    fleet.settle()
    return fleet


@pytest.mark.parametrize("seed", SEEDS)
def test_every_item_ends_once_and_nothing_is_left(seed: int) -> None:
    fleet = finished(seed)
    fleet.check_all_ended()
    core = fleet.machine._state
    assert (core.wide_reservations, core.held_items, core.queue.unblocked_owners) == ({}, set(), set())
    assert {owner for owner in core.queue._accounts if core.queue.account(owner).paused is None} == set()
    for metadata in fleet.machine.registry.list():
        state = fleet.machine.registry.state(metadata.name)
        assert state.ledger.reservations == {}
        assert all(node.reserved == {} for node in state.ledger.nodes())
        assert state.slots.running_jobs == 0
        assert state.slots.held == {}
        assert state.slots.prefetched == {}
    for record in fleet.machine.records():
        assert record.state.terminal
        assert record.history[0].state is TaskState.PENDING
        assert [step.at for step in record.history] == sorted(step.at for step in record.history)


def test_the_walks_meet_what_is_rare() -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += finished(seed).met
    rare = [
        "room kept",
        "sent ahead",
        "place taken over",
        "taken back",
        "taken back in vain",
        "started before its turn",
        "died and was declared dead",
    ]
    assert {name: met[name] for name in rare if met[name] < 2} == {}


def test_the_same_seed_gives_the_same_history() -> None:
    histories = [[record.history for record in walk(7).machine.records()] for _ in range(2)]
    assert histories[0] == histories[1]
