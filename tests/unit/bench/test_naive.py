"""The naive evaluator: it must know the rules by itself, or it would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from bench._naive import Answer, differences, evaluate
from ray_multicluster_scheduler.common.model import CandidateReport, Rejection, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem, ClusterView, NewNode
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import actor, job, task
from tests.unit.policy.views import LOAD_SCORES, node, view

GIB = 1024.0**3
IDLE = view("idle")
SMALL = node({"CPU": 4.0}, {"CPU": 1.0})
BUSY = NewNode({"CPU": 8.0}, {"CPU": 3.0})


def ask(item: TaskDescription, *views: ClusterView, last: dict[str, int] | None = None, **settings: Any) -> Answer:
    return evaluate(item, views, Settings(**settings), last or {})


def codes(item: TaskDescription, cluster: ClusterView, **settings: Any) -> list[str]:
    return list(ask(item, cluster, **settings).rows[0].codes)


@pytest.mark.parametrize(("free", "total", "gib", "weight", "prefer", "raw"), LOAD_SCORES)
def test_the_load_score_is_the_one_that_users_know(
    free: float, total: float, gib: float, weight: float, prefer: bool, raw: float
) -> None:
    memory = {"memory": gib * GIB}
    cluster = view("c", node({"CPU": total, **memory}, {"CPU": free, **memory}), weight=weight, prefer=prefer)
    scores = ask(task("t"), cluster, resource_threshold=1).rows[0].scores
    assert scores is not None
    assert round(scores["load"] / (1 - scores["load"]), 1) == raw


@pytest.mark.parametrize(
    ("item", "cluster", "settings", "expected"),
    [
        (task("t"), IDLE, {}, []),
        (task("t", 16), view("c", node({"CPU": 8.0}), node({"CPU": 8.0}, name="n2")), {}, ["NO_CAPACITY", "TOO_BIG"]),
        (job("j", 16), view("c", node({"CPU": 8.0}), node({"CPU": 8.0}, name="n2")), {}, []),
        (task("t", 16), view("c", autoscaling=True), {}, ["NO_CAPACITY"]),
        (task("t", 16), view("c", max_node={"CPU": 32.0}), {}, ["NO_CAPACITY"]),
        (task("t", 16), view("c", max_node={"CPU": 9.0}), {}, ["NO_CAPACITY", "TOO_BIG"]),
        (task("t", 16), view("c", past_node_sizes=({"CPU": 16.0},)), {}, ["NO_CAPACITY"]),
        (task("t"), view("c", node({"CPU": 8.0}, {"CPU": 2.0})), {}, ["ABOVE_THRESHOLD"]),
        (task("t"), view("c", node({"CPU": 8.0}, {"CPU": 2.4})), {}, []),
        (task("t"), view("c", observed={"cpu": 0.9}), {"threshold_on": "observed"}, ["ABOVE_THRESHOLD"]),
        (task("t"), view("c", observed={"cpu": 0.9}), {"threshold_on": "max"}, ["ABOVE_THRESHOLD"]),
        (task("t"), view("c", observed={"cpu": 0.9}), {}, []),
        (task("t"), view("c", node({"CPU": 8.0}, unknown=True)), {}, ["CAPACITY_UNKNOWN", "CAPACITY_UNKNOWN"]),
        (task("t", 6), view("c", SMALL, max_node={"CPU": 8.0}, new_node=NewNode({"CPU": 8.0}, {})), {}, []),
        (task("t", 6), view("c", SMALL, max_node={"CPU": 8.0}, new_node=BUSY), {}, ["NO_CAPACITY"]),
        (task("t", 6), view("c", SMALL, new_node=NewNode(None, {}), autoscaling=True), {}, []),
        (task("t", 6), view("c", SMALL, new_node=NewNode(None, {"CPU": 1.0}), autoscaling=True), {}, ["NO_CAPACITY"]),
        (
            job("j", 99),
            view("c", SMALL, max_node={"CPU": 8.0}, new_node=NewNode({"CPU": 8.0}, {}), autoscaling=True),
            {},
            [],
        ),
        (task("t"), view("c", cordoned=True), {}, ["CORDONED"]),
        (task("t"), view("c", paused=""), {}, ["QUEUE_PAUSED"]),
        (job("j"), view("c", job_problem=ClusterProblem("DASHBOARD_SILENT", "no")), {}, ["DASHBOARD_SILENT"]),
        (task("t"), view("c", job_problem=ClusterProblem("DASHBOARD_SILENT", "no")), {}, []),
        (task("t"), view("c", problem=ClusterProblem("CLUSTER_SUSPECT", "silent")), {}, ["CLUSTER_SUSPECT"]),
        (task("t"), view("c", link_problem=ClusterProblem("LINK_FAILED", "no")), {}, ["LINK_FAILED"]),
        (job("j"), view("c", link_problem=ClusterProblem("LINK_FAILED", "no")), {}, []),
        (task("t"), view("c", python_version="3.12.1"), {}, ["PYTHON_MISMATCH"]),
        (job("j"), view("c", python_version="3.12.1"), {}, []),
        (task("t", require_tags=("x",)), view("c", tags=("y",)), {}, ["REQUIRED_TAGS"]),
        (task("t", deny_clusters=("c",)), view("c"), {}, ["NOT_ALLOWED"]),
        (task("t", allow_clusters=("d",)), view("c"), {}, ["NOT_ALLOWED"]),
        (task("t", preferred_cluster="d", fallback="wait"), view("c"), {}, ["PREFERRED_ONLY"]),
        (task("t"), view("c", dashboard=None), {}, ["NO_CARRIER"]),
        (task("t"), view("c", carrier="ray_client"), {}, ["NO_CARRIER"]),
        (job("j"), view("c", next_submission_at=5.0, at=4.0), {}, ["SUBMISSION_INTERVAL"]),
        (job("j"), view("c", next_submission_at=5.0, at=5.0), {}, []),
        (task("t"), view("c", next_submission_at=5.0, at=4.0), {}, []),
        (task("t"), view("c", in_flight=1), {"execution_mode": "serial"}, ["SERIAL"]),
        (task("t"), view("c", in_flight=1, ready_actors=1), {"execution_mode": "serial"}, []),
        (job("j"), view("c", running_jobs=2, max_running_jobs=2), {}, ["MAX_RUNNING_JOBS"]),
        (task("t"), view("c", in_flight=1, prefetched=1, max_in_flight=2), {}, ["MAX_IN_FLIGHT"]),
        (
            task("t"),
            view("c", snapshot_at=None, problem=ClusterProblem("CLUSTER_UNKNOWN", "?")),
            {},
            ["CLUSTER_UNKNOWN"],
        ),
    ],
)
def test_each_rule_has_its_code(
    item: TaskDescription, cluster: ClusterView, settings: dict[str, Any], expected: list[str]
) -> None:
    assert codes(item, cluster, **settings) == expected


def test_a_retry_does_not_wait_for_the_submission_interval() -> None:
    waiting = view("c", next_submission_at=5.0, at=4.0)
    assert evaluate(job("j"), [waiting], Settings(), {}, retry=True).winner == "c"


def test_preferred_comes_before_tags_before_load_before_turns() -> None:
    small, large = view("small", node({"CPU": 4.0}), tags=("x",)), view("large", node({"CPU": 64.0}))
    assert ask(task("t"), small, large).winner == "large"
    assert ask(task("t", tags=("x",)), small, large).winner == "small"
    assert ask(task("t", tags=("x",), preferred_cluster="large"), small, large).winner == "large"
    twins = (view("one"), view("two"))
    assert ask(task("t"), *twins, last={"one": 7, "two": 6}).winner == "two"
    assert ask(task("t"), *twins, last={"one": 7}).winner == "two"
    assert ask(task("t"), view("c", cordoned=True)).winner is None


def test_room_that_is_there_comes_before_a_node_that_would_have_to_be_added() -> None:
    grows = view("grows", SMALL, prefer=True, weight=9.0, autoscaling=True, new_node=NewNode(None, {}))
    there = view("there", node({"CPU": 8.0}, {"CPU": 3.0}))
    assert ask(task("t", 3), grows, there).winner == "there"
    assert ask(task("t", 4), grows, there).winner == "grows"


def test_free_gpus_are_spared_by_items_that_need_none() -> None:
    plain, gpus = view("plain", node({"CPU": 2.0})), view("gpus", node({"CPU": 64.0, "GPU": 4.0}))
    assert ask(task("t"), plain, gpus).winner == "plain"
    assert ask(task("t", requirements={"GPU": 1.0}), plain, gpus).winner == "gpus"


def test_scores_are_added_by_weight_or_compared_one_after_another() -> None:
    roomy, fast = view("roomy", node({"CPU": 16.0}, {"CPU": 12.0})), view("fast", node({"CPU": 4.0}))
    weights = {"headroom": 1.0, "load": 0.5}
    assert ask(task("t", 2), roomy, fast, weights=weights, combine="chain").winner == "roomy"
    assert ask(task("t", 0), roomy, fast, weights=weights, combine="chain").winner == "fast"
    assert ask(task("t", 0), roomy, fast, weights={"load": 1.0}).winner == "roomy"


def test_it_agrees_with_the_engine_on_everything_that_was_thought_of() -> None:
    items = [
        task("t"),
        task("t", 6, tags=("x",)),
        task("t", requirements={"GPU": 1.0}),
        job("j", 12, preferred_cluster="c1"),
        actor("a"),
        task("t", 0, require_tags=("x",), deny_clusters=("c3",)),
    ]
    fleet = [
        view("c0"),
        view("c1", node({"CPU": 8.0}, {"CPU": 1.0}), node({"CPU": 16.0}, name="n2"), tags=("x",)),
        view("c2", node({"CPU": 8.0, "GPU": 2.0}), prefer=True, weight=1.2),
        view("c3", node({"CPU": 8.0}, {"CPU": 8.0}), tags=("x", "y"), next_submission_at=9.0),
        view("c4", cordoned=True, in_flight=1),
        view("c5", node({"CPU": 8.0}, {"CPU": 1.0}), autoscaling=True, max_node={"CPU": 8.0}, new_node=BUSY),
        view("c6", paused="for repair"),
    ]
    all_settings = [
        Settings(),
        Settings(resource_threshold=1, combine="chain", weights={"headroom": 1, "load": 1}),
        Settings(execution_mode="serial", submission_interval_kinds={"task", "job"}),
    ]
    for item, settings in product(items, all_settings):
        decision = PolicyEngine(settings).schedule(item, fleet, 0.0)
        assert differences(decision, evaluate(item, fleet, settings, {})) == [], (item, settings)


def test_it_sees_a_wrong_winner_a_wrong_code_a_wrong_score_and_a_missing_row() -> None:
    fleet = [view("a"), view("b", cordoned=True)]
    right = PolicyEngine(Settings()).schedule(task("t"), fleet, 0.0)
    answer = ask(task("t"), *fleet)
    assert differences(right, answer) == []
    a, b = right.candidates
    off = replace(a, scores={"load": a.scores["load"] + 1e-6})
    wrongs: list[tuple[SchedulingDecision, str]] = [
        (replace(right, cluster="b"), "placed on b, naively a"),
        (replace(right, candidates=(a, replace(b, rejections=()))), "b: rejected for no reason, naively for"),
        (replace(right, candidates=(a, CandidateReport("b", (Rejection("SERIAL", "x"),)))), "b: rejected for"),
        (replace(right, candidates=(off, b)), "a: scores"),
        (replace(right, candidates=(a,)), "its table has ['a'], naively ['a', 'b']"),
    ]
    for decision, begin in wrongs:
        found = differences(decision, answer)
        assert len(found) == 1
        assert found[0].startswith(begin)
