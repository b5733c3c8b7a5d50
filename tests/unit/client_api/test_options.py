"""Options of the verbs: checked before anything is sent, with the key's name in the error."""

from __future__ import annotations

import getpass
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_options import NOT_FOR_ACTORS
from ray_multicluster_scheduler.app.client_api.options import (
    ActorOptions,
    GangOptions,
    JobOptions,
    LimitOptions,
    TaskOptions,
    absolute_paths,
    common_fields,
    joins_equal_item,
    option_names,
    start_time,
)
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits


def fields(kind: str = "task", tags: object = None, settings: Settings | None = None, **options: Any) -> Any:
    return common_fields(options, kind, settings or Settings(), tags)


@pytest.mark.parametrize(
    ("kind", "typed", "arguments"),
    [
        ("task", TaskOptions, {"tags", "resource_requirements"}),
        ("actor", ActorOptions, {"tags", "resource_requirements"}),
        ("job", JobOptions, set()),
        ("gang", GangOptions, {"tags"}),
    ],
)
def test_type_checkers_see_the_options_that_are_defined(kind: str, typed: type, arguments: set[str]) -> None:
    """Some are arguments of the verb itself; those of tasks that actors refuse by name are typed for both."""
    refused = set(NOT_FOR_ACTORS) & option_names("task") if kind == "actor" else set()
    assert set(typed.__annotations__) | arguments == option_names(kind) | refused


def test_defaults_come_from_the_settings_and_the_owner_is_who_runs_the_program() -> None:
    made = fields(settings=Settings(retries=2, crash_retries=5, lost_retries=0))
    assert (made["retries"], made["crash_retries"], made["lost_retries"]) == (2, 5, 0)
    assert (made["priority"], made["fallback"], made["owner"], made["preferred_cluster"]) == (
        0,
        "any",
        getpass.getuser(),
        None,
    )
    assert made["allow_clusters"] is None
    assert made["retry_on"] is None


def test_what_the_caller_gives_wins_and_none_means_not_given() -> None:
    made = fields(settings=Settings(retries=2), retries=0, priority=None, owner="team", queue_timeout=5)
    assert (made["retries"], made["priority"], made["owner"], made["queue_timeout"]) == (0, 0, "team", 5.0)


def test_the_cluster_context_is_used_unless_one_is_named() -> None:
    with ClusterContextManager.use("mac"):
        assert fields()["preferred_cluster"] == "mac"
        assert fields(preferred_cluster="linux")["preferred_cluster"] == "linux"


def test_lists_become_tuples_and_classes_become_names() -> None:
    made = fields(tags=["gpu"], require_tags=("x",), retry_on=[ValueError, "MyError"], no_retry_on=KeyError)
    assert (made["tags"], made["require_tags"]) == (("gpu",), ("x",))
    assert (made["retry_on"], made["no_retry_on"]) == (("ValueError", "MyError"), ("KeyError",))
    assert fields(allow_clusters=[])["allow_clusters"] == ()


@pytest.mark.parametrize(
    ("options", "named", "hint"),
    [
        ({"retris": 3}, "'retris'", "did you mean retries"),
        ({"cluster": "mac"}, "'cluster'", "did you mean preferred_cluster"),
        ({"clusters": ["mac"]}, "'clusters'", "did you mean allow_clusters"),
        ({"tagz": ["gpu"]}, "'tagz'", "did you mean tags"),
        ({"resource_requirement": {}}, "'resource_requirement'", "did you mean resource_requirements"),
        ({"priority": 1_000_001}, "priority is 1000001", "between -1000000 and 1000000"),
        ({"priority": -1_000_001}, "priority is -1000001", "between -1000000 and 1000000"),
        ({"cluster_name": "mac"}, "'cluster_name'", "did you mean preferred_cluster"),
        ({"zzz": 3}, "'zzz'", "known options: "),
        ({"num_cpus": 2}, "'num_cpus'", 'resource_requirements={"CPU": 2}'),
        ({"gpus": 2}, "'gpus'", 'resource_requirements={"GPU": 1}'),
        ({"resources": {"CPU": 1}}, "'resources'", 'resource_requirements={"CPU": 2, "tpu": 1}'),
        ({"retry_lost": True}, "'retry_lost'", ""),
        ({"tags": "gpu"}, "tags", 'tags=["gpu"]'),
        ({"tags": 5}, "tags", "gpu"),
        ({"require_tags": ["", "x"]}, "require_tags", "text"),
        ({"deny_clusters": [1]}, "deny_clusters", "text"),
        ({"priority": True}, "priority is True", "a number between"),
        ({"priority": float("nan")}, "priority is nan", "a number between"),
        ({"priority": float("-inf")}, "priority is -inf", "a number between"),
        ({"priority": "2.5"}, "priority is '2.5'", "a number between"),
        ({"labels": {"team": 5}}, r"labels\['team'\] is 5", "as text"),
        ({"labels": ["team"]}, "labels is ", "a mapping"),
        ({"labels": {"": "nlp"}}, "labels is ", "at most 64 texts by name"),
        ({"labels": {"team": "x" * 257}}, "labels is ", "of at most 256"),
        ({"labels": {"x" * 257: ""}}, "labels is ", "names of 1 to 256 characters"),
        ({"labels": {str(number): "" for number in range(65)}}, "labels is ", "at most 64"),
        ({"pool": ""}, "pool", "as plain text"),
        ({"pool": 5}, "pool", "as plain text"),
        ({"min_runtime_s": 0}, "min_runtime_s is 0", "above 0"),
        ({"min_runtime_s": True}, "min_runtime_s is True", "above 0"),
        ({"retries": "3"}, "retries", "whole number"),
        ({"run_timeout": 0}, "run_timeout", "above 0"),
        ({"run_timeout": "1"}, "run_timeout", "above 0"),
        ({"queue_timeout": float("nan")}, "queue_timeout", "above 0"),
        ({"retry_on": [5]}, "retry_on", "text"),
        ({"runtime_env": ["numpy"]}, "runtime_env", "pip"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], named: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        fields(**options)
    assert hint in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("given", "made"), [(5, "5"), (5.0, "5"), (2.5, "2.5"), (-0.0, "0"), (1e6, "1000000"), (None, "0")]
)
def test_a_whole_priority_stays_whole(given: float | None, made: str) -> None:
    assert str(fields(priority=given)["priority"]) == made
    assert str(TaskDescription("t", "task", "t", priority=given or 0).priority) == made


@pytest.mark.parametrize("kind", ["task", "job", "actor", "gang"])
def test_the_fields_of_pools_are_options_of_all_kinds(kind: str) -> None:
    unset = {"labels": {}, "pool": None, "preemptible": None, "min_runtime_s": None}
    assert fields(kind).items() >= unset.items()
    given: dict[str, Any] = {
        "labels": {"team": "nlp", "x" * 256: "y" * 256, "empty": ""},
        "pool": "nlp",
        "preemptible": False,
        "min_runtime_s": 60.0,
    }
    assert fields(kind, **given).items() >= given.items()
    assert fields(kind, **dict.fromkeys(unset)).items() >= unset.items()


def test_what_is_set_of_them() -> None:
    plain = TaskDescription("t", "task", "t")
    assert plain.pool_fields == {}
    full = replace(plain, labels={"a": "b"}, pool="p", preemptible=False, min_runtime_s=1.5)
    assert full.pool_fields == {"labels": {"a": "b"}, "pool": "p", "preemptible": False, "min_runtime_s": 1.5}
    assert TaskDescription.from_dict(full.to_dict()) == full
    with pytest.raises(ConfigurationError, match="min_runtime_s is 0"):
        replace(plain, min_runtime_s=0)


def test_jobs_have_one_option_more() -> None:
    assert fields("job", retry_lost=True)["retry_lost"] is True
    with pytest.raises(ConfigurationError, match="retry_lst") as caught:
        fields("job", retry_lst=True)
    assert "retry_lost" in str(caught.value.next_step)


def test_relative_folders_are_relative_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("src", "lib", "x"):
        (tmp_path / name).mkdir()
    given = {"working_dir": "src", "py_modules": [Path("lib"), "s3://bucket/x.zip", str(tmp_path)], "pip": ["numpy"]}
    made = absolute_paths(given)
    assert made["working_dir"] == str(tmp_path / "src")
    assert made["py_modules"] == [str(tmp_path / "lib"), "s3://bucket/x.zip", str(tmp_path)]
    assert made["pip"] == ["numpy"]
    assert given["working_dir"] == "src", "the caller's own is not changed"
    assert absolute_paths({"working_dir": "https://x/y.zip"}) == {"working_dir": "https://x/y.zip"}
    assert absolute_paths({"working_dir": "~/x"})["working_dir"] == str(tmp_path / "x")


def test_a_folder_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TaskSubmissionError, match="nowhere"):
        absolute_paths({"working_dir": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("runtime_env", "says"),
    [
        ({"pipp": ["x"]}, "did you mean 'pip'"),
        ({"working_dirr": "."}, "did you mean 'working_dir'"),
        ({"env_vars": {"A": "\udcff"}}, "no environment can hold"),
        ({"env_vars": {"A": "x\0"}}, "no environment can hold"),
    ],
)
def test_a_slip_in_a_runtime_env_is_refused(runtime_env: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        absolute_paths(runtime_env)
    assert "?." not in f"{caught.value.message} {caught.value}"


def test_a_plugins_key_is_left_to_ray() -> None:
    assert absolute_paths({"my_company_plugin": 1}) == {"my_company_plugin": 1}


@pytest.mark.parametrize("key", ["preferred_cluster", "owner", "name", "idempotency_key"])
@pytest.mark.parametrize("value", [7, ["linux"], "", b"x", "\udcff"])
def test_non_text_values_are_rejected(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=key):
        common_fields({key: value}, "task", Settings(), None)


@pytest.mark.parametrize("value", [7, None, "", ["a"]])
def test_the_context_takes_names_only(value: object) -> None:
    with pytest.raises(ConfigurationError, match="name of a cluster"):
        ClusterContextManager.set(value)


def test_a_time_limit_that_no_clock_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="run_timeout"):
        common_fields({"run_timeout": 10**400}, "task", Settings(), None)


@pytest.mark.parametrize("kind", ["task", "job", "actor", "gang"])
def test_dedup_is_one_of_two_words(kind: str) -> None:
    for word in (None, "none", "content"):
        assert "dedup" not in fields(kind, dedup=word)
    for wrong in ("all", True, ["none"]):
        with pytest.raises(ConfigurationError, match="dedup is "):
            fields(kind, dedup=wrong)


def test_who_is_joined_to_an_equal_item() -> None:
    content = Settings(dedup="content")
    assert not joins_equal_item({}, Settings())
    assert joins_equal_item({"dedup": "content"}, Settings())
    assert joins_equal_item({}, content)
    assert not joins_equal_item({"dedup": "none"}, content)
    for own in ({"idempotency_key": "k"}, {"submission_id": "job-7"}):
        assert not joins_equal_item(own, content)
        with pytest.raises(ConfigurationError, match="exclude each other"):
            joins_equal_item({**own, "dedup": "content"}, Settings())


def test_start_after_is_a_time_from_now_or_a_moment() -> None:
    soon = time.time() + 60
    assert start_time(None, 1000.0) is None
    assert start_time(60, 1000.0) == 1060.0
    assert start_time(timedelta(minutes=1), 1000.0) == 1060.0
    for moment in (soon, datetime.fromtimestamp(soon, UTC), datetime.fromtimestamp(soon)):  # noqa: DTZ006 - local time
        assert start_time(moment, 1000.0) == pytest.approx(1060.0, abs=5)
    for wrong in ("tomorrow", -1, True, float("nan"), timedelta(days=-1), 10**400):
        with pytest.raises(ConfigurationError, match="start_after"):
            fields(start_after=wrong)


def test_after_names_items_each_once() -> None:
    assert fields(after=["task-1", "job-2", "task-1"])["after"] == ("task-1", "job-2")
    assert fields()["after"] == ()
    for wrong in ("task-1", 7, [7], [""]):
        with pytest.raises(ConfigurationError, match="after"):
            fields(after=wrong)


def test_a_value_is_kept_in_its_cluster_or_not() -> None:
    assert (fields()["keep"], fields(keep="cluster")["keep"]) == (None, "cluster")
    for wrong in ("there", True, 1):
        with pytest.raises(ConfigurationError, match="keep is"):
            fields(keep=wrong)


def test_the_limits_of_an_owner_are_typed_as_they_are_defined() -> None:
    assert set(LimitOptions.__annotations__) == set(OwnerLimits.model_fields)
