"""Random histories of a fleet, checked by an evaluator that shares nothing with the policies (bench/_naive.py).

Two promises hold after every single event, however cleverly the machine avoids work: a decision and its table are those
that the rules give for the fleet as it was, and nobody waits whom some cluster would take.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import pytest

from bench._naive import differences, evaluate
from ray_multicluster_scheduler.common.model import ClusterMetadata, FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    ClearTimer,
    Dispatch,
    RefreshSnapshot,
    SetTimer,
)
from ray_multicluster_scheduler.scheduler.policy import reasons
from tests.unit.lifecycle.driver import FREE, Driver, actor, cluster, job, snapshot, task

STEPS = 200
GIB = 1024.0**3
SIZES: dict[str, list[dict[str, float]]] = {
    "a": [{"CPU": 4.0, "memory": 8 * GIB}],
    "b": [{"CPU": 2.0, "memory": 4 * GIB}, {"CPU": 8.0, "memory": 16 * GIB, "GPU": 2.0}],
    "c": [{"CPU": 8.0, "memory": 32 * GIB, "disk": 3.0}],
    "d": [{"CPU": 3.0, "memory": 8 * GIB}],
    "e": [{"CPU": 2.0, "memory": 4 * GIB}],
}
MAX_RUNNING = 3


def fleet() -> list[ClusterMetadata]:
    return [
        cluster("a", tags=("x",), prefer=True),
        cluster("b", tags=("x", "y"), weight=1.2, max_running_jobs=2),
        cluster("c", max_in_flight=6),
        cluster("d", tags=("y",), carrier="ray_client"),
        cluster("e", autoscaling=True, max_node={"CPU": 4.0, "memory": 8 * GIB}),
    ]


def some_settings(chance: Random) -> dict[str, Any]:
    return chance.choice(
        [
            {},
            {"resource_threshold": 0.7, "submission_interval_s": 20},
            {"resource_threshold": {"cpu": 0.9, "gpu": 0.5, "memory": 1.0}, "execution_mode": "serial"},
            {"combine": "chain", "weights": {"headroom": 1.0, "load": 1.0}},
            {"submission_interval_s": 5, "submission_interval_kinds": ["task", "actor", "job"]},
            {"owners": {"ann": {"max_running": MAX_RUNNING, "weight": 2}}},
        ]
    )


class Walk:
    """Feeds one event after another and checks what came of it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.other_chance = Random(f"limits {seed}")
        given = some_settings(chance)
        self.settings = Settings(**{**FREE, **given})
        self.driver = Driver(*fleet(), **given)
        self.timers: dict[str, float] = {}
        self.last_placed: dict[str, int] = {}
        self.others: dict[str, float] = {}
        self.silent: set[str] = set()
        self.cordoned: set[str] = set()
        self.limits: dict[str, OwnerLimits] = {}
        self.paused: set[tuple[Literal["cluster", "owner"], str]] = set()
        self.checked = self.submitted = self.placed = 0
        for name in SIZES:
            self.driver.send(events.LinkUp(name, "3.11.4", "2.60.0", "s1"))
            self.tell(name)

    def feed(self, event: events.Event) -> None:
        views = [self.driver.machine.view(name, self.driver.now) for name in SIZES]
        before = dict(self.last_placed)
        out = self.driver.send(event)
        sent = [one for one in out if isinstance(one, Dispatch)]
        for one in sent:
            self.placed += 1
            self.last_placed[one.cluster] = self.placed
        for step in out:
            if isinstance(step, SetTimer):
                self.timers[step.key] = step.at
            elif isinstance(step, ClearTimer):
                self.timers.pop(step.key, None)
        if isinstance(event, events.Submitted) and [one.task_id for one in sent] == [event.task.id]:
            decision = self.driver.machine.record(event.task.id).decision
            assert decision is not None
            answer = evaluate(event.task, views, self.settings, before)
            assert differences(decision, answer) == [], event.task
            self.checked += 1
        self.nobody_waits_in_vain()
        for step in out:
            if isinstance(step, RefreshSnapshot) and step.cluster not in self.silent:
                self.tell(step.cluster)

    def nobody_waits_in_vain(self) -> None:
        machine, now = self.driver.machine, self.driver.now
        views = [machine.view(name, now) for name in SIZES]
        for record in machine.records():
            queued = record.state is TaskState.QUEUED and record.held is None
            if not queued or record.code == reasons.BETTER_IS_ASKED or self.is_stopped(record.task.owner):
                continue
            answer = evaluate(record.wanted, views, self.settings, {}, retry=record.retry)
            assert answer.winner is None, f"{record.task} waits: {record.code}, {record.sentence}"

    def is_stopped(self, owner: str) -> bool:
        """May nothing of this owner's start, whatever is free?"""
        limits = self.limits.get(owner) or self.settings.owners.get(owner)
        running = sum(1 for one in self.driver.machine.records() if one.live and one.task.owner == owner)
        full = limits is not None and limits.max_running is not None and running >= limits.max_running
        return full or ("owner", owner) in self.paused

    def step(self) -> None:
        self.driver.now += self.chance.choice([0.0, 0.01, 0.3, 1.0])
        while due := sorted(key for key, at in self.timers.items() if at <= self.driver.now):
            del self.timers[due[0]]
            self.feed(events.TimerFired(due[0]))
        self.chance.choices(
            [self.submit, self.end, self.others_change, self.start, self.link, self.cordon, self.pause, self.touch],
            [16, 12, 4, 4, 2, 2, 2, 3],
        )[0]()
        if self.other_chance.random() < 0.05:
            self.limit()

    # ---- what happens

    def submit(self) -> None:
        self.submitted += 1
        self.feed(events.Submitted(self.item(f"t{self.submitted}")))

    def item(self, task_id: str) -> TaskDescription:
        chance = self.chance
        cpus = chance.choice([0, 0.5, 1, 1, 2, 3])
        preference: dict[str, Any] = {
            "owner": chance.choice(["", "ann"]),
            "priority": chance.choice([0, 0, 0, 5]),
            "tags": chance.choice([(), (), ("x",), ("y", "z")]),
            "require_tags": chance.choice([(), (), (), ("x",)]),
            "deny_clusters": chance.choice([(), (), ("a",)]),
            "allow_clusters": chance.choice([None, None, None, ("a", "b")]),
            "preferred_cluster": chance.choice([None, None, "a", "b", "c"]),
            "fallback": chance.choice(["any", "any", "wait"]),
            "retries": 1,
        }
        match chance.randrange(6):
            case 0:
                return job(task_id, cpus, **preference)
            case 1:
                return actor(task_id, cpus, **preference)
            case 2:
                extra = chance.choice([{"GPU": 1.0}, {"disk": 1.0}, {"memory": 6 * GIB}])
                return task(task_id, requirements={"CPU": 1.0, **extra}, **preference)
        return task(task_id, cpus, **preference)

    def live(self) -> list[str]:
        states = (TaskState.DISPATCHING, TaskState.RUNNING)
        return [one.task.id for one in self.driver.machine.records() if one.state in states]

    def start(self) -> None:
        if live := self.live():
            task_id = self.chance.choice(live)
            self.feed(events.Started(task_id, self.driver.attempt(task_id), self.driver.now))

    def end(self) -> None:
        if not (live := self.live()):
            return
        task_id = self.chance.choice(live)
        attempt = self.driver.attempt(task_id)
        if self.chance.random() < 0.8:
            self.feed(events.AttemptFinished(task_id, attempt, "succeeded", took=10.0))
        else:
            failure = self.chance.choice(list(FailureClass))
            self.feed(events.AttemptFinished(task_id, attempt, "failed", failure, "ValueError", "", "no"))

    def others_change(self) -> None:
        name = self.chance.choice(sorted(set(SIZES) - self.silent))
        self.others[name] = self.chance.choice([0.0, 0.0, 0.5, 0.9])
        self.tell(name)

    def tell(self, name: str) -> None:
        """A snapshot that shows what is ours and what is others'."""
        ours = {node.node_id: node.reserved for node in self.driver.machine.view(name, self.driver.now).nodes}
        share = self.others.get(name, 0.0)
        idle = snapshot(name, self.driver.now, *SIZES[name])
        nodes = tuple(
            type(node)(
                node.node_id,
                node.total,
                {
                    what: max(0.0, amount * (1 - share) - ours.get(node.node_id, {}).get(what, 0.0))
                    for what, amount in node.total.items()
                },
            )
            for node in idle.nodes
        )
        self.feed(events.SnapshotTaken(type(idle)(name, self.driver.now, nodes, "agent")))

    def link(self) -> None:
        name = self.chance.choice(sorted(SIZES))
        if name in self.silent:
            self.silent.discard(name)
            self.feed(events.LinkUp(name, "3.11.4", "2.60.0", "s1"))
            self.tell(name)
        elif not self.silent:
            self.silent.add(name)
            self.feed(events.LinkDown(name, "no heartbeat"))

    def cordon(self) -> None:
        name = self.chance.choice(sorted(SIZES))
        self.cordoned ^= {name}
        metadata = next(one for one in fleet() if one.name == name)
        self.feed(events.ClusterChanged(name, metadata, cordoned=name in self.cordoned))
        self.tell(name)

    def pause(self) -> None:
        """Of a cluster's or an owner's queue, or its end."""
        what: Literal["cluster", "owner"] = self.chance.choice(["cluster", "owner"])
        name = self.chance.choice(sorted(SIZES) if what == "cluster" else ["", "ann"])
        if (what, name) in self.paused:
            self.paused.discard((what, name))
            self.feed(events.QueueResumed(what, name))
        elif len(self.paused) < 2:
            self.paused.add((what, name))
            self.feed(events.QueuePaused(what, name, "a while"))

    def limit(self) -> None:
        """An owner may have more or less than before, or what the settings say."""
        owner = self.other_chance.choice(["", "ann"])
        self.limits.pop(owner, None)
        if self.other_chance.random() < 0.7:
            most = self.other_chance.choice([None, 0, 1, 6])
            self.limits[owner] = OwnerLimits(max_running=most, weight=self.other_chance.choice([0.5, 1, 4]))
        self.feed(events.OwnerLimitsChanged(owner, self.limits.get(owner)))

    def touch(self) -> None:
        """An operator holds, releases, cancels or re-prioritises an unfinished item."""
        records = [one for one in self.driver.machine.records() if not one.state.terminal]
        if not records:
            return
        task_id = self.chance.choice(records).task.id
        self.feed(
            self.chance.choice(
                [
                    events.HoldRequested(task_id),
                    events.ReleaseRequested(task_id),
                    events.ReleaseRequested(task_id),
                    events.PriorityChanged(task_id, self.chance.choice([-1, 0, 9])),
                    events.CancelRequested(task_id, "a change of mind"),
                ]
            )
        )


@pytest.mark.parametrize("seed", [*range(10), 1025, 1095])
def test_every_decision_is_the_naive_one_and_no_item_waits_needlessly(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    assert walk.checked > 0
