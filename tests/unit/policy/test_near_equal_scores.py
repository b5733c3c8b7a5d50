"""Clusters with near-equal scores take turns; items that hold no resources count as load; decisions tell both."""

from __future__ import annotations

from collections import Counter

import pytest

from ray_multicluster_scheduler.common.model import CandidateReport, Rejection, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.common.tables import decision_rows
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.score_based_policy import ScoreBasedPolicy
from ray_multicluster_scheduler.scheduler.policy.weighted_preference_policy import WeightedPreferencePolicy
from tests.unit.lifecycle.driver import job, task
from tests.unit.policy.views import node, view

GIB = 1024.0**3


def with_memory(name: str, gib: float, **values: object) -> ClusterView:
    """4 CPUs, and this much free memory: 10 GiB are one point of the load score."""
    return view(name, node({"CPU": 4.0, "memory": 64 * GIB}, {"CPU": 4.0, "memory": gib * GIB}), **values)


def turns(engine: PolicyEngine, item: TaskDescription, views: list[ClusterView], items: int) -> list[str]:
    """Where so many items go, one after the other, while the clusters stay as they are."""
    order = []
    for _ in range(items):
        decision = engine.schedule(item, views, 0.0)
        assert decision.cluster is not None
        engine.record_placement(decision.cluster)
        order.append(decision.cluster)
    return order


class Fixed:
    """A score of a user: a number for each cluster, and maybe a raw value."""

    def __init__(self, name: str, values: dict[str, float]) -> None:
        self.name, self._values = name, values

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return self._values[cluster.name]


class FixedRaw(Fixed):
    def __init__(self, name: str, values: dict[str, float], raw: dict[str, float]) -> None:
        super().__init__(name, values)
        self._raw = raw

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        return self._raw[cluster.name]


class Closed:
    """A filter of a user: with one, every cluster is evaluated for every item."""

    name = "closed"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        return Rejection("CLOSED", "closed") if cluster.name == "closed" else None


def engine(*scores: Fixed, **settings: object) -> PolicyEngine:
    catalog = PolicyCatalog()
    for one in scores:
        catalog.register_score(one.name, one)
    weights = {"weights": {one.name: 1 for one in scores}} if scores else {}
    return PolicyEngine(Settings.model_validate({"resource_threshold": 1, **weights, **settings}), catalog=catalog)


class TestNearEqualScores:
    def test_a_little_more_memory_does_not_decide(self) -> None:
        views = [with_memory("a", 2.422), with_memory("b", 2.434)]
        assert turns(engine(), task("t"), views, 4) == ["a", "b", "a", "b"]

    @pytest.mark.parametrize(("share", "expected"), [(0.05, "abab"), (0.0, "bbbb")])
    def test_the_setting_near_equal_scores_sets_how_near(self, share: float, expected: str) -> None:
        views = [with_memory("a", 8), with_memory("b", 9)]
        assert turns(engine(near_equal_scores=share), task("t"), views, 4) == list(expected)

    def test_equal_scores_take_turns_whatever_the_setting(self) -> None:
        views = [with_memory("a", 1 / 3), with_memory("b", 1 / 3)]
        assert turns(engine(near_equal_scores=0), task("t"), views, 3) == ["a", "b", "a"]

    def test_ranks_are_never_near_equal(self) -> None:
        views = [with_memory("a", 2, tags=("x",)), with_memory("b", 2)]
        assert turns(engine(), task("t", tags=("x",)), views, 3) == ["a", "a", "a"]

    def test_big_clusters_are_compared_by_their_raw_scores(self) -> None:
        """64 and 40 free CPUs are 0.985 and 0.976 when they are scaled to 0..1."""
        views = [view("a", node({"CPU": 40.0})), view("b", node({"CPU": 64.0}))]
        assert turns(engine(), task("t"), views, 3) == ["b", "b", "b"]

    def test_when_the_best_is_full_the_next_ones_take_turns(self) -> None:
        full = view("full", node({"CPU": 64.0}), in_flight=9, max_in_flight=9)
        views = [full, with_memory("a", 2.422), with_memory("b", 2.434), view("worse", node({"CPU": 1.0}))]
        assert turns(engine(), task("t"), views, 4) == ["a", "b", "a", "b"]
        assert turns(engine(), task("t", cpus=4), [*views, view("idle", node({"CPU": 2.0}))], 2) == ["a", "b"]

    def test_the_last_one_left_gets_it(self) -> None:
        full = [view(name, node({"CPU": 64.0}), in_flight=9, max_in_flight=9) for name in "ab"]
        assert turns(engine(), task("t"), [*full, view("worse", node({"CPU": 1.0}))], 2) == ["worse", "worse"]

    def test_scores_of_users_take_turns_too(self) -> None:
        catalog = PolicyCatalog()
        catalog.register_score("mine", Fixed("mine", {"a": 0.5, "b": 0.505, "c": 0.4, "closed": 1.0}))
        catalog.register_filter("closed", Closed())
        brain = PolicyEngine(Settings(resource_threshold=1, weights={"mine": 1}), catalog=catalog)
        assert turns(brain, task("t"), [view(name) for name in ("a", "b", "c", "closed")], 3) == ["a", "b", "a"]

    def test_a_raw_value_alone_makes_nothing_near_equal(self) -> None:
        """It is for people: a date, for example, is always near another one."""
        dated = FixedRaw("dated", {"a": 0.1, "b": 0.9}, {"a": 1.70e9, "b": 1.71e9})
        assert turns(engine(dated), task("t"), [view("a"), view("b")], 3) == ["b", "b", "b"]

    def test_several_scores_are_near_equal_one_by_one(self) -> None:
        views = [view("a"), view("b")]
        near = [Fixed("first", {"a": 0.5, "b": 0.501}), Fixed("second", {"a": 0.9, "b": 0.9})]
        assert turns(engine(*near), task("t"), views, 3) == ["a", "b", "a"]
        far = [Fixed("first", {"a": 0.5, "b": 0.6}), Fixed("second", {"a": 0.6, "b": 0.501})]
        assert turns(engine(*far), task("t"), views, 3) == ["b", "b", "b"], "the sum decides"
        even = [Fixed("first", {"a": 0.5, "b": 0.25}), Fixed("second", {"a": 0.25, "b": 0.5})]
        assert turns(engine(*even), task("t"), views, 3) == ["a", "b", "a"], "the sums are equal"

    def test_in_a_chain_a_score_that_differs_decides(self) -> None:
        views = [view("a"), view("b")]
        near = [Fixed("first", {"a": 0.5, "b": 0.501}), Fixed("second", {"a": 0.9, "b": 0.9})]
        assert turns(engine(*near, combine="chain"), task("t"), views, 3) == ["a", "b", "a"]
        later = [Fixed("first", {"a": 0.5, "b": 0.501}), Fixed("second", {"a": 0.9, "b": 0.1})]
        assert turns(engine(*later, combine="chain"), task("t"), views, 3) == ["b", "b", "b"]

    def test_a_chain_of_no_scores_is_round_robin(self) -> None:
        assert turns(engine(weights={}, combine="chain"), task("t"), [view("a"), view("b")], 3) == ["a", "b", "a"]


class TestItemsThatHoldNoResources:
    def test_the_load_score_is_shared_with_them(self) -> None:
        score = WeightedPreferencePolicy()
        raw = [score.raw(job("j"), view("c", undeclared=number)) for number in range(4)]
        assert raw == [8.0, 4.0, pytest.approx(8 / 3), 2.0]

    def test_headroom_counts_each_as_one_more_cpu_in_use(self) -> None:
        cluster = view("c", node({"CPU": 8.0, "GPU": 4.0}), undeclared=8)
        assert ScoreBasedPolicy().score(job("j"), cluster) == 0.5
        assert ScoreBasedPolicy().score(task("t", cpus=4), cluster) == 0.25
        assert ScoreBasedPolicy().score(task("t", requirements={"GPU": 2.0}), cluster) == 0.5

    @pytest.mark.parametrize("name", ["load", "headroom"])
    def test_the_cluster_with_fewer_of_them_is_chosen(self, name: str) -> None:
        views = [view("a", undeclared=2), view("b", undeclared=1)]
        assert engine(weights={name: 1}).schedule(job("j"), views, 0.0).cluster == "b"


class TestExplanations:
    def test_the_decision_shows_that_clusters_took_turns_and_what_counted_as_load(self) -> None:
        decision = engine().schedule(job("j"), [view("a", undeclared=1), view("b", undeclared=1)], 0.0)
        assert "in turn with b" in decision.sentence
        assert "1 item that declares no resources counted as load" in decision.sentence
        rows = {row.cluster: row for row in decision_rows(decision)}
        assert "1 item that declares no resources" in rows["b"].why

    def test_a_cluster_that_does_not_accept_it_took_no_turn(self) -> None:
        full = view("b", in_flight=9, max_in_flight=9)
        assert "in turn" not in engine().schedule(task("t"), [view("a"), full], 0.0).sentence
        assert "in turn with c" in engine().schedule(task("t"), [view("a"), full, view("c")], 0.0).sentence

    def test_each_row_has_the_number_of_such_items(self) -> None:
        decision = engine().schedule(job("j"), [view("a", undeclared=3), view("b")], 0.0)
        assert Counter({row.cluster: row.undeclared for row in decision.candidates}) == Counter(a=3, b=0)
        assert SchedulingDecision.from_dict(decision.to_dict()) == decision

    def test_it_is_not_shown_where_no_score_counts_them(self) -> None:
        decision = engine(weights={"resident": 1}).schedule(job("j"), [view("a", undeclared=3)], 0.0)
        assert "counted" not in decision.sentence
        assert decision.candidates[0] == CandidateReport(
            "a", (), decision.candidates[0].ranks, {"resident": 0.5}, {}, 0.5, None, 0
        )
