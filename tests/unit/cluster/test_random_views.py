"""A kept view is what a fresh one would be, whatever happened to the cluster in between."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import ClusterMetadata, NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState, WideItemReservation
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem, ClusterView
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import job, task

SETTINGS = Settings(resource_threshold=0.9, snapshot_interval_s=5)
LAZY = ("total", "free", "most_free", "use")


def shown(view: ClusterView) -> dict[str, Any]:
    """All that it says but when, and the seconds in its sentences."""
    output: dict[str, Any] = {one.name: getattr(view, one.name) for one in fields(ClusterView)}
    for name in ("at", "cache", "stable_cache", "without_reservation"):
        del output[name]
    output |= {name: getattr(view, name) for name in LAZY}
    return {name: value.code if isinstance(value, ClusterProblem) else value for name, value in output.items()}


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 100.0
        self.state = ClusterState(self._metadata(), SETTINGS)
        self.engine = PolicyEngine(SETTINGS)
        self.taken: list[str] = []
        self.number = 0
        self.last: ResourceSnapshot | None = None

    def _metadata(self) -> ClusterMetadata:
        port = self.chance.choice([8265, 8266])
        return ClusterMetadata(
            "a",
            dashboard=f"http://a:{port}",
            autoscaling=self.chance.random() < 0.3,
            max_node=self.chance.choice([None, {"CPU": 8.0}]),
            max_in_flight=self.chance.choice([3, 100]),
        )

    def step(self) -> str:
        actions = [name for name in dir(self) if name.startswith("do_")]
        action = self.chance.choice(actions)
        getattr(self, action)()
        return action

    # what may happen

    def do_pass_time(self) -> None:
        self.now += self.chance.choice([0.0, 0.2, 1.0, 5.0, 20.0, 70.0])

    def do_snapshot(self) -> None:
        nodes = tuple(
            NodeSnapshot(
                f"n{number}", {"CPU": self.chance.choice([4.0, 8.0])}, self.chance.choice([None, {"CPU": 3.0}])
            )
            for number in range(self.chance.randrange(4))
        )
        late = self.chance.choice([0.0, 0.0, 0.1, 4.0])
        source = self.chance.choice(["agent", "http"])
        session = self.chance.choice(["s1", "s1", "s1", "s2", None])
        seen = ResourceSnapshot(
            "a", self.now - late, nodes, source, session, observed=self.chance.choice([None, {"cpu": 0.5}])
        )
        self.last = seen
        self.state.record_snapshot(seen, self.now)

    def do_repeat_snapshot(self) -> None:
        if self.last is not None:
            self.state.record_snapshot(self.last, self.now)

    def do_take(self) -> None:
        self.number += 1
        item = self.chance.choice([task, job])(f"t{self.number}", self.chance.choice([0.0, 1.0, 3.0]))
        self.state.assign(item, self.now)
        self.taken.append(item.id)

    def do_give_back(self) -> None:
        if self.taken:
            self.state.release(self.taken.pop(self.chance.randrange(len(self.taken))), self.now)

    def do_ask(self) -> None:
        self.state.refreshing, self.state.refresh_requested_at = True, self.now

    def do_check(self) -> None:
        self.state.checking_dashboard, self.state.dashboard_checked_at = self.chance.random() < 0.5, self.now

    def do_fail_to_answer(self) -> None:
        self.state.record_snapshot_failure("nobody", permanent=self.chance.random() < 0.2, now=self.now)

    def do_lose_dashboard(self) -> None:
        self.state.record_dashboard_failure("silent", self.now)

    def do_link_up(self) -> None:
        self.state.link_up(self.chance.choice(["3.11.9", "3.12.1"]), "2.60.0", self.now)

    def do_link_down(self) -> None:
        self.state.link_down(self.now)

    def do_link_gone(self) -> None:
        self.state.link_closed()

    def do_link_refused(self) -> None:
        self.state.record_link_failure("no", permanent=self.chance.random() < 0.5, now=self.now)

    def do_declare_dead(self) -> None:
        self.state.mark_dead("burnt", self.now)

    def do_cordon(self) -> None:
        self.state.cordoned = self.chance.random() < 0.5

    def do_pause(self) -> None:
        self.state.paused = self.chance.choice([None, "tests"])

    def do_pin(self) -> None:
        nodes = self.state.ledger.nodes()
        pinned = {nodes[0].node_id: {"CPU": 2.0}} if nodes and nodes[0].free is not None else None
        self.state.wide_reservation = (
            None if pinned is None or self.chance.random() < 0.5 else WideItemReservation("wide", pinned, 0.0, None)
        )

    def do_reconfigure(self) -> None:
        self.state.wide_reservation = None
        self.state.reconfigure(self._metadata())

    def do_succeed(self) -> None:
        self.state.breaker.record_success()


@pytest.mark.parametrize("seed", range(40))
def test_a_kept_view_is_what_a_fresh_one_would_be(seed: int) -> None:
    walk = Walk(seed)
    done = []
    for _ in range(120):
        done.append(walk.step())
        next_at = walk.chance.choice([None, None, walk.now + 10.0])
        kept, fresh = walk.state.view(walk.now, next_at), walk.state.fresh_view(walk.now, next_at)
        assert shown(kept) == shown(fresh), done[-5:]
        for item in (task("x", 1.0), job("y", 2.0)):
            output = [walk.engine.first_rejection(item, view, retry=False) for view in (kept, fresh)]
            assert [one and one.code for one in output[:1]] == [one and one.code for one in output[1:]], done[-5:]
