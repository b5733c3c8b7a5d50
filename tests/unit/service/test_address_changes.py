"""A cluster whose address was edited while the service was down, and jobs that are not over there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import check_moved, store_addresses
from ray_multicluster_scheduler.control_plane.runtime.service.fleet_changes import FleetChanges
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import CPUS, ServicePlane, a_job, a_task, running

BEFORE = ClusterConfig(name="mac", dashboard="http://127.0.0.1:8265")
NOW = ClusterConfig(name="mac", dashboard="http://127.0.0.1:8266")
OTHER = ClusterConfig(name="linux", dashboard="http://127.0.0.1:8266")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state") as plane:
        store_addresses(plane.store, [BEFORE])
        yield plane


def test_a_job_that_is_not_over_at_the_old_address(plane: ServicePlane) -> None:
    item = running(plane.taken(a_job("j1")))
    check_moved(plane.store, [BEFORE, OTHER])
    with pytest.raises(ConfigurationError) as caught:
        check_moved(plane.store, [NOW, OTHER])
    assert caught.value.message == (
        "The dashboard of cluster 'mac' was http://127.0.0.1:8265 when the service ran last, and is "
        "http://127.0.0.1:8266 now, but j1 has not ended there. Another cluster would not know it, and it might run "
        "twice."
    )
    assert "`rmcs up --moved mac`" in (caught.value.next_step or "")
    check_moved(plane.store, [NOW], ["mac"])
    plane.end(CallResult("j1", 1, "succeeded"))
    until(item.done)
    plane.runtime.run(plane.runtime.until_durable())
    check_moved(plane.store, [NOW])


def test_many_jobs_are_not_all_named(plane: ServicePlane) -> None:
    for number in range(7):
        running(plane.taken(a_job(f"j{number}")))
    with pytest.raises(ConfigurationError, match=r"and 2 more have not ended there.* know them, and they might run"):
        check_moved(plane.store, [NOW])


def test_a_cluster_that_has_no_dashboard_any_more(plane: ServicePlane) -> None:
    running(plane.taken(a_job("j1")))
    without = ClusterConfig(name="mac", head_address="127.0.0.1:10001")
    with pytest.raises(ConfigurationError, match=r"and is not configured now, but j1 has not ended"):
        check_moved(plane.store, [without])


def test_tasks_have_a_lease_and_what_waits_is_nowhere(plane: ServicePlane) -> None:
    running(plane.taken(a_task("t1", CPUS)))
    plane.taken(a_job("waits", start_after=5e9))
    check_moved(plane.store, [NOW])


def test_where_it_was_when_nothing_was_written_down_is_not_guessed(tmp_path: Path) -> None:
    with ServicePlane(tmp_path / "state") as plane:
        running(plane.taken(a_job("j1")))
        check_moved(plane.store, [NOW])


def test_an_address_that_was_accepted_is_the_one_to_come_back_to(plane: ServicePlane) -> None:
    running(plane.taken(a_job("j1")))
    store_addresses(plane.store, [NOW])
    check_moved(plane.store, [NOW])
    with pytest.raises(ConfigurationError, match=r"was http://127.0.0.1:8266 when"):
        check_moved(plane.store, [BEFORE])


def test_one_that_goes_and_comes_back_elsewhere_is_remembered(plane: ServicePlane) -> None:
    running(plane.taken(a_job("j1")))
    check_moved(plane.store, [OTHER])
    store_addresses(plane.store, [OTHER])
    with pytest.raises(ConfigurationError, match="j1 has not ended there"):
        check_moved(plane.store, [OTHER, NOW])


def test_what_is_applied_while_it_runs_is_noted_too(plane: ServicePlane) -> None:
    changes = FleetChanges(plane.runtime)
    moved = plane.runtime.config.clusters[0].model_copy(update={"dashboard": NOW.dashboard})
    plane.runtime.run(changes.apply(FleetConfig(clusters=[moved])))
    running(plane.taken(a_job("j1")))
    check_moved(plane.store, [NOW])
    with pytest.raises(ConfigurationError, match=r"was http://127.0.0.1:8266 when"):
        check_moved(plane.store, [BEFORE])


def test_a_name_that_is_not_there(plane: ServicePlane) -> None:
    with pytest.raises(ConfigurationError, match="There is no cluster 'mca' that could have moved") as caught:
        check_moved(plane.store, [NOW, OTHER], ["mca"])
    assert caught.value.next_step == "use one of: mac, linux"
