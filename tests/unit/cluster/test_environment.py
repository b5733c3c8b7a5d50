"""What depends on the chosen cluster: runtime_env and markers."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.cluster.environment import markers, merge_runtime_env


class TestMerge:
    def test_dicts_merge_lists_join_and_the_caller_wins(self) -> None:
        cluster = {"conda": "ts", "env_vars": {"A": "1", "B": "1"}, "excludes": ["*.pkl"], "working_dir": "/c"}
        caller = {"env_vars": {"B": "2", "C": "2"}, "excludes": ["*.csv", "*.pkl"], "working_dir": "/w"}
        assert merge_runtime_env(cluster, caller) == {
            "conda": "ts",
            "env_vars": {"A": "1", "B": "2", "C": "2"},
            "excludes": ["*.pkl", "*.csv"],
            "working_dir": "/w",
        }

    def test_path_lists_of_the_caller_are_joined(self) -> None:
        assert merge_runtime_env({}, {"env_vars": {"PYTHONPATH": ["/a", "/b"]}}) == {
            "env_vars": {"PYTHONPATH": "/a:/b"}
        }

    def test_the_callers_installer_replaces_the_clusters(self) -> None:
        assert merge_runtime_env({"conda": "ts"}, {"pip": ["numpy"]}) == {"pip": ["numpy"]}
        assert merge_runtime_env({"pip": ["a"]}, {"pip": ["b"]}) == {"pip": ["a", "b"]}

    def test_nested_dicts_merge(self) -> None:
        merged = merge_runtime_env({"config": {"x": {"a": 1}}}, {"config": {"x": {"b": 2}}})
        assert merged == {"config": {"x": {"a": 1, "b": 2}}}

    def test_neither_input_is_changed(self) -> None:
        cluster: dict[str, Any] = {"env_vars": {"A": "1"}, "pip": ["x"]}
        caller: dict[str, Any] = {"env_vars": {"B": ["1", "2"]}, "pip": ["y"]}
        merge_runtime_env(cluster, caller)["env_vars"]["A"] = "9"
        assert cluster == {"env_vars": {"A": "1"}, "pip": ["x"]}
        assert caller == {"env_vars": {"B": ["1", "2"]}, "pip": ["y"]}

    def test_bad_env_vars_are_refused_in_words(self) -> None:
        with pytest.raises(ConfigurationError, match="runtime_env: env_vars: A: expected text"):
            merge_runtime_env({}, {"env_vars": {"A": {}}})


def test_markers_are_text() -> None:
    assert markers("mac", "t-1", 2, 17) == {
        "RMCS_CLUSTER": "mac",
        "RMCS_TASK_ID": "t-1",
        "RMCS_ATTEMPT": "2",
        "RMCS_FENCE": "17",
    }
