"""How items look at the terminal: what waits, what runs, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.commands.events import event_line
from ray_multicluster_scheduler.cli.commands.explain import explanation_text
from ray_multicluster_scheduler.cli.commands.job import status_text
from ray_multicluster_scheduler.cli.commands.preempt import preemption_overview
from ray_multicluster_scheduler.cli.commands.queue import queue_overview
from ray_multicluster_scheduler.cli.commands.status import status_overview
from ray_multicluster_scheduler.cli.commands.submit import plan_text
from ray_multicluster_scheduler.cli.layout.item_tables import actors_table, item_facts, items_table, jobs_table
from ray_multicluster_scheduler.cli.layout.lines import FoldedText
from tests.unit.cli.golden import NOW, USUAL, WIDE, Picture, check, frames
from tests.unit.cli.golden_data import ITEMS, STATUS, STORY, row

BOTH = (WIDE, USUAL)
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 41, in train
    raise ValueError(f"no such split: {split}")
ValueError: no such split: valdiation"""
FAILED: dict[str, Any] = {
    **row("task-7a10", "FAILED", 90_000, 3.0, attempt=3),
    "at": NOW - 89_987,
    "code": "TASK_FAILED",
    "sentence": "ValueError: no such split: valdiation",
    "outcome": {
        "completion": {
            "task_id": "task-7a10",
            "state": "FAILED",
            "cluster": "mac",
            "message": "ValueError: no such split: valdiation",
            "next_step": "read the traceback; fix the code, and submit it again (`rmcs task retry task-7a10`)",
        },
        "result": {"task_id": "task-7a10", "attempt": 3, "traceback": TRACEBACK},
        "origin": None,
    },
}
QUEUE: dict[str, Any] = STATUS["queue"]
PLANNED: dict[str, Any] = {
    "cluster": "centos",
    "code": "PLACED",
    "sentence": "centos: load score 30.8; chosen among 2 clusters that fit",
    "unblocked_by": None,
    "candidates": [
        {
            "cluster": "centos",
            "rejections": [],
            "ranks": {},
            "scores": {"load": 0.77},
            "raw_scores": {"load": 30.8},
            "total": 0.77,
        },
        {
            "cluster": "mac",
            "rejections": [],
            "ranks": {},
            "scores": {"load": 0.2},
            "raw_scores": {"load": 8.0},
            "total": 0.2,
        },
        {
            "cluster": "lab",
            "rejections": [{"code": "CLUSTER_UNREACHABLE", "sentence": "it does not answer", "permanent": False}],
            "ranks": {},
            "scores": {},
            "raw_scores": {},
            "total": None,
        },
    ],
}


def job(job_id: str, status: str, ago_s: float, took_s: float | None = None, **values: Any) -> dict[str, Any]:
    began = NOW - ago_s
    return {
        "job_id": job_id,
        "status": status,
        "cluster": "centos",
        "attempt": 1,
        "submitted_at": began,
        "started_at": None if status == "PENDING" else began + 5,
        "finished_at": None if took_s is None else began + 5 + took_s,
        "entrypoint": "python train.py --epochs 90 --out s3://models/nightly",
        "message": "",
        **values,
    }


JOBS = [
    job("nightly-2026-11-15", "RUNNING", 5400),
    job("raysubmit_4Xw9qLr2bTzK8hVd", "PENDING", 20, cluster=None, attempt=0, entrypoint="python eval.py"),
    job("nightly-2026-11-14", "SUCCEEDED", 91_800, 7200.0),
    job("nightly-2026-11-13", "STOPPED", 178_200, 60.0, attempt=2),
]


def actor(actor_id: str, state: str, **values: Any) -> dict[str, Any]:
    return {
        "id": actor_id,
        "name": None,
        "class": "Counter",
        "state": state,
        "cluster": "mac",
        "attempt": 1,
        "lifetime": None,
        "message": "",
        **values,
    }


ACTORS = [
    actor("actor-5d", "RUNNING", name="counter", lifetime="detached"),
    actor("actor-61", "RUNNING", **{"class": "ParameterServer"}, cluster="centos"),
    actor("actor-77", "FAILED", attempt=2, message="mac lost its node: the actor died with it, and had one restart"),
]


def step(number: int, ago_s: float, state: str, code: str, sentence: str, **values: Any) -> dict[str, Any]:
    output = {"type": "transition", "number": number, "at": NOW - ago_s, "id": "task-9f3c", "cluster": None}
    return {**output, "state": state, "code": code, "sentence": sentence, **values}


EVENTS = [
    step(98, 12, "PENDING", "SUBMITTED", "task train was submitted"),
    step(99, 12, "QUEUED", "NO_CAPACITY", "centos: 16 CPU are not free on any one node; mac is cordoned"),
    {
        "type": "cluster",
        "number": 100,
        "at": NOW - 9,
        "cluster": "lab",
        "before": "UP",
        "state": "CLUSTER_UNREACHABLE",
        "sentence": "lab does not answer: connection refused",
    },
    {
        "type": "action",
        "number": 101,
        "at": NOW - 7,
        "user": "ann",
        "subject": "cluster mac",
        "action": "pause",
        "token": "k3v9x2qa",
        "details": {"reason": "until Monday"},
    },
    {"type": "decision", "number": 102, "at": NOW - 6, "id": "task-9f3c", "cluster": "mac", "sentence": "it fits"},
    step(103, 6, "DISPATCHING", "PLACED", "mac: load score 8.0", cluster="mac"),
    step(104, 5, "RUNNING", "STARTED", "started on mac", cluster="mac"),
    {"type": "missed", "number": None, "at": None, "from": 105, "to": 120},
]
STANDING = {"status": "FAILED", "message": "The entrypoint ended with exit code 1."}


def candidate(name: str, rank: int | None, priority: float, lost_s: float, code: str, why: str) -> dict[str, Any]:
    """A row of a preemption."""
    row = {"id": name, "cluster": "mac", "priority": priority, "lost_s": lost_s, "rank": rank}
    return {**row, "code": code, "sentence": why}


PREEMPTION = {
    "id": "urgent-1",
    "state": "QUEUED",
    "code": "WOULD_PREEMPT",
    "sentence": "2 items would give way on mac",
    "cluster": "mac",
    "victims": [
        {"id": "train-7", "reason": "same_pool_priority", "priority": 0, "lost_s": 125.0},
        {"id": "train-9", "reason": "reclaim", "priority": 2.5, "lost_s": 4000.0},
    ],
    "candidates": [
        candidate("train-7", 1, 0, 125.0, "same_pool_priority", "its priority 0 is 1 or more below 5"),
        candidate("train-9", 2, 2.5, 4000.0, "reclaim", "pool train borrows what pool serve claims back"),
        candidate("train-12", None, 0, 20.0, "MIN_RUNTIME", "it has run 20 s of at least 60 s"),
    ],
    "total": 53,
}
PICTURES = {
    "status": Picture(lambda: status_overview(STATUS, NOW), ("status",), BOTH),
    "task-list": Picture(lambda: items_table(ITEMS, NOW), ("task list",), BOTH),
    "task-show": Picture(lambda: item_facts(FAILED, NOW), ("task show",)),
    "explain": Picture(lambda: explanation_text(STORY, "the service http://127.0.0.1:8000"), ("explain",), BOTH),
    "queue": Picture(lambda: queue_overview(QUEUE, NOW), ("queue",), BOTH),
    "preempt": Picture(lambda: preemption_overview(PREEMPTION), ("preempt",), BOTH),
    "plan": Picture(lambda: plan_text(PLANNED), ("plan",), BOTH),
    "job-list": Picture(lambda: jobs_table(JOBS, NOW), ("job list",), BOTH),
    "job-status": Picture(
        lambda: status_text("nightly-2026-11-15", STANDING, lambda: f"epoch 1\n{TRACEBACK}\n"), ("job status",)
    ),
    "actor-list": Picture(lambda: actors_table(ACTORS), ("actor list",), BOTH),
    "events": Picture(lambda: FoldedText("\n".join(map(event_line, EVENTS))), ("events",)),
}


@pytest.fixture(autouse=True)
def _one_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("name", "width"), frames(PICTURES))
def test_output_equals_the_golden_file(name: str, width: int, request: pytest.FixtureRequest) -> None:
    check(PICTURES, name, width, request)
