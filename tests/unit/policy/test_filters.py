"""Each filter: its code, whether waiting helps, and what it lets through."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import ActorDescription, JobDescription, Rejection, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem, ClusterView, NewNode
from ray_multicluster_scheduler.scheduler.policy import reasons
from ray_multicluster_scheduler.scheduler.policy.filters import built_in_filters
from ray_multicluster_scheduler.scheduler.pools import quota_ledger
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from tests.unit.lifecycle.driver import job, task
from tests.unit.policy.views import node, view

NEVER = True
LATER = False


def verdicts(item: TaskDescription, cluster: ClusterView, **settings: Any) -> list[Rejection]:
    filters = built_in_filters(Settings(**settings), "3.11", QuotaLedger())
    return [one for one in (each.check(item, cluster) for each in filters) if one is not None]


def codes(item: TaskDescription, cluster: ClusterView, **settings: Any) -> list[tuple[str, bool]]:
    return [(one.code, one.permanent) for one in verdicts(item, cluster, **settings)]


def actor(task_id: str) -> TaskDescription:
    return task(task_id, kind="actor", actor=ActorDescription("x"))


def test_a_healthy_idle_cluster_takes_everything() -> None:
    for item in (task("t"), job("j"), actor("a")):
        assert codes(item, view()) == []


@pytest.mark.parametrize("code", sorted(reasons.HEALTH_CODES - {"LINK_FAILED"}))
@pytest.mark.parametrize("permanent", [NEVER, LATER])
def test_trouble_with_the_cluster_keeps_everything_away(code: str, permanent: bool) -> None:
    cluster = view(problem=ClusterProblem(code, "it is ill", permanent))
    for item in (task("t"), job("j")):
        assert verdicts(item, cluster) == [Rejection(code, "it is ill", permanent)]


@pytest.mark.parametrize("permanent", [NEVER, LATER])
def test_a_link_that_cannot_be_made_stops_tasks_and_actors_only(permanent: bool) -> None:
    cluster = view(link_problem=ClusterProblem("LINK_FAILED", "no way", permanent))
    assert codes(task("t"), cluster) == [("LINK_FAILED", permanent)]
    assert codes(actor("a"), cluster) == [("LINK_FAILED", permanent)]
    assert codes(job("j"), cluster) == []


def test_cordoned() -> None:
    assert codes(task("t"), view(cordoned=True)) == [("CORDONED", LATER)]


def test_required_tags() -> None:
    cluster = view(tags=("linux", "x86"))
    assert codes(task("t", require_tags=("linux", "x86")), cluster) == []
    (verdict,) = verdicts(task("t", require_tags=("linux", "gpu", "arm")), cluster)
    assert (verdict.code, verdict.permanent) == ("REQUIRED_TAGS", NEVER)
    assert verdict.sentence.endswith("gpu, arm")


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"allow_clusters": ("c",)}, []),
        ({"allow_clusters": ("d",)}, [("NOT_ALLOWED", NEVER)]),
        ({"allow_clusters": ()}, [("NOT_ALLOWED", NEVER)]),
        ({"deny_clusters": ("c",)}, [("NOT_ALLOWED", NEVER)]),
        ({"deny_clusters": ("d",)}, []),
        ({"allow_clusters": ("c",), "deny_clusters": ("c",)}, [("NOT_ALLOWED", NEVER)]),
    ],
)
def test_allow_and_deny(lists: dict[str, Any], expected: list[tuple[str, bool]]) -> None:
    assert codes(task("t", **lists), view("c")) == expected


def test_fallback_wait_goes_nowhere_else() -> None:
    item = task("t", preferred_cluster="d", fallback="wait")
    assert codes(item, view("c")) == [("PREFERRED_ONLY", NEVER)]
    assert codes(item, view("d")) == []
    assert codes(task("t", preferred_cluster="d"), view("c")) == []
    assert codes(task("t", fallback="wait"), view("c")) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.11.0", []),
        ("3.11", []),
        (None, []),
        ("3.12.1", [("PYTHON_MISMATCH", NEVER)]),
        ("3.1.1", [("PYTHON_MISMATCH", NEVER)]),
    ],
)
def test_python_minor_for_what_is_pickled(version: str | None, expected: list[tuple[str, bool]]) -> None:
    cluster = view(python_version=version)
    assert codes(task("t"), cluster) == expected
    assert codes(actor("a"), cluster) == expected
    assert codes(job("j"), cluster) == []


def test_without_a_dashboard_nothing_gets_there() -> None:
    for item in (task("t"), actor("a"), job("j")):
        (verdict,) = verdicts(item, view(dashboard=None))
        assert (verdict.code, verdict.permanent) == ("NO_CARRIER", NEVER)
        assert "`dashboard`" in verdict.sentence


def test_ray_client_carries_tasks_where_there_is_a_head_address() -> None:
    cluster = view(carrier="ray_client")
    assert codes(task("t"), cluster) == [("NO_CARRIER", NEVER)], "it has none"
    assert codes(job("j"), cluster) == []
    for carrier in ("ray_client", "auto"):
        alone = view(carrier=carrier, dashboard=None, head_address="a:10001")
        assert codes(task("t"), alone) == codes(actor("a"), alone) == []
        assert codes(job("j"), alone) == [("NO_CARRIER", NEVER)]
    assert codes(task("t"), view(carrier="agent", dashboard=None, head_address="a:10001")) == [("NO_CARRIER", NEVER)]


# ---- size


def test_larger_than_any_node_is_for_good() -> None:
    cluster = view("c", node({"CPU": 8.0}), node({"CPU": 4.0}, name="n2"))
    assert codes(task("t", cpus=8), cluster) == []
    assert ("TOO_BIG", NEVER) in codes(task("t", cpus=9), cluster)
    assert ("TOO_BIG", NEVER) in codes(task("t", requirements={"GPU": 1.0}), cluster)


def test_a_job_may_be_as_large_as_all_nodes_together() -> None:
    cluster = view("c", node({"CPU": 8.0}), node({"CPU": 4.0}, name="n2"))
    assert codes(job("j", cpus=12), cluster) == []
    assert ("TOO_BIG", NEVER) in codes(job("j", cpus=13), cluster)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"max_node": {"CPU": 16.0}}, [("NO_CAPACITY", LATER)]),
        ({"max_node": {"CPU": 10.0}}, [("TOO_BIG", NEVER), ("NO_CAPACITY", LATER)]),
        ({"max_node": {"CPU": 10.0}, "autoscaling": True}, [("TOO_BIG", NEVER), ("NO_CAPACITY", LATER)]),
        ({"autoscaling": True}, [("NO_CAPACITY", LATER)]),
        ({"past_node_sizes": ({"CPU": 16.0},)}, [("NO_CAPACITY", LATER)]),
    ],
)
def test_a_node_that_may_still_appear(values: dict[str, Any], expected: list[tuple[str, bool]]) -> None:
    assert codes(task("t", cpus=16), view(**values)) == expected


def test_a_job_on_an_autoscaling_cluster_needs_only_the_right_kind_of_nodes() -> None:
    cluster = view(autoscaling=True, max_node={"CPU": 4.0})
    assert codes(job("j", cpus=100), cluster) == [("NO_CAPACITY", LATER)]
    assert ("TOO_BIG", NEVER) in codes(job("j", requirements={"GPU": 1.0}), cluster)


def with_entrypoint(cpus: float, **entrypoint: float) -> TaskDescription:
    return job("j", cpus=cpus, job=JobDescription("python x.py", entrypoint_resources=entrypoint))


def test_the_entrypoint_of_a_job_must_fit_one_node() -> None:
    cluster = view("c", node({"CPU": 8.0}), node({"CPU": 4.0}, name="n2"))
    assert codes(with_entrypoint(0, CPU=8), cluster) == []
    assert codes(with_entrypoint(12, CPU=8), cluster) == []
    too_big, later = verdicts(with_entrypoint(0, CPU=9), cluster)
    assert (too_big.code, too_big.permanent) == ("TOO_BIG", NEVER)
    assert too_big.sentence == (
        "its entrypoint requests 9 CPU, more than one node can ever have (the most on any node: 8 CPU)"
    )
    assert later.sentence == "9 CPU, which its entrypoint needs, is not free on any one node (free in all: 12 CPU)"
    assert ("TOO_BIG", NEVER) in codes(with_entrypoint(4, GPU=1), cluster)


def test_an_entrypoint_that_fits_later_waits() -> None:
    busy = view("c", node({"CPU": 8.0}, {"CPU": 3.0}), node({"CPU": 4.0}, {"CPU": 2.0}, name="n2"))
    (later,) = verdicts(with_entrypoint(0, CPU=5), busy)
    assert (later.code, later.permanent) == ("NO_CAPACITY", LATER)
    assert later.sentence == "5 CPU, which its entrypoint needs, is not free on any one node (free in all: 5 CPU)"
    (later,) = verdicts(with_entrypoint(6, CPU=2), busy)
    assert later.sentence == "6 CPU is not free on its nodes together (free in all: 5 CPU)"


def test_job_entrypoint_fits_an_existing_or_future_node() -> None:
    cluster = view(autoscaling=True, max_node={"CPU": 4.0})  # and one of 8 is there
    assert codes(with_entrypoint(100, CPU=4), cluster) == [("NO_CAPACITY", LATER)]
    assert codes(with_entrypoint(100, CPU=8), cluster) == [("NO_CAPACITY", LATER)]
    assert ("TOO_BIG", NEVER) in codes(with_entrypoint(100, CPU=9), cluster)


def test_what_its_entrypoint_holds_no_new_node_needs_to_have() -> None:
    cluster = view("c", node({"GPU": 2.0}), autoscaling=True, max_node={"CPU": 4.0})
    assert codes(with_entrypoint(100, GPU=1), cluster) == [("NO_CAPACITY", LATER)]
    more = job("j", requirements={"CPU": 4.0, "GPU": 3.0}, job=JobDescription("x", entrypoint_resources={"GPU": 1.0}))
    assert ("TOO_BIG", NEVER) in codes(more, cluster)


def test_without_a_snapshot_capacity_is_not_judged() -> None:
    unknown = view(nodes=(), snapshot_at=None)
    assert codes(task("t", cpus=1000), unknown) == []
    assert codes(task("t"), view(nodes=())) == [("NO_CAPACITY", LATER)]


# ---- capacity


def test_room_is_counted_node_by_node() -> None:
    half = {"CPU": 4.0}
    cluster = view("c", node({"CPU": 8.0}, half), node({"CPU": 8.0}, half, name="n2"))
    loose = {"resource_threshold": 1}
    assert codes(task("t", cpus=4), cluster, **loose) == []
    (verdict,) = verdicts(task("t", cpus=5), cluster, **loose)
    assert (verdict.code, verdict.permanent) == ("NO_CAPACITY", LATER)
    assert verdict.sentence == "5 CPU is not free on any one node (free in all: 8 CPU)"
    assert codes(job("j", cpus=8), cluster, **loose) == []
    assert codes(job("j", cpus=9), cluster, **loose) == [("NO_CAPACITY", LATER)]


def test_a_node_with_unknown_free_amounts_is_not_free() -> None:
    cluster = view("c", node({"CPU": 8.0}, unknown=True))
    assert codes(task("t"), cluster, resource_threshold=1) == [("CAPACITY_UNKNOWN", LATER)]
    assert codes(job("j"), cluster, resource_threshold=1) == []
    assert codes(job("j"), cluster) == [("CAPACITY_UNKNOWN", LATER)]
    partly = view("c", node({"CPU": 8.0}, unknown=True), node({"CPU": 2.0}, name="n2"))
    assert codes(task("t", cpus=2), partly) == []
    assert codes(task("t", cpus=3), partly) == [("CAPACITY_UNKNOWN", LATER)]


def test_custom_resources() -> None:
    cluster = view("c", node({"CPU": 8.0, "tpu": 2.0}, {"CPU": 8.0, "tpu": 1.0}))
    assert codes(task("t", requirements={"tpu": 1.0}), cluster) == []
    assert codes(task("t", requirements={"tpu": 2.0}), cluster) == [("NO_CAPACITY", LATER)]


# ---- threshold


def at_use(cpu: float, **values: Any) -> ClusterView:
    return view("c", node({"CPU": 10.0}, {"CPU": 10.0 * (1 - cpu)}), **values)


@pytest.mark.parametrize(("use", "taken"), [(0.0, True), (0.7, True), (0.71, False), (0.9, False)])
def test_above_the_threshold_is_above(use: float, taken: bool) -> None:
    expected = [] if taken else [("ABOVE_THRESHOLD", LATER)]
    assert codes(task("t", cpus=0), at_use(use)) == expected


def test_the_sentence_contains_the_amounts() -> None:
    (verdict,) = verdicts(job("j"), at_use(0.9))
    assert verdict.sentence == "90% of its cpu is in use, the threshold is 70%"


@pytest.mark.parametrize(
    ("basis", "observed", "taken"),
    [
        ("reserved", {"cpu": 0.99}, True),
        ("observed", {"cpu": 0.99}, False),
        ("observed", {"cpu": 0.1}, True),
        ("observed", None, True),
        ("observed", {"memory": 0.99}, True),
        ("max", {"cpu": 0.99}, False),
        ("max", {"cpu": 0.1}, True),
    ],
)
def test_what_the_threshold_counts(basis: str, observed: dict[str, float] | None, taken: bool) -> None:
    cluster = at_use(0.5, observed=observed)
    assert (codes(job("j"), cluster, threshold_on=basis) == []) is taken


def test_observed_low_reserved_high() -> None:
    cluster = at_use(0.9, observed={"cpu": 0.1})
    assert codes(job("j"), cluster, threshold_on="observed") == []
    assert codes(job("j"), cluster, threshold_on="max") == [("ABOVE_THRESHOLD", LATER)]


def test_observed_stands_in_where_reserved_is_unknown() -> None:
    cluster = view("c", node({"CPU": 8.0}, unknown=True), observed={"cpu": 0.2})
    assert codes(job("j"), cluster, threshold_on="max") == []


def test_thresholds_per_resource_and_gpus_only_for_those_who_ask() -> None:
    total = {"CPU": 10.0, "GPU": 4.0, "memory": 100.0}
    limits = {"cpu": 0.5, "gpu": 0.5, "memory": 0.9}
    gpus_full = view("c", node(total, {"CPU": 10.0, "GPU": 1.0, "memory": 100.0}))
    memory_full = view("c", node(total, {"CPU": 10.0, "GPU": 4.0, "memory": 5.0}))
    assert codes(task("t"), gpus_full, resource_threshold=limits) == []
    asks = task("t", requirements={"GPU": 1.0})
    assert codes(asks, gpus_full, resource_threshold=limits) == [("ABOVE_THRESHOLD", LATER)]
    assert codes(task("t"), memory_full, resource_threshold=limits) == [("ABOVE_THRESHOLD", LATER)]


def test_a_threshold_of_one_takes_everything_that_fits() -> None:
    assert codes(job("j"), at_use(1.0), resource_threshold=1) == []


# ---- rules


@pytest.mark.parametrize(("now", "taken"), [(100.0, False), (139.9, False), (140.0, True)])
def test_submission_interval(now: float, taken: bool) -> None:
    cluster = view(at=now, next_submission_at=140.0)
    assert codes(job("j"), cluster) == ([] if taken else [("SUBMISSION_INTERVAL", LATER)])
    assert codes(task("t"), cluster) == []


def test_serial_mode() -> None:
    assert codes(task("t"), view(in_flight=1), execution_mode="serial") == [("SERIAL", LATER)]
    assert codes(task("t"), view(in_flight=0), execution_mode="serial") == []
    assert codes(task("t"), view(in_flight=1)) == []


def test_max_running_jobs() -> None:
    cluster = view(running_jobs=2, max_running_jobs=2)
    assert codes(job("j"), cluster) == [("MAX_RUNNING_JOBS", LATER)]
    assert codes(task("t"), cluster) == []
    assert codes(job("j"), view(running_jobs=1, max_running_jobs=2)) == []


def test_max_in_flight() -> None:
    cluster = view(in_flight=3, max_in_flight=3)
    for item in (task("t"), job("j")):
        assert codes(item, cluster) == [("MAX_IN_FLIGHT", LATER)]
    assert codes(task("t"), view(in_flight=2, max_in_flight=3)) == []


def test_every_reason_names_what_would_unblock_it() -> None:
    not_reasons = {"PLACED", "NO_CLUSTERS"}
    every = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)} - not_reasons
    assert set(reasons.UNBLOCKED_BY) == every
    assert all("{" not in (reasons.unblocked_by(code, "mac") or "{") for code in every)
    assert reasons.unblocked_by("A_USERS_OWN", "mac") is None


def test_a_silent_dashboard_stops_jobs_only() -> None:
    cluster = view(job_problem=ClusterProblem("DASHBOARD_SILENT", "it does not answer"))
    assert verdicts(job("j"), cluster) == [Rejection("DASHBOARD_SILENT", "it does not answer", False)]
    assert codes(task("t"), cluster) == []
    assert codes(actor("a"), cluster) == []


@pytest.mark.parametrize(("reason", "says"), [("", "its queue is paused"), ("repairs", "its queue is paused: repairs")])
def test_a_paused_queue_stops_everything(reason: str, says: str) -> None:
    for item in (task("t"), job("j"), actor("a")):
        (verdict,) = verdicts(item, view(paused=reason))
        assert (verdict.code, verdict.sentence, verdict.permanent) == ("QUEUE_PAUSED", says, LATER)


def test_what_would_get_a_node_of_its_own_passes_the_threshold() -> None:
    grows = view("c", node({"CPU": 8.0}, {"CPU": 1.0}), new_node=NewNode({"CPU": 8.0}, {}))
    assert codes(task("t", cpus=4), grows) == []
    assert codes(task("t", cpus=1), grows) == [("ABOVE_THRESHOLD", LATER)]
    taken = view("c", node({"CPU": 8.0}, {"CPU": 1.0}), new_node=NewNode({"CPU": 8.0}, {"CPU": 8.0}))
    assert codes(task("t", cpus=4), taken) == [("NO_CAPACITY", LATER)]


def test_codes_of_pools_are_those_of_the_ledger() -> None:
    for name in ("POOL_FULL", "POOL_NOT_HERE", "POOL_TOO_SMALL", "POOL_UNKNOWN", "BORROW_LIMIT"):
        assert getattr(reasons, name) == getattr(quota_ledger, name)
