"""init and what else a program written for Ray calls; nothing is contacted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.ray_shape import ray_shape
from ray_multicluster_scheduler.app.client_api.unified_scheduler import shutdown
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError
from tests.unit.client_api.control_plane import CLOSED_PORT

TEXT = f"clusters: [{{name: mac, dashboard: '{CLOSED_PORT}', runtime_env: {{env_vars: {{A: '1', B: '1'}}}}}}]"


@pytest.fixture(autouse=True)
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RMCS_CLUSTERS", TEXT)
    before = execution_context.exchange_shared(None)
    yield
    shutdown()
    execution_context.exchange_shared(before)


def test_init_and_shutdown() -> None:
    assert not ray_shape.is_initialized()
    scheduler = ray_shape.init()
    assert ray_shape.is_initialized()
    assert execution_context.shared() is scheduler
    with pytest.raises(ConfigurationError, match="there is a scheduler already"):
        ray_shape.init()
    assert ray_shape.init(ignore_reinit_error=True) is scheduler
    shutdown()
    assert not ray_shape.is_initialized()
    assert ray_shape.init() is not scheduler


def test_an_address_may_be_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMCS_CLUSTERS")
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT.replace("mac", "other"))
    for address in (path, str(path)):
        assert ray_shape.init(address).config.names == ("other",)
        shutdown()
    with pytest.raises(ConfigurationError, match="nowhere.yaml"):
        ray_shape.init(str(tmp_path / "nowhere.yaml"))
    assert not ray_shape.is_initialized()


@pytest.mark.parametrize("address", ["auto", "local", "ray://head:10001", "127.0.0.1:6379"])
def test_the_address_of_one_ray_cluster_is_explained(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ray_multicluster_scheduler"):
        assert ray_shape.init(address=address).config.names == ("mac",)
    (line,) = [record.message for record in caplog.records]
    assert address in line
    assert "clusters.yaml" in line


def test_what_is_about_one_ray_cluster_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ray_multicluster_scheduler"):
        ray_shape.init(num_cpus=4, namespace="n", include_dashboard=False)
    (line,) = [record.message for record in caplog.records]
    assert "include_dashboard, namespace, num_cpus" in line


def test_a_wrong_address() -> None:
    wrong: Any = 5
    for address in ("nonsense", wrong):
        with pytest.raises(ConfigurationError, match="the address"):
            ray_shape.init(address)


def test_a_runtime_env_is_for_everything(tmp_path: Path) -> None:
    scheduler = ray_shape.init(runtime_env={"env_vars": {"B": "2", "C": "2"}, "working_dir": str(tmp_path)})
    (cluster,) = scheduler.config.clusters
    assert cluster.runtime_env == {"env_vars": {"A": "1", "B": "2", "C": "2"}, "working_dir": str(tmp_path)}
    shutdown()
    with pytest.raises(ConfigurationError, match="runtime_env"):
        ray_shape.init(runtime_env={"working_dirr": "."})
    scheduler._started()
    with pytest.raises(ConfigurationError, match="too late"):
        scheduler.use_runtime_env({"env_vars": {"D": "1"}})
    scheduler.shutdown()


def test_outside_there_is_no_task() -> None:
    context = ray_shape.get_runtime_context()
    assert (context.get_task_id(), context.get_actor_id(), context.get_node_id()) == (None, None, None)
    assert context.get_assigned_resources() == {}


def test_clusters_that_do_not_answer_have_nothing() -> None:
    ray_shape.init()
    assert (ray_shape.nodes(), ray_shape.cluster_resources(), ray_shape.available_resources()) == ([], {}, {})


class TestRaysKeywords:
    """Ray's own arguments of verbs that both have: taken where they say what happens anyway."""

    @pytest.mark.parametrize("ask", [api.get_actor, lambda *a, **k: execution_context.shared().get_actor(*a, **k)])
    def test_get_actor_with_a_namespace(self, ask: Any) -> None:
        for harmless in ((), (None,)):
            with pytest.raises(UnknownItemError, match="no living actor 'tally'"):
                ask("tally", *harmless)
        with pytest.raises(ConfigurationError, match="namespace is 'mine'"):
            ask("tally", namespace="mine")

    @pytest.mark.parametrize("ask", [api.cancel, lambda *a, **k: execution_context.shared().cancel(*a, **k)])
    def test_cancel_with_its_children(self, ask: Any) -> None:
        handle = api.put(1)
        for one in (handle, api.submit_task_async(print).id):
            ask(one, recursive=True)
            with pytest.raises(ConfigurationError, match="recursive=False"):
                ask(one, recursive=False)

    def test_actors_are_listed(self) -> None:
        assert api.list_actors() == []
        actor = api.submit_actor_async(Path, ("x",), name="tally")
        (row,) = api.list_actors()
        assert (row["id"], row["name"], row["class"]) == (actor.id, "tally", "Path")
