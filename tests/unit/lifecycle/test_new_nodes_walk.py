"""Autoscaling clusters under random orders of events: never more than one node's worth, and nothing leaks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, cluster, job, task

SIZE = 8.0


class Cloud:
    """A cluster whose autoscaler adds nodes of eight CPUs while something waits for them, and takes idle ones away."""

    def __init__(self) -> None:
        self.driver = Driver(cluster("cloud", autoscaling=True, max_node={"CPU": SIZE}), start_grace_s=1e6)
        self.driver.send(events.LinkUp("cloud", "3.11.9", "2.60.0", "s1"))
        self.nodes: list[str] = []
        self.made = self.submitted = 0
        self.runs: dict[str, str] = {}
        self.tell()

    @property
    def pending(self) -> list[str]:
        """What was sent and has not started."""
        held = self.driver.machine.registry.state("cloud").slots.held
        return [name for name in held if name not in self.runs]

    def free(self, node: str) -> float:
        return SIZE - sum(self._cpus(name) for name, where in self.runs.items() if where == node)

    def tell(self) -> None:
        """A snapshot of how it really is."""
        self.driver.now += 0.5
        nodes = [NodeSnapshot("head", {"CPU": 0.0}, {"CPU": 0.0})]
        nodes += [NodeSnapshot(name, {"CPU": SIZE}, {"CPU": self.free(name)}) for name in self.nodes]
        self.driver.send(events.SnapshotTaken(ResourceSnapshot("cloud", self.driver.now, tuple(nodes), "agent", "s1")))

    def submit(self, cpus: int, is_job: bool) -> None:
        self.submitted += 1
        self.driver.submit((job if is_job else task)(f"t{self.submitted}", cpus=cpus))

    def grow(self) -> None:
        if any(all(self._cpus(name) > self.free(node) for node in self.nodes) for name in self.pending):
            self.made += 1
            self.nodes.append(f"n{self.made}")

    def shrink(self) -> None:
        idle = [node for node in self.nodes if self.free(node) == SIZE]
        if idle:
            self.nodes.remove(idle[0])

    def start(self) -> None:
        """Ray starts what fits somewhere; of a job, nobody hears where its tasks are."""
        for name in self.pending:
            room = next((node for node in self.nodes if self.free(node) >= self._cpus(name)), None)
            is_job = self.driver.machine.record(name).task.kind == "job"
            if room is not None:
                self.runs[name] = room
                self.driver.start(name, None if is_job else room)

    def end(self, index: int) -> None:
        if self.runs:
            name = list(self.runs)[index % len(self.runs)]
            del self.runs[name]
            self.driver.succeed(name)

    def cancel(self, index: int) -> None:
        if self.pending:
            name = self.pending[index % len(self.pending)]
            self.driver.cancel(name)
            self.driver.stopped(name)

    def judge(self) -> None:
        state = self.driver.machine.registry.state("cloud")
        ledger = state.ledger
        assert set(ledger.reservations) == set(state.slots.held)
        tasks = [
            one.parts[NEW_NODE]["CPU"]
            for name, one in ledger.reservations.items()
            if NEW_NODE in one.parts and self.driver.machine.record(name).task.kind == "task"
        ]
        assert sum(tasks) <= SIZE, "more than one node's worth is on its way"
        for node in ledger.nodes():
            running = [name for name, where in self.runs.items() if where == node.node_id]
            assert sum(map(self._cpus, running)) <= node.total["CPU"]

    def _cpus(self, name: str) -> float:
        return self.driver.machine.record(name).task.requirements["CPU"]


steps = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from([1, 2, 4, 8]), st.sampled_from([False, False, True])),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    *(st.tuples(st.just(name)) for name in ("tell", "grow", "shrink", "start", "start", "tell")),
)


@settings(max_examples=60)
@given(st.lists(steps, min_size=5, max_size=40))
def test_whatever_happens_all_runs_in_the_end_and_nothing_is_left(walk: list[tuple[Any, ...]]) -> None:
    cloud = Cloud()
    for name, *arguments in walk:
        getattr(cloud, name)(*arguments)
        cloud.judge()
    for _ in range(cloud.submitted + 1):  # all goes well from here on
        for action in (cloud.grow, cloud.tell, cloud.start, cloud.tell):
            action()
            cloud.judge()
        for _ in range(len(cloud.runs)):
            cloud.end(0)
    machine = cloud.driver.machine
    assert not machine.has_unfinished(), [(one.task.id, one.state, one.sentence) for one in machine.records()]
    assert machine.registry.state("cloud").ledger.reservations == {}
    assert machine.registry.state("cloud").ledger.pending_on_new_nodes() == {}
