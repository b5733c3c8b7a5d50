"""What can be used and is hardly meant: one cluster under two names, a cluster that nothing can be sent to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.config_warnings import ConfigWarning, config_warnings


def found(**entries: dict[str, Any]) -> list[ConfigWarning]:
    return config_warnings([ClusterConfig.model_validate({"name": name, **entry}) for name, entry in entries.items()])


def test_no_warnings() -> None:
    assert found(a={"dashboard": "http://h:1", "head_address": "h:2"}, b={"dashboard": "http://h:3"}) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"dashboard": "http://h:1"}, {"dashboard": "http://h:1/"}),
        ({"dashboard": "http://h:1/A"}, {"dashboard": "http://H:1/A"}),
        ({"dashboard": "http://x:1", "head_address": "h:1"}, {"dashboard": "http://y:1", "head_address": "H:1"}),
        ({"dashboard": "http://h:1", "head_address": "h:1"}, {"dashboard": "http://h:1", "head_address": "h:1"}),
    ],
)
def test_one_address_under_two_names(one: dict[str, Any], other: dict[str, Any]) -> None:
    (warning,) = found(a=one, b={"dashboard": "http://z:9"}, c=other)
    assert (warning.clusters, warning.code) == (("a", "c"), "SAME_CLUSTER")
    assert "a and c are one cluster" in warning.sentence


def test_paths_of_one_host_are_distinguished() -> None:
    assert found(a={"dashboard": "http://h:1/a"}, b={"dashboard": "http://h:1/A"}) == []


def test_a_cluster_without_a_dashboard() -> None:
    (warning,) = found(a={"head_address": "head.example:10001"})
    assert warning.code == "NO_CARRIER"
    assert "a has a head_address but no dashboard" in warning.sentence
    assert "`dashboard: http://head.example:8265`" in warning.fix


def test_a_token_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    file, cluster = tmp_path / "token", {"dashboard": "http://h:1"}
    by_file, by_name = found(
        a={**cluster, "auth_token_path": str(file)}, b={"dashboard": "http://h:2", "auth_token": "${NO_SUCH_TOKEN}"}
    )
    assert (by_file.clusters, by_name.clusters, by_file.code) == (("a",), ("b",), "CLUSTER_MISCONFIGURED")
    assert by_file.sentence.endswith(f"is {file}, which cannot be read: No such file or directory")
    assert by_name.sentence.endswith("refers to the environment variable NO_SUCH_TOKEN, which is not set")
    assert by_name.fix == "set NO_SUCH_TOKEN to the cluster's token, or change auth_token"
    file.write_text("hush")
    monkeypatch.setenv("NO_SUCH_TOKEN", "hush")
    assert (
        found(
            a={**cluster, "auth_token_path": str(file)}, b={"dashboard": "http://h:2", "auth_token": "${NO_SUCH_TOKEN}"}
        )
        == []
    )
