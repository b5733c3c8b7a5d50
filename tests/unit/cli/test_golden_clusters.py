"""How clusters, their users and their problems look at the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Group

from ray_multicluster_scheduler.cli.commands.clusters import (
    applied_lines,
    check_verdict,
    cluster_facts,
    clusters_overview,
)
from ray_multicluster_scheduler.cli.commands.doctor import findings_text
from ray_multicluster_scheduler.cli.commands.fleet import local_table, remedies
from ray_multicluster_scheduler.cli.commands.owner import owners_table
from ray_multicluster_scheduler.cli.commands.pool import pool_overview, pools_table
from ray_multicluster_scheduler.cli.commands.serving import deployment_overview, deployments_table
from ray_multicluster_scheduler.cli.commands.token import tokens_table
from ray_multicluster_scheduler.cli.doctor.findings import ok, problem, warning
from ray_multicluster_scheduler.cli.layout.lines import FoldedText
from ray_multicluster_scheduler.local_fleet.fleet_home import ClusterStatus
from tests.unit.cli.golden import NOW, USUAL, WIDE, Picture, check, frames
from tests.unit.cli.golden_data import STATUS

BOTH = (WIDE, USUAL)
MORE: dict[str, dict[str, Any]] = {
    "centos": {"carrier": "agent", "tags": ["linux", "x86_64", "gpu"], "ray_version": "2.60.0"},
    "mac": {"carrier": "agent", "tags": ["macos", "arm64"], "ray_version": "2.60.0"},
    "lab": {"carrier": "ray_client", "tags": ["linux"]},
    "attic": {"carrier": "agent", "tags": [], "ray_version": "2.44.1"},
}
CLUSTERS = [{**one, "python_version": "3.11.9", **MORE[one["name"]]} for one in STATUS["clusters"]]
CENTOS: dict[str, Any] = {
    **CLUSTERS[0],
    "drained": None,
    "config": {"name": "centos", "dashboard": "http://10.0.0.4:8265", "head_address": "10.0.0.4:10001"},
    "breaker": {"state": "CLOSED", "failures_in_a_row": 0, "half_open_at": None},
    "troubles": [],
    "notes": [],
    "dashboard": "http://10.0.0.4:8265",
    "head_address": "10.0.0.4:10001",
    "tasks_by": "agent",
    "link": "up",
    "in_flight": 9,
    "ahead": 2,
    "running_jobs": 1,
    "ready_actors": 3,
    "kept_for": None,
    "next_submission_at": None,
    "heard_at": NOW - 2,
    "os": "Linux",
    "arch": "x86_64",
    "snapshot_at": NOW - 2,
}
ATTIC: dict[str, Any] = {
    **CENTOS,
    **CLUSTERS[3],
    "cordoned": True,
    "drained": False,
    "paused": "",
    "config": {"name": "attic", "dashboard": "http://10.0.0.9:8265", "head_address": "10.0.0.9:10001"},
    "dashboard": "http://10.0.0.9:8265",
    "head_address": "10.0.0.9:10001",
    "tasks_by": "agent",
    "os": "Linux",
    "arch": "x86_64",
    "breaker": {"state": "OPEN", "failures_in_a_row": 5, "half_open_at": NOW + 12},
    "troubles": [
        {"concerns": "jobs", "code": "CLUSTER_UNREACHABLE", "sentence": "its dashboard does not answer"},
        {"concerns": "tasks and actors", "code": "CLUSTER_LOST", "sentence": "its link has been silent for 75 s"},
    ],
    "link": "down",
    "in_flight": 1,
    "ahead": 0,
    "kept_for": "nightly-2026-11-15",
    "heard_at": NOW - 75,
    "snapshot_at": NOW - 75,
}
NO_JOBS = {"concerns": "jobs", "code": "NO_DASHBOARD", "sentence": "lab has no dashboard, so it takes no jobs"}
CHECKED = [
    {"answered": True, "reason": "", "cluster": CENTOS},
    {"answered": True, "reason": "", "cluster": {**CENTOS, "name": "lab", "troubles": [NO_JOBS]}},
    {"answered": True, "reason": "", "cluster": {**CENTOS, "name": "mac", "cordoned": True}},
    {"answered": False, "reason": "attic does not answer: no route to host", "cluster": {**ATTIC, "troubles": []}},
]
FINDINGS = [
    ok("home", "/home/ann/.rmcs is yours alone"),
    ok("disk", "212 GB are free for /home/ann/.rmcs"),
    ok("service", "http://127.0.0.1:8000 answers; you are ann (admin, operator)"),
    warning(
        "service",
        "it runs version 0.1.0, and this is 0.2.0",
        "upgrade the older one: `rmcs down --away 600`, install, `rmcs up`",
    ),
    problem(
        "lab",
        "the service reports: lab does not answer: connection refused",
        "start its head, or correct the address; `rmcs clusters check lab` lets the service ask it again",
        "CLUSTER_UNREACHABLE",
    ),
    warning("mac", "it is cordoned: it gets no new work", "`rmcs clusters uncordon mac`", "CORDONED"),
    ok("configuration", "clusters.yaml is valid: centos, mac, lab"),
]
APPLIED: dict[str, list[str]] = {
    "added": ["cloud"],
    "changed": ["mac"],
    "removed": [],
    "unchanged": ["centos"],
    "not_empty": ["attic"],
    "not_applied": ["ageing_s", "weights"],
}


def owner(name: str, waiting: int, running: int, *, changed: bool = False, **values: Any) -> dict[str, Any]:
    paused = values.pop("paused", None)
    none = dict.fromkeys(("max_queued", "max_running", "max_gpus", "max_priority"))
    limits = {"weight": 1.0, **none, **values}
    return {
        "owner": name, "waiting": waiting, "running": running, "limits": limits, "changed": changed, "paused": paused,
    }  # fmt: skip


OWNERS = [
    owner("ann", 6, 4, weight=2.0, max_queued=1_000_000, max_running=40, max_gpus=1.5),
    owner("bob", 1, 0, paused="on holiday until the first of December", changed=True, max_priority=-3),
    owner("", 0, 12),
]


def token(token_id: str, user: str, roles: str, ago_s: float, lasts_s: float | None, note: str) -> dict[str, Any]:
    expires = None if lasts_s is None else NOW - ago_s + lasts_s
    return {
        "id": token_id, "user": user, "roles": roles.split(), "created_at": NOW - ago_s, "expires_at": expires,
        "expired": expires is not None and expires < NOW, "note": note,
    }  # fmt: skip


TOKENS = [
    token("k3v9x2qa", "ann", "viewer submitter operator admin", 9_000_000, None, "made with the service"),
    token("p8f4m1zt", "bob", "submitter viewer", 86_400 * 3, 86_400 * 30, "laptop, for the notebooks of the course"),
    token("r7d2c5wn", "grafana@monitoring.example.org", "viewer", 86_400 * 40, 86_400 * 30, ""),
]


def replica(replica_id: str, state: str, cluster: str | None, reason: str, **values: Any) -> dict[str, Any]:
    queue = {"instance": None, "length": 0, "waiting_time_expect": 0.0, "relative_error": None, "within_p90": None}
    return {"id": replica_id, "state": state, "cluster": cluster, "reason": reason, **queue, **values}


REPLICAS = [
    replica(
        "actor-2f81", "RUNNING", "centos", "runs on centos", instance="9a1", length=5, waiting_time_expect=812.4,
        relative_error=0.0823, within_p90=0.9012,
    ),
    replica("actor-2f82", "QUEUED", None, "no cluster has a free GPU; 2 of 2 GPUs of centos are in use by others"),
]  # fmt: skip
DEPLOYMENTS: list[dict[str, Any]] = [
    {
        "name": "ocr", "replicas": 2, "max_batch": 1, "batch_wait_ms": 5.0, "concurrency": 1, "owner": "ann",
        "state": "STARTING", "running": 1, "instances": REPLICAS,
        "problem": "actor-2f7e ended: its worker process died on mac",
    },
    {
        "name": "embed", "replicas": 0, "max_batch": 16, "batch_wait_ms": 10.0, "concurrency": 1, "owner": "",
        "state": "RUNNING", "running": 0, "instances": [], "problem": "",
    },
]  # fmt: skip
LOCAL = [
    ClusterStatus(
        "linux", "up", "127.0.0.1:10001", "http://127.0.0.1:8265", ["linux", "x86_64"], range(41_200, 41_212)
    ),
    ClusterStatus("mac", "not answering", "127.0.0.1:10002", "http://127.0.0.1:8266", ["macos", "arm64"], [41_300]),
    ClusterStatus("cluster3", "down", "127.0.0.1:10003", "http://127.0.0.1:8267", [], []),
]


def use(cluster: str | None, resource: str, quota: float, used: float, borrowed: float, lent: float) -> dict[str, Any]:
    return {
        "cluster": cluster, "resource": resource, "quota": quota, "used": used, "reserved": 0.0, "borrowed": borrowed,
        "lent": lent, "available": max(0.0, quota - used - lent), "sentence": "…",
    }  # fmt: skip


def pool(name: str, running: int, waiting: int, *uses: dict[str, Any], **values: Any) -> dict[str, Any]:
    quota = {one["resource"]: one["quota"] for one in uses if one["cluster"] is None}
    on_clusters = {one["cluster"]: {one["resource"]: one["quota"]} for one in uses if one["cluster"]}
    return {
        "name": name, "labels": {}, "quota": quota, "cluster_quota": on_clusters, "cohort": "research",
        "borrow_limit": {}, "lend_limit": {}, "protected": False, "reclaim": "never", "priority": 0,
        "preemptible": False, "owners": [], "source": "configured", "draining": False, "waiting": waiting,
        "running": running, "use": list(uses), **values,
    }  # fmt: skip


POOLS = [
    pool(
        "train", 12, 40, use(None, "CPU", 16.0, 20.0, 4.0, 0.0), use(None, "GPU", 4.0, 2.0, 0.0, 0.0),
        use(None, "memory", 64 * 2**30, 2.5 * 2**30, 0.0, 0.0), labels={"team": "nlp", "stage": "pretrain"},
        borrow_limit={"CPU": 8.0}, reclaim="lower_priority", priority=2.5, preemptible=True, source="changed",
    ),
    pool("serve", 4, 0, use(None, "CPU", 8.0, 4.0, 0.0, 4.0), owners=["ann", "ben"], lend_limit={"CPU": 4.0}),
    pool("lab", 1, 0, use("centos", "CPU", 4.0, 1.0, 0.0, 0.0), cohort=None, protected=True, draining=True),
    pool("open", 0, 0, cohort=None, source="created"),
]  # fmt: skip
PICTURES = {
    "clusters": Picture(lambda: clusters_overview(CLUSTERS), ("clusters", "clusters list"), BOTH),
    "clusters-show": Picture(lambda: cluster_facts(CENTOS, NOW), ("clusters show",)),
    "clusters-show-lost": Picture(lambda: cluster_facts(ATTIC, NOW), ("clusters show",)),
    "clusters-check": Picture(lambda: FoldedText("\n\n".join(map(check_verdict, CHECKED))), ("clusters check",)),
    "clusters-apply": Picture(lambda: FoldedText("\n".join(applied_lines(APPLIED, dry_run=True))), ("clusters apply",)),
    "doctor": Picture(lambda: findings_text(FINDINGS), ("doctor",)),
    "owner": Picture(lambda: owners_table(OWNERS), ("owner list", "owner show", "owner set"), BOTH),
    "pool": Picture(lambda: pools_table(POOLS), ("pool list",), BOTH),
    "pool-show": Picture(lambda: pool_overview(POOLS[0]), ("pool show", "pool create", "pool resize", "pool relabel")),
    "serving-list": Picture(lambda: deployments_table(DEPLOYMENTS), ("serving list",), BOTH),
    "serving-status": Picture(lambda: deployment_overview(DEPLOYMENTS[0]), ("serving status",), BOTH),
    "token": Picture(lambda: tokens_table(TOKENS, NOW), ("token list",), BOTH),
    "fleet": Picture(
        lambda: Group(local_table(LOCAL), *(f"rmcs: {words}" for words in remedies(LOCAL))), ("fleet status",), BOTH
    ),
}


@pytest.mark.parametrize(("name", "width"), frames(PICTURES))
def test_output_equals_the_golden_file(name: str, width: int, request: pytest.FixtureRequest) -> None:
    check(PICTURES, name, width, request)
