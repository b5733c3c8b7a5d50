"""A fleet as a service tells of it, for pictures: always the same, at one moment."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.golden import NOW

GIB = 1024.0**3


def row(item_id: str, state: str, ago_s: float, took_s: float | None = None, **values: Any) -> dict[str, Any]:
    began = NOW - ago_s
    return {
        "id": item_id,
        "kind": "task",
        "name": "train",
        "owner": "ann",
        "state": state,
        "attempt": 1,
        "cluster": "mac",
        "priority": 0,
        "submitted_at": began,
        "started_at": None if state == "QUEUED" else began + 10,
        "finished_at": None if took_s is None else began + 10 + took_s,
        **values,
    }


def waiting(item_id: str, ago_s: float, sentence: str, position: int | None = None, **values: Any) -> dict[str, Any]:
    output = {"code": "NO_CAPACITY", "sentence": sentence, "held": False, "waiting_since": NOW - ago_s, **values}
    reported = row(item_id, "QUEUED", ago_s, position=position, **output)
    return {key: one for key, one in reported.items() if key not in ("attempt", "cluster", "started_at", "finished_at")}


_NOT_KNOWN = (
    *("agent_awaited_until", "paused", "carrier", "tasks_by", "dashboard", "head_address", "snapshot_at", "nodes"),
    *("total", "free", "ray_version", "python_version", "os", "arch"),
)


def cluster(name: str, state: str, **values: Any) -> dict[str, Any]:
    """With all that a service says of one."""
    return {
        "name": name,
        "state": state,
        "sentence": "",
        "stale": False,
        "cordoned": False,
        "cordon_reason": None,
        "items": 0,
        "other_control_planes": [],
        "tags": [],
        "prefer": False,
        "weight": 1.0,
        "current": True,
        **dict.fromkeys(_NOT_KNOWN),
        **values,
    }


HELD = waiting(
    "nightly-2026-11-15", 5400, "is held: until Monday", kind="job", name="nightly", held=True, priority=5, code="HELD"
)
STATUS = {
    "version": "0.1.0",
    "address": "http://127.0.0.1:8000",
    "user": "ann",
    "clusters": [
        cluster(
            "centos",
            "UP",
            nodes=2,
            total={"CPU": 40.0, "memory": 128 * GIB, "GPU": 2.0},
            free={"CPU": 4.0, "memory": 70 * GIB, "GPU": 1.0},
            items=9,
        ),
        cluster(
            "mac",
            "UP",
            nodes=1,
            total={"CPU": 8.0, "memory": 16 * GIB},
            cordoned=True,
            paused="until Monday",
            items=1,
        ),
        cluster("lab", "CLUSTER_UNREACHABLE", sentence="lab does not answer: connection refused"),
        cluster(
            "attic",
            "CLUSTER_LOST",
            sentence="its link has been silent for 75 s: it is lost",
            current=False,
            nodes=1,
            total={"CPU": 4.0},
            free={"CPU": 1.0},
            items=3,
        ),
    ],
    "queue": {
        "depth": 7,
        "states": {"QUEUED": 7},
        "kinds": {"job": 1, "task": 6},
        "owners": {"ann": 7},
        "on_clusters": {"RUNNING": 13},
        "lanes": [{"queue": "job", "cluster": None, "waiting": 1}, {"queue": "task", "cluster": None, "waiting": 6}],
        "waiting": [
            HELD,
            waiting("task-9f3c", 12, "centos: 16 CPU are not free on any one node; mac is cordoned", 2),
        ],
        "after": "task-9f3c",
    },
}
ITEMS = [
    row("task-9f3c", "QUEUED", 12, cluster=None, attempt=0),
    row(
        "nightly-2026-11-15", "RUNNING", 5400, kind="job", name="python train.py --epochs 90 --out s3://models/nightly"
    ),
    row("task-7a11", "SUCCEEDED", 86_400, 61.5, cluster="centos", owner=""),
    row("task-7a10", "FAILED", 90_000, 3.0, attempt=3),
    row("actor-5d", "LOST", 200_000, kind="actor", name="Counter", owner="bob"),
]
STORY = {
    "id": "task-9f3c",
    "kind": "task",
    "name": "train",
    "state": "QUEUED",
    "cluster": None,
    "code": "NO_CAPACITY",
    "sentence": "centos: 16 CPU are not free on any one node",
    "unblocked_by": "12 more CPU are free on one node of centos",
    "estimate": {"text": "in about 4 minutes"},
    "queue": {"position": 2, "ahead": [{"id": "nightly-2026-11-15", "why": "priority 5"}]},
    "decision": {
        "at": NOW - 2,
        "cluster": None,
        "code": "NO_CAPACITY",
        "sentence": "centos: 16 CPU are not free on any one node",
        "filters": ["healthy", "cordoned", "capacity"],
        "candidates": [
            {
                "cluster": "centos",
                "rejections": [
                    {"code": "NO_CAPACITY", "sentence": "16 CPU are not free on any one node", "permanent": False}
                ],
                "ranks": {},
                "scores": {},
                "raw_scores": {},
                "total": None,
            },
            {
                "cluster": "mac",
                "rejections": [{"code": "TOO_BIG", "sentence": "the largest node has 8 CPU", "permanent": True}],
                "ranks": {},
                "scores": {},
                "raw_scores": {},
                "total": None,
            },
        ],
    },
    "attempts": [],
    "history": [
        {"at": NOW - 12, "state": "PENDING", "code": "SUBMITTED"},
        {"at": NOW - 12, "state": "QUEUED", "code": "NO_CAPACITY"},
    ],
}
