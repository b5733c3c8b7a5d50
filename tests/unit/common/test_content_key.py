"""The content of an item: what makes two of them equal, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription
from ray_multicluster_scheduler.common.model.task_description import content_key
from tests.unit.lifecycle.driver import actor, job, task

WHOLE: dict[str, Any] = {"function_digest": "f", "arguments_digest": "x", "owner": "ann", "tags": ("a",)}


def one(task_id: str = "t1", **values: Any) -> TaskDescription:
    return task(task_id, **{**WHOLE, **values})


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"priority": 7},
        {"retries": 2, "crash_retries": 0, "lost_retries": 0},
        {"run_timeout": 5.0, "queue_timeout": 6.0},
        {"submitted_at": 99.0},
        {"content_key": "k"},
    ],
)
def test_changes_that_keep_the_key(change: dict[str, Any]) -> None:
    assert content_key(one()) == content_key(one("t2", **change))


@pytest.mark.parametrize(
    "change",
    [
        {"function_digest": "g"},
        {"arguments_digest": "y"},
        {"requirements": {"CPU": 2.0}},
        {"runtime_env": {"pip": ["x"]}},
        {"owner": "bob"},
        {"tags": ("b",)},
        {"require_tags": ("b",)},
        {"preferred_cluster": "a"},
        {"preferred_cluster": "a", "fallback": "wait"},
        {"allow_clusters": ("a",)},
        {"deny_clusters": ("a",)},
        {"after": ("t0",)},
        {"start_after": 5.0},
        {"pool": "nlp"},
        {"labels": {"team": "nlp"}},
        {"preemptible": True},
        {"min_runtime_s": 60.0},
    ],
)
def test_changes_that_change_the_key(change: dict[str, Any]) -> None:
    assert content_key(one()) != content_key(one(**change))


def test_kinds_and_entrypoints() -> None:
    keys = [
        content_key(task("x", 1)),
        content_key(actor("x", 1)),
        content_key(job("x", 1)),
        content_key(job("x", 1, job=JobDescription("python y.py"))),
    ]
    assert len(set(keys)) == 4


def test_values_that_stand_in_for_handles_count_in_their_order() -> None:
    assert content_key(one(), ["a", "b"]) == content_key(one(), ["a", "b"])
    assert len({content_key(one()), content_key(one(), ["a", "b"]), content_key(one(), ["b", "a"])}) == 3


def test_the_order_of_resources_does_not() -> None:
    first, second = {"CPU": 1.0, "GPU": 2.0}, {"GPU": 2.0, "CPU": 1.0}
    assert content_key(one(requirements=first)) == content_key(one(requirements=second))


def test_it_is_short_and_has_no_secret_in_it() -> None:
    key = content_key(one(runtime_env={"env_vars": {"TOKEN": "secret"}}))
    assert len(key) == 32
    assert "secret" not in key
