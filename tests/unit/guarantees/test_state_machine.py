"""Hypothesis plays the part of everybody: people, clusters, networks and the end of the control plane itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.simulation.checker import judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun
from ray_multicluster_scheduler.simulation.faulty.scenario import OWNERS, STYLES, make_script, some_item

NAMES = st.sampled_from(["a", "b"])
A_WHILE = st.sampled_from([0.05, 1.0, 5.0, 12.0, 30.0])


class Everybody(RuleBasedStateMachine):
    """Rules are the deeds of faulty runs, in any order. What comes of them is judged when nothing happens any more."""

    @initialize(seed=st.integers(0, 10_000), style=st.sampled_from(sorted(STYLES)))
    def begin(self, seed: int, style: str) -> None:
        self.items: dict[str, TaskDescription] = {}
        self.style = STYLES[style]
        self.chance = Random(seed)
        script = make_script(seed, 1, self.style)
        self.run = FaultyRun(replace(script, deeds=(), items=self.items))
        self.names = sorted(script.nodes)

    @rule(number=st.integers(1, 6), late=st.booleans())
    def submit(self, number: int, late: bool) -> None:
        for _ in range(number):
            task_id = f"t{len(self.items)}"
            item = some_item(self.chance, task_id, self.style, self.names, list(self.items))
            self.items[task_id] = replace(item, submitted_at=self.run.desk.now)
            self.run.submit(task_id, "waits for an argument" if late else "")

    @rule(seconds=A_WHILE)
    def time_passes(self, seconds: float) -> None:
        desk = self.run.desk
        until = desk.now + seconds
        desk.run_until(until)
        desk.now = max(desk.now, until)
        self.run.look()

    @precondition(lambda self: self.items)
    @rule(which=st.integers(0, 10_000), force=st.booleans())
    def cancel(self, which: int, force: bool) -> None:
        self.run.cancel(f"t{which % len(self.items)}", force)

    @precondition(lambda self: self.items)
    @rule(which=st.integers(0, 10_000), seconds=A_WHILE)
    def hold(self, which: int, seconds: float) -> None:
        self.run.hold(f"t{which % len(self.items)}", seconds)

    @rule(name=NAMES, seconds=A_WHILE)
    def cut(self, name: str, seconds: float) -> None:
        self.run.cut(name, seconds)

    @rule(name=NAMES, seconds=A_WHILE)
    def die(self, name: str, seconds: float) -> None:
        self.run.die(name, seconds)

    @rule(name=NAMES, seconds=A_WHILE, share=st.sampled_from([0.3, 1.0]))
    def others(self, name: str, seconds: float, share: float) -> None:
        self.run.others(name, share, seconds)

    @rule(name=NAMES, seconds=A_WHILE)
    def refuse(self, name: str, seconds: float) -> None:
        self.run.refuse(name, seconds)

    @rule(name=NAMES, seconds=A_WHILE)
    def pause(self, name: str, seconds: float) -> None:
        self.run.pause("cluster", name, seconds)

    @rule(owner=st.sampled_from(OWNERS), most=st.sampled_from([None, 0, 1, 4]), seconds=A_WHILE)
    def limit(self, owner: str, most: int | None, seconds: float) -> None:
        self.run.limit(owner, 2.0, most, None, seconds)

    @rule(amid=st.booleans())
    def crash(self, amid: bool) -> None:
        self.run.crash(amid)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.settle()
            assert [str(one) for one in judge(self.run.desk.history)] == []


Everybody.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEverybody = Everybody.TestCase
