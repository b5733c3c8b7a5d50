"""Hypothesis drives faulty runs:

actions of owners and operators, cluster and network faults, and control-plane crashes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.simulation.checker import judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun
from ray_multicluster_scheduler.simulation.faulty.scenario import OWNERS, STYLES, generate_scenario, random_item

NAMES = st.sampled_from(["a", "b"])
DURATIONS = st.sampled_from([0.05, 1.0, 5.0, 12.0, 30.0])


class FaultyRunMachine(RuleBasedStateMachine):
    """Rules are the actions of faulty runs, in any order. The history is checked once everything has settled."""

    @initialize(seed=st.integers(0, 10_000), style=st.sampled_from(sorted(STYLES)))
    def begin(self, seed: int, style: str) -> None:
        self.items: dict[str, TaskDescription] = {}
        self.style = STYLES[style]
        self.rng = Random(seed)
        scenario = generate_scenario(seed, 1, self.style)
        self.run = FaultyRun(replace(scenario, actions=(), items=self.items))
        self.names = sorted(scenario.nodes)

    @rule(number=st.integers(1, 6), late=st.booleans())
    def submit(self, number: int, late: bool) -> None:
        for _ in range(number):
            task_id = f"t{len(self.items)}"
            item = random_item(self.rng, task_id, self.style, self.names, list(self.items))
            self.items[task_id] = replace(item, submitted_at=self.run.driver.now)
            self.run.submit(task_id, "waits for an argument" if late else "")

    @rule(seconds=DURATIONS)
    def time_passes(self, seconds: float) -> None:
        driver = self.run.driver
        until = driver.now + seconds
        driver.run_until(until)
        driver.now = max(driver.now, until)
        self.run.dump_state()

    @precondition(lambda self: self.items)
    @rule(which=st.integers(0, 10_000), force=st.booleans())
    def cancel(self, which: int, force: bool) -> None:
        self.run.cancel(f"t{which % len(self.items)}", force)

    @precondition(lambda self: self.items)
    @rule(which=st.integers(0, 10_000), seconds=DURATIONS)
    def hold(self, which: int, seconds: float) -> None:
        self.run.hold(f"t{which % len(self.items)}", seconds)

    @rule(name=NAMES, seconds=DURATIONS)
    def cut_link(self, name: str, seconds: float) -> None:
        self.run.cut_link(name, seconds)

    @rule(name=NAMES, seconds=DURATIONS)
    def kill_cluster(self, name: str, seconds: float) -> None:
        self.run.kill_cluster(name, seconds)

    @rule(name=NAMES, seconds=DURATIONS, share=st.sampled_from([0.3, 1.0]))
    def load_node(self, name: str, seconds: float, share: float) -> None:
        self.run.load_node(name, share, seconds)

    @rule(name=NAMES, seconds=DURATIONS)
    def refuse_dispatches(self, name: str, seconds: float) -> None:
        self.run.refuse_dispatches(name, seconds)

    @rule(name=NAMES, seconds=DURATIONS)
    def pause(self, name: str, seconds: float) -> None:
        self.run.pause("cluster", name, seconds)

    @rule(owner=st.sampled_from(OWNERS), most=st.sampled_from([None, 0, 1, 4]), seconds=DURATIONS)
    def limit(self, owner: str, most: int | None, seconds: float) -> None:
        self.run.limit(owner, 2.0, most, None, seconds)

    @rule(mid_answer=st.booleans())
    def crash(self, mid_answer: bool) -> None:
        self.run.crash(mid_answer)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.settle()
            assert [str(one) for one in judge(self.run.driver.history)] == []


FaultyRunMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFaultyRunMachine = FaultyRunMachine.TestCase
