"""Interpreter and environment of a connector."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import (
    connector_environment,
    connector_python,
)


def config(**keys: Any) -> ClusterConfig:
    return ClusterConfig(**{"name": "a", "head_address": "h:10001", **keys})


def test_the_clusters_own_then_that_of_the_settings_then_ours_if_it_has_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    own = config(connector_python="/bin/sh")
    assert connector_python(own, Settings(connector_python=sys.executable)) == "/bin/sh"
    assert connector_python(config(), Settings(connector_python="/bin/sh")) == "/bin/sh"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert connector_python(config(), Settings()) == sys.executable


def test_without_ray_the_error_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LinkProblem, match="has no ray") as caught:
        connector_python(config(), Settings())
    assert (caught.value.code, caught.value.permanent) == ("CONNECTOR_NO_RAY", True)
    assert "connector_python" in str(caught.value.next_step)
    assert "[ray]" in str(caught.value.next_step)


def test_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(LinkProblem, match=r"/no/such/python, which cannot be run") as caught:
        connector_python(config(connector_python="/no/such/python"), Settings())
    assert caught.value.code == "CONNECTOR_NO_RAY"


def test_its_environment_has_its_own_token_and_nothing_of_ours() -> None:
    ours = {
        "HOME": "/home/alice",
        "RAY_ADDRESS": "auto",
        "RAY_AUTH_TOKEN": "of another",
        "RAY_TLS_CA_CERT": "/ca.pem",
        "RMCS_HOME": "/x",
        "PYTHONPATH": "/ours",
    }
    with_token = connector_environment(ours, "secret")
    assert (with_token["RAY_AUTH_MODE"], with_token["RAY_AUTH_TOKEN"]) == ("token", "secret")
    assert (with_token["HOME"], with_token["RAY_TLS_CA_CERT"]) == ("/home/alice", "/ca.pem")
    assert not {"RAY_ADDRESS", "RMCS_HOME", "PYTHONPATH"} & with_token.keys()
    without = connector_environment(ours, None)
    assert without["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in without
