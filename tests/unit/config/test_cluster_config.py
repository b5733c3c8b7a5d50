"""One cluster's entry: every key is checked, and has an effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config import ClusterConfig

MINIMAL = {"name": "mac", "head_address": "192.168.5.2:32546"}


def cluster(**keys: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({**MINIMAL, **keys})


def test_metadata_carries_every_key_that_is_no_secret() -> None:
    given = cluster(
        dashboard="http://192.168.5.2:8265",
        prefer=True,
        weight=1.2,
        tags=["macos", "arm64"],
        home_dir="/Users/alice/",
        python="/opt/py/bin/python",
        runtime_env={"conda": "ts"},
        auth_token="s3cret",
        max_running_jobs=3,
        max_in_flight=7,
        carrier="agent",
        autoscaling=True,
        max_node={"CPU": 16, "memory": "1GiB"},
    )
    assert given.metadata() == ClusterMetadata(
        name="mac",
        head_address="192.168.5.2:32546",
        dashboard="http://192.168.5.2:8265",
        prefer=True,
        weight=1.2,
        tags=("macos", "arm64"),
        home_dir="/Users/alice",
        python="/opt/py/bin/python",
        runtime_env={"conda": "ts"},
        max_running_jobs=3,
        max_in_flight=7,
        carrier="agent",
        autoscaling=True,
        max_node={"CPU": 16.0, "memory": 1024**3},
    )


def test_metadata_has_every_key_but_secret_and_local_ones() -> None:
    secrets = {"auth_token", "auth_token_path", "tls", "connector_python", "agent_port", "agent_address"}
    assert set(ClusterConfig.model_fields) - secrets == set(cluster().metadata().to_dict())


@pytest.mark.parametrize("value", ["localhost", "http://h:1", "h:0", "h:70000", "h:x", ":1", "a b:1", ""])
def test_head_address_is_host_and_port(value: str) -> None:
    with pytest.raises(ValidationError, match="expected host:port"):
        cluster(head_address=value)


@pytest.mark.parametrize("value", ["10.0.0.1:10001", "head.ray.svc.cluster.local:10001", "[::1]:10001", "a:1"])
def test_good_head_addresses(value: str) -> None:
    assert cluster(head_address=value).head_address == value


@pytest.mark.parametrize(
    "value", ["h:8265", "ftp://h:1", "http://h", "http://h:99999", "http://h:8265?x=1", "http:// h:8265", "http://:80"]
)
def test_dashboard_is_a_complete_url(value: str) -> None:
    with pytest.raises(ValidationError, match="expected http://host:port"):
        cluster(dashboard=value)


def test_dashboard_keeps_its_path_and_loses_the_last_slash() -> None:
    assert cluster(dashboard="https://ray.example.org:443/a/").dashboard == "https://ray.example.org:443/a"


def test_password_in_the_dashboard_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        cluster(dashboard="http://joe:hunter2@h:8265")
    assert "auth_token" in caught.value.errors()[0]["msg"]
    assert "hunter2" not in caught.value.errors()[0]["msg"]


def test_needs_an_address() -> None:
    with pytest.raises(ValidationError, match="at least one of them is needed"):
        ClusterConfig(name="x")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"name": "a b"}, "not a valid name of a cluster"),
        ({"weight": 0}, "greater than 0"),
        ({"weight": float("inf")}, "finite"),
        ({"tags": "linux"}, r"expected a list, for example \[linux\]"),
        ({"home_dir": "home/alice"}, "absolute path"),
        ({"home_dir": "/"}, "absolute path"),
        ({"runtime_env": None}, "is empty; leave the key out"),
        ({"runtime_env": "conda"}, "expected a mapping"),
        ({"runtime_env": {"pip": None}}, "empty key 'pip'"),
        ({"runtime_env": {"env_vars": ["A=b"]}}, "env_vars: expected a mapping"),
        ({"runtime_env": {"env_vars": {"A": True}}}, 'quote it, for example "true"'),
        ({"runtime_env": {"env_vars": {"A": {}}}}, "env_vars: A: expected text"),
        ({"runtime_env": {"py_modules": "x"}}, "py_modules: expected a list"),
        ({"runtime_env": {"working_dir": 3}}, "working_dir: expected a path"),
        ({"max_node": {"CPU": -1}}, "max_node"),
        ({"max_node": [1]}, "expected a mapping"),
        ({"auth_token": "a", "auth_token_path": "b"}, "keep one of them"),
        ({"max_running_jobs": 0}, "greater than or equal to 1"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"carrier": "pigeon"}, "'auto', 'agent', 'dial_in' or 'ray_client'"),
        ({"tls": {"verify": "perhaps"}}, "boolean"),
        ({"python": ""}, "at least 1 character"),
    ],
)
def test_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        cluster(**keys)


def test_lists_and_numbers_in_env_vars_become_text() -> None:
    env = cluster(runtime_env={"env_vars": {"PYTHONPATH": ["/a", "/b"], "N": 3}}).runtime_env
    assert env == {"env_vars": {"PYTHONPATH": "/a:/b", "N": "3"}}


def test_token_is_looked_up_at_each_use() -> None:
    given = cluster(auth_token="${MAC_TOKEN}")
    assert given.resolve_token({"MAC_TOKEN": "one"}) == "one"
    assert given.resolve_token({"MAC_TOKEN": "two"}) == "two"


def test_missing_variable_is_named_with_cluster_and_key() -> None:
    with pytest.raises(ConfigurationError, match=r"auth_token of cluster mac .* MAC_TOKEN") as caught:
        cluster(auth_token="${MAC_TOKEN}").resolve_token({})
    assert caught.value.cluster == "mac"
    assert "MAC_TOKEN" in (caught.value.next_step or "")


def test_token_file_is_read_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    given = cluster(auth_token_path=str(file))
    with pytest.raises(ConfigurationError, match=r"auth_token_path of cluster mac .* No such file"):
        given.resolve_token()
    file.write_text("")
    with pytest.raises(ConfigurationError, match="is empty"):
        given.resolve_token()
    file.write_text("abc\n")
    assert given.resolve_token() == "abc"


def test_no_token_is_none() -> None:
    assert cluster().resolve_token() is None


def test_literal_token_is_never_shown_but_works() -> None:
    given = cluster(auth_token="hunter2")
    shown = f"{given!r} {given} {given.model_dump()} {given.model_dump_json()} {given.metadata()}"
    assert "hunter2" not in shown
    assert given.resolve_token() == "hunter2"


def test_reference_to_a_token_survives_a_dump() -> None:
    assert cluster(auth_token="${A}").model_dump()["auth_token"] == "${A}"
