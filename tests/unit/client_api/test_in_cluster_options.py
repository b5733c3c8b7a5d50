"""Options inside a cluster: what Ray can do becomes Ray's options, what it cannot do is refused with a sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import NativeJobs
from ray_multicluster_scheduler.app.client_api.in_cluster.options import (
    actor_options,
    check_place,
    task_needs,
    task_options,
)
from ray_multicluster_scheduler.app.client_api.options import ActorOptions, ItemOptions, JobOptions
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError


@pytest.mark.parametrize(
    ("requirements", "chosen"),
    [
        (None, {"num_cpus": 1.0}),
        ({}, {"num_cpus": 1.0}),
        ({"CPU": 0}, {"num_cpus": 0.0}),
        ({"GPU": 1}, {"num_cpus": 1.0, "num_gpus": 1.0}),
        ({"cpu": 2, "memory": "1KiB", "special": 3}, {"num_cpus": 2.0, "memory": 1024, "resources": {"special": 3.0}}),
    ],
)
def test_resource_options_of_tasks(requirements: dict[str, Any] | None, chosen: dict[str, Any]) -> None:
    assert task_options(requirements, {}, "mac") == chosen


def test_an_actor_that_says_nothing_holds_nothing() -> None:
    assert actor_options(None, {}, "mac") == {}
    assert actor_options({"CPU": 0}, {}, "mac") == {"num_cpus": 0.0}
    assert task_needs(None) == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, {}),
        ({"crash_retries": 0}, {"max_retries": 0}),
        ({"crash_retries": 5}, {"max_retries": 5}),
        ({"retries": 2}, {"max_retries": 2, "retry_exceptions": True}),
        ({"retries": 2, "crash_retries": 2}, {"max_retries": 2, "retry_exceptions": True}),
        ({"retries": 0, "crash_retries": 3}, {"max_retries": 3}),
        ({"retries": 1, "retry_on": [OSError]}, {"max_retries": 1, "retry_exceptions": [OSError]}),
        ({"retries": 1, "retry_on": OSError}, {"max_retries": 1, "retry_exceptions": [OSError]}),
    ],
)
def test_retries(options: dict[str, Any], chosen: dict[str, Any]) -> None:
    assert task_options({"CPU": 1}, options, "mac") == {"num_cpus": 1.0, **chosen}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"retries": 1, "crash_retries": 2}, "counts both together"),
        ({"retries": 1, "retry_on": ["OSError"]}, "retry_on"),
        ({"retries": -1}, "retries is -1"),
        ({"crash_retries": True}, "crash_retries is True"),
        ({"no_retry_on": [OSError]}, "no_retry_on cannot be used inside cluster 'mac'"),
        ({"run_timeout": 3}, "run_timeout cannot be used"),
        ({"queue_timeout": 3}, "queue_timeout cannot be used"),
        ({"require_tags": ["x"]}, "require_tags cannot be used"),
        ({"idempotency_key": "k"}, "idempotency_key cannot be used"),
        ({"retrys": 3}, "no option 'retrys'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        task_options(None, options, "mac")
    assert caught.value.next_step


def test_labels_and_options_without_effect_are_accepted() -> None:
    quiet = {"tags": ["x"], "owner": "me", "priority": 3, "fallback": "wait", "run_timeout": None, "require_tags": ()}
    quiet |= {"labels": {"team": "nlp"}, "pool": "nlp", "preemptible": True, "min_runtime_s": 60}
    assert task_options({"CPU": 1}, {**quiet, "name": "shown", "num_returns": 2}, "mac") == {
        "num_cpus": 1.0,
        "name": "shown",
        "num_returns": 2,
    }


def test_options_of_actors() -> None:
    given = {"name": "n", "lifetime": "detached", "max_restarts": -1, "max_concurrency": 4, "ready_timeout": 5.0}
    assert actor_options(None, given, "mac") == {key: given[key] for key in given if key != "ready_timeout"}
    with pytest.raises(ConfigurationError, match="retries cannot be used"):
        actor_options(None, {"retries": 2}, "mac")
    with pytest.raises(ConfigurationError, match="restart_elsewhere cannot be used"):
        actor_options(None, {"restart_elsewhere": True}, "mac")
    with pytest.raises(ConfigurationError, match="needs a name"):
        actor_options(None, {"lifetime": "detached"}, "mac")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preferred_cluster": "mac"},
        {"allow_clusters": ["linux", "mac"]},
        {"deny_clusters": ["linux"]},
        {"preferred_cluster": None, "allow_clusters": None, "deny_clusters": None},
    ],
)
def test_this_cluster_may_be_asked_for(options: dict[str, Any]) -> None:
    check_place(options, "mac")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"preferred_cluster": "linux"}, "'linux' was requested"),
        ({"preferred_cluster": "linux", "fallback": "any"}, "'linux' was requested"),
        ({"allow_clusters": ["linux"]}, "allow_clusters is"),
        ({"allow_clusters": []}, "allow_clusters is"),
        ({"deny_clusters": ["mac"]}, "deny_clusters is"),
    ],
)
def test_another_cluster_may_not(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        check_place(options, "mac")
    assert caught.value.cluster == "mac"


def test_nor_by_context() -> None:
    with ClusterContextManager.use("linux"), pytest.raises(ConfigurationError, match="'linux' was requested"):
        check_place({}, "mac")
    with ClusterContextManager.use("mac"):
        check_place({}, "mac")


def sentence_for(check: Any, option: str) -> str:
    """What is reported about this option when it is given; empty if it is taken."""
    try:
        check(option)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("option", sorted(ItemOptions.__annotations__))
def test_every_option_of_tasks_is_known(option: str) -> None:
    """Taken or refused, but never unknown."""
    assert "no option" not in sentence_for(lambda name: task_options(None, {name: ["x"]}, "mac"), option)


@pytest.mark.parametrize("option", sorted(ActorOptions.__annotations__))
def test_every_option_of_actors_is_known(option: str) -> None:
    assert "no option" not in sentence_for(lambda name: actor_options(None, {name: ["x"]}, "mac"), option)


@pytest.mark.parametrize("option", sorted(JobOptions.__annotations__))
def test_every_option_of_jobs_is_known(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CLUSTER": "mac", "TASK_ID": "job-1", "ATTEMPT": "1", "FENCE": "1"}.items():
        monkeypatch.setenv(f"RMCS_{name}", value)
    monkeypatch.setattr(
        NativeJobs, "_jobs", lambda self: SimpleNamespace(submit_job=lambda **job: job["submission_id"])
    )
    wrong = {"x": "y"}
    assert "no option" not in sentence_for(lambda name: NativeJobs().submit_job("ls", **{name: wrong}), option)


def test_equal_items_are_not_joined_inside_either(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CLUSTER": "mac", "TASK_ID": "job-1", "ATTEMPT": "1", "FENCE": "1"}.items():
        monkeypatch.setenv(f"RMCS_{name}", value)
    monkeypatch.setattr(
        NativeJobs, "_jobs", lambda self: SimpleNamespace(submit_job=lambda **job: job["submission_id"])
    )
    for submit in (
        lambda **options: task_options(None, options, "mac"),
        lambda **options: actor_options(None, options, "mac"),
        lambda **options: NativeJobs().submit_job("ls", **options),
    ):
        assert "dedup" not in submit(dedup="none")
        submit(dedup=None)
        with pytest.raises(ConfigurationError, match="Equal items are not joined inside cluster"):
            submit(dedup="content")
