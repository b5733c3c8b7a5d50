"""Ranks before scores before round robin; score vectors; the decision as data."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import ActorDescription, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.common.tables import FULL, MAX_NAMED, reason_lines
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem, ClusterView, NewNode
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.cluster_submission_history import ClusterSubmissionHistory
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.reasons import SUBMISSION_INTERVAL
from ray_multicluster_scheduler.scheduler.policy.score_based_policy import ScoreBasedPolicy
from ray_multicluster_scheduler.scheduler.policy.verdict import (
    CAPACITY_CODES,
    RATE_CODES,
    Verdict,
    lacks_capacity_only,
    verdict,
)
from ray_multicluster_scheduler.scheduler.policy.weighted_preference_policy import WeightedPreferencePolicy
from tests.unit.lifecycle.driver import job, task
from tests.unit.policy.views import LOAD_SCORES, node, view

GIB = 1024.0**3


def engine(catalog: PolicyCatalog | None = None, **settings: Any) -> PolicyEngine:
    return PolicyEngine(Settings(**{"resource_threshold": 1, **settings}), catalog=catalog)


def chosen(item: TaskDescription, *views: ClusterView, **settings: Any) -> str | None:
    return engine(**settings).schedule(item, views, 0.0).cluster


# ---- scores


@pytest.mark.parametrize(("free", "total", "memory", "weight", "prefer", "raw"), LOAD_SCORES)
def test_the_load_score_vectors(
    free: float, total: float, memory: float, weight: float, prefer: bool, raw: float
) -> None:
    only = node({"CPU": total, "memory": 64 * GIB}, {"CPU": free, "memory": memory * GIB})
    cluster = view("c", only, weight=weight, prefer=prefer)
    score = WeightedPreferencePolicy()
    assert round(score.raw(task("t"), cluster), 1) == raw
    exact = score.raw(task("t"), cluster)
    assert score.score(task("t"), cluster) == pytest.approx(exact / (1 + exact))


def test_the_gpu_term_counts_only_for_those_who_ask() -> None:
    cluster = view("c", node({"CPU": 4.0, "GPU": 2.0}))
    score = WeightedPreferencePolicy()
    assert score.raw(task("t"), cluster) == pytest.approx(4)
    assert score.raw(task("t", requirements={"GPU": 1.0}), cluster) == pytest.approx(14)


def test_a_cluster_without_cpus_scores_nothing() -> None:
    assert WeightedPreferencePolicy().score(task("t"), view("c", node({"GPU": 1.0}))) == 0


@pytest.mark.parametrize(
    ("need", "expected"),
    [({"CPU": 2.0}, 0.5), ({"CPU": 2.0, "GPU": 1.0}, 0.0), ({"tpu": 1.0}, 0.0), ({}, 0.75), ({"CPU": 99.0}, 0.0)],
)
def test_headroom_is_that_of_the_scarcest(need: dict[str, float], expected: float) -> None:
    cluster = view("c", node({"CPU": 8.0, "GPU": 4.0}, {"CPU": 6.0, "GPU": 1.0}))
    assert ScoreBasedPolicy().score(task("t", requirements=need), cluster) == expected


# ---- order


def test_preferred_before_tags_before_load() -> None:
    busy = node({"CPU": 8.0}, {"CPU": 1.0})
    favourite = view("favourite", busy)
    tagged = view("tagged", busy, tags=("arm64",))
    idle = view("idle", node({"CPU": 64.0}))
    fleet = (idle, tagged, favourite)
    assert chosen(task("t", preferred_cluster="favourite", tags=("arm64",)), *fleet) == "favourite"
    assert chosen(task("t", tags=("arm64",)), *fleet) == "tagged"
    assert chosen(task("t"), *fleet) == "idle"


def test_more_matching_tags_are_better_and_unknown_tags_are_labels() -> None:
    one, two = view("one", tags=("x",)), view("two", tags=("x", "y"))
    assert chosen(task("t", tags=("x", "y", "made-up")), one, two) == "two"
    assert chosen(task("t", tags=("made-up",)), one, two) == "one"


def test_items_without_gpus_keep_away_from_free_ones_when_they_can() -> None:
    gpus = view("gpus", node({"CPU": 64.0, "GPU": 8.0}))
    plain = view("plain", node({"CPU": 4.0}))
    assert chosen(task("t"), gpus, plain) == "plain"
    assert chosen(task("t", cpus=8), gpus, plain) == "gpus"
    assert chosen(task("t", requirements={"GPU": 1.0}), plain, gpus) == "gpus"
    taken = view("gpus", node({"CPU": 64.0, "GPU": 8.0}, {"CPU": 64.0, "GPU": 0.0}))
    assert chosen(task("t"), taken, plain) == "gpus"


def test_equals_take_turns_and_asking_does_not_change_whose_it_is() -> None:
    brain = engine()
    fleet = [view(name) for name in "abc"]
    order = []
    for _ in range(6):
        assert brain.schedule(task("x"), fleet, 0.0) == brain.schedule(task("x"), fleet, 0.0)
        decision = brain.schedule(task("t"), fleet, 0.0)
        assert decision.cluster is not None
        order.append(decision.cluster)
        brain.record_placement(decision.cluster)
    assert order == list("abcabc")


class Constant:
    """A user's own score: a number per cluster."""

    def __init__(self, name: str, **values: float) -> None:
        self.name = name
        self._values = values

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return self._values[cluster.name]


def own(*scores: Constant) -> PolicyCatalog:
    catalog = PolicyCatalog()
    for one in scores:
        catalog.register_score(one.name, one)
    return catalog


def test_weighted_adds_up_and_chain_compares_one_after_the_other() -> None:
    catalog = own(Constant("first", a=0.5, b=0.6), Constant("second", a=0.9, b=0.1))
    fleet = (view("a"), view("b"))
    weights = {"first": 1, "second": 1}
    weighted = engine(catalog, weights=weights).schedule(task("t"), fleet, 0.0)
    assert weighted.cluster == "a"
    assert [row.total for row in weighted.candidates] == [pytest.approx(1.4), pytest.approx(0.7)]
    assert engine(catalog, weights=weights, combine="chain").schedule(task("t"), fleet, 0.0).cluster == "b"
    assert engine(catalog, weights={"first": 1, "second": 0}).schedule(task("t"), fleet, 0.0).cluster == "b"
    assert engine(catalog, weights={"first": 10, "second": 1}).schedule(task("t"), fleet, 0.0).cluster == "b"


def test_chain_goes_on_to_the_next_score_only_when_equal() -> None:
    catalog = own(Constant("first", a=0.5, b=0.5), Constant("second", a=0.1, b=0.2))
    brain = engine(catalog, weights={"first": 1, "second": 1}, combine="chain")
    assert brain.schedule(task("t"), (view("a"), view("b")), 0.0).cluster == "b"


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_a_score_outside_its_range_is_an_error(value: float) -> None:
    brain = engine(own(Constant("odd", c=value)), weights={"odd": 1})
    with pytest.raises(PolicyEvaluationError, match="score 'odd'.*cluster c.*not within") as caught:
        brain.schedule(task("t"), [view("c")], 0.0)
    assert (caught.value.task_id, caught.value.cluster) == ("t", "c")


def test_a_score_that_raises_is_an_error_with_names() -> None:
    brain = engine(own(Constant("odd")), weights={"odd": 1})
    with pytest.raises(PolicyEvaluationError, match="task t failed.*KeyError for cluster c"):
        brain.schedule(task("t"), [view("c")], 0.0)


# ---- the decision as data


def test_a_decision_has_a_reason_and_survives_json() -> None:
    fleet = [view("a", cordoned=True), view("b", prefer=True)]
    decision = engine().schedule(task("t", preferred_cluster="b"), fleet, 7.0)
    assert (decision.cluster, decision.code, decision.at, decision.task_id) == ("b", "PLACED", 7.0, "t")
    assert decision.sentence == (
        "b: preferred, load score 9.6; the only one that fits (a: it is cordoned: closed for new work)"
    )
    row = decision.candidates[1]
    assert row.node_id == "n1"
    assert row.ranks == {"preferred": 1, "tags": 0, "room": 1, "spares_gpus": 1}
    assert row.raw_scores["load"] == pytest.approx(9.6)
    assert SchedulingDecision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision


def test_a_decision_compares_to_the_other_clusters() -> None:
    def output(*fleet: ClusterView) -> str:
        return engine().schedule(task("t"), fleet, 0.0).sentence.partition("; ")[2]

    closed = [view(f"c{number}", in_flight=9, max_in_flight=9) for number in range(5)]
    full = "9 items of ours are there; max_in_flight is 9"
    assert output(view("a")) == ""
    assert output(view("a"), view("b")) == "chosen among 2 clusters that fit"
    assert output(view("a"), *closed, view("b")) == "chosen among 2 clusters that fit"
    assert output(view("a"), *closed) == f"the only one with room (c0: {full}; c1: {full}; c2: {full}; and 2 more)"
    busy = view("busy", node({"CPU": 8.0}, {"CPU": 0.0}))
    assert output(view("a"), busy).startswith("the only one with room (busy: ")
    assert output(view("a"), replace(busy, cordoned=True)).startswith("the only one that fits (busy: it is cordoned")
    assert output(view("a"), view("shut", cordoned=True), busy).startswith(
        "the only one with room (shut: it is cordoned"
    )
    small = view("small", node({"CPU": 0.5}), cordoned=True)
    assert output(view("a"), small) == (
        "the only one that fits (small: it requests 1 CPU, more than one node can ever have "
        "(the most on any node: 0.5 CPU))"
    )


def test_what_counts_as_full_are_codes_that_filters_give() -> None:
    assert (CAPACITY_CODES | RATE_CODES) - {SUBMISSION_INTERVAL} == FULL


def test_other_clusters_are_compared_only_on_request() -> None:
    fleet = (view("a"), view("b"))
    placed = engine().place(task("t"), fleet, fleet, 0.0)
    assert placed is not None
    assert placed.sentence == "a: load score 8.0, in turn with b, as their scores are near-equal"
    assert placed.in_full().sentence == f"{placed.sentence}; chosen among 2 clusters that fit"
    waits = engine().schedule(task("t", cpus=9), fleet, 0.0)
    assert waits.in_full() is waits
    ahead = replace(waits, cluster="a", code="SENT_AHEAD", sentence="a: prefetched: a short task")
    assert ahead.in_full() is ahead, "it is not the only one with room: it has none"


def test_a_table_holds_the_rejections_of_every_filter() -> None:
    cluster = view("a", cordoned=True, in_flight=9, max_in_flight=9, tags=())
    decision = engine().schedule(task("t", require_tags=("x",)), [cluster], 0.0)
    codes = [one.code for one in decision.candidates[0].rejections]
    assert codes == ["REQUIRED_TAGS", "CORDONED", "MAX_IN_FLIGHT"]


def test_all_that_would_let_it_go_on_is_named() -> None:
    def helps(*fleet: ClusterView) -> str | None:
        return engine().schedule(task("t", cpus=8), fleet, 0.0).unblocked_by

    full = {"in_flight": 9, "max_in_flight": 9}
    linux, mac = view("linux", **full), view("mac", **full)
    assert helps(linux, mac) == "an item on linux or mac ends"
    assert helps(linux, view("gone", dashboard=None), mac) == "an item on linux or mac ends"
    assert helps(linux, view("shut", cordoned=True)) == "an item on linux ends, or an operator uncordons shut"
    many = [view(f"c{number:02}", **full) for number in range(MAX_NAMED + 2)]
    assert f"c{MAX_NAMED - 1:02} or 2 more ends" in str(helps(*many))


def test_the_reason_is_that_of_the_nearest_cluster() -> None:
    far = view("far", cordoned=True, in_flight=9, max_in_flight=9)
    excluded = view("excluded", dashboard=None)
    near = view("near", in_flight=9, max_in_flight=9)
    decision = engine().schedule(task("t"), [excluded, far, near], 0.0)
    assert decision.code == "MAX_IN_FLIGHT"
    assert decision.unblocked_by == "an item on near ends"
    assert "far: it is cordoned" in decision.sentence
    assert "excluded" not in decision.sentence


def test_reasons_are_joined_by_one_sign() -> None:
    silent = ClusterProblem("BREAKER_OPEN", "it is not tried again for 44 s (2 times in a row).")
    fleet = [view("a", problem=silent), view("b", problem=silent)]
    output = engine().schedule(task("t"), fleet, 0.0).sentence
    assert "in a row); b: it is not tried" in output
    output = engine().schedule(task("t"), [*fleet, view("c")], 0.0).sentence
    assert output.endswith("(2 times in a row); b: it is not tried again for 44 s (2 times in a row))")


def test_a_long_reason_is_cut() -> None:
    fleet = [view(f"c{number}", cordoned=True) for number in range(10)]
    assert engine().schedule(task("t"), fleet, 0.0).sentence.endswith("; and 7 more")


def test_a_retry_does_not_wait_for_the_interval() -> None:
    cluster = view(next_submission_at=99.0)
    brain = engine()
    assert brain.schedule(job("j"), [cluster], 0.0).code == "SUBMISSION_INTERVAL"
    assert brain.schedule(job("j"), [cluster], 0.0, retry=True).cluster == "c"


DOWN = ClusterProblem("CLUSTER_UNREACHABLE", "down", permanent=True)
AWAY = ClusterProblem("STALE_SNAPSHOT", "away")


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        ([view("a")], Verdict.PLACED),
        ([view("a", cordoned=True)], Verdict.WAIT),
        ([view("a", dashboard=None)], Verdict.INFEASIBLE),
        ([view("a", problem=DOWN)], Verdict.UNHEALTHY),
        ([view("a", problem=AWAY)], Verdict.WAIT),
        ([view("a", problem=DOWN), view("b", dashboard=None)], Verdict.UNHEALTHY),
        ([view("a", problem=DOWN, dashboard=None)], Verdict.INFEASIBLE),
        ([view("a", problem=DOWN), view("b", problem=AWAY)], Verdict.WAIT),
        ([view("a", link_problem=ClusterProblem("LINK_FAILED", "no", permanent=True))], Verdict.UNHEALTHY),
        ([view("a", link_problem=ClusterProblem("LINK_FAILED", "no"))], Verdict.WAIT),
        ([], Verdict.UNHEALTHY),
    ],
)
def test_verdict(fleet: list[ClusterView], expected: Verdict) -> None:
    assert verdict(engine().schedule(task("t"), fleet, 0.0)) is expected


# ---- submission history


def test_submission_history_of_the_kinds_that_count() -> None:
    settings = Settings(submission_interval_s=40, submission_interval_kinds=frozenset({"job", "actor"}))
    history = ClusterSubmissionHistory(settings)
    history.record(task("t"), "a", 1.0, retry=False)
    history.record(job("j"), "a", 2.0, retry=True)
    assert history.next_at("a") is None
    history.record(job("j"), "a", 3.0, retry=False)
    assert history.next_at("a") == 43.0
    history.record(task("x", kind="actor", actor=ActorDescription("x")), "a", 5.0, retry=False)
    assert history.next_at("a") == 45.0
    assert history.next_at("b") is None
    history.forget("a")
    assert history.next_at("a") is None


def test_an_interval_of_zero_is_none() -> None:
    history = ClusterSubmissionHistory(Settings(submission_interval_s=0))
    history.record(job("j"), "a", 3.0, retry=False)
    assert history.next_at("a") is None


# ---- a better cluster whose answer is on its way


ASKED = ClusterProblem("CLUSTER_UNKNOWN", "there is no snapshot of it yet; a request is under way", being_asked=True)


@pytest.mark.parametrize("requested", [{"preferred_cluster": "a"}, {"tags": ("fast",)}])
def test_an_item_waits_a_moment_for_the_cluster_it_asked_for(requested: dict[str, Any]) -> None:
    wanted = view("a", tags=("fast",), problem=ASKED)
    decision = engine().schedule(task("t", **requested), [wanted, view("b", node({"CPU": 8}))], 0.0)
    assert (decision.cluster, decision.code) == (None, "BETTER_IS_ASKED")
    assert {"a", "b"} <= set(decision.sentence.split())
    assert verdict(decision) is Verdict.WAIT


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (ClusterProblem("STALE_SNAPSHOT", "it did not answer"), {"preferred_cluster": "a"}),
        (ASKED, {}),
        (ASKED, {"preferred_cluster": "a", "deny_clusters": ("a",)}),
        (ASKED, {"preferred_cluster": "b"}),
    ],
    ids=["it failed to answer", "no wish", "excluded for good", "the best is there"],
)
def test_and_not_where_nothing_is_won_by_it(problem: ClusterProblem, wanted: dict[str, Any]) -> None:
    other = view("a", problem=problem)
    assert engine().schedule(task("t", **wanted), [other, view("b", node({"CPU": 8}))], 0.0).cluster == "b"


# ---- what a scheduling pass asks for


def test_the_coarse_filter_rejects_only_what_the_filters_would() -> None:
    brain = engine()
    free, closed = view("a", node({"CPU": 8.0})), view("b", cordoned=True)
    plain = task("none", cpus=0)
    assert brain.prefilter(plain, [closed, free, closed], retry=False) == [free]
    assert brain.prefilter(plain, [closed, free, closed], retry=False) == [free], "also when it is known"
    assert brain.prefilter(None, [closed, free], retry=False) == [closed, free], "gangs are not prefiltered"
    assert brain.is_closed(plain, closed, retry=False)


def test_a_cluster_above_the_threshold_is_closed_unless_it_can_grow() -> None:
    brain = engine(resource_threshold=0.7)
    busy = node({"CPU": 8.0}, {"CPU": 1.0})
    assert brain.is_closed(task("none", cpus=0), view("a", busy), retry=False)
    assert not brain.is_closed(task("none", cpus=0), view("a", busy, new_node=NewNode(None, {})), retry=False)


@pytest.mark.parametrize("fleet", [(view("c"),), (view("c"), view("d"))], ids=["one cluster", "two"])
def test_a_rank_that_raises_is_an_error_with_names(fleet: tuple[ClusterView, ...]) -> None:
    class Broken:
        name = "broken"

        def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
            raise KeyError(cluster.name)

    catalog = PolicyCatalog()
    catalog.register("broken", Broken)
    with pytest.raises(PolicyEvaluationError, match="the rank 'broken' raised KeyError for cluster c"):
        engine(catalog).schedule(task("t"), fleet, 0.0)


@pytest.mark.parametrize("fleet", [(view("c"),), (view("c"), view("d"))], ids=["one cluster", "two"])
def test_a_wrong_score_is_found_however_many_compete(fleet: tuple[ClusterView, ...]) -> None:
    brain = engine(own(Constant("odd", c=7.0, d=0.5)), weights={"odd": 1})
    with pytest.raises(PolicyEvaluationError, match="score 'odd'.*cluster c.*7.0 is not within"):
        brain.schedule(task("t"), fleet, 0.0)


def test_without_a_score_the_reason_is_taking_turns() -> None:
    brain = engine(weights={})
    decision = brain.schedule(task("t"), [view("c")], 0.0)
    assert decision.sentence.startswith("c: in turn, as the configuration names no score")
    preferred = brain.schedule(task("t", preferred_cluster="c"), [view("c")], 0.0)
    assert preferred.sentence.startswith("c: preferred")
    assert "in turn" not in preferred.sentence


def test_reading_a_decision() -> None:
    fleet = [view("a", node({"CPU": 8.0}, {"CPU": 0.0})), view("b", cordoned=True), view("c", dashboard=None)]
    decision = engine().schedule(task("t"), fleet, 0.0)
    assert [lacks_capacity_only(row) for row in decision.candidates] == [True, False, False]
    lines = reason_lines(decision.candidates).splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["a", "b", "c"]
    assert "not free" in lines[0]


def test_a_filter_by_kind_that_raises_is_an_error_with_names() -> None:
    class Broken:
        name = "broken"
        by_kind = True

        def check(self, task: TaskDescription, cluster: ClusterView) -> None:
            raise KeyError(cluster.name)

    catalog = PolicyCatalog()
    catalog.register("mine", Broken)
    brain = engine(catalog)
    assert brain.filter_names[-1] == "mine"
    for _ in range(2):  # what raised is not remembered as a yes
        with pytest.raises(PolicyEvaluationError, match="the filter 'mine' raised KeyError for cluster c"):
            brain.schedule(task("t"), [view("c")], 0.0)


def test_a_placement_on_a_new_node_is_named_in_its_reason() -> None:
    grows = view("c", node({"CPU": 8.0}, {"CPU": 0.0}), new_node=NewNode({"CPU": 8.0}, {}))
    decision = engine().schedule(task("t", cpus=8), [grows], 0.0)
    assert decision.sentence == "c: on a node that is still to be added, load score 0.0"
    row = decision.candidates[0]
    assert (row.node_id, row.ranks["room"]) == ("(new node)", 0)


# ---- rows that are reported again


def _alike_and_not() -> list[TaskDescription]:
    """Items of few shapes; those of one shape differ in all that placement must not look at."""
    return [
        task("a", name="one", priority=5),
        task("b", name="two", runtime_env={"env_vars": {"A": "1"}}),
        task("c", requirements={"CPU": 9.0}),
        task("d", requirements={"CPU": 9.0}, retries=2),
        task("e", tags=("fast",)),
        task("f", require_tags=("fast",)),
        task("g", deny_clusters=("small",)),
        task("h", allow_clusters=("small",)),
        task("i", preferred_cluster="large", fallback="wait"),
        job("j"),
        task("k", owner="someone"),
    ]


def _three() -> tuple[ClusterView, ...]:
    return (
        view("small", node({"CPU": 2.0}, {"CPU": 0.5})),
        view("large", node({"CPU": 16.0}), tags=("fast",), weight=2.0),
        view("gone", problem=ClusterProblem("UNREACHABLE", "it does not answer")),
    )


def test_a_row_is_reused_for_items_of_its_shape_only() -> None:
    lasting, policy = _three(), engine()
    for item in [*_alike_and_not(), *reversed(_alike_and_not())]:
        for retry in (False, True):
            known = policy.table(item, lasting, retry=retry)
            assert known.rows == engine().table(item, _three(), retry=retry).rows
    one, other = (policy.table(item, lasting, retry=False) for item in _alike_and_not()[:2])
    assert all(mine is its for mine, its in zip(one.rows, other.rows, strict=True))


def test_rows_of_many_shapes_are_not_kept_for_good() -> None:
    cluster, policy = view("c"), engine()
    for number in range(500):
        assert policy.table(task(str(number), tags=(str(number),)), (cluster,), retry=False)[0].feasible
    kept = [value for value in cluster.cache.values() if isinstance(value, dict)]
    assert max(map(len, kept)) <= 64


def test_rows_are_made_for_each_item_where_a_users_policy_may_read_all_of_it() -> None:
    class ByName:
        name = "by_name"

        def score(self, task: TaskDescription, cluster: ClusterView) -> float:
            return 1.0 if task.name == "lucky" else 0.0

    catalog = PolicyCatalog()
    catalog.register_score("by_name", ByName())
    policy, cluster = engine(catalog, weights={"by_name": 1.0}), view("c")
    lucky, other = (policy.table(task("t", name=name), (cluster,), retry=False)[0] for name in ("lucky", "other"))
    assert (lucky.total, other.total) == (1.0, 0.0)
