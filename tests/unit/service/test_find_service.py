"""Which service a program uses: the one that is named, that of the environment, or the one that runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.remote.service_address import current_address, find_service
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder

HERE = "http://127.0.0.1:8000"


def test_what_is_named_goes_before_the_environment_and_that_before_what_runs_here(tmp_path: Path) -> None:
    environ = {"RMCS_HOME": str(tmp_path), "RMCS_ADDRESS": "http://b:2"}
    with StateFolder(tmp_path) as state:
        state.announce(address=HERE)
        assert find_service("http://a:1", environ) == "http://a:1"
        assert find_service(None, environ) == "http://b:2"
        assert find_service(None, {**environ, "RMCS_ADDRESS": ""}) == HERE
        assert find_service(None, {"RMCS_HOME": str(tmp_path)}) == HERE


def test_there_is_none(tmp_path: Path) -> None:
    environ = {"RMCS_HOME": str(tmp_path)}
    assert find_service(None, environ) is None
    with StateFolder(tmp_path) as state:
        assert find_service(None, environ) is None, "it is just starting"
        state.announce(address=HERE)
    assert find_service(None, environ) is None, "it has ended"
    assert find_service(None, {"RMCS_HOME": str(tmp_path / "nowhere")}) is None


def test_one_that_was_killed_leaves_no_address(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"pid": 1, "address": "http://127.0.0.1:9"}')
    assert find_service(None, {"RMCS_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://x:1/", "http://x:1"),
        ("x:1", "http://x:1"),
        ("localhost:8000", "http://localhost:8000"),
        (" http://x:1 ", "http://x:1"),
        ("https://x", "https://x"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://x/rmcs/", "http://x/rmcs"),
    ],
)
def test_ways_to_write_it(given: str, meant: str) -> None:
    assert find_service(given, {}) == meant


@pytest.mark.parametrize(
    "given",
    ["", "http://", "ftp://x", "ray://x:10001", "http://x?y=1", "http://:8000", "http://[::1", "http://x:y", 5, b"x:1"],
)
def test_invalid_address_is_rejected(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"address is .*not the address of a service"):
        find_service(given, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["http://ann:hunter2@x:8000", "https://hunter2@x", "http://:hunter2@x:1"])
def test_a_password_in_an_address_is_not_repeated(given: str) -> None:
    with pytest.raises(ConfigurationError, match="address contains a user or a password") as caught:
        find_service(given, {})
    assert "hunter2" not in str(caught.value)
    assert "RMCS_TOKEN" in str(caught.value)


def test_the_key_is_named_that_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="RMCS_ADDRESS is 'ftp://x'"):
        find_service(None, {"RMCS_ADDRESS": "ftp://x"})


def test_one_that_was_started_again_on_another_port_is_found(tmp_path: Path) -> None:
    environ = {"RMCS_HOME": str(tmp_path)}
    with StateFolder(tmp_path) as state:
        state.announce(address=HERE, control_plane="mine")
        assert current_address("mine", environ) == HERE
        assert current_address("of somebody else", environ) is None
    assert current_address("mine", environ) is None
